/* The gradient of every forward op, as ops, last op first. Gradients are buffers with the shape and type of what they
 * are the gradient of; a buffer that is read twice gets the sum. Where no trained parameter lies upstream, no gradient
 * is emitted. A parameter that reaches an op through a cast gets its gradient straight in its own type. */
#include <stdio.h>
#include <string.h>

#include "passes.h"

typedef struct Back {
    Program *p;
    int *grad;    /* by buffer: its gradient so far, or NO_BUF */
    bool *wanted; /* by buffer: a parameter that is trained lies upstream */
    int *leaf;    /* by buffer: the parameter, or part of one, that it is a cast of, or itself */
    int n;        /* forward buffers */
} Back;

/* "x.grad" -> "x.grad.what7", numbered so that it is the only one */
static void rename_buf(Program *p, int buf, const char *what) {
    char name[BUF_NAME];
    if (p->failed) return;
    snprintf(name, sizeof name, "%.*s.%s%d", BUF_NAME - 20, p->bufs[buf].name, what, p->n_ops);
    memcpy(p->bufs[buf].name, name, sizeof name);
}

static int grad_buf(Back *b, int of) {
    const Buf *like = &b->p->bufs[of];
    bool weight = like->kind == BUF_PERSISTENT;
    int g = program_like(b->p, of, weight ? CAT_GRADIENTS : CAT_ACTIVATION_GRADIENTS, like->shape, like->dtype, "grad");
    if (!b->p->failed && weight) b->p->bufs[g].param = b->p->bufs[of].param;
    return g;
}

static Op *emit(Back *b, OpKind kind, const Op *forward, int in0, int in1, int out) {
    Op *op = program_op(b->p, kind, forward->path);
    op->attr = forward->attr;
    op->region = forward->region;
    op->in[0] = in0;
    op->in[1] = in1;
    op->out[0] = out;
    op_cost(b->p, op);
    return op;
}

/* `g` is a contribution to the gradient of `of`; the second and later ones are added up. */
static void contribute(Back *b, const Op *forward, int of, int g) {
    Program *p = b->p;
    int sum, before = b->grad[of];
    if (before == NO_BUF) {
        b->grad[of] = g;
        return;
    }
    rename_buf(p, before, "part");
    if (g != before) rename_buf(p, g, "more");
    sum = grad_buf(b, of);
    if (p->failed) return;
    Op *op = emit(b, OP_add, forward, before, g, sum);
    memset(&op->attr, 0, sizeof op->attr);
    b->grad[of] = sum;
}

/* One op dx = kind(in0, in1) if x wants a gradient. */
static void unary(Back *b, OpKind kind, const Op *f, int x, int in0, int in1) {
    if (!b->wanted[x]) return;
    int g = grad_buf(b, x);
    emit(b, kind, f, in0, in1, g);
    contribute(b, f, x, g);
}

/* The gradient before the activation that *f applies, and takes off *f: that has a gradient op of its own. */
static int through_fused(Back *b, Op *f, int dy) {
    ActAttr *fused = attr_fused(f->kind, &f->attr), act = *fused;
    memset(fused, 0, sizeof *fused);
    if (act.act == ACT_NONE) return dy;
    int g = grad_buf(b, f->out[0]);
    rename_buf(b->p, g, "pre"); /* the gradient of what the activation was given, which never exists */
    Op *op = emit(b, OP_act_dx, f, dy, f->out[0], g);
    memset(&op->attr, 0, sizeof op->attr);
    op->attr.act = act;
    return g;
}

/* conv2d and linear: through the fused activation, then dw (x may die with it), then dx. */
static void product(Back *b, const Op *forward, OpKind dx, OpKind dw) {
    Op plain = *forward;
    const Op *f = &plain;
    int dy = through_fused(b, &plain, b->grad[f->out[0]]), w = b->leaf[f->in[1]], bias = f->in[2];
    int gb = bias != NO_BUF && b->wanted[bias] ? grad_buf(b, bias) : NO_BUF;
    if (b->wanted[w]) {
        int g = grad_buf(b, w);
        Op *op = emit(b, dw, f, f->in[0], dy, g);
        op->out[1] = gb;
        op_cost(b->p, op);
        contribute(b, f, w, g);
    } else if (gb != NO_BUF) {
        memset(&emit(b, OP_bias_db, f, dy, NO_BUF, gb)->attr, 0, sizeof(Attr));
    }
    if (gb != NO_BUF) contribute(b, f, bias, gb);
    unary(b, dx, f, f->in[0], dy, f->in[1]);
}

