/* scaled_dot_product_attention, by the kernel that CUDA chooses (sdp_utils.cpp): 16 bits flash; fp32 the memory-efficient
 * one; where that has no form for it, products of matrices. The first two give the result (N, T, heads,
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

/* In the order of PyTorch's names: key, query, value, and the results, which begin with logsumexp and output; flash has the
 * state of the random numbers, also where none is drawn. */
enum { SAVED_K, SAVED_Q, SAVED_V, SAVED_SUMS, SAVED_Y, SAVED_STATE, SAVED = SAVED_STATE + 2 };
static const int of_input[] = {SAVED_Q, SAVED_K, SAVED_V};

static void flash_backward(Eager *g, Node *n, Tensor **dx) {
    const Tensor *q = n->saved[SAVED_Q], *k = n->saved[SAVED_K];
    const int64_t heads = q->size.of[0] * q->size.of[1], steps = round_up(q->size.of[2], 128), width = q->size.of[3];
    const int64_t copied = q->size.of[1] != k->size.of[1] ? 2 * heads * k->size.of[2] * width : 0; /* of grouped keys */
    eager_op(g, "aten::_scaled_dot_product_flash_attention_backward");
    for (int i = 0; i < 3; i++) dx[i] = flash_like(g, n->saved[of_input[i]], &n->saved[of_input[i]]->size);
    INNER(g, 4 * heads * steps, 4 * heads * steps * rounded_width(width), copied, copied);
}

/* delta = (grad_out * out).sum(-1).transpose(-2, -1).contiguous(): attention_backward.cu. The gradient that comes in is
 * copied unless it lies as the result does. */
