/* Losses. Sources: ATen/native/LossNLL.cpp, Loss.cpp. The storage of mse_loss and smooth_l1_loss has the size of their
 * inputs: the kernel makes the result so and shrinks its shape alone. Autocast runs them in fp32. */
#include <string.h>

#include "aten.h"

/* ---- nll_loss: saved: x, target, total_weight */

static void apply_nll(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)dy;
    eager_op(g, n->number[0] ? "aten::nll_loss2d_backward" : "aten::nll_loss_backward");
    dx[0] = tensor_like(g, n->saved[0], n->saved[0]->type);
    READS(g, n->saved[1]);
}

static const NodeRule nll_rules[] = {{"NllLossBackward0", apply_nll}, {"NllLoss2DBackward0", apply_nll}};

/* x (N, C), or (N, C, L) and (N, C, H, W), which nll_loss2d takes. */
Tensor *aten_nll_loss(Eager *g, Tensor *x, Tensor *target, Tensor *weight) {
    GUARD(g);
    const bool image = x->size.rank > 2;
    Tensor *lx = amp_wide(g, x);
    Node *n = node_new(g, &nll_rules[image], &lx, 1, 4);
    if (n) n->number[0] = image;
    node_save(g, n, 0, lx);
    node_save(g, n, 1, target);
    node_save(g, n, 3, weight);
    eager_op(g, image ? "aten::nll_loss2d_forward" : "aten::nll_loss_forward");
    READS(g, target, target); /* and as many of x */
    Tensor *y = tensor_new(g, lx->type, (Size){0, {0}}), *total = tensor_new(g, lx->type, (Size){0, {0}});
    node_save(g, n, 2, total);
    node_output(g, n, y);
    tensor_drop(g, total);
    tensor_drop(g, lx);
    return y;
}

/* ---- gather: saved: x, index. The gradient is zeros, into which it is added. */

static void apply_gather(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, "aten::gather_backward");
    dx[0] = tensor_new(g, dy[0]->type, n->saved[0]->size);
}

static const NodeRule gather_rule = {"GatherBackward0", apply_gather};

/* Of each row of x (..., C) the element that its label names: (..., 1) */
Tensor *aten_gather(Eager *g, Tensor *x, Tensor *index) {
    GUARD(g);
    Node *n = node_new(g, &gather_rule, &x, 1, 2);
    node_save(g, n, 0, x);
    node_save(g, n, 1, index);
    eager_op(g, "aten::gather");
    Size rows = x->size;
    rows.of[rows.rank - 1] = 1;
    Tensor *y = tensor_new(g, x->type, rows);
    node_output(g, n, y);
    return y;
}

/* ---- losses of pairs of elements: saved: x, target */

static void apply_pair(Eager *g, Node *n, Tensor *const *dy, Tensor **dx);

/* The terms are a tensor of the inputs' size: the result's own storage in BCE, one beside it in the others, of which some
 * make the result before it, and as large. */
typedef enum PairWay { WHOLE_THEN_TERMS, TERMS_THEN_NUMBER, TERMS_ARE_RESULT } PairWay;
static const struct PairLoss { const char *name, *op, *backward; NodeRule rule; PairWay way; } pairs[] = {
    {"MSELoss", "aten::mse_loss", "aten::mse_loss_backward", {"MseLossBackward0", apply_pair}, WHOLE_THEN_TERMS},
    {"SmoothL1Loss", "aten::smooth_l1_loss", "aten::smooth_l1_loss_backward", {"SmoothL1LossBackward0", apply_pair},
     WHOLE_THEN_TERMS},
    {"HuberLoss", "aten::huber_loss", "aten::huber_loss_backward", {"HuberLossBackward0", apply_pair}, TERMS_THEN_NUMBER},
    {"BCELoss", "aten::binary_cross_entropy", "aten::binary_cross_entropy_backward",
     {"BinaryCrossEntropyBackward0", apply_pair}, TERMS_ARE_RESULT},
};