/* A factor has a gradient that reads nothing but dy: the same factor times it. */
static void act_back(Back *b, const Op *forward, int dy) {
    Op f = *forward;
    int x = f.in[0];
    if (f.attr.act.act != ACT_SCALE) {
        unary(b, OP_act_dx, &f, x, dy, act_saves_output(f.attr.act.act) ? f.out[0] : x);
        return;
    }
    f.attr.act.high = 0;
    unary(b, OP_act, &f, x, dy, NO_BUF);
}

static void maxpool_back(Back *b, const Op *forward, int dy) {
    Op f = *forward;
    dy = through_fused(b, &f, dy);
    unary(b, OP_maxpool_dx, &f, f.in[0], dy, f.out[1]);
}

static void loss(Back *b, const Op *f, OpKind kind) {
    int state = b->p->loss_scaling ? program_state(b->p) : NO_BUF;
    if (!b->wanted[f->in[0]] || b->p->failed) return;
    int g = grad_buf(b, f->in[0]);
    Op *op = emit(b, kind, f, f->in[0], f->in[1], g);
    op->in[2] = state;
    op->in[3] = f->in[2];
    op->in[4] = f->out[1];
    op_cost(b->p, op);
    contribute(b, f, f->in[0], g);
}

static void view_back(Back *b, const Op *f, int dy) {
    if (!b->wanted[f->in[0]]) return;
    int g = grad_buf(b, f->in[0]);
    if (b->p->failed) return;
    b->p->bufs[g].alias = program_root(b->p, dy);
    emit(b, OP_view, f, dy, NO_BUF, g);
    contribute(b, f, f->in[0], g);
}

/* The gradient of a factor is dy times the other one. */
static void mul_back(Back *b, const Op *f, int dy) {
    for (int k = 0; k < 2; k++) unary(b, OP_mul, f, f->in[k], dy, f->in[1 - k]);
}

/* Of a sum dy itself, of a product dy times the other factor. */
static void broadcast_back(Back *b, const Op *f, int dy) {
    int x = f->in[0], s = f->in[1];
    bool add = f->attr.broadcast.add;
    unary(b, OP_broadcast_ds, f, s, dy, add ? NO_BUF : x);
    if (!add) unary(b, OP_broadcast, f, x, dy, s);
    else if (b->wanted[x]) contribute(b, f, x, dy);
}

/* The same angles the other way. */
static void rotary_back(Back *b, const Op *forward, int dy) {
    Op f = *forward;
    f.attr.rotary.back = !f.attr.rotary.back;
    unary(b, OP_rotary, &f, f.in[0], dy, NO_BUF);
}

/* What was laid side by side is cut apart again. */
static void concat_back(Back *b, const Op *forward, int dy) {
    Op f = *forward;
    for (int k = 0; k < OP_IN && f.in[k] != NO_BUF; k++) {
        unary(b, OP_slice, &f, f.in[k], dy, NO_BUF);
        f.attr.axis.start += b->p->bufs[f.in[k]].shape.dim[f.attr.axis.axis];
    }
}

/* All of rnn's gradients come from one walk back in time. */
static void rnn_back(Back *b, const Op *f, int dy) {
    int of[5];
    bool any = false;
    for (int k = 0; k < 5; k++) {
        of[k] = f->in[k] == NO_BUF ? NO_BUF : b->leaf[f->in[k]];
        any |= of[k] != NO_BUF && b->wanted[of[k]];
    }
    if (!any) return;
    int g[5], y = f->out[0];
    for (int k = 0; k < 5; k++) g[k] = of[k] != NO_BUF && b->wanted[of[k]] ? grad_buf(b, of[k]) : NO_BUF;
    Op *op = emit(b, OP_rnn_dx, f, dy, f->in[0], g[0]);
    const int in[] = {f->in[1], f->in[2], y, f->out[1]};
    memcpy(op->in + 2, in, sizeof in);
    memcpy(op->out, g, sizeof g);
    op_cost(b->p, op);
    for (int k = 0; k < 5; k++)
        if (g[k] != NO_BUF) contribute(b, f, of[k], g[k]);
}

