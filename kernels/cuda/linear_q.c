/* linear_q.c: y = x w^T + b and dx = dy w over a weight (O, I) of 4 or 8 bits. A panel of the weight at a time, rows of it
 * for y and columns for dx, is made in the workspace in x's type, and a library multiplies it (gemm.h). */
#include "linear_q.h"

#include "base/mem.h"
#include "bias.h"
#include "gemm.h"

/* Numbers of a panel: enough work for a GPU's processors, and 8 MiB in 16 bits, which stay in a large cache. WHOLE:
 * widths are multiples of it, so that matrices begin at whole words */
enum { PANEL = 1 << 22, WHOLE = 64 };

/* A prepared op. Its workspace: [the bias in y's type, where its own is another | a panel]. */
typedef struct LinearQState {
    CudaState base;
    int64_t width;         /* rows, or columns, of a panel */
    GemmPlan *plan, *rest; /* rest: of the last panel, where it is smaller; NULL: the device is not here */
    bool bias_after;       /* the library has no product that adds a bias: then y is rounded twice */
    size_t bias_bytes;
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
static Gemm panel_gemm(const KArgs *a, int64_t width, bool bias) {
    const View *from = &a->in[0];
    return (Gemm){.m = from->count / length(a), .n = width, .k = length(a), .b_transposed = is_forward(a),
                  .in = from->dtype, .out = a->out[0].dtype, .tf32 = a->attr->linear.tf32, .d_stride = lines(a),
                  .epilogue = bias ? GEMM_BIAS : GEMM_PLAIN};
}

/* Opens the plans of a device that is here. *ready: the library has them. */
static int open_plans(const KArgs *a, LinearQState *s, bool bias, bool *ready, Err *e) {
    const Gemm whole = panel_gemm(a, s->width, bias), rest = panel_gemm(a, lines(a) % s->width, bias);
    gemm_close(s->plan);
    s->plan = NULL;
    int code = gemm_open(a->device, &whole, NULL, 0, &s->plan, e);
    if (!code && s->plan && rest.n) code = gemm_open(a->device, &rest, NULL, 0, &s->rest, e);
    *ready = s->plan && (s->rest || !rest.n);
    return code;
}

static int choose(const KArgs *a, LinearQState *s, Err *e) {
    const bool bias = is_forward(a) && a->linear_q.b.count;
    bool ready = false;
    int code = open_plans(a, s, bias, &ready, e);
    if (!code && !ready && bias) {
        s->bias_after = true;
        code = open_plans(a, s, false, &ready, e);
    }
    if (code || ready) return code;
    return err_set(e, ERR_UNSUPPORTED, "the library has no product of %lld numbers in a row", (long long)length(a));
}

static int prepare(const KArgs *a, void **state, size_t *workspace, Err *e) {
    LinearQState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    const View *b = &a->linear_q.b;
    const bool copy = is_forward(a) && b->count && b->dtype != a->out[0].dtype;
    s->base.release = release;
    s->width = min_i64(lines(a), max_i64(WHOLE, PANEL / length(a) / WHOLE * WHOLE));
    s->bias_bytes = copy ? align_up((size_t)b->count * dtype_size(a->out[0].dtype), CUDA_ALIGNMENT) : 0;
    *workspace = s->bias_bytes + (size_t)(s->width * length(a)) * dtype_size(a->in[0].dtype);
    const int code = cuda_of(a)->ordinal == NOT_HERE ? OK : choose(a, s, e);
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

/* The place of number i in an array of that type */
static void *at_number(void *p, int64_t i, DType t) { return (char *)p + (size_t)i * dtype_size(t); }

/* bias: in y's type, or NULL */
static int products(const KArgs *a, void *bias, Err *e) {
    const LinearQState *s = a->state;
    const View *to = &a->out[0];
    const Quantized w = {a->linear_q.w.data, a->linear_q.absmax.data, a->linear_q.quant_map.data,
                         a->linear_q.nested_absmax.data, a->linear_q.nested_quant_map.data,
                         a->linear_q.nested_offset.data, inputs(a)};
    void *panel = (char *)a->workspace + s->bias_bytes;
    int code = OK;
    for (int64_t at = 0; at < lines(a) && !code; at += s->width) {
        const int64_t width = min_i64(s->width, lines(a) - at);
        const Panel p = is_forward(a) ? (Panel){at, width, 0, inputs(a)} : (Panel){0, outputs(a), at, width};
        code = cuda_dequantize(a, &w, p, a->in[0].dtype, panel, e);
        if (!code)
            code = gemm_run(a->device, width < s->width ? s->rest : s->plan, a->in[0].data, panel,
                            bias ? at_number(bias, at, to->dtype) : NULL, at_number(to->data, at, to->dtype), NULL, e);
    }
    return code;
}

int k_cuda_linear_q(const KArgs *a, Err *e) {
    const LinearQState *s = a->state;
    const View *y = &a->linear_q.y, *b = &a->linear_q.b;
    int code = OK;
    if (s->bias_after) {
        code = products(a, NULL, e);
        return code ? code : bias_act(a, y, b, (ActAttr){.act = ACT_NONE}, y, e);
    }
    if (s->bias_bytes) code = bias_pad(a, b->data, b->dtype, b->count, a->workspace, y->dtype, b->count, 1, e);
    return code ? code : products(a, s->bias_bytes ? a->workspace : b->data, e);
}

int k_cuda_linear_q_dx(const KArgs *a, Err *e) { return products(a, NULL, e); }
