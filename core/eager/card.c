#include "card.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORKSPACE_DEFAULT = 2 * (4096 << 10) + 8 * (16 << 10), WORKSPACE_HOPPER = 32 << 20 };

static const Card cards[] = {
#define CARD(name, title, mib, log, multiprocessors, threads, capability, mhz, memory_mhz, plan, workspace, context, source, \
             fp32, tf32, fp16, bf16, gb)                                                                               \
    {name, title, (size_t)(mib) << 20, log, multiprocessors, threads, capability, (mhz) * 1000, (memory_mhz) * 1000,       \
     PLAN_##plan, workspace, context, source, fp32 * 1e12, tf32 * 1e12, fp16 * 1e12, bf16 * 1e12, gb * 1e9},
#include "cards.def"
#undef CARD
};

const Card *card_info(int i) { return i >= 0 && i < (int)ARRAY_LEN(cards) ? &cards[i] : NULL; }

const Card *card_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(cards); i++)
        if (!strcmp(cards[i].name, name)) return &cards[i];
    return NULL;
}

static const PyTorchVersion versions[] = {
#define VERSION(name, ...) {name, __VA_ARGS__},
#include "versions.def"
#undef VERSION
};

const PyTorchVersion *version_info(int i) { return i >= 0 && i < (int)ARRAY_LEN(versions) ? &versions[i] : NULL; }

const PyTorchVersion *version_find(const char *name) {
    if (!*name) return &versions[ARRAY_LEN(versions) - 1];
    for (size_t i = 0; i < ARRAY_LEN(versions); i++)
        if (!strcmp(versions[i].name, name)) return &versions[i];
    return NULL;
}

int64_t card_workspace(const Card *c, const PyTorchVersion *v) {
    return c->capability >= 100 && !v->blackwell_workspace ? WORKSPACE_DEFAULT : c->cublas_workspace;
}

double card_flops(const Card *c, Unit u) {
    switch (u) {
    case UNIT_TF32: return fmax(c->tf32, c->fp32);
    case UNIT_3XTF32: return fmax(c->tf32 / 3, c->fp32);
    case UNIT_FP16: return fmax(c->fp16, c->fp32);
    case UNIT_BF16: return fmax(c->bf16, c->fp32);
    default: return c->fp32;
    }
}

void card_describe(const Card *c, PlanCard *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", c->title);
    out->capability = c->capability;
    out->multiprocessors = c->multiprocessors;
    out->threads = c->threads;
    out->memory = (int64_t)c->memory;
    out->clock = c->clock;
    out->memory_clock = c->memory_clock;
}
