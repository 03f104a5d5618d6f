/* MultiheadAttention, and CausalSelfAttention (nanoGPT's): products make query, key and value, one product for those
 * that are made of the same input; the op "attention" mixes the steps; one more product follows. In
 * ScaledDotProductAttention that op stands alone. The matrix of scores is never stored. A row may hold several sequences,
 * whose positions are one more input: each sees itself alone. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "network/layer.h"

enum { PARTS = 3 }; /* query, key, value */

/* What differs between the kinds; Layer.kind->which is the row. */
typedef struct AttentionKind {
    const char *width, *heads;      /* names of options */
    const char *in[2], *out[2];     /* names of weight and bias: of the packed (q, k, v), and of the last product */
    const char *apart[PARTS];       /* names of the weights where the inputs are not all embed_dim wide */
    bool causal, xavier;            /* xavier: PyTorch's initialisation of the first weights; biases start at zero */
    bool drops_output;              /* dropout after the last product, too */
} AttentionKind;

static const AttentionKind kinds[] = {
    {"embed_dim", "num_heads", {"in_proj_weight", "in_proj_bias"}, {"out_proj.weight", "out_proj.bias"},
     {"q_proj_weight", "k_proj_weight", "v_proj_weight"}, false, true, false},
    {"n_embd", "n_head", {"c_attn.weight", "c_attn.bias"}, {"c_proj.weight", "c_proj.bias"}, {NULL}, true, false,
     true},
};

static const AttentionKind *kind_of(const Layer *l) { return &kinds[l->kind->which]; }

static int64_t width_of(const Layer *l) { return options_int(&l->options, kind_of(l)->width); }

/* How many features the query, the key or the value comes with. */
static int64_t features_of(const Layer *l, int part) {
    static const char *const option[PARTS] = {"", "kdim", "vdim"};
    int64_t given = options_int(&l->options, option[part]);
    return given ? given : width_of(l);
}

/* Is there one weight for all three? */
static bool is_packed(const Layer *l) {
    return features_of(l, 1) == width_of(l) && features_of(l, 2) == width_of(l);
}

static bool has_bias(const Layer *l) { return options_bool(&l->options, "bias"); }

/* ---- shapes and parameters */

/* A weight (rows, columns). */
static int declare(Network *n, Layer *l, const char *name, int64_t rows, int64_t columns, bool xavier, Err *e) {
    double bound = xavier ? sqrt(6 / (double)(rows + columns)) : 1 / sqrt((double)columns);
    return network_param(n, l, name, shape2(rows, columns), bound, NULL, e);
}

/* In this order: the weight or weights of q, k and v, their bias, the last product's weight, its bias. */
static int declare_all(Network *n, Layer *l, int64_t width, Err *e) {
    const AttentionKind *k = kind_of(l);
    double bias = k->xavier ? 0 : 1 / sqrt((double)width);
    int code = OK;
    if (is_packed(l)) code = declare(n, l, k->in[0], PARTS * width, width, k->xavier, e);
    for (int i = 0; i < PARTS && !is_packed(l) && !code; i++)
        code = declare(n, l, k->apart[i], width, features_of(l, i), k->xavier, e);
    if (!code && has_bias(l)) code = network_param(n, l, k->in[1], shape1(PARTS * width), bias, NULL, e);
    if (!code) code = declare(n, l, k->out[0], width, width, false, e);
    return code || !has_bias(l) ? code : network_param(n, l, k->out[1], shape1(width), bias, NULL, e);
}

/* Which input is the query, the key or the value; a single sequence is all three. */
static int input_of(const Layer *l, int part) { return l->n_in < PARTS ? 0 : part; }
static const Shape *part_shape(const Layer *l, int part) { return &l->ins[input_of(l, part)].shape; }

/* Checks that query, key and value have features[PARTS], and fit each other. time: the dimension of the
 * steps, 0 or 1. */
