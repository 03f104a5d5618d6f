/* Views, and the copies that are made where there can be none. Sources: ATen/native/TensorShape.cpp, TensorUtils.cpp
 * (computeStride); the derivative of a view is the view the other way, or a copy into zeros. */
#include <assert.h>
#include <string.h>

#include "aten.h"

static Tensor *linked(Eager *g, const NodeRule *rule, Tensor *x, Tensor *y) {
    Node *n = node_new(g, rule, &x, 1, 0);
    if (n) n->size = x->size;
    node_output(g, n, y);
    return y;
}

/* Strides under which x's elements, in order, have other sizes; false: there are none. */
static bool view_strides(const Tensor *x, const Size *to, int64_t *stride) {
    int64_t numel = 1, viewed = 1, base;
    int d = to->rank - 1;
    memset(stride, 0, TENSOR_RANK * sizeof *stride);
    if (x->size.rank == 0) {
        contiguous_strides(to, stride);
        return true;
    }
    base = x->stride[x->size.rank - 1];
    for (int t = x->size.rank - 1; t >= 0; t--) {
        numel *= x->size.of[t];
        if (t && (x->size.of[t - 1] == 1 || x->stride[t - 1] == numel * base)) continue;
        for (; d >= 0 && (viewed < numel || to->of[d] == 1); d--) {
            stride[d] = viewed * base;
            viewed *= to->of[d];
        }
        if (viewed != numel) return false;
        if (t) base = x->stride[t - 1];
        numel = viewed = 1;
    }
    return d < 0;
}

/* ---- another shape */

static void apply_reshape(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    dx[0] = aten_reshape(g, dy[0], n->size);
}

static const NodeRule view_rule = {"ViewBackward0", apply_reshape}, unsafe_view_rule = {"UnsafeViewBackward0", apply_reshape},
                      clone_rule = {"CloneBackward0", apply_reshape};

Tensor *aten_view(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    int64_t stride[TENSOR_RANK];
    bool can = view_strides(x, &size, stride);
    assert(can);
    (void)can;
    return linked(g, &view_rule, x, tensor_view(g, x, size, stride));
}

Tensor *aten_clone(Eager *g, Tensor *x, bool contiguous) {
    GUARD(g);
    eager_op(g, "aten::clone");
    READS(g, x);
    return linked(g, &clone_rule, x, contiguous ? tensor_new(g, x->type, x->size) : tensor_like(g, x, x->type));
}

Tensor *aten_contiguous(Eager *g, Tensor *x) {
    GUARD(g);
    return tensor_is_contiguous(x) ? tensor_ref(x) : aten_clone(g, x, true);
}

Tensor *aten_reshape(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    int64_t stride[TENSOR_RANK];
    if (size_equal(&x->size, &size)) return aten_view(g, x, size);
    if (view_strides(x, &size, stride)) return linked(g, &view_rule, x, tensor_view(g, x, size, stride));
    Tensor *copy = aten_clone(g, x, true);
    contiguous_strides(&size, stride);
    Tensor *y = linked(g, &unsafe_view_rule, copy, tensor_view(g, copy, size, stride));
    tensor_set(g, &y->base, NULL); /* _unsafe_view: it does not count as a view of the copy */
    tensor_drop(g, copy);
    return y;
}

/* ---- another order */

static void apply_permute(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    int back[TENSOR_RANK];
    for (int i = 0; i < n->size.rank; i++) back[n->number[i]] = i;
    dx[0] = aten_permute(g, dy[0], back);
}

static const NodeRule permute_rule = {"PermuteBackward0", apply_permute};

Tensor *aten_permute(Eager *g, Tensor *x, const int *order) {
    GUARD(g);
    Size size = x->size;
    int64_t stride[TENSOR_RANK] = {0};
    for (int i = 0; i < size.rank; i++) {
        size.of[i] = x->size.of[order[i]];
        stride[i] = x->stride[order[i]];
    }
    Tensor *y = tensor_view(g, x, size, stride);
    Node *n = node_new(g, &permute_rule, &x, 1, 0);
    if (n) n->size = x->size;
    for (int i = 0; n && i < size.rank; i++) n->number[i] = order[i];
    node_output(g, n, y);
    return y;
}

