/* MaxPool1d, MaxPool2d, AvgPool1d and AvgPool2d, and the adaptive ones; `which` is the op. */
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

static Attr pool_attr(const Layer *l) {
    const Options *o = &l->options;
    bool max = l->kind->which == OP_maxpool;
    Attr a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 2; i++) {
        a.pool.kernel[i] = (int32_t)layer_along(l, "kernel_size", i, 1);
        a.pool.stride[i] = (int32_t)layer_along(l, "stride", i, 1);
        a.pool.pad[i] = (int32_t)layer_along(l, "padding", i, 0);
        a.pool.dilation[i] = max ? (int32_t)layer_along(l, "dilation", i, 1) : 1;
    }
    a.pool.count_include_pad = options_bool(o, "count_include_pad");
    a.pool.divisor = (int32_t)options_int(o, "divisor_override");
    return a;
}

static int check_options(const Layer *l, Err *e) {
    static const struct { const char *name; int64_t min; } least[] = {
        {"kernel_size", 1}, {"stride", 1}, {"padding", 0}, {"dilation", 1}, {"divisor_override", 0}};
    for (size_t i = 0; i < ARRAY_LEN(least); i++) {
        int code = layer_expect_range(l, least[i].name, least[i].min, WINDOW_MAX, e);
        if (code) return code;
    }
    const PoolAttr a = pool_attr(l).pool;
    for (int i = 0; i < 2; i++)
        if (a.pad[i] > a.kernel[i] / 2)
            return layer_error(l, e, "padding must be at most half of kernel_size, found %d and %d", a.pad[i],
                               a.kernel[i]);
    if (l->kind->which == OP_maxpool && a.kernel[0] * a.kernel[1] > UINT8_MAX)
        return layer_error(l, e, "kernel_size %dx%d: at most %d places in a window", a.kernel[0], a.kernel[1],
                           UINT8_MAX);
    return OK;
}

/* PyTorch's pooling_output_shape: with ceil_mode a last window is added if it starts in the input or the padding before
 * it. 0: the window is larger than the padded input. */
static int64_t output_size(const PoolAttr *a, int i, int64_t in, bool ceil_mode) {
    int64_t span = in + 2 * a->pad[i] - (int64_t)a->dilation[i] * (a->kernel[i] - 1) - 1;
    if (ceil_mode) span += a->stride[i] - 1;
    if (span < 0) return 0;
    int64_t out = span / a->stride[i] + 1;
    return ceil_mode && (out - 1) * a->stride[i] >= in + a->pad[i] ? out - 1 : out;
}

int layer_pool_shape(Network *n, Layer *l, Err *e) {
    bool ceil_mode = options_bool(&l->options, "ceil_mode");
    char text[SHAPE_TEXT];
    int64_t size[2];
    Shape image;
    (void)n;
    int code = check_options(l, e);
    if (code || (code = layer_expect_image(l, &image, e))) return code;
    const PoolAttr a = pool_attr(l).pool;
    for (int i = 0; i < 2; i++) {
        size[i] = output_size(&a, i, image.dim[2 + i], ceil_mode);
        if (a.pad[i] > 0 && a.dilation[i] > image.dim[2 + i])
            return layer_error(l, e, "dilation %d on an input of %" PRId64
                               " with padding: a window would hold padding only", a.dilation[i], image.dim[2 + i]);
    }
    if (size[0] < 1 || size[1] < 1)
        return layer_error(l, e, "input %s gives an output of %" PRId64 "x%" PRId64 ": the output is too small",
                           shape_text(&l->in, text), size[0], size[1]);
    layer_output_image(l, image.dim[1], size);
    return OK;
}

static int emit_pool(Lower *lw, const Layer *l, const int *in, Attr a) {
    int y = lower_layer(lw, (OpKind)l->kind->which, l, in, &a);
    if (l->kind->which != OP_maxpool || !lw->training) return y;
    lower_keep(lw, 1, lower_buf(lw, l, "idx", DT_U8)); /* where each maximum was */
    return y;
}

int layer_pool_forward(Lower *lw, const Layer *l, const int *in) { return emit_pool(lw, l, in, pool_attr(l)); }

/* The window of an adaptive max pooling whose windows are all of one size and stand side by side. */
static Attr even_windows(const Layer *l) {
    const int last = l->in.rank - 1;
    Attr a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 2; i++) {
        bool there = i == 1 || layer_axes(l) == 2;
        int64_t size = there ? l->in.dim[last - 1 + i] / layer_along(l, "output_size", i, 1) : 1;
        a.pool.kernel[i] = a.pool.stride[i] = (int32_t)min_i64(size, WINDOW_MAX);
        a.pool.dilation[i] = 1;
    }
    return a;
}

int layer_adaptive_pool_shape(Network *n, Layer *l, Err *e) {
    Shape image;
    (void)n;
    int code = layer_expect_range(l, "output_size", 1, WINDOW_MAX, e);
    if (code || (code = layer_expect_image(l, &image, e))) return code;
    const int64_t out[2] = {layer_along(l, "output_size", 0, 1), layer_along(l, "output_size", 1, 1)};
    if (l->kind->which == OP_maxpool) {
        const int32_t *kernel = even_windows(l).pool.kernel;
        char text[SHAPE_TEXT];
        if (image.dim[2] % out[0] || image.dim[3] % out[1] || kernel[0] * kernel[1] > UINT8_MAX)
            return layer_error(l, e, "expected windows of one size and at most %d places, found an input of %s: "
                               "nn.MaxPool%dd may go before it", UINT8_MAX, shape_text(&l->in, text), layer_axes(l));
    }
    layer_output_image(l, image.dim[1], out);
    return OK;
}

int layer_adaptive_pool_forward(Lower *lw, const Layer *l, const int *in) {
    return l->kind->which == OP_maxpool ? emit_pool(lw, l, in, even_windows(l))
                                        : lower_layer(lw, OP_adaptive_avgpool, l, in, NULL);
}
