/* Losses, which begin the backward pass: their rules get no dy. */
#include <string.h>

#include "program/rule.h"

/* x (N, C), w [C] or NULL, stats (N, 2) or NULL */
static bool classes_fit(const Buf *x, const Buf *w, const Buf *stats) {
    if (w && (w->dtype != DT_F32 || w->shape.rank != 1 || w->shape.dim[0] != x->shape.dim[1])) return false;
    return !stats || (stats->dtype == DT_F32 && stats->shape.rank == 2 && stats->shape.dim[0] == x->shape.dim[0] &&
                      stats->shape.dim[1] == 2);
}

/* Ranks that have some of the classes each know the statistics of all. */
static bool joins(const LossAttr *a, const Buf *w, const Buf *stats) { return !a->world || (!w && stats && !a->log); }

static bool cross_entropy_fits(const Operands *o) {
    return (!o->cross_entropy.w || !o->attr->loss.world) && classes_fit(o->cross_entropy.x, o->cross_entropy.w, o->cross_entropy.stats);
}

static bool cross_entropy_dx_fits(const Operands *o) {
    return fits_elements(o) && joins(&o->attr->loss, o->cross_entropy_dx.w, o->cross_entropy_dx.stats) &&
           classes_fit(o->cross_entropy_dx.x, o->cross_entropy_dx.w, o->cross_entropy_dx.stats);
}

/* w: numbers for the places of x's last dimension, which then lie side by side; NULL: one for all */
static bool each_fits(const Buf *x, const Buf *w) {
    const int last = x->shape.rank - 1;
    if (!w) return true;
    return w->dtype == DT_F32 && w->shape.rank == 1 && last >= 0 && w->shape.dim[0] == x->shape.dim[last] &&
           !x->order[0] && (x->shape.rank < 4 || x->layout == LAYOUT_ROWS);
}

static bool element_loss_fits(const Operands *o) { return each_fits(o->element_loss.x, o->element_loss.w); }
static bool element_loss_dx_fits(const Operands *o) {
    return fits_elements(o) && each_fits(o->element_loss_dx.x, o->element_loss_dx.w);
}

/* Emits the op for the gradient of x, with the operands that all losses have; NULL: x wants none. */
static Op *loss_gradient(Gradients *g, OpKind kind, const Op *f) {
    int state = g->p->loss_scaling ? program_state(g->p) : NO_BUF, x = f->element_loss.x;
    if (!g->wanted[x] || g->p->failed) return NULL;
    int dx = gradient_buf(g, x);
    Op *op = gradient_op(g, kind, f);
    op->element_loss_dx.x = x;
    op->element_loss_dx.t = f->element_loss.t;
    op->element_loss_dx.state = state;
    op->element_loss_dx.dx = dx;
    return op;
}

static void cross_entropy_gradient(Gradients *g, const Op *f, int dy) {
    assert(dy == NO_BUF);
    (void)dy;
    Op *op = loss_gradient(g, OP_cross_entropy_dx, f);
    if (!op) return;
    op->cross_entropy_dx.w = f->cross_entropy.w;
    op->cross_entropy_dx.stats = f->cross_entropy.stats;
    gradient_add(g, f, f->cross_entropy.x, op->cross_entropy_dx.dx);
}

static void element_loss_gradient(Gradients *g, const Op *f, int dy) {
    assert(dy == NO_BUF);
    (void)dy;
    Op *op = loss_gradient(g, OP_element_loss_dx, f);
    if (!op) return;
    op->element_loss_dx.w = f->element_loss.w;
    gradient_add(g, f, f->element_loss.x, op->element_loss_dx.dx);
}

static void cross_entropy_show(const Attr *a, Line *l) {
    line_put(l, "%s scale=%g", a->loss.log ? " log" : "", (double)a->loss.scale);
    if (a->loss.beta != 0) line_put(l, " square=%g", (double)a->loss.beta);
    if (a->loss.world) line_put(l, " rank=%d/%d", a->loss.rank, a->loss.world);
}

static void element_loss_show(const Attr *a, Line *l) {
    static const char *const names[] = {
#define X(name, text) text,
        LOSSES(X)
#undef X
    };
    line_put(l, " f=%s scale=%g", names[a->loss.f], (double)a->loss.scale);
}

/* ---- cross entropy of a linear layer's output, which is never there as a whole */

