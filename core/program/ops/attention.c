/* Attention, and rotary embeddings. */
#include "program/rule.h"

/* bias: NULL, or (N or 1, heads or 1, queries, keys) */
static bool bias_fits(const Buf *bias, const Buf *y, int64_t samples, int64_t queries, int64_t keys, int32_t heads) {
    if (!bias) return true;
    const int64_t *d = bias->shape.dim;
    return bias->shape.rank == 4 && bias->layout == LAYOUT_ROWS && bias->dtype == y->dtype &&
           (d[0] == 1 || d[0] == samples) && (d[1] == 1 || d[1] == heads) && d[2] == queries && d[3] == keys;
}

/* positions: NULL, or (N, T): attention of a sequence to itself, which is causal */
static bool positions_fit(const Buf *positions, int64_t samples, int64_t steps) {
    const Shape each = shape2(samples, steps);
    return !positions || (shape_equal(&each, &positions->shape) && positions->dtype == DT_I32);
}

/* y (N, T, heads D), lse (N, heads, T) or NULL. of[3]: q, k, v or NULL (attention.h): a row of one that is there has
 * the features of those that are stored in it, too. */
static bool operands_fit(const Buf *const *of, const Buf *y, const Buf *lse, const Buf *bias, const Buf *positions,
                         const AttentionAttr *a) {
    if (y->shape.rank != 3 || a->kv_heads < 1 || a->heads % a->kv_heads || y->shape.dim[2] % a->heads) return false;
    int time = a->batch_first ? 1 : 0;
    int64_t width = y->shape.dim[2] / a->heads, features = 0;
    assert(of[0]);
    int64_t queries = y->shape.dim[time], keys = (of[1] ? of[1] : of[0])->shape.dim[time];
    Shape rows = shape3(y->shape.dim[1 - time], a->heads, queries), like = y->shape;
    if (!bias_fits(bias, y, y->shape.dim[1 - time], queries, keys, a->heads)) return false;
    if (!positions_fit(positions, y->shape.dim[1 - time], queries)) return false;
    if (positions && (!a->causal || queries != keys)) return false;
    if (a->window < 0 || (a->window && (!a->causal || queries != keys)) || !(a->cap >= 0)) return false;
    for (int k = 2; k >= 0; k--) {
        features += (k == 0 ? a->heads : a->kv_heads) * width;
        if (!of[k]) continue;
        like.dim[time] = k == 0 ? queries : keys;
        like.dim[2] = features;
        if (!shape_equal(&like, &of[k]->shape) || of[k]->dtype != y->dtype) return false;
        features = 0;
    }
    return !lse || (shape_equal(&rows, &lse->shape) && lse->dtype == DT_F32);
}

static bool attention_fits(const Operands *o) {
    return operands_fit(&o->attention.q, o->attention.y, o->attention.lse, o->attention.bias,
                        o->attention.positions, &o->attr->attention);
}

static bool attention_dx_fits(const Operands *o) {
    const BufRef *of = &o->attention_dx.q, *made = &o->attention_dx.dq; /* q, k, v and dq, dk, dv */
    for (int k = 0; k < 3; k++)
        if (!made[k] != !of[k] || (made[k] && !same_elements(made[k], of[k]))) return false;
    const Buf *bias = o->attention_dx.bias, *dbias = o->attention_dx.dbias;
    if (dbias && (!bias || !same_elements(dbias, bias))) return false;
    return operands_fit(of, o->attention_dx.y, o->attention_dx.lse, bias, o->attention_dx.positions,
                        &o->attr->attention) &&
           same_elements(o->attention_dx.dy, o->attention_dx.y);
}

/* Operations of one product of all queries with the keys that they see: 2 N T S F; if causal, query i sees i + 1 keys,
 * within a window at most as many as that. Of sequences that share a row, whose lengths hang on the data, it is an upper
 * bound: that of one sequence which fills the row; the sum of the squares of their lengths takes the place of T^2.
 * k: NULL if the keys are stored in the rows of q. */
static double product(const AttentionAttr *a, const Buf *y, const Buf *q, const Buf *k) {
    int time = a->batch_first ? 1 : 0;
    double steps = (double)y->shape.dim[time], keys = (double)(k ? k : q)->shape.dim[time];
    double least = keys < steps ? keys : steps;
    if (a->window && a->window < least) least = a->window;
    return 2 * buf_elements(y) * (a->causal ? least - least * least / (2 * steps) : keys);
}

