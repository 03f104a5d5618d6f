/* Ops in which all ranks of a training take part: each calls the same ones in the same order. */
#include "program/rule.h"

static bool is_shard(const Buf *whole, const Buf *shard, const CollectiveAttr *a) {
    const int64_t n = shape_elements(&whole->shape);
    if (whole->shard.count || whole->dtype != shard->dtype || !shape_equal(&whole->shape, &shard->shape)) return false;
    const Shard own = shard_of(n, a->world, a->rank);
    return shard_divides(n, a->world) && shard->shard.first == own.first && shard->shard.count == own.count;
}

static bool all_reduce_fits(const Operands *o) { return fits_whole(o) && dtype_is_float(o->all_reduce.x->dtype); }
static bool all_reduce__fits(const Operands *o) { return dtype_is_float(o->all_reduce_.y->dtype); }
static bool reduce_scatter_fits(const Operands *o) {
    return dtype_is_float(o->reduce_scatter.x->dtype) && is_shard(o->reduce_scatter.x, o->reduce_scatter.y, &o->attr->collective);
}
static bool all_gather_fits(const Operands *o) { return is_shard(o->all_gather.y, o->all_gather.x, &o->attr->collective); }
static bool all_gather__fits(const Operands *o) { return !o->all_gather_.y->shard.count; }

/* The whole program has both operands, that of one stage has its own. */
static bool transfer_fits(const Operands *o) {
    const Buf *x = o->transfer.x, *y = o->transfer.y;
    return x && y ? fits_whole(o) && x->layout == y->layout : x || y;
}

/* The gradient goes the other way. */
static void transfer_gradient(Gradients *g, const Op *f, int dy) {
    Op back = *f;
    back.attr.transfer = (TransferAttr){f->attr.transfer.to, f->attr.transfer.from};
    gradient_by(g, OP_transfer, &back, f->transfer.x, dy, NO_BUF);
}

/* Every rank reads the sum, and each has made one of its terms. */
static void all_reduce_gradient(Gradients *g, const Op *f, int dy) { gradient_pass(g, f, f->all_reduce.x, dy); }

static void show(const Attr *a, Line *l) {
    const CollectiveAttr *c = &a->collective;
    line_put(l, " rank=%d/%d bucket=%d", c->rank, c->world, c->bucket);
    if (c->axis != MESH_DATA) line_put(l, " %s", mesh_axis_name(c->axis));
}

static void transfer_show(const Attr *a, Line *l) { line_put(l, " from=%d to=%d", a->transfer.from, a->transfer.to); }

const OpRule rule_all_reduce = {all_reduce_fits, NULL, all_reduce_gradient, show};
const OpRule rule_all_reduce_ = {all_reduce__fits, NULL, NULL, show};
const OpRule rule_reduce_scatter = {reduce_scatter_fits, NULL, NULL, show};
const OpRule rule_all_gather = {all_gather_fits, NULL, NULL, show};
const OpRule rule_all_gather_ = {all_gather__fits, NULL, NULL, show};
const OpRule rule_transfer = {transfer_fits, NULL, transfer_gradient, transfer_show};
const OpRule rule_wait = {NULL, NULL, NULL, NULL};
const OpRule rule_any_overflow = {NULL, NULL, NULL, show};

/* ---- what a rank sends and receives */

/* In bytes: a tensor, and the rank's part of it. */
typedef struct Part { int64_t whole, own; } Part;

/* Its part is a shard; or, of a sum that all get, what it sums up. */
static Part part_of(const Buf *b, const CollectiveAttr *a, bool divided) {
    const int64_t n = shape_elements(&b->shape), size = (int64_t)dtype_size(b->dtype);
    const Shard own = divided ? shard_of(n, a->world, a->rank) : shard_of_sum(n, a->world, a->rank);
    return (Part){n * size, own.count * size};
}

/* Each rank sends the parts that the others sum up, and gets theirs of its own. */
static Transfer scattered(Part p, int world) { return (Transfer){p.whole - p.own, (world - 1) * p.own, 1, 1}; }
/* Each rank sends its part to all others. */
static Transfer gathered(Part p, int world) { return (Transfer){(world - 1) * p.own, p.whole - p.own, 1, 1}; }

static Transfer summed(Part p, int world) {
    const Transfer terms = scattered(p, world), sums = gathered(p, world);
    return (Transfer){terms.sent + sums.sent, terms.received + sums.received, 1, 2};
}

/* From the stage that has x to the one that has y; a rank has one of them. */
static Transfer handed_on(const Buf *x, const Buf *y) { return (Transfer){x ? (int64_t)x->bytes : 0, y ? (int64_t)y->bytes : 0, 1, 1}; }

Transfer op_transfer(const Program *p, const Op *op) {
    const CollectiveAttr *a = &op->attr.collective;
    const int64_t flag = sizeof(int32_t);
    switch (op->kind) {
    case OP_all_reduce: case OP_all_reduce_: return summed(part_of(&p->bufs[op->out[0]], a, false), a->world);
    case OP_reduce_scatter: return scattered(part_of(&p->bufs[op->in[0]], a, true), a->world);
    case OP_all_gather: case OP_all_gather_: return gathered(part_of(&p->bufs[op->out[0]], a, true), a->world);
    case OP_transfer: return handed_on(op->transfer.x == NO_BUF ? NULL : &p->bufs[op->transfer.x],
                                       op->transfer.y == NO_BUF ? NULL : &p->bufs[op->transfer.y]);
    case OP_any_overflow: return gathered((Part){a->world * flag, flag}, a->world);
    default: return (Transfer){0, 0, 0, 0};
    }
}
