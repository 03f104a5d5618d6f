/* Attention as nn.MultiheadAttention and nanoGPT write it, and rotary positions. */
#include "modules.h"

Tensor *heads_apart(Eager *g, Tensor *x, int64_t heads) {
    GUARD(g);
    const int64_t *d = x->size.of;
    Tensor *apart = aten_view(g, x, SIZE(d[0], d[1], heads, d[2] / heads)), *y = aten_transpose(g, apart, 1, 2);
    tensor_drop(g, apart);
    return y;
}

Tensor *heads_together(Eager *g, Tensor *y) {
    GUARD(g);
    const int64_t *d = y->size.of;
    Tensor *turned = aten_transpose(g, y, 1, 2), *whole = aten_contiguous(g, turned);
    tensor_drop(g, turned);
    Tensor *z = aten_view(g, whole, SIZE(d[0], d[2], d[1] * d[3]));
    tensor_drop(g, whole);
    return z;
}

/* nanoGPT's CausalSelfAttention: q, k, v are variables of the forward function, which lays k apart first. */
static Tensor *causal_self_attention(Eager *g, const Layer *l, Tensor *x) {
    GUARD(g);
    static const int order[] = {1, 0, 2};
    const int64_t heads = options_int(&l->options, "n_head"), width = x->size.of[2];
    const bool bias = options_bool(&l->options, "bias"), drops = g->training && options_float(&l->options, "dropout") > 0;
    Tensor *qkv = aten_linear(g, x, module_param(g, l, 0), bias ? module_param(g, l, 1) : NULL), *part[3];
    aten_split(g, qkv, (int64_t[]){width, width, width}, 2, part, 3);
    tensor_drop(g, qkv);
    for (int i = 0; i < 3; i++) tensor_set(g, &part[order[i]], heads_apart(g, part[order[i]], heads));
    Tensor *y = aten_sdpa(g, part[0], part[1], part[2], (SdpaHow){drops ? options_float(&l->options, "dropout") : 0, true, NULL});
    tensor_set(g, &y, heads_together(g, y));
    Tensor *z = aten_linear(g, y, module_param(g, l, 1 + bias), bias ? module_param(g, l, 3) : NULL);
    if (drops) tensor_set(g, &z, aten_dropout(g, z));
    tensor_drop(g, y);
    for (int i = 0; i < 3; i++) tensor_drop(g, part[i]);
    return z;
}

/* ---- nn.MultiheadAttention: torch.nn.functional.multi_head_attention_forward */

/* n E features as n tensors of E each, in one copy: unflatten(-1, (n, E)).unsqueeze(0).transpose(0, -2).squeeze(-2)
 * .contiguous(). Takes over x. */
static void unpack(Eager *g, Tensor *x, int n, Tensor **part) {
    const int64_t *d = x->size.of, width = d[2] / n;
    Tensor *apart = aten_view(g, x, SIZE(1, d[0], d[1], n, width)), *front = aten_transpose(g, apart, 0, 3);
    tensor_drop(g, apart);
    Tensor *flat = aten_view(g, front, SIZE(n, d[0], d[1], width));
    tensor_drop(g, front);
    Tensor *whole = aten_contiguous(g, flat);
    tensor_drop(g, flat);
    tensor_drop(g, x);
    for (int k = 0; k < n; k++) part[k] = aten_select(g, whole, 0);
    tensor_drop(g, whole);
}

/* q, k, v of inputs (T, N, E): one product for all that are made of the same input. */
static void in_projection(Eager *g, const Layer *l, Tensor *const *x, bool packed, Tensor **part) {
    const int64_t width = options_int(&l->options, "embed_dim");
    Tensor *bias = options_bool(&l->options, "bias") ? module_param(g, l, packed ? 1 : 3) : NULL, *w[3], *b[3] = {NULL};
    const bool self = x[0] == x[1] && x[1] == x[2], pair = packed && x[1] == x[2];
    if (packed && self) {
        unpack(g, aten_linear(g, x[0], module_param(g, l, 0), bias), 3, part);
        return;
    }
    const int64_t both[] = {width, 2 * width}, each[] = {width, width, width};
    const int n = pair ? 2 : 3;
    if (packed) aten_split(g, module_param(g, l, 0), pair ? both : each, 0, w, n);
    for (int k = 0; k < n && !packed; k++) w[k] = tensor_ref(module_param(g, l, k));
    if (bias) aten_split(g, bias, pair ? both : each, 0, b, n);
    part[0] = aten_linear(g, x[0], w[0], b[0]);
    if (pair) unpack(g, aten_linear(g, x[1], w[1], b[1]), 2, part + 1);
    for (int k = 1; k < 3 && !pair; k++) part[k] = aten_linear(g, x[k], w[k], b[k]);
    for (int k = 0; k < n; k++) {
        tensor_drop(g, w[k]);
        tensor_drop(g, b[k]);
    }
}

