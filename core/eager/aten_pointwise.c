/* Elementwise ops: one result of the broadcast shape. What each saves is derivatives.yaml's. */
#include <assert.h>
#include <string.h>

#include "aten.h"

static ScalarType wider(ScalarType a, ScalarType b) {
    if (a == b || !scalar_is_float(b)) return a;
    if (!scalar_is_float(a)) return b;
    return T_FLOAT; /* also of half with bfloat16 */
}

static Size broadcast_size(const Size *a, const Size *b) {
    const Size *longer = a->rank >= b->rank ? a : b, *other = longer == a ? b : a;
    Size s = *longer;
    const int more = longer->rank - other->rank;
    for (int d = 0; d < other->rank; d++)
        if (s.of[more + d] == 1) s.of[more + d] = other->of[d];
    return s;
}

static Tensor *iterate(Eager *g, const char *op, const Tensor *a, const Tensor *b) {
    const Size size = broadcast_size(&a->size, &b->size);
    const ScalarType type = wider(a->type, b->type);
    eager_op(g, op);
    READS(g, a, b);
    return tensor_of_operands(g, type, size, (const Tensor *[]){a, b}, 2);
}

static Tensor *unary(Eager *g, const char *op, const Tensor *x) {
    eager_op(g, op);
    READS(g, x);
    return tensor_of_operands(g, x->type, x->size, &x, 1);
}

/* ---- two tensors */

static Tensor *passed(Tensor *d, const Node *n, int i) { return node_wants(n, i) ? tensor_ref(d) : NULL; }

static void apply_add(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)g;
    for (int i = 0; i < n->n_next; i++) dx[i] = passed(dy[0], n, i);
}

static void apply_sub(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    if (n->n_next > 1 && node_wants(n, 1)) dx[1] = unary(g, "aten::neg", dy[0]);
    dx[0] = passed(dy[0], n, 0);
}

/* The gradient of `other` first, as its name comes first in the alphabet. */
static void apply_mul(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    if (n->n_next > 1 && node_wants(n, 1)) dx[1] = iterate(g, "aten::mul", dy[0], n->saved[0]);
    if (node_wants(n, 0)) dx[0] = n->saved[1] ? iterate(g, "aten::mul", dy[0], n->saved[1]) : unary(g, "aten::mul", dy[0]);
}

/* -grad * ((self / other) / other), and grad / other */
static void apply_div(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    if (n->n_next > 1 && node_wants(n, 1)) {
        Tensor *ratio = iterate(g, "aten::div", n->saved[0], n->saved[1]);
        Tensor *twice = iterate(g, "aten::div", ratio, n->saved[1]), *minus = unary(g, "aten::neg", dy[0]);
        dx[1] = iterate(g, "aten::mul", minus, twice);
        tensor_drop(g, ratio);
        tensor_drop(g, twice);
        tensor_drop(g, minus);
    }
    if (node_wants(n, 0)) dx[0] = n->saved[1] ? iterate(g, "aten::div", dy[0], n->saved[1]) : unary(g, "aten::div", dy[0]);
}

static const struct { const char *op; NodeRule rule; } binaries[] = {
    [WITH_ADD] = {"aten::add", {"AddBackward0", apply_add}},
    [WITH_SUB] = {"aten::sub", {"SubBackward0", apply_sub}},
    [WITH_MUL] = {"aten::mul", {"MulBackward0", apply_mul}},
    [WITH_DIV] = {"aten::div", {"DivBackward0", apply_div}},
};

Tensor *aten_binary(Eager *g, WithOp op, Tensor *a, Tensor *b) {
    GUARD(g);
    Node *n = node_new(g, &binaries[op].rule, (Tensor *[]){a, b}, 2, 2);
    const bool product = op == WITH_MUL || op == WITH_DIV;
    if (n && product && node_wants(n, 1)) node_save(g, n, 0, a);
    if (n && product && (node_wants(n, 0) || op == WITH_DIV)) node_save(g, n, 1, b);
    Tensor *y = iterate(g, binaries[op].op, a, b);
    node_output(g, n, y);
    return y;
}

