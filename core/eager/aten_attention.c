/* scaled_dot_product_attention, by the kernel that CUDA chooses or the setting asks for (sdp_utils.cpp): flash or cuDNN's
 * in 16 bits, the memory-efficient one, or products of matrices. The first three give the result (N, T, heads, width) in
 * memory, and a number per row of scores. What cuDNN's takes as workspace it alone knows: that is left out. Sources:
 * ATen/native/transformers/cuda/attention.cu, flash_attn/flash_api.cpp, cudnn/MHA.cpp. */
#include <math.h>
#include <stdio.h>

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

/* `products` of queries with keys; of a causal mask the scores below the diagonal are enough. Of fp32 CUTLASS makes three products
 * in TF32. */
static void multiplies(Eager *g, const Tensor *q, const Tensor *k, int64_t widths, bool causal) {
    const int64_t rows = q->size.of[2], columns = k->size.of[2], square = min_i64(rows, columns);
    const double seen = causal ? (double)square * (double)(square + 1) / 2 + (double)(rows - square) * (double)columns
                               : (double)rows * (double)columns;
    const double each = 2.0 * (double)(q->size.of[0] * q->size.of[1]) * (double)widths;
    work_flops(g, q->type, UNIT_3XTF32, each * (double)rows * (double)columns, each * seen);
}

static Tensor *scratch(Eager *g, int64_t floats) { return floats ? tensor_new(g, T_FLOAT, SIZE(floats)) : NULL; }

/* In the order of PyTorch's names: attn_bias, key, query, value, and the results, which begin with logsumexp and output; flash
 * has the state of the random numbers, also where none is drawn. */
enum { SAVED_MASK, SAVED_K, SAVED_Q, SAVED_V, SAVED_SUMS, SAVED_Y, SAVED_STATE, SAVED = SAVED_STATE + 2 };
static const int of_input[] = {SAVED_Q, SAVED_K, SAVED_V};
enum { TO_MASK = 3 }; /* its edge, of the memory-efficient kernel alone */

static void flash_backward(Eager *g, Node *n, Tensor **dx) {
    const Tensor *q = n->saved[SAVED_Q], *k = n->saved[SAVED_K];
    const int64_t heads = q->size.of[0] * q->size.of[1], steps = round_up(q->size.of[2], 128), width = q->size.of[3];
    const int64_t copied = q->size.of[1] != k->size.of[1] ? 2 * heads * k->size.of[2] * width : 0; /* of grouped keys */
    eager_op(g, "aten::_scaled_dot_product_flash_attention_backward");
    for (int i = 0; i < 3; i++) dx[i] = flash_like(g, n->saved[of_input[i]], &n->saved[of_input[i]]->size);
    INNER(g, 4 * heads * steps, 4 * heads * steps * rounded_width(width), copied, copied);
}

static void cudnn_backward(Eager *g, Node *n, Tensor **dx) {
    eager_op(g, "aten::_scaled_dot_product_cudnn_attention_backward");
    for (int i = 0; i < 3; i++) dx[i] = tensor_like(g, n->saved[of_input[i]], n->saved[of_input[i]]->type);
}

/* Of all samples and heads, in rows that begin at multiples of 16. */
static Tensor *mask_gradient(Eager *g, const Tensor *mask) {
    Size size = mask->size;
    const int last = size.rank - 1;
    size.of[last] = round_up(size.of[last], 16);
    Tensor *rows = tensor_new(g, mask->type, size), *y = aten_narrow(g, rows, last, mask->size.of[last]);
    tensor_drop(g, rows);
    return y;
}

/* Of grouped heads, gradients for each of the query's, which are then summed up. delta =
 * (grad_out * out).sum(-1).transpose(-2, -1).contiguous(): attention_backward.cu. The gradient that comes in is copied
 * unless it lies as the result does. */
