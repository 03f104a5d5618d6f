/* distribute.h: private to the passes that divide a training among ranks. Up to pass schedule_stages, which keeps a
 * rank's stage of a pipeline, all ranks have the same ops in the same order; what differs is which part of a tensor is a
 * rank's own. */
#ifndef MT_DISTRIBUTE_H
#define MT_DISTRIBUTE_H

#include "rewrite.h"

/* Which shard of the buffer is the rank's own; count 0: a tensor so small is not divided, and neither is one of a single
 * rank. */
static inline Shard distribute_shard(const Program *p, int buf) {
    const int64_t n = shape_elements(&p->bufs[buf].shape);
    return shard_divides(n, p->world) ? shard_of(n, p->world, p->rank) : (Shard){0, 0};
}

/* Makes the buffer a shard. */
static inline void distribute_divide(Program *p, int buf, Shard shard) {
    p->bufs[buf].shard = shard;
    program_resize(p, buf);
}

/* Emits a collective op among the ranks along that axis; in: NO_BUF for one that updates `out`. bucket: see CollectiveAttr. On
 * failure as program_op. */
static inline void distribute_op(Program *p, OpKind kind, MeshAxis axis, int in, int out, int bucket, const char *path) {
    Op *op = program_op(p, kind, path);
    op->in[0] = in;
    op->out[0] = out;
    const AxisPlace at = program_axis(p, axis);
    op->attr.collective = (CollectiveAttr){.world = at.world, .rank = at.rank, .bucket = bucket, .axis = axis};
    op_cost(p, op);
}

#endif