Tensor *aten_binary_number(Eager *g, WithOp op, Tensor *a) {
    GUARD(g);
    Tensor *y = unary(g, binaries[op].op, a);
    node_output(g, node_new(g, &binaries[op].rule, &a, 1, 2), y);
    return y;
}

Tensor *aten_add_inplace(Eager *g, Tensor *a, Tensor *b) {
    GUARD(g);
    node_rebase(g, node_new(g, &binaries[WITH_ADD].rule, (Tensor *[]){a, b}, 2, 0), a);
    eager_inplace(g, "aten::add_", a, b);
    return tensor_ref(a);
}

Tensor *aten_mul_inplace(Eager *g, Tensor *a, Tensor *b) {
    Node *n = node_new(g, &binaries[WITH_MUL].rule, (Tensor *[]){a, b}, 2, 2);
    if (n && node_wants(n, 1)) node_save(g, n, 0, a);
    if (n && node_wants(n, 0)) node_save(g, n, 1, b);
    node_rebase(g, n, a);
    eager_inplace(g, "aten::mul_", a, b);
    return tensor_ref(a);
}

/* ---- activations */

enum { ACT_FACTORS = 2 };

struct ActRule {
    const char *name, *op, *backward_op;
    NodeRule rule;
    enum { SAVES_INPUT, SAVES_RESULT, LEADS } saves; /* + LEADS: in the backward pass it stands before the gradient */
    const char *factors[ACT_FACTORS]; /* what its backward pass makes before, where it is not one kernel */
};

static void apply_act(Eager *g, Node *n, Tensor *const *dy, Tensor **dx);

#define ACT(name, op, node, backward, saves, ...) {name, "aten::" op, "aten::" backward, {node, apply_act}, saves, {__VA_ARGS__}}
static const ActRule acts[] = {
    ACT("ReLU", "relu", "ReluBackward0", "threshold_backward", SAVES_RESULT + LEADS, NULL),
    ACT("LeakyReLU", "leaky_relu", "LeakyReluBackward0", "leaky_relu_backward", SAVES_INPUT + LEADS, NULL),
    ACT("Sigmoid", "sigmoid", "SigmoidBackward0", "sigmoid_backward", SAVES_RESULT, NULL),
    ACT("Tanh", "tanh", "TanhBackward0", "tanh_backward", SAVES_RESULT, NULL),
    ACT("SiLU", "silu", "SiluBackward0", "silu_backward", SAVES_INPUT, NULL),
    ACT("ELU", "elu", "EluBackward0", "elu_backward", SAVES_INPUT, NULL),
    ACT("CELU", "celu", "CeluBackward0", "elu_backward", SAVES_INPUT, NULL),
    ACT("Softplus", "softplus", "SoftplusBackward0", "softplus_backward", SAVES_INPUT, NULL),
    ACT("Hardswish", "hardswish", "HardswishBackward0", "hardswish_backward", SAVES_INPUT, NULL),
    ACT("ReLU6", "hardtanh", "HardtanhBackward0", "hardtanh_backward", SAVES_INPUT, NULL),
    ACT("Hardtanh", "hardtanh", "HardtanhBackward0", "hardtanh_backward", SAVES_INPUT, NULL),
    ACT("Hardsigmoid", "hardsigmoid", "HardsigmoidBackward0", "hardsigmoid_backward", SAVES_INPUT, NULL),
    ACT("Mish", "mish", "MishBackward0", "mish_backward", SAVES_INPUT, NULL),
    ACT("LogSigmoid", "log_sigmoid_forward", "LogSigmoidBackward0", "log_sigmoid_backward", SAVES_INPUT, NULL),
    ACT("SELU", "selu", "EluBackward0", "elu_backward", SAVES_INPUT, NULL),
    ACT("GELU", "gelu", "GeluBackward0", "gelu_backward", SAVES_INPUT, NULL),
    ACT("Abs", "abs", "AbsBackward0", "mul", SAVES_INPUT, "aten::sgn"),
    ACT("Exp", "exp", "ExpBackward0", "mul", SAVES_RESULT, NULL),
    ACT("Log", "log", "LogBackward0", "div", SAVES_INPUT, NULL),
    ACT("Sqrt", "sqrt", "SqrtBackward0", "div", SAVES_RESULT, "aten::mul"),
    ACT("Rsqrt", "rsqrt", "RsqrtBackward0", "mul", SAVES_RESULT, "aten::pow", "aten::mul"),
    ACT("Reciprocal", "reciprocal", "ReciprocalBackward0", "mul", SAVES_RESULT, "aten::mul", "aten::neg"),
    ACT("Pow", "pow", "PowBackward0", "mul", SAVES_INPUT, "aten::pow", "aten::mul"),
    ACT("Sin", "sin", "SinBackward0", "mul", SAVES_INPUT, "aten::cos"),
    ACT("Cos", "cos", "CosBackward0", "mul", SAVES_INPUT, "aten::sin", "aten::neg"),
};