/* (T, N, E) as (N heads, T, width): view(T, N heads, width).transpose(0, 1). Takes over x. */
static Tensor *heads_first(Eager *g, Tensor *x, int64_t heads) {
    GUARD(g);
    const int64_t *d = x->size.of;
    Tensor *apart = aten_view(g, x, SIZE(d[0], d[1] * heads, d[2] / heads)), *y = aten_transpose(g, apart, 0, 1);
    tensor_drop(g, apart);
    tensor_drop(g, x);
    return y;
}

/* With need_weights: of q, k, v (N heads, T, width), of which k and v are dropped, the output (N heads, T, width), and the weights
 * (N heads, T, S). mask: what is added to the scores, or NULL. */
static Tensor *with_weights(Eager *g, const Layer *l, Tensor **part, Tensor *mask, Tensor **weights) {
    GUARD(g);
    const bool drops = g->training && options_float(&l->options, "dropout") > 0;
    Tensor *scaled = aten_binary_number(g, WITH_MUL, part[0]), *turned = aten_transpose(g, part[1], 1, 2);
    Tensor *low_mask = mask ? amp_low(g, mask) : NULL, *a = amp_low(g, scaled), *b = amp_low(g, turned);
    *weights = mask ? aten_baddbmm(g, low_mask, a, b) : aten_bmm(g, a, b);
    tensor_drop(g, low_mask);
    tensor_drop(g, a);
    tensor_drop(g, b);
    tensor_drop(g, turned);
    tensor_drop(g, scaled);
    if (g->version->multihead_frees) tensor_set(g, &part[1], NULL);
    tensor_set(g, weights, aten_softmax(g, *weights, 2, false, g->autocast ? T_FLOAT : (*weights)->type));
    if (drops) tensor_set(g, weights, aten_dropout(g, *weights));
    Tensor *low = amp_low(g, *weights), *v = amp_low(g, part[2]), *y = aten_bmm(g, low, v);
    tensor_drop(g, low);
    tensor_drop(g, v);
    if (g->version->multihead_frees) tensor_set(g, &part[2], NULL);
    return y;
}

/* The weights as they are given back, (N, heads, T, S) or the mean of the heads. */
static Tensor *given_back(Eager *g, const Layer *l, Tensor *weights, int64_t batch, int64_t heads) {
    GUARD(g);
    Tensor *apart = aten_view(g, weights, SIZE(batch, heads, weights->size.of[1], weights->size.of[2]));
    tensor_drop(g, weights);
    if (options_bool(&l->options, "average_attn_weights")) tensor_set(g, &apart, aten_mean(g, apart, 1u << 1, false));
    return apart;
}

