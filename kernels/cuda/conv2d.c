/* conv2d.c: the ops conv2d, conv2d_dx and conv2d_dw: each is one graph of cuDNN, with own kernels before and after it
 * for what the graph does not do. */
#include "conv2d.h"

#include <stdio.h>
#include <string.h>

#include "bias.h"
#include "libraries.h"
#include "base/mem.h"
#include "plan_cache.h"
#include "program/product.h"

/* The more a graph does, the fewer passes over the activations are left to own kernels. */
const Way conv_ways[WAYS] = {
    {WAY_ACT | WAY_SUM, "act+sum"}, {WAY_SUM, "sum"}, {WAY_ACT, "act"}, {WAY_ACT | WAY_CAST, "act+cast"}, {0, "plain"},
    {WAY_ACT | WAY_PAD, "act+pad"}, {WAY_ACT | WAY_CAST | WAY_PAD, "act+cast+pad"}, {WAY_PAD, "pad"},
    {WAY_CAST, "cast"}, {WAY_CAST | WAY_PAD, "cast+pad"},
};

/* ---- the op in its own words */

static int operand_text(const char *name, const View *v, char *text, int size) {
    const int64_t *d = v->shape.dim;
    if (!v->count) return 0;
    if (v->shape.rank == 1) return snprintf(text, (size_t)size, " %s=%s", name, dtype_name(v->dtype));
    return snprintf(text, (size_t)size, " %s=%lld,%lld,%lld,%lld:%s", name, (long long)d[0], (long long)d[1],
                    (long long)d[2], (long long)d[3], dtype_name(v->dtype));
}

static void conv_text(Conv *v, const char *name) {
    const struct { const char *name; const View *view; } operands[] = {
        {"x", &v->x}, {"w", &v->w}, {"y", &v->y}, {"b", &v->b}, {"s", &v->s}, {"db", &v->db}};
    const ConvAttr *a = &v->attr;
    int at = snprintf(v->op, sizeof v->op, "%s", name);
    for (size_t k = 0; k < ARRAY_LEN(operands); k++)
        at += operand_text(operands[k].name, operands[k].view, v->op + at, (int)sizeof v->op - at);
    snprintf(v->op + at, sizeof v->op - (size_t)at,
             " stride=%d,%d pad=%d,%d,%d,%d dilation=%d,%d groups=%d act=%d,%.9g tf32=%d", a->stride[0], a->stride[1],
             a->pad[0], a->pad[1], a->pad[2], a->pad[3], a->dilation[0], a->dilation[1], a->groups,
             a->fused.act, (double)a->fused.slope, a->tf32);
}

int conv_read(const KArgs *args, ConvPass pass, Conv *v, Err *e) {
    const ProductOperands p = product_operands(args);
    memset(v, 0, sizeof *v);
    v->pass = pass;
    v->attr = args->attr->conv;
    v->x = *p.x;
    v->w = *p.w;
    v->y = *p.y;
    if (pass == CONV_FORWARD) v->b = args->conv2d.b;
    else v->db = args->conv2d_dx.db;
    if (pass == CONV_DATA) v->s = args->conv2d_dx.s;
    if (pass == CONV_WEIGHTS) v->attr.fused.act = ACT_NONE;
    const char *name = op_info(args->kind)->name;
    const View *a = &args->in[0], *b = &args->in[1];
    if (a->dtype != b->dtype)
        return err_set(e, ERR_UNSUPPORTED, "%s: expected operands of one type, found %s and %s", name,
                       dtype_name(a->dtype), dtype_name(b->dtype));
    if (!v->x.channels_last || !v->w.channels_last || !v->y.channels_last)
        return err_set(e, ERR_UNSUPPORTED, "%s: expected channels-last operands", name);
    v->exact = a->dtype == DT_F32 && !v->attr.tf32;
    conv_text(v, name);
    return OK;
}

/* ---- ways */

/* Tensor cores read 16 bytes of channels at once. */
static int64_t padded(const Conv *v) {
    const View *in = v->pass == CONV_DATA ? &v->y : &v->x;
    return (int64_t)align_up((size_t)v->x.shape.dim[1], 16 / dtype_size(in->dtype));
}

/* x, w or b as the graph has it: the operand itself; or a copy in the workspace, with channels filled up or of another
 * type. All code that makes, fills, reads or names the copy goes by this. */
