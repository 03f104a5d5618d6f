/* conv2d.c: the ops conv2d, conv2d_dx and conv2d_dw: one graph of cuDNN each, and around it what the graph leaves. */
#include "conv2d.h"

#include <stdio.h>
#include <string.h>

#include "bias.h"
#include "libraries.h"
#include "mem.h"
#include "plans.h"

enum { ID_X = 1, ID_W, ID_Y, ID_B, ID_S, ID_DB, ID_ONE, IDS = ID_ONE };

/* The more a graph does, the fewer passes over the activations are left. */
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
             " stride=%d,%d pad=%d,%d,%d,%d dilation=%d,%d groups=%d act=%d,%g tf32=%d", a->stride[0], a->stride[1],
             a->pad[0], a->pad[1], a->pad[2], a->pad[3], a->dilation[0], a->dilation[1], a->groups,
             a->fused.act, (double)a->fused.slope, a->tf32);
}

int conv_read(const KArgs *args, ConvPass pass, Conv *v, Err *e) {
    memset(v, 0, sizeof *v);
    v->pass = pass;
    v->attr = args->attr->conv;
    v->x = pass == CONV_DATA ? args->out[0] : args->in[0];
    v->w = pass == CONV_WEIGHTS ? args->out[0] : args->in[1];
    v->y = pass == CONV_FORWARD ? args->out[0] : args->in[pass == CONV_DATA ? 0 : 1];
    if (pass == CONV_FORWARD) v->b = args->in[2];
    else v->db = args->out[1];
    if (pass == CONV_DATA) v->s = args->in[2];
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

bool conv_can(const Conv *v, unsigned does) {
    ActFn act = v->attr.fused.act;
    bool acts = v->pass == CONV_FORWARD ? act || v->b.count : v->pass == CONV_DATA && act;
    bool sums = v->pass == CONV_DATA && v->db.count && v->db.dtype == DT_F32; /* cuDNN's sums come in fp32 */
    bool casts = v->pass == CONV_FORWARD ? does & WAY_ACT && v->b.count && v->b.dtype != v->x.dtype
                                         : v->pass == CONV_WEIGHTS && v->w.dtype != v->x.dtype;
    bool pads = v->pass != CONV_DATA && v->attr.groups == 1 && padded(v) != v->x.shape.dim[1];
    if (does & WAY_ACT && !(acts && graph_can_act(act))) return false;
    /* what is summed is what the activation's gradient has been applied to */
    if (does & WAY_SUM && !(sums && (does & WAY_ACT || !act))) return false;
    return !(does & WAY_CAST && !casts) && !(does & WAY_PAD && !pads);
}

bool conv_compiled(const Conv *v, unsigned does) {
    bool cast = does & WAY_CAST;
    switch (v->pass) {
    case CONV_FORWARD: {
        bool bias = does & WAY_ACT && v->b.count && v->b.dtype != v->x.dtype && !cast;
        return v->y.dtype != v->x.dtype || bias || (does & WAY_ACT && v->attr.fused.act == ACT_LEAKY);
    }
    case CONV_DATA: return v->x.dtype != v->y.dtype || does & (WAY_ACT | WAY_SUM);
    default: return v->w.dtype != v->x.dtype && !cast;
    }
}

/* The graph's output, behind which `more` ops stand: inside, in fp32. */
static Node product(Graph *g, int64_t id, const View *v, const int64_t *dim, bool more) {
    return more ? graph_tensor(g, 0, DT_F32, dim) : graph_tensor(g, id, v->dtype, dim);
}

static void forward_graph(const Conv *v, unsigned does, const int64_t *x, const int64_t *w, Graph *g) {
    const int64_t *y = v->y.shape.dim, b[4] = {1, v->y.shape.dim[1], 1, 1};
    bool add = does & WAY_ACT && v->b.count, act = does & WAY_ACT && v->attr.fused.act;
    bool cast = !add && !act && v->y.dtype != v->x.dtype;
    Node in = graph_tensor(g, ID_X, v->x.dtype, x), weights = graph_tensor(g, ID_W, v->w.dtype, w);
    Node out = product(g, ID_Y, &v->y, y, add || act || cast);
    graph_conv(g, CONV_FORWARD, &v->attr, in, weights, out);
    if (add) {
        Node sum = product(g, ID_Y, &v->y, y, act);
        graph_add(g, out, graph_tensor(g, ID_B, does & WAY_CAST ? v->x.dtype : v->b.dtype, b), sum);
        out = sum;
    }
    if (act || cast) graph_act(g, act ? &v->attr.fused : NULL, out, graph_tensor(g, ID_Y, v->y.dtype, y));
}

static void data_graph(const Conv *v, unsigned does, Graph *g) {
    const int64_t *x = v->x.shape.dim, c[4] = {1, v->x.shape.dim[1], 1, 1};
    bool act = does & WAY_ACT, cast = !act && v->x.dtype != v->y.dtype;
    Node dy = graph_tensor(g, ID_Y, v->y.dtype, v->y.shape.dim), w = graph_tensor(g, ID_W, v->w.dtype, v->w.shape.dim);
    Node out = product(g, ID_X, &v->x, x, act || cast), dx = out;
    graph_conv(g, CONV_DATA, &v->attr, out, w, dy);
    if (act || cast) dx = graph_tensor(g, ID_X, v->x.dtype, x);
    if (act) graph_act_dx(g, &v->attr.fused, out, graph_tensor(g, ID_S, v->s.dtype, x), dx);
    if (cast) graph_act(g, NULL, out, dx);
    if (does & WAY_SUM) graph_sum(g, dx, graph_tensor(g, ID_DB, v->db.dtype, c));
}

/* cuDNN makes fp32 gradients of 16-bit operands only behind another op. An identity would do, for which it has one
 * engine, without split sums; behind a factor there are a dozen. */
static void weights_graph(const Conv *v, unsigned does, const int64_t *x, const int64_t *w, Graph *g) {
    bool wide = v->w.dtype != v->x.dtype && !(does & WAY_CAST);
    Node in = graph_tensor(g, ID_X, v->x.dtype, x), dy = graph_tensor(g, ID_Y, v->y.dtype, v->y.shape.dim);
    Node out = wide ? graph_tensor(g, 0, DT_F32, w) : graph_tensor(g, ID_W, v->x.dtype, w);
    graph_conv(g, CONV_WEIGHTS, &v->attr, in, out, dy);
    if (wide) graph_scale(g, out, graph_factor(g, ID_ONE), graph_tensor(g, ID_W, v->w.dtype, w));
}

int conv_graph(CudaDevice *c, const Conv *v, unsigned does, Graph *g, Err *e) {
    int64_t x[4], w[4];
    cudnnHandle_t handle = NULL;
    memset(g, 0, sizeof *g);
    int code = c->ordinal == NOT_HERE ? OK : libraries_cudnn(c, &handle, e);
    if (code) return code;
    memcpy(x, v->x.shape.dim, sizeof x);
    memcpy(w, v->w.shape.dim, sizeof w);
    if (does & WAY_PAD) x[1] = w[1] = padded(v);
    if (v->pass == CONV_FORWARD) forward_graph(v, does, x, w, g);
    if (v->pass == CONV_DATA) data_graph(v, does, g);
    if (v->pass == CONV_WEIGHTS) weights_graph(v, does, x, w, g);
    return graph_finish(g, handle, e);
}

/* ---- the workspace */

static int64_t rows_of(const View *v) { return v->count / v->shape.dim[1]; }

/* Of a copy in the graph's type, which is x's */
static size_t copy_bytes(const Conv *v, int64_t count) {
    return align_up((size_t)count * dtype_size(v->x.dtype), CUDA_ALIGNMENT);
}

/* Does w, or dw, pass the graph as a copy? */
static bool copies_w(const Conv *v, unsigned does) {
    return does & WAY_PAD || (v->pass == CONV_WEIGHTS && does & WAY_CAST);
}

static bool copies_b(const Conv *v, unsigned does) { return v->pass == CONV_FORWARD && does & WAY_CAST; }

/* Channels of x and w in the graph */
static int64_t channels(const Conv *v, unsigned does) { return does & WAY_PAD ? padded(v) : v->w.shape.dim[1]; }

/* Does an own kernel sum up db? */
static bool sums(const Conv *v, unsigned does) { return v->db.count && !(does & WAY_SUM); }

/* The sum runs behind the engine, in the same place. */
size_t conv_place(const Conv *v, unsigned does, size_t engine_workspace, size_t limit, ConvState *out) {
    const View *summed = v->pass == CONV_DATA ? &v->x : &v->y;
    out->x_at = 0;
    out->w_at = out->x_at + (does & WAY_PAD ? copy_bytes(v, rows_of(&v->x) * padded(v)) : 0);
    out->b_at = out->w_at + (copies_w(v, does) ? copy_bytes(v, rows_of(&v->w) * channels(v, does)) : 0);
    out->library_at = out->b_at + (copies_b(v, does) ? copy_bytes(v, v->b.count) : 0);
    bool cast_w = v->pass == CONV_WEIGHTS && does & WAY_CAST;
    size_t casts = out->library_at - (cast_w ? out->w_at : out->b_at), copies = out->library_at - casts;
    size_t left = limit > copies ? limit - copies : 0;
    size_t sum = sums(v, does) ? bias_workspace(rows_of(summed), summed->shape.dim[1], left) : 0;
    out->workspace = out->library_at + max_size(engine_workspace, sum);
    return out->workspace - casts;
}

/* ---- preparing and running */

void conv_release(void *state) {
    ConvState *s = state;
    if (!s) return;
    node_free(&s->plan);
    mem_free(s);
}

static int prepare(const KArgs *args, ConvPass pass, size_t limit, void **state, size_t *workspace, Err *e) {
    ConvState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = conv_release;
    int code = conv_read(args, pass, &s->conv, e);
    if (!code) code = conv_choose(cuda_of(args), args, &s->conv, limit, s, e);
    if (code) {
        conv_release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

int k_cuda_conv2d_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_FORWARD, limit, state, workspace, e);
}

int k_cuda_conv2d_dx_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_DATA, limit, state, workspace, e);
}

