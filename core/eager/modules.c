/* Calls of modules, and those that hold others. */
#include "modules.h"

#include <string.h>

Tensor *module_call(Eager *g, const Layer *l, Tensor *const *in) {
    const Layer *caller = g->layer;
    GUARD(g);
    eager_where(g, l, g->node);
    Tensor *y = g->modules[l->kind - layer_kinds](g, l, in);
    eager_where(g, caller, g->node);
    return y;
}

Tensor *module_param(const Eager *g, const Layer *l, int k) { return k < l->n_params ? g->params[l->param[k]] : NULL; }

/* Layers whose allocations are not known here: cuDNN's recurrent ones keep a reserve whose size it alone knows, and
 * masks, biases and caps of attention are made in many ways. A window that all keys lie in makes no mask. */
static bool is_unknown(const Layer *l) {
    static const char *const unknown[] = {"RNN", "LSTM", "GRU"};
    if (!strcmp(layer_kind(l), "ScaledDotProductAttention")) {
        const int64_t window = options_int(&l->options, "window");
        return l->n_in > 3 || (window && window <= l->in.dim[1]) || options_float(&l->options, "softcap") > 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
        if (!strcmp(layer_kind(l), unknown[i])) return true;
    return false;
}

const Layer *module_unknown(const Layer *l) {
    const Layer *found = is_unknown(l) ? l : NULL;
    for (int i = 0; i < l->n_child && !found; i++) found = module_unknown(l->child[i]);
    return found;
}

/* ---- containers */

/* The child during which the output of child i is alive last: one that reads it, or one that runs while a variable of
 * the forward function holds it; n_child where it is a result. */
static int last_user(const Layer *l, int i) {
    int last = l->child[i]->held > i ? l->child[i]->held : i;
    for (int k = i + 1; k < l->n_child; k++)
        for (int j = 0; j < l->child[k]->n_from; j++)
            if (l->child[k]->from[j] == i && last < k) last = k;
    for (int k = 0; k < l->n_result; k++)
        if (l->result[k] == i) last = l->n_child;
    return last;
}

/* nn.Sequential and forward functions: a value goes when the call has returned during which it is read, or a variable
 * holds it, last. The outputs beside the first one go to the losses. */
Tensor *module_graph(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor **made = scratch_new(&g->scratch, (size_t)l->n_child, sizeof *made);
    int *last = scratch_new(&g->scratch, (size_t)l->n_child, sizeof *last);
    if (!made || !last) return tensor_ref(in[0]);
    for (int i = 0; i < l->n_child; i++) last[i] = last_user(l, i);
    for (int i = 0; i < l->n_child; i++) {
        const Layer *child = l->child[i];
        Tensor *read[LAYER_IN];
        for (int k = 0; k < child->n_from; k++) read[k] = child->from[k] < 0 ? in[~child->from[k]] : made[child->from[k]];
        made[i] = module_call(g, child, read);
        for (int k = 0; k <= i; k++)
            if (last[k] == i) tensor_set(g, &made[k], NULL);
    }
    Tensor *y = NULL;
    for (int k = 0; k < l->n_result; k++) {
        Tensor *result = l->result[k] < 0 ? in[~l->result[k]] : made[l->result[k]];
        if (k == 0) y = tensor_ref(result);
        else g->more[g->n_more++] = tensor_ref(result);
    }
    for (int i = 0; i < l->n_child; i++) tensor_set(g, &made[i], NULL);
    return y;
}

/* a += b and a *= b, where the layer says so, else a + b and a b */
static Tensor *pair(Eager *g, const Layer *l, Tensor *a, Tensor *b) {
    const bool add = l->kind->which == OP_add;
    if (!options_bool(&l->options, "inplace")) return aten_binary(g, add ? WITH_ADD : WITH_MUL, a, b);
    return add ? aten_add_inplace(g, a, b) : aten_mul_inplace(g, a, b);
}

/* torch.cat of branches; a(x) + b(x) + c(x), and products, from left to right */
Tensor *module_join(Eager *g, const Layer *l, Tensor *const *in) {
    const int n = l->n_child ? l->n_child : l->n_in;
    const bool concat = l->kind->which == OP_concat;
    Tensor *side[LAYER_IN], *y = NULL;
    for (int k = 0; k < n; k++) {
        side[k] = l->n_child ? module_call(g, l->child[k], in) : tensor_ref(in[k]);
        if (concat) continue;
        if (y) {
            tensor_set(g, &y, pair(g, l, y, side[k]));
            tensor_drop(g, side[k]);
        } else {
            y = side[k];
        }
    }
    if (!concat) return y;
    const int64_t dim = options_int(&l->options, "dim");
    y = aten_cat(g, side, n, (int)(dim < 0 ? dim + side[0]->size.rank : dim));
    for (int k = 0; k < n; k++) tensor_drop(g, side[k]);
    return y;
}

/* body(x) + shortcut(x), or body(x) + x */
Tensor *module_residual(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *body = module_call(g, l->child[0], in);
    Tensor *shortcut = l->n_child == 2 ? module_call(g, l->child[1], in) : tensor_ref(in[0]);
    Tensor *y = aten_binary(g, WITH_ADD, body, shortcut);
    tensor_drop(g, body);
    tensor_drop(g, shortcut);
    return y;
}

Tensor *module_identity(Eager *g, const Layer *l, Tensor *const *in) {
    (void)g, (void)l;
    return tensor_ref(in[0]);
}

Tensor *module_recurrent(Eager *g, const Layer *l, Tensor *const *in) { return module_identity(g, l, in); }
