/* Losses. */
#include <string.h>

#include "modules.h"

static bool is_mean(const Layer *l) {
    char text[OPTION_WORDS];
    return strcmp(options_word(&l->options, "reduction", text), "sum") != 0;
}

static unsigned all_dims(const Tensor *x) { return (1u << x->size.rank) - 1; }

/* Takes over t. */
static Tensor *reduced(Eager *g, const Layer *l, Tensor *t) {
    Tensor *y = is_mean(l) ? aten_mean(g, t, all_dims(t), false) : aten_sum(g, t, all_dims(t), false);
    tensor_drop(g, t);
    return y;
}

/* (1 - smoothing) nll + smoothing / C times the mean of -sum(log p), whose ignored samples are masked out. Source:
 * ATen/native/LossNLL.cpp (cross_entropy_loss_label_smoothing). */
static Tensor *smoothed(Eager *g, const Layer *l, Tensor *log, Tensor *target, Tensor *weight) {
    GUARD(g);
    Tensor *nll = aten_nll_loss(g, log, target, weight);
    Tensor *sum = weight ? NULL : aten_sum(g, log, 1u << 1, false);
    if (weight) {
        Tensor *weighted = aten_binary(g, WITH_MUL, log, weight);
        sum = aten_sum(g, weighted, 1u << 1, false);
        tensor_drop(g, weighted);
    }
    Tensor *smooth = aten_neg(g, sum);
    tensor_drop(g, sum);
    Tensor *ignored = aten_random(g, "aten::eq", target->size, T_BOOL);
    aten_masked_fill_inplace(g, smooth, ignored);
    Tensor *kept = NULL, *count = NULL, *mean;
    if (is_mean(l)) {
        kept = aten_random(g, "aten::bitwise_not", target->size, T_BOOL);
        count = aten_random(g, "aten::sum", (Size){0, {0}}, T_LONG);
    }
    mean = aten_sum(g, smooth, all_dims(smooth), false);
    if (count) tensor_set(g, &mean, aten_binary(g, WITH_DIV, mean, count));
    tensor_drop(g, count);
    tensor_drop(g, kept);
    tensor_drop(g, ignored);
    Tensor *b = aten_binary_number(g, WITH_MUL, mean), *a = aten_binary_number(g, WITH_MUL, nll); /* as compilers do */
    Tensor *y = aten_binary(g, WITH_ADD, a, b);
    tensor_drop(g, b);
    tensor_drop(g, a);
    tensor_drop(g, mean);
    tensor_drop(g, smooth);
    tensor_drop(g, nll);
    return y;
}

static Tensor *cross_entropy(Eager *g, const Layer *l, Tensor *x, Tensor *target) {
    Tensor *log = aten_softmax(g, x, 1, true, x->type), *weight = g->class_weights;
    Tensor *y = options_float(&l->options, "label_smoothing") > 0 ? smoothed(g, l, log, target, weight)
                                                                  : aten_nll_loss(g, log, target, weight);
    tensor_drop(g, log);
    return y;
}

static Tensor *element_loss(Eager *g, const Layer *l, Tensor *x, Tensor *target) {
    switch ((LossFn)l->kind->which) {
    case LOSS_IDENTITY: return reduced(g, l, tensor_ref(x));
    case LOSS_L1: {
        Tensor *wide = amp_wide(g, x), *apart = aten_binary(g, WITH_SUB, wide, target);
        Tensor *size = aten_act(g, aten_act_rule("Abs"), apart, false);
        Tensor *y = reduced(g, l, size);
        tensor_drop(g, apart); /* of the same expression in Loss.cpp */
        tensor_drop(g, wide);  /* an argument of l1_loss */
        return y;
    }
    case LOSS_BCE_LOGITS: {
        const bool one = options_float(&l->options, "pos_weight") != 1;
        Tensor *pos = g->class_weights ? tensor_ref(g->class_weights)
                      : one            ? aten_random(g, "aten::empty", (Size){0, {0}}, T_FLOAT)
                                       : NULL;
        Tensor *y = aten_bce_with_logits(g, x, target, pos);
        tensor_drop(g, pos);
        return y;
    }
    default:
        if (l->kind->which == LOSS_BCE && g->autocast) /* ATen/autocast_mode.cpp (binary_cross_entropy_banned) */
            eager_refuse(g, "framework = \"pytorch\": PyTorch refuses it: torch.nn.BCELoss is unsafe to autocast: expected BCEWithLogitsLoss");
        return aten_pair_loss(g, layer_kind(l), x, target);
    }
}

Tensor *module_loss(Eager *g, const Layer *l, Tensor *x, Tensor *target) {
    const bool classes = l->kind->shape == layer_class_loss_shape;
    eager_where(g, l, g->node);
    Tensor *y = l->n_child          ? reduced(g, l, module_graph(g, l, (Tensor *[]){x, target}))
                : !classes          ? element_loss(g, l, x, target)
                : l->kind->which ? aten_nll_loss(g, x, target, g->class_weights)
                                 : cross_entropy(g, l, x, target);
    if (l->factor != 1) tensor_set(g, &y, aten_binary_number(g, WITH_MUL, y));
    eager_where(g, NULL, g->node);
    return y;
}

/* A loss is no module of the network: module_loss runs it. */
Tensor *module_class_loss(Eager *g, const Layer *l, Tensor *const *in) { return module_identity(g, l, in); }
Tensor *module_element_loss(Eager *g, const Layer *l, Tensor *const *in) { return module_identity(g, l, in); }
Tensor *module_script_loss(Eager *g, const Layer *l, Tensor *const *in) { return module_identity(g, l, in); }