static int expect_parts(const Layer *l, const int64_t *features, int time, Err *e) {
    const char *meaning = time ? "(N, T, C)" : "(T, N, C)";
    static const char *const name[PARTS] = {"a query", "a key", "a value"};
    const Shape *q = part_shape(l, 0), *k = part_shape(l, 1), *v = part_shape(l, 2);
    char one[SHAPE_TEXT], two[SHAPE_TEXT], three[SHAPE_TEXT];
    for (int i = 0; i < PARTS; i++) {
        const Shape *s = part_shape(l, i);
        if (l->ins[input_of(l, i)].param)
            return layer_error(l, e, "expected %s that a layer gives, found a parameter", name[i]);
        if (s->rank != 3)
            return layer_error(l, e, "expected %s of 3 dimensions %s, found %s", l->n_in < PARTS ? "an input" : name[i],
                               meaning, shape_text(s, one));
        if (s->dim[2] != features[i])
            return layer_error(l, e, "expected %s of %" PRId64 " features %s, found %" PRId64,
                               l->n_in < PARTS && i == 0 ? "an input" : name[i], features[i], meaning, s->dim[2]);
    }
    if (q->dim[1 - time] == k->dim[1 - time] && k->dim[0] == v->dim[0] && k->dim[1] == v->dim[1]) return OK;
    return layer_error(l, e, "expected one batch, and as many keys as values %s, found %s, %s and %s", meaning,
                       shape_text(q, one), shape_text(k, two), shape_text(v, three));
}

int layer_attention_shape(Network *n, Layer *l, Err *e) {
    const AttentionKind *k = kind_of(l);
    int64_t width = width_of(l), heads = options_int(&l->options, k->heads);
    double p = options_float(&l->options, "dropout");
    bool batch_first = k->causal || options_bool(&l->options, "batch_first");
    if (k->causal && l->n_in > 2) return layer_error(l, e, "takes 1 input or 2 (x, position_ids), found %d", l->n_in);
    if (!k->causal && l->n_in != 1 && l->n_in != PARTS)
        return layer_error(l, e, "takes 1 input or 3 (query, key, value), found %d", l->n_in);
    int code = layer_expect_range(l, k->width, 1, INT32_MAX / PARTS, e);
    if (!code) code = layer_expect_range(l, k->heads, 1, INT32_MAX, e);
    if (!code) code = layer_expect_range(l, "kdim", 1, INT32_MAX / PARTS, e);
    if (!code) code = layer_expect_range(l, "vdim", 1, INT32_MAX / PARTS, e);
    if (code) return code;
    if (width % heads)
        return layer_error(l, e, "%s must be a multiple of %s, found %" PRId64 " and %" PRId64, k->width, k->heads,
                           width, heads);
    if (!(p >= 0 && p <= 1)) return layer_error(l, e, "dropout must be between 0 and 1, found %g", p);
    const int64_t features[PARTS] = {width, features_of(l, 1), features_of(l, 2)};
    code = expect_parts(l, features, batch_first ? 1 : 0, e);
    if (!code && l->n_in == 2) code = layer_expect_positions(n, l, 1, e);
    return code ? code : declare_all(n, l, width, e);
}

/* ---- ops */

/* Rows [start, start + rows) of a parameter: the parameter itself if these are all, else a copy of them. */
static int rows_of(Lower *lw, const Layer *l, int param, int64_t start, int64_t rows, const char *operand) {
    Shape s = lw->p->bufs[param].shape;
    Attr a;
    memset(&a, 0, sizeof a);
    assert(start >= 0 && rows >= 1 && start + rows <= s.dim[0]);
    if (rows == s.dim[0] || lw->p->failed) return param;
    s.dim[0] = rows;
    a.axis.start = start;
    int y = lower_temp(lw, l, operand, s, NULL, DT_F32);
    if (lw->p->failed) return 0;
    lw->p->bufs[y].category = CAT_WEIGHTS;
    return lower_emit(lw, OP_slice, l, &param, 1, y, &a);
}

/* Parts [first, first + n) of (q, k, v), all of them made of x, in one product. */
static int project(Lower *lw, const Layer *l, int x, int first, int n) {
    bool packed = is_packed(l);
    assert(first >= 0 && n >= 1 && first + n <= PARTS && (packed || n == 1)); /* apart, each has a weight of its own */
    int64_t width = width_of(l), start = first * width, rows = n * width;
    Shape s = lw->p->bufs[x].shape;
    char name[2][16], part[PARTS + 1];
    snprintf(part, sizeof part, "%.*s", n, "qkv" + first);
    snprintf(name[0], sizeof name[0], "%s_weight", part);
    snprintf(name[1], sizeof name[1], "%s_bias", part);
    int w = lw->param[l->param[packed ? 0 : first]], in[PARTS] = {x, w};
    if (packed) in[1] = rows_of(lw, l, w, start, rows, name[0]);
    if (has_bias(l)) in[2] = rows_of(lw, l, lw->param[l->param[packed ? 1 : PARTS]], start, rows, name[1]);
    s.dim[2] = rows;
    return lower_emit(lw, OP_linear, l, in, has_bias(l) ? 3 : 2, lower_temp(lw, l, part, s, NULL, DT_F32), NULL);
}

