/* scaled_dot_product_attention. fp32: the memory-efficient kernel; 16 bits: flash. Both give the result (N, T, heads,
 * width) in memory, and a number per row of scores; the first one's rows are padded to 32. Sources:
 * ATen/native/transformers/cuda/attention.cu, flash_attn/flash_api.cpp. */
#include <math.h>

#include "aten.h"

/* (N, heads, T, width) that lies as (N, T, heads, width). */
static Tensor *rows_first(Eager *g, ScalarType type, const Size *s) {
    Tensor *lying = tensor_new(g, type, SIZE(s->of[0], s->of[2], s->of[1], s->of[3]));
    const int64_t *d = lying->stride;
    Tensor *y = tensor_view(g, lying, *s, (int64_t[TENSOR_RANK]){d[0], d[2], d[1], d[3]});
    tensor_drop(g, lying);
    return y;
}

/* Of flash, what lies as `like` does where that has no holes (empty_like), whose size may be another in the last dimension. */
static Tensor *flash_like(Eager *g, const Tensor *like, const Size *s) {
    return tensor_is_dense(like) && size_equal(&like->size, s) ? tensor_like(g, like, like->type) : rows_first(g, like->type, s);
}

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }
static int64_t rounded_width(int64_t width) { return round_up(width, width <= 128 ? 32 : 64); }

/* Into how many parts flash attention splits the keys, where there is too little work otherwise: flash_api.cpp
 * (num_splits_heuristic). */
static int64_t flash_splits(int64_t blocks, int64_t processors, int64_t key_blocks) {
    enum { MOST = 128 };
    float efficiency[MOST + 1], best = 0;
    const int64_t most = min_i64(MOST, min_i64(processors, key_blocks));
    if ((float)blocks >= 0.8f * (float)processors) return 1;
    for (int64_t n = 1; n <= most; n++) {
        const float waves = (float)(blocks * n) / (float)processors;
        const bool eligible = n == 1 || div_up(key_blocks, n) != div_up(key_blocks, n - 1);
        efficiency[n] = eligible ? waves / ceilf(waves) : 0;
        if (efficiency[n] > best) best = efficiency[n];
    }
    for (int64_t n = 1; n <= most; n++)
        if (efficiency[n] > 0 && efficiency[n] >= 0.85f * best) return n;
    return 1;
}

static Tensor *scratch(Eager *g, int64_t floats) { return floats ? tensor_new(g, T_FLOAT, SIZE(floats)) : NULL; }

/* saved: q, k, v, y, logsumexp, and of flash the state of the random numbers, which is there also where none is drawn */
static void flash_backward(Eager *g, Node *n, Tensor **dx) {
    const Tensor *q = n->saved[0], *k = n->saved[1];
    const int64_t heads = q->size.of[0] * q->size.of[1], steps = round_up(q->size.of[2], 128), width = q->size.of[3];
    const int64_t copied = q->size.of[1] != k->size.of[1] ? 2 * heads * k->size.of[2] * width : 0; /* of grouped keys */
    eager_op(g, "aten::_scaled_dot_product_flash_attention_backward");
    for (int i = 0; i < 3; i++) dx[i] = flash_like(g, n->saved[i], &n->saved[i]->size);
    INNER(g, 4 * heads * steps, 4 * heads * steps * rounded_width(width), copied, copied);
}

/* delta = (grad_out * out).sum(-1).transpose(-2, -1).contiguous(): attention_backward.cu. The gradient that comes in is
 * copied unless it lies as the result does. */
static void efficient_backward(Eager *g, Node *n, Tensor *dy, Tensor **dx) {
    const Tensor *q = n->saved[0];
    const int64_t rows = q->size.of[0] * q->size.of[1] * q->size.of[2];
    eager_op(g, "aten::_scaled_dot_product_efficient_attention_backward");
    Tensor *turned = aten_transpose(g, dy, 1, 2);
    Tensor *copy = tensor_is_contiguous(turned) ? NULL : tensor_new(g, dy->type, dy->size);
    for (int i = 0; i < 3; i++) dx[i] = rows_first(g, dy->type, &n->saved[i]->size);
    const bool wide = q->type == T_FLOAT;
    INNER(g, wide ? 4 * tensor_elements(n->saved[3]) : 0, wide ? 4 * rows : 0,
          !wide || (q->size.of[1] > 1 && q->size.of[2] > 1) ? 4 * rows : 0);
    tensor_drop(g, copy);
    tensor_drop(g, turned);
}

static void apply_sdpa(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    if (n->number[0]) flash_backward(g, n, dx);
    else efficient_backward(g, n, dy[0], dx);
    for (int i = 0; i < 3; i++)
        if (!node_wants(n, i)) tensor_set(g, &dx[i], NULL);
}

static const NodeRule efficient_rule = {"ScaledDotProductEfficientAttentionBackward0", apply_sdpa},
                      flash_rule = {"ScaledDotProductFlashAttentionBackward0", apply_sdpa};

static Tensor *sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, bool dropout) {
    const bool flash = scalar_bytes(q->type) == 2;
    const int64_t heads = q->size.of[0] * q->size.of[1], rows = q->size.of[2], width = q->size.of[3];
    Size size = q->size;
    size.of[3] = v->size.of[3];
    Node *n = node_new(g, flash ? &flash_rule : &efficient_rule, (Tensor *[]){q, k, v}, 3, 7);
    if (n) n->number[0] = flash;
    node_save(g, n, 0, q);
    node_save(g, n, 1, k);
    node_save(g, n, 2, v);
    eager_op(g, flash ? "aten::_scaled_dot_product_flash_attention" : "aten::_scaled_dot_product_efficient_attention");
    Tensor *made[4] = {flash ? flash_like(g, q, &size) : rows_first(g, q->type, &size)};
    made[1] = tensor_new(g, T_FLOAT, SIZE(q->size.of[0], q->size.of[1], flash ? rows : round_up(rows, 32)));
    if (flash) {
        const int64_t key_blocks = div_up(k->size.of[2], width <= 64 ? 256 : width <= 128 ? 128 : 64);
        const int64_t splits = dropout ? 1 : flash_splits(heads * div_up(rows, 64), 2 * g->card->multiprocessors, key_blocks);
        const int64_t parts = splits > 1 ? splits * heads * rows : 0;
        Tensor *sums = scratch(g, parts), *results = scratch(g, parts * rounded_width(width));
        made[2] = tensor_new(g, T_LONG, SIZE(2));
        made[3] = tensor_new(g, T_LONG, (Size){0, {0}});
        tensor_drop(g, results);
        tensor_drop(g, sums);
    }
    for (int i = 0; i < 4; i++) node_save(g, n, 3 + i, made[i]);
    node_output(g, n, made[0]);
    for (int i = 1; i < 4; i++) tensor_drop(g, made[i]);
    return made[0];
}

Tensor *aten_sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, bool dropout) {
    Tensor *lv = amp_low(g, v), *lk = amp_low(g, k), *lq = amp_low(g, q), *y = sdpa(g, lq, lk, lv, dropout);
    tensor_drop(g, lq);
    tensor_drop(g, lk);
    tensor_drop(g, lv);
    return y;
}
