/* Convolutions, linear layers, and their gradients. */
#include <string.h>

#include "math/quantized.h"
#include "program/rule.h"

/* Of the type of the other factor, or fp32, which is then rounded to it (ops.def's ROUNDED). */
static bool weight_fits(const Buf *w, const Buf *factor) { return w->dtype == factor->dtype || w->dtype == DT_F32; }

/* x (N, C, H, W), w (O, C / groups, KH, KW), y (N, O, OH, OW), also with L or K in place of the last two dimensions */
static bool conv_fits(const Buf *x, const Buf *w, const Buf *y, const ConvAttr *a) {
    const Shape in = program_shape(x), filter = program_shape(w), out = program_shape(y);
    if (in.rank != 4 || filter.rank != 4 || out.rank != 4 || x->shape.rank != y->shape.rank) return false;
    for (int i = 0; i < 2; i++) {
        int64_t window = (int64_t)a->dilation[i] * (filter.dim[2 + i] - 1) + 1;
        int64_t span = in.dim[2 + i] + a->pad[i] + a->pad[2 + i] - window;
        if (span < 0 || span / a->stride[i] + 1 != out.dim[2 + i]) return false;
    }
    return in.dim[0] == out.dim[0] && out.dim[1] == filter.dim[0] && in.dim[1] == filter.dim[1] * a->groups;
}

/* x (..., I), y (..., O), w (O, I) */
static bool linear_fits(const Buf *x, const Buf *w, const Buf *y) {
    int last = x->shape.rank - 1;
    Shape like = y->shape;
    if (last < 1 || w->shape.rank != 2 || y->shape.rank != x->shape.rank) return false;
    like.dim[last] = x->shape.dim[last];
    return shape_equal(&like, &x->shape) && x->shape.dim[last] == w->shape.dim[1] &&
           y->shape.dim[last] == w->shape.dim[0] && x->dtype == y->dtype;
}

/* s: there if and only if the op multiplies dx by the derivative of an activation; db: the sum of dx per feature, or
 * NULL */
static bool dx_fits(const Buf *dx, const Buf *s, const Buf *db, const ActAttr *fused) {
    if ((fused->act != ACT_NONE) != (s != NULL) || (s && !same_buf(s, dx))) return false;
    if (!db) return true;
    int features = dx->shape.rank == 3 && dx->layout == LAYOUT_ROWS ? 2 : 1;
    return db->shape.rank == 1 && db->shape.dim[0] == dx->shape.dim[features] &&
           (dx->shape.rank != 4 || dx->layout == LAYOUT_NHWC);
}

/* In the op and in its gradients, each element of y needs one filter of w (O, ...): 2 |y| |w| / O operations. That is
 * 2 N OH OW O (I / groups) KH KW for a convolution and 2 N I O for a linear layer. */
static double product_flops(const Buf *y, const Buf *w) {
    return 2 * buf_elements(y) * buf_elements(w) / (double)w->shape.dim[0];
}

/* First through the fused activation, then dw, so that x may die before dx is made. */
static void product_gradient(Gradients *g, const Op *forward, int dy, OpKind dx, OpKind dw) {
    Op f = *forward;
    dy = gradient_through_act(g, &f, dy);
    int w = g->leaf[f.linear.w], bias = f.linear.b, db = gradient_buf_wanted(g, bias);
    if (g->wanted[w]) {
        int made = gradient_buf(g, w);
        Op *op = gradient_op(g, dw, &f);
        op->linear_dw.x = f.linear.x;
        op->linear_dw.dy = dy;
        op->linear_dw.dw = made;
        op->linear_dw.db = db;
        gradient_add(g, &f, w, made);
    } else if (db != NO_BUF) {
        Op *op = gradient_op(g, OP_bias_db, &f);
        memset(&op->attr, 0, sizeof op->attr);
        op->bias_db.dy = dy;
        op->bias_db.db = db;
    }
    if (db != NO_BUF) gradient_add(g, &f, bias, db);
    gradient_by(g, dx, &f, f.linear.x, dy, f.linear.w);
}

/* ---- convolutions */

