/* prepared.h: a device's cache of prepared ops, found by all that a preparation depends on: kind, attributes, shapes,
 * types and layouts of the operands, workspace limit. */
#ifndef MT_PREPARED_H
#define MT_PREPARED_H

#include "kernel.h"

enum { PREPARED_BUCKETS = 4096 };

typedef struct PreparedEntry PreparedEntry;
/* Zero bytes: empty. */
typedef struct Prepared {
    PreparedEntry *bucket[PREPARED_BUCKETS];
    PreparedEntry *newest, *oldest; /* by when they were asked for last */
    int count;
    int64_t turn;                   /* of what is asked for between two trims */
} Prepared;

#ifdef __cplusplus
extern "C" {
#endif

/* The state and workspace of the op, by `prepare` when it is not there yet. `prepare` NULL: the op needs neither. */
int prepared_get(Prepared *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e);
/* Frees the states that were not asked for longest, until at most `keep` are left; but none that was asked for since
 * the last trim, so that programs that are alike and made one after the other are prepared once. No program may hold
 * one. */
void prepared_trim(Prepared *p, int keep, KernelRelease *release);
/* Frees every state by `release`, which must bear NULL. */
void prepared_clear(Prepared *p, KernelRelease *release);

#ifdef __cplusplus
}
#endif

#endif
