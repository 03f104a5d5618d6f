/* Autocast: what an op's inputs are converted to, and the cache of a context. Source: ATen/autocast_mode.cpp
 * (cached_cast): the 16-bit copies of fp32 leaves that get a gradient are kept until the context ends. */
#include "aten.h"

Tensor *amp_low(Eager *g, Tensor *x) {
    if (!x || !g->autocast || !scalar_is_float(x->type)) return tensor_ref(x);
    if (!x->parameter || x->type != T_FLOAT) return aten_to(g, x, g->low);
    if (!x->cast) {
        const Category before = g->category;
        g->category = CAT_WEIGHTS;
        x->cast = aten_to(g, x, g->low);
        g->category = before;
    }
    return tensor_ref(x->cast);
}

Tensor *amp_wide(Eager *g, Tensor *x) {
    if (!x || !g->autocast || !scalar_is_float(x->type)) return tensor_ref(x);
    return aten_to(g, x, T_FLOAT);
}

void amp_end(Eager *g) {
    for (int i = 0; i < g->net->n_params; i++) tensor_set(g, &g->params[i]->cast, NULL);
}