static void efficient_backward(Eager *g, Node *n, Tensor *dy, Tensor **dx) {
    const Tensor *q = n->saved[SAVED_Q];
    const int64_t rows = q->size.of[0] * q->size.of[1] * q->size.of[2];
    eager_op(g, "aten::_scaled_dot_product_efficient_attention_backward");
    Tensor *turned = aten_transpose(g, dy, 1, 2);
    Tensor *copy = tensor_is_contiguous(turned) ? NULL : tensor_new(g, dy->type, dy->size);
    for (int i = 0; i < 3; i++) dx[i] = rows_first(g, dy->type, &n->saved[of_input[i]]->size);
    const bool wide = q->type == T_FLOAT;
    INNER(g, wide ? 4 * tensor_elements(n->saved[SAVED_Y]) : 0, wide ? 4 * rows : 0,
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

static Tensor *fused(Eager *g, Tensor *q, Tensor *k, Tensor *v, bool flash, bool dropout) {
    GUARD(g);
    const int64_t heads = q->size.of[0] * q->size.of[1], rows = q->size.of[2], width = q->size.of[3];
    Size size = q->size;
    size.of[3] = v->size.of[3];
    Node *n = node_new(g, flash ? &flash_rule : &efficient_rule, (Tensor *[]){q, k, v}, 3, SAVED);
    if (n) n->number[0] = flash;
    node_save(g, n, SAVED_K, k);
    node_save(g, n, SAVED_Q, q);
    node_save(g, n, SAVED_V, v);
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
    node_save(g, n, SAVED_SUMS, made[1]);
    node_save(g, n, SAVED_Y, made[0]);
    for (int i = 2; i < 4; i++) node_save(g, n, SAVED_STATE + i - 2, made[i]);
    node_output(g, n, made[0]);
    for (int i = 1; i < 4; i++) tensor_drop(g, made[i]);
    return made[0];
}

/* ---- _scaled_dot_product_attention_math: q and k are each multiplied by the root of the scale */

/* A triangle of zeros and minus infinities, added to the scores. */
static Tensor *causal_bias(Eager *g, int64_t rows, int64_t columns, ScalarType type) {
    const Size size = SIZE(rows, columns), one = {0, {0}};
    Tensor *ones = aten_random(g, "aten::ones", size, T_BOOL), *triangle = aten_random(g, "aten::tril", size, T_BOOL);
    tensor_drop(g, ones);
    Tensor *infinity = aten_random(g, "aten::scalar_tensor", one, type), *zero = aten_random(g, "aten::scalar_tensor", one, type);
    Tensor *bias = aten_random(g, "aten::where", size, type);
    tensor_drop(g, zero);
    tensor_drop(g, infinity);
    tensor_drop(g, triangle);
    return bias;
}

/* Each key's head for a group of query heads: repeat_interleave, an expanded value that is copied. */
static Tensor *repeated(Eager *g, Tensor *x, int64_t heads) {
    GUARD(g);
    const int64_t *d = x->size.of;
    if (d[1] == heads) return tensor_ref(x);
    Tensor *apart = aten_view(g, x, SIZE(d[0], d[1], 1, d[2], d[3]));
    Tensor *wide = aten_expand(g, apart, SIZE(d[0], d[1], heads / d[1], d[2], d[3])), *copy = aten_clone(g, wide, true);
    tensor_drop(g, apart);
    tensor_drop(g, wide);
    Tensor *y = aten_view(g, copy, SIZE(d[0], heads, d[2], d[3]));
    tensor_drop(g, copy);
    return y;
}

/* Softmax, in which rows of minus infinities alone are found and set to 0. */
static Tensor *safe_softmax(Eager *g, Tensor *x) {
    Tensor *y = aten_softmax(g, x, x->size.rank - 1, false);
    Size rows = x->size;
    rows.of[rows.rank - 1] = 1;
    Tensor *infinite = aten_random(g, "aten::isneginf", x->size, T_BOOL), *all = aten_random(g, "aten::all", rows, T_BOOL);
    Tensor *zero = aten_random(g, "aten::scalar_tensor", (Size){0, {0}}, x->type);
    tensor_drop(g, zero);
    tensor_drop(g, all);
    tensor_drop(g, infinite);
    return y;
}

static Tensor *by_products(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    Tensor *scaled = aten_binary_number(g, WITH_MUL, q);
    Tensor *bias = how.causal ? causal_bias(g, q->size.of[2], k->size.of[2], q->type) : NULL;
    Tensor *keys = repeated(g, k, q->size.of[1]), *values = repeated(g, v, q->size.of[1]);
    Tensor *turned = aten_transpose(g, keys, 2, 3), *scaled_keys = aten_binary_number(g, WITH_MUL, turned);
    tensor_drop(g, turned);
    Tensor *scores = aten_matmul(g, scaled, scaled_keys);
    tensor_drop(g, scaled_keys);
    if (bias) tensor_drop(g, aten_add_inplace(g, scores, bias));
    Tensor *weights = safe_softmax(g, scores);
    tensor_drop(g, scores);
    if (how.dropout) tensor_set(g, &weights, aten_dropout(g, weights));
    Tensor *y = aten_matmul(g, weights, values);
    tensor_drop(g, weights);
    tensor_drop(g, values);
    tensor_drop(g, keys);
    tensor_drop(g, bias);
    tensor_drop(g, scaled);
    return y;
}

/* Flash attention's widths are multiples of 8: others are padded, and the result cut. */
static Tensor *padded(Eager *g, Tensor *x) {
    GUARD(g);
    Size size = x->size;
    size.of[3] = round_up(size.of[3], 8);
    return size.of[3] == x->size.of[3] ? tensor_ref(x) : aten_pad(g, x, size);
}

static Tensor *flash(Eager *g, Tensor *q, Tensor *k, Tensor *v, bool dropout) {
    GUARD(g);
    Tensor *pq = padded(g, q), *pk = padded(g, k), *pv = padded(g, v), *y = fused(g, pq, pk, pv, true, dropout);
    tensor_drop(g, pq);
    tensor_drop(g, pk);
    tensor_drop(g, pv);
    if (y->size.of[3] != v->size.of[3]) tensor_set(g, &y, aten_narrow(g, y, 3, v->size.of[3]));
    return y;
}

static Tensor *sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    const bool half = scalar_bytes(q->type) == 2, grouped = q->size.of[1] != k->size.of[1];
    const int64_t width = q->size.of[3], aligned = half ? 8 : 4;
    const bool square = !how.causal || q->size.of[2] == k->size.of[2];
    if (half && width == v->size.of[3] && width <= 256 && square) return flash(g, q, k, v, how.dropout);
    if (grouped || width % aligned || v->size.of[3] % aligned) return by_products(g, q, k, v, how);
    return fused(g, q, k, v, false, how.dropout);
}

Tensor *aten_sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    Tensor *lv = amp_low(g, v), *lk = amp_low(g, k), *lq = amp_low(g, q), *y = sdpa(g, lq, lk, lv, how);
    tensor_drop(g, lq);
    tensor_drop(g, lk);
    tensor_drop(g, lv);
    return y;
}
