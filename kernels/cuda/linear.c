/* linear.c: y = act(x w^T + b) and its gradients. Shapes: x (N, I), w (O, I), b (O), y (N, O); leading dimensions of x
 * and y are all part of N. With few outputs memory sets the pace: these go by skinny.cu, all others by a library's
 * product (gemm.h) and, where that has no fitting epilogue, the kernels of bias.h behind it.
 *
 * The library's own epilogues for f'(s) want ReLU's mask as one bit per element; what the program keeps is ReLU's
 * output, so dx *= f'(s) is bias.h's. They also want the bias in y's type: one in another (fp32 under amp) is not
 * theirs.
 *
 * Where the library leaves bias or activation to the kernels behind it, a 16-bit y is not rounded before them: the
 * product goes to the workspace in fp32, by as many rows at a time as there is room for. Only where there is none, it
 * goes to y and is rounded twice.
 *
 *   workspace = [rows of the product in fp32 | the product's own] */
#include <stdlib.h>

#include "bias.h"
#include "gemm.h"
#include "skinny.h"

/* SPLIT_K: terms of a sum that are worth a block of their own. */
enum { TILE = 128, PROCESSORS = 132, SPLIT_K = 256 };
/* Rows that are taken at a time are a multiple of it, so that each time starts at a whole 16-byte word. */
enum { ROWS = 8 };

typedef struct LinearState {
    CudaState base;
    GemmPlan *plan;     /* NULL: a described device */
    GemmPlan *rest;     /* NULL, or of the rows that are left in the end */
    Gemm gemm;          /* m: the rows at a time */
    bool wide;          /* the product goes to the workspace in fp32 */
    size_t before;      /* bytes of workspace in front of the product's own */
    size_t of_product;
} LinearState;

static void state_release(void *p) {
    LinearState *state = p;
    gemm_close(state->plan);
    gemm_close(state->rest);
    free(state);
}

/* What a product may use. The library splits the sum over k where D has fewer tiles than the GPU has processors, and
 * then wants room for a D in fp32 per part; nothing else pays for memory. It is a formula of shapes because the library
 * answers only where there is a GPU: what is planned without one has to hold with one. */
static size_t gemm_workspace(const Gemm *g, size_t limit) {
    int64_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    int64_t parts = min_i64(PROCESSORS / tiles, g->k / SPLIT_K);
    parts = min_i64(parts, (int64_t)(limit / sizeof(float)) / (g->m * g->n));
    return parts < 2 ? 0 : (size_t)(parts * g->m * g->n) * sizeof(float);
}

/* ---- the three products */

/* y (N, O) = x (N, I) w (O, I)^T */
static Gemm forward_gemm(const KArgs *a) {
    const View *x = &a->in[0], *w = &a->in[1], *y = &a->out[0];
    bool bias = a->in[2].count && a->in[2].dtype == y->dtype, relu = a->attr->linear.fused.act == ACT_RELU;
    Gemm g = {.m = x->count / w->shape.dim[1], .n = w->shape.dim[0], .k = w->shape.dim[1], .b_turned = true,
              .in = x->dtype, .out = y->dtype, .tf32 = a->attr->linear.tf32};
    if (bias) g.epilogue = relu ? GEMM_BIAS_RELU : GEMM_BIAS;
    else if (relu && !a->in[2].count) g.epilogue = GEMM_RELU;
    return g;
}

/* dx (N, I) = dy (N, O) w (O, I) */
static Gemm dx_gemm(const KArgs *a) {
    const View *dy = &a->in[0], *w = &a->in[1], *dx = &a->out[0];
    return (Gemm){.m = dy->count / w->shape.dim[0], .n = w->shape.dim[1], .k = w->shape.dim[0], .in = dy->dtype,
                  .out = dx->dtype, .tf32 = a->attr->linear.tf32};
}

