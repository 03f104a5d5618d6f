/* Pooling, upsampling, embedding. Max pooling saves the input and indices of 8 bytes. */
#include "aten.h"

typedef enum WindowOp { MAX_POOL, ADAPTIVE_MAX_POOL, AVG_POOL, ADAPTIVE_AVG_POOL, NEAREST, BILINEAR } WindowOp;

static void apply_window(Eager *g, Node *n, Tensor *const *dy, Tensor **dx);

static const struct { const char *op, *backward; NodeRule rule; bool indices, saves_input; } windows[] = {
    [MAX_POOL] = {"aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward",
                  {"MaxPool2DWithIndicesBackward0", apply_window}, true, true},
    [ADAPTIVE_MAX_POOL] = {"aten::adaptive_max_pool2d", "aten::adaptive_max_pool2d_backward",
                           {"AdaptiveMaxPool2DBackward0", apply_window}, true, true},
    [AVG_POOL] = {"aten::avg_pool2d", "aten::avg_pool2d_backward", {"AvgPool2DBackward0", apply_window}, false, true},
    [ADAPTIVE_AVG_POOL] = {"aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d_backward",
                           {"AdaptiveAvgPool2DBackward0", apply_window}, false, true},
    [NEAREST] = {"aten::upsample_nearest2d", "aten::upsample_nearest2d_backward",
                 {"UpsampleNearest2DBackward0", apply_window}, false, false},
    [BILINEAR] = {"aten::upsample_bilinear2d", "aten::upsample_bilinear2d_backward",
                  {"UpsampleBilinear2DBackward0", apply_window}, false, false},
};

static void apply_window(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const WindowOp op = (WindowOp)n->number[0]; /* of a pooling in the saved input's format, of an upsampling in the gradient's */
    const bool last = tensor_suggests_channels_last(windows[op].saves_input ? n->saved[0] : dy[0]);
    eager_op(g, windows[op].backward);
    READS(g, dy[0], n->saved[1]);
    dx[0] = tensor_in_format(g, dy[0]->type, n->size, last);
}

static Tensor *window(Eager *g, WindowOp op, Tensor *x, Size size) {
    Node *n = node_new(g, &windows[op].rule, &x, 1, 2);
    if (n) n->size = x->size;
    const bool last = tensor_suggests_channels_last(x);
    if (n) n->number[0] = op;
    if (windows[op].saves_input) node_save(g, n, 0, x);
    eager_op(g, windows[op].op);
    READS(g, x);
    Tensor *y = tensor_in_format(g, x->type, size, last);
    Tensor *indices = windows[op].indices ? tensor_in_format(g, T_LONG, size, last) : NULL;
    node_save(g, n, 1, indices);
    node_output(g, n, y);
    tensor_drop(g, indices);
    return y;
}

Tensor *aten_max_pool2d(Eager *g, Tensor *x, Size y, bool adaptive) {
    GUARD(g);
    return window(g, adaptive ? ADAPTIVE_MAX_POOL : MAX_POOL, x, y);
}

Tensor *aten_avg_pool2d(Eager *g, Tensor *x, Size y) {
    GUARD(g);
    return window(g, AVG_POOL, x, y);
}

/* To one pixel it is a mean, whose strides are then set to the input's format. */
Tensor *aten_adaptive_avg_pool2d(Eager *g, Tensor *x, Size y) {
    GUARD(g);
    if (y.of[2] == 1 && y.of[3] == 1) {
        const int64_t c = y.of[1], last[TENSOR_RANK] = {c, 1, c, c};
        Tensor *mean = aten_mean(g, x, 1u << 2 | 1u << 3, true);
        if (!tensor_suggests_channels_last(x)) return mean;
        Tensor *turned = aten_as_strided(g, mean, last);
        tensor_drop(g, mean);
        return turned;
    }
    return window(g, ADAPTIVE_AVG_POOL, x, y);
}

/* Autocast runs it in fp32. */
Tensor *aten_upsample(Eager *g, Tensor *x, Size size, bool bilinear) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x), *y = window(g, bilinear ? BILINEAR : NEAREST, lx, size);
    tensor_drop(g, lx);
    return y;
}

/* The gradient is a whole table; of an index it is zeros, into which rows are added up. */
static void apply_rows(Eager *g, Node *n, const char *op, Tensor *const *dy, Tensor **dx) {
    eager_op(g, op);
    READS(g, dy[0], n->saved[0]);
    dx[0] = tensor_new(g, dy[0]->type, n->size);
}

static void apply_embedding(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    apply_rows(g, n, "aten::embedding_dense_backward", dy, dx);
}

static void apply_index(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    apply_rows(g, n, "aten::new_zeros", dy, dx);
}

static const NodeRule embedding_rule = {"EmbeddingBackward0", apply_embedding}, index_rule = {"IndexBackward0", apply_index};

static Tensor *rows_of(Eager *g, const NodeRule *rule, const char *op, Tensor *index, Tensor *w) {
    GUARD(g);
    Size size = index->size;
    size.of[size.rank++] = w->size.of[1];
    Node *n = node_new(g, rule, &w, 1, 1);
    if (n) n->size = w->size;
    node_save(g, n, 0, index);
    eager_op(g, op);
    Tensor *y = tensor_new(g, w->type, size);
    READS(g, index, y); /* of the table as many rows as the result has */
    node_output(g, n, y);
    return y;
}

Tensor *aten_embedding(Eager *g, Tensor *index, Tensor *w) {
    return rows_of(g, &embedding_rule, "aten::embedding", index, w);
}

Tensor *aten_index(Eager *g, Tensor *w, Tensor *index) { return rows_of(g, &index_rule, "aten::index", index, w); }
