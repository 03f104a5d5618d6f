/* prepared.h: a device's cache of prepared ops, found by all that a preparation depends on: kind, attributes, shapes,
 * types and layouts of the operands, workspace limit. */
#ifndef MT_PREPARED_H
#define MT_PREPARED_H

#include "kernel.h"

enum { PREPARED_BUCKETS = 4096 };

typedef struct PreparedEntry PreparedEntry;
typedef struct Prepared { PreparedEntry *bucket[PREPARED_BUCKETS]; } Prepared; /* zero bytes: empty */

#ifdef __cplusplus
extern "C" {
#endif

/* The state and workspace of the op, by `prepare` when it is not there yet. `prepare` NULL: the op needs neither. */
int prepared_get(Prepared *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e);
/* Frees every state by `release`, which must bear NULL. */
void prepared_clear(Prepared *p, KernelRelease *release);

#ifdef __cplusplus
}
#endif

#endif
