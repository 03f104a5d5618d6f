/* Mixed precision. It works on the forward program, before the backward pass: the gradient of a cast is a cast back, so
 * the backward ops get the right types by themselves.
 *
 *   amp_*            autocast with PyTorch's lists: LOW ops (convolutions, matrix products) read 16-bit copies of their
 *                    inputs, WIDE ops (losses) fp32 copies, SAME ops run in the widest type they are given. Weights stay
 *                    fp32; a 16-bit copy is made once per micro-batch and shared. Biases are read as they are.
 *   master_*, *16    weights and activations are 16-bit; losses compute in fp32 inside. master_*: the update pass adds
 *                    an fp32 master copy of each parameter.
 *   in both of these layers that a script keeps in fp32 (layer:float()) keep fp32 weights, which ops read as under autocast.
 *   in all of them   operands that ops.def marks FP32 stay fp32: parameters and statistics of normalisation.
 *   tf32             types as in fp32; the products' attributes say that a GPU may compute them in TF32.
 *   a loss scale, of the precision or of a grad_scaler that is given: sets p->loss_scaling, on which the backward and
 *   update passes act. */
#include <assert.h>

#include "base/mem.h"
#include "rewrite.h"

/* A buffer's casts: 1 + the buffer that holds it in that type; 0: there is none yet. */
typedef struct Cast { int to[DT_COUNT]; } Cast;

typedef struct Casts {
    Program *p;
    Cast *of; /* [cap], by buffer */
    int cap;
} Casts;

/* `buf` in type `type` for op `user`: the buffer itself, or the output of its cast, which is emitted here at the first
 * call. */
static int cast_to(Casts *c, int buf, DType type, const Op *user) {
    if (c->p->bufs[buf].dtype == type) return buf;
    if (buf < c->cap && c->of[buf].to[type]) return c->of[buf].to[type] - 1;
    bool weight = c->p->bufs[buf].category == CAT_WEIGHTS; /* or a part of one */
    int to = program_like(c->p, buf, weight ? CAT_WEIGHTS : CAT_ACTIVATIONS, c->p->bufs[buf].shape, type,
                          dtype_name(type));
    Op *op = program_op(c->p, OP_cast, user->path);
    op->region = user->region;
    op->in[0] = buf;
    op->out[0] = to;
    if (c->p->failed || !mem_grow(&c->of, &c->cap, c->p->n_bufs, sizeof *c->of)) {
        c->p->failed = true;
        return buf;
    }
    op_cost(c->p, op);
    c->of[buf].to[type] = to + 1;
    return to;
}

/* Is input k read in the type that the op computes in? */
static bool follows(const Program *p, const Op *op, int k) {
    const OpInfo *info = op_info(op->kind);
    return !info->in[k].fp32 && !info->in[k].as_is && dtype_is_float(p->bufs[op->in[k]].dtype);
}

/* The type of the inputs that follow; fp32 where they differ. */
static DType widest(const Program *p, const Op *op) {
    DType type = DT_COUNT;
    EACH_IN(op, k) {
        if (!follows(p, op, k)) continue;
        DType t = p->bufs[op->in[k]].dtype;
        type = type == DT_COUNT || type == t ? t : DT_F32;
    }
    return type;
}

static void set_type(Program *p, int buf, DType type) {
    p->bufs[buf].dtype = type;
    program_resize(p, buf);
}

static void cast_op(Casts *c, Op op, DType low) {
    Program *p = c->p;
    const OpInfo *info = op_info(op.kind);
    const Autocast list = op_autocast(op.kind, &op.attr);
    DType type = list == AUTOCAST_LOW ? low : list == AUTOCAST_WIDE ? DT_F32 : widest(p, &op);
    EACH_IN(&op, k)
        if (follows(p, &op, k)) op.in[k] = cast_to(c, op.in[k], type, &op);
    EACH_OUT(&op, k)
        if (!info->out[k].fp32 && p->bufs[op.out[k]].dtype == DT_F32) set_type(p, op.out[k], type);
    Op *out = rewrite_put(p, &op);
    op_cost(p, out);
}

static void autocast(Program *p, DType low) {
    Casts c = {p, NULL, 0};
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) cast_op(&c, *op, low);
    rewrite_end(&r);
    mem_free(c.of);
}

/* Ops that would read a parameter which stays fp32 read a 16-bit copy of it, one for all of them, as under autocast. */
static void cast_wide(Program *p, DType low) {
    Casts c = {p, NULL, 0};
    Rewriter r;
    for (const Op *old = rewrite_begin(&r, p); old; old = rewrite_next(&r)) {
        Op op = *old;
        EACH_IN(&op, k)
            if (p->bufs[op.in[k]].wide && follows(p, &op, k)) op.in[k] = cast_to(&c, op.in[k], low, &op);
        rewrite_put(p, &op);
    }
    rewrite_end(&r);
    mem_free(c.of);
}

/* All fp32 buffers become 16-bit, except those that some op wants in fp32 in every precision, and layers that stay fp32. */
static void narrow(Program *p, DType type, Scratch *s) {
    bool *wide = scratch_new(s, (size_t)p->n_bufs, sizeof *wide);
    if (!wide) return;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        const OpInfo *info = op_info(op->kind);
        EACH_IN(op, k) wide[op->in[k]] |= info->in[k].fp32;
        EACH_OUT(op, k) wide[op->out[k]] |= info->out[k].fp32;
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].dtype == DT_F32 && !wide[b] && !p->bufs[b].wide) set_type(p, b, type);
    cast_wide(p, type);
    for (int i = 0; i < p->n_ops; i++) op_cost(p, &p->ops[i]);
}

/* The default eps of RMSNorm (below 0 until now) is the machine epsilon of its input's type. */
static void set_epsilons(Program *p) {
    for (int i = 0; i < p->n_ops; i++) {
        NormAttr *a = &p->ops[i].attr.norm;
        if (p->ops[i].kind == OP_norm && a->eps < 0) a->eps = dtype_epsilon(p->bufs[p->ops[i].in[0]].dtype);
    }
}

static void allow_tf32(Program *p) {
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind == OP_conv2d || p->ops[i].kind == OP_conv_transpose) p->ops[i].attr.conv.tf32 = 1;
        if (p->ops[i].kind == OP_linear || p->ops[i].kind == OP_linear_q) p->ops[i].attr.linear.tf32 = 1;
        if (p->ops[i].kind == OP_einsum) p->ops[i].attr.einsum.tf32 = 1;
        if (p->ops[i].kind == OP_rnn) p->ops[i].attr.rnn.tf32 = 1;
    }
}

int pass_precision(Program *p, Compile *c) {
    const Settings *s = c->settings;
    const PrecisionInfo *info = precision_info(s->precision);
    assert(p->forward_end == p->n_ops); /* before the backward pass */
    if (info->autocast) autocast(p, info->low);
    else if (info->weights != DT_F32) narrow(p, info->weights, &c->scratch);
    if (p->failed) return OK;
    set_epsilons(p);
    if (s->precision == PREC_TF32) allow_tf32(p);
    p->masters = info->master && !s->eval;
    p->loss_scaling = settings_scale_loss(s) && !s->eval;
    return OK;
}