/* Emits the op; in training it also gives the log sum exp of each row's scores, which its gradient needs. */
static int mix(Lower *lw, const Layer *l, const int *in, const Attr *a) {
    int y = lower_emit(lw, OP_attention, l, in, 6, lower_buf(lw, l, "mixed", DT_F32), a);
    if (!lw->training || lw->p->failed) return y;
    int batch = a->attention.batch_first ? 0 : 1;
    Shape rows = shape3(l->in.dim[batch], a->attention.heads, l->in.dim[1 - batch]);
    lower_keep(lw, 1, lower_temp(lw, l, "lse", rows, NULL, DT_F32));
    return y;
}

int layer_attention_forward(Lower *lw, const Layer *l, const int *in) {
    const AttentionKind *kind = kind_of(l);
    double p = lw->training ? options_float(&l->options, "dropout") : 0;
    int calls = p > 0 ? program_calls(lw->p) : NO_BUF, x[PARTS];
    int of[] = {NO_BUF, NO_BUF, NO_BUF, calls, NO_BUF, l->n_in == 2 ? in[1] : NO_BUF};
    int32_t heads = (int32_t)options_int(&l->options, kind->heads);
    Attr a, drop;
    memset(&a, 0, sizeof a);
    a.attention = (AttentionAttr){
        heads, heads, kind->causal || options_bool(&l->options, "is_causal"),
        kind->causal || options_bool(&l->options, "batch_first"), 1.0f / sqrtf((float)(width_of(l) / heads)), (float)p,
        p > 0 ? lw->drops++ : 0, 0, 0};
    for (int i = 0; i < PARTS; i++) x[i] = in[input_of(l, i)];
    /* where n parts are made of one input, of[i] holds all of them, and the op's next n - 1 operands are absent */
    for (int i = 0, n; i < PARTS; i += n) {
        for (n = 1; is_packed(l) && i + n < PARTS && x[i + n] == x[i]; n++) {}
        of[i] = project(lw, l, x[i], i, n);
    }
    const int own = has_bias(l) ? 2 : 1; /* the last product's parameters, which are declared last */
    int back[PARTS] = {mix(lw, l, of, &a)};
    for (int k = 0; k < own; k++) back[1 + k] = lw->param[l->param[l->n_params - own + k]];
    int y = lower_emit(lw, OP_linear, l, back, 1 + own, lower_buf(lw, l, "y", DT_F32), NULL);
    if (!kind->drops_output || p == 0) return y;
    memset(&drop, 0, sizeof drop);
    drop.drop.p = (float)p;
    drop.drop.id = lw->drops++;
    return lower_emit(lw, OP_dropout, l, (int[]){y, calls}, 2, lower_buf(lw, l, "dropped", DT_F32), &drop);
}

/* ---- ScaledDotProductAttention: query, key and value as they are */

static int64_t heads_of(const Layer *l) { return options_int(&l->options, "num_heads"); }

/* Returns the features of a head; features[PARTS]: how many the inputs should have. With enable_gqa the keys may have
 * fewer heads than the query: as many as fill the features that they come with. */
static int64_t head_width(const Layer *l, int64_t *features) {
    const int64_t q = part_shape(l, 0)->dim[2], k = part_shape(l, 1)->dim[2], width = q / heads_of(l);
    const bool grouped = width > 0 && options_bool(&l->options, "enable_gqa") && k % width == 0 && q % k == 0;
    features[0] = q;
    features[1] = features[2] = grouped ? k : q;
    return width;
}

/* With `packed` the last input has the positions of several sequences in a row. */
static bool is_packed_row(const Layer *l) { return options_bool(&l->options, "packed"); }
static bool has_scores(const Layer *l) { return l->n_in - is_packed_row(l) > PARTS; }

/* The bias (T, S), (heads, T, S) or (N, heads, T, S), the last with 1 in place of N or of heads, in 4 dimensions */
static Shape bias_shape(const Shape *s) {
    Shape whole = {4, {1, 1, 1, 1}};
    for (int d = 0; d < s->rank; d++) whole.dim[4 - s->rank + d] = s->dim[d];
    return whole;
}

