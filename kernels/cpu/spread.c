#include "spread.h"

#include <linux/mempolicy.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel counts one bit more than it reads. */
static long bind_memory(void *p, size_t bytes, int mode, const NumberSet *nodes) {
    return syscall(SYS_mbind, p, bytes, mode, nodes ? nodes->word : NULL, nodes ? SET_NUMBERS + 1ul : 0ul, 0);
}

Spread spread_find(const Machine *m, int threads) {
    if (threads <= 1 || set_count(&m->nodes) <= 1) return SPREAD_NOT_NEEDED;
    int mode = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul)) return SPREAD_REFUSED;
    if (mode != MPOL_DEFAULT) return SPREAD_CHOSEN;
    return bind_memory(NULL, 0, MPOL_DEFAULT, NULL) ? SPREAD_REFUSED : SPREAD_ROUND; /* asked of no page */
}

const char *spread_text(Spread s) {
    static const char *const text[SPREADS] = {"", "as the process's memory policy says", "not interleaved: the kernel refuses it", "interleaved"};
    assert(s < SPREADS);
    return text[s];
}

static size_t whole_pages(const void *p, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert((uintptr_t)p % page == 0);
    return bytes / page * page;
}

void spread_begin(const NumberSet *nodes, void *p, size_t bytes) { bind_memory(p, whole_pages(p, bytes), MPOL_INTERLEAVE, nodes); }

/* malloc may give the pages to others. */
void spread_end(void *p, size_t bytes) { bind_memory(p, whole_pages(p, bytes), MPOL_DEFAULT, NULL); }
