/* linear_loss.c: what core/program/linear_loss.h wants of a device: the kernels of other ops, sums of a loss in parts
 * (loss.cu), and products that add to dw. */
#include "program/linear_loss.h"

#include "base/mem.h"
#include "cross_entropy.h"
#include "gemm.h"

typedef struct DwState { CudaState base; GemmPlan *plan; } DwState; /* plan NULL: the device is not here */

static void release(void *state) {
    DwState *s = state;
    gemm_close(s->plan);
    mem_free(s);
}

/* dw (O, I) = dy (N, O)^T x (N, I). It has more tiles than a GPU has processors, so that workspace would not help. */
static int dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    CudaDevice *c = cuda_of(a);
    const View *x = &a->linear_dw.x, *dy = &a->linear_dw.dy, *dw = &a->linear_dw.dw;
    const Gemm g = {.m = dw->shape.dim[0], .n = dw->shape.dim[1], .k = dy->shape.dim[0], .a_transposed = true,
                    .in = x->dtype, .out = dw->dtype, .tf32 = a->attr->linear.tf32};
    DwState *s = mem_new(sizeof *s);
    int code = OK;
    (void)limit;
    *workspace = 0;
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    if (c->ordinal != NOT_HERE) code = gemm_open(c, &g, NULL, 0, &s->plan, e);
    if (!code && c->ordinal != NOT_HERE && !s->plan)
        code = err_set(e, ERR_UNSUPPORTED, "linear_cross_entropy: no algorithm for a product (%lld, %lld, %lld) of %s",
                       (long long)g.m, (long long)g.n, (long long)g.k, dtype_name(g.in));
    if (code) release(s);
    else *state = s;
    return code;
}

static int dw_run(const KArgs *a, Err *e) {
    const DwState *s = a->state;
    const void *x = a->linear_dw.x.data, *dy = a->linear_dw.dy.data;
    void *dw = a->linear_dw.dw.data;
    return a->micro ? gemm_add(cuda_of(a), s->plan, dy, x, dw, NULL, e)
                    : gemm_run(cuda_of(a), s->plan, dy, x, NULL, dw, NULL, e);
}

static const LossKernels kernels = {
    .alignment = CUDA_ALIGNMENT, .prepare_linear = k_cuda_linear_prepare, .prepare_dx = k_cuda_linear_dx_prepare,
    .prepare_dw = dw_prepare, .linear = k_cuda_linear, .dx = k_cuda_linear_dx, .dw = dw_run, .db = k_cuda_bias_db,
    .accumulate = k_cuda_accumulate, .prepare_terms = k_cuda_cross_entropy_prepare, .sums = cuda_cross_entropy_sums, .terms = cuda_cross_entropy_terms,
    .finish = cuda_cross_entropy_finish, .slopes = cuda_cross_entropy_slopes};

#define BOTH(name)                                                                                               \
    int k_cuda_##name##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {         \
        return linear_loss_prepare(&kernels, a, limit, state, workspace, e);                                     \
    }                                                                                                            \
    int k_cuda_##name(const KArgs *a, Err *e) { return linear_loss_run(&kernels, a, e); }
BOTH(linear_cross_entropy)
BOTH(linear_cross_entropy_dx)
