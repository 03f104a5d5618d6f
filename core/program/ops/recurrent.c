/* Recurrent layers. */
#include "program/rule.h"

/* x (.., .., I), y (.., .., H), saved (.., .., info.saved H) or NULL; w_ih (info.gates H, I), w_hh (info.gates H, H) */
static bool operands_fit(const Buf *x, const Buf *w_ih, const Buf *w_hh, const Buf *y, const Buf *saved, RnnMode mode) {
    const RnnInfo info = rnn_info(mode);
    Shape like = y->shape;
    if (x->shape.rank != 3 || y->shape.rank != 3 || w_ih->shape.rank != 2 || w_hh->shape.rank != 2) return false;
    int64_t hidden = y->shape.dim[2];
    like.dim[2] = x->shape.dim[2];
    if (!shape_equal(&like, &x->shape) || x->dtype != y->dtype) return false;
    like.dim[2] = info.saved * hidden;
    if (saved && (!shape_equal(&like, &saved->shape) || saved->dtype != y->dtype)) return false;
    return w_ih->shape.dim[0] == info.gates * hidden && w_ih->shape.dim[1] == x->shape.dim[2] &&
           w_hh->shape.dim[0] == info.gates * hidden && w_hh->shape.dim[1] == hidden;
}

static bool rnn_fits(const Operands *o) {
    return operands_fit(o->rnn.x, o->rnn.w_ih, o->rnn.w_hh, o->rnn.y, o->rnn.saved, o->attr->rnn.mode);
}

static bool rnn_dx_fits(const Operands *o) {
    return operands_fit(o->rnn_dx.x, o->rnn_dx.w_ih, o->rnn_dx.w_hh, o->rnn_dx.dy, o->rnn_dx.saved,
                        o->attr->rnn.mode) &&
           (!o->rnn_dx.dx || same_elements(o->rnn_dx.x, o->rnn_dx.dx));
}

/* Operations of the products of each sample and step with both matrices. */
static double products(const Buf *y, const Buf *w_ih, const Buf *w_hh) {
    double samples = buf_elements(y) / (double)w_hh->shape.dim[1];
    return 2 * samples * (buf_elements(w_ih) + buf_elements(w_hh));
}

static double rnn_flops(const Operands *o) { return products(o->rnn.y, o->rnn.w_ih, o->rnn.w_hh); }
static double rnn_dx_flops(const Operands *o) { return 2 * products(o->rnn_dx.y, o->rnn_dx.w_ih, o->rnn_dx.w_hh); }

/* One op, which goes through the steps backwards, makes all gradients. */
static void rnn_gradient(Gradients *g, const Op *f, int dy) {
    enum { OF = 5 }; /* inputs 0 to 4 of rnn have outputs 0 to 4 of rnn_dx as gradients: x, w_ih, w_hh, b_ih, b_hh */
    int of[OF], made[OF];
    bool any = false;
    for (int k = 0; k < OF; k++) {
        of[k] = f->in[k] == NO_BUF ? NO_BUF : g->leaf[f->in[k]];
        any |= gradient_wanted(g, of[k]);
    }
    if (!any) return;
    for (int k = 0; k < OF; k++) made[k] = gradient_buf_wanted(g, of[k]);
    Op *op = gradient_op(g, OP_rnn_dx, f);
    op->rnn_dx.dy = dy;
    op->rnn_dx.x = f->rnn.x;
    op->rnn_dx.w_ih = f->rnn.w_ih;
    op->rnn_dx.w_hh = f->rnn.w_hh;
    op->rnn_dx.y = f->rnn.y;
    op->rnn_dx.saved = f->rnn.saved;
    for (int k = 0; k < OF; k++) op->out[k] = made[k];
    for (int k = 0; k < OF; k++)
        if (made[k] != NO_BUF) gradient_add(g, f, of[k], made[k]);
}

static void rnn_show(const Attr *a, Line *l) {
    if (a->rnn.tf32) line_put(l, " tf32");
}

const OpRule rule_rnn = {rnn_fits, rnn_flops, rnn_gradient, rnn_show};
const OpRule rule_rnn_dx = {rnn_dx_fits, rnn_dx_flops, NULL, rnn_show};
