/* scaled_dot_product_attention. fp32: the memory-efficient kernel; 16 bits: flash. Both give the result (N, T, heads,
 * width) in memory, and a number per row of scores; the first one's rows are padded to 32. Sources:
 * ATen/native/transformers/cuda/attention.cu, flash_attn/flash_api.cpp. */
#include "aten.h"

/* (N, heads, T, width) that lies as (N, T, heads, width). */
static Tensor *rows_first(Eager *g, ScalarType type, const Size *s) {
    Tensor *lying = tensor_new(g, type, SIZE(s->of[0], s->of[2], s->of[1], s->of[3]));
    const int64_t *d = lying->stride;
    Tensor *y = tensor_view(g, lying, *s, (int64_t[TENSOR_RANK]){d[0], d[2], d[1], d[3]});
    tensor_drop(g, lying);
    return y;
}

/* saved: q, k, v, y, logsumexp, seed, offset */
static void apply_sdpa(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    eager_op(g, n->number[0] ? "aten::_scaled_dot_product_flash_attention_backward"
                             : "aten::_scaled_dot_product_efficient_attention_backward");
    for (int i = 0; i < 3; i++) dx[i] = rows_first(g, dy[0]->type, &n->saved[i]->size);
    for (int i = 0; i < 3; i++)
        if (!node_wants(n, i)) tensor_set(g, &dx[i], NULL);
}

static const NodeRule efficient_rule = {"ScaledDotProductEfficientAttentionBackward0", apply_sdpa},
                      flash_rule = {"ScaledDotProductFlashAttentionBackward0", apply_sdpa};

static Tensor *sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v) {
    const bool flash = scalar_bytes(q->type) == 2;
    const int64_t rows = q->size.of[2], padded = flash ? rows : (rows + 31) / 32 * 32;
    Size size = q->size;
    size.of[3] = v->size.of[3];
    Node *n = node_new(g, flash ? &flash_rule : &efficient_rule, (Tensor *[]){q, k, v}, 3, 7);
    if (n) n->number[0] = flash;
    node_save(g, n, 0, q);
    node_save(g, n, 1, k);
    node_save(g, n, 2, v);
    eager_op(g, flash ? "aten::_scaled_dot_product_flash_attention" : "aten::_scaled_dot_product_efficient_attention");
    Tensor *y = rows_first(g, q->type, &size), *lse = tensor_new(g, T_FLOAT, SIZE(q->size.of[0], q->size.of[1], padded));
    Tensor *seed = flash ? NULL : tensor_new(g, T_LONG, (Size){0, {0}});
    Tensor *offset = flash ? NULL : tensor_new(g, T_LONG, (Size){0, {0}});
    Tensor *const made[] = {y, lse, seed, offset};
    for (int i = 0; i < (int)ARRAY_LEN(made); i++) node_save(g, n, 3 + i, made[i]);
    node_output(g, n, y);
    tensor_drop(g, lse);
    tensor_drop(g, seed);
    tensor_drop(g, offset);
    return y;
}

Tensor *aten_sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, bool dropout) {
    (void)dropout; /* drawn again in the backward pass, from the seed */
    Tensor *lv = amp_low(g, v), *lk = amp_low(g, k), *lq = amp_low(g, q), *y = sdpa(g, lq, lk, lv);
    tensor_drop(g, lq);
    tensor_drop(g, lk);
    tensor_drop(g, lv);
    return y;
}
