/* Ops in which all ranks of a training take part: each calls the same ones in the same order. */
#include <string.h>

#include "program/loss.h"
#include "program/rule.h"

static bool is_shard(const Buf *whole, const Buf *shard, const CollectiveAttr *a) {
    const int64_t n = shape_elements(&whole->shape);
    if (whole->shard.count || whole->dtype != shard->dtype || !shape_equal(&whole->shape, &shard->shape)) return false;
    const Shard own = shard_of(n, a->world, a->rank);
    return shard_divides(n, a->world) && shard->shard.first == own.first && shard->shard.count == own.count;
}

/* The axis along which the part is the slice of one of so many ranks; -1: it is no such slice. */
static int sliced_axis(const Buf *whole, const Buf *part, int world) {
    const Shape *x = &whole->shape, *y = &part->shape;
    int axis = -1, differ = 0;
    if (whole->shard.count || part->shard.count || whole->dtype != part->dtype || x->rank != y->rank) return -1;
    for (int i = 0; i < x->rank; i++) {
        if (x->dim[i] == y->dim[i]) continue;
        if (x->dim[i] == y->dim[i] * world) axis = i;
        differ++;
    }
    return differ == 1 ? axis : -1;
}

static bool is_part(const Buf *whole, const Buf *part, const CollectiveAttr *a) {
    return is_shard(whole, part, a) || sliced_axis(whole, part, a->world) >= 0;
}

static bool all_reduce_fits(const Operands *o) { return fits_whole(o) && dtype_is_float(o->all_reduce.x->dtype); }
static bool all_reduce__fits(const Operands *o) { return dtype_is_float(o->all_reduce_.y->dtype); }
static bool reduce_scatter_fits(const Operands *o) {
    return dtype_is_float(o->reduce_scatter.x->dtype) && is_part(o->reduce_scatter.x, o->reduce_scatter.y, &o->attr->collective);
}
static bool all_gather_fits(const Operands *o) { return is_part(o->all_gather.y, o->all_gather.x, &o->attr->collective); }
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

/* In place of every rank's sum each has its slice of it: all read the gradients of all slices. */
static void reduce_scatter_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_all_gather, f, f->reduce_scatter.x, dy, NO_BUF);
}

/* Each rank has made a term of the gradient of the whole; or all of it, of which it then takes its slice. */
static void all_gather_gradient(Gradients *g, const Op *forward, int dy) {
    const CollectiveAttr *a = &forward->attr.collective;
    const int x = forward->all_gather.x;
    Op f = *forward;
    if (a->terms) {
        gradient_by(g, OP_reduce_scatter, &f, x, dy, NO_BUF);
        return;
    }
    const int axis = sliced_axis(&g->p->bufs[dy], &g->p->bufs[x], a->world);
    assert(axis >= 0 && a->axis == MESH_TENSOR);
    memset(&f.attr, 0, sizeof f.attr);
    f.attr.axis = (AxisAttr){axis, a->rank * g->p->bufs[x].shape.dim[axis], a->world, a->rank};
    gradient_by(g, OP_slice, &f, x, dy, NO_BUF);
}

static void show(const Attr *a, Line *l) {
    const CollectiveAttr *c = &a->collective;
    line_put(l, " rank=%d/%d bucket=%d", c->rank, c->world, c->bucket);
    if (c->axis != MESH_DATA) line_put(l, " %s", mesh_axis_name(c->axis));
    if (c->terms) line_put(l, " terms");
}

static void transfer_show(const Attr *a, Line *l) { line_put(l, " from=%d to=%d", a->transfer.from, a->transfer.to); }

const OpRule rule_all_reduce = {all_reduce_fits, NULL, all_reduce_gradient, show};
const OpRule rule_all_reduce_ = {all_reduce__fits, NULL, NULL, show};
const OpRule rule_reduce_scatter = {reduce_scatter_fits, NULL, reduce_scatter_gradient, show};
const OpRule rule_all_gather = {all_gather_fits, NULL, all_gather_gradient, show};
const OpRule rule_all_gather_ = {all_gather__fits, NULL, NULL, show};
const OpRule rule_transfer = {transfer_fits, NULL, transfer_gradient, transfer_show};
const OpRule rule_wait = {NULL, NULL, NULL, NULL};
const OpRule rule_any_overflow = {NULL, NULL, NULL, show};

/* ---- what a rank sends and receives */

/* In bytes: a tensor, and the rank's part of it. */
typedef struct Part { int64_t whole, own; } Part;

/* Its part is a shard of the whole; or, of a sum that all get, what it sums up. */
static Part part_of(const Buf *b, const CollectiveAttr *a, bool divided) {
    const int64_t n = program_elements(b), size = (int64_t)dtype_size(b->dtype);
    const Shard own = divided ? shard_of(n, a->world, a->rank) : shard_of_sum(n, a->world, a->rank);
    return (Part){n * size, own.count * size};
}

static Part parts(const Buf *whole, const Buf *own) { return (Part){(int64_t)whole->bytes, (int64_t)own->bytes}; }

/* What a rank says of its classes, for each row of logits of all samples. */
static Part row_parts(const Buf *labels, const LossAttr *a) {
    const int64_t own = shape_elements(&labels->shape) * (int64_t)sizeof(SoftmaxPart);
    return (Part){a->world * own, own};
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

static Transfer of_loss(const Program *p, const Op *op, int labels) {
    const LossAttr *a = &op->attr.loss;
    Transfer t = {0, 0, 0, 0};
    if (!attr_exchanges(op->kind, &op->attr)) return t;
    const int64_t rows = shape_elements(&p->bufs[labels].shape);
    t = gathered(row_parts(&p->bufs[labels], a), a->world);
    if (op->kind != OP_cross_entropy) t.calls = t.rounds = (rows + loss_chunk(a, rows) - 1) / loss_chunk(a, rows);
    return t;
}

CollectiveAttr op_collective(const Op *op) {
    if (op->kind == OP_transfer) return (CollectiveAttr){.axis = MESH_PIPELINE};
    if (attr_exchanges(op->kind, &op->attr))
        return (CollectiveAttr){.world = op->attr.loss.world, .rank = op->attr.loss.rank, .axis = MESH_TENSOR};
    return op->attr.collective;
}

Transfer op_transfer(const Program *p, const Op *op) {
    const CollectiveAttr *a = &op->attr.collective;
    const int64_t flag = sizeof(int32_t);
    switch (op->kind) {
    case OP_cross_entropy: return of_loss(p, op, op->cross_entropy.t);
    case OP_linear_cross_entropy: return of_loss(p, op, op->linear_cross_entropy.t);
    case OP_linear_cross_entropy_dx: return of_loss(p, op, op->linear_cross_entropy_dx.t);
    case OP_all_reduce: case OP_all_reduce_: return summed(part_of(&p->bufs[op->out[0]], a, false), a->world);
    case OP_reduce_scatter: return scattered(parts(&p->bufs[op->in[0]], &p->bufs[op->out[0]]), a->world);
    case OP_all_gather: return gathered(parts(&p->bufs[op->out[0]], &p->bufs[op->in[0]]), a->world);
    case OP_all_gather_: return gathered(part_of(&p->bufs[op->out[0]], a, true), a->world);
    case OP_transfer: return handed_on(op->transfer.x == NO_BUF ? NULL : &p->bufs[op->transfer.x],
                                       op->transfer.y == NO_BUF ? NULL : &p->bufs[op->transfer.y]);
    case OP_any_overflow: return gathered((Part){a->world * flag, flag}, a->world);
    default: return (Transfer){0, 0, 0, 0};
    }
}
