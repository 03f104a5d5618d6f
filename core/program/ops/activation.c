/* Activations: formulas without weights, GLU and PReLU. */
#include "program/rule.h"

/* The gradient of Scale, y = factor x + shift, reads dy only: dx = factor dy. */
static void act_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    int x = f.act.x;
    if (f.attr.act.act != ACT_SCALE) {
        gradient_by(g, OP_act_dx, &f, x, dy, act_saves_output(f.attr.act.act) ? f.act.y : x);
        return;
    }
    f.attr.act.high = 0;
    gradient_by(g, OP_act, &f, x, dy, NO_BUF);
}

static void act_show(const Attr *a, Line *l) { line_put(l, " f=%s", act_name(a->act.act)); }

const OpRule rule_act = {fits_elements, NULL, act_gradient, act_show};
const OpRule rule_act_dx = {fits_pair, NULL, NULL, act_show};

/* ---- GLU */

/* `half` has every other size of x, lies as x does, and along the axis has half of it. */
static bool glu_halves(const Buf *x, const Buf *half, int axis) {
    Shape like = half->shape;
    if (axis < 0 || axis >= x->shape.rank || x->order[0] || half->order[0]) return false;
    like.dim[axis] *= 2;
    return shape_equal(&like, &x->shape) && x->layout == half->layout;
}
static bool glu_fits(const Operands *o) { return glu_halves(o->glu.x, o->glu.y, o->attr->axis.axis); }
static bool glu_dx_fits(const Operands *o) {
    return fits_elements(o) && glu_halves(o->glu_dx.x, o->glu_dx.dy, o->attr->axis.axis);
}

static void glu_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_glu_dx, f, f->glu.x, f->glu.x, dy);
}

static void glu_show(const Attr *a, Line *l) { line_put(l, " axis=%d", a->axis.axis); }

const OpRule rule_glu = {glu_fits, NULL, glu_gradient, glu_show};
const OpRule rule_glu_dx = {glu_dx_fits, NULL, NULL, glu_show};

/* ---- PReLU */

static bool prelu_fits(const Operands *o) { return fits_whole(o) && o->prelu.w->dtype == o->prelu.y->dtype; }
static bool prelu_dx_fits(const Operands *o) { return fits_pair(o) && fits_type(o); }

static void prelu_gradient(Gradients *g, const Op *f, int dy) {
    int x = f->prelu.x;
    gradient_by(g, OP_prelu_dw, f, g->leaf[f->prelu.w], dy, x);
    int dx = gradient_buf_wanted(g, x);
    if (dx == NO_BUF) return;
    Op *op = gradient_op(g, OP_prelu_dx, f);
    op->prelu_dx.dy = dy;
    op->prelu_dx.x = x;
    op->prelu_dx.w = f->prelu.w;
    op->prelu_dx.dx = dx;
    gradient_add(g, f, x, dx);
}

const OpRule rule_prelu = {prelu_fits, NULL, prelu_gradient, NULL};
const OpRule rule_prelu_dx = {prelu_dx_fits, NULL, NULL, NULL};
const OpRule rule_prelu_dw = {NULL, NULL, NULL, NULL};
