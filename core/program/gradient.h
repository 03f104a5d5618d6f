/* gradient.h: what the gradient rules of ops (rule.h) build with while the backward pass walks the forward ops, last
 * one first. Where host memory runs out, the program fails (p->failed) and what is returned may still be used. */
#ifndef MT_GRADIENT_H
#define MT_GRADIENT_H

#include "program.h"

typedef struct Gradients {
    Program *p;
    int *grad;    /* by forward buffer: its gradient so far, or NO_BUF */
    bool *wanted; /* by forward buffer: a parameter that is trained lies upstream */
    int *leaf;    /* by forward buffer: the parameter, or part of one, that it is a cast of, or itself */
} Gradients;

/* Is there such a buffer, and does it want a gradient? */
static inline bool gradient_wanted(const Gradients *g, int buf) { return buf != NO_BUF && g->wanted[buf]; }

/* A buffer for the gradient of `of`, with its shape and type. */
int gradient_buf(Gradients *g, int of);
/* The same where `of` wants a gradient, else NO_BUF. */
int gradient_buf_wanted(Gradients *g, int of);
/* An op with f's attributes and place in the network, its operands absent. */
Op *gradient_op(Gradients *g, OpKind kind, const Op *f);
/* `buf` is a share of the gradient of `of`, which f reads; shares are added up. */
void gradient_add(Gradients *g, const Op *f, int of, int buf);
/* If `of` wants a gradient: one op makes it, or a share of it, from in0 and in1 (may be NO_BUF). */
void gradient_by(Gradients *g, OpKind kind, const Op *f, int of, int in0, int in1);
/* dy itself is a share of the gradient of `of`, if it wants one. */
void gradient_pass(Gradients *g, const Op *f, int of, int dy);
/* The gradient before the activation that *f applies, which is taken off *f: that has a gradient op of its own. */
int gradient_through_act(Gradients *g, Op *f, int dy);

#endif