int k_cuda_conv2d_dw_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_WEIGHTS, limit, state, workspace, e);
}

/* The op's operands as they are in this run; the state's have no data. */
static void bind(const KArgs *args, Conv *v) {
    v->x.data = v->pass == CONV_DATA ? args->out[0].data : args->in[0].data;
    v->w.data = v->pass == CONV_WEIGHTS ? args->out[0].data : args->in[1].data;
    v->y.data = v->pass == CONV_FORWARD ? args->out[0].data : args->in[v->pass == CONV_DATA ? 0 : 1].data;
    v->b.data = v->b.count ? args->in[2].data : NULL;
    v->s.data = v->s.count ? args->in[2].data : NULL;
    v->db.data = v->db.count ? args->out[1].data : NULL;
}

static int run_graph(CudaDevice *c, const Conv *v, const ConvState *s, char *workspace, Err *e) {
    static const float one = 1.0f;
    bool act = s->does & WAY_ACT, wide = v->pass == CONV_WEIGHTS && v->w.dtype != v->x.dtype && !(s->does & WAY_CAST);
    int64_t id[IDS];
    void *data[IDS];
    int n = 0;
    const struct { int64_t id; bool used; void *data; } all[IDS] = {
        {ID_X, true, s->does & WAY_PAD ? workspace + s->x_at : v->x.data},
        {ID_W, true, copies_w(v, s->does) ? workspace + s->w_at : v->w.data}, {ID_Y, true, v->y.data},
        {ID_B, act && v->b.count, copies_b(v, s->does) ? workspace + s->b_at : v->b.data},
        {ID_S, act && v->s.count, v->s.data}, {ID_DB, s->does & WAY_SUM, v->db.data}, {ID_ONE, wide, (void *)&one},
    };
    for (int k = 0; k < IDS; k++) {
        if (!all[k].used) continue;
        id[n] = all[k].id;
        data[n++] = all[k].data;
    }
    return plan_run(c, s->plan, n, id, data, workspace + s->library_at, e);
}

