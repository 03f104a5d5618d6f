/* Sums, means and softmax. A reduction that is split over thread blocks takes a buffer for the parts and one for its
 * semaphores. Source: ATen/native/cuda/Reduce.cuh (setReduceConfig). */
#include <string.h>

#include "aten.h"

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t last_pow2(int64_t n) {
    int64_t p = 1;
    while (p * 2 <= n) p *= 2;
    return p;
}

static bool is_reduced(unsigned dims, int d) { return dims >> d & 1; }

/* The dimension that lies closest, of all (reduced -1) or of those that are not reduced; -1: all have size 1. */
static int fastest_dim(const Tensor *x, unsigned dims, bool kept_only) {
    int best = -1;
    for (int d = 0; d < x->size.rank; d++)
        if (x->size.of[d] != 1 && !(kept_only && is_reduced(dims, d)) && (best < 0 || x->stride[d] <= x->stride[best]))
            best = d;
    return best;
}

void reduce_inner(Eager *g, const Tensor *x, unsigned dims, int64_t element) {
    int64_t outputs = 1, inputs = 1, last = 1;
    for (int d = 0; d < x->size.rank; d++) *(is_reduced(dims, d) ? &inputs : &outputs) *= x->size.of[d];
    const int best = fastest_dim(x, dims, false), kept = fastest_dim(x, dims, true);
    if (best < 0 || inputs == 1) return;
    const bool fastest = is_reduced(dims, best), dense = x->stride[best] == 1;
    for (int d = kept; d >= 0 && !is_reduced(dims, d); d--) last *= x->size.of[d];
    /* threads of a block along the dimension that lies closest, and across; elements that a thread reads at once */
    int64_t dim0 = fastest ? inputs : outputs, dim1 = fastest ? outputs : inputs, vector = 1;
    if (dense && fastest && dim0 > 128 && outputs == 1) {
        dim0 /= 4;
    } else if (dense && !fastest) {
        for (vector = 4; vector > 1 && last % vector;) vector /= 2;
        dim0 /= vector;
    }
    const int64_t most = 512 / vector, p0 = dim0 < most ? last_pow2(dim0) : most, p1 = dim1 < most ? last_pow2(dim1) : most;
    int64_t width = min_i64(p0, 32), height = min_i64(p1, most / width);
    width = min_i64(p0, most / height);
    int64_t split = fastest ? width : 1, out_per_block = fastest ? 1 : width;
    int64_t values = div_up(inputs, split);
    const bool over_height = values >= height * 16 || values >= 256;
    *(over_height ? &split : &out_per_block) *= height;
    values = div_up(inputs, split);
    const int64_t grid = div_up(outputs / vector, out_per_block);
    const int64_t target = g->card->multiprocessors * (g->card->threads / (width * height));
    if (!over_height || values < 256 || grid > target) return;
    int64_t blocks = min_i64(div_up(target, grid), div_up(values, 16));
    if (blocks < div_up(values, 256)) blocks = div_up(values, 256);
    if (blocks <= 1) return;
    INNER(g, element * outputs * blocks * (fastest ? 1 : width * vector), 4 * grid);
}

static Size reduced_size(const Size *s, unsigned dims, bool keepdim) {
    Size out = {0, {0}};
    for (int d = 0; d < s->rank; d++)
        if (!is_reduced(dims, d)) out.of[out.rank++] = s->of[d];
        else if (keepdim) out.of[out.rank++] = 1;
    return out;
}

static Tensor *reduce(Eager *g, const char *op, const Tensor *x, unsigned dims, bool keepdim) {
    eager_op(g, op);
    Tensor *y = tensor_new(g, x->type, reduced_size(&x->size, dims, keepdim));
    reduce_inner(g, x, dims, 4);
    return y;
}

Tensor *aten_sum_to(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    const int more = x->size.rank - size.rank;
    unsigned dims = 0;
    for (int d = 0; d < x->size.rank; d++)
        if (d < more || (size.of[d - more] == 1 && x->size.of[d] != 1)) dims |= 1u << d;
    int64_t stride[TENSOR_RANK];
    Tensor *sum = dims ? reduce(g, "aten::sum", x, dims, true) : tensor_ref(x);
    if (size_equal(&sum->size, &size)) return sum;
    contiguous_strides(&size, stride);
    Tensor *y = tensor_view(g, sum, size, stride);
    tensor_drop(g, sum);
    return y;
}

