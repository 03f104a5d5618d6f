/* Fusion in the backward pass: the product whose dx is all that an activation's gradient is computed from multiplies
 * by f'(s) itself, so that the gradient before the activation never exists beside the one behind it:
 *
 *   conv2d_dx y.grad;  act_dx y.grad.pre = y.grad f'(s)              ->  conv2d_dx y.grad.pre = ... f'(s)
 *   conv2d_dw w.grad b.grad = x y.grad.pre                               conv2d_dw w.grad, and b.grad from conv2d_dx
 *
 * Views may lie between; then s is read through the forward pass's own view of it. A sum of gradients or the border of
 * an nn.Checkpoint between the two keeps them apart. The bias gradient, the sum of what the product writes anyway, is
 * made there, too, which saves one more pass over it. */
#include <string.h>

#include "passes.h"

/* The op behind product `i` whose input 0 is the product's dx, read by nothing else and seen through views only;
 * *maker: the last op before it, the product or a view. */
static int next_behind(const Program *p, int i, int *maker) {
    int reader;
    for (*maker = i; (reader = program_reader(p, p->ops[*maker].out[0])) != NO_OP; *maker = reader)
        if (p->ops[reader].kind != OP_view) return reader;
    return NO_OP;
}

static bool stands_for(const Program *p, int saved, int buf, int like) {
    const Buf *a = &p->bufs[buf], *b = &p->bufs[like];
    return program_root(p, buf) == program_root(p, saved) && shape_equal(&a->shape, &b->shape) &&
           a->layout == b->layout && !memcmp(a->order, b->order, sizeof a->order);
}

/* `saved` as dx has its elements: itself or a forward view of the same storage; NO_BUF: there is none. */
static int saved_as(const Program *p, int saved, int dx) {
    if (stands_for(p, saved, saved, dx)) return saved;
    for (int i = 0; i < p->forward_end; i++) {
        const Op *op = &p->ops[i];
        if (op->kind == OP_view && stands_for(p, saved, op->out[0], dx)) return op->out[0];
    }
    return NO_BUF;
}

/* `maker` makes what the act_dx made. */
static void take_over(Program *p, int maker, int act_dx) {
    int dy = p->ops[act_dx].in[0], dx = p->ops[act_dx].out[0];
    p->ops[maker].out[0] = dx;
    if (p->ops[maker].kind == OP_view)
        for (int b = 0; b < p->n_bufs; b++)
            if (b == dx || p->bufs[b].alias == dx) p->bufs[b].alias = program_root(p, dy);
    program_drop(p, act_dx);
}

/* The bias gradient of the layer before, where that sums up exactly the product's dx. */
static void take_bias(Program *p, int product) {
    int dx = p->ops[product].out[0];
    if (p->bufs[dx].shape.rank == 4 && p->bufs[dx].layout != LAYOUT_NHWC) return;
    for (int i = product + 1; i < p->n_ops; i++) {
        Op *op = &p->ops[i];
        if ((op->kind != OP_conv2d_dw && op->kind != OP_linear_dw) || op->in[1] != dx) continue;
        p->ops[product].out[1] = op->out[1];
        op->out[1] = NO_BUF;
        op_cost(p, op);
        return;
    }
}

int pass_fuse_gradient(Program *p, const Settings *s, Err *e) {
    (void)s;
    for (int i = p->forward_end; i < p->n_ops; i++) {
        Op *op = &p->ops[i];
        bool forward = op->kind == OP_conv2d; /* which is how a transposed convolution's gradient is made */
        ActAttr *fused = forward ? NULL : attr_fused(op->kind, &op->attr);
        int maker, act_dx = fused ? next_behind(p, i, &maker) : NO_OP;
        if (act_dx == NO_OP || p->ops[act_dx].kind != OP_act_dx || p->ops[act_dx].region != op->region) continue;
        int saved = saved_as(p, p->ops[act_dx].in[1], op->out[0]);
        if (saved == NO_BUF) continue;
        *fused = p->ops[act_dx].attr.act;
        op->in[2] = saved;
        take_over(p, maker, act_dx);
        take_bias(p, i);
        op_cost(p, op);
    }
    return program_check(p, "fuse_gradient", e);
}
