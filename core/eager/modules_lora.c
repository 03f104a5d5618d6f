/* PEFT's lora.Linear (0.21): what a layer stands for whose option `listing` says so, which mt.peft.lora makes. Its forward function
 * casts the input to the adapter's type and the sum back to the type of the base's result. Source: peft/tuners/lora/layer.py. */
#include <string.h>

#include "modules.h"

enum { BASE, FIRST }; /* base_layer; then lora_dropout, where it is there, lora_A, lora_B, the scaling, and what is done with it */

static bool is_kind(const Layer *l, const char *kind) { return !strcmp(layer_kind(l), kind); }
static bool has_dropout(const Layer *l) { return is_kind(l->child[FIRST], "Dropout"); }
static int first_factor(const Layer *l) { return FIRST + has_dropout(l); }
static bool is_quantized(const Layer *base) { return bnb_is(base, 4) || bnb_is(base, 8); }

/* lora_B(lora_A(x)); takes the reference to x */
static Tensor *low_rank(Eager *g, const Layer *l, Tensor *x) {
    const int a = first_factor(l);
    for (int k = a; k <= a + 1; k++) tensor_set(g, &x, module_call(g, l->child[k], &x));
    return x;
}

static Tensor *dropped(Eager *g, const Layer *l, Tensor *x) {
    return has_dropout(l) ? module_call(g, l->child[FIRST], &x) : tensor_ref(x);
}

/* lora_B(lora_A(dropout(x))) * scaling */
static Tensor *adapter(Eager *g, const Layer *l, Tensor *x) {
    Tensor *y = low_rank(g, l, dropped(g, l, x));
    tensor_set(g, &y, aten_binary_number(g, WITH_MUL, y));
    return y;
}

static ScalarType adapter_type(const Eager *g, const Layer *l) { return module_param(g, l->child[first_factor(l)], 0)->type; }

/* ---- DoRA: peft/tuners/lora/dora.py, DoraLinearLayer.forward */

/* The layer that has the magnitudes; NULL: it is LoRA without. */
static const Layer *magnitudes(const Layer *l) {
    for (int i = FIRST; i < l->n_child; i++)
        if (is_kind(l->child[i], "DoraLinear")) return l->child[i];
    return NULL;
}

/* The base's weight as numbers of that type. */
static Tensor *base_weight(Eager *g, const Layer *base, ScalarType type) {
    Tensor *w = is_quantized(base) ? bnb_dequantized(g, base) : tensor_ref(module_param(g, base, 0));
    tensor_set(g, &w, aten_to(g, w, type));
    return w;
}

/* Lent; NULL: it has none. */
static Tensor *base_bias(const Eager *g, const Layer *l) {
    DoraParts parts;
    const int bias = dora_parts(magnitudes(l), &parts, NULL) ? -1 : dora_bias_of(g->net, &parts);
    return bias < 0 ? NULL : g->params[bias];
}

/* transpose(w, fan_in_fan_out): as Linear's weight lies */
static Tensor *as_linear(Eager *g, const Layer *base, Tensor *w) {
    return is_kind(base, "Conv1D") ? aten_transpose(g, w, 0, 1) : tensor_ref(w);
}

/* get_lora_weight: lora_B(lora_A(eye)).T, with a graph that nothing uses and that goes with it */
static Tensor *lora_weight(Eager *g, const Layer *l, ScalarType type) {
    const int64_t in = module_param(g, l->child[first_factor(l)], 0)->size.of[1];
    Tensor *eye = aten_random(g, "aten::eye", SIZE(in, in), adapter_type(g, l)), *product = low_rank(g, l, tensor_ref(eye));
    Tensor *w = aten_transpose(g, product, 0, 1);
    tensor_drop(g, product);
    tensor_drop(g, eye);
    tensor_set(g, &w, aten_to(g, w, type));
    return w;
}

/* get_weight_norm(weight, lora_weight.detach(), scaling) */
static Tensor *weight_norm(Eager *g, const Layer *base, Tensor *weight, Tensor *lora) {
    Tensor *w = as_linear(g, base, weight), *constant = tensor_detach(g, lora), *scaled = aten_binary_number(g, WITH_MUL, constant);
    tensor_set(g, &w, aten_binary(g, WITH_ADD, w, scaled));
    tensor_drop(g, scaled);
    const ScalarType type = w->type;
    /* autocast asks it for fp32, and casts nothing before it */
    Tensor *norm = aten_random(g, "aten::linalg_vector_norm", SIZE(w->size.of[0]), g->autocast ? T_FLOAT : type);
    tensor_set(g, &norm, aten_to(g, norm, type));
    tensor_drop(g, w);
    tensor_drop(g, constant);
    return norm;
}

/* (mag_norm_scale - 1) * base_result + mag_norm_scale * lora_result * scaling */
static Tensor *sum_of_parts(Eager *g, Tensor *scale, Tensor *base_result, Tensor *lora_result) {
    Tensor *less = aten_binary_number(g, WITH_SUB, scale), *first = aten_binary(g, WITH_MUL, less, base_result);
    tensor_drop(g, less);
    Tensor *second = aten_binary(g, WITH_MUL, scale, lora_result);
    tensor_set(g, &second, aten_binary_number(g, WITH_MUL, second));
    tensor_set(g, &first, aten_binary(g, WITH_ADD, first, second));
    tensor_drop(g, second);
    return first;
}

