/* Sums and products of two tensors. */
#include <inttypes.h>

#include "program/rule.h"

static void add_gradient(Gradients *g, const Op *f, int dy) {
    gradient_pass(g, f, f->add.a, dy);
    gradient_pass(g, f, f->add.b, dy);
}

/* Of f(a) b: that of a first, which has the place of b, where nothing else reads it; that of b then has the place of a. */
static void gated_gradient(Gradients *g, const Op *f, int dy) {
    const int da = gradient_buf_wanted(g, f->mul.a);
    if (da != NO_BUF) {
        Op *op = gradient_op(g, OP_mul_da, f);
        op->mul_da.b = f->mul.b;
        op->mul_da.dy = dy;
        op->mul_da.a = f->mul.a;
        op->mul_da.da = da;
        gradient_add(g, f, f->mul.a, da);
    }
    gradient_by(g, OP_mul, f, f->mul.b, f->mul.a, dy);
}

/* The gradient of a factor is dy times the other factor. */
static void mul_gradient(Gradients *g, const Op *f, int dy) {
    if (f->attr.mul.f.act) {
        gated_gradient(g, f, dy);
        return;
    }
    gradient_by(g, OP_mul, f, f->mul.a, dy, f->mul.b);
    gradient_by(g, OP_mul, f, f->mul.b, dy, f->mul.a);
}

static void mul_show(const Attr *a, Line *l) {
    if (a->mul.f.act) line_put(l, " f=%s", act_name(a->mul.f.act));
}

static bool mul_da_fits(const Operands *o) {
    const ActFn f = o->attr->mul.f.act;
    return fits_pair(o) && same_elements(o->mul_da.a, o->mul_da.da) && f && !act_saves_output(f);
}

const OpRule rule_add = {fits_pair, NULL, add_gradient, NULL};
const OpRule rule_mul = {fits_pair, NULL, mul_gradient, mul_show};
const OpRule rule_mul_da = {mul_da_fits, NULL, NULL, mul_show};

/* ---- one of the two is broadcast */

/* `s` can be broadcast over `x`, and both have the same layout. */
static bool can_broadcast(const Buf *x, const Buf *s) {
    Broadcast r;
    return x->layout == s->layout && broadcast_read(&x->shape, &s->shape, x->layout == LAYOUT_NHWC, &r) &&
           (!x->order[0] || r.inner == 1);
}

static bool broadcast_fits(const Operands *o) {
    return can_broadcast(o->broadcast.x, o->broadcast.s) && fits_whole(o) &&
           o->broadcast.s->dtype == o->broadcast.y->dtype;
}

static bool broadcast_ds_fits(const Operands *o) {
    const Buf *dy = o->broadcast_ds.dy, *x = o->broadcast_ds.x;
    return can_broadcast(dy, o->broadcast_ds.ds) && fits_type(o) && (!x || same_elements(dy, x));
}

/* The gradients of a sum are dy itself, those of a product dy times the other factor. */
static void broadcast_gradient(Gradients *g, const Op *f, int dy) {
    int x = f->broadcast.x, s = f->broadcast.s;
    bool add = f->attr.broadcast.add;
    gradient_by(g, OP_broadcast_ds, f, s, dy, add ? NO_BUF : x);
    if (add) gradient_pass(g, f, x, dy);
    else gradient_by(g, OP_broadcast, f, x, dy, s);
}

static void broadcast_show(const Attr *a, Line *l) { line_put(l, " %s", a->broadcast.add ? "sum" : "product"); }

const OpRule rule_broadcast = {broadcast_fits, NULL, broadcast_gradient, broadcast_show};
const OpRule rule_broadcast_ds = {broadcast_ds_fits, NULL, NULL, broadcast_show};

/* ---- rows of a table from `start` on */

/* w (R, D), y (..., T, D), start + T <= R */
static bool rows_of_table(const Buf *w, const Buf *y, const Attr *a) {
    int last = y->shape.rank - 1;
    return w->shape.rank == 2 && last >= 1 && y->layout == LAYOUT_ROWS && w->shape.dim[1] == y->shape.dim[last] &&
           a->axis.start >= 0 && w->shape.dim[0] - a->axis.start >= y->shape.dim[last - 1];
}

static bool add_rows_fits(const Operands *o) {
    return fits_whole(o) && rows_of_table(o->add_rows.w, o->add_rows.y, o->attr);
}
static bool add_rows_dw_fits(const Operands *o) {
    return rows_of_table(o->add_rows_dw.dw, o->add_rows_dw.dy, o->attr);
}

static void add_rows_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_add_rows_dw, f, g->leaf[f->add_rows.w], dy, NO_BUF);
    gradient_pass(g, f, f->add_rows.x, dy);
}

static void add_rows_show(const Attr *a, Line *l) {
    if (a->axis.start) line_put(l, " start=%" PRId64, a->axis.start);
}

const OpRule rule_add_rows = {add_rows_fits, NULL, add_rows_gradient, add_rows_show};
const OpRule rule_add_rows_dw = {add_rows_dw_fits, NULL, NULL, add_rows_show};