/* x (..., I), w (O, I), b [O], t: a class for each row of x, weight [O] */
static bool linear_cross_entropy_fits(const Operands *o) {
    const Buf *x = o->linear_cross_entropy.x, *w = o->linear_cross_entropy.w, *b = o->linear_cross_entropy.b;
    const Buf *t = o->linear_cross_entropy.t, *weight = o->linear_cross_entropy.weight;
    const int last = x->shape.rank - 1;
    if (last < 1 || w->shape.rank != 2 || x->shape.dim[last] != w->shape.dim[1] || x->dtype != w->dtype) return false;
    if (b && (b->shape.rank != 1 || b->shape.dim[0] != w->shape.dim[0])) return false;
    if (weight && (o->attr->loss.world || weight->shape.rank != 1 || weight->shape.dim[0] != w->shape.dim[0])) return false;
    return o->attr->loss.chunks > 0 && shape_elements(&t->shape) * x->shape.dim[last] == shape_elements(&x->shape);
}

static bool linear_cross_entropy_dx_fits(const Operands *o) {
    const Buf *dx = o->linear_cross_entropy_dx.dx, *dw = o->linear_cross_entropy_dx.dw;
    const Buf *db = o->linear_cross_entropy_dx.db;
    if (dx && !same_buf(dx, o->linear_cross_entropy_dx.x)) return false;
    if (dw && !shape_equal(&dw->shape, &o->linear_cross_entropy_dx.w->shape)) return false;
    if (db && (!o->linear_cross_entropy_dx.b || !same_elements(db, o->linear_cross_entropy_dx.b))) return false;
    return linear_cross_entropy_fits(o);
}

/* A product of 2 |x| O operations for the logits, and one for each gradient */
static double linear_cross_entropy_flops(const Operands *o) {
    return 2 * buf_elements(o->linear_cross_entropy.x) * (double)o->linear_cross_entropy.w->shape.dim[0];
}
static double linear_cross_entropy_dx_flops(const Operands *o) {
    return linear_cross_entropy_flops(o) *
           (1 + (o->linear_cross_entropy_dx.dx != NULL) + (o->linear_cross_entropy_dx.dw != NULL));
}

static void linear_cross_entropy_gradient(Gradients *g, const Op *f, int dy) {
    const int x = f->linear_cross_entropy.x, w = g->leaf[f->linear_cross_entropy.w], b = f->linear_cross_entropy.b;
    if (!gradient_wanted(g, x) && !gradient_wanted(g, w) && !gradient_wanted(g, b)) return;
    assert(dy == NO_BUF);
    (void)dy;
    const int state = g->p->loss_scaling ? program_state(g->p) : NO_BUF, dx = gradient_buf_wanted(g, x);
    const int dw = gradient_buf_wanted(g, w), db = gradient_buf_wanted(g, b);
    Op *op = gradient_op(g, OP_linear_cross_entropy_dx, f);
    memcpy(op->in, f->in, sizeof op->in);
    op->linear_cross_entropy_dx.state = state;
    op->linear_cross_entropy_dx.dx = dx;
    op->linear_cross_entropy_dx.dw = dw;
    op->linear_cross_entropy_dx.db = db;
    if (dw != NO_BUF) gradient_add(g, f, w, dw);
    if (db != NO_BUF) gradient_add(g, f, b, db);
    if (dx != NO_BUF) gradient_add(g, f, x, dx);
}

static void linear_cross_entropy_show(const Attr *a, Line *l) {
    cross_entropy_show(a, l);
    line_put(l, " chunks=%d%s", a->loss.chunks, a->loss.tf32 ? " tf32" : "");
}

const OpRule rule_linear_cross_entropy = {linear_cross_entropy_fits, linear_cross_entropy_flops,
                                          linear_cross_entropy_gradient, linear_cross_entropy_show};
const OpRule rule_linear_cross_entropy_dx = {linear_cross_entropy_dx_fits, linear_cross_entropy_dx_flops, NULL,
                                             linear_cross_entropy_show};
const OpRule rule_cross_entropy = {cross_entropy_fits, NULL, cross_entropy_gradient, cross_entropy_show};
const OpRule rule_cross_entropy_dx = {cross_entropy_dx_fits, NULL, NULL, cross_entropy_show};
const OpRule rule_element_loss = {element_loss_fits, NULL, element_loss_gradient, element_loss_show};
const OpRule rule_element_loss_dx = {element_loss_dx_fits, NULL, NULL, element_loss_show};
