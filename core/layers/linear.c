/* Linear: y = x w^T + b, w (O, I), x (N, I) or (N, T, I). After a flattened image w's columns are stored in the order
 * of its features. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

static int wrong_features(const Layer *l, int64_t expected, Err *e) {
    char text[SHAPE_TEXT];
    const int64_t *o = l->in_order;
    Shape seen = o[0] ? shape4(l->in.dim[0], o[0], o[1], o[2]) : l->in;
    return layer_error(l, e, "expected %" PRId64 " input features, found %" PRId64 ": input %s%s", expected,
                       l->in.dim[l->in.rank - 1], shape_text(&seen, text), o[0] ? " flattened" : "");
}

int layer_linear_shape(Network *n, Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    int code;
    if ((code = layer_expect_range(l, "in_features", 1, INT32_MAX, e))) return code;
    if ((code = layer_expect_range(l, "out_features", 1, INT32_MAX, e))) return code;
    if (l->in.rank != 2 && l->in.rank != 3)
        return layer_error(l, e, "Linear applies to (N, F) or (N, T, F), found an input of %s: use nn.Flatten "
                           "before it", shape_text(&l->in, text));
    int64_t in = options_int(&l->options, "in_features"), out = options_int(&l->options, "out_features");
    Shape y = l->in;
    if (y.dim[y.rank - 1] != in) return wrong_features(l, in, e);
    double bound = 1 / sqrt((double)in);
    if ((code = network_param(n, l, "weight", shape2(out, in), bound, l->in_order, e))) return code;
    if (options_bool(&l->options, "bias") && (code = network_param(n, l, "bias", shape1(out), bound, NULL, e)))
        return code;
    y.dim[y.rank - 1] = out;
    layer_output(l, y);
    return OK;
}

int layer_linear_forward(Lower *lw, const Layer *l, const int *in) {
    return lower_layer(lw, OP_linear, l, in, NULL);
}
