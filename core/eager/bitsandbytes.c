/* bitsandbytes' linear layers (0.50), and how PEFT's forward function differs where it adapts one. Sources: bitsandbytes/nn/modules.py,
 * autograd/_functions.py, functional.py, backends/cuda/ops.py; peft/tuners/lora/bnb.py.
 *
 * Of 4 bits: MatMul4Bit dequantises the whole weight for the product, and once more for the gradient of its input. Version 0.50 has
 * a kernel that does not, which some cards use for at most 1,536 rows: the prediction is then too high by that weight.
 * Of 8 bits: LLM.int8() with transformers' threshold of 6, and no outliers, which hang on the values. */
#include <string.h>

#include "modules.h"

static const Param *weight_of(const Eager *g, const Layer *l) { return &g->net->params[l->param[0]]; }
static Size whole_size(const Param *p) { return size_from(&p->quantized.shape); }

bool bnb_is(const Layer *l, int bits) { return l->kind->shape == layer_linear_q_shape && l->kind->which == bits; }

/* ---- 4 bits */

/* absmax in fp32, where it is of codes; NULL: it is as it lies. added: the offset is added into a tensor of its own, not in place. */
static void absmax_of(Eager *g, const Layer *l, bool added, Tensor *made[2]) {
    made[0] = made[1] = NULL;
    if (!weight_of(g, l)->quantized.nested) return;
    const Size blocks = module_param(g, l, l->n_params - 5)->size;
    made[0] = aten_random(g, "bitsandbytes::dequantize_blockwise", blocks, T_FLOAT);
    if (added) made[1] = aten_random(g, "aten::add", blocks, T_FLOAT);
    else eager_inplace(g, "aten::add_", made[0], NULL);
}

static Tensor *dequantised(Eager *g, const Layer *l, ScalarType type) {
    return aten_random(g, "bitsandbytes::dequantize_4bit", whole_size(weight_of(g, l)), type);
}

/* functional.dequantize_4bit(weight, quant_state), in the type that the weight had */
static Tensor *dequantised_whole(Eager *g, const Layer *l) {
    Tensor *absmax[2];
    absmax_of(g, l, false, absmax);
    Tensor *w = dequantised(g, l, g->low);
    tensor_drop(g, absmax[0]);
    return w;
}

static void apply_matmul4(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Tensor *w = dequantised_whole(g, n->layer), *same;
    same = aten_to(g, w, dy[0]->type);
    tensor_drop(g, w);
    Tensor *product = aten_matmul(g, dy[0], same);
    dx[0] = tensor_detach(g, product); /* _unsafe_view: it does not count as a view of the product of matrices */
    tensor_drop(g, product);
    tensor_drop(g, same);
}

static const NodeRule matmul4_rule = {"MatMul4BitBackward", apply_matmul4};

static Tensor *matmul4(Eager *g, const Layer *l, Tensor *x, Tensor *bias) {
    GUARD(g);
    Node *n = node_new(g, &matmul4_rule, &x, 1, 0);
    const bool grad = g->grad;
    Tensor *absmax[2];
    g->grad = false;
    absmax_of(g, l, true, absmax);
    Tensor *w = dequantised(g, l, x->type), *y = aten_linear(g, x, w, bias);
    tensor_drop(g, w);
    for (int k = 0; k < 2; k++) tensor_drop(g, absmax[k]);
    g->grad = grad;
    node_output(g, n, y);
    return y;
}

/* ---- 8 bits */

static void apply_matmul8(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const ScalarType type = n->next[0].node->out[n->next[0].output].type;
    const Size rows = {1, {weight_of(g, n->layer)->quantized.shape.dim[0]}};
    Tensor *w = aten_random(g, "aten::_to_copy", whole_size(weight_of(g, n->layer)), type);
    Tensor *scale = aten_random(g, "aten::mul", rows, T_FLOAT);
    eager_inplace(g, "aten::mul_", w, scale);
    tensor_drop(g, scale);
    Tensor *same = aten_to(g, dy[0], type);
    dx[0] = aten_matmul(g, same, w);
    tensor_drop(g, same);
    tensor_drop(g, w);
}

