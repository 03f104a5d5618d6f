/* Normalisation by mean and variance, and softmax. */
#include "program/rule.h"

/* stat: one number per channel (batch normalisation), or per group of each sample. w, b: one per channel, or NULL */
static bool operands_fit(const NormAttr *a, const Buf *x, const Buf *y, const Buf *stat, const Buf *w, const Buf *b) {
    if (a->axis < 1 || a->axis >= x->shape.rank || !same_elements(x, y)) return false;
    int64_t channels = x->shape.dim[a->axis], stats = shape_elements(&stat->shape);
    if (w && shape_elements(&w->shape) != channels) return false;
    if (b && shape_elements(&b->shape) != channels) return false;
    if (a->groups == 0) return stats == channels;
    return channels % a->groups == 0 && stats % a->groups == 0 &&
           shape_elements(&x->shape) / channels % (stats / a->groups) == 0;
}

static bool norm_fits(const Operands *o) {
    return operands_fit(&o->attr->norm, o->norm.x, o->norm.y, o->norm.istd, o->norm.w, o->norm.b);
}

static bool batchnorm_fits(const Operands *o) { return norm_fits(o) && fits_type(o); }

static bool batchnorm_eval_fits(const Operands *o) {
    return operands_fit(&o->attr->norm, o->batchnorm_eval.x, o->batchnorm_eval.y, o->batchnorm_eval.var,
                        o->batchnorm_eval.w, o->batchnorm_eval.b) && fits_type(o);
}

static bool batchnorm_again_fits(const Operands *o) {
    return operands_fit(&o->attr->norm, o->batchnorm_again.x, o->batchnorm_again.y, o->batchnorm_again.istd,
                        o->batchnorm_again.w, o->batchnorm_again.b) && fits_type(o);
}

static bool norm_dx_fits(const Operands *o) {
    return operands_fit(&o->attr->norm, o->norm_dx.x, o->norm_dx.dx, o->norm_dx.istd, o->norm_dx.w, NULL) &&
           same_elements(o->norm_dx.dy, o->norm_dx.x);
}

static bool norm_dw_fits(const Operands *o) {
    return operands_fit(&o->attr->norm, o->norm_dw.x, o->norm_dw.dy, o->norm_dw.istd, o->norm_dw.dw, o->norm_dw.db);
}

/* A buffer for the sum dw or db: the gradient of `param`, or a temporary if only dx needs the sum. */
static int sum_buf(Gradients *g, const Op *f, int param, const char *name) {
    if (gradient_wanted(g, param)) return gradient_buf(g, param);
    Program *p = g->p;
    Shape channels = shape1(p->bufs[f->norm.x].shape.dim[f->attr.norm.axis]);
    return program_buf(p, CAT_ACTIVATION_GRADIENTS, channels, DT_F32, "%s.%s", p->bufs[f->norm.y].name, name);
}

/* Emits norm_dw for the sums dw and db; NO_BUF where one is not made. needed: dx needs both, as in batch normalisation;
 * otherwise they are made for trained parameters only. */
static void sums_gradient(Gradients *g, const Op *f, int dy, bool needed, int *dw, int *db) {
    bool trained[2] = {gradient_wanted(g, f->norm.w), gradient_wanted(g, f->norm.b)};
    *dw = *db = NO_BUF;
    if (!needed && !trained[0] && !trained[1]) return;
    *dw = sum_buf(g, f, f->norm.w, "dw");
    if (needed || trained[1]) *db = sum_buf(g, f, f->norm.b, "db");
    Op *op = gradient_op(g, OP_norm_dw, f);
    op->norm_dw.dy = dy;
    op->norm_dw.x = f->norm.x;
    op->norm_dw.mean = f->norm.mean;
    op->norm_dw.istd = f->norm.istd;
    op->norm_dw.dw = *dw;
    op->norm_dw.db = *db;
    if (trained[0]) gradient_add(g, f, f->norm.w, *dw);
    if (trained[1]) gradient_add(g, f, f->norm.b, *db);
}

/* Emits batchnorm_dx or norm_dx, with the operands that both have. */
static Op *dx_gradient(Gradients *g, OpKind kind, const Op *f, int dy) {
    int dx = gradient_buf(g, f->norm.x);
    Op *op = gradient_op(g, kind, f);
    op->norm_dx.dy = dy;
    op->norm_dx.x = f->norm.x;
    op->norm_dx.w = f->norm.w;
    op->norm_dx.mean = f->norm.mean;
    op->norm_dx.istd = f->norm.istd;
    op->norm_dx.dx = dx;
    return op;
}

static void batchnorm_gradient(Gradients *g, const Op *f, int dy) {
    int x = f->batchnorm.x, dw, db;
    sums_gradient(g, f, dy, g->wanted[x], &dw, &db);
    if (!g->wanted[x] || g->p->failed) return;
    Op *op = dx_gradient(g, OP_batchnorm_dx, f, dy);
    op->batchnorm_dx.dw = dw;
    op->batchnorm_dx.db = db;
    gradient_add(g, f, x, op->batchnorm_dx.dx);
}

static void norm_gradient(Gradients *g, const Op *f, int dy) {
    int x = f->norm.x, dw, db;
    sums_gradient(g, f, dy, false, &dw, &db);
    if (!g->wanted[x] || g->p->failed) return;
    gradient_add(g, f, x, dx_gradient(g, OP_norm_dx, f, dy)->norm_dx.dx);
}

const OpRule rule_batchnorm = {batchnorm_fits, NULL, batchnorm_gradient, NULL};
const OpRule rule_batchnorm_eval = {batchnorm_eval_fits, NULL, NULL, NULL};
const OpRule rule_batchnorm_again = {batchnorm_again_fits, NULL, NULL, NULL};
const OpRule rule_batchnorm_dx = {norm_dx_fits, NULL, NULL, NULL};
const OpRule rule_norm = {norm_fits, NULL, norm_gradient, NULL};
const OpRule rule_norm_dx = {norm_dx_fits, NULL, NULL, NULL};
const OpRule rule_norm_dw = {norm_dw_fits, NULL, NULL, NULL};

/* ---- softmax */

static void softmax_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_softmax_dx, f, f->softmax.x, dy, f->softmax.y);
}

const OpRule rule_softmax = {fits_elements, NULL, softmax_gradient, NULL};
const OpRule rule_softmax_dx = {fits_pair, NULL, NULL, NULL};
