/* Normalisation: the result and its statistics; the gradients of input, weight and bias in one call. Sources:
 * ATen/native/Normalization.cpp, cuda/layer_norm_kernel.cu, group_norm.cpp. Statistics are fp32 for 16-bit inputs. */
#include "aten.h"

/* In the order of PyTorch's names, in which they come back from the host: bias (of layer normalisation), input, running_mean
 * and running_var (of batch normalisation), weight, and the results mean and 1/std. */
enum { SAVED_B, SAVED_X, SAVED_RUNNING, SAVED_W = SAVED_RUNNING + 2, SAVED_MEAN, SAVED_ISTD, SAVED };

typedef enum NormKind { NORM_BATCH, NORM_LAYER, NORM_GROUP, NORM_RMS } NormKind;

/* Numbers per channel and per group of a sample: group_norm_kernel.cu (GroupNormBackwardKernelImplInternal). */
static void group_sums(Eager *g, const Node *n) {
    const Tensor *x = n->saved[SAVED_X];
    const int64_t channels = 4 * x->size.of[0] * x->size.of[1], groups = 4 * tensor_elements(n->saved[SAVED_MEAN]);
    const int64_t inside = tensor_elements(x) / (x->size.of[0] * x->size.of[1]) > 1 ? channels : 0;
    const int64_t dx = node_wants(n, 0) ? groups : 0;
    INNER(g, inside, inside, dx, dx, dx && n->saved[SAVED_W] ? inside : 0);
}

static void apply_norm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    static const char *const ops[] = {"aten::native_batch_norm_backward", "aten::native_layer_norm_backward",
                                      "aten::native_group_norm_backward", "aten::_fused_rms_norm_backward"};
    eager_op(g, ops[n->number[0]]);
    READS(g, dy[0], n->saved[SAVED_X], n->saved[SAVED_W], n->saved[SAVED_MEAN], n->saved[SAVED_ISTD]);
    /* layer normalisation reads a copy of what does not lie in order, and its gradient lies in order */
    const bool ordered = n->number[0] == NORM_LAYER || n->number[0] == NORM_RMS;
    const Tensor *x = n->saved[SAVED_X];
    Tensor *copy = ordered && !tensor_is_contiguous(x) ? tensor_new(g, x->type, x->size) : NULL;
    READS(g, copy);
    Tensor *unasked = NULL; /* cuDNN's batch normalisation makes the input's gradient whether it is wanted or not */
    if (n->number[0] == NORM_BATCH && !node_wants(n, 0)) unasked = tensor_like(g, n->saved[SAVED_X], dy[0]->type);
    for (int i = 0; i < n->n_next; i++) {
        if (!node_wants(n, i)) continue;
        const Meta *m = &n->next[i].node->out[n->next[i].output];
        dx[i] = i         ? tensor_new(g, m->type, m->size)
                : ordered ? tensor_new(g, dy[0]->type, n->saved[SAVED_X]->size)
                          : tensor_like(g, n->saved[SAVED_X], dy[0]->type);
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

/* stats: two of that size, or of RMS one. running: two, or NULL. */
static Tensor *norm(Eager *g, NormKind kind, Tensor *x, Tensor *w, Tensor *b, Tensor *const *running, Size stats) {
    GUARD(g);
    Node *n = node_new(g, &norms[kind].rule, (Tensor *[]){x, w, b}, 3, SAVED);
    if (n) n->number[0] = kind;
    if (kind == NORM_LAYER) node_save(g, n, SAVED_B, b);
    node_save(g, n, SAVED_X, x);
    for (int k = 0; running && k < 2; k++) node_save(g, n, SAVED_RUNNING + k, running[k]);
    node_save(g, n, SAVED_W, w);
    eager_op(g, norms[kind].op);
    READS(g, x, w, b);
    const bool copies = (kind == NORM_LAYER || kind == NORM_RMS) && !tensor_is_contiguous(x);
    Tensor *copy = copies ? tensor_new(g, x->type, x->size) : NULL;
    READS(g, copy);
    Tensor *y = kind == NORM_BATCH ? tensor_like(g, x, x->type)
                                   : tensor_in_format(g, x->type, x->size, kind == NORM_GROUP && tensor_suggests_channels_last(x));
    Tensor *mean = kind != NORM_RMS ? tensor_new(g, T_FLOAT, stats) : NULL;
    Tensor *istd = tensor_new(g, T_FLOAT, stats);
    const int64_t channels = x->size.rank > 1 ? x->size.of[0] * x->size.of[1] : 0;
    if (kind == NORM_GROUP && w && tensor_elements(x) > channels) INNER(g, 4 * channels, 4 * channels);
    node_save(g, n, SAVED_MEAN, mean);
    node_save(g, n, SAVED_ISTD, istd);
    tensor_drop(g, copy);
    node_output(g, n, y);
    tensor_drop(g, mean);
    tensor_drop(g, istd);
    return y;
}

/* In evaluation, too, it makes room for statistics. */
Tensor *aten_batch_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, Tensor *const *running) {
    GUARD(g);
    return norm(g, NORM_BATCH, x, w, b, running, SIZE(x->size.of[1]));
}

/* Autocast runs it in fp32. */
Tensor *aten_layer_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int dims) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Size stats = lx->size;
    for (int i = stats.rank - dims; i < stats.rank; i++) stats.of[i] = 1;
    Tensor *y = norm(g, NORM_LAYER, lx, w, b, NULL, stats);
    tensor_drop(g, lx);
    return y;
}

/* As it is composed where there is no op for it: x / sqrt(mean(x^2) + eps) in fp32; in x's type times w */
static Tensor *composed_rms_norm(Eager *g, Tensor *x, Tensor *w) {
    Tensor *wide = aten_to(g, x, T_FLOAT), *squares = aten_act(g, aten_act_rule("Pow"), wide, false);
    Tensor *mean = aten_mean(g, squares, 1u << (x->size.rank - 1), true), *scale = aten_act(g, aten_act_rule("Rsqrt"), mean, false);
    tensor_drop(g, mean);
    tensor_drop(g, squares);
    Tensor *product = aten_binary(g, WITH_MUL, wide, scale), *y = aten_to(g, product, x->type);
    tensor_drop(g, product);
    if (w) tensor_set(g, &y, aten_binary(g, WITH_MUL, y, w));
    tensor_drop(g, scale);
    tensor_drop(g, wide);
    return y;
}

Tensor *aten_rms_norm(Eager *g, Tensor *x, Tensor *w) {
    GUARD(g);
    if (!g->version->fused_rms_norm) return composed_rms_norm(g, x, w);
    Tensor *lx = amp_wide(g, x);
    Size stats = lx->size;
    stats.of[stats.rank - 1] = 1;
    Tensor *y = norm(g, NORM_RMS, lx, w, NULL, NULL, stats);
    tensor_drop(g, lx);
    return y;
}

Tensor *aten_group_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int64_t groups) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Tensor *y = norm(g, NORM_GROUP, lx, w, b, NULL, SIZE(lx->size.of[0], groups));
    tensor_drop(g, lx);
    return y;
}
