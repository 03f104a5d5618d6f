/* linear.c: y = act(x w^T + b) and its gradients. Shapes: x (N, I), w (O, I), b (O), y (N, O); leading dimensions of x
 * and y are all part of N. With few outputs memory sets the pace: these go by skinny.cu, all others by a library's
 * product (gemm.h) and, where that has no fitting epilogue, the kernels of bias.h behind it.
 *
 * The library's own epilogues for f'(s) want ReLU's mask as one bit per element; what the program keeps is ReLU's
 * output, so dx *= f'(s) is bias.h's. They also want the bias in y's type: one in another (fp32 under amp) is rounded
 * into the workspace first, as PyTorch's autocast does.
 *
 *   workspace = [b in y's type | the product's] */
#include <stdlib.h>

#include "bias.h"
#include "gemm.h"
#include "skinny.h"

/* SPLIT_K: terms of a sum that are worth a block of their own. */
enum { TILE = 128, PROCESSORS = 132, SPLIT_K = 256 };

typedef struct LinearState {
    CudaState base;
    GemmPlan *plan;     /* NULL: a described device */
    GemmEpilogue epilogue;
    size_t copied;      /* bytes of b in y's type; 0: b is taken as it is, or not by the epilogue */
} LinearState;

static void state_release(void *p) {
    LinearState *state = p;
    gemm_close(state->plan);
    free(state);
}

/* What a product may use. The library splits the sum over k where D has fewer tiles than the GPU has processors, and
 * then wants room for a D in fp32 per part; nothing else pays for memory. It is a formula of shapes because the library
 * answers only where there is a GPU: what is planned without one has to hold with one. */
static size_t gemm_workspace(const Gemm *g, size_t limit) {
    int64_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    int64_t parts = min_i64(PROCESSORS / tiles, g->k / SPLIT_K), room = (int64_t)(limit / sizeof(float)) / (g->m * g->n);
    parts = min_i64(parts, room);
    return parts < 2 ? 0 : (size_t)(parts * g->m * g->n) * sizeof(float);
}

/* ---- the three products */

/* Bytes of a copy of b in y's type, where one is wanted. */
static size_t copy_bytes(const KArgs *a) {
    const View *b = &a->in[2], *y = &a->out[0];
    if (a->kind != OP_linear || b->dtype == y->dtype) return 0;
    return align_up((size_t)b->count * dtype_size(y->dtype), CUDA_ALIGNMENT);
}

/* y (N, O) = x (N, I) w (O, I)^T */
static Gemm forward_gemm(const KArgs *a, size_t limit) {
    const View *x = &a->in[0], *w = &a->in[1], *y = &a->out[0];
    bool bias = a->in[2].count && copy_bytes(a) <= limit, relu = a->attr->linear.fused.act == ACT_RELU;
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

/* The plan with its epilogue, or without one where there is none with it. */
static int plan_open(const KArgs *a, Gemm *g, size_t workspace, LinearState *state, Err *e) {
    CudaDevice *c = a->device;
    if (c->ordinal == NOT_HERE) return OK;
    int code = gemm_open(c, g, workspace, &state->plan, e);
    if (!code && !state->plan && g->epilogue) {
        g->epilogue = GEMM_PLAIN;
        code = gemm_open(c, g, workspace, &state->plan, e);
    }
    if (code || state->plan) return code;
    return err_set(e, ERR_UNSUPPORTED, "%s: no algorithm for a product (%lld, %lld, %lld) of %s within %zu bytes",
                   op_info(a->kind)->name, (long long)g->m, (long long)g->n, (long long)g->k, dtype_name(g->in),
                   workspace);
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
    size_t copied = g.epilogue ? copy_bytes(a) : 0, of_product = gemm_workspace(&g, limit - copied);
    int code = types_check(a, &g, e);
    if (code) return code;
    LinearState *state = calloc(1, sizeof *state);
    if (!state) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *state);
    state->base.release = state_release;
    code = plan_open(a, &g, of_product, state, e);
    if (code) {
        state_release(state);
        return code;
    }
    state->epilogue = g.epilogue;
    state->copied = copied;
    *out = state;
    *workspace = max_size(copied + of_product, db_workspace(a, limit)); /* db comes after the product */
    return OK;
}

int k_cuda_linear_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, forward_gemm(a, limit), limit, state, workspace, e);
}

int k_cuda_linear_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, dx_gemm(a), limit, state, workspace, e);
}

int k_cuda_linear_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, dw_gemm(a), limit, state, workspace, e);
}

/* ---- runs */

int k_cuda_linear(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *y = &a->out[0], none = {0};
    View b = a->in[2];
    ActAttr act = a->attr->linear.fused;
    int code = OK;
    if (cuda_skinny_fits(&a->in[1])) return cuda_skinny_forward(a, e);
    if (state->epilogue && state->copied) {
        code = bias_pad(a, b.data, b.dtype, b.count, a->workspace, y->dtype, b.count, 1, e);
        b.data = a->workspace;
    }
    if (!code) code = gemm_run(a->device, state->plan, a->in[0].data, a->in[1].data, b.data, y->data,
                               (char *)a->workspace + state->copied, e);
    if (state->epilogue == GEMM_RELU || state->epilogue == GEMM_BIAS_RELU) act.act = ACT_NONE;
    return code ? code : bias_act(a, y, state->epilogue >= GEMM_BIAS ? &none : &b, act, y, e);
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
    if (code || !db->count || state->epilogue == GEMM_SUM_A) return code;
    return bias_sum(a, dy, db, a->workspace, a->workspace_bytes, e);
}