const ActRule *aten_act_rule(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(acts); i++)
        if (!strcmp(acts[i].name, name)) return &acts[i];
    return NULL;
}

static void apply_act(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const ActRule *rule = (const ActRule *)((const char *)n->rule - offsetof(ActRule, rule));
    Tensor *factor[ACT_FACTORS] = {NULL};
    for (int i = 0; i < ACT_FACTORS && rule->factors[i]; i++) factor[i] = unary(g, rule->factors[i], n->saved[0]);
    eager_op(g, rule->backward_op);
    const Tensor *const read[] = {n->saved[0], dy[0], factor[0] ? factor[0] : n->saved[0]};
    READS(g, read[1], read[2]);
    dx[0] = tensor_of_operands(g, dy[0]->type, dy[0]->size, read + !(rule->saves & LEADS), 2);
    for (int i = 0; i < ACT_FACTORS; i++) tensor_drop(g, factor[i]);
}

/* In place, a function whose derivative wants the input keeps a copy of it. */
Tensor *aten_act(Eager *g, const ActRule *rule, Tensor *x, bool inplace) {
    GUARD(g);
    Node *n = node_new(g, &rule->rule, &x, 1, 1);
    Tensor *kept = NULL;
    if (inplace && n && !(rule->saves & SAVES_RESULT) && strcmp(rule->name, "LeakyReLU")) kept = unary(g, "aten::clone", x);
    if (!(rule->saves & SAVES_RESULT)) node_save(g, n, 0, kept ? kept : x);
    tensor_drop(g, kept);
    if (inplace) eager_inplace(g, rule->op, x, NULL);
    Tensor *y = inplace ? tensor_ref(x) : unary(g, rule->op, x);
    if (rule->saves & SAVES_RESULT) node_save(g, n, 0, y);
    if (inplace) node_rebase(g, n, y);
    else node_output(g, n, y);
    return y;
}

/* ---- glu: an elementwise op on two views of its input, which is saved (GatedLinearUnit.cpp) */

static void apply_glu(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::glu_backward");
    READS(g, dy[0], n->saved[0]);
    dx[0] = tensor_new(g, n->saved[0]->type, n->saved[0]->size);
}

static const NodeRule glu_rule = {"GluBackward0", apply_glu};

Tensor *aten_glu(Eager *g, Tensor *x, int dim) {
    GUARD(g);
    Size size = x->size;
    size.of[dim] /= 2;
    Node *n = node_new(g, &glu_rule, &x, 1, 1);
    node_save(g, n, 0, x);
    Tensor *half = tensor_view(g, x, size, x->stride);
    eager_op(g, "aten::glu");
    READS(g, x);
    Tensor *y = tensor_of_operands(g, x->type, size, (const Tensor *[]){half, half}, 2);
    node_output(g, n, y);
    tensor_drop(g, half);
    return y;
}

