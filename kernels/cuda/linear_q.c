/* linear_q.c: y = x w^T + b and dx = dy w over a weight (O, I) of 4 or 8 bits. A panel of the weight at a time, rows of it
 * for y and columns for dx, is made in the workspace in x's type, and a library multiplies it (gemm.h). */
#include "linear_q.h"

#include "base/mem.h"
#include "bias.h"
#include "gemm.h"

/* Numbers of a panel: enough work for a GPU's processors, and 8 MiB in 16 bits, which stay in a large cache. WHOLE:
 * widths are multiples of it, so that matrices begin at whole words */
enum { PANEL = 1 << 22, WHOLE = 64 };

typedef struct LinearQState {
    CudaState base;
    Gemm gemm;      /* of a whole panel */
    int64_t width;  /* rows, or columns, of a panel */
    GemmPlan *plan, *rest; /* rest: of the last panel, where it is smaller; NULL: the device is not here */
} LinearQState;

static void release(void *state) {
    LinearQState *s = state;
    gemm_close(s->plan);
    gemm_close(s->rest);
    mem_free(s);
}

static bool is_forward(const KArgs *a) { return a->kind == OP_linear_q; }
static int64_t last_of(const View *v) { return v->shape.dim[v->shape.rank - 1]; }
static int64_t inputs(const KArgs *a) { return last_of(is_forward(a) ? &a->linear_q.x : &a->linear_q_dx.dx); }
static int64_t outputs(const KArgs *a) { return last_of(is_forward(a) ? &a->linear_q.y : &a->linear_q_dx.dy); }
/* Rows of the weight for y, columns for dx: how many there are, and how long they are. */
static int64_t lines(const KArgs *a) { return is_forward(a) ? outputs(a) : inputs(a); }
static int64_t length(const KArgs *a) { return is_forward(a) ? inputs(a) : outputs(a); }

/* y (N, width) of y (N, O), or dx (N, width) of dx (N, I) */
static Gemm panel_gemm(const KArgs *a, int64_t width) {
    const View *from = &a->in[0];
    return (Gemm){.m = from->count / length(a), .n = width, .k = length(a), .b_transposed = is_forward(a),
                  .in = from->dtype, .out = a->out[0].dtype, .tf32 = a->attr->linear.tf32, .d_stride = lines(a)};
}

static int open_plan(const KArgs *a, const Gemm *g, GemmPlan **plan, Err *e) {
    int code = gemm_open(a->device, g, NULL, 0, plan, e);
    if (code || *plan) return code;
    return err_set(e, ERR_UNSUPPORTED, "the library has no product of (%lld, %lld) and (%lld, %lld)", (long long)g->m,
                   (long long)g->k, (long long)g->k, (long long)g->n);
}

static int prepare(const KArgs *a, void **state, size_t *workspace, Err *e) {
    CudaDevice *c = cuda_of(a);
    LinearQState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    s->width = min_i64(lines(a), max_i64(WHOLE, PANEL / length(a) / WHOLE * WHOLE));
    s->gemm = panel_gemm(a, s->width);
    *workspace = (size_t)(s->width * length(a)) * dtype_size(a->in[0].dtype);
    const Gemm rest = panel_gemm(a, lines(a) % s->width);
    int code = c->ordinal == NOT_HERE ? OK : open_plan(a, &s->gemm, &s->plan, e);
    if (!code && rest.n && c->ordinal != NOT_HERE) code = open_plan(a, &rest, &s->rest, e);
    if (code) release(s);
    else *state = s;
    return code;
}

int k_cuda_linear_q_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    return prepare(a, state, workspace, e);
}

int k_cuda_linear_q_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    return prepare(a, state, workspace, e);
}

static int products(const KArgs *a, Err *e) {
    const LinearQState *s = a->state;
    const View *to = &a->out[0];
    const Quantized w = {a->linear_q.w.data, a->linear_q.absmax.data, a->linear_q.quant_map.data,
                         a->linear_q.nested_absmax.data, a->linear_q.nested_quant_map.data,
                         a->linear_q.nested_offset.data, inputs(a)};
    int code = OK;
    for (int64_t at = 0; at < lines(a) && !code; at += s->width) {
        const int64_t width = min_i64(s->width, lines(a) - at);
        const Panel p = is_forward(a) ? (Panel){at, width, 0, inputs(a)} : (Panel){0, outputs(a), at, width};
        code = cuda_dequantize(a, &w, p, a->in[0].dtype, a->workspace, e);
        if (!code)
            code = gemm_run(a->device, width < s->width ? s->rest : s->plan, a->in[0].data, a->workspace, NULL,
                            (char *)to->data + (size_t)at * dtype_size(to->dtype), NULL, e);
    }
    return code;
}

int k_cuda_linear_q(const KArgs *a, Err *e) {
    const View *y = &a->linear_q.y, *b = &a->linear_q.b;
    const int code = products(a, e);
    return code || !b->count ? code : bias_act(a, y, b, (ActAttr){.act = ACT_NONE}, y, e);
}

int k_cuda_linear_q_dx(const KArgs *a, Err *e) { return products(a, e); }