static bool conv2d_fits(const Operands *o) {
    const Buf *x = o->conv2d.x, *w = o->conv2d.w, *y = o->conv2d.y;
    return conv_fits(x, w, y, &o->attr->conv) && weight_fits(w, x) && x->dtype == y->dtype;
}

static bool conv2d_dx_fits(const Operands *o) {
    const Buf *dy = o->conv2d_dx.dy, *w = o->conv2d_dx.w, *dx = o->conv2d_dx.dx;
    const ConvAttr *a = &o->attr->conv;
    return conv_fits(dx, w, dy, a) && weight_fits(w, dx) && dx_fits(dx, o->conv2d_dx.s, o->conv2d_dx.db, &a->fused);
}

static bool conv2d_dw_fits(const Operands *o) {
    return conv_fits(o->conv2d_dw.x, o->conv2d_dw.dw, o->conv2d_dw.dy, &o->attr->conv);
}

static bool conv_transpose_fits(const Operands *o) {
    const Buf *x = o->conv_transpose.x, *w = o->conv_transpose.w, *y = o->conv_transpose.y;
    return conv_fits(y, w, x, &o->attr->conv) && y->dtype == w->dtype && x->dtype == y->dtype;
}

static double conv2d_flops(const Operands *o) { return product_flops(o->conv2d.y, o->conv2d.w); }
static double conv2d_dx_flops(const Operands *o) { return product_flops(o->conv2d_dx.dy, o->conv2d_dx.w); }
static double conv2d_dw_flops(const Operands *o) { return product_flops(o->conv2d_dw.dy, o->conv2d_dw.dw); }
static double conv_transpose_flops(const Operands *o) {
    return product_flops(o->conv_transpose.x, o->conv_transpose.w);
}

static void conv2d_gradient(Gradients *g, const Op *f, int dy) {
    product_gradient(g, f, dy, OP_conv2d_dx, OP_conv2d_dw);
}

/* The gradient of x is a convolution of dy; that of w is conv2d_dw with x and dy in each other's place. */
static void conv_transpose_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_conv2d_dw, f, g->leaf[f->conv_transpose.w], dy, f->conv_transpose.x);
    if (f->conv_transpose.b != NO_BUF) gradient_by(g, OP_bias_db, f, f->conv_transpose.b, dy, NO_BUF);
    gradient_by(g, OP_conv2d, f, f->conv_transpose.x, dy, f->conv_transpose.w);
}

static void conv_show(const Attr *a, Line *l) {
    const ConvAttr *c = &a->conv;
    line_put(l, " stride=%dx%d pad=%d,%d,%d,%d dilation=%dx%d groups=%d", c->stride[0], c->stride[1], c->pad[0],
             c->pad[1], c->pad[2], c->pad[3], c->dilation[0], c->dilation[1], c->groups);
    if (c->fused.act) line_put(l, " act=%s", act_name(c->fused.act));
    if (c->tf32) line_put(l, " tf32");
}

const OpRule rule_conv2d = {conv2d_fits, conv2d_flops, conv2d_gradient, conv_show};
const OpRule rule_conv2d_dx = {conv2d_dx_fits, conv2d_dx_flops, NULL, conv_show};
const OpRule rule_conv2d_dw = {conv2d_dw_fits, conv2d_dw_flops, NULL, conv_show};
const OpRule rule_conv_transpose = {conv_transpose_fits, conv_transpose_flops, conv_transpose_gradient, NULL};

/* ---- linear layers */

static bool linear_forward_fits(const Operands *o) { return linear_fits(o->linear.x, o->linear.w, o->linear.y); }

static bool linear_dx_fits(const Operands *o) {
    return linear_fits(o->linear_dx.dx, o->linear_dx.w, o->linear_dx.dy) &&
           dx_fits(o->linear_dx.dx, o->linear_dx.s, o->linear_dx.db, &o->attr->linear.fused);
}

static bool linear_dw_fits(const Operands *o) { return linear_fits(o->linear_dw.x, o->linear_dw.dw, o->linear_dw.dy); }