/* ---- types */

static void apply_to(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    dx[0] = aten_to(g, dy[0], (ScalarType)n->number[0]);
}

static const NodeRule to_rule = {"ToCopyBackward0", apply_to};

Tensor *aten_to(Eager *g, Tensor *x, ScalarType type) {
    GUARD(g);
    if (x->type == type) return tensor_ref(x);
    eager_op(g, "aten::_to_copy");
    READS(g, x);
    Tensor *y = tensor_like(g, x, type);
    Node *n = node_new(g, &to_rule, &x, 1, 0);
    if (n) n->number[0] = x->type;
    node_output(g, n, y);
    return y;
}

/* ---- dropout: a mask of a byte per element */

static void apply_dropout(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    dx[0] = unary(g, "aten::native_dropout_backward", dy[0]);
    READS(g, n->saved[0]);
}

static const NodeRule dropout_rule = {"NativeDropoutBackward0", apply_dropout};

Tensor *aten_dropout(Eager *g, Tensor *x) {
    GUARD(g);
    Node *n = node_new(g, &dropout_rule, &x, 1, 1);
    eager_op(g, "aten::native_dropout");
    Tensor *mask = tensor_like(g, x, T_BOOL), *y = unary(g, "aten::native_dropout", x);
    node_save(g, n, 0, mask);
    node_output(g, n, y);
    tensor_drop(g, mask);
    return y;
}

static void apply_neg(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)n;
    dx[0] = unary(g, "aten::neg", dy[0]);
}

static const NodeRule neg_rule = {"NegBackward0", apply_neg};

Tensor *aten_neg(Eager *g, Tensor *x) {
    GUARD(g);
    Node *n = node_new(g, &neg_rule, &x, 1, 0);
    Tensor *y = unary(g, "aten::neg", x);
    node_output(g, n, y);
    return y;
}

static void apply_rsub(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) { apply_neg(g, n, dy, dx); }
static const NodeRule rsub_rule = {"RsubBackward1", apply_rsub};

Tensor *aten_rsub(Eager *g, Tensor *x) {
    GUARD(g);
    Node *n = node_new(g, &rsub_rule, &x, 1, 0);
    Tensor *y = unary(g, "aten::rsub", x);
    node_output(g, n, y);
    return y;
}

static void apply_masked_fill(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::masked_fill");
    READS(g, dy[0], n->saved[0]);
    dx[0] = tensor_new(g, dy[0]->type, dy[0]->size);
}

static const NodeRule masked_fill_rule = {"MaskedFillBackward0", apply_masked_fill};

/* A copy in order, however x lies. */
Tensor *aten_masked_fill(Eager *g, Tensor *x, Tensor *mask) {
    GUARD(g);
    Node *n = node_new(g, &masked_fill_rule, &x, 1, 1);
    node_save(g, n, 0, mask);
    eager_op(g, "aten::masked_fill");
    READS(g, x, mask);
    Tensor *y = tensor_new(g, x->type, broadcast_size(&x->size, &mask->size));
    node_output(g, n, y);
    return y;
}

static Tensor *scalar(Eager *g, ScalarType type) {
    eager_op(g, "aten::scalar_tensor");
    return tensor_new(g, type, (Size){0, {0}});
}

/* The gradient of each operand is a where with a zero, which is a tensor of one number. */
static void apply_where(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int i = 0; i < n->n_next; i++) {
        if (!node_wants(n, i)) continue;
        Tensor *zero = scalar(g, dy[0]->type);
        dx[i] = iterate(g, "aten::where", dy[0], n->saved[0]);
        tensor_drop(g, zero);
    }
}

static const NodeRule where_rule = {"WhereBackward0", apply_where};