static Tensor *multihead_attention(Eager *g, const Layer *l, Tensor *const *in) {
    GUARD(g);
    const int64_t heads = options_int(&l->options, "num_heads");
    const bool batch_first = options_bool(&l->options, "batch_first"), bias = options_bool(&l->options, "bias");
    const int64_t kdim = options_int(&l->options, "kdim"), vdim = options_int(&l->options, "vdim");
    const int64_t embed = options_int(&l->options, "embed_dim");
    const bool packed = kdim == embed && vdim == embed;
    Tensor *x[3], *part[3];
    for (int k = 0; k < 3; k++) {
        Tensor *given = in[l->n_in == 1 ? 0 : k];
        int same = 0;
        while (same < k && in[l->n_in == 1 ? 0 : same] != given) same++;
        x[k] = same < k ? tensor_ref(x[same]) : batch_first ? aten_transpose(g, given, 0, 1) : tensor_ref(given);
    }
    const int64_t steps = x[0]->size.of[0], keys = x[1]->size.of[0], batch = x[0]->size.of[1];
    const bool weighs = options_bool(&l->options, "need_weights"), masked = weighs && options_bool(&l->options, "is_causal");
    /* a triangle of booleans that the caller has made, and what is added to the scores */
    Tensor *hidden = masked ? aten_triangle(g, steps, keys) : NULL, *weights = NULL, *y;
    Tensor *mask = masked ? aten_random(g, "aten::zeros_like", SIZE(1, steps, keys), x[0]->type) : NULL;
    in_projection(g, l, x, packed, part);
    const SdpaHow how = {g->training ? options_float(&l->options, "dropout") : 0, options_bool(&l->options, "is_causal"), NULL};
    for (int k = 0; k < 3; k++) part[k] = heads_first(g, part[k], heads);
    if (weighs) {
        y = with_weights(g, l, part, mask, &weights);
        tensor_set(g, &y, aten_transpose(g, y, 0, 1));
    } else {
        for (int k = 0; k < 3; k++)
            tensor_set(g, &part[k], aten_view(g, part[k], SIZE(batch, heads, part[k]->size.of[1], part[k]->size.of[2])));
        y = aten_sdpa(g, part[0], part[1], part[2], how);
        for (int k = 0; k < 3 && g->version->multihead_frees; k++) tensor_set(g, &part[k], NULL);
        tensor_set(g, &y, aten_permute(g, y, (int[]){2, 0, 1, 3}));
    }
    tensor_set(g, &y, aten_contiguous(g, y));
    tensor_set(g, &y, aten_view(g, y, SIZE(steps * batch, embed)));
    const int out = packed ? 1 + bias : 3 + bias;
    tensor_set(g, &y, aten_linear(g, y, module_param(g, l, out), bias ? module_param(g, l, out + 1) : NULL));
    tensor_set(g, &y, aten_view(g, y, SIZE(steps, batch, embed)));
    if (weighs) weights = given_back(g, l, weights, batch, heads);
    for (int k = 0; k < 3; k++) {
        tensor_drop(g, part[k]);
        tensor_drop(g, x[k]);
    }
    tensor_drop(g, mask);
    tensor_drop(g, hidden);
    if (batch_first) tensor_set(g, &y, aten_transpose(g, y, 0, 1));
    if (weights && options_bool(&l->options, "weights_held")) tensor_keep(g, weights);
    else tensor_drop(g, weights);
    return y;
}

Tensor *module_attention(Eager *g, const Layer *l, Tensor *const *in) {
    return l->kind->which ? causal_self_attention(g, l, in[0]) : multihead_attention(g, l, in);
}

/* ---- ScaledDotProductAttention: the listing is docs/pytorch.md's */

static bool is_capped(const Layer *l) { return options_float(&l->options, "softcap") > 0; }

/* A window that has more places than there are keys makes no mask (transformers/masking_utils.py). */
static bool has_window(const Layer *l) {
    const int64_t window = options_int(&l->options, "window");
    return window && window <= l->in.dim[1];
}

bool attention_is_plain(const Layer *l) { return !has_window(l) && !is_capped(l); }

/* For q (N, T, C) and k (N, S, C): is_causal and the window as a mask where the kernel is not told, of booleans, or put into
 * the bias, which with a cap is one of zeros where there is none. A bias alone is the mask. NULL: there is none. */
static Tensor *attention_mask(Eager *g, const Layer *l, const Tensor *q, const Tensor *k, Tensor *bias) {
    GUARD(g);
    const int64_t steps = q->size.of[1], keys = k->size.of[1];
    if (!options_bool(&l->options, "is_causal") || (attention_is_plain(l) && !bias)) return tensor_ref(bias);
    Tensor *seen = aten_triangle(g, steps, keys);
    if (has_window(l)) tensor_set(g, &seen, aten_random(g, "aten::triu", seen->size, T_BOOL));
    if (!bias && !is_capped(l)) return seen;
    Tensor *given = bias ? tensor_ref(bias) : aten_random(g, "aten::new_zeros", seen->size, q->type);
    Tensor *hidden = aten_random(g, "aten::bitwise_not", seen->size, T_BOOL), *mask = aten_masked_fill(g, given, hidden);
    tensor_drop(g, hidden);
    tensor_drop(g, given);
    tensor_drop(g, seen);
    return mask;
}

static Tensor *low_matmul(Eager *g, Tensor *a, Tensor *b) {
    Tensor *lb = amp_low(g, b), *la = amp_low(g, a), *y = aten_matmul(g, la, lb);
    tensor_drop(g, la);
    tensor_drop(g, lb);
    return y;
}

/* transformers' eager_attention_forward of Gemma 2, (N, T, heads width): the weights of the keys have one name from the
 * scores on. */