static const NodeRule matmul8_rule = {"MatMul8bitLtBackward", apply_matmul8};

/* The rows of x as int8 with a scale each, in out[2]; and a search for outliers, which finds none. */
static void quantise_rows(Eager *g, Tensor *x, Tensor *out[2]) {
    const Size rows = {1, {tensor_elements(x) / x->size.of[x->size.rank - 1]}};
    Tensor *half = aten_to(g, x, T_HALF);
    out[1] = aten_random(g, "aten::empty", rows, T_FLOAT);
    out[0] = aten_random(g, "aten::empty", x->size, T_BYTE);
    Tensor *size = aten_random(g, "aten::abs", x->size, T_HALF), *outliers = aten_random(g, "aten::ge", x->size, T_BOOL);
    tensor_drop(g, size);
    Tensor *any = aten_random(g, "aten::any", (Size){0, {0}}, T_BOOL);
    tensor_drop(g, any);
    tensor_drop(g, outliers);
    tensor_drop(g, half);
}

static Tensor *matmul8(Eager *g, const Layer *l, Tensor *x) {
    GUARD(g);
    Node *n = node_new(g, &matmul8_rule, &x, 1, 0);
    const bool grad = g->grad;
    Tensor *row[2];
    Size y_size = x->size;
    y_size.of[y_size.rank - 1] = weight_of(g, l)->quantized.shape.dim[0];
    g->grad = false;
    quantise_rows(g, x, row);
    Tensor *sums = aten_random(g, "bitsandbytes::int8_linear_matmul", y_size, T_INT);
    Tensor *half = aten_random(g, "aten::empty_like", y_size, T_HALF), *y = aten_to(g, half, x->type);
    tensor_drop(g, half);
    tensor_drop(g, sums);
    for (int k = 0; k < 2; k++) tensor_drop(g, row[k]);
    g->grad = grad;
    if (n) n->kept = tensor_ref(x); /* an attribute of its context, which goes with the graph */
    node_output(g, n, y);
    return y;
}

/* ---- the layers */

/* Of 8 bits functional.int8_vectorwise_dequant: codes times scales, times 1 / 127, in fp32 */
Tensor *bnb_dequantized(Eager *g, const Layer *l) {
    if (bnb_is(l, 4)) return dequantised_whole(g, l);
    const Size whole = whole_size(weight_of(g, l));
    Tensor *w = aten_random(g, "aten::mul", whole, T_FLOAT);
    tensor_set(g, &w, aten_random(g, "aten::mul", whole, T_FLOAT));
    return w;
}

Tensor *module_linear_q(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *bias = options_bool(&l->options, "bias") ? module_param(g, l, 1) : NULL;
    if (bnb_is(l, 8)) return matmul8(g, l, in[0]);
    GUARD(g);
    Tensor *x = aten_to(g, in[0], g->low), *low = bias ? aten_to(g, bias, g->low) : NULL;
    Tensor *y = matmul4(g, l, x, low);
    tensor_set(g, &y, aten_to(g, y, in[0]->type));
    tensor_drop(g, low);
    tensor_drop(g, x);
    return y;
}

int bnb_derived(const Network *n, int weight, int order[BNB_DERIVED]) {
    static const int as_moved[BNB_DERIVED] = {1, 0, 4, 2, 3}; /* quant_map, absmax, offset, and of that absmax, map */
    int first = weight + 1, count = 0;
    if (n->params[weight].quantized.format == QUANT_INT8) return 0;
    while (first < n->n_params && !n->params[first].derived) first++;
    for (int k = 0; k < BNB_DERIVED; k++) {
        const int i = first + as_moved[k];
        if (i < n->n_params && n->params[i].derived && n->params[i].owner == n->params[weight].owner) order[count++] = i;
    }
    return count;
}
