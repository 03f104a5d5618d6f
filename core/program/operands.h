/* operands.h: what kernels assert of an op when they start, as predicates. The verifier (check.c) and the ops' rules
 * have made sure of all of it: an assertion that fails is a bug of this program, never a user's mistake. Shared with
 * .cu files. */
#ifndef MT_OPERANDS_H
#define MT_OPERANDS_H

#include <assert.h>

#include "kernel.h"

/* fp32, or absent */
static inline bool operand_is_fp32(const View *v) { return !v->count || v->dtype == DT_F32; }
static inline bool operand_is_float(const View *v) { return !v->count || dtype_is_float(v->dtype); }
/* an image (N, C, H, W) that lies as N, H, W, C */
static inline bool operand_is_image(const View *v) { return v->shape.rank == 4 && v->channels_last; }
/* `n` numbers in fp32, or absent */
static inline bool operand_is_vector(const View *v, int64_t n) {
    return !v->count || (v->count == n && v->dtype == DT_F32);
}

/* Operand k of OP_IN + OP_OUT: the inputs, then the outputs */
static inline const View *operand_at(const KArgs *a, int k) { return k < OP_IN ? &a->in[k] : &a->out[k - OP_IN]; }

/* Do features lie innermost in all operands, as in rows and in images that lie as N, H, W, C? */
static inline bool operands_are_rows(const KArgs *a) {
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const View *v = operand_at(a, k);
        if (v->count && v->shape.rank == 4 && !v->channels_last) return false;
    }
    return true;
}

/* Do no bytes belong to both? */
static inline bool operands_apart(const View *a, const View *b) {
    const uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x + (size_t)a->count * dtype_size(a->dtype) <= y || y + (size_t)b->count * dtype_size(b->dtype) <= x;
}

/* Is it there if it must be, and does it start at a multiple of its element's size? */
static inline bool operand_is_ready(const View *v, const OperandInfo *info) {
    if (!v->count) return info->optional && !v->data;
    return v->data && (uintptr_t)v->data % dtype_size(v->dtype) == 0 && v->count == shape_elements(&v->shape);
}

/* All operands are ready, and nothing is written where something else is read or written; output 0 may take over the
 * storage of the input that ops.def names, element by element. */
static inline bool operands_are_ready(const KArgs *a) {
    const OpInfo *info = op_info(a->kind);
    bool ready = true;
    for (int k = 0; k < info->n_in; k++) ready = ready && operand_is_ready(&a->in[k], &info->in[k]);
    for (int k = 0; k < info->n_out; k++) {
        const View *out = &a->out[k];
        ready = ready && operand_is_ready(out, &info->out[k]);
        for (int i = 0; i < info->n_in && out->count; i++)
            ready = ready && (!a->in[i].count || operands_apart(out, &a->in[i]) ||
                              (k == 0 && i == info->inplace && out->data == a->in[i].data));
        for (int i = 0; i < k && out->count; i++)
            ready = ready && (!a->out[i].count || operands_apart(out, &a->out[i]));
    }
    return ready;
}

/* Is the workspace there, and does it start at a multiple of the device's alignment? */
static inline bool workspace_is_ready(const KArgs *a, size_t alignment) {
    return !a->workspace_bytes || (a->workspace && (uintptr_t)a->workspace % alignment == 0);
}

#endif
