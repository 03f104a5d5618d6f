/* conv_transpose.c: x w -> y here is dy w -> dx of a convolution's gradient. The bias is added after it. */
#include <string.h>

#include "bias.h"

/* The op of that gradient, without a bias */
static KArgs gradient(const KArgs *args) {
    KArgs plain = *args;
    plain.kind = OP_conv2d_dx;
    memset(&plain.conv_transpose.b, 0, sizeof plain.conv_transpose.b);
    return plain;
}

int k_cuda_conv_transpose_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    const KArgs plain = gradient(args);
    return k_cuda_conv2d_dx_prepare(&plain, limit, state, workspace, e);
}

int k_cuda_conv_transpose(const KArgs *args, Err *e) {
    const KArgs plain = gradient(args);
    const ActAttr none = {.act = ACT_NONE};
    int code = k_cuda_conv2d_dx(&plain, e);
    const View *y = &args->conv_transpose.y, *b = &args->conv_transpose.b;
    return code || !b->count ? code : bias_act(args, y, b, none, y, e);
}