/* Two products: the scores, and y. */
static double attention_flops(const Operands *o) {
    return 2 * product(&o->attr->attention, o->attention.y, o->attention.q, o->attention.k);
}

/* Five products: the scores again, and the gradients of scores, q, k and v. */
static double attention_dx_flops(const Operands *o) {
    return 5 * product(&o->attr->attention, o->attention_dx.dy, o->attention_dx.q, o->attention_dx.k);
}

/* One op makes the gradients of q, k and v, even if they are not wanted, and that of the bias. */
static void attention_gradient(Gradients *g, const Op *f, int dy) {
    const int of[] = {f->attention.q, f->attention.k, f->attention.v};
    int made[3];
    const int bias = f->attention.bias;
    if (!gradient_wanted(g, of[0]) && !gradient_wanted(g, of[1]) && !gradient_wanted(g, of[2]) &&
        !gradient_wanted(g, bias)) return;
    const int dbias = gradient_buf_wanted(g, bias);
    for (int k = 0; k < 3; k++) made[k] = of[k] == NO_BUF ? NO_BUF : gradient_buf(g, of[k]);
    Op *op = gradient_op(g, OP_attention_dx, f);
    op->attention_dx.dy = dy;
    op->attention_dx.q = of[0];
    op->attention_dx.k = of[1];
    op->attention_dx.v = of[2];
    op->attention_dx.y = f->attention.y;
    op->attention_dx.lse = f->attention.lse;
    op->attention_dx.calls = f->attention.calls;
    op->attention_dx.dq = made[0];
    op->attention_dx.dk = made[1];
    op->attention_dx.dv = made[2];
    op->attention_dx.bias = bias;
    op->attention_dx.positions = f->attention.positions;
    op->attention_dx.dbias = dbias;
    for (int k = 0; k < 3; k++)
        if (gradient_wanted(g, of[k])) gradient_add(g, f, of[k], made[k]);
    if (dbias != NO_BUF) gradient_add(g, f, bias, dbias);
}

static void attention_show(const Attr *attr, Line *l) {
    const AttentionAttr *a = &attr->attention;
    line_put(l, " heads=%d kv_heads=%d%s", a->heads, a->kv_heads, a->causal ? " causal" : "");
    if (a->window) line_put(l, " window=%d", a->window);
    if (a->cap > 0) line_put(l, " cap=%g", (double)a->cap);
}

const OpRule rule_attention = {attention_fits, attention_flops, attention_gradient, attention_show};
const OpRule rule_attention_dx = {attention_dx_fits, attention_dx_flops, NULL, attention_show};

/* ---- rotary embeddings: x and y are (N, T, heads dim); positions: (N, T) or NULL */

static bool rotary_fits(const Operands *o) {
    const Buf *x = o->rotary.x;
    const RotaryAttr *r = &o->attr->rotary;
    return fits_elements(o) && x->shape.rank == 3 && x->layout == LAYOUT_ROWS && r->dim > 0 && r->dim % 2 == 0 &&
           r->dim <= 2 * ROTARY_PAIRS && x->shape.dim[2] % r->dim == 0 &&
           positions_fit(o->rotary.positions, x->shape.dim[0], x->shape.dim[1]);
}

/* Rotates back by the same angles. */
static void rotary_gradient(Gradients *g, const Op *forward, int dy) {
    Op f = *forward;
    f.attr.rotary.back = !f.attr.rotary.back;
    gradient_by(g, OP_rotary, &f, f.rotary.x, dy, f.rotary.positions);
}

static void rotary_show(const Attr *a, Line *l) {
    const RotaryAttr *r = &a->rotary;
    line_put(l, " dim=%d base=%g %s%s", r->dim, (double)r->base, r->interleaved ? "interleaved" : "halves",
             r->back ? " back" : "");
    if (r->scaling.kind == ROTARY_LINEAR) line_put(l, " linear=%g", (double)r->scaling.factor);
    if (r->scaling.kind == ROTARY_LLAMA3)
        line_put(l, " llama3=%g,%g,%g,%g", (double)r->scaling.factor, (double)r->scaling.low, (double)r->scaling.high,
                 (double)r->scaling.original);
}

const OpRule rule_rotary = {rotary_fits, NULL, rotary_gradient, rotary_show};
