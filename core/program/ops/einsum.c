/* Products of two tensors, and tensors whose dimensions are put in another order. */
#include "program/rule.h"

static bool in_rows(const Buf *b) { return b->layout == LAYOUT_ROWS && !b->order[0]; }

static bool einsum_fits(const Operands *o) {
    const Buf *a = o->einsum.a, *b = o->einsum.b, *y = o->einsum.y;
    EinsumPlan p;
    return in_rows(a) && in_rows(b) && in_rows(y) && a->dtype == b->dtype &&
           einsum_plan(&o->attr->einsum, &a->shape, &b->shape, &y->shape, &p);
}

/* A product and a sum for each element of y and each term of its sum. */
static double einsum_flops(const Operands *o) {
    EinsumPlan p;
    if (!einsum_plan(&o->attr->einsum, &o->einsum.a->shape, &o->einsum.b->shape, &o->einsum.y->shape, &p)) return 0;
    return 2 * buf_elements(o->einsum.y) * (double)(p.k.size * einsum_count(p.inner, p.n_inner));
}

/* The gradient of an operand: dy and the other operand, with their labels. */
static void operand_gradient(Gradients *g, const Op *f, int dy, bool second) {
    const EinsumAttr *e = &f->attr.einsum;
    Op like = *f;
    EinsumAttr *to = &like.attr.einsum;
    memcpy(to->a, second ? e->a : e->y, sizeof to->a);
    memcpy(to->b, second ? e->y : e->b, sizeof to->b);
    memcpy(to->y, second ? e->b : e->a, sizeof to->y);
    if (second) gradient_by(g, OP_einsum, &like, g->leaf[f->einsum.b], f->einsum.a, dy);
    else gradient_by(g, OP_einsum, &like, g->leaf[f->einsum.a], dy, f->einsum.b);
}

static void einsum_gradient(Gradients *g, const Op *f, int dy) {
    operand_gradient(g, f, dy, false);
    operand_gradient(g, f, dy, true);
}

static void put_labels(Line *l, const char *before, const int8_t *labels) {
    line_put(l, "%s", before);
    for (int d = 0; d < SHAPE_MAX && labels[d] >= 0; d++) line_put(l, "%c", 'a' + labels[d]);
}

static void einsum_show(const Attr *a, Line *l) {
    put_labels(l, " ", a->einsum.a);
    put_labels(l, ",", a->einsum.b);
    put_labels(l, "->", a->einsum.y);
    if (a->einsum.tf32) line_put(l, " tf32");
}

const OpRule rule_einsum = {einsum_fits, einsum_flops, einsum_gradient, einsum_show};

/* ---- another order of dimensions */

static bool permute_fits(const Operands *o) {
    const Buf *x = o->permute.x, *y = o->permute.y;
    const int8_t *from = o->attr->permute.from;
    unsigned seen = 0;
    if (!in_rows(x) || !in_rows(y) || x->dtype != y->dtype || x->shape.rank != y->shape.rank) return false;
    for (int d = 0; d < y->shape.rank; d++) {
        if (from[d] < 0 || from[d] >= x->shape.rank || y->shape.dim[d] != x->shape.dim[from[d]]) return false;
        seen |= 1u << from[d];
    }
    return seen == (1u << x->shape.rank) - 1;
}

/* The way back. */
static void permute_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    for (int d = 0; d < g->p->bufs[dy].shape.rank; d++) f.attr.permute.from[forward->attr.permute.from[d]] = (int8_t)d;
    gradient_by(g, OP_permute, &f, g->leaf[f.permute.x], dy, NO_BUF);
}

static void permute_show(const Attr *a, Line *l) {
    line_put(l, " dims=");
    for (int d = 0; d < SHAPE_MAX && a->permute.from[d] >= 0; d++) line_put(l, "%s%d", d ? "," : "", a->permute.from[d]);
}

const OpRule rule_permute = {permute_fits, NULL, permute_gradient, permute_show};
