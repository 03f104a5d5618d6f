/* Linear: y = x w^T + b, w (O, I), x (..., I). After a flattened image w's columns are stored in the order
 * of its features; it starts as PyTorch's does, or normal with a standard deviation `std`, of which 0 makes zeros. Conv1D,
 * transformers' for GPT-2, is the same with w (I, O), which is stored as Linear's is. */
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

int layer_linear_start(const Layer *l, int64_t in, Param *weight, Err *e) {
    char text[OPTION_WORDS];
    weight->bound = 1 / sqrt((double)in);
    if (options_word(&l->options, "std", text)[0]) return OK; /* "none" */
    weight->init = INIT_NORMAL;
    weight->bound = options_float(&l->options, "std");
    return weight->bound < 0 ? layer_error(l, e, "std must not be negative, found %g", weight->bound) : OK;
}

int layer_linear_shape(Network *n, Layer *l, Err *e) {
    const bool turned = !l->kind->which;
    const char *const in_name = turned ? "nx" : "in_features", *const out_name = turned ? "nf" : "out_features";
    char text[SHAPE_TEXT];
    int code;
    if ((code = layer_expect_range(l, in_name, 1, INT32_MAX, e))) return code;
    if ((code = layer_expect_range(l, out_name, 1, INT32_MAX, e))) return code;
    int64_t in = options_int(&l->options, in_name), out = options_int(&l->options, out_name);
    Shape y = l->in;
    const bool image = y.rank == 4 && !l->in_rows && y.dim[3] != in;
    if (image || (turned && l->in_order[0]))
        return layer_error(l, e, "%s applies to the last dimension, found an input of %s%s", layer_kind(l),
                           shape_text(&l->in, text), image ? ": use nn.Flatten before it" : ", a flattened image");
    if (y.dim[y.rank - 1] != in) return wrong_features(l, in, e);
    const double bound = 1 / sqrt((double)in);
    Param weight = {.shape = shape2(out, in)};
    memcpy(weight.order, l->in_order, sizeof weight.order);
    if (!turned && (code = layer_linear_start(l, in, &weight, e))) return code;
    if (turned) weight = (Param){.shape = shape2(in, out), .init = INIT_NORMAL, .bound = 0.02, .turned = true};
    if ((code = network_tensor(n, l, "weight", &weight, e))) return code;
    const bool bias = turned || options_bool(&l->options, "bias");
    if (bias && (code = network_param(n, l, "bias", shape1(out), turned ? 0 : bound, NULL, e))) return code;
    y.dim[y.rank - 1] = out;
    layer_output(l, y);
    l->out_rows = y.rank == 4;
    return OK;
}

int layer_linear_forward(Lower *lw, const Layer *l, const int *in) {
    Layer flat;
    const int x = lower_flat(lw, l, in[0], l->out.dim[l->out.rank - 1], &flat);
    return lower_unflat(lw, l, lower_layer(lw, OP_linear, &flat, &x, NULL));
}

/* ---- F.linear(x, w, b): of values, which may be parameters */

int layer_linear_function_shape(Network *n, Layer *l, Err *e) {
    char x[SHAPE_TEXT], w[SHAPE_TEXT];
    (void)n;
    if (l->n_in != 2 && l->n_in != 3) return layer_error(l, e, "expects 2 or 3 values, found %d", l->n_in);
    const Shape *weight = &l->ins[1].shape, *bias = &l->ins[2].shape;
    Shape y = l->in;
    if (y.rank < 2 || l->in_is_param || weight->rank != 2 || y.dim[y.rank - 1] != weight->dim[1])
        return layer_error(l, e, "expected x (..., I) and a weight (O, I), found %s and %s", shape_text(&y, x),
                           shape_text(weight, w));
    if (l->n_in == 3 && (bias->rank != 1 || bias->dim[0] != weight->dim[0]))
        return layer_error(l, e, "expected a bias of (%" PRId64 "), found %s", weight->dim[0], shape_text(bias, x));
    y.dim[y.rank - 1] = weight->dim[0];
    layer_output(l, y);
    l->out_rows = y.rank == 4;
    return OK;
}

int layer_linear_function_forward(Lower *lw, const Layer *l, const int *in) {
    Layer flat;
    int of[3] = {lower_flat(lw, l, lower_plain(lw, l, in[0]), l->out.dim[l->out.rank - 1], &flat)};
    for (int k = 1; k < l->n_in; k++) of[k] = lower_rows(lw, l, in[k]);
    return lower_unflat(lw, l, lower_op(lw, OP_linear, &flat, of, l->n_in, NULL));
}