static void efficient_backward(Eager *g, Node *n, Tensor *dy, Tensor **dx) {
    const Tensor *q = n->saved[SAVED_Q], *k = n->saved[SAVED_K], *v = n->saved[SAVED_V];
    const int64_t rows = q->size.of[0] * q->size.of[1] * q->size.of[2];
    const int64_t keys = (int64_t)scalar_bytes(q->type) * q->size.of[0] * q->size.of[1] * k->size.of[2];
    const bool grouped = q->size.of[1] != k->size.of[1];
    eager_op(g, "aten::_scaled_dot_product_efficient_attention_backward");
    Tensor *turned = aten_transpose(g, dy, 1, 2);
    Tensor *copy = tensor_is_contiguous(turned) ? NULL : tensor_new(g, dy->type, dy->size);
    for (int i = 0; i < 3; i++) dx[i] = rows_first(g, dy->type, &n->saved[of_input[i]]->size);
    if (node_wants(n, TO_MASK)) dx[TO_MASK] = mask_gradient(g, n->saved[SAVED_MASK]);
    const bool wide = q->type == T_FLOAT;
    INNER(g, grouped ? keys * q->size.of[3] : 0, grouped ? keys * v->size.of[3] : 0,
          wide ? 4 * tensor_elements(n->saved[SAVED_Y]) : 0, wide ? 4 * rows : 0,
          !wide || (q->size.of[1] > 1 && q->size.of[2] > 1) ? 4 * rows : 0);
    tensor_drop(g, copy);
    tensor_drop(g, turned);
}

static void apply_sdpa(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const Tensor *q = n->saved[SAVED_Q], *k = n->saved[SAVED_K], *v = n->saved[SAVED_V];
    if (n->number[0] == SDP_FLASH) flash_backward(g, n, dx);
    else if (n->number[0] == SDP_CUDNN) cudnn_backward(g, n, dx);
    else efficient_backward(g, n, dy[0], dx);
    READS(g, dy[0], q, k, v, n->saved[SAVED_MASK], n->saved[SAVED_Y], n->saved[SAVED_SUMS]);
    multiplies(g, q, k, 3 * q->size.of[3] + 2 * v->size.of[3], n->number[1]);
    for (int i = 0; i < 3; i++)
        if (!node_wants(n, i)) tensor_set(g, &dx[i], NULL);
}

static const struct { const char *op; NodeRule rule; } kernels[SDP_COUNT] = {
    [SDP_FLASH] = {"aten::_scaled_dot_product_flash_attention", {"ScaledDotProductFlashAttentionBackward0", apply_sdpa}},
    [SDP_EFFICIENT] = {"aten::_scaled_dot_product_efficient_attention",
                       {"ScaledDotProductEfficientAttentionBackward0", apply_sdpa}},
    [SDP_CUDNN] = {"aten::_scaled_dot_product_cudnn_attention", {"ScaledDotProductCudnnAttentionBackward0", apply_sdpa}},
};