static Tensor *capped_attention(Eager *g, Tensor *q, Tensor *k, Tensor *v, Tensor *mask, double dropout) {
    GUARD(g);
    Tensor *keys = aten_repeat_heads(g, k, q->size.of[1]), *values = aten_repeat_heads(g, v, q->size.of[1]);
    Tensor *turned = aten_transpose(g, keys, 2, 3), *weights = low_matmul(g, q, turned);
    tensor_drop(g, turned);
    tensor_set(g, &weights, aten_binary_number(g, WITH_MUL, weights));
    tensor_set(g, &weights, aten_binary_number(g, WITH_DIV, weights));
    tensor_set(g, &weights, aten_act(g, aten_act_rule("Tanh"), weights, false));
    tensor_set(g, &weights, aten_binary_number(g, WITH_MUL, weights));
    if (mask) tensor_set(g, &weights, aten_binary(g, WITH_ADD, weights, mask));
    Tensor *wide = aten_softmax(g, weights, weights->size.rank - 1, false, T_FLOAT), *narrow = aten_to(g, wide, q->type);
    tensor_drop(g, wide);
    tensor_set(g, &weights, narrow);
    if (dropout > 0) tensor_set(g, &weights, aten_dropout(g, weights));
    Tensor *y = low_matmul(g, weights, values);
    tensor_set(g, &y, heads_together(g, y));
    tensor_drop(g, weights);
    tensor_drop(g, values);
    tensor_drop(g, keys);
    return y;
}

Tensor *module_sdpa(Eager *g, const Layer *l, Tensor *const *in) {
    const int64_t heads = options_int(&l->options, "num_heads"), width = in[0]->size.of[2] / heads;
    const double dropout = g->training ? options_float(&l->options, "dropout_p") : 0;
    Tensor *mask = attention_mask(g, l, in[0], in[1], l->n_in > 3 ? in[3] : NULL), *part[3];
    for (int i = 0; i < 3; i++) part[i] = heads_apart(g, in[i], in[i]->size.of[2] / width);
    for (int i = 1; i < 3 && options_bool(&l->options, "repeats"); i++) tensor_set(g, &part[i], aten_repeat_heads(g, part[i], heads));
    const SdpaHow how = {dropout, options_bool(&l->options, "is_causal") && !mask, mask};
    Tensor *y = is_capped(l) ? capped_attention(g, part[0], part[1], part[2], mask, dropout)
                             : aten_sdpa(g, part[0], part[1], part[2], how);
    for (int i = 0; i < 3; i++) tensor_drop(g, part[i]);
    if (!is_capped(l)) tensor_set(g, &y, heads_together(g, y));
    tensor_drop(g, mask);
    return y;
}

/* ---- rotary positions of (N, T, heads dim), without a listing that makes the angles */

/* x * cos + rotate_half(x) * sin, rotate_half(x) = cat((-x2, x1)): transformers' apply_rotary_pos_emb */
Tensor *rotate_halves(Eager *g, Tensor *x) {
    GUARD(g);
    const int last = x->size.rank - 1;
    const int64_t half = x->size.of[last] / 2;
    Tensor *direct = aten_binary(g, WITH_MUL, x, g->angles.cosine);
    Tensor *front = aten_narrow(g, x, last, half), *rear = aten_narrow(g, x, last, half), *minus = aten_neg(g, rear);
    Tensor *turned = aten_cat(g, (Tensor *[]){minus, front}, 2, last);
    tensor_drop(g, minus);
    tensor_drop(g, front);
    tensor_drop(g, rear);
    Tensor *crossed = aten_binary(g, WITH_MUL, turned, g->angles.sine);
    tensor_drop(g, turned);
    Tensor *y = aten_binary(g, WITH_ADD, direct, crossed);
    tensor_drop(g, direct);
    tensor_drop(g, crossed);
    return y;
}

/* cos and sin of the angles, (T, dim), which the first layer of a forward pass makes and the others share. */
static void make_angles(Eager *g, int64_t steps, int64_t dim) {
    if (g->angles.cosine && g->angles.cosine->size.of[0] == steps && g->angles.cosine->size.of[1] == dim) return;
    Tensor *angles = aten_random(g, "aten::cat", SIZE(steps, dim), T_FLOAT);
    tensor_set(g, &g->angles.cosine, aten_random(g, "aten::cos", SIZE(steps, dim), T_FLOAT));
    tensor_set(g, &g->angles.sine, aten_random(g, "aten::sin", SIZE(steps, dim), T_FLOAT));
    tensor_drop(g, angles);
}

Tensor *module_rotary(Eager *g, const Layer *l, Tensor *const *in) {
    const int64_t dim = options_int(&l->options, "dim"), *d = in[0]->size.of;
    make_angles(g, d[1], dim);
    Tensor *x = heads_apart(g, in[0], d[2] / dim), *y = rotate_halves(g, x);
    tensor_drop(g, x);
    tensor_set(g, &y, heads_together(g, y));
    return y;
}
