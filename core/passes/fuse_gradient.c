/* Fusion in the backward pass. If a product's dx is the only gradient that an activation's gradient (act_dx) is
 * computed from, the product multiplies by f'(s) itself, and the two gradients never exist beside each other:
 *
 *   conv2d_dx y.grad;  act_dx y.grad.pre = y.grad f'(s)              ->  conv2d_dx y.grad.pre = ... f'(s)
 *   conv2d_dw w.grad b.grad = x y.grad.pre                               conv2d_dw w.grad, and b.grad from conv2d_dx
 *
 * Views may lie between the two; then s is read through the forward pass's own view of it. A sum of gradients between
 * them forbids the fusion. The product also makes the bias gradient, which is the sum of what it writes anyway: that
 * saves one more pass over it. */
#include <assert.h>
#include <string.h>

#include "uses.h"

typedef struct Fuse {
    Uses uses;
    Program *p;
    int *view, *next_view;   /* by root: the forward pass's first view of it; by op: the next one; or NO_OP */
    int *alias, *next_alias; /* by root: a buffer that lies in it; by buffer: another one in the same; or NO_BUF */
    int *dw;                 /* by buffer: the first product that makes dw of it as its dy, or NO_OP */
} Fuse;

/* Puts `buf` into the storage of `root`, and into its list. */
static void put_alias(Fuse *f, int buf, int root) {
    f->p->bufs[buf].alias = root;
    f->next_alias[buf] = f->alias[root];
    f->alias[root] = buf;
}

static void index_program(Fuse *f) {
    const Program *p = f->p;
    for (int b = 0; b < p->n_bufs; b++) {
        f->view[b] = f->dw[b] = NO_OP;
        f->alias[b] = NO_BUF;
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].alias != NO_BUF) put_alias(f, b, p->bufs[b].alias);
    for (int i = p->n_ops - 1; i >= 0; i--) {
        const Op *op = &p->ops[i];
        if (op->kind == OP_conv2d_dw || op->kind == OP_linear_dw) f->dw[op->in[1]] = i;
        if (op->kind != OP_view || i >= p->forward_end) continue;
        int root = program_root(p, op->out[0]);
        f->next_view[i] = f->view[root];
        f->view[root] = i;
    }
}

/* The only op that reads the dx of product `i`, directly or through views; NO_OP: there is none. *maker: what makes its
 * input, the product or a view. */
static int next_after(const Fuse *f, int i, int *maker) {
    int reader;
    for (*maker = i; (reader = uses_reader(&f->uses, f->p->ops[*maker].out[0])) != NO_OP; *maker = reader)
        if (f->p->ops[reader].kind != OP_view) return reader;
    return NO_OP;
}

static bool lies_as(const Buf *a, const Buf *b) {
    return shape_equal(&a->shape, &b->shape) && a->layout == b->layout && !memcmp(a->order, b->order, sizeof a->order);
}

/* A buffer with the elements of `saved` that lies as dx does: `saved` itself or a forward view of the same storage;
 * NO_BUF: there is none. */
static int saved_as(const Fuse *f, int saved, int dx) {
    const Program *p = f->p;
    if (lies_as(&p->bufs[saved], &p->bufs[dx])) return saved;
    for (int i = f->view[program_root(p, saved)]; i != NO_OP; i = f->next_view[i])
        if (lies_as(&p->bufs[p->ops[i].out[0]], &p->bufs[dx])) return p->ops[i].out[0];
    return NO_BUF;
}

/* `maker` (see next_after) makes what the act_dx made. If it is a view, that lies where the act_dx's input does. */
static void take_over(Fuse *f, int maker, int act_dx) {
    Program *p = f->p;
    int dx = p->ops[act_dx].out[0], root = program_root(p, p->ops[act_dx].in[0]);
    p->ops[maker].out[0] = dx;
    uses_drop(&f->uses, act_dx);
    if (p->ops[maker].kind != OP_view) return;
    for (int b = f->alias[dx], next; b != NO_BUF; b = next) {
        next = f->next_alias[b];
        put_alias(f, b, root);
    }
    f->alias[dx] = NO_BUF;
    put_alias(f, dx, root);
}

/* The product makes the bias gradient of the layer before, if that is exactly the sum of the product's dx. */
static void take_bias(const Fuse *f, int product) {
    Program *p = f->p;
    int dx = p->ops[product].out[0];
    if (f->dw[dx] == NO_OP || (p->bufs[dx].shape.rank == 4 && p->bufs[dx].layout != LAYOUT_NHWC)) return;
    Op *op = &p->ops[f->dw[dx]];
    p->ops[product].out[1] = op->out[1];
    op->out[1] = NO_BUF;
    op_cost(p, op);
}

static void fuse_product(Fuse *f, int i) {
    Program *p = f->p;
    Op *op = &p->ops[i];
    bool forward = op->kind == OP_conv2d; /* a transposed convolution's dx: it applies activations, not their gradients */
    ActAttr *fused = forward ? NULL : attr_fused(op->kind, &op->attr);
    int maker, act_dx = fused ? next_after(f, i, &maker) : NO_OP;
    if (act_dx == NO_OP || p->ops[act_dx].kind != OP_act_dx) return;
    int saved = saved_as(f, p->ops[act_dx].in[1], op->out[0]);
    if (saved == NO_BUF) return;
    assert(!fused->act && op->in[2] == NO_BUF);
    *fused = p->ops[act_dx].attr.act;
    op->in[2] = saved; /* f->uses does not know of it: it is asked about gradients only */
    take_over(f, maker, act_dx);
    take_bias(f, i);
    op_cost(p, op);
}

int pass_fuse_gradient(Program *p, Compile *c) {
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops;
    assert(p->body_end == p->n_ops); /* before the update */
    Scratch *s = &c->scratch;
    Fuse f = {.p = p, .view = scratch_new(s, bufs, sizeof(int)), .next_view = scratch_new(s, ops, sizeof(int)),
              .alias = scratch_new(s, bufs, sizeof(int)), .next_alias = scratch_new(s, bufs, sizeof(int)),
              .dw = scratch_new(s, bufs, sizeof(int))};
    if (!uses_open(&f.uses, p, s)) return OK;
    index_program(&f);
    for (int i = p->forward_end; i < p->n_ops; i++)
        if (!f.uses.dropped[i]) fuse_product(&f, i);
    uses_close(&f.uses);
    return OK;
}
