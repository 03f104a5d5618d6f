/* Poolings and upsampling. */
#include "program/rule.h"

static bool maxpool_fits(const Operands *o) { return fits_type(o) && o->attr->pool.fused.act <= ACT_RELU; }

static void maxpool_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    dy = gradient_through_act(g, &f, dy);
    gradient_by(g, OP_maxpool_dx, &f, f.maxpool.x, dy, f.maxpool.idx);
}

static void avgpool_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_avgpool_dx, f, f->avgpool.x, dy, NO_BUF);
}

static void adaptive_avgpool_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_adaptive_avgpool_dx, f, f->adaptive_avgpool.x, dy, NO_BUF);
}

static void pool_show(const Attr *attr, Line *l) {
    const PoolAttr *a = &attr->pool;
    line_put(l, " kernel=%dx%d stride=%dx%d pad=%dx%d", a->kernel[0], a->kernel[1], a->stride[0], a->stride[1],
             a->pad[0], a->pad[1]);
    if (a->fused.act) line_put(l, " act=%s", act_name(a->fused.act));
}

const OpRule rule_maxpool = {maxpool_fits, NULL, maxpool_gradient, pool_show};
const OpRule rule_maxpool_dx = {fits_type, NULL, NULL, pool_show};
const OpRule rule_avgpool = {fits_type, NULL, avgpool_gradient, pool_show};
const OpRule rule_avgpool_dx = {fits_type, NULL, NULL, pool_show};
const OpRule rule_adaptive_avgpool = {fits_type, NULL, adaptive_avgpool_gradient, NULL};
const OpRule rule_adaptive_avgpool_dx = {fits_type, NULL, NULL, NULL};

/* ---- upsampling */

static bool upsample_fits(const Operands *o) {
    const Shape *x = &o->in[0]->shape, *y = &o->out[0]->shape;
    return fits_type(o) && x->rank == 4 && y->rank == 4 && x->dim[1] == y->dim[1];
}

static void upsample_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_upsample_dx, f, f->upsample.x, dy, NO_BUF);
}

const OpRule rule_upsample = {upsample_fits, NULL, upsample_gradient, NULL};
const OpRule rule_upsample_dx = {upsample_fits, NULL, NULL, NULL};
