/* nhwc_to_nchw.h: the ops nhwc_to_nchw and nhwc_to_nchw_dx on every device. For each sample they transpose the
 * channels-last image (H W, C) to PyTorch's (C, H W), or back. */
#ifndef MT_NHWC_TO_NCHW_H
#define MT_NHWC_TO_NCHW_H

#include "kernel.h"

/* The matrix (rows, cols) that is read, one per sample. */
typedef struct Rows { int64_t samples, rows, cols; } Rows;

/* ERR_INTERNAL where the operands are not of one type, or none is an image. */
static inline int rows_read(const KArgs *a, Rows *r, Err *e) {
    const bool back = a->kind == OP_nhwc_to_nchw_dx;
    const View *image = back ? &a->out[0] : &a->in[0]; /* or a flattened one, whose order says (C, H, W) */
    const int64_t *chw = image->order[0] ? image->order : &image->shape.dim[1];
    const int64_t c = chw[0], hw = chw[1] * chw[2];
    r->samples = r->rows = r->cols = 0;
    if (a->in[0].dtype != a->out[0].dtype)
        return err_set(e, ERR_INTERNAL, "%s: from %s to %s; both must be of one type", op_info(a->kind)->name,
                       dtype_name(a->in[0].dtype), dtype_name(a->out[0].dtype));
    if (!image->order[0] && !(image->channels_last && image->shape.rank == 4))
        return err_set(e, ERR_INTERNAL, "%s: the operand is neither a channels-last image nor a flattened one",
                       op_info(a->kind)->name);
    r->samples = image->count / (c * hw);
    r->rows = back ? c : hw;
    r->cols = back ? hw : c;
    return OK;
}

#endif