Tensor *aten_transpose(Eager *g, Tensor *x, int a, int b) {
    GUARD(g);
    int order[TENSOR_RANK];
    for (int i = 0; i < x->size.rank; i++) order[i] = i == a ? b : i == b ? a : i;
    return aten_permute(g, x, order);
}

static void apply_expand(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) { dx[0] = aten_sum_to(g, dy[0], n->size); }
static const NodeRule expand_rule = {"ExpandBackward0", apply_expand};

Tensor *aten_expand(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    int64_t stride[TENSOR_RANK] = {0};
    int more = size.rank - x->size.rank;
    if (size_equal(&x->size, &size)) return tensor_ref(x);
    for (int i = 0; i < x->size.rank; i++)
        stride[more + i] = x->size.of[i] == size.of[more + i] ? x->stride[i] : 0;
    return linked(g, &expand_rule, x, tensor_view(g, x, size, stride));
}

/* ---- other strides: the gradient is put into zeros as large as what the view is of */

static void apply_as_strided(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::new_zeros");
    dx[0] = tensor_new(g, dy[0]->type, n->size);
}

static const NodeRule as_strided_rule = {"AsStridedBackward1", apply_as_strided};

Tensor *aten_as_strided(Eager *g, Tensor *x, const int64_t *stride) {
    GUARD(g);
    return linked(g, &as_strided_rule, x, tensor_view(g, x, x->size, stride));
}

/* ---- parts: the gradient is zeros with the part's gradient in them */

static void apply_part(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::zeros");
    dx[0] = tensor_new(g, dy[0]->type, n->size);
    READS(g, dy[0], dy[0]); /* copied into it */
}

static const NodeRule slice_rule = {"SliceBackward0", apply_part}, select_rule = {"SelectBackward0", apply_part};

Tensor *aten_slice(Eager *g, Tensor *x, int dim, int64_t length, int64_t step) {
    GUARD(g);
    Size size = x->size;
    int64_t stride[TENSOR_RANK];
    memcpy(stride, x->stride, sizeof stride);
    size.of[dim] = length;
    stride[dim] *= step;
    return linked(g, &slice_rule, x, tensor_view(g, x, size, stride));
}

Tensor *aten_narrow(Eager *g, Tensor *x, int dim, int64_t length) { return aten_slice(g, x, dim, length, 1); }

static Tensor *without_dim(Eager *g, Tensor *x, int dim) {
    Size size = {x->size.rank - 1, {0}};
    int64_t stride[TENSOR_RANK] = {0};
    for (int i = 0, k = 0; i < x->size.rank; i++) {
        if (i == dim) continue;
        size.of[k] = x->size.of[i];
        stride[k++] = x->stride[i];
    }
    return tensor_view(g, x, size, stride);
}

Tensor *aten_select(Eager *g, Tensor *x, int dim) {
    GUARD(g);
    return linked(g, &select_rule, x, without_dim(g, x, dim));
}

/* The parts' gradients put together by one op; zeros stand for parts that have none. */
static Tensor *together(Eager *g, const char *op, const Node *n, Tensor *const *dy) {
    Tensor *zeros[NODE_EDGES] = {NULL};
    for (int k = 0; k < n->n_out; k++)
        if (!dy[k]) {
            eager_op(g, "aten::zeros");
            zeros[k] = tensor_new(g, n->out[k].type, n->out[k].size);
        }
    eager_op(g, op);
    for (int k = 0; k < n->n_out; k++) READS(g, dy[k] ? dy[k] : zeros[k]);
    Tensor *dx = tensor_new(g, n->out[0].type, n->size);
    for (int k = 0; k < n->n_out; k++) tensor_drop(g, zeros[k]);
    return dx;
}

