/* Hugging Face's LlamaForCausalLM (transformers 5.23, sdpa attention, use_cache=False): what a layer stands for whose
 * option `listing` names one of its classes. Its forward functions make more than their children do: numbers of the
 * positions, the test for packed sequences, the angles. Sources: transformers/models/llama/modeling_llama.py,
 * masking_utils.py (find_packed_sequence_indices), integrations/sdpa_attention.py. */
#include <inttypes.h>
#include <string.h>

#include "fsdp.h"
#include "modules.h"

/* ---- LlamaRMSNorm: in fp32; the result has the input's type before the weight comes to it */

Tensor *llama_rms_norm(Eager *g, Tensor *x, Tensor *w) {
    GUARD(g);
    Tensor *wide = aten_to(g, x, T_FLOAT), *squares = aten_act(g, aten_act_rule("Pow"), wide, false);
    Tensor *variance = aten_mean(g, squares, 1u << (x->size.rank - 1), true);
    tensor_drop(g, squares);
    Tensor *shifted = aten_binary_number(g, WITH_ADD, variance), *scale = aten_act(g, aten_act_rule("Rsqrt"), shifted, false);
    tensor_drop(g, shifted);
    tensor_set(g, &wide, aten_binary(g, WITH_MUL, wide, scale));
    tensor_drop(g, scale);
    Tensor *narrow = aten_to(g, wide, x->type), *y = aten_binary(g, WITH_MUL, w, narrow);
    tensor_drop(g, narrow);
    tensor_drop(g, variance);
    tensor_drop(g, wide);
    return y;
}

/* ---- LlamaModel: positions and angles are variables of its forward function */

/* arange(T) + 0, and whether the positions start anew within a sequence, which the host reads. */
static Tensor *number_positions(Eager *g, int64_t batch, int64_t steps) {
    Tensor *counted = aten_random(g, "aten::arange", SIZE(steps), T_LONG);
    Tensor *positions = aten_random(g, "aten::add", SIZE(steps), T_LONG);
    tensor_drop(g, counted);
    Tensor *before = aten_random(g, "aten::sub", SIZE(batch, 1), T_LONG);
    Tensor *longer = aten_random(g, "aten::cat", SIZE(batch, steps + 1), T_LONG);
    Tensor *apart = aten_random(g, "aten::sub", SIZE(batch, steps), T_LONG);
    tensor_drop(g, longer);
    Tensor *starts = aten_random(g, "aten::ne", SIZE(batch, steps), T_BOOL);
    Tensor *sequence = aten_random(g, "aten::cumsum", SIZE(batch, steps), T_LONG);
    tensor_drop(g, starts);
    Tensor *one = aten_random(g, "aten::eq", SIZE(batch), T_BOOL), *all = aten_random(g, "aten::all", (Size){0, {0}}, T_BOOL);
    tensor_drop(g, all);
    tensor_drop(g, one);
    tensor_drop(g, sequence);
    tensor_drop(g, apart);
    tensor_drop(g, before);
    return positions;
}

/* LlamaRotaryEmbedding: a copy of the frequencies where the model is not fp32; cos and sin in the hidden states' type. */
static void make_angles(Eager *g, const Tensor *hidden, int64_t dim, ScalarType buffers) {
    const int64_t steps = hidden->size.of[1];
    const Size half = SIZE(steps, dim / 2), whole = SIZE(steps, dim);
    Tensor *positions = aten_random(g, "aten::_to_copy", SIZE(steps), T_FLOAT);
    Tensor *wide = buffers == T_FLOAT ? NULL : aten_random(g, "aten::_to_copy", SIZE(dim / 2), T_FLOAT);
    Tensor *freqs = aten_random(g, "aten::mul", half, T_FLOAT);
    tensor_drop(g, wide);
    tensor_drop(g, positions);
    Tensor *emb = aten_random(g, "aten::cat", whole, T_FLOAT), *made[2];
    for (int k = 0; k < 2; k++) {
        Tensor *plain = aten_random(g, k ? "aten::sin" : "aten::cos", whole, T_FLOAT);
        made[k] = aten_random(g, "aten::mul", whole, T_FLOAT);
        tensor_drop(g, plain);
    }
    g->angles.cosine = aten_to(g, made[0], hidden->type);
    g->angles.sine = aten_to(g, made[1], hidden->type);
    for (int k = 0; k < 2; k++) tensor_drop(g, made[k]);
    tensor_drop(g, emb);
    tensor_drop(g, freqs);
}

