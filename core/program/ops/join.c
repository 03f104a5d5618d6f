/* concat, slice and roll. */
#include <inttypes.h>
#include <string.h>

#include "program/rule.h"

/* `part` is the part of `whole` that begins at a->start along the axis. */
static bool part_fits(const Buf *whole, const Buf *part, const AxisAttr *a) {
    Shape like = part->shape;
    if (a->axis < 0 || a->axis >= whole->shape.rank || whole->shape.rank != part->shape.rank ||
        whole->dtype != part->dtype)
        return false;
    int64_t from = whole->shape.dim[a->axis];
    bool inside = a->start >= 0 && a->start <= from - like.dim[a->axis];
    like.dim[a->axis] = from;
    return inside && shape_equal(&like, &whole->shape) && whole->layout == part->layout &&
           (a->axis == 0 || !whole->order[0]);
}

static bool concat_fits(const Operands *o) {
    const Buf *y = o->concat.y;
    AxisAttr part = {.axis = o->attr->axis.axis};
    for (int k = 0; k < OP_IN && o->in[k]; k++) {
        if (!part_fits(y, o->in[k], &part)) return false;
        part.start += o->in[k]->shape.dim[part.axis];
    }
    return part.start == y->shape.dim[part.axis];
}

static bool slice_fits(const Operands *o) { return part_fits(o->slice.x, o->slice.y, &o->attr->axis); }
static bool slice_dx_fits(const Operands *o) { return part_fits(o->slice_dx.dx, o->slice_dx.dy, &o->attr->axis); }

static bool roll_fits(const Operands *o) {
    const Buf *x = o->roll.x;
    const AxisAttr *a = &o->attr->axis;
    if (a->axis < 0 || a->axis >= x->shape.rank || (a->axis > 0 && x->order[0])) return false;
    return a->start > 0 && a->start < x->shape.dim[a->axis] && same_buf(x, o->roll.y);
}

/* Each input's gradient is its slice of dy. */
static void concat_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    for (int k = 0; k < OP_IN && f.in[k] != NO_BUF; k++) {
        gradient_by(g, OP_slice, &f, f.in[k], dy, NO_BUF);
        f.attr.axis.start += g->p->bufs[f.in[k]].shape.dim[f.attr.axis.axis];
    }
    assert(g->p->failed || f.attr.axis.start == g->p->bufs[dy].shape.dim[f.attr.axis.axis]);
}

/* Where each rank takes its own slice of what all have, each makes that part of the gradient. */
static void slice_gradient(Gradients *g, const Op *forward, int dy) {
    const AxisAttr *a = &forward->attr.axis;
    Op f = *forward;
    if (a->world) {
        memset(&f.attr, 0, sizeof f.attr);
        f.attr.collective = (CollectiveAttr){.world = a->world, .rank = a->rank, .axis = MESH_TENSOR};
    }
    gradient_by(g, a->world ? OP_all_gather : OP_slice_dx, &f, f.slice.x, dy, NO_BUF);
}

static void slice_dx_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_slice, f, f->slice_dx.dy, dy, NO_BUF);
}

/* Rolls by the rest of the axis, which brings every element back. */
static void roll_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    f.attr.axis.start = g->p->bufs[dy].shape.dim[f.attr.axis.axis] - f.attr.axis.start;
    gradient_by(g, OP_roll, &f, f.roll.x, dy, NO_BUF);
}

static void concat_show(const Attr *a, Line *l) { line_put(l, " axis=%d", a->axis.axis); }
static void slice_show(const Attr *a, Line *l) {
    line_put(l, " axis=%d start=%" PRId64, a->axis.axis, a->axis.start);
    if (a->axis.world) line_put(l, " rank=%d/%d", a->axis.rank, a->axis.world);
}

const OpRule rule_concat = {concat_fits, NULL, concat_gradient, concat_show};
const OpRule rule_slice = {slice_fits, NULL, slice_gradient, slice_show};
const OpRule rule_roll = {roll_fits, NULL, roll_gradient, slice_show};
const OpRule rule_slice_dx = {slice_dx_fits, NULL, slice_dx_gradient, slice_show};
