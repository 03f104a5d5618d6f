#include "attention_cudnn.h"

#include <math.h>
#include <string.h>

#include "libraries.h"

/* Earlier versions err in the gradient where the keys are no multiple of 128, unless their number is given as a tensor: see
 * cuDNN's own front end, which also refuses one query with one key. */
enum { SINCE = 91600 };

/* ---- the op in its own words */

/* Features of `heads` heads from `feature` on in the rows of v: (N, T, F) or (T, N, F). */
static SdpaTensor heads_of(const View *v, const AttentionAttr *a, int64_t feature, int64_t heads, int64_t width) {
    const int64_t near = v->shape.dim[2], far = v->shape.dim[1] * near, time = a->batch_first ? 1 : 0;
    SdpaTensor t = {.dim = {v->shape.dim[1 - time], heads, v->shape.dim[time], width},
                    .stride = {time ? far : near, width, time ? near : far, 1}};
    if (v->data) t.data = (char *)v->data + (size_t)feature * dtype_size(v->dtype);
    return t;
}

static SdpaTensor part_of(const View *qkv, int part, const AttentionAttr *a, int64_t width) {
    const AttentionPart p = attention_part(qkv, part, a, width);
    return heads_of(&qkv[p.operand], a, p.feature, part ? a->kv_heads : a->heads, width);
}

static SdpaTensor in_order(int64_t n, int64_t heads, int64_t rows, int64_t columns, void *data) {
    return (SdpaTensor){{n, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}, data};
}

/* Elements of 16 bits in a word of 16 bytes */
enum { WORD = 8 };

/* Words of 16 bytes: a head's features fill whole ones, and so do rows of heads. */
static bool whole_words(const SdpaTensor *t) {
    return t->dim[3] % WORD == 0 && t->stride[0] % WORD == 0 && t->stride[2] % WORD == 0;
}

/* Where the graph's tensors lie. */
static void place(const KArgs *a, const AttentionOperands *o, Sdpa *s) {
    const int64_t width = o->y->shape.dim[2] / s->attr.heads;
    for (int k = 0; k < 3; k++) s->at[SDPA_Q + k] = part_of(o->qkv, k, &s->attr, width);
    s->at[SDPA_Y] = heads_of(o->y, &s->attr, 0, s->attr.heads, width);
    const int64_t *d = s->at[SDPA_Y].dim, keys = s->at[SDPA_K].dim[2];
    if (o->lse->count) s->at[SDPA_LSE] = in_order(d[0], d[1], d[2], 1, o->lse->data);
    if (s->gradient) {
        s->at[SDPA_DY] = heads_of(&a->attention_dx.dy, &s->attr, 0, s->attr.heads, width);
        for (int k = 0; k < 3; k++) s->at[SDPA_DQ + k] = part_of(a->out, k, &s->attr, width);
        s->at[SDPA_INNER] = in_order(d[0], d[1], d[2], 1, NULL);
    }
    if (s->drops) {
        s->at[SDPA_MASK] = in_order(d[0], d[1], d[2], (int64_t)align_up((size_t)keys, WORD), NULL);
        s->at[SDPA_MASK].dim[3] = keys;
    }
}

/* Have all operands but lse one 16-bit type, and lie in whole words? */
static bool operands_fit(const KArgs *a, const AttentionOperands *o, const Sdpa *s) {
    bool fit = s->type == DT_BF16 || s->type == DT_F16;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const View *v = k < OP_IN ? &a->in[k] : &a->out[k - OP_IN];
        fit = fit && (!v->count || v == o->lse || v->dtype == s->type || v->dtype == DT_I32);
    }
    for (int id = SDPA_Q; id <= SDPA_DV; id++)
        if (id != SDPA_LSE && s->at[id].dim[0]) fit = fit && whole_words(&s->at[id]);
    return fit;
}

bool sdpa_read(const KArgs *a, Sdpa *s) {
    const AttentionOperands o = attention_operands(a);
    const AttentionAttr *t = &a->attr->attention;
    const float share = 1.0f - t->p;
    *s = (Sdpa){.attr = *t, .gradient = a->kind == OP_attention_dx, .drops = t->p > 0 && o.calls->count, .type = o.y->dtype,
                .keep = 1.0f / share, .share = share, .unseen = -INFINITY};
    place(a, &o, s);
    const int64_t scores_of_head = s->at[SDPA_Q].dim[2] * s->at[SDPA_K].dim[2];
    return cudnnGetVersion() >= SINCE && operands_fit(a, &o, s) && scores_of_head > 1 && t->p < 1 && !t->window && t->cap == 0 &&
           !o.bias->count && !o.positions->count;
}

/* ---- the graphs */