static Tensor *fused(Eager *g, SdpBackend backend, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    const bool flash = backend == SDP_FLASH, cudnn = backend == SDP_CUDNN, efficient = backend == SDP_EFFICIENT;
    const int64_t heads = q->size.of[0] * q->size.of[1], rows = q->size.of[2], width = q->size.of[3];
    const Size one = {0, {0}};
    Size size = q->size;
    size.of[3] = v->size.of[3];
    Node *n = node_new(g, &kernels[backend].rule, (Tensor *[]){q, k, v, how.mask}, efficient ? TO_MASK + 1 : 3, SAVED);
    const bool wanted = n && (node_wants(n, 0) || node_wants(n, 1) || node_wants(n, 2));
    if (n) n->number[0] = backend;
    if (n) n->number[1] = how.causal;
    node_save(g, n, SAVED_MASK, how.mask);
    node_save(g, n, SAVED_K, k);
    node_save(g, n, SAVED_Q, q);
    node_save(g, n, SAVED_V, v);
    eager_op(g, kernels[backend].op);
    READS(g, q, k, v, how.mask);
    multiplies(g, q, k, width + v->size.of[3], how.causal);
    Tensor *made[4] = {NULL};
    for (int i = 2; cudnn && i < 4; i++) made[i] = tensor_new(g, T_LONG, one);
    made[0] = efficient ? rows_first(g, q->type, &size) : flash_like(g, q, &size);
    if (flash || wanted) /* the others leave it out where none of the three wants a gradient */
        made[1] = tensor_new(g, T_FLOAT, SIZE(q->size.of[0], q->size.of[1], efficient ? round_up(rows, 32) : rows));
    if (flash) {
        const int64_t key_blocks = div_up(k->size.of[2], width <= 64 ? 256 : width <= 128 ? 128 : 64);
        const int64_t splits = how.dropout ? 1 : flash_splits(heads * div_up(rows, 64), 2 * g->card->multiprocessors, key_blocks);
        const int64_t parts = splits > 1 ? splits * heads * rows : 0;
        Tensor *sums = scratch(g, parts), *results = scratch(g, parts * rounded_width(width));
        for (int i = 2; i < 4 && g->version->flash_state; i++) made[i] = tensor_new(g, T_LONG, i == 2 ? SIZE(2) : one);
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

/* ---- _scaled_dot_product_attention_math: in fp32; q and k are each multiplied by the root of the scale */

/* What is added to the scores: zeros and minus infinities in place of a mask of booleans; NULL: none. */
static Tensor *addend(Eager *g, Tensor *mask, ScalarType type) {
    const Size one = {0, {0}};
    if (!mask || mask->type != T_BOOL) return tensor_ref(mask);
    Tensor *infinity = aten_random(g, "aten::scalar_tensor", one, type), *zero = aten_random(g, "aten::scalar_tensor", one, type);
    Tensor *added = aten_random(g, "aten::where", mask->size, type);
    READS(g, mask);
    tensor_drop(g, zero);
    tensor_drop(g, infinity);
    return added;
}

static Tensor *causal_addend(Eager *g, int64_t rows, int64_t columns, ScalarType type) {
    Tensor *triangle = aten_triangle(g, rows, columns), *added = addend(g, triangle, type);
    tensor_drop(g, triangle);
    return added;
}

/* repeat_interleave: an expanded value that is copied. */
Tensor *aten_repeat_heads(Eager *g, Tensor *x, int64_t heads) {
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
    Tensor *y = aten_softmax(g, x, x->size.rank - 1, false, x->type);
    Size rows = x->size;
    rows.of[rows.rank - 1] = 1;
    Tensor *infinite = aten_random(g, "aten::isneginf", x->size, T_BOOL);
    READS(g, x);
    Tensor *all = aten_random(g, "aten::all", rows, T_BOOL);
    READS(g, infinite);
    Tensor *zero = aten_random(g, "aten::scalar_tensor", (Size){0, {0}}, x->type);
    tensor_drop(g, zero);
    tensor_drop(g, all);
    tensor_drop(g, infinite);
    return y;
}

static Tensor *by_products(Eager *g, Tensor *given_q, Tensor *given_k, Tensor *given_v, SdpaHow how) {
    GUARD(g);
    const ScalarType type = given_q->type;
    Tensor *q = aten_to(g, given_q, T_FLOAT), *k = aten_to(g, given_k, T_FLOAT), *v = aten_to(g, given_v, T_FLOAT);
    Tensor *scaled = aten_binary_number(g, WITH_MUL, q);
    Tensor *mask = how.causal ? causal_addend(g, q->size.of[2], k->size.of[2], q->type) : tensor_ref(how.mask);
    Tensor *keys = aten_repeat_heads(g, k, q->size.of[1]), *values = aten_repeat_heads(g, v, q->size.of[1]);
    Tensor *turned = aten_transpose(g, keys, 2, 3), *scaled_keys = aten_binary_number(g, WITH_MUL, turned);
    tensor_drop(g, turned);
    Tensor *scores = aten_matmul(g, scaled, scaled_keys);
    tensor_drop(g, scaled_keys);
    if (mask) tensor_drop(g, aten_add_inplace(g, scores, mask));
    Tensor *weights = safe_softmax(g, scores);
    tensor_drop(g, scores);
    if (how.dropout) tensor_set(g, &weights, aten_dropout(g, weights));
    Tensor *narrow = aten_to(g, weights, type), *y = aten_matmul(g, weights, values); /* both are results of that call */
    tensor_set(g, &y, aten_to(g, y, type));
    tensor_drop(g, narrow);
    tensor_drop(g, weights);
    tensor_drop(g, values);
    tensor_drop(g, keys);
    tensor_drop(g, mask);
    tensor_drop(g, scaled);
    tensor_drop(g, q);
    tensor_drop(g, k);
    tensor_drop(g, v);
    return y;
}

/* Flash attention's widths are multiples of 8: others are padded, and the result cut. */
static Tensor *padded(Eager *g, Tensor *x) {
    GUARD(g);
    Size size = x->size;
    size.of[3] = round_up(size.of[3], 8);
    return size.of[3] == x->size.of[3] ? tensor_ref(x) : aten_pad(g, x, size);
}

static Tensor *flash(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    Tensor *pq = padded(g, q), *pk = padded(g, k), *pv = padded(g, v), *y = fused(g, SDP_FLASH, pq, pk, pv, how);
    tensor_drop(g, pq);
    tensor_drop(g, pk);
    tensor_drop(g, pv);
    if (y->size.of[3] != v->size.of[3]) tensor_set(g, &y, aten_narrow(g, y, 3, v->size.of[3]));
    return y;
}

/* The memory-efficient kernel's mask has all dimensions, and rows that begin at multiples of 8 elements: others are padded,
 * and the padding cut off (attention.cpp, preprocess_mask). Takes over the mask. */
static Tensor *aligned(Eager *g, Tensor *mask, const Tensor *q, const Tensor *k) {
    enum { ALIGNMENT = 8 };
    const int last = mask->size.rank - 1;
    const int64_t keys = mask->size.of[last];
    bool is_aligned = mask->stride[last] == 1;
    for (int d = 0; d < last; d++) is_aligned = is_aligned && mask->stride[d] % ALIGNMENT == 0;
    if (!is_aligned) {
        Size wide = mask->size;
        wide.of[last] += ALIGNMENT - keys % ALIGNMENT;
        tensor_set(g, &mask, aten_pad(g, mask, wide));
        tensor_set(g, &mask, aten_narrow(g, mask, last, keys));
    }
    tensor_set(g, &mask, aten_expand(g, mask, SIZE(q->size.of[0], q->size.of[1], q->size.of[2], k->size.of[2])));
    return mask;
}

/* ---- which one: each gives NULL, or the reason for which it cannot run (sdp_utils.cpp, can_use_..._attention) */

typedef struct Asked {
    const Eager *g;
    const Tensor *q, *k, *v;
    SdpaHow how;
    bool half, bfloat, grouped, trains;
    int64_t width, value_width;
} Asked;

static const char *flash_lacks(const Asked *a) {
    const int on = a->g->card->capability;
    if (!a->half) return "flash attention takes 16 bits alone";
    if (on < 80) return "flash attention needs compute capability 8.0";
    if (a->how.mask) return "flash attention takes no mask: no bias, no window";
    if (a->width != a->value_width || a->width > 256) return "flash attention takes heads of at most 256 features, keys' as values'";
    if (a->how.causal && a->q->size.of[2] != a->k->size.of[2]) return "flash attention's is_causal needs as many keys as queries";
    const bool small = on == 86 || on == 89 || on == 120, wide = a->width > 224 && a->how.dropout == 0;
    return small && a->trains && a->width > 192 && !wide ? "flash attention does not train heads of that size on this card" : NULL;
}

static const char *efficient_lacks(const Asked *a) {
    const int on = a->g->card->capability;
    const int64_t aligned = a->half ? 8 : on >= 80 ? 4 : 1;
    if (a->bfloat && on < 80) return "memory-efficient attention in bfloat16 needs compute capability 8.0";
    if (a->width % aligned || a->value_width % aligned)
        return "memory-efficient attention takes heads whose features are a multiple of 4, in 16 bits of 8";
    return a->grouped && !a->g->version->efficient_grouped ? "memory-efficient attention takes as many heads of keys as of queries"
                                                           : NULL;
}

/* check_attn_mask_shape; a parameter asks for its gradient under no_grad, too. */
static bool cudnn_takes(const Tensor *mask) {
    return !mask || ((mask->size.rank == 2 || mask->size.rank == 4) && !mask->parameter && !tensor_requires_grad(mask));
}

static const char *cudnn_lacks(const Asked *a) {
    const int on = a->g->card->capability;
    const bool large = a->g->version->cudnn_first && (on == 90 || on / 10 == 10);
    const int64_t most = a->width > a->value_width ? a->width : a->value_width;
    if (!a->half) return "cuDNN's attention takes 16 bits alone";
    if (on < 80) return "cuDNN's attention needs compute capability 8.0";
    if (a->width % 8 || a->value_width % 8 || most > (large ? 256 : 128))
        return "cuDNN's attention takes heads whose features are a multiple of 8, at most 128, or 256 on Hopper and B200";
    if (large && a->trains && most > 128 && !(a->width == 192 && a->value_width == 128) &&
        !(a->width == 256 && a->value_width == 256))
        return "cuDNN's attention does not train heads of that size";
    if (!cudnn_takes(a->how.mask)) return "cuDNN's attention takes a mask of 2 or 4 dimensions without a gradient";
    if (a->how.dropout * 16 != floor(a->how.dropout * 16)) return "cuDNN's attention takes a dropout that is a multiple of 1/16";
    return a->k->size.of[2] == 1 || (a->how.dropout > 0 && a->q->size.of[2] == 1) ? "cuDNN's attention needs more than one step"
                                                                                  : NULL;
}

static const char *nothing_lacks(const Asked *a) {
    (void)a;
    return NULL;
}

static const char *(*const lacks[SDP_COUNT])(const Asked *a) = {
    [SDP_FLASH] = flash_lacks, [SDP_EFFICIENT] = efficient_lacks, [SDP_CUDNN] = cudnn_lacks, [SDP_MATH] = nothing_lacks};

/* The first that can run, in PyTorch's order, or the one that is asked for. */
static SdpBackend choose(Eager *g, const Asked *a) {
    static const SdpBackend order[] = {SDP_CUDNN, SDP_FLASH, SDP_EFFICIENT, SDP_MATH};
    const bool cudnn_first = g->version->cudnn_first && g->card->capability / 10 >= 9 && g->card->capability / 10 <= 10;
    if (g->attention != SDP_ANY) {
        const char *why = lacks[g->attention](a);
        if (!why) return g->attention;
        char text[256];
        snprintf(text, sizeof text, "attention = \"%s\": PyTorch refuses it: %s", sdp_backend_text(g->attention), why);
        eager_refuse(g, text);
        return SDP_MATH;
    }
    for (size_t i = !cudnn_first; i < ARRAY_LEN(order); i++)
        if (!lacks[order[i]](a)) return order[i];
    return SDP_MATH;
}

static Tensor *sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    const Asked a = {g, q, k, v, how, scalar_bytes(q->type) == 2, q->type == T_BFLOAT16, q->size.of[1] != k->size.of[1],
                     g->grad && (tensor_requires_grad(q) || tensor_requires_grad(k) || tensor_requires_grad(v)),
                     q->size.of[3], v->size.of[3]};
    const SdpBackend backend = choose(g, &a);
    Tensor *mask = addend(g, how.mask, q->type);
    how.mask = mask = backend == SDP_EFFICIENT && mask ? aligned(g, mask, q, k) : mask;
    Tensor *y = backend == SDP_MATH ? by_products(g, q, k, v, how)
              : backend == SDP_FLASH ? flash(g, q, k, v, how) : fused(g, backend, q, k, v, how);
    tensor_drop(g, mask);
    return y;
}

Tensor *aten_sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how) {
    GUARD(g);
    Tensor *mask = amp_low(g, how.mask), *lv = amp_low(g, v), *lk = amp_low(g, k), *lq = amp_low(g, q);
    how.mask = mask;
    Tensor *y = sdpa(g, lq, lk, lv, how);
    tensor_drop(g, lq);
    tensor_drop(g, lk);
    tensor_drop(g, lv);
    tensor_drop(g, mask);
    return y;
}
