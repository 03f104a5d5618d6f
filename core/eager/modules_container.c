/* Modules that hold others. */
#include "modules.h"

Tensor *module_graph(Eager *g, const Layer *l, Tensor *const *in) {
    Module *const listed = llama_graph(l);
    return listed ? listed(g, l, in) : graph_run(g, l, in, NULL);
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
    return strcmp(l->kind->name, "Contiguous") ? tensor_ref(in[0]) : aten_contiguous(g, in[0]);
}