static double linear_flops(const Operands *o) { return product_flops(o->linear.y, o->linear.w); }
static double linear_dx_flops(const Operands *o) { return product_flops(o->linear_dx.dy, o->linear_dx.w); }
static double linear_dw_flops(const Operands *o) { return product_flops(o->linear_dw.dy, o->linear_dw.dw); }

static void linear_gradient(Gradients *g, const Op *f, int dy) {
    product_gradient(g, f, dy, OP_linear_dx, OP_linear_dw);
}

static void linear_show(const Attr *a, Line *l) {
    if (a->linear.fused.act) line_put(l, " act=%s", act_name(a->linear.fused.act));
    if (a->linear.tf32) line_put(l, " tf32");
}

const OpRule rule_linear = {linear_forward_fits, linear_flops, linear_gradient, linear_show};
const OpRule rule_linear_dx = {linear_dx_fits, linear_dx_flops, NULL, linear_show};
const OpRule rule_linear_dw = {linear_dw_fits, linear_dw_flops, NULL, linear_show};

/* ---- linear layers over quantised weights, which get no gradient */

static int64_t elements(const Buf *b) { return b ? shape_elements(&b->shape) : 0; }

enum { QUANT_DERIVED = 5 }; /* operands that belong to codes: absmax, quant_map, nested_absmax, nested_quant_map, nested_offset */

/* Do the codes and what belongs to them fit a weight (O, I)? */
static bool quantized_fits(const Buf *w, const Buf *const derived[QUANT_DERIVED], int64_t rows, int64_t columns) {
    const Buf *absmax = derived[0], *map = derived[1], *nested = derived[2], *nested_map = derived[3], *offset = derived[4];
    const int64_t n = rows * columns, blocks = quant4_blocks(n);
    if (w->dtype != DT_U8 || absmax->dtype != (nested ? DT_U8 : DT_F32)) return false;
    if (!map) return !nested && !nested_map && !offset && elements(w) == n && elements(absmax) == rows;
    return elements(w) == quant4_bytes(n) && elements(absmax) == blocks && elements(map) == QUANT_MAP &&
           elements(nested) == (nested ? quant4_nested(blocks) : 0) &&
           elements(nested_map) == (nested ? QUANT_NESTED_MAP : 0) && elements(offset) == (nested ? 1 : 0);
}

static bool linear_q_whole_fits(const Buf *const in[OP_IN], const Buf *x, const Buf *y) {
    const int last = x->shape.rank - 1;
    Shape like = y->shape;
    if (last < 1 || y->shape.rank != x->shape.rank || x->dtype != y->dtype || x->order[0]) return false;
    like.dim[last] = x->shape.dim[last];
    return shape_equal(&like, &x->shape) && quantized_fits(in[1], in + 2, y->shape.dim[last], x->shape.dim[last]);
}

static bool linear_q_fits(const Operands *o) {
    const Buf *b = o->linear_q.b;
    return linear_q_whole_fits(o->in, o->linear_q.x, o->linear_q.y) &&
           (!b || elements(b) == o->linear_q.y->shape.dim[o->linear_q.y->shape.rank - 1]);
}

static bool linear_q_dx_fits(const Operands *o) {
    return linear_q_whole_fits(o->in, o->linear_q_dx.dx, o->linear_q_dx.dy);
}

/* Of the product alone: to make a weight from its code is an operation for each, and there are 2 N for each. */
static double linear_q_flops(const Operands *o) {
    return 2 * buf_elements(o->in[0]) * (double)o->out[0]->shape.dim[o->out[0]->shape.rank - 1];
}

static void linear_q_gradient(Gradients *g, const Op *forward, int dy) {
    const Op f = *forward;
    if (!gradient_wanted(g, f.linear_q.x)) return;
    const int dx = gradient_buf(g, f.linear_q.x);
    Op *op = gradient_op(g, OP_linear_q_dx, &f);
    memcpy(op->in, f.in, sizeof op->in);
    op->linear_q_dx.dy = dy;
    op->in[op_info(OP_linear_q_dx)->n_in] = NO_BUF; /* the bias */
    op->linear_q_dx.dx = dx;
    gradient_add(g, &f, f.linear_q.x, dx);
}

