/* PReLU: one slope for all, or one for each channel (dimension 1). */
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

int layer_prelu_shape(Network *n, Layer *l, Err *e) {
    int64_t count = options_int(&l->options, "num_parameters");
    char text[SHAPE_TEXT];
    int code = layer_expect_range(l, "num_parameters", 1, INT32_MAX, e);
    if (code) return code;
    if (count > 1 && l->in.dim[1] != count)
        return layer_error(l, e, "expected %" PRId64 " channels of (N, C), (N, C, L) or (N, C, H, W), found %s", count,
                           shape_text(&l->in, text));
    Param like = {.shape = shape1(count), .init = INIT_CONSTANT, .bound = options_float(&l->options, "init")};
    if (count > 1 && l->in.rank == 2) memcpy(like.order, l->in_order, sizeof like.order);
    if (count > 1) layer_take_line(l);
    return network_tensor(n, l, "weight", &like, e);
}

int layer_prelu_forward(Lower *lw, const Layer *l, const int *in) { return lower_layer(lw, OP_prelu, l, in, NULL); }
