/* Ops that do not change values, but their type, place, shape or order. */
#include "program/rule.h"

static bool view_fits(const Operands *o) { return o->view.x->bytes == o->view.y->bytes && fits_type(o); }
static double view_flops(const Operands *o) { return (void)o, 0; }

static void cast_gradient(Gradients *g, const Op *f, int dy) { gradient_by(g, OP_cast, f, f->cast.x, dy, NO_BUF); }

static void view_gradient(Gradients *g, const Op *f, int dy) {
    int dx = gradient_buf_wanted(g, f->view.x);
    if (dx == NO_BUF || g->p->failed) return;
    assert(g->p->bufs[dx].bytes == g->p->bufs[dy].bytes);
    g->p->bufs[dx].alias = program_root(g->p, dy);
    Op *op = gradient_op(g, OP_view, f);
    op->view.x = dy;
    op->view.y = dx;
    gradient_add(g, f, f->view.x, dx);
}

static void nhwc_to_nchw_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_nhwc_to_nchw_dx, f, f->nhwc_to_nchw.x, dy, NO_BUF);
}

static void nhwc_to_nchw_dx_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_nhwc_to_nchw, f, f->nhwc_to_nchw_dx.dy, dy, NO_BUF);
}

const OpRule rule_cast = {fits_elements, NULL, cast_gradient, NULL};
const OpRule rule_copy = {fits_whole, NULL, NULL, NULL};
const OpRule rule_view = {view_fits, view_flops, view_gradient, NULL};
const OpRule rule_nhwc_to_nchw = {fits_type, NULL, nhwc_to_nchw_gradient, NULL};
const OpRule rule_nhwc_to_nchw_dx = {fits_type, NULL, nhwc_to_nchw_dx_gradient, NULL};
