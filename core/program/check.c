/* The verifier. Runs after lowering and after every pass, in every build: it costs microseconds. */
#include <string.h>

#include "base/mem.h"
#include "program.h"

typedef struct Check {
    const Program *p;
    const char *after;
    Err *e;
    int op;       /* index of the op being looked at */
    bool *made;   /* by buffer: holds a value at this point */
    int *content; /* by buffer: names the value it was written with; views share their source's */
    int *current; /* by root buffer: the content that its storage holds now */
} Check;

static int bad(const Check *c, const char *what, int buf) {
    const Op *op = &c->p->ops[c->op];
    return err_set(c->e, ERR_INTERNAL, "after %s: op %d %s %s: %s%s%s", c->after, c->op, op_info(op->kind)->name,
                   op->path, what, buf == NO_BUF ? "" : ": ", buf == NO_BUF ? "" : c->p->bufs[buf].name);
}

static int check_operands(const Check *c, const Op *op) {
    const OpInfo *info = op_info(op->kind);
    for (int k = 0; k < OP_IN; k++) {
        if (op->in[k] < NO_BUF || op->in[k] >= c->p->n_bufs) return bad(c, "input out of range", NO_BUF);
        if (k >= info->n_in ? op->in[k] != NO_BUF : op->in[k] == NO_BUF && !info->in[k].optional)
            return bad(c, k >= info->n_in ? "too many inputs" : "an input is missing", NO_BUF);
    }
    for (int k = 0; k < OP_OUT; k++) {
        if (op->out[k] < NO_BUF || op->out[k] >= c->p->n_bufs) return bad(c, "output out of range", NO_BUF);
        if (k >= info->n_out ? op->out[k] != NO_BUF : op->out[k] == NO_BUF && !info->out[k].optional)
            return bad(c, k >= info->n_out ? "too many outputs" : "an output is missing", NO_BUF);
    }
    return OK;
}

/* Host memory: a copy reaches it, and nothing else does. */
static int check_host(const Check *c, const Op *op) {
    bool host[2] = {false, false};
    for (int k = 0; k < OP_IN; k++) host[0] |= op->in[k] != NO_BUF && c->p->bufs[op->in[k]].host;
    for (int k = 0; k < OP_OUT; k++) host[1] |= op->out[k] != NO_BUF && c->p->bufs[op->out[k]].host;
    if (op->kind == OP_copy ? host[0] != host[1] : !host[0] && !host[1]) return OK;
    return bad(c, op->kind == OP_copy ? "copies within one memory" : "works on host memory", op->out[0]);
}

static int check_reads(const Check *c, const Op *op) {
    const Program *p = c->p;
    for (int k = 0; k < OP_IN; k++) {
        int b = op->in[k];
        if (b == NO_BUF) continue;
        if (!c->made[b]) return bad(c, "reads what no op before it has made", b);
        if (c->current[program_root(p, b)] != c->content[b]) return bad(c, "reads storage that was overwritten", b);
        if (p->micro_batches > 1 && c->op >= p->body_end && p->bufs[b].kind == BUF_TEMP && !p->bufs[b].carried)
            return bad(c, "reads a temporary of the last micro-batch only", b);
    }
    return OK;
}

/* Output 0 may lie in the storage of the input that ops.def allows, and of no other. */
static int check_inplace(const Check *c, const Op *op, int out) {
    const Program *p = c->p;
    int allowed = op_info(op->kind)->inplace, root = program_root(p, out);
    if (allowed == NEVER || op->out[0] != out || program_root(p, op->in[allowed]) != root)
        return bad(c, "writes into the storage of another buffer", out);
    if (p->bufs[root].kind != BUF_TEMP && op->kind != OP_view) return bad(c, "overwrites an input or parameter", out);
    for (int k = 0; k < OP_IN; k++)
        if (k != allowed && op->in[k] != NO_BUF && program_root(p, op->in[k]) == root)
            return bad(c, "overwrites another of its inputs", out);
    return OK;
}