static void apply_pair(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)dy;
    const Tensor *x = n->saved[0];
    eager_op(g, pairs[n->number[0]].backward); /* BCE's is like its input, the others are zeros in order */
    READS(g, x, n->saved[1]);
    dx[0] = pairs[n->number[0]].way == TERMS_ARE_RESULT ? tensor_like(g, x, x->type) : tensor_new(g, x->type, x->size);
}

Tensor *aten_pair_loss(Eager *g, const char *name, Tensor *x, Tensor *target) {
    GUARD(g);
    int i = 0;
    while (i + 1 < (int)ARRAY_LEN(pairs) && strcmp(pairs[i].name, name)) i++;
    Tensor *lx = amp_wide(g, x);
    Node *n = node_new(g, &pairs[i].rule, &lx, 1, 2);
    if (n) n->number[0] = i;
    node_save(g, n, 0, lx);
    node_save(g, n, 1, target);
    eager_op(g, pairs[i].op);
    READS(g, lx, target);
    const PairWay way = pairs[i].way;
    const unsigned all = (1u << lx->size.rank) - 1;
    Tensor *whole = tensor_like(g, lx, lx->type), *y = NULL, *terms = NULL;
    if (way == WHOLE_THEN_TERMS) terms = tensor_like(g, lx, lx->type); /* written and read; of the whole only a number is */
    else READS(g, whole);
    if (way != WHOLE_THEN_TERMS) y = tensor_new(g, lx->type, (Size){0, {0}});
    reduce_inner(g, whole, all, 4);
    if (way != TERMS_THEN_NUMBER) tensor_set(g, &y, tensor_view(g, whole, (Size){0, {0}}, (int64_t[TENSOR_RANK]){0}));
    tensor_drop(g, whole);
    tensor_drop(g, terms);
    node_output(g, n, y);
    tensor_drop(g, lx);
    return y;
}

/* ---- binary_cross_entropy_with_logits */

static void apply_logits(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)dy;
    const Tensor *x = n->saved[0];
    if (!n->saved[2]) {
        eager_op(g, "aten::sigmoid");
        READS(g, x);
        dx[0] = tensor_like(g, x, x->type);
        return;
    }
    eager_op(g, "aten::mul"); /* t = pos_weight * target */
    Tensor *t = tensor_like(g, x, x->type);
    READS(g, n->saved[1], n->saved[2]);
    eager_op(g, "aten::add");
    READS(g, t);
    dx[0] = tensor_like(g, x, x->type);
    eager_op(g, "aten::sigmoid");
    READS(g, x);
    INNER(g, (int64_t)tensor_bytes(x));
    tensor_drop(g, t);
}

static const NodeRule logits_rule = {"BinaryCrossEntropyWithLogitsBackward0", apply_logits};

Tensor *aten_bce_with_logits(Eager *g, Tensor *x, Tensor *target, Tensor *pos_weight) {
    GUARD(g);
    Tensor *lx = amp_wide(g, x);
    Node *n = node_new(g, &logits_rule, &lx, 1, 3);
    node_save(g, n, 0, lx);
    node_save(g, n, 1, target);
    node_save(g, n, 2, pos_weight);
    eager_op(g, "aten::log_sigmoid_forward");
    READS(g, lx);
    Tensor *log = tensor_like(g, lx, lx->type);
    if (pos_weight) {
        eager_op(g, "aten::sub");
        Tensor *one = tensor_like(g, pos_weight, pos_weight->type);
        eager_op(g, "aten::mul");
        INNER(g, (int64_t)tensor_bytes(lx));
        tensor_drop(g, one);
    }
    eager_op(g, "aten::empty_like");
    READS(g, lx, target, log);
    Tensor *whole = tensor_like(g, lx, lx->type);
    eager_op(g, "aten::mean");
    READS(g, whole);
    Tensor *y = tensor_new(g, lx->type, (Size){0, {0}});
    reduce_inner(g, whole, (1u << whole->size.rank) - 1, 4);
    tensor_drop(g, whole);
    tensor_drop(g, log);
    node_output(g, n, y);
    tensor_drop(g, lx);
    return y;
}