/* The gradient of each element is the sum's: a view of it. Of a mean it is divided first. */
static void apply_sum(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Size kept = reduced_size(&n->size, (unsigned)n->number[0], true);
    Tensor *d = aten_view(g, dy[0], kept), *whole = aten_expand(g, d, n->size);
    tensor_drop(g, d);
    if (n->number[1]) {
        eager_op(g, "aten::div");
        dx[0] = tensor_new(g, whole->type, whole->size);
        tensor_drop(g, whole);
    } else {
        dx[0] = whole;
    }
}

static const NodeRule sum_rule = {"SumBackward1", apply_sum}, mean_rule = {"MeanBackward1", apply_sum};

static Tensor *reduced(Eager *g, const NodeRule *rule, const char *op, Tensor *x, unsigned dims, bool keepdim, bool mean) {
    Tensor *y = reduce(g, op, x, dims, keepdim);
    Node *n = node_new(g, rule, &x, 1, 0);
    if (n) {
        n->size = x->size;
        n->number[0] = dims;
        n->number[1] = mean;
    }
    node_output(g, n, y);
    return y;
}

Tensor *aten_sum(Eager *g, Tensor *x, unsigned dims, bool keepdim) {
    GUARD(g);
    return reduced(g, &sum_rule, "aten::sum", x, dims, keepdim, false);
}

Tensor *aten_mean(Eager *g, Tensor *x, unsigned dims, bool keepdim) {
    GUARD(g);
    return reduced(g, &mean_rule, "aten::mean", x, dims, keepdim, true);
}

/* Equal largest elements share it: (x == y) as a mask, how many there are, and grad / count * mask. saved: x, y */
static void apply_amax(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const Tensor *x = n->saved[0];
    eager_op(g, "aten::eq");
    Tensor *mask = tensor_like(g, x, T_BOOL);
    eager_op(g, "aten::sum");
    Tensor *count = tensor_new(g, T_LONG, reduced_size(&x->size, (unsigned)n->number[0], true));
    reduce_inner(g, mask, (unsigned)n->number[0], 8);
    eager_op(g, "aten::div");
    Tensor *part = tensor_new(g, dy[0]->type, count->size);
    eager_op(g, "aten::mul");
    dx[0] = tensor_like(g, x, dy[0]->type);
    tensor_drop(g, part);
    tensor_drop(g, count);
    tensor_drop(g, mask);
}

static const NodeRule amax_rule = {"AmaxBackward0", apply_amax};

Tensor *aten_amax(Eager *g, Tensor *x, unsigned dims, bool keepdim) {
    GUARD(g);
    Node *n = node_new(g, &amax_rule, &x, 1, 2);
    if (n) n->number[0] = dims;
    node_save(g, n, 0, x);
    Tensor *y = reduce(g, "aten::amax", x, dims, keepdim);
    node_save(g, n, 1, y);
    node_output(g, n, y);
    return y;
}

/* Zeros, into which the gradient is scattered. saved: the indices */
static void apply_max(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::zeros");
    dx[0] = tensor_new(g, dy[0]->type, n->size);
}

static const NodeRule max_rule = {"MaxBackward0", apply_max};

Tensor *aten_max(Eager *g, Tensor *x, int dim, bool keepdim) {
    GUARD(g);
    const Size size = reduced_size(&x->size, 1u << dim, keepdim);
    Node *n = node_new(g, &max_rule, &x, 1, 1);
    if (n) n->size = x->size;
    eager_op(g, "aten::max");
    Tensor *y = tensor_new(g, x->type, size), *indices = tensor_new(g, T_LONG, size);
    reduce_inner(g, x, 1u << dim, 16);
    node_save(g, n, 0, indices);
    node_output(g, n, y);
    tensor_drop(g, indices);
    return y;
}

/* ---- softmax: the result is saved */

static void apply_softmax(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, n->number[0] ? "aten::_log_softmax_backward_data" : "aten::_softmax_backward_data");
    dx[0] = tensor_new(g, dy[0]->type, dy[0]->size);
}

static const NodeRule softmax_rule = {"SoftmaxBackward0", apply_softmax},
                      log_softmax_rule = {"LogSoftmaxBackward0", apply_softmax};

Tensor *aten_softmax(Eager *g, Tensor *x, int dim, bool log) {
    GUARD(g);
    (void)dim;
    eager_op(g, log ? "aten::_log_softmax" : "aten::_softmax");
    Node *n = node_new(g, log ? &log_softmax_rule : &softmax_rule, &x, 1, 1);
    Tensor *y = tensor_new(g, x->type, x->size);
    if (n) n->number[0] = log;
    node_save(g, n, 0, y);
    node_output(g, n, y);
    return y;
}