/* What DoRA adds to the base's result; x: after dropout */
static Tensor *dora_output(Eager *g, const Layer *l, Tensor *x, Tensor *result) {
    const Layer *base = l->child[BASE];
    Tensor *magnitude = module_param(g, magnitudes(l), 0), *bias = NULL, *base_result;
    Tensor *lora = lora_weight(g, l, x->type), *weight = base_weight(g, base, x->type), *norm = weight_norm(g, base, weight, lora);
    Tensor *ratio = aten_binary(g, WITH_DIV, magnitude, norm), *scale = aten_view(g, ratio, SIZE(1, magnitude->size.of[0]));
    tensor_drop(g, ratio);
    Tensor *lora_result = low_rank(g, l, tensor_ref(x));
    if (has_dropout(l) && g->training) {
        Tensor *w = as_linear(g, base, weight);
        base_result = aten_linear(g, x, w, NULL);
        tensor_drop(g, w);
    } else {
        bias = base_bias(g, l);
        base_result = bias ? aten_binary(g, WITH_SUB, result, bias) : tensor_ref(result);
    }
    Tensor *output = sum_of_parts(g, scale, base_result, lora_result);
    Tensor *const gone[] = {base_result, lora_result, scale, norm, weight, lora};
    for (size_t k = 0; k < sizeof gone / sizeof *gone; k++) tensor_drop(g, gone[k]);
    return output;
}

/* DoraLinearVariant.forward */
static Tensor *with_dora(Eager *g, const Layer *l, Tensor *x, Tensor *result) {
    Tensor *from = dropped(g, l, x), *output = dora_output(g, l, from, result), *sum = aten_binary(g, WITH_ADD, result, output);
    tensor_drop(g, output);
    tensor_drop(g, from);
    return sum;
}

/* ---- the layers */

/* peft/tuners/lora/bnb.py: the result of 4 bits is cloned; the adapter's output is cast, not the sum (of DoRA the sum), and under
 * autocast nothing. */
static Tensor *over_quantised(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *result = module_call(g, l->child[BASE], in);
    const ScalarType type = result->type;
    if (bnb_is(l->child[BASE], 4)) tensor_set(g, &result, aten_clone(g, result, false));
    Tensor *x = g->autocast ? tensor_ref(in[0]) : aten_to(g, in[0], adapter_type(g, l));
    if (magnitudes(l)) {
        tensor_set(g, &result, with_dora(g, l, x, result));
        if (!g->autocast) tensor_set(g, &result, aten_to(g, result, type));
    } else {
        Tensor *output = adapter(g, l, x);
        if (!g->autocast) tensor_set(g, &output, aten_to(g, output, type));
        tensor_set(g, &result, aten_binary(g, WITH_ADD, result, output));
        tensor_drop(g, output);
    }
    tensor_drop(g, x);
    return result;
}

Tensor *lora_linear(Eager *g, const Layer *l, Tensor *const *in) {
    GUARD(g);
    if (is_quantized(l->child[BASE])) return over_quantised(g, l, in);
    Tensor *result = module_call(g, l->child[BASE], in);
    const ScalarType type = result->type;
    Tensor *x = aten_to(g, in[0], adapter_type(g, l));
    if (magnitudes(l)) {
        tensor_set(g, &result, with_dora(g, l, x, result));
    } else {
        Tensor *y = adapter(g, l, x);
        tensor_set(g, &result, aten_binary(g, WITH_ADD, result, y));
        tensor_drop(g, y);
    }
    tensor_set(g, &result, aten_to(g, result, type));
    tensor_drop(g, x);
    return result;
}

Tensor *module_dora(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    GUARD(g);
    eager_refuse(g, "DoraLinear is predicted in what mt.peft.lora makes");
    return tensor_ref(in[0]);
}

/* The first layer of that kind in the order of the tree, or whose listing is that word. */
static const Layer *find(const Layer *l, const char *kind, const char *listed) {
    char listing[OPTION_WORDS];
    if (!strcmp(layer_kind(l), kind) && (!listed || !strcmp(options_word(&l->options, "listing", listing), listed))) return l;
    const Layer *found = NULL;
    for (int i = 0; i < l->n_child && !found; i++) found = find(l->child[i], kind, listed);
    return found;
}

const Layer *lora_asks(const Layer *root) {
    return find(root, "Checkpoint", NULL) && find(root, "Graph", "lora.Linear") ? find(root, "Embedding", NULL) : NULL;
}

/* The kinds of the children after base_layer, which "=" stands for */
static const char *const forms[] = {
    "Linear Linear Scale Add", "Dropout Linear Linear Scale Add", "Linear Linear Scale Add DoraLinear",
    "Dropout Linear Linear Scale = Add DoraLinear Sub Add",
};

static bool has_form(const Layer *l, const char *form) {
    for (int i = FIRST; i < l->n_child; i++) {
        const char *kind = layer_kind(l->child[i]);
        const size_t n = *form == '=' && !strcmp(kind, layer_kind(l->child[BASE])) ? 1 : strlen(kind);
        if (*form != '=' && strncmp(form, kind, n) != 0) return false;
        if (form[n] && form[n] != ' ') return false;
        form += n + (form[n] == ' ');
    }
    return !*form;
}

int lora_check(const Layer *l, Err *e) {
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        if (l->n_child > FIRST && has_form(l, forms[k])) return OK;
    return layer_error(l, e, "listing = \"lora.Linear\": expected what mt.peft.lora makes: the layer, Dropout or nothing, "
                       "lora_A and lora_B by Linear, their scaling, and the sum, with the magnitudes of DoRA or without");
}