typedef struct Passed {
    const View *view;
    DType type;
    int64_t rows, channels, to; /* channels of the operand, and in the graph */
    bool copy;
} Passed;

static Passed passed(const Conv *v, unsigned does, int64_t id) {
    const View *view = id == CONV_X ? &v->x : id == CONV_W ? &v->w : &v->b;
    bool vector = id == CONV_B, pad = does & WAY_PAD && !vector;
    bool cast = does & WAY_CAST && v->pass == (vector ? CONV_FORWARD : CONV_WEIGHTS) && id != CONV_X;
    int64_t channels = vector ? view->count : view->shape.dim[1], rows = vector ? 1 : view->count / channels;
    return (Passed){view, cast ? v->x.dtype : view->dtype, rows, channels, pad ? padded(v) : channels, pad || cast};
}

/* Must dw be made fp32 by a second op? From 16-bit operands cuDNN's convolution alone makes no fp32 gradient. */
static bool widens(const Conv *v, unsigned does) {
    return v->pass == CONV_WEIGHTS && passed(v, does, CONV_W).type != v->x.dtype;
}

bool conv_can(const Conv *v, unsigned does) {
    ActFn act = v->attr.fused.act;
    bool acts = v->pass == CONV_FORWARD ? act || v->b.count : v->pass == CONV_DATA && act;
    bool sums = v->pass == CONV_DATA && v->db.count && v->db.dtype == DT_F32; /* cuDNN's sums come in fp32 */
    bool casts = v->pass == CONV_FORWARD ? does & WAY_ACT && v->b.count && v->b.dtype != v->x.dtype
                                         : v->pass == CONV_WEIGHTS && v->w.dtype != v->x.dtype;
    bool pads = v->pass != CONV_DATA && v->attr.groups == 1 && padded(v) != v->x.shape.dim[1];
    if (does & WAY_ACT && !(acts && graph_can_act(act))) return false;
    /* the sum is taken after the activation's gradient */
    if (does & WAY_SUM && !(sums && (does & WAY_ACT || !act))) return false;
    return !(does & WAY_CAST && !casts) && !(does & WAY_PAD && !pads);
}

bool conv_compiled(const Conv *v, unsigned does) {
    switch (v->pass) {
    case CONV_FORWARD: {
        bool bias = does & WAY_ACT && v->b.count && passed(v, does, CONV_B).type != v->x.dtype;
        return v->y.dtype != v->x.dtype || bias || (does & WAY_ACT && v->attr.fused.act == ACT_LEAKY);
    }
    case CONV_DATA: return v->x.dtype != v->y.dtype || does & (WAY_ACT | WAY_SUM);
    default: return widens(v, does);
    }
}

static void dims_of(const Passed *p, int64_t dim[4]) {
    memcpy(dim, p->view->shape.rank == 1 ? (int64_t[]){1, 0, 1, 1} : p->view->shape.dim, 4 * sizeof *dim);
    dim[1] = p->to;
}

static Node operand(Graph *g, const Conv *v, unsigned does, int64_t id) {
    Passed p = passed(v, does, id);
    int64_t dim[4];
    dims_of(&p, dim);
    return graph_tensor(g, id, p.type, dim);
}

/* The output of a convolution or op. more: other ops follow, so it exists only inside the graph, in fp32. */
static Node product(Graph *g, int64_t id, const View *v, bool more) {
    return more ? graph_tensor(g, 0, DT_F32, v->shape.dim) : graph_tensor(g, id, v->dtype, v->shape.dim);
}

static void forward_graph(const Conv *v, unsigned does, Graph *g) {
    bool add = does & WAY_ACT && v->b.count, act = does & WAY_ACT && v->attr.fused.act;
    bool cast = !add && !act && v->y.dtype != v->x.dtype;
    Node in = operand(g, v, does, CONV_X), weights = operand(g, v, does, CONV_W);
    Node out = product(g, CONV_Y, &v->y, add || act || cast);
    graph_conv(g, CONV_FORWARD, &v->attr, in, weights, out);
    if (add) {
        Node sum = product(g, CONV_Y, &v->y, act);
        graph_math(g, GRAPH_ADD, out, operand(g, v, does, CONV_B), sum);
        out = sum;
    }
    if (act || cast)
        graph_act(g, act ? &v->attr.fused : NULL, out, graph_tensor(g, CONV_Y, v->y.dtype, v->y.shape.dim));
}