static int check_write(Check *c, const Op *op, int k) {
    const Program *p = c->p;
    int b = op->out[k], root;
    if (b == NO_BUF) return OK;
    const Buf *buf = &p->bufs[b];
    if (op_info(op->kind)->out[k].updated) {
        if (buf->kind != BUF_PERSISTENT && !buf->carried) return bad(c, "updates a buffer that does not last", b);
        c->made[b] = true;
        return OK;
    }
    if (buf->kind != BUF_TEMP || buf->carried) return bad(c, "writes over a buffer that lasts", b);
    if (c->made[b]) return bad(c, "writes a buffer that another op has written", b);
    root = program_root(p, b);
    if (root != b && check_inplace(c, op, b)) return ERR_INTERNAL;
    c->made[b] = true;
    c->content[b] = op->kind == OP_view ? c->content[op->in[0]] : b;
    c->current[root] = c->content[b];
    return OK;
}

static bool conv_fits(const Buf *x, const Buf *w, const Buf *y, const ConvAttr *a) {
    const Shape in = program_shape(x), filter = program_shape(w), out = program_shape(y);
    if (in.rank != 4 || filter.rank != 4 || out.rank != 4 || x->shape.rank != y->shape.rank) return false;
    for (int i = 0; i < 2; i++) {
        int64_t window = (int64_t)a->dilation[i] * (filter.dim[2 + i] - 1) + 1;
        int64_t span = in.dim[2 + i] + a->pad[i] + a->pad[2 + i] - window;
        if (span < 0 || span / a->stride[i] + 1 != out.dim[2 + i]) return false;
    }
    return in.dim[0] == out.dim[0] && out.dim[1] == filter.dim[0] && in.dim[1] == filter.dim[1] * a->groups &&
           x->dtype == w->dtype;
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

/* x (.., .., I), y (.., .., H), saved (.., .., saved H); w (gates H, I), (gates H, H) */
static bool rnn_fits(const Buf *x, const Buf *w_ih, const Buf *w_hh, const Buf *y, const Buf *saved, RnnMode mode) {
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

static bool same_elements(const Buf *a, const Buf *b) {
    return shape_equal(&a->shape, &b->shape) && a->layout == b->layout && !memcmp(a->order, b->order, sizeof a->order);
}

/* y (N, T, heads D), lse (N, heads, T). of[3]: q, k, v (attention.h), whose rows have the features of all that lie
 * there */
static bool attention_fits(const Buf *const *of, const Buf *y, const Buf *lse, const AttentionAttr *a) {
    if (y->shape.rank != 3 || a->kv_heads < 1 || a->heads % a->kv_heads || y->shape.dim[2] % a->heads) return false;
    int time = a->batch_first ? 1 : 0;
    int64_t width = y->shape.dim[2] / a->heads, features = 0;
    int64_t queries = y->shape.dim[time], keys = (of[1] ? of[1] : of[0])->shape.dim[time];
    Shape rows = shape3(y->shape.dim[1 - time], a->heads, queries), like = y->shape;
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

static bool attention_dx_fits(const Buf *const *in, const Buf *const *out, const AttentionAttr *a) {
    for (int k = 0; k < 3; k++)
        if (!out[k] != !in[1 + k] || (out[k] && !same_elements(out[k], in[1 + k]))) return false;
    return attention_fits(in + 1, in[4], in[5], a) && same_elements(in[0], in[4]);
}

/* A product's dx, with the gradient of an activation behind it or without. */
static bool dx_fits(const Program *p, const Op *op, const ActAttr *fused) {
    const Buf *dx = &p->bufs[op->out[0]];
    if ((fused->act != ACT_NONE) != (op->in[2] != NO_BUF)) return false;
    if (op->in[2] != NO_BUF && (!same_elements(&p->bufs[op->in[2]], dx) || p->bufs[op->in[2]].dtype != dx->dtype))
        return false;
    if (op->out[1] == NO_BUF) return true;
    const Buf *db = &p->bufs[op->out[1]];
    int features = dx->shape.rank == 3 && dx->layout == LAYOUT_ROWS ? 2 : 1;
    return db->shape.rank == 1 && db->shape.dim[0] == dx->shape.dim[features] &&
           (dx->shape.rank != 4 || dx->layout == LAYOUT_NHWC);
}

/* `y` is a part of `x` along the axis. */
static bool slice_fits(const Buf *x, const Buf *y, const AxisAttr *a) {
    Shape whole = y->shape;
    if (a->axis < 0 || a->axis >= x->shape.rank || x->shape.rank != y->shape.rank || x->dtype != y->dtype) return false;
    int64_t from = x->shape.dim[a->axis];
    bool inside = a->start >= 0 && a->start <= from - whole.dim[a->axis];
    whole.dim[a->axis] = from;
    return inside && shape_equal(&whole, &x->shape) && x->layout == y->layout && (a->axis == 0 || !x->order[0]);
}

/* `s` can be broadcast over `x`, and both lie alike. */
static bool broadcast_fits(const Buf *x, const Buf *s) {
    Broadcast r;
    return x->layout == s->layout && broadcast_read(&x->shape, &s->shape, x->layout == LAYOUT_NHWC, &r) &&
           (!x->order[0] || r.inner == 1);
}

static bool concat_fits(const Program *p, const Op *op) {
    const Buf *y = &p->bufs[op->out[0]];
    AxisAttr part = {op->attr.axis.axis, 0};
    for (int k = 0; k < OP_IN && op->in[k] != NO_BUF; k++) {
        const Buf *x = &p->bufs[op->in[k]];
        if (!slice_fits(y, x, &part)) return false;
        part.start += x->shape.dim[part.axis];
    }
    return part.start == y->shape.dim[part.axis];
}

/* Channels are one dimension of x, statistics are per channel or per group of each sample; parameters per channel. */
static bool norm_fits(const Program *p, const Op *op, int x, int y, int istd, const int param[2]) {
    const NormAttr *a = &op->attr.norm;
    const Buf *in = &p->bufs[x], *out = &p->bufs[y], *s = &p->bufs[istd];
    if (a->axis < 1 || a->axis >= in->shape.rank || !same_elements(in, out)) return false;
    int64_t channels = in->shape.dim[a->axis], stats = shape_elements(&s->shape);
    for (int k = 0; k < 2; k++)
        if (param[k] != NO_BUF && shape_elements(&p->bufs[param[k]].shape) != channels) return false;
    if (a->groups == 0) return stats == channels;
    return channels % a->groups == 0 && stats % a->groups == 0 &&
           shape_elements(&in->shape) / channels % (stats / a->groups) == 0;
}

/* dw (V, D), dy (..., D), an index for each D. */
static bool rows_fit(const Buf *idx, const Buf *w, const Buf *y) {
    return idx->dtype == DT_I32 && w->shape.rank == 2 &&
           shape_elements(&y->shape) == shape_elements(&idx->shape) * w->shape.dim[1];
}

/* w (R, D), y (N, T, D) with T <= R */
static bool add_rows_fit(const Buf *w, const Buf *y) {
    int last = y->shape.rank - 1;
    return w->shape.rank == 2 && last >= 1 && y->layout == LAYOUT_ROWS && w->shape.dim[1] == y->shape.dim[last] &&
           w->shape.dim[0] >= y->shape.dim[last - 1];
}

/* x (N, C), w [C] or none, stats (N, 2) or none */
static bool class_loss_fits(const Buf *x, const Buf *w, const Buf *stats) {
    if (w && (w->dtype != DT_F32 || w->shape.rank != 1 || w->shape.dim[0] != x->shape.dim[1])) return false;
    return !stats || (stats->dtype == DT_F32 && stats->shape.rank == 2 && stats->shape.dim[0] == x->shape.dim[0] &&
                      stats->shape.dim[1] == 2);
}

/* Codes lie as the parameter does; scales are of whole blocks. */
static bool adam8bit_fits(const Op *op, const Buf *const *out) {
    const int64_t n = shape_elements(&out[0]->shape), block = op->attr.optim.rule.block_size;
    int states = 0;
    for (int k = 1; k <= OPTIM_STATES; k++) {
        if (!out[k]) continue;
        if (!same_elements(out[k], out[0]) || out[k]->dtype != DT_U8) return false;
        states++;
    }
    const Buf *scale = out[OPTIM_STATES + 1];
    return block > 0 && n % block == 0 && scale->dtype == DT_F32 && shape_elements(&scale->shape) == n / block * states;
}

/* x and y (N, T, heads dim) */
static bool rotary_fits(const Buf *x, const Buf *y, const RotaryAttr *r) {
    return same_elements(x, y) && x->shape.rank == 3 && x->layout == LAYOUT_ROWS && r->dim > 0 && r->dim % 2 == 0 &&
           r->dim <= 2 * ROTARY_PAIRS && x->shape.dim[2] % r->dim == 0;
}

static bool operands_fit(const Program *p, const Op *op) {
    const Buf *in[OP_IN], *out[OP_OUT];
    for (int k = 0; k < OP_IN; k++) in[k] = op->in[k] == NO_BUF ? NULL : &p->bufs[op->in[k]];
    for (int k = 0; k < OP_OUT; k++) out[k] = op->out[k] == NO_BUF ? NULL : &p->bufs[op->out[k]];
    const Buf *a = in[0], *b = in[1], *y = out[0];
    Buf w;
    switch (op->kind) {
    case OP_conv2d: return conv_fits(a, b, y, &op->attr.conv) && a->dtype == y->dtype;
    case OP_conv2d_dx: return conv_fits(y, b, a, &op->attr.conv) && dx_fits(p, op, &op->attr.conv.fused);
    case OP_conv2d_dw: /* dw may be wider than x and dy */
        w = *y;
        w.dtype = a->dtype;
        return conv_fits(a, &w, b, &op->attr.conv);
    case OP_linear: return linear_fits(a, b, y);
    case OP_linear_dx: return linear_fits(y, b, a) && dx_fits(p, op, &op->attr.linear.fused);
    case OP_linear_dw: return linear_fits(a, y, b);
    case OP_conv_transpose: return conv_fits(y, b, a, &op->attr.conv) && a->dtype == y->dtype;
    case OP_batchnorm: case OP_norm:
        return norm_fits(p, op, op->in[0], op->out[0], op->out[2], &op->in[1]) &&
               (op->kind == OP_norm || a->dtype == y->dtype);
    case OP_batchnorm_eval:
        return norm_fits(p, op, op->in[0], op->out[0], op->in[3], &op->in[1]) && a->dtype == y->dtype;
    case OP_batchnorm_dx: case OP_norm_dx:
        return norm_fits(p, op, op->in[1], op->out[0], op->in[4], (int[]){op->in[2], NO_BUF}) && same_elements(a, b);
    case OP_norm_dw: return norm_fits(p, op, op->in[1], op->in[0], op->in[3], op->out);
    case OP_prelu: return same_elements(a, y) && a->dtype == y->dtype && b->dtype == y->dtype;
    case OP_prelu_dx: return same_elements(a, b) && same_elements(a, y) && a->dtype == y->dtype;
    case OP_embedding: return rows_fit(a, b, y) && b->dtype == y->dtype;
    case OP_embedding_dw: return rows_fit(b, y, a);
    case OP_add_rows: return same_elements(a, y) && a->dtype == y->dtype && add_rows_fit(b, y);
    case OP_add_rows_dw: return add_rows_fit(y, a);
    case OP_upsample: case OP_upsample_dx:
        return a->dtype == y->dtype && a->shape.rank == 4 && y->shape.rank == 4 && a->shape.dim[1] == y->shape.dim[1];
    case OP_act: case OP_dropout: case OP_dropout_dx: case OP_softmax: case OP_cast: case OP_accumulate:
    case OP_element_loss_dx: return same_elements(a, y);
    case OP_copy: return same_elements(a, y) && a->dtype == y->dtype;
    case OP_add: case OP_mul: case OP_act_dx: case OP_softmax_dx: return same_elements(a, b) && same_elements(a, y);
    case OP_rotary: return rotary_fits(a, y, &op->attr.rotary);
    case OP_view: return a->bytes == y->bytes && a->dtype == y->dtype;
    case OP_maxpool: return a->dtype == y->dtype && op->attr.pool.fused.act <= ACT_RELU;
    case OP_nhwc_to_nchw: case OP_nhwc_to_nchw_dx: case OP_avgpool: case OP_adaptive_avgpool: case OP_maxpool_dx:
    case OP_avgpool_dx: case OP_adaptive_avgpool_dx: return a->dtype == y->dtype;
    case OP_concat: return concat_fits(p, op);
    case OP_broadcast: return broadcast_fits(a, b) && same_elements(a, y) && a->dtype == y->dtype && b->dtype == y->dtype;
    case OP_broadcast_ds: return broadcast_fits(a, y) && a->dtype == y->dtype && (!b || same_elements(a, b));
    case OP_slice: return slice_fits(a, y, &op->attr.axis);
    case OP_slice_dx: return slice_fits(y, a, &op->attr.axis);
    case OP_bias_db: return y->shape.rank == 1 && a->shape.rank >= 2;
    case OP_rnn: return rnn_fits(a, b, in[2], y, out[1], op->attr.rnn.mode);
    case OP_rnn_dx: return rnn_fits(b, in[2], in[3], a, in[5], op->attr.rnn.mode) && (!y || same_elements(b, y));
    case OP_attention: return attention_fits(in, y, out[1], &op->attr.attention);
    case OP_attention_dx: return attention_dx_fits(in, out, &op->attr.attention);
    case OP_cross_entropy: return class_loss_fits(a, in[2], out[1]);
    case OP_cross_entropy_dx:
        return same_elements(a, y) && class_loss_fits(a, in[3], in[4]);
    default:
        return !op_is_update(op->kind) || (same_elements(a, y) && (!in[2] || in[2]->dtype == DT_F32) &&
                                           (op->kind != OP_adam8bit || adam8bit_fits(op, out)));
    }
}

static int check_buffers(const Program *p, const char *after, Err *e) {
    for (int i = 0; i < p->n_bufs; i++) {
        const Buf *b = &p->bufs[i];
        int64_t n;
        if (shape_count(&b->shape, &n, e)) return err_prefix(e, "after %s: %s", after, b->name);
        if (b->category != CAT_WORKSPACE && b->bytes != (size_t)n * dtype_size(b->dtype))
            return err_set(e, ERR_INTERNAL, "after %s: %s has %zu bytes, its shape wants %zu", after, b->name, b->bytes,
                           (size_t)n * dtype_size(b->dtype));
        if (b->alias != NO_BUF && (b->alias >= p->n_bufs || p->bufs[b->alias].alias != NO_BUF ||
                                   p->bufs[b->alias].bytes < b->bytes))
            return err_set(e, ERR_INTERNAL, "after %s: %s lies in a buffer that does not hold it", after, b->name);
    }
    return OK;
}

static int check_ops(Check *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        c->made[b] = p->bufs[b].kind != BUF_TEMP;
        c->content[b] = c->current[b] = b;
    }
    for (c->op = 0; c->op < p->n_ops; c->op++) {
        const Op *op = &p->ops[c->op];
        if (check_operands(c, op) || check_host(c, op) || check_reads(c, op)) return ERR_INTERNAL;
        for (int k = 0; k < OP_OUT; k++)
            if (check_write(c, op, k)) return ERR_INTERNAL;
        if (!operands_fit(p, op)) return bad(c, "shapes, types or orders do not fit", op->out[0]);
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].keep && c->made[b] && c->current[program_root(p, b)] != c->content[b])
            return err_set(c->e, ERR_INTERNAL, "after %s: %s is kept but overwritten", c->after, p->bufs[b].name);
    return OK;
}

int program_check(const Program *p, const char *after, Err *e) {
    if (p->failed) return err_set(e, ERR_HOST_MEMORY, "out of host memory in %s", after);
    if (check_buffers(p, after, e)) return ERR_INTERNAL;
    size_t n = (size_t)p->n_bufs;
    Check c = {p, after, e, 0, mem_new(n * sizeof(bool)), mem_new(n * sizeof(int)), mem_new(n * sizeof(int))};
    int code = c.made && c.content && c.current ? check_ops(&c)
                                                : err_set(e, ERR_HOST_MEMORY, "out of host memory in %s", after);
    mem_free(c.made);
    mem_free(c.content);
    mem_free(c.current);
    return code;
}