/* Of the first rotary positions in it; 0: there are none. */
static int64_t head_width(const Layer *l) {
    int64_t width = !strcmp(layer_kind(l), "RotaryPositionalEmbeddings") ? options_int(&l->options, "dim") : 0;
    for (int i = 0; i < l->n_child && !width; i++) width = head_width(l->child[i]);
    return width;
}

/* That of the embedding as the model was made: fully_shard may gather it in another one. */
static ScalarType buffer_type(const Eager *g, const Layer *l) {
    const Layer *embedding = l->child[0];
    return (g->fsdp ? fsdp_shard(g->fsdp, embedding->param[0]) : module_param(g, embedding, 0))->type;
}

static void after_embedding(Eager *g, const Layer *l, const Tensor *hidden) {
    g->angles.positions = number_positions(g, hidden->size.of[0], hidden->size.of[1]);
    make_angles(g, hidden, head_width(l), buffer_type(g, l));
}

static Tensor *llama_model(Eager *g, const Layer *l, Tensor *const *in) {
    GUARD(g);
    const Angles before = g->angles;
    g->angles = (Angles){NULL};
    Tensor *y = graph_run(g, l, in, after_embedding);
    angles_drop(g, &g->angles);
    g->angles = before;
    return y;
}

/* inv_freq and original_inv_freq, which model.to() moves after the model's parameters; last: the number of the one that
 * was moved last. */
static int last_param(const Layer *l) {
    int last = -1;
    for (int k = 0; k < l->n_params; k++) last = l->param[k] > last ? l->param[k] : last;
    for (int i = 0; i < l->n_child; i++) {
        const int below = last_param(l->child[i]);
        if (below > last) last = below;
    }
    return last;
}

void llama_models(const Layer *l, const Layer **model) {
    char listing[OPTION_WORDS];
    for (int i = 0; i < l->n_child; i++) llama_models(l->child[i], model);
    if (!strcmp(options_word(&l->options, "listing", listing), "LlamaModel")) model[last_param(l)] = l;
}

void llama_buffers(Eager *g, const Layer *l) {
    eager_where(g, l, NULL);
    for (int k = 0; k < LLAMA_BUFFERS; k++) g->rotary[g->n_rotary++] = aten_random(g, "aten::to", SIZE(head_width(l) / 2), buffer_type(g, l));
}

/* ---- LlamaAttention: q, k, v are variables of its forward function */

enum { PROJECTIONS = 3, QUERY_TURNED = 3, KEY_TURNED = 4, ATTENTION = 5, OUT = 6, ATTENTION_LAYERS = 7 };

static Tensor *llama_attention(Eager *g, const Layer *l, Tensor *const *in) {
    const int64_t width = options_int(&l->child[QUERY_TURNED]->options, "dim");
    const Options *how = &l->child[ATTENTION]->options;
    Tensor *part[PROJECTIONS];
    for (int k = 0; k < PROJECTIONS; k++) {
        Tensor *flat = module_call(g, l->child[k], in);
        part[k] = heads_apart(g, flat, flat->size.of[2] / width);
        tensor_drop(g, flat);
    }
    Tensor *query = rotate_halves(g, part[0]), *key = rotate_halves(g, part[1]);
    tensor_set(g, &part[0], query);
    tensor_set(g, &part[1], key);
    const bool causal = options_bool(how, "is_causal") && in[0]->size.of[1] > 1;
    Tensor *y = aten_sdpa(g, part[0], part[1], part[2], (SdpaHow){g->training ? options_float(how, "dropout_p") : 0, causal, NULL});
    tensor_set(g, &y, heads_together(g, y));
    Tensor *z = module_call(g, l->child[OUT], &y);
    tensor_drop(g, y);
    for (int k = 0; k < PROJECTIONS; k++) tensor_drop(g, part[k]);
    return z;
}