static int expect_bias(const Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    if (!has_scores(l)) return OK;
    const Shape *s = &l->ins[PARTS].shape, whole = bias_shape(s);
    const int64_t *d = whole.dim, steps = part_shape(l, 0)->dim[1], keys = part_shape(l, 1)->dim[1];
    if (s->rank >= 2 && (d[0] == 1 || d[0] == part_shape(l, 0)->dim[0]) && (d[1] == 1 || d[1] == heads_of(l)) &&
        d[2] == steps && d[3] == keys) return OK;
    return layer_error(l, e, "expected a bias (%" PRId64 ", %" PRId64 "), with dimensions for heads and samples, or 1, "
                       "before them, found %s", steps, keys, shape_text(s, text));
}

/* The bias as the op reads it */
static int whole_bias(Lower *lw, const Layer *l, int bias) {
    Layer like = *l;
    like.out = bias_shape(&l->ins[PARTS].shape);
    like.out_rows = true;
    const int plain = lower_plain(lw, l, bias);
    return l->ins[PARTS].shape.rank == 4 ? plain : lower_view(lw, &like, plain);
}

int layer_sdpa_shape(Network *n, Layer *l, Err *e) {
    const double p = options_float(&l->options, "dropout_p");
    const int given = l->n_in - is_packed_row(l);
    int64_t features[PARTS];
    int code = layer_expect_range(l, "num_heads", 1, INT32_MAX, e);
    if (!code) code = layer_expect_rank(l, 3, "(N, T, C)", e);
    if (code) return code;
    if (given != PARTS && given != PARTS + 1)
        return layer_error(l, e, is_packed_row(l) ? "takes 4 inputs or 5 (query, key, value, bias, position_ids), found %d"
                                              : "takes 3 inputs or 4 (query, key, value, bias), found %d", l->n_in);
    if (!(p >= 0 && p <= 1)) return layer_error(l, e, "dropout_p must be between 0 and 1, found %g", p);
    if (head_width(l, features) * heads_of(l) != features[0])
        return layer_error(l, e, "num_heads: expected a divisor of the query's %" PRId64 " features, found %" PRId64,
                           features[0], heads_of(l));
    if (!code) code = layer_expect_range(l, "window", 0, INT32_MAX, e);
    if (!code && !(options_float(&l->options, "softcap") >= 0))
        return layer_error(l, e, "softcap must not be below 0, found %g", options_float(&l->options, "softcap"));
    if (!code) code = expect_parts(l, features, 1, e);
    if (!code && options_int(&l->options, "window") &&
        (!options_bool(&l->options, "is_causal") || part_shape(l, 0)->dim[1] != part_shape(l, 1)->dim[1]))
        return layer_error(l, e, "window: expected is_causal, and as many keys as queries");
    if (!code && is_packed_row(l) &&
        (!options_bool(&l->options, "is_causal") || part_shape(l, 0)->dim[1] != part_shape(l, 1)->dim[1]))
        return layer_error(l, e, "packed: expected is_causal, and as many keys as queries");
    if (!code && is_packed_row(l)) code = layer_expect_positions(n, l, l->n_in - 1, e);
    return code ? code : expect_bias(l, e);
}

int layer_sdpa_forward(Lower *lw, const Layer *l, const int *in) {
    const double p = lw->training ? options_float(&l->options, "dropout_p") : 0;
    int64_t features[PARTS], width = head_width(l, features);
    char text[OPTION_WORDS];
    const bool own_scale = !options_word(&l->options, "scale", text)[0];
    Attr a;
    memset(&a, 0, sizeof a);
    a.attention = (AttentionAttr){
        (int32_t)heads_of(l), (int32_t)(features[1] / width), options_bool(&l->options, "is_causal"), 1,
        own_scale ? (float)options_float(&l->options, "scale") : 1.0f / sqrtf((float)width), (float)p,
        p > 0 ? lw->drops++ : 0, (int32_t)options_int(&l->options, "window"),
        (float)options_float(&l->options, "softcap")};
    const int bias = has_scores(l) ? whole_bias(lw, l, in[PARTS]) : NO_BUF;
    const int positions = is_packed_row(l) ? in[l->n_in - 1] : NO_BUF;
    return mix(lw, l, (int[]){in[0], in[1], in[2], p > 0 ? program_calls(lw->p) : NO_BUF, bias, positions}, &a);
}
