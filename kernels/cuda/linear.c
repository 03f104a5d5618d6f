/* linear.c: y = act(x w^T + b) and its gradients: by a library's product (gemm.h), with the kernels of bias.h after it
 * for what it does not do; or by small_n_gemm.cu.
 *
 * The library's own epilogues for f'(s) want ReLU's mask as one bit per element. The program keeps ReLU's output
 * instead, so bias.h computes dx *= f'(s). The epilogues also want the bias in y's type: a bias in another type (fp32
 * under amp) gets a copy in y's, as PyTorch's autocast makes one.
 *
 * Where kernels after the product add bias or activation, a 16-bit y is not rounded before them: the product goes to
 * the workspace in fp32, as many rows at a time as fit. Where no row fits, it goes to y and is rounded twice. */
#include "linear.h"

#include "bias.h"
#include "small_n_gemm.h"

const char *const linear_ways[LINEAR_WAYS] = {"fused", "plain", "small_n"};

/* ---- the three products */

/* y (N, O) = x (N, I) w (O, I)^T */
static Gemm forward_gemm(const KArgs *a) {
    const View *x = &a->linear.x, *w = &a->linear.w, *y = &a->linear.y;
    bool relu = a->attr->linear.fused.act == ACT_RELU;
    Gemm g = {.m = x->count / w->shape.dim[1], .n = w->shape.dim[0], .k = w->shape.dim[1], .b_transposed = true,
              .in = x->dtype, .out = y->dtype, .tf32 = a->attr->linear.tf32};
    if (a->linear.b.count) g.epilogue = relu ? GEMM_BIAS_RELU : GEMM_BIAS;
    else if (relu) g.epilogue = GEMM_RELU;
    return g;
}

/* dx (N, I) = dy (N, O) w (O, I) */
static Gemm dx_gemm(const KArgs *a) {
    const View *dy = &a->linear_dx.dy, *w = &a->linear_dx.w, *dx = &a->linear_dx.dx;
    return (Gemm){.m = dy->count / w->shape.dim[0], .n = w->shape.dim[1], .k = w->shape.dim[0], .in = dy->dtype,
                  .out = dx->dtype, .tf32 = a->attr->linear.tf32};
}

/* dw (O, I) = dy (N, O)^T x (N, I); db (O) is the sum of dy over N, which is this product's k */
static Gemm dw_gemm(const KArgs *a) {
    const View *dy = &a->linear_dw.dy, *dw = &a->linear_dw.dw, *db = &a->linear_dw.db;
    Gemm g = {.m = dw->shape.dim[0], .n = dw->shape.dim[1], .k = dy->count / dw->shape.dim[0], .a_transposed = true,
              .in = dy->dtype, .out = dw->dtype, .tf32 = a->attr->linear.tf32};
    if (db->count && db->dtype == dw->dtype) g.epilogue = GEMM_SUM_A;
    return g;
}

Gemm linear_gemm(const KArgs *a) {
    return a->kind == OP_linear ? forward_gemm(a) : a->kind == OP_linear_dx ? dx_gemm(a) : dw_gemm(a);
}

/* ---- what a forward op still has to do after the product */

static bool has_bias(GemmEpilogue e) { return e == GEMM_BIAS || e == GEMM_BIAS_RELU; }
static bool has_relu(GemmEpilogue e) { return e == GEMM_RELU || e == GEMM_BIAS_RELU; }

static ActAttr act_left(const KArgs *a, GemmEpilogue e) {
    ActAttr act = a->attr->linear.fused;
    if (has_relu(e)) act.act = ACT_NONE;
    return act;
}

static View bias_left(const KArgs *a, GemmEpilogue e) {
    const View none = {0};
    return has_bias(e) ? none : a->linear.b;
}

bool linear_leaves(const KArgs *a, GemmEpilogue e) { return bias_left(a, e).count || act_left(a, e).act; }

size_t linear_copy(const KArgs *a, GemmEpilogue e) {
    const View *b = &a->linear.b, *y = &a->linear.y;
    if (a->kind != OP_linear || !has_bias(e) || b->dtype == y->dtype) return 0;
    return align_up((size_t)b->count * dtype_size(y->dtype), CUDA_ALIGNMENT);
}

/* ---- runs */

/* `count` rows from `row` on: the product, and what follows it. bias: the vector that the product reads */
static int rows_run(const KArgs *a, int64_t row, int64_t count, void *bias, Err *e) {
    const LinearState *state = a->state;
    const Gemm *g = &state->gemm;
    const View *x = &a->linear.x, b = bias_left(a, g->epilogue);
    const char *from = (const char *)x->data + (size_t)(row * g->k) * dtype_size(x->dtype);
    View y = a->linear.y, product;
    y.data = (char *)y.data + (size_t)(row * g->n) * dtype_size(y.dtype);
    y.count = count * g->n;
    product = y;
    if (state->wide) product.data = a->workspace, product.dtype = DT_F32;
    int code = gemm_run(a->device, count < g->m ? state->rest : state->plan, from, a->linear.w.data, bias,
                        product.data, (char *)a->workspace + state->before, e);
    return code ? code : bias_act(a, &product, &b, act_left(a, g->epilogue), &y, e);
}

static int forward(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *b = &a->linear.b;
    const bool copies = linear_copy(a, state->gemm.epilogue) > 0;
    void *bias = copies ? a->workspace : b->data;
    int code = copies ? bias_pad(a, b->data, b->dtype, b->count, bias, a->linear.y.dtype, b->count, 1, e) : OK;
    const int64_t rows = a->linear.y.count / state->gemm.n, each = state->gemm.m;
    for (int64_t row = 0; row < rows && !code; row += each) code = rows_run(a, row, min_i64(each, rows - row), bias, e);
    return code;
}

static int dx_run(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *dx = &a->linear_dx.dx, *s = &a->linear_dx.s, *db = &a->linear_dx.db;
    const void *dy = a->linear_dx.dy.data, *w = a->linear_dx.w.data;
    int code = gemm_run(a->device, state->plan, dy, w, NULL, dx->data, a->workspace, e);
    if (code || (!s->count && !db->count)) return code;
    if (!s->count) return bias_sum(a, dx, db, a->workspace, a->workspace_bytes, e);
    return bias_act_dx(a, dx, s, a->attr->linear.fused, db, a->workspace, a->workspace_bytes, e);
}

static int dw_run(const KArgs *a, Err *e) {
    const LinearState *state = a->state;
    const View *x = &a->linear_dw.x, *dy = &a->linear_dw.dy, *dw = &a->linear_dw.dw, *db = &a->linear_dw.db;
    int code = gemm_run(a->device, state->plan, dy->data, x->data, db->data, dw->data, a->workspace, e);
    if (code || !db->count || state->gemm.epilogue == GEMM_SUM_A) return code;
    return bias_sum(a, dy, db, a->workspace, a->workspace_bytes, e);
}

int linear_run(const KArgs *a, Err *e) {
    static KernelRun *const products[] = {forward, dx_run, dw_run};
    static KernelRun *const small_n[] = {cuda_small_n_forward, cuda_small_n_dx, cuda_small_n_dw};
    const LinearState *s = a->state;
    assert(s && s->way < LINEAR_WAYS && a->workspace_bytes >= s->workspace);
    return (s->way == LINEAR_SMALL_N ? small_n : products)[a->kind - OP_linear](a, e);
}

int k_cuda_linear(const KArgs *a, Err *e) { return linear_run(a, e); }
int k_cuda_linear_dx(const KArgs *a, Err *e) { return linear_run(a, e); }
int k_cuda_linear_dw(const KArgs *a, Err *e) { return linear_run(a, e); }
