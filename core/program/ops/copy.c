/* Ops that do not change values, but their type, place, shape or order; and bytes as numbers. */
#include "program/rule.h"

/* mean and std: both, one number for each channel, or neither */
static bool from_bytes_fits(const Operands *o) {
    const Buf *x = o->from_bytes.x, *mean = o->from_bytes.mean, *std = o->from_bytes.std;
    if (x->dtype != DT_U8 || !fits_elements(o) || x->order[0] || !mean != !std) return false;
    return !mean || (x->shape.rank > 1 && mean->shape.rank == 1 && mean->shape.dim[0] == x->shape.dim[1] &&
                     shape_equal(&mean->shape, &std->shape));
}

static void from_bytes_show(const Attr *a, Line *l) { line_put(l, " divisor=%g", (double)a->bytes.divisor); }

static bool view_fits(const Operands *o) { return o->view.x->bytes == o->view.y->bytes && fits_type(o); }
static double view_flops(const Operands *o) { return (void)o, 0; }

static void cast_gradient(Gradients *g, const Op *f, int dy) { gradient_by(g, OP_cast, f, f->cast.x, dy, NO_BUF); }

static void view_gradient(Gradients *g, const Op *f, int dy) {
    if (f->attr.collective.world > 1) { /* each of those ranks reads x for its part of the features */
        gradient_by(g, OP_all_reduce, f, f->view.x, dy, NO_BUF);
        return;
    }
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
const OpRule rule_from_bytes = {from_bytes_fits, NULL, NULL, from_bytes_show};
const OpRule rule_copy = {fits_whole, NULL, NULL, NULL};
const OpRule rule_view = {view_fits, view_flops, view_gradient, NULL};
const OpRule rule_nhwc_to_nchw = {fits_type, NULL, nhwc_to_nchw_gradient, NULL};
const OpRule rule_nhwc_to_nchw_dx = {fits_type, NULL, nhwc_to_nchw_dx_gradient, NULL};
