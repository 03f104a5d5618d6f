/* Normalisation: the result and its statistics; the gradients of input, weight and bias in one call. Sources:
 * ATen/native/Normalization.cpp, cuda/layer_norm_kernel.cu, group_norm.cpp. Statistics are fp32 for 16-bit inputs. */
#include "aten.h"

typedef enum NormKind { NORM_BATCH, NORM_LAYER, NORM_GROUP, NORM_RMS } NormKind;

/* Numbers per channel and per group of a sample: group_norm_kernel.cu (GroupNormBackwardKernelImplInternal). */
static void group_sums(Eager *g, const Node *n) {
    const Tensor *x = n->saved[0];
    const int64_t channels = 4 * x->size.of[0] * x->size.of[1], groups = 4 * tensor_elements(n->saved[2]);
    const int64_t inside = tensor_elements(x) / (x->size.of[0] * x->size.of[1]) > 1 ? channels : 0;
    const int64_t dx = node_wants(n, 0) ? groups : 0;
    INNER(g, inside, inside, dx, dx, dx && n->saved[1] ? inside : 0);
}

/* saved: x, w, mean, 1/std */
static void apply_norm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    static const char *const ops[] = {"aten::native_batch_norm_backward", "aten::native_layer_norm_backward",
                                      "aten::native_group_norm_backward", "aten::_fused_rms_norm_backward"};
    eager_op(g, ops[n->number[0]]);
    /* layer normalisation reads a copy of what does not lie in order, and its gradient lies in order */
    const bool ordered = n->number[0] == NORM_LAYER || n->number[0] == NORM_RMS;
    Tensor *copy = ordered && !tensor_is_contiguous(n->saved[0]) ? tensor_new(g, n->saved[0]->type, n->saved[0]->size) : NULL;
    Tensor *unasked = NULL; /* cuDNN's batch normalisation makes the input's gradient whether it is wanted or not */
    if (n->number[0] == NORM_BATCH && !node_wants(n, 0)) unasked = tensor_like(g, n->saved[0], dy[0]->type);
    for (int i = 0; i < n->n_next; i++) {
        if (!node_wants(n, i)) continue;
        const Meta *m = &n->next[i].node->out[n->next[i].output];
        dx[i] = i         ? tensor_new(g, m->type, m->size)
                : ordered ? tensor_new(g, dy[0]->type, n->saved[0]->size)
                          : tensor_like(g, n->saved[0], dy[0]->type);
    }
    tensor_drop(g, copy);
    tensor_drop(g, unasked);
    if (n->number[0] == NORM_GROUP) group_sums(g, n);
}

static const struct { const char *op; NodeRule rule; } norms[] = {
    {"aten::native_batch_norm", {"NativeBatchNormBackward0", apply_norm}},
    {"aten::native_layer_norm", {"NativeLayerNormBackward0", apply_norm}},
    {"aten::native_group_norm", {"NativeGroupNormBackward0", apply_norm}},
    {"aten::_fused_rms_norm", {"FusedRmsNormBackward0", apply_norm}},
};

/* stats: two of that size, or of RMS one. */
static Tensor *norm(Eager *g, NormKind kind, Tensor *x, Tensor *w, Tensor *b, Size stats) {
    GUARD(g);
    Node *n = node_new(g, &norms[kind].rule, (Tensor *[]){x, w, b}, 3, 4);
    if (n) n->number[0] = kind;
    node_save(g, n, 0, x);
    node_save(g, n, 1, w);
    eager_op(g, norms[kind].op);
    const bool copies = (kind == NORM_LAYER || kind == NORM_RMS) && !tensor_is_contiguous(x);
    Tensor *copy = copies ? tensor_new(g, x->type, x->size) : NULL;
    Tensor *y = kind == NORM_BATCH ? tensor_like(g, x, x->type)
                                   : tensor_in_format(g, x->type, x->size, kind == NORM_GROUP && tensor_suggests_channels_last(x));
    Tensor *mean = kind != NORM_RMS ? tensor_new(g, T_FLOAT, stats) : NULL;
    Tensor *istd = tensor_new(g, T_FLOAT, stats);
    const int64_t channels = x->size.rank > 1 ? x->size.of[0] * x->size.of[1] : 0;
    if (kind == NORM_GROUP && w && tensor_elements(x) > channels) INNER(g, 4 * channels, 4 * channels);
    node_save(g, n, 2, mean);
    node_save(g, n, 3, istd);
    tensor_drop(g, copy);
    node_output(g, n, y);
    tensor_drop(g, mean);
    tensor_drop(g, istd);
    return y;
}

/* In evaluation, too, it makes room for statistics. */
Tensor *aten_batch_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b) {
    GUARD(g);
    return norm(g, NORM_BATCH, x, w, b, SIZE(x->size.of[1]));
}

/* Autocast runs it in fp32. */
Tensor *aten_layer_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int dims) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Size stats = lx->size;
    for (int i = stats.rank - dims; i < stats.rank; i++) stats.of[i] = 1;
    Tensor *y = norm(g, NORM_LAYER, lx, w, b, stats);
    tensor_drop(g, lx);
    return y;
}

Tensor *aten_rms_norm(Eager *g, Tensor *x, Tensor *w) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Size stats = lx->size;
    stats.of[stats.rank - 1] = 1;
    Tensor *y = norm(g, NORM_RMS, lx, w, NULL, stats);
    tensor_drop(g, lx);
    return y;
}

Tensor *aten_group_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int64_t groups) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Tensor *y = norm(g, NORM_GROUP, lx, w, b, SIZE(lx->size.of[0], groups));
    tensor_drop(g, lx);
    return y;
}