static void apply_split(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) { dx[0] = together(g, "aten::cat", n, dy); }

static const NodeRule split_rule = {"SplitBackward0", apply_split};

void aten_split(Eager *g, Tensor *x, const int64_t *length, int dim, Tensor **part, int count) {
    Node *n = node_new(g, &split_rule, &x, 1, 0);
    if (n) n->size = x->size;
    for (int k = 0; k < count; k++) {
        Size size = x->size;
        size.of[dim] = length[k];
        part[k] = tensor_view(g, x, size, x->stride);
        node_output(g, n, part[k]);
    }
}

static void apply_unbind(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) { dx[0] = together(g, "aten::stack", n, dy); }

static const NodeRule unbind_rule = {"UnbindBackward0", apply_unbind};

void aten_unbind(Eager *g, Tensor *x, int dim, Tensor **part) {
    Node *n = node_new(g, &unbind_rule, &x, 1, 0);
    if (n) n->size = x->size;
    for (int64_t k = 0; k < x->size.of[dim]; k++) node_output(g, n, part[k] = without_dim(g, x, dim));
}

/* ---- joins and copies */

static void apply_cat(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int i = 0; i < n->n_next; i++) {
        if (!node_wants(n, i)) continue;
        Size size = dy[0]->size;
        size.of[n->number[0]] = n->next[i].node->out[n->next[i].output].size.of[n->number[0]];
        dx[i] = tensor_view(g, dy[0], size, dy[0]->stride);
    }
}

static const NodeRule cat_rule = {"CatBackward0", apply_cat};

Tensor *aten_cat(Eager *g, Tensor *const *x, int count, int dim) {
    GUARD(g);
    Size size = x[0]->size;
    ScalarType type = x[0]->type;
    for (int k = 1; k < count; k++) {
        size.of[dim] += x[k]->size.of[dim];
        if (x[k]->type < type) type = x[k]->type;
    }
    eager_op(g, "aten::cat");
    work_reads(g, (const Tensor *const *)x, count);
    bool last = true; /* all of them say so */
    for (int k = 0; k < count; k++) last = last && tensor_suggests_channels_last(x[k]);
    Tensor *y = tensor_in_format(g, type, size, last);
    Node *n = node_new(g, &cat_rule, x, count, 0);
    if (n) n->number[0] = dim;
    node_output(g, n, y);
    return y;
}

static void apply_roll(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)n;
    dx[0] = aten_roll(g, dy[0]);
}

static const NodeRule roll_rule = {"RollBackward0", apply_roll};

Tensor *aten_roll(Eager *g, Tensor *x) {
    GUARD(g);
    eager_op(g, "aten::roll");
    READS(g, x);
    return linked(g, &roll_rule, x, tensor_new(g, x->type, x->size));
}

/* The gradient is summed over the times. */
static void apply_repeat(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const int64_t c = n->size.of[0];
    Tensor *rows = aten_view(g, dy[0], SIZE(dy[0]->size.of[0] / c, c));
    dx[0] = reduce(g, "aten::sum", rows, rows->type, 1, false);
    tensor_drop(g, rows);
}

static const NodeRule repeat_rule = {"RepeatBackward0", apply_repeat};

Tensor *aten_repeat(Eager *g, Tensor *x, int64_t times) {
    GUARD(g);
    if (!x) return NULL;
    eager_op(g, "aten::repeat");
    READS(g, x);
    return linked(g, &repeat_rule, x, tensor_new(g, x->type, SIZE(x->size.of[0] * times)));
}

static void apply_pad(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    dx[0] = aten_pad(g, dy[0], n->size);
}

static const NodeRule pad_rule = {"ConstantPadNdBackward0", apply_pad};

/* A padding below 0 cuts off: the copy is as large as the result either way. */
Tensor *aten_pad(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    eager_op(g, "aten::constant_pad_nd");
    READS(g, x);
    return linked(g, &pad_rule, x, tensor_in_format(g, x->type, size, tensor_suggests_channels_last(x)));
}