/* All of attention's gradients come from one op, wanted or not. */
static void attention_back(Back *b, const Op *f, int dy) {
    const int *of = f->in, in[] = {of[1], of[2], f->out[0], f->out[1], of[3]};
    int g[3];
    bool any = false;
    for (int k = 0; k < 3; k++) any |= of[k] != NO_BUF && b->wanted[of[k]];
    if (!any) return;
    for (int k = 0; k < 3; k++) g[k] = of[k] == NO_BUF ? NO_BUF : grad_buf(b, of[k]);
    Op *op = emit(b, OP_attention_dx, f, dy, of[0], g[0]);
    memcpy(op->in + 2, in, sizeof in);
    memcpy(op->out, g, sizeof g);
    op_cost(b->p, op);
    for (int k = 0; k < 3; k++)
        if (of[k] != NO_BUF && b->wanted[of[k]]) contribute(b, f, of[k], g[k]);
}

/* One op dw = kind(in0, in1) if the parameter is trained. */
static void parameter(Back *b, OpKind kind, const Op *f, int w, int in0, int in1) {
    unary(b, kind, f, b->leaf[w], in0, in1);
}

/* The gradient with respect to the input is a convolution, the one with respect to w has the roles of x and dy
 * exchanged. */
static void conv_transpose_back(Back *b, const Op *f, int dy) {
    int bias = f->in[2];
    parameter(b, OP_conv2d_dw, f, f->in[1], dy, f->in[0]);
    if (bias != NO_BUF) unary(b, OP_bias_db, f, bias, dy, NO_BUF);
    unary(b, OP_conv2d, f, f->in[0], dy, f->in[1]);
}

/* A buffer for dw or db of a normalisation: the parameter's gradient, or, where only dx needs the sum, a temporary. */
static int norm_sum(Back *b, const Op *f, int param, const char *name) {
    if (param != NO_BUF && b->wanted[param]) return grad_buf(b, param);
    Shape channels = shape1(b->p->bufs[f->in[0]].shape.dim[f->attr.norm.axis]);
    return program_buf(b->p, CAT_ACTIVATION_GRADIENTS, channels, DT_F32, "%s.%s", b->p->bufs[f->out[0]].name, name);
}

/* The sums dw and db, which batch normalisation needs for dx, too; the others make them for trained parameters only. */
static void norm_back(Back *b, const Op *f, int dy, OpKind dx) {
    int x = f->in[0], w = f->in[1], bias = f->in[2], mean = f->out[1], istd = f->out[2], sums[2] = {NO_BUF, NO_BUF};
    bool batch = f->kind == OP_batchnorm, needed = batch && b->wanted[x];
    bool trained[2] = {w != NO_BUF && b->wanted[w], bias != NO_BUF && b->wanted[bias]};
    if (needed || trained[0] || trained[1]) {
        sums[0] = norm_sum(b, f, w, "dw");
        if (needed || trained[1]) sums[1] = norm_sum(b, f, bias, "db");
        Op *op = emit(b, OP_norm_dw, f, dy, x, sums[0]);
        op->in[2] = mean;
        op->in[3] = istd;
        op->out[1] = sums[1];
        op_cost(b->p, op);
    }
    if (trained[0]) contribute(b, f, w, sums[0]);
    if (trained[1]) contribute(b, f, bias, sums[1]);
    if (!b->wanted[x] || b->p->failed) return;
    int g = grad_buf(b, x), in[OP_IN] = {dy, x, w, mean, istd, sums[0], sums[1], NO_BUF};
    Op *op = emit(b, dx, f, dy, x, g);
    memcpy(op->in, in, (batch ? 7 : 5) * sizeof *in);
    op_cost(b->p, op);
    contribute(b, f, x, g);
}

static void prelu_back(Back *b, const Op *f, int dy) {
    int x = f->in[0], w = f->in[1];
    parameter(b, OP_prelu_dw, f, w, dy, x);
    if (!b->wanted[x]) return;
    int g = grad_buf(b, x);
    Op *op = emit(b, OP_prelu_dx, f, dy, x, g);
    op->in[2] = w;
    op_cost(b->p, op);
    contribute(b, f, x, g);
}

static void add_rows_back(Back *b, const Op *f, int dy) {
    parameter(b, OP_add_rows_dw, f, f->in[1], dy, NO_BUF);
    if (b->wanted[f->in[0]]) contribute(b, f, f->in[0], dy);
}

