/* Arithmetic of operands that are broadcast, reductions along dimensions, triangles of matrices, and elements by
 * label. */
#include "program/rule.h"

static bool in_rows(const Buf *b) { return !b || (b->layout == LAYOUT_ROWS && !b->order[0]); }

/* ---- two operands */

static bool binary_fits(const Operands *o) {
    const Buf *a = o->binary.a, *b = o->binary.b, *y = o->binary.y;
    Shape to;
    return in_rows(a) && in_rows(b) && in_rows(y) && broadcast_shapes(&a->shape, &b->shape, &to) &&
           shape_equal(&to, &y->shape) && a->dtype == y->dtype && b->dtype == y->dtype;
}

static bool binary_da_fits(const Operands *o) {
    const BinaryAttr *f = &o->attr->binary;
    const Shape *whole = &o->binary_da.dy->shape;
    const Buf *const of[] = {o->binary_da.a, o->binary_da.b};
    for (int k = 0; k < 2; k++)
        if (!of[k] != !binary_reads(f->f, f->second, k) ||
            (of[k] && (!in_rows(of[k]) || !broadcasts_over(whole, &of[k]->shape))))
            return false;
    return in_rows(o->binary_da.dy) && in_rows(o->binary_da.da) && broadcasts_over(whole, &o->binary_da.da->shape);
}

/* dy itself where it is a term that was not broadcast; a parameter gets a gradient of its own. */
static void operand_gradient(Gradients *g, const Op *f, int dy, bool second) {
    const BinaryFn fn = f->attr.binary.f;
    const int of = g->leaf[f->in[second]];
    const Buf *b = &g->p->bufs[of];
    const bool same = shape_equal(&b->shape, &g->p->bufs[dy].shape) && b->dtype == g->p->bufs[dy].dtype;
    if (same && b->param < 0 && (fn == BINARY_ADD || (fn == BINARY_SUB && !second))) {
        gradient_pass(g, f, of, dy);
        return;
    }
    const int made = gradient_buf_wanted(g, of);
    if (made == NO_BUF) return;
    Op *op = gradient_op(g, OP_binary_da, f);
    op->attr.binary.second = second;
    op->binary_da.dy = dy;
    op->binary_da.a = binary_reads(fn, second, false) ? f->binary.a : NO_BUF;
    op->binary_da.b = binary_reads(fn, second, true) ? f->binary.b : NO_BUF;
    op->binary_da.da = made;
    gradient_add(g, f, of, made);
}

static void binary_gradient(Gradients *g, const Op *f, int dy) {
    operand_gradient(g, f, dy, false);
    operand_gradient(g, f, dy, true);
}

static void binary_show(const Attr *a, Line *l) {
    static const char *const names[] = {
#define X(name, text) text,
        BINARIES(X)
#undef X
    };
    line_put(l, " %s%s", names[a->binary.f], a->binary.second ? " second" : "");
}

const OpRule rule_binary = {binary_fits, NULL, binary_gradient, binary_show};
const OpRule rule_binary_da = {binary_da_fits, NULL, NULL, binary_show};

/* ---- reductions */

static bool reduces(const Buf *x, const Buf *y) {
    return in_rows(x) && in_rows(y) && x->shape.rank == y->shape.rank && broadcasts_over(&x->shape, &y->shape);
}

static bool reduce_fits(const Operands *o) { return reduces(o->reduce.x, o->reduce.y) && fits_type(o); }

static bool reduce_dx_fits(const Operands *o) {
    const Buf *dy = o->reduce_dx.dy, *x = o->reduce_dx.x, *y = o->reduce_dx.y;
    const bool reads = reduce_reads(o->attr->reduce.f);
    return reduces(o->reduce_dx.dx, dy) && !x == !reads && !y == !reads &&
           (!reads || (same_elements(x, o->reduce_dx.dx) && same_elements(y, dy)));
}

static void reduce_gradient(Gradients *g, const Op *f, int dy) {
    const int of = g->leaf[f->reduce.x], made = gradient_buf_wanted(g, of);
    const bool reads = reduce_reads(f->attr.reduce.f);
    if (made == NO_BUF) return;
    Op *op = gradient_op(g, OP_reduce_dx, f);
    op->reduce_dx.dy = dy;
    op->reduce_dx.x = reads ? f->reduce.x : NO_BUF;
    op->reduce_dx.y = reads ? f->reduce.y : NO_BUF;
    op->reduce_dx.dx = made;
    gradient_add(g, f, of, made);
}

static void reduce_show(const Attr *a, Line *l) {
    static const char *const names[] = {
#define X(name, text) text,
        REDUCTIONS(X)
#undef X
    };
    line_put(l, " %s", names[a->reduce.f]);
}

const OpRule rule_reduce = {reduce_fits, NULL, reduce_gradient, reduce_show};
const OpRule rule_reduce_dx = {reduce_dx_fits, NULL, NULL, reduce_show};

/* ---- triangles */

static bool where_fits(const Operands *o) {
    const Buf *a = o->where.a, *b = o->where.b;
    return in_rows(a) && a->shape.rank >= 2 && fits_whole(o) && (!b || same_buf(a, b));
}

/* dy inside, 0 outside; and the other way round. */
static void side_gradient(Gradients *g, const Op *forward, int dy, bool second) {
    Op f = *forward;
    TriangleAttr *t = &f.attr.triangle;
    t->value = 0;
    if (second) {
        t->diagonal += t->upper ? -1 : 1;
        t->upper = !t->upper;
    }
    gradient_by(g, OP_where, &f, f.in[second], dy, NO_BUF);
}

static void where_gradient(Gradients *g, const Op *f, int dy) {
    side_gradient(g, f, dy, false);
    if (f->where.b != NO_BUF) side_gradient(g, f, dy, true);
}

static void where_show(const Attr *a, Line *l) {
    line_put(l, " %s(%d)", a->triangle.upper ? "triu" : "tril", a->triangle.diagonal);
}

const OpRule rule_where = {where_fits, NULL, where_gradient, where_show};

/* ---- elements by label */

static bool rows_fit(const Buf *x, const Buf *t, const Buf *y) {
    return in_rows(x) && x->shape.rank == 2 && t->dtype == DT_I32 && shape_elements(&t->shape) == x->shape.dim[0] &&
           shape_elements(&y->shape) == x->shape.dim[0] && x->dtype == y->dtype;
}

static bool gather_fits(const Operands *o) { return rows_fit(o->gather.x, o->gather.t, o->gather.y); }
static bool gather_dx_fits(const Operands *o) { return rows_fit(o->gather_dx.dx, o->gather_dx.t, o->gather_dx.dy); }

static void gather_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_gather_dx, f, g->leaf[f->gather.x], dy, f->gather.t);
}

const OpRule rule_gather = {gather_fits, NULL, gather_gradient, NULL};
const OpRule rule_gather_dx = {gather_dx_fits, NULL, NULL, NULL};