/* dw (O, I) = dy (N, O)^T x (N, I); db (O) is the sum of dy over N, which is this product's k */
static Gemm dw_gemm(const KArgs *a) {
    const View *dy = &a->in[1], *dw = &a->out[0], *db = &a->out[1];
    Gemm g = {.m = dw->shape.dim[0], .n = dw->shape.dim[1], .k = dy->count / dw->shape.dim[0], .a_turned = true,
              .in = dy->dtype, .out = dw->dtype, .tf32 = a->attr->linear.tf32};
    if (db->count && db->dtype == dw->dtype) g.epilogue = GEMM_SUM_A;
    return g;
}

/* ---- preparation */

static int types_check(const KArgs *a, const Gemm *g, Err *e) {
    const View *other = a->kind == OP_linear_dw ? &a->in[0] : &a->in[1];
    if (other->dtype == g->in && (g->out == g->in || g->out == DT_F32)) return OK;
    return err_set(e, ERR_UNSUPPORTED, "%s: a product of %s and %s with a result in %s: the GPU wants operands of one "
                   "type, and the result in it or in f32", op_info(a->kind)->name, dtype_name(g->in),
                   dtype_name(other->dtype), dtype_name(g->out));
}

static bool has_bias(GemmEpilogue e) { return e == GEMM_BIAS || e == GEMM_BIAS_RELU; }
static bool has_relu(GemmEpilogue e) { return e == GEMM_RELU || e == GEMM_BIAS_RELU; }

/* What is left of a forward op behind the product. */
static ActAttr act_left(const KArgs *a, GemmEpilogue e) {
    ActAttr act = a->attr->linear.fused;
    if (has_relu(e)) act.act = ACT_NONE;
    return act;
}

static View bias_left(const KArgs *a, GemmEpilogue e) {
    const View none = {0};
    return has_bias(e) ? none : a->in[2];
}

/* Divides `room` bytes: what stands before the product's own, and that. */
static void state_place(const KArgs *a, LinearState *s, size_t room) {
    Gemm *g = &s->gemm;
    size_t row = (size_t)g->n * sizeof(float);
    bool left = a->kind == OP_linear && (bias_left(a, g->epilogue).count || act_left(a, g->epilogue).act);
    int64_t rows = (int64_t)(room / CUDA_ALIGNMENT * CUDA_ALIGNMENT / row);
    rows = rows < g->m ? rows / ROWS * ROWS : g->m;
    s->wide = left && a->out[0].dtype != DT_F32 && rows > 0;
    if (s->wide) {
        g->epilogue = GEMM_PLAIN;
        g->out = DT_F32;
        g->m = rows;
    }
    s->before = s->wide ? align_up((size_t)rows * row, CUDA_ALIGNMENT) : 0;
    s->of_product = gemm_workspace(g, room - s->before);
}

/* The plan with its epilogue, or without one where there is none with it. */
static int plan_open(const KArgs *a, LinearState *s, Err *e) {
    CudaDevice *c = a->device;
    Gemm *g = &s->gemm, rest;
    if (c->ordinal == NOT_HERE) return OK;
    int64_t rows = g->m;
    int code = gemm_open(c, g, s->of_product, &s->plan, e);
    if (!code && !s->plan && g->epilogue) {
        g->epilogue = GEMM_PLAIN;
        state_place(a, s, s->before + s->of_product);
        code = gemm_open(c, g, s->of_product, &s->plan, e);
    }
    rest = *g;
    rest.m = s->wide ? (a->out[0].count / g->n) % g->m : 0;
    if (!code && s->plan && rest.m) code = gemm_open(c, &rest, s->of_product, &s->rest, e);
    if (code || (s->plan && (s->rest || !rest.m))) return code;
    return err_set(e, ERR_UNSUPPORTED, "%s: no algorithm for a product (%lld, %lld, %lld) of %s within %zu bytes",
                   op_info(a->kind)->name, (long long)rows, (long long)g->n, (long long)g->k, dtype_name(g->in),
                   s->of_product);
}

