#include "card.h"

#include <string.h>

enum { WORKSPACE_DEFAULT = 2 * (4096 << 10) + 8 * (16 << 10), WORKSPACE_HOPPER = 32 << 20 };

static const Card cards[] = {
#define CARD(name, title, mib, log, multiprocessors, threads, capability, mhz, memory_mhz, plan, workspace, context, source) \
    {name, title, (size_t)(mib) << 20, log, multiprocessors, threads, capability, (mhz) * 1000, (memory_mhz) * 1000,       \
     PLAN_##plan, workspace, context, source},
#include "cards.def"
#undef CARD
};

const Card *card_info(int i) { return i >= 0 && i < (int)ARRAY_LEN(cards) ? &cards[i] : NULL; }

const Card *card_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(cards); i++)
        if (!strcmp(cards[i].name, name)) return &cards[i];
    return NULL;
}