/* ---- which layers may say that they are one of these */

#define PRODUCT NULL /* Linear, also with quantised weights or with an adapter */

static bool is_product(const Layer *l) {
    char listing[OPTION_WORDS];
    return !strcmp(layer_kind(l), "Linear") || bnb_is(l, 4) || bnb_is(l, 8) || !strcmp(options_word(&l->options, "listing", listing), "lora.Linear");
}

static int expect_attention(const Layer *l, int64_t width, Err *e) {
    static const struct { const char *kind; int from[3], n_from; } children[ATTENTION_LAYERS] = {
        {PRODUCT, {~0}, 1}, {PRODUCT, {~0}, 1}, {PRODUCT, {~0}, 1},
        {"RotaryPositionalEmbeddings", {0}, 1}, {"RotaryPositionalEmbeddings", {1}, 1},
        {"ScaledDotProductAttention", {3, 4, 2}, 3}, {PRODUCT, {5}, 1}};
    bool same = l->n_child == ATTENTION_LAYERS;
    for (int i = 0; i < ATTENTION_LAYERS && same; i++) {
        const Layer *child = l->child[i];
        same = (children[i].kind ? !strcmp(layer_kind(child), children[i].kind) : is_product(child)) && child->n_from == children[i].n_from;
        for (int k = 0; k < children[i].n_from && same; k++) same = child->from[k] == children[i].from[k];
        if (same && (i == QUERY_TURNED || i == KEY_TURNED))
            same = options_int(&child->options, "dim") == width && !options_bool(&child->options, "interleaved");
        if (same && i == ATTENTION) same = attention_is_plain(child);
    }
    return same ? OK : layer_error(l, e, "listing = \"LlamaAttention\": expected q, k and v by Linear, q and k turned by "
                                   "RotaryPositionalEmbeddings of %" PRId64 " features, interleaved = false, their attention "
                                   "without a window or a cap, and a Linear of that, within a LlamaModel", width);
}

/* width: of the heads of the LlamaModel that it is in, 0: of none. */
static int check_listing(const Layer *l, int64_t width, Err *e) {
    char listing[OPTION_WORDS];
    int code = OK;
    options_word(&l->options, "listing", listing);
    if (!strcmp(listing, "LlamaModel")) {
        width = head_width(l);
        if (!width || l->n_child < 2 || strcmp(layer_kind(l->child[0]), "Embedding") != 0)
            return layer_error(l, e, "listing = \"LlamaModel\": expected an Embedding first, then layers with "
                               "RotaryPositionalEmbeddings");
    }
    if (!strcmp(listing, "LlamaAttention")) code = expect_attention(l, width, e);
    if (!strcmp(listing, "lora.Linear")) code = lora_check(l, e);
    if (!strcmp(listing, "LlamaRMSNorm") && l->n_params == 0)
        code = layer_error(l, e, "listing = \"LlamaRMSNorm\": expected elementwise_affine = true");
    for (int i = 0; i < l->n_child && !code; i++) code = check_listing(l->child[i], width, e);
    return code;
}

int llama_check(const Layer *root, Err *e) { return check_listing(root, 0, e); }

Module *llama_graph(const Layer *l) {
    char listing[OPTION_WORDS];
    options_word(&l->options, "listing", listing);
    return !strcmp(listing, "LlamaModel") ? llama_model : !strcmp(listing, "LlamaAttention") ? llama_attention
           : !strcmp(listing, "lora.Linear") ? lora_linear : NULL;
}
