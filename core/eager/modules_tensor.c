/* Operations that a forward function writes: arithmetic of two values, reductions, triangles, parameters of its own. */
#include <string.h>

#include "modules.h"

static int dim_of(double dim, int rank) { return (int)(dim < 0 ? dim + rank : dim); }

Tensor *module_binary(Eager *g, const Layer *l, Tensor *const *in) {
    static const WithOp ops[] = {[BINARY_ADD] = WITH_ADD, [BINARY_SUB] = WITH_SUB, [BINARY_MUL] = WITH_MUL, [BINARY_DIV] = WITH_DIV};
    return aten_binary(g, ops[l->kind->which], in[0], in[1]);
}

Tensor *module_reduce(Eager *g, const Layer *l, Tensor *const *in) {
    const ReduceFn f = (ReduceFn)l->kind->which;
    const bool keepdim = options_bool(&l->options, "keepdim");
    const int rank = in[0]->size.rank;
    unsigned dims = 0;
    int64_t n = 0;
    if (f == REDUCE_MAX) return aten_max(g, in[0], dim_of((double)options_int(&l->options, "dim"), rank), keepdim);
    const double *list = options_list(&l->options, "dim", &n);
    for (int64_t i = 0; i < n; i++) dims |= 1u << dim_of(list[i], rank);
    if (f == REDUCE_AMAX) return aten_amax(g, in[0], dims, keepdim);
    if (f == REDUCE_MEAN) return aten_mean(g, in[0], dims, keepdim);
    return aten_sum(g, in[0], dims, keepdim);
}

/* torch.tril(torch.ones(rows, columns, dtype=torch.bool), diagonal), then masked_fill or where: the mask is a value of the
 * forward function, which is made in each call. */
Tensor *module_triangle(Eager *g, const Layer *l, Tensor *const *in) {
    const Size size = SIZE(options_int(&l->options, "rows"), options_int(&l->options, "columns"));
    Tensor *ones = aten_random(g, "aten::ones", size, T_BOOL), *mask = aten_random(g, "aten::tril", size, T_BOOL);
    tensor_drop(g, ones);
    Tensor *y = l->n_in == 1 ? aten_masked_fill(g, in[0], mask) : aten_where(g, mask, in[0], in[1]);
    tensor_drop(g, mask);
    return y;
}

Tensor *module_gather(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_gather(g, in[0], in[1]);
}

Tensor *module_parameter(Eager *g, const Layer *l, Tensor *const *in) {
    (void)in;
    return tensor_ref(module_param(g, l, 0));
}
