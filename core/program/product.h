/* product.h: the operands of a convolution or matrix product, and of its gradients, by their role in y = x w. */
#ifndef MT_PRODUCT_H
#define MT_PRODUCT_H

#include "kernel.h"

/* x is a gradient in dx ops, w in dw ops, y in both. */
typedef struct ProductOperands { const View *x, *w, *y; } ProductOperands;

/* Of conv2d, linear, and their gradients. */
static inline ProductOperands product_operands(const KArgs *a) {
    assert(a->kind == OP_conv2d || a->kind == OP_conv2d_dx || a->kind == OP_conv2d_dw || a->kind == OP_linear ||
           a->kind == OP_linear_dx || a->kind == OP_linear_dw);
    ProductOperands p = {&a->linear.x, &a->linear.w, &a->linear.y};
    if (a->kind == OP_conv2d_dx || a->kind == OP_linear_dx) {
        p.x = &a->linear_dx.dx;
        p.w = &a->linear_dx.w;
        p.y = &a->linear_dx.dy;
    } else if (a->kind == OP_conv2d_dw || a->kind == OP_linear_dw) {
        p.x = &a->linear_dw.x;
        p.w = &a->linear_dw.dw;
        p.y = &a->linear_dw.dy;
    }
    return p;
}

/* Is w fp32 and the other factor bf16, to which a kernel that can do so (ops.def's ROUNDED) rounds w as it reads it? */
static inline bool product_rounds_weight(const KArgs *a) {
    const bool reads = a->kind != OP_conv2d_dw && a->kind != OP_linear_dw;
    return reads && product_operands(a).w->dtype == DT_F32 && a->in[0].dtype == DT_BF16;
}

#endif
