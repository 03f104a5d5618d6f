/* product.h: the operands of a convolution or matrix product, and of its gradients, by their role in y = x w. */
#ifndef MT_PRODUCT_H
#define MT_PRODUCT_H

#include "kernel.h"

/* Which of them is it? */
static inline bool product_is_conv(OpKind k) { return k == OP_conv2d || k == OP_conv2d_dx || k == OP_conv2d_dw; }
static inline bool product_is_dx(OpKind k) { return k == OP_conv2d_dx || k == OP_linear_dx; }
static inline bool product_is_dw(OpKind k) { return k == OP_conv2d_dw || k == OP_linear_dw; }
static inline bool product_is_any(OpKind k) { return k == OP_conv2d || k == OP_linear || product_is_dx(k) || product_is_dw(k); }

/* x is a gradient in dx ops, w in dw ops, y in both. */
typedef struct ProductOperands { const View *x, *w, *y; } ProductOperands;

/* Of conv2d, linear, and their gradients. */
static inline ProductOperands product_operands(const KArgs *a) {
    assert(product_is_any(a->kind));
    ProductOperands p = {&a->linear.x, &a->linear.w, &a->linear.y};
    if (product_is_dx(a->kind)) {
        p.x = &a->linear_dx.dx;
        p.w = &a->linear_dx.w;
        p.y = &a->linear_dx.dy;
    } else if (product_is_dw(a->kind)) {
        p.x = &a->linear_dw.x;
        p.w = &a->linear_dw.dw;
        p.y = &a->linear_dw.dy;
    }
    return p;
}

/* Is w fp32 and the other factor bf16, to which a kernel that can do so (ops.def's ROUNDED) rounds w as it reads it? */
static inline bool product_rounds_weight(const KArgs *a) {
    return !product_is_dw(a->kind) && product_operands(a).w->dtype == DT_F32 && a->in[0].dtype == DT_BF16;
}

#endif