static size_t db_workspace(const KArgs *a, size_t limit) {
    const View *of = a->kind == OP_linear_dx ? &a->out[0] : &a->in[1], *db = &a->out[1];
    return a->kind != OP_linear && db->count ? bias_workspace(of->count / db->count, db->count, limit) : 0;
}

static int prepare(const KArgs *a, Gemm g, size_t limit, void **out, size_t *workspace, Err *e) {
    const View *w = a->kind == OP_linear_dw ? &a->out[0] : &a->in[1];
    *out = NULL;
    if (cuda_skinny_fits(w)) {
        *workspace = cuda_skinny_workspace(a, limit);
        return OK;
    }
    int code = types_check(a, &g, e);
    if (code) return code;
    LinearState *state = calloc(1, sizeof *state);
    if (!state) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *state);
    state->base.release = state_release;
    state->gemm = g;
    state_place(a, state, limit);
    *workspace = max_size(state->before + state->of_product, db_workspace(a, limit)); /* db comes after the product */
    code = plan_open(a, state, e);
    if (code) state_release(state);
    else *out = state;
    return code;
}

int k_cuda_linear_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, forward_gemm(a), limit, state, workspace, e);
}

int k_cuda_linear_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, dx_gemm(a), limit, state, workspace, e);
}

int k_cuda_linear_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, dw_gemm(a), limit, state, workspace, e);
}

/* ---- runs */

/* `count` rows from `row` on: the product, and what is left behind it. */
static int rows_run(const KArgs *a, int64_t row, int64_t count, Err *e) {
    const LinearState *state = a->state;
    const Gemm *g = &state->gemm;
    const View *x = &a->in[0], b = bias_left(a, g->epilogue);
    const char *from = (const char *)x->data + (size_t)(row * g->k) * dtype_size(x->dtype);
    View y = a->out[0], product;
    y.data = (char *)y.data + (size_t)(row * g->n) * dtype_size(y.dtype);
    y.count = count * g->n;
    product = y;
    if (state->wide) product.data = a->workspace, product.dtype = DT_F32;
    int code = gemm_run(a->device, count < g->m ? state->rest : state->plan, from, a->in[1].data, a->in[2].data,
                        product.data, (char *)a->workspace + state->before, e);
    return code ? code : bias_act(a, &product, &b, act_left(a, g->epilogue), &y, e);
}

int k_cuda_linear(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    int code = OK;
    if (cuda_skinny_fits(&a->in[1])) return cuda_skinny_forward(a, e);
    const int64_t rows = a->out[0].count / state->gemm.n, each = state->gemm.m;
    for (int64_t row = 0; row < rows && !code; row += each) code = rows_run(a, row, min_i64(each, rows - row), e);
    return code;
}

int k_cuda_linear_dx(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *dx = &a->out[0], *s = &a->in[2], *db = &a->out[1];
    if (cuda_skinny_fits(&a->in[1])) return cuda_skinny_dx(a, e);
    int code = gemm_run(a->device, state->plan, a->in[0].data, a->in[1].data, NULL, dx->data, a->workspace, e);
    if (code || (!s->count && !db->count)) return code;
    if (!s->count) return bias_sum(a, dx, db, a->workspace, a->workspace_bytes, e);
    return bias_act_dx(a, dx, s, a->attr->linear.fused, db, a->workspace, a->workspace_bytes, e);
}

int k_cuda_linear_dw(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *dy = &a->in[1], *db = &a->out[1];
    if (cuda_skinny_fits(&a->out[0])) return cuda_skinny_dw(a, e);
    int code = gemm_run(a->device, state->plan, dy->data, a->in[0].data, db->data, a->out[0].data, a->workspace, e);
    if (code || !db->count || state->gemm.epilogue == GEMM_SUM_A) return code;
    return bias_sum(a, dy, db, a->workspace, a->workspace_bytes, e);
}