static void data_graph(const Conv *v, unsigned does, Graph *g) {
    const int64_t c[4] = {1, v->x.shape.dim[1], 1, 1};
    bool act = does & WAY_ACT, cast = !act && v->x.dtype != v->y.dtype;
    Node dy = graph_tensor(g, CONV_Y, v->y.dtype, v->y.shape.dim), w = operand(g, v, does, CONV_W);
    Node out = product(g, CONV_X, &v->x, act || cast), dx = out;
    graph_conv(g, CONV_DATA, &v->attr, out, w, dy);
    if (act || cast) dx = operand(g, v, does, CONV_X);
    if (act) graph_act_dx(g, &v->attr.fused, out, graph_tensor(g, CONV_S, v->s.dtype, v->s.shape.dim), dx);
    if (cast) graph_act(g, NULL, out, dx);
    if (does & WAY_SUM) graph_reduce(g, GRAPH_SUM, dx, graph_tensor(g, CONV_DB, v->db.dtype, c));
}

/* Multiplying by 1 widens dw. An identity would, too, but cuDNN has only one engine for that, without split sums; it
 * has a dozen for a factor. */
static void weights_graph(const Conv *v, unsigned does, Graph *g) {
    Passed w = passed(v, does, CONV_W);
    int64_t dim[4];
    dims_of(&w, dim);
    Node in = operand(g, v, does, CONV_X), dy = graph_tensor(g, CONV_Y, v->y.dtype, v->y.shape.dim);
    Node dw = operand(g, v, does, CONV_W), out = widens(v, does) ? graph_tensor(g, 0, DT_F32, dim) : dw;
    graph_conv(g, CONV_WEIGHTS, &v->attr, in, out, dy);
    if (out != dw) graph_math(g, GRAPH_MUL, out, graph_number(g, CONV_ONE), dw);
}

int conv_graph(CudaDevice *c, const Conv *v, unsigned does, Graph *g, Err *e) {
    cudnnHandle_t handle = NULL;
    memset(g, 0, sizeof *g);
    int code = c->ordinal == NOT_HERE ? OK : libraries_cudnn(c, &handle, e);
    if (code) return code;
    if (v->pass == CONV_FORWARD) forward_graph(v, does, g);
    if (v->pass == CONV_DATA) data_graph(v, does, g);
    if (v->pass == CONV_WEIGHTS) weights_graph(v, does, g);
    return graph_finish(g, handle, e);
}

/* ---- the workspace */

/* Does an own kernel sum up db? (The graph does so with WAY_SUM.) */
static bool sums(const Conv *v, unsigned does) { return v->db.count && !(does & WAY_SUM); }

/* Own sums run after the engine and use the same bytes. */
size_t conv_place(const Conv *v, unsigned does, size_t engine_workspace, size_t limit, ConvState *out) {
    const View *summed = v->pass == CONV_DATA ? &v->x : &v->y;
    size_t at = 0, casts = 0;
    for (int id = CONV_X; id <= CONV_B; id++) {
        Passed p = passed(v, does, id);
        size_t bytes = p.copy ? align_up((size_t)(p.rows * p.to) * dtype_size(p.type), CUDA_ALIGNMENT) : 0;
        out->at[id] = at;
        at += bytes;
        if (p.type != p.view->dtype) casts += bytes;
    }
    size_t copies = at - casts, left = limit > copies ? limit - copies : 0;
    int64_t channels = summed->shape.dim[1];
    size_t sum = sums(v, does) ? bias_workspace(summed->count / channels, channels, left) : 0;
    out->does = does;
    out->library_at = at;
    out->workspace = at + max_size(engine_workspace, sum);
    return out->workspace - casts;
}

/* ---- running */

void conv_release(void *state) {
    ConvState *s = state;
    if (!s) return;
    node_free(&s->plan);
    mem_free(s);
}

/* Sets the operands' data, which the state does not have. */
static void bind(const KArgs *args, Conv *v) {
    const ProductOperands p = product_operands(args);
    v->x.data = p.x->data;
    v->w.data = p.w->data;
    v->y.data = p.y->data;
    v->b.data = v->b.count ? args->conv2d.b.data : NULL;
    v->s.data = v->s.count ? args->conv2d_dx.s.data : NULL;
    v->db.data = v->db.count ? args->conv2d_dx.db.data : NULL;
}