static Node operand(Graph *g, const Sdpa *s, int64_t id) {
    const bool wide = id == SDPA_LSE || id == SDPA_INNER;
    return graph_tensor_at(g, id, wide ? DT_F32 : s->type, s->at[id].dim, s->at[id].stride);
}

/* x with rows and columns exchanged */
static Node transposed(Graph *g, const Sdpa *s, int64_t id) {
    const int64_t *d = s->at[id].dim, *t = s->at[id].stride;
    return graph_tensor_at(g, id, s->type, (int64_t[]){d[0], d[1], d[3], d[2]}, (int64_t[]){t[0], t[1], t[3], t[2]});
}

/* What a graph has inside only: a matrix or a column of each head of q */
static void scores_dim(const Sdpa *s, int64_t columns, int64_t dim[4]) {
    memcpy(dim, s->at[SDPA_Q].dim, 4 * sizeof *dim);
    dim[3] = columns;
}
static Node inside(Graph *g, const Sdpa *s, DType type, int64_t columns) {
    int64_t dim[4];
    scores_dim(s, columns, dim);
    return graph_tensor_in_order(g, 0, type, dim);
}
static Node scores(Graph *g, const Sdpa *s) { return inside(g, s, DT_F32, s->at[SDPA_K].dim[2]); }

static Node math(Graph *g, GraphMath f, Node a, Node b, Node out) {
    graph_math(g, f, a, b, out);
    return out;
}

/* Scores of keys that the query does not see become -inf. */
static Node masked(Graph *g, const Sdpa *s, Node score) {
    if (!s->attr.causal) return score;
    const int64_t keys = s->at[SDPA_K].dim[2];
    int64_t dim[4];
    scores_dim(s, keys, dim);
    Node query = inside(g, s, DT_I32, keys), key = inside(g, s, DT_I32, keys), sees = graph_flags(g, dim), out = scores(g, s);
    graph_index(g, 2, score, query);
    graph_index(g, 3, score, key);
    graph_at_least(g, query, key, sees);
    graph_select(g, sees, score, graph_number(g, SDPA_UNSEEN), out);
    return out;
}

static Node scaled_scores(Graph *g, const Sdpa *s, Node q, Node k, Node scale) {
    Node product = scores(g, s);
    graph_matmul(g, q, k, product);
    return math(g, GRAPH_MUL, product, scale, scores(g, s));
}

/* What dropout makes of probabilities, or of their gradients before they are multiplied by `keep` */
static Node dropped(Graph *g, const Sdpa *s, Node x) {
    return s->drops ? math(g, GRAPH_MUL, x, operand(g, s, SDPA_MASK), scores(g, s)) : x;
}

/* As a factor of the next product */
static Node rounded(Graph *g, const Sdpa *s, GraphMath f, Node a, Node b) {
    return math(g, f, a, b, inside(g, s, s->type, s->at[SDPA_K].dim[2]));
}

/* y = dropout(softmax(scores)) v; lse = the largest + log(sum of exp(score - largest)) */
static void forward_graph(const Sdpa *s, Graph *g) {
    Node most = inside(g, s, DT_F32, 1), sum = inside(g, s, DT_F32, 1);
    Node score = masked(g, s, scaled_scores(g, s, operand(g, s, SDPA_Q), transposed(g, s, SDPA_K), graph_number(g, SDPA_SCALE)));
    graph_reduce(g, GRAPH_MAX, score, most);
    Node power = math(g, GRAPH_EXP, math(g, GRAPH_SUB, score, most, scores(g, s)), NULL, scores(g, s));
    graph_reduce(g, GRAPH_SUM, power, sum);
    Node lse = s->at[SDPA_LSE].dim[0] ? operand(g, s, SDPA_LSE) : inside(g, s, DT_F32, 1); /* no engine does without */
    math(g, GRAPH_ADD, most, math(g, GRAPH_LOG, sum, NULL, inside(g, s, DT_F32, 1)), lse);
    Node prob = s->drops ? math(g, GRAPH_DIV, power, sum, scores(g, s)) : rounded(g, s, GRAPH_DIV, power, sum);
    if (s->drops) prob = rounded(g, s, GRAPH_MUL, dropped(g, s, prob), graph_number(g, SDPA_KEEP));
    graph_matmul(g, prob, operand(g, s, SDPA_V), operand(g, s, SDPA_Y));
}

