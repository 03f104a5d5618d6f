/* linear_loss.c: what core/program/linear_loss.h wants of a device: the kernels of other ops, sums of a loss in parts
 * (loss.c), and products that add to dw. Such a product of bf16 is in bf16_gemm.h, of fp32 in fp32_product.h;
 * other types are converted for that. */
#include "program/linear_loss.h"

#include "bf16_gemm.h"
#include "cpu.h"
#include "cross_entropy.h"
#include "fp32_product.h"
#include "fp32_workspace.h"

/* ---- dw */

static bool is_bf16(const KArgs *a) {
    const DType to = a->linear_dw.dw.dtype;
    return a->linear_dw.dy.dtype == DT_BF16 && (to == DT_BF16 || to == DT_F32);
}

static Bf16GemmShape bf16_shape(const KArgs *a, bool add) {
    const int64_t o = a->linear_dw.dw.shape.dim[0], i = a->linear_dw.dw.shape.dim[1];
    return (Bf16GemmShape){.m = o, .n = i, .k = a->linear_dw.dy.count / o, .a_stride = o, .a_transposed = true,
                           .b_stride = i, .c_stride = i, .add = add, .to = a->linear_dw.dw.dtype,
                           .threads = ((CpuDevice *)a->device)->threads};
}

static int dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    KArgs wide;
    Room room = {NULL, 0};
    (void)limit, (void)e;
    if (is_bf16(a)) {
        const Bf16GemmShape first = bf16_shape(a, false), more = bf16_shape(a, true);
        room.used = align_up(max_size(bf16_gemm_scratch(&first), bf16_gemm_scratch(&more)), CPU_ALIGNMENT);
    } else {
        fp32_enter(a, &room, &wide);
    }
    return room_prepared(&room, state, workspace);
}

static int dw_bf16(const KArgs *a, Err *e) {
    const Bf16GemmShape s = bf16_shape(a, a->micro > 0);
    return product_check(bf16_gemm_product(&s, a->linear_dw.dy.data, a->linear_dw.x.data, a->linear_dw.dw.data,
                                           a->workspace), e);
}

/* dw (o, i) = dy (n, o)^T x (n, i); add: += . A thread takes PANEL rows of dw at a time. Returns the bitwise or of their
 * statuses. */
static int dw_panels(int64_t o, int64_t i, int64_t n, float *dy, float *x, bool add, float *dw) {
    enum { PANEL = 256 };
    int status = 0;
#pragma omp parallel for schedule(static) reduction(| : status)
    for (int64_t from = 0; from < o; from += PANEL)
        status |= product(min_i64(PANEL, o - from), i, n, 1, transposed(dy + from, o), matrix(x, i), add, matrix(dw + from * i, i));
    return status;
}

static int dw_run(const KArgs *a, Err *e) {
    const int64_t o = a->linear_dw.dw.shape.dim[0], i = a->linear_dw.dw.shape.dim[1], n = a->linear_dw.dy.count / o;
    Room needed = {NULL, 0}, room = {a->workspace, 0};
    KArgs wide;
    if (is_bf16(a)) return dw_bf16(a, e);
    fp32_enter(a, &needed, &wide);
    int code = room_check(&needed, a, e);
    if (code) return code;
    fp32_enter(a, &room, &wide);
    float *dw = wide.linear_dw.dw.data, *x = wide.linear_dw.x.data, *dy = wide.linear_dw.dy.data;
    if (a->micro && dw != a->linear_dw.dw.data) fp32_widen(&a->linear_dw.dw, dw);
    code = product_check(dw_panels(o, i, n, dy, x, a->micro > 0, dw), e);
    fp32_leave(a, &wide);
    return code;
}

/* ---- the loss */

static size_t sums(const KArgs *a) { return (void)a, sizeof(double); }

static int terms(const KArgs *a, void *at, size_t bytes, Err *e) {
    double *sum = at, own = 0;
    (void)bytes;
    assert(bytes == sizeof *sum);
    const int code = cross_entropy_terms(a, &own, e);
    *sum = (a->micro ? *sum : 0) + own;
    return code;
}

static int finish(const KArgs *a, const void *at, size_t bytes, Err *e) {
    (void)e, (void)bytes;
    cross_entropy_finish(a, *(const double *)at);
    return OK;
}

static int slopes(const KArgs *a, const View *t, Err *e) {
    (void)e;
    cross_entropy_slopes(a, t);
    return OK;
}

static const LossKernels kernels = {
    .alignment = CPU_ALIGNMENT, .prepare_linear = k_cpu_linear_prepare, .prepare_dx = k_cpu_linear_dx_prepare,
    .prepare_dw = dw_prepare, .linear = k_cpu_linear, .dx = k_cpu_linear_dx, .dw = dw_run, .db = k_cpu_bias_db,
    .accumulate = k_cpu_accumulate, .prepare_terms = k_cpu_cross_entropy_prepare, .sums = sums, .terms = terms, .finish = finish, .slopes = slopes};

#define BOTH(name)                                                                                               \
    int k_cpu_##name##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {          \
        return linear_loss_prepare(&kernels, a, limit, state, workspace, e);                                     \
    }                                                                                                            \
    int k_cpu_##name(const KArgs *a, Err *e) { return linear_loss_run(&kernels, a, e); }
BOTH(linear_cross_entropy)
BOTH(linear_cross_entropy_dx)