/* A number in place of b is a tensor, too, while the op runs. */
Tensor *aten_where(Eager *g, Tensor *mask, Tensor *a, Tensor *b) {
    GUARD(g);
    Tensor *number = b ? NULL : scalar(g, a->type);
    Node *n = node_new(g, &where_rule, (Tensor *[]){a, b}, b ? 2 : 1, 1);
    node_save(g, n, 0, mask);
    Tensor *y = iterate(g, "aten::where", a, b ? b : number);
    READS(g, mask);
    node_output(g, n, y);
    tensor_drop(g, number);
    return y;
}

/* where(x >= min, grad, 0), with a second mask for two bounds */
static void apply_clamp(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Tensor *zero = scalar(g, dy[0]->type), *mask[2] = {NULL};
    for (int k = 0; k <= (int)n->number[0]; k++) {
        eager_op(g, k ? "aten::le" : "aten::ge");
        READS(g, n->saved[0]);
        mask[k] = tensor_like(g, n->saved[0], T_BOOL);
    }
    if (mask[1]) eager_inplace(g, "aten::logical_and_", mask[0], mask[1]);
    tensor_drop(g, mask[1]);
    dx[0] = iterate(g, "aten::where", dy[0], mask[0]);
    tensor_drop(g, mask[0]);
    tensor_drop(g, zero);
}

static const NodeRule clamp_rule = {"ClampBackward1", apply_clamp};

Tensor *aten_clamp(Eager *g, Tensor *x, bool both) {
    GUARD(g);
    Node *n = node_new(g, &clamp_rule, &x, 1, 1);
    if (n) n->number[0] = both;
    node_save(g, n, 0, x);
    Tensor *y = unary(g, "aten::clamp", x);
    node_output(g, n, y);
    return y;
}

void aten_masked_fill_inplace(Eager *g, Tensor *x, Tensor *mask) {
    Node *n = node_new(g, &masked_fill_rule, &x, 1, 1);
    node_save(g, n, 0, mask);
    node_rebase(g, n, x);
    eager_inplace(g, "aten::masked_fill_", x, mask);
}

Tensor *aten_random(Eager *g, const char *op, Size size, ScalarType type) {
    GUARD(g);
    eager_op(g, op);
    return tensor_new(g, type, size);
}

Tensor *aten_triangle(Eager *g, int64_t rows, int64_t columns) {
    Tensor *ones = aten_random(g, "aten::ones", SIZE(rows, columns), T_BOOL);
    Tensor *triangle = aten_random(g, "aten::tril", ones->size, T_BOOL);
    READS(g, ones);
    tensor_drop(g, ones);
    return triangle;
}

/* ---- prelu: both gradients at x's size; the weight's is summed up */

static void apply_prelu(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::_prelu_kernel_backward");
    READS(g, dy[0], n->saved[0], n->saved[1]);
    Tensor *x = tensor_like(g, n->saved[0], n->saved[0]->type), *w = tensor_like(g, n->saved[0], n->saved[0]->type);
    if (node_wants(n, 0)) dx[0] = tensor_ref(x);
    if (node_wants(n, 1)) dx[1] = tensor_ref(w);
    tensor_drop(g, x);
    tensor_drop(g, w);
}

static const NodeRule prelu_rule = {"PreluKernelBackward0", apply_prelu};

Tensor *aten_prelu(Eager *g, Tensor *x, Tensor *w) {
    GUARD(g);
    Size shape = {x->size.rank, {1, 1, 1, 1, 1, 1}};
    if (tensor_elements(w) > 1) shape.of[x->size.rank > 1] = tensor_elements(w);
    Tensor *wide = aten_view(g, w, shape);
    Node *n = node_new(g, &prelu_rule, (Tensor *[]){x, wide}, 2, 2);
    node_save(g, n, 0, x);
    node_save(g, n, 1, wide);
    Tensor *y = unary(g, "aten::_prelu_kernel", x);
    node_output(g, n, y);
    tensor_drop(g, wide);
    return y;
}