/* x^T y for each head of q, into the gradient of k or v, whose heads are the sums over those of q that they serve */
static void keys_gradient(Graph *g, const Sdpa *s, Node x, Node y, int64_t id) {
    const int64_t *d = s->at[SDPA_Q].dim, *t = s->at[id].dim, keys = t[2];
    Node turned = graph_tensor_at(g, 0, s->type, (int64_t[]){d[0], d[1], keys, d[2]},
                                  (int64_t[]){d[1] * d[2] * keys, d[2] * keys, 1, keys});
    graph_transpose(g, x, turned);
    if (d[1] == t[1]) {
        graph_matmul(g, turned, y, operand(g, s, id));
        return;
    }
    Node each = graph_tensor_in_order(g, 0, s->type, (int64_t[]){d[0], d[1], keys, t[3]});
    graph_matmul(g, turned, y, each);
    graph_reduce(g, GRAPH_SUM, each, operand(g, s, id));
}

/* With P the probabilities and M the mask: dv = (P M keep)^T dy, and the gradient of the scores is
 * P keep (M dy v^T - share <dy, y>). That of q comes from one product, which has one order of sums. (cuDNN also takes a graph that
 * adds it up in fp32: with little workspace, but by atomics.) */
static void backward_graph(const Sdpa *s, Graph *g) {
    const int64_t *d = s->at[SDPA_Q].dim, *k_dim = s->at[SDPA_K].dim, *k_stride = s->at[SDPA_K].stride;
    Node q = operand(g, s, SDPA_Q), k = transposed(g, s, SDPA_K), dy = operand(g, s, SDPA_DY);
    Node scale = graph_number(g, SDPA_SCALE), keep = s->drops ? graph_number(g, SDPA_KEEP) : NULL;
    Node sum = inside(g, s, DT_F32, 1), inner = operand(g, s, SDPA_INNER), dp = scores(g, s);
    graph_reduce(g, GRAPH_SUM, math(g, GRAPH_MUL, dy, operand(g, s, SDPA_Y), graph_tensor_in_order(g, 0, DT_F32, d)), sum);
    math(g, GRAPH_MUL, sum, graph_number(g, SDPA_SHARE), inner);
    Node score = math(g, GRAPH_SUB, scaled_scores(g, s, q, k, scale), operand(g, s, SDPA_LSE), scores(g, s));
    Node prob = math(g, GRAPH_EXP, masked(g, s, score), NULL, scores(g, s));
    keys_gradient(g, s, s->drops ? rounded(g, s, GRAPH_MUL, dropped(g, s, prob), keep) : prob, dy, SDPA_DV);
    graph_matmul(g, dy, transposed(g, s, SDPA_V), dp);
    Node ds = math(g, GRAPH_MUL, math(g, GRAPH_SUB, dropped(g, s, dp), inner, scores(g, s)), prob, scores(g, s));
    if (s->drops) ds = math(g, GRAPH_MUL, ds, keep, scores(g, s));
    ds = rounded(g, s, GRAPH_MUL, ds, scale);
    keys_gradient(g, s, ds, q, SDPA_DK);
    Node rows = graph_tensor_at(g, 0, s->type, k_dim, k_stride);
    graph_transpose(g, k, rows);
    graph_matmul(g, ds, rows, operand(g, s, SDPA_DQ));
}

int sdpa_graph(CudaDevice *c, const Sdpa *s, Graph *g, Err *e) {
    cudnnHandle_t handle = NULL;
    memset(g, 0, sizeof *g);
    int code = c->ordinal == NOT_HERE ? OK : libraries_cudnn(c, &handle, e);
    if (code) return code;
    if (s->gradient) backward_graph(s, g);
    else forward_graph(s, g);
    return graph_finish(g, handle, e);
}

/* ---- running */

static size_t mask_bytes(const Sdpa *s) {
    const SdpaTensor *t = &s->at[SDPA_MASK];
    return align_up((size_t)(t->dim[0] * t->stride[0]) * dtype_size(s->type), CUDA_ALIGNMENT);
}

size_t sdpa_before(const Sdpa *s) {
    const SdpaTensor *t = &s->at[SDPA_INNER];
    return mask_bytes(s) + align_up((size_t)(t->dim[0] * t->stride[0]) * sizeof(float), CUDA_ALIGNMENT);
}

int sdpa_tensors(const Sdpa *s, char *workspace, int64_t id[SDPA_IDS], void *data[SDPA_IDS]) {
    const void *others[SDPA_IDS] = {
        [SDPA_INNER] = s->gradient ? workspace + mask_bytes(s) : NULL, [SDPA_MASK] = s->drops ? workspace : NULL,
        [SDPA_SCALE] = &s->attr.scale, [SDPA_KEEP] = s->drops ? &s->keep : NULL, [SDPA_SHARE] = s->gradient ? &s->share : NULL,
        [SDPA_UNSEEN] = s->attr.causal ? &s->unseen : NULL};
    int n = 0;
    for (int k = SDPA_Q; k < SDPA_IDS; k++) {
        void *at = others[k] ? (void *)others[k] : s->at[k].data;
        if (!at) continue;
        id[n] = k;
        data[n++] = at;
    }
    return n;
}
