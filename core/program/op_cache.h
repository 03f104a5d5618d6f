/* op_cache.h: a device's cache of prepared ops, found by all that a preparation depends on: kind, attributes, shapes,
 * types and layouts of the operands, workspace limit. */
#ifndef MT_OP_CACHE_H
#define MT_OP_CACHE_H

#include "kernel.h"

enum { PREPARED_BUCKETS = 4096 };

typedef struct OpCacheEntry OpCacheEntry;
/* Zero bytes: empty. */
typedef struct OpCache {
    OpCacheEntry *bucket[PREPARED_BUCKETS];
    OpCacheEntry *newest, *oldest; /* by when they were asked for last */
    int count;
    int64_t turn;                   /* of what is asked for between two trims */
} OpCache;

#ifdef __cplusplus
extern "C" {
#endif

/* The state and workspace of the op, by `prepare` when it is not there yet. `prepare` NULL: the op needs neither. */
int op_cache_get(OpCache *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e);
/* Frees the states that were not asked for longest, until at most `keep` are left; but none that was asked for since
 * the last trim, so that programs that are alike and made one after the other are prepared once. No program may hold
 * one. */
void op_cache_trim(OpCache *p, int keep, KernelRelease *release);
/* Frees every state by `release`, which must bear NULL. */
void op_cache_clear(OpCache *p, KernelRelease *release);

#ifdef __cplusplus
}
#endif

#endif
