/* MultiheadAttention as self-attention, and CausalSelfAttention (nanoGPT's): one product for query, key and value, the
 * op that mixes the steps, one product back. The matrix of scores exists nowhere. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "layer.h"

/* What differs between the kinds; Layer.kind->which is the row. */
typedef struct AttentionKind {
    const char *width, *heads;      /* options */
    const char *params[4];          /* PyTorch's and nanoGPT's names: in, its bias, out, its bias */
    bool causal, xavier;            /* xavier: PyTorch's initialisation of both products' weights and zero biases */
    bool drops_output;              /* dropout also behind the second product */
} AttentionKind;

static const AttentionKind kinds[] = {
    {"embed_dim", "num_heads", {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}, false, true,
     false},
    {"n_embd", "n_head", {"c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"}, true, false, true},
};

static const AttentionKind *kind_of(const Layer *l) { return &kinds[l->kind->which]; }

static int declare(Network *n, Layer *l, int64_t width, Err *e) {
    const AttentionKind *k = kind_of(l);
    double linear = 1 / sqrt((double)width), bias = k->xavier ? 0 : linear; /* in_proj: sqrt(6 / (C + 3 C)) */
    double in = k->xavier ? sqrt(6 / (4 * (double)width)) : linear;
    const struct { Shape shape; double bound; } params[4] = {
        {shape2(3 * width, width), in}, {shape1(3 * width), bias}, {shape2(width, width), linear},
        {shape1(width), bias}};
    int code = OK;
    for (int i = 0; i < 4 && !code; i++)
        if (i % 2 == 0 || options_bool(&l->options, "bias"))
            code = network_param(n, l, k->params[i], params[i].shape, params[i].bound, NULL, e);
    return code;
}

int layer_attention_shape(Network *n, Layer *l, Err *e) {
    const AttentionKind *k = kind_of(l);
    int64_t width = options_int(&l->options, k->width), heads = options_int(&l->options, k->heads);
    double p = options_float(&l->options, "dropout");
    bool batch_first = k->causal || options_bool(&l->options, "batch_first");
    const char *meaning = batch_first ? "(N, T, C)" : "(T, N, C)";
    int code = layer_expect_range(l, k->width, 1, INT32_MAX / 3, e);
    if (!code) code = layer_expect_range(l, k->heads, 1, INT32_MAX, e);
    if (!code) code = layer_expect_rank(l, 3, meaning, e);
    if (code) return code;
    if (width % heads)
        return layer_error(l, e, "%s must be a multiple of %s, found %" PRId64 " and %" PRId64, k->width, k->heads,
                           width, heads);
    if (!(p >= 0 && p <= 1)) return layer_error(l, e, "dropout must be between 0 and 1, found %g", p);
    if (l->in.dim[2] != width)
        return layer_error(l, e, "expected %" PRId64 " features %s, found %" PRId64, width, meaning, l->in.dim[2]);
    return declare(n, l, width, e);
}

/* Parameters 0 (and 1) of the first product, the next one or two of the second. */
static int product(Lower *lw, const Layer *l, int which, int x, int y) {
    int n = l->n_params / 2, in[3] = {x};
    for (int k = 0; k < n; k++) in[1 + k] = lw->param[l->param[which * n + k]];
    return lower_emit(lw, OP_linear, l, in, n + 1, y, NULL);
}

int layer_attention_forward(Lower *lw, const Layer *l, const int *in) {
    const AttentionKind *k = kind_of(l);
    const int64_t *d = l->in.dim;
    double p = lw->training ? options_float(&l->options, "dropout") : 0;
    int heads = (int)options_int(&l->options, k->heads), calls = p > 0 ? program_calls(lw->p) : NO_BUF;
    bool batch_first = k->causal || options_bool(&l->options, "batch_first");
    Attr a, drop;
    memset(&a, 0, sizeof a);
    a.attention = (AttentionAttr){heads, k->causal || options_bool(&l->options, "is_causal"), batch_first, (float)p,
                                  p > 0 ? lw->drops++ : 0};
    int qkv = product(lw, l, 0, in[0], lower_temp(lw, l, "qkv", shape3(d[0], d[1], 3 * d[2]), NULL, DT_F32));
    int mixed = lower_emit(lw, OP_attention, l, (int[]){qkv, calls}, 2, lower_buf(lw, l, "mixed", DT_F32), &a);
    if (lw->training && !lw->p->failed) {
        Shape rows = shape3(batch_first ? d[0] : d[1], heads, batch_first ? d[1] : d[0]);
        int lse = lower_temp(lw, l, "lse", rows, NULL, DT_F32);
        if (lw->p->failed) return 0;
        Op *op = &lw->p->ops[lw->p->n_ops - 1];
        op->out[1] = lse;
        op_cost(lw->p, op);
    }
    int y = product(lw, l, 1, mixed, lower_buf(lw, l, "y", DT_F32));
    if (!k->drops_output || p == 0) return y;
    memset(&drop, 0, sizeof drop);
    drop.drop.p = (float)p;
    drop.drop.id = lw->drops++;
    return lower_emit(lw, OP_dropout, l, (int[]){y, calls}, 2, lower_buf(lw, l, "dropped", DT_F32), &drop);
}
