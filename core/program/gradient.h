/* gradient.h: what the gradient rules of ops (rule.h) emit ops with, while the backward pass walks over the forward
 * ops, the last one first. Where host memory runs out, p->failed is set, and what is returned can still be used. */
#ifndef MT_GRADIENT_H
#define MT_GRADIENT_H

#include "program.h"

typedef struct Gradients {
    Program *p;
    int *grad;    /* by forward buffer: its gradient so far, or NO_BUF */
    bool *wanted; /* by forward buffer: it depends on a parameter that is trained */
    int *leaf;    /* by forward buffer: the parameter, or part of one, that it is a cast of; else the buffer itself */
} Gradients;

/* Is the operand there, and does it want a gradient? */
static inline bool gradient_wanted(const Gradients *g, int buf) { return buf != NO_BUF && g->wanted[buf]; }

/* A new buffer for the gradient of `of`, with its shape, type and layout. */
int gradient_buf(Gradients *g, int of);
/* The same where `of` wants a gradient, else NO_BUF. */
int gradient_buf_wanted(Gradients *g, int of);
/* A new op with f's attributes and path; its operands are absent. */
Op *gradient_op(Gradients *g, OpKind kind, const Op *f);
/* `buf`, of the shape of `of`, is a share of the gradient of `of`, which f reads. Emits the sum of several shares. */
void gradient_add(Gradients *g, const Op *f, int of, int buf);
/* If `of` wants a gradient: emits an op of that kind with f's attributes, whose inputs 0 and 1 are in0 and in1 (may be
 * NO_BUF) and whose output 0 is a share of the gradient. */
void gradient_by(Gradients *g, OpKind kind, const Op *f, int of, int in0, int in1);
/* dy itself is a share of the gradient of `of`, if it wants one. */
void gradient_pass(Gradients *g, const Op *f, int of, int dy);
/* dy: the gradient of the output of *f -> the gradient before the activation that *f applies. Emits the activation's
 * gradient op, if there is an activation, and takes the activation off *f. The kind of *f can have one. */
int gradient_through_act(Gradients *g, Op *f, int dy);

#endif