/* Each row of ops.def with a gradient. dy is present except for losses. */
static void differentiate(Back *b, const Op *f) {
    int x = f->in[0], y = f->out[0], dy = b->grad[y];
    switch (f->kind) {
    case OP_conv2d: product(b, f, OP_conv2d_dx, OP_conv2d_dw); break;
    case OP_linear: product(b, f, OP_linear_dx, OP_linear_dw); break;
    case OP_act: act_back(b, f, dy); break;
    case OP_maxpool: maxpool_back(b, f, dy); break;
    case OP_avgpool: unary(b, OP_avgpool_dx, f, x, dy, NO_BUF); break;
    case OP_adaptive_avgpool: unary(b, OP_adaptive_avgpool_dx, f, x, dy, NO_BUF); break;
    case OP_dropout: unary(b, OP_dropout_dx, f, x, dy, f->in[1]); break;
    case OP_nhwc_to_nchw: unary(b, OP_nhwc_to_nchw_dx, f, x, dy, NO_BUF); break;
    case OP_nhwc_to_nchw_dx: unary(b, OP_nhwc_to_nchw, f, x, dy, NO_BUF); break;
    case OP_cast: unary(b, OP_cast, f, x, dy, NO_BUF); break;
    case OP_view: view_back(b, f, dy); break;
    case OP_add:
        for (int k = 0; k < 2; k++)
            if (b->wanted[f->in[k]]) contribute(b, f, f->in[k], dy);
        break;
    case OP_mul: mul_back(b, f, dy); break;
    case OP_broadcast: broadcast_back(b, f, dy); break;
    case OP_rotary: rotary_back(b, f, dy); break;
    case OP_concat: concat_back(b, f, dy); break;
    case OP_slice: unary(b, OP_slice_dx, f, x, dy, NO_BUF); break;
    case OP_slice_dx: unary(b, OP_slice, f, x, dy, NO_BUF); break;
    case OP_rnn: rnn_back(b, f, dy); break;
    case OP_attention: attention_back(b, f, dy); break;
    case OP_conv_transpose: conv_transpose_back(b, f, dy); break;
    case OP_batchnorm: norm_back(b, f, dy, OP_batchnorm_dx); break;
    case OP_norm: norm_back(b, f, dy, OP_norm_dx); break;
    case OP_prelu: prelu_back(b, f, dy); break;
    case OP_softmax: unary(b, OP_softmax_dx, f, x, dy, y); break;
    case OP_embedding: parameter(b, OP_embedding_dw, f, f->in[1], dy, x); break;
    case OP_add_rows: add_rows_back(b, f, dy); break;
    case OP_upsample: unary(b, OP_upsample_dx, f, x, dy, NO_BUF); break;
    case OP_cross_entropy: loss(b, f, OP_cross_entropy_dx); break;
    case OP_element_loss: loss(b, f, OP_element_loss_dx); break;
    default: b->p->failed = true; /* a forward op without a gradient rule: the op tests reach every one of them */
    }
}

static void mark(Back *b, int forward_ops) {
    Program *p = b->p;
    for (int i = 0; i < b->n; i++) {
        b->grad[i] = NO_BUF;
        b->wanted[i] = p->bufs[i].param >= 0 && !p->bufs[i].frozen;
        b->leaf[i] = i;
    }
    for (int i = 0; i < forward_ops; i++) {
        const Op *op = &p->ops[i];
        bool wanted = false;
        EACH_IN(op, k) wanted |= b->wanted[op->in[k]];
        EACH_OUT(op, k) b->wanted[op->out[k]] = wanted;
        if (op->kind == OP_cast && p->bufs[op->in[0]].category == CAT_WEIGHTS) b->leaf[op->out[0]] = op->in[0];
    }
}

int pass_backward(Program *p, Compile *c) {
    if (c->settings->eval) return OK;
    int forward_ops = p->n_ops;
    size_t n = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    Back b = {p, scratch_new(s, n, sizeof(int)), scratch_new(s, n, sizeof(bool)), scratch_new(s, n, sizeof(int)),
              p->n_bufs};
    if (s->failed) return OK;
    mark(&b, forward_ops);
    for (int i = forward_ops - 1; i >= 0 && !p->failed; i--) {
        const Op f = p->ops[i];
        bool is_loss = p->bufs[f.out[0]].loss, weight_copy = b.leaf[f.out[0]] != f.out[0];
        if (!weight_copy && (is_loss || b.grad[f.out[0]] != NO_BUF)) differentiate(&b, &f);
    }
    if (p->calls != NO_BUF) program_op(p, OP_count_call, "")->out[0] = p->calls;
    p->body_end = p->n_ops;
    for (int i = 0; i < p->n_params && !p->failed; i++) p->params[i].grad = b.grad[p->params[i].weight];
    return OK;
}
