/* op_cache.h: a device's cache of prepared ops. The key is all that a preparation depends on: kind, attributes, the
 * operands' shapes, types and layouts, and the workspace limit. */
#ifndef MT_OP_CACHE_H
#define MT_OP_CACHE_H

#include "kernel.h"

enum { PREPARED_BUCKETS = 4096 };

typedef struct OpCacheEntry OpCacheEntry;
/* All bytes zero: empty. */
typedef struct OpCache {
    OpCacheEntry *bucket[PREPARED_BUCKETS];
    OpCacheEntry *newest, *oldest; /* by when they were last asked for */
    int count;                      /* entries */
    int64_t turn;                   /* how often the cache was trimmed */
} OpCache;

#ifdef __cplusplus
extern "C" {
#endif

/* *state and *workspace (bytes) of the op: `prepare` makes them if the cache lacks them. prepare NULL: the op needs
 * neither. ERR_HOST_MEMORY, or the error of `prepare`; then nothing is cached. */
int op_cache_get(OpCache *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e);
/* Frees the states that were not asked for longest, by `release`, until at most `keep` (0 or more) are left. Keeps
 * every state that was asked for since the last trim, so that similar programs that are made one after the other are
 * prepared once. No program may hold a state at that time. */
void op_cache_trim(OpCache *p, int keep, KernelRelease *release);
/* Frees every state by `release`, which must accept NULL. */
void op_cache_clear(OpCache *p, KernelRelease *release);

#ifdef __cplusplus
}
#endif

#endif
