/* Linear, and attention as nn.MultiheadAttention and nanoGPT write it. */
#include "modules.h"

Tensor *module_linear(Eager *g, const Layer *l, Tensor *const *in) {
    return aten_linear(g, in[0], module_param(g, l, 0), module_param(g, l, 1));
}

/* (N, T, heads width) as (N, heads, T, width) */
static Tensor *heads_of(Eager *g, Tensor *x, int64_t heads) {
    const int64_t *d = x->size.of;
    Tensor *apart = aten_view(g, x, SIZE(d[0], d[1], heads, d[2] / heads)), *y = aten_transpose(g, apart, 1, 2);
    tensor_drop(g, apart);
    return y;
}

/* y.transpose(1, 2).contiguous().view(N, T, C) */
static Tensor *side_by_side(Eager *g, Tensor *y) {
    const int64_t *d = y->size.of;
    Tensor *turned = aten_transpose(g, y, 1, 2), *whole = aten_contiguous(g, turned);
    tensor_drop(g, turned);
    Tensor *z = aten_view(g, whole, SIZE(d[0], d[2], d[1] * d[3]));
    tensor_drop(g, whole);
    return z;
}

/* nanoGPT's CausalSelfAttention: q, k, v are variables of the forward function. */
static Tensor *causal_self_attention(Eager *g, const Layer *l, Tensor *x) {
    const int64_t heads = options_int(&l->options, "n_head"), width = x->size.of[2];
    const bool bias = options_bool(&l->options, "bias"), drops = g->training && options_float(&l->options, "dropout") > 0;
    Tensor *qkv = aten_linear(g, x, module_param(g, l, 0), bias ? module_param(g, l, 1) : NULL), *part[3];
    aten_split(g, qkv, width, 2, part, 3);
    tensor_drop(g, qkv);
    for (int i = 0; i < 3; i++) tensor_set(g, &part[i], heads_of(g, part[i], heads));
    Tensor *y = aten_sdpa(g, part[0], part[1], part[2], drops);
    tensor_set(g, &y, side_by_side(g, y));
    Tensor *z = aten_linear(g, y, module_param(g, l, 1 + bias), bias ? module_param(g, l, 3) : NULL);
    if (drops) tensor_set(g, &z, aten_dropout(g, z));
    tensor_drop(g, y);
    for (int i = 0; i < 3; i++) tensor_drop(g, part[i]);
    return z;
}

Tensor *module_attention(Eager *g, const Layer *l, Tensor *const *in) {
    return causal_self_attention(g, l, in[0]);
}

Tensor *module_sdpa(Eager *g, const Layer *l, Tensor *const *in) {
    const int64_t heads = options_int(&l->options, "num_heads"), width = in[0]->size.of[2] / heads;
    Tensor *part[3];
    for (int i = 0; i < 3; i++) part[i] = heads_of(g, in[i], in[i]->size.of[2] / width);
    Tensor *y = aten_sdpa(g, part[0], part[1], part[2], options_float(&l->options, "dropout_p") > 0);
    for (int i = 0; i < 3; i++) tensor_drop(g, part[i]);
    tensor_set(g, &y, side_by_side(g, y));
    return y;
}

Tensor *module_rotary(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_clone(g, in[0], true);
}
