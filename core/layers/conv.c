/* Conv1d, Conv2d: y = conv(x, w) + b, w (O, I/groups, K) or (O, I/groups, KH, KW).
 * ConvTranspose1d, ConvTranspose2d: the gradient, with respect to its input, of a convolution that maps the output's
 * channels to the input's; w (I, O/groups, ...) is that convolution's. With a stride it maps several sizes to the same
 * one: output_padding says which of them is the output's. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

static bool is_transposed(const Layer *l) { return l->kind->which == OP_conv_transpose; }

static bool padding_is(const Layer *l, const char *word) {
    char text[OPTION_WORDS];
    return !strcmp(options_word(&l->options, "padding", text), word);
}

ConvAttr layer_conv_attr(const Layer *l) {
    const bool same = padding_is(l, "same"), valid = padding_is(l, "valid");
    ConvAttr a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 2; i++) {
        a.stride[i] = (int32_t)layer_along(l, "stride", i, 1);
        a.dilation[i] = (int32_t)layer_along(l, "dilation", i, 1);
        /* of both sides together; "same" keeps the input's size, and PyTorch puts an odd one at the bottom and right */
        int32_t total = valid ? 0
                        : same ? a.dilation[i] * (int32_t)(layer_along(l, "kernel_size", i, 1) - 1)
                               : 2 * (int32_t)layer_along(l, "padding", i, 0);
        a.pad[i] = total / 2;
        a.pad[2 + i] = total - total / 2;
    }
    a.groups = (int32_t)options_int(&l->options, "groups");
    return a;
}

static int check_options(const Layer *l, Err *e) {
    static const struct { const char *name; int64_t min, max; } ranges[] = {
        {"in_channels", 1, INT32_MAX},  {"out_channels", 1, INT32_MAX}, {"groups", 1, INT32_MAX},
        {"kernel_size", 1, WINDOW_MAX}, {"stride", 1, WINDOW_MAX},      {"padding", 0, WINDOW_MAX},
        {"dilation", 1, WINDOW_MAX},    {"output_padding", 0, WINDOW_MAX}};
    const Options *o = &l->options;
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        int code = layer_expect_range(l, ranges[i].name, ranges[i].min, ranges[i].max, e);
        if (code) return code;
    }
    int64_t groups = options_int(o, "groups"), in = options_int(o, "in_channels"), out = options_int(o, "out_channels");
    if (in % groups || out % groups)
        return layer_error(l, e, "in_channels and out_channels must be divisible by groups, found %" PRId64
                           ", %" PRId64 " and %" PRId64, in, out, groups);
    for (int i = 0; i < 2; i++) {
        int64_t extra = layer_along(l, "output_padding", i, 0), stride = layer_along(l, "stride", i, 1);
        if (padding_is(l, "same") && stride > 1)
            return layer_error(l, e, "padding = 'same' needs stride 1, found %" PRId64, stride);
        if (is_transposed(l) && extra >= stride)
            return layer_error(l, e, "output_padding must be smaller than stride %" PRId64 ", found %" PRId64, stride,
                               extra);
    }
    return OK;
}

/* size[2] = floor((in + padding - dilation (kernel - 1) - 1) / stride) + 1 */
static int conv_sizes(const Layer *l, const Shape *image, int64_t *size, Err *e) {
    const ConvAttr a = layer_conv_attr(l);
    int64_t padded[2], kernel[2];
    for (int i = 0; i < 2; i++) {
        padded[i] = image->dim[2 + i] + a.pad[i] + a.pad[2 + i];
        kernel[i] = a.dilation[i] * (layer_along(l, "kernel_size", i, 1) - 1) + 1;
        size[i] = (padded[i] - kernel[i]) / a.stride[i] + 1;
    }
    if (padded[0] >= kernel[0] && padded[1] >= kernel[1]) return OK;
    return layer_error(l, e, "the kernel (with dilation %" PRId64 "x%" PRId64 ") is larger than the padded input %"
                       PRId64 "x%" PRId64, kernel[0], kernel[1], padded[0], padded[1]);
}

/* size[2] = (in - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1 */
static int transposed_sizes(const Layer *l, const Shape *image, int64_t *size, Err *e) {
    const ConvAttr a = layer_conv_attr(l);
    for (int i = 0; i < 2; i++) {
        int64_t window = (int64_t)a.dilation[i] * (layer_along(l, "kernel_size", i, 1) - 1) + 1;
        size[i] = (image->dim[2 + i] - 1) * a.stride[i] - 2 * (int64_t)a.pad[i] + window +
                  layer_along(l, "output_padding", i, 0);
        if (size[i] < 1)
            return layer_error(l, e, "an output of %" PRId64 " rows or columns is too small: less padding is needed",
                               size[i]);
    }
    return OK;
}

int layer_conv_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    char text[SHAPE_TEXT];
    int64_t size[2];
    Shape image;
    int code = check_options(l, e);
    if (code || (code = layer_expect_image(l, &image, e))) return code;
    int64_t in = options_int(o, "in_channels"), out = options_int(o, "out_channels");
    if (l->in.dim[1] != in)
        return layer_error(l, e, "expected %" PRId64 " input channels, found %" PRId64 ": input %s", in, l->in.dim[1],
                           shape_text(&l->in, text));
    if ((code = (is_transposed(l) ? transposed_sizes : conv_sizes)(l, &image, size, e))) return code;
    int64_t rows = is_transposed(l) ? in : out, columns = is_transposed(l) ? out : in;
    Shape w = layer_shape(l, rows, columns / options_int(o, "groups"), options_pair(o, "kernel_size", 0),
                          options_pair(o, "kernel_size", 1));
    double bound = 1 / sqrt((double)w.dim[1] * (double)w.dim[2] * (double)w.dim[3]);
    if ((code = network_param(n, l, "weight", w, bound, NULL, e))) return code;
    if (options_bool(o, "bias") && (code = network_param(n, l, "bias", shape1(out), bound, NULL, e))) return code;
    layer_output_image(l, out, size);
    return OK;
}

int layer_conv_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.conv = layer_conv_attr(l);
    return lower_layer(lw, (OpKind)l->kind->which, l, in, &a);
}