/* The copies that the graph reads. */
static int run_before(const KArgs *args, const Conv *v, const ConvState *s, Err *e) {
    const View *x = &v->x, *w = &v->w, *b = &v->b;
    char *workspace = args->workspace;
    int64_t c = w->shape.dim[1], to = channels(v, s->does);
    int code = OK;
    if (s->does & WAY_PAD)
        code = bias_pad(args, x->data, x->dtype, c, workspace + s->x_at, x->dtype, to, rows_of(x), e);
    if (!code && v->pass == CONV_FORWARD && s->does & WAY_PAD)
        code = bias_pad(args, w->data, w->dtype, c, workspace + s->w_at, w->dtype, to, rows_of(w), e);
    if (!code && copies_b(v, s->does))
        code = bias_pad(args, b->data, b->dtype, b->count, workspace + s->b_at, x->dtype, b->count, 1, e);
    return code;
}

/* What the graph has left to do. */
static int run_behind(const KArgs *args, const Conv *v, const ConvState *s, Err *e) {
    const View *w = &v->w;
    char *workspace = args->workspace, *left = workspace + s->library_at;
    size_t bytes = s->workspace - s->library_at;
    ActAttr act = v->attr.fused;
    bool acted = s->does & WAY_ACT, sum = sums(v, s->does);
    View db = sum ? v->db : (View){.count = 0};
    int code = OK;
    switch (v->pass) {
    case CONV_FORWARD:
        return acted || !(v->b.count || act.act) ? OK : bias_act(args, &v->y, &v->b, act, &v->y, e);
    case CONV_DATA:
        if (!acted && act.act) return bias_act_dx(args, &v->x, &v->s, act, &db, left, bytes, e);
        return sum ? bias_sum(args, &v->x, &db, left, bytes, e) : OK;
    default:
        if (copies_w(v, s->does))
            code = bias_pad(args, workspace + s->w_at, v->x.dtype, channels(v, s->does), w->data, w->dtype,
                            w->shape.dim[1], rows_of(w), e);
        return code || !sum ? code : bias_sum(args, &v->y, &db, left, bytes, e);
    }
}

int conv_run(const KArgs *args, Err *e) {
    const ConvState *s = args->state;
    if (!s || !s->plan) return err_set(e, ERR_INTERNAL, "run without a prepared state");
    Conv v = s->conv;
    bind(args, &v);
    int code = run_before(args, &v, s, e);
    if (!code) code = run_graph(cuda_of(args), &v, s, args->workspace, e);
    return code ? code : run_behind(args, &v, s, e);
}

int k_cuda_conv2d(const KArgs *args, Err *e) { return conv_run(args, e); }
int k_cuda_conv2d_dx(const KArgs *args, Err *e) { return conv_run(args, e); }
int k_cuda_conv2d_dw(const KArgs *args, Err *e) { return conv_run(args, e); }
