/* Sums, means and softmax with their graph. */
#include <string.h>

#include "aten.h"

/* The gradient of each element is the sum's: a view of it. Of a mean it is divided first. */
static void apply_sum(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Size kept = reduced_size(&n->size, (unsigned)n->number[0], true);
    Tensor *d = aten_view(g, dy[0], kept), *whole = aten_expand(g, d, n->size);
    tensor_drop(g, d);
    if (n->number[1]) {
        eager_op(g, "aten::div");
        READS(g, whole);
        dx[0] = tensor_of_operands(g, whole->type, whole->size, (const Tensor *[]){whole}, 1);
        tensor_drop(g, whole);
    } else {
        dx[0] = whole;
    }
}

static const NodeRule sum_rule = {"SumBackward1", apply_sum}, mean_rule = {"MeanBackward1", apply_sum};

static Tensor *reduced(Eager *g, const NodeRule *rule, const char *op, Tensor *x, unsigned dims, bool keepdim, bool mean) {
    const bool wide = !mean && g->autocast && scalar_is_float(x->type); /* autocast asks for a sum in fp32, of x as it is */
    Tensor *y = reduce(g, op, x, wide ? T_FLOAT : x->type, dims, keepdim);
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

/* grad (x / y), in which what is 0 / 0 is filled with 0. saved: x, y. Source: FunctionsManual.cpp, norm_backward */
static void apply_norm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Tensor *x = n->saved[0], *y = aten_view(g, n->saved[1], reduced_size(&x->size, (unsigned)n->number[0], true));
    Tensor *d = aten_view(g, dy[0], y->size), *part = aten_binary(g, WITH_DIV, x, y);
    eager_op(g, "aten::eq");
    READS(g, y);
    Tensor *zero = tensor_like(g, y, T_BOOL);
    eager_inplace(g, "aten::masked_fill_", part, zero);
    dx[0] = aten_binary(g, WITH_MUL, d, part);
    tensor_drop(g, zero); /* one expression: its parts go at its end */
    tensor_drop(g, d);
    tensor_drop(g, part);
    tensor_drop(g, y);
}

static const NodeRule norm_rule = {"LinalgVectorNormBackward0", apply_norm};

/* A reduction whose gradient wants x and the result. */
static Tensor *reduced_with_result(Eager *g, const NodeRule *rule, const char *op, Tensor *x, unsigned dims, bool keepdim) {
    GUARD(g);
    Node *n = node_new(g, rule, &x, 1, 2);
    if (n) n->number[0] = dims;
    node_save(g, n, 0, x);
    Tensor *y = reduce(g, op, x, x->type, dims, keepdim);
    node_save(g, n, 1, y);
    node_output(g, n, y);
    return y;
}

Tensor *aten_norm(Eager *g, Tensor *x, unsigned dims, bool keepdim) {
    return reduced_with_result(g, &norm_rule, "aten::linalg_vector_norm", x, dims, keepdim);
}

/* Equal largest elements share it: (x == y) as a mask, how many there are, and grad / count * mask. saved: x, y */
static void apply_amax(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const Tensor *x = n->saved[0];
    eager_op(g, "aten::eq");
    READS(g, x, n->saved[1]);
    Tensor *mask = tensor_like(g, x, T_BOOL);
    eager_op(g, "aten::sum");
    READS(g, mask);
    Tensor *count = tensor_new(g, T_LONG, reduced_size(&x->size, (unsigned)n->number[0], true));
    reduce_inner(g, mask, (unsigned)n->number[0], 8);
    eager_op(g, "aten::div");
    READS(g, dy[0], count);
    Tensor *part = tensor_new(g, dy[0]->type, count->size);
    eager_op(g, "aten::mul");
    READS(g, part, mask);
    dx[0] = tensor_like(g, x, dy[0]->type);
    tensor_drop(g, part);
    tensor_drop(g, count);
    tensor_drop(g, mask);
}

static const NodeRule amax_rule = {"AmaxBackward0", apply_amax};

Tensor *aten_amax(Eager *g, Tensor *x, unsigned dims, bool keepdim) {
    return reduced_with_result(g, &amax_rule, "aten::amax", x, dims, keepdim);
}

/* Zeros, into which the gradient is scattered. saved: the indices */
static void apply_max(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::zeros");
    dx[0] = tensor_new(g, dy[0]->type, n->size);
    READS(g, dy[0], n->saved[0]);
}

static const NodeRule max_rule = {"MaxBackward0", apply_max};

Tensor *aten_max(Eager *g, Tensor *x, int dim, bool keepdim) {
    GUARD(g);
    const Size size = reduced_size(&x->size, 1u << dim, keepdim);
    Node *n = node_new(g, &max_rule, &x, 1, 1);
    if (n) n->size = x->size;
    eager_op(g, "aten::max");
    READS(g, x);
    Tensor *y = tensor_new(g, x->type, size), *indices = tensor_new(g, T_LONG, size);
    reduce_inner(g, x, 1u << dim, 16);
    node_save(g, n, 0, indices);
    node_output(g, n, y);
    tensor_drop(g, indices);
    return y;
}

/* ---- softmax: the result is saved. Of fp16 the kernel makes fp32 itself; other types are converted before it (SoftMax.cpp). */

static void apply_softmax(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, n->number[0] ? "aten::_log_softmax_backward_data" : "aten::_softmax_backward_data");
    READS(g, dy[0], n->saved[0]);
    dx[0] = tensor_new(g, (ScalarType)n->number[1], dy[0]->size);
}

static const NodeRule softmax_rule = {"SoftmaxBackward0", apply_softmax},
                      log_softmax_rule = {"LogSoftmaxBackward0", apply_softmax};

Tensor *aten_softmax(Eager *g, Tensor *given, int dim, bool log, ScalarType type) {
    GUARD(g);
    (void)dim;
    Tensor *x = given->type == T_HALF && type == T_FLOAT ? tensor_ref(given) : aten_to(g, given, type);
    eager_op(g, log ? "aten::_log_softmax" : "aten::_softmax");
    READS(g, x);
    Node *n = node_new(g, log ? &log_softmax_rule : &softmax_rule, &x, 1, 1);
    Tensor *y = tensor_new(g, type, x->size);
    if (n) n->number[0] = log;
    if (n) n->number[1] = x->type;
    node_save(g, n, 0, y);
    node_output(g, n, y);
    tensor_drop(g, x);
    return y;
}