int conv_tensors(const Conv *v, const ConvState *s, char *workspace, int64_t id[CONV_IDS], void *data[CONV_IDS]) {
    static const float one = 1.0f;
    const bool act = s->does & WAY_ACT;
    const struct { bool used; void *data; } all[CONV_IDS + 1] = {
        [CONV_X] = {true, v->x.data}, [CONV_W] = {true, v->w.data}, [CONV_B] = {act && v->b.count, v->b.data},
        [CONV_Y] = {true, v->y.data}, [CONV_S] = {act && v->s.count, v->s.data},
        [CONV_DB] = {s->does & WAY_SUM, v->db.data}, [CONV_ONE] = {widens(v, s->does), (void *)&one},
    };
    int n = 0;
    for (int k = CONV_X; k <= CONV_IDS; k++) {
        if (!all[k].used) continue;
        id[n] = k;
        data[n++] = k <= CONV_B && passed(v, s->does, k).copy ? workspace + s->at[k] : all[k].data;
    }
    return n;
}

static int run_graph(CudaDevice *c, const Conv *v, const ConvState *s, char *workspace, Err *e) {
    int64_t id[CONV_IDS];
    void *data[CONV_IDS];
    int n = conv_tensors(v, s, workspace, id, data);
    return plan_run(c, s->plan, n, id, data, workspace + s->library_at, e);
}

/* Fills the copies that the graph reads. */
static int run_before(const KArgs *args, const Conv *v, const ConvState *s, Err *e) {
    int code = OK;
    for (int id = CONV_X; id <= CONV_B && !code; id++) {
        Passed p = passed(v, s->does, id);
        if (!p.copy || (id == CONV_W && v->pass == CONV_WEIGHTS)) continue;
        code = bias_pad(args, p.view->data, p.view->dtype, p.channels, (char *)args->workspace + s->at[id], p.type,
                        p.to, p.rows, e);
    }
    return code;
}

/* Brings dw home if the graph has written a copy. */
static int take_dw(const KArgs *args, const Conv *v, const ConvState *s, Err *e) {
    Passed p = passed(v, s->does, CONV_W);
    if (!p.copy) return OK;
    return bias_pad(args, (char *)args->workspace + s->at[CONV_W], p.type, p.to, p.view->data, p.view->dtype,
                    p.channels, p.rows, e);
}

/* Does what the graph has not done. */
static int run_after(const KArgs *args, const Conv *v, const ConvState *s, Err *e) {
    char *left = (char *)args->workspace + s->library_at;
    size_t bytes = s->workspace - s->library_at;
    ActAttr act = v->attr.fused;
    bool acted = s->does & WAY_ACT, sum = sums(v, s->does);
    View db = sum ? v->db : (View){.count = 0};
    int code;
    switch (v->pass) {
    case CONV_FORWARD:
        return acted || !(v->b.count || act.act) ? OK : bias_act(args, &v->y, &v->b, act, &v->y, e);
    case CONV_DATA:
        if (!acted && act.act) return bias_act_dx(args, &v->x, &v->s, act, &db, left, bytes, e);
        return sum ? bias_sum(args, &v->x, &db, left, bytes, e) : OK;
    default:
        code = take_dw(args, v, s, e);
        return code || !sum ? code : bias_sum(args, &v->y, &db, left, bytes, e);
    }
}

int conv_run(const KArgs *args, Err *e) {
    const ConvState *s = args->state;
    if (!s || !s->plan) return err_set(e, ERR_INTERNAL, "run without a prepared state");
    assert(args->workspace_bytes >= s->workspace);
    Conv v = s->conv;
    bind(args, &v);
    int code = run_before(args, &v, s, e);
    if (!code) code = run_graph(cuda_of(args), &v, s, args->workspace, e);
    return code ? code : run_after(args, &v, s, e);
}

int k_cuda_conv2d(const KArgs *args, Err *e) { return conv_run(args, e); }
int k_cuda_conv2d_dx(const KArgs *args, Err *e) { return conv_run(args, e); }
int k_cuda_conv2d_dw(const KArgs *args, Err *e) { return conv_run(args, e); }