const OpRule rule_linear_q = {linear_q_fits, linear_q_flops, linear_q_gradient, linear_show};
const OpRule rule_linear_q_dx = {linear_q_dx_fits, linear_q_flops, NULL, linear_show};

/* ---- magnitudes of rows: DoRA */

static bool dora_norm_fits(const Operands *o) {
    const Buf *w = o->dora_norm.w, *a = o->dora_norm.a, *b = o->dora_norm.b;
    const bool plain = !o->dora_norm.absmax;
    if (a->shape.rank != 2 || b->shape.rank != 2 || b->shape.dim[1] != a->shape.dim[0]) return false;
    const Shape whole = shape2(b->shape.dim[0], a->shape.dim[1]);
    return dtype_is_float(a->dtype) && dtype_is_float(b->dtype) && elements(o->dora_norm.norm) == whole.dim[0] &&
           (plain ? dtype_is_float(w->dtype) && shape_equal(&w->shape, &whole) && !memcmp(w->order, a->order, sizeof w->order)
                  : quantized_fits(w, o->in + 2, whole.dim[0], whole.dim[1]));
}

static double dora_norm_flops(const Operands *o) {
    return 2 * (buf_elements(o->dora_norm.b) + (double)o->dora_norm.b->shape.dim[0]) * (double)o->dora_norm.a->shape.dim[1];
}

static void dora_show(const Attr *a, Line *l) { line_put(l, " scaling=%g", (double)a->dora.scaling); }

/* Is x a matrix of that many features, in rows, and are the others one number for each of these? */
static bool by_features(const Buf *x, const Buf *norm, const Buf *of_type, const Buf *b) {
    const int64_t features = elements(norm);
    return x->shape.rank >= 2 && x->layout == LAYOUT_ROWS && !x->order[0] && x->shape.dim[x->shape.rank - 1] == features &&
           elements(of_type) == features && dtype_is_float(of_type->dtype) && (!b || elements(b) == features);
}

static bool dora_fits(const Operands *o) {
    return fits_elements(o) && by_features(o->dora.x, o->dora.norm, o->dora.magnitude, o->dora.b);
}

static bool dora_dm_fits(const Operands *o) {
    return same_elements(o->dora_dm.dy, o->dora_dm.x) && by_features(o->dora_dm.x, o->dora_dm.norm, o->dora_dm.dm, o->dora_dm.b);
}

/* The norm counts as a constant (section 4.3 of the paper), and the bias is that of a frozen layer. */
static void dora_gradient(Gradients *g, const Op *forward, int dy) {
    const Op f = *forward;
    if (gradient_wanted(g, f.dora.magnitude)) {
        const int dm = gradient_buf(g, f.dora.magnitude);
        Op *op = gradient_op(g, OP_dora_dm, &f);
        op->dora_dm.dy = dy;
        op->dora_dm.x = f.dora.x;
        op->dora_dm.norm = f.dora.norm;
        op->dora_dm.b = f.dora.b;
        op->dora_dm.dm = dm;
        gradient_add(g, &f, f.dora.magnitude, dm);
    }
    if (gradient_wanted(g, f.dora.x)) {
        const int dx = gradient_buf(g, f.dora.x);
        Op *op = gradient_op(g, OP_dora, &f); /* without the bias */
        op->dora.x = dy;
        op->dora.magnitude = f.dora.magnitude;
        op->dora.norm = f.dora.norm;
        op->dora.y = dx;
        gradient_add(g, &f, f.dora.x, dx);
    }
}

const OpRule rule_dora_norm = {dora_norm_fits, dora_norm_flops, NULL, dora_show};
const OpRule rule_dora = {dora_fits, NULL, dora_gradient, NULL};
const OpRule rule_dora_dm = {dora_dm_fits, NULL, NULL, NULL};

/* ---- the gradient of a bias alone */

static bool bias_db_fits(const Operands *o) { return o->bias_db.db->shape.rank == 1 && o->bias_db.dy->shape.rank >= 2; }

const OpRule rule_bias_db = {bias_db_fits, NULL, NULL, NULL};
