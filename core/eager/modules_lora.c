/* PEFT's lora.Linear (0.21): what a layer stands for whose option `listing` says so, which mt.peft.lora makes. Its forward function
 * casts the input to the adapter's type and the sum back to the type of the base's result. Source: peft/tuners/lora/layer.py. */
#include <string.h>

#include "modules.h"

enum { BASE, FIRST, LAST_LAYERS = 4 }; /* base_layer; then lora_dropout, where it is there, lora_A, lora_B, the scaling, the sum */

static bool has_dropout(const Layer *l) { return !strcmp(layer_kind(l->child[FIRST]), "Dropout"); }

/* lora_B(lora_A(dropout(x))) * scaling */
static Tensor *adapter(Eager *g, const Layer *l, Tensor *x) {
    const int a = FIRST + has_dropout(l), b = a + 1;
    Tensor *y = has_dropout(l) ? module_call(g, l->child[FIRST], &x) : tensor_ref(x);
    tensor_set(g, &y, module_call(g, l->child[a], &y));
    tensor_set(g, &y, module_call(g, l->child[b], &y));
    tensor_set(g, &y, aten_binary_number(g, WITH_MUL, y));
    return y;
}

static ScalarType adapter_type(const Eager *g, const Layer *l) { return module_param(g, l->child[FIRST + has_dropout(l)], 0)->type; }

/* peft/tuners/lora/bnb.py: the result of 4 bits is cloned; the adapter's output is cast, not the sum, and under autocast nothing. */
static Tensor *over_quantised(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *result = module_call(g, l->child[BASE], in);
    if (bnb_is(l->child[BASE], 4)) tensor_set(g, &result, aten_clone(g, result, false));
    Tensor *x = g->autocast ? tensor_ref(in[0]) : aten_to(g, in[0], adapter_type(g, l)), *output = adapter(g, l, x);
    if (!g->autocast) tensor_set(g, &output, aten_to(g, output, result->type));
    tensor_set(g, &result, aten_binary(g, WITH_ADD, result, output));
    tensor_drop(g, x);
    tensor_drop(g, output);
    return result;
}

Tensor *lora_linear(Eager *g, const Layer *l, Tensor *const *in) {
    GUARD(g);
    if (bnb_is(l->child[BASE], 4) || bnb_is(l->child[BASE], 8)) return over_quantised(g, l, in);
    Tensor *result = module_call(g, l->child[BASE], in);
    const ScalarType type = result->type;
    Tensor *x = aten_to(g, in[0], adapter_type(g, l)), *y = adapter(g, l, x);
    tensor_set(g, &result, aten_binary(g, WITH_ADD, result, y));
    tensor_drop(g, y);
    tensor_set(g, &result, aten_to(g, result, type));
    tensor_drop(g, x);
    return result;
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

int lora_check(const Layer *l, Err *e) {
    static const char *const last[LAST_LAYERS] = {"Linear", "Linear", "Scale", "Add"};
    const int first = FIRST + (l->n_child > FIRST && has_dropout(l));
    bool same = l->n_child == first + LAST_LAYERS;
    for (int k = 0; k < LAST_LAYERS && same; k++) same = !strcmp(layer_kind(l->child[first + k]), last[k]);
    return same ? OK : layer_error(l, e, "listing = \"lora.Linear\": expected what mt.peft.lora makes: the layer, Dropout or nothing, "
                                   "lora_A and lora_B by Linear, their scaling, and the sum");
}
