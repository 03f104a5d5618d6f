/* linear.c: y = act(x w^T + b) and its gradients. Shapes: x (N, I), w (O, I), b (O), y (N, O); leading dimensions of x
 * and y are all part of N. Which kind of product computes them is decided here, by shapes, types and instruction set alone. */
#include "gemm_ops.h"
#include "onednn.h"
#include "program/operands.h"
#include "thin_gemm.h"

static dnnl_memory_desc_t rows_md(const View *v, int64_t features) {
    return prim_md(v, 2, (int64_t[]){v->count / features, features}, (int64_t[]){features, 1});
}

static dnnl_memory_desc_t transposed_md(const View *v, int64_t features) {
    return prim_md(v, 2, (int64_t[]){features, v->count / features}, (int64_t[]){1, features});
}

static dnnl_status_t describe(const KArgs *args, const dnnl_memory_desc_t md[SLOTS], OpDesc *out) {
    const dnnl_memory_desc_t *x = &md[SLOT_X], *w = &md[SLOT_W], *b = &md[SLOT_B], *y = &md[SLOT_Y];
    switch (pass_of(args)) {
    case PASS_DATA: return dnnl_matmul_desc_init(&out->product, y, w, NULL, x);
    case PASS_WEIGHTS: return dnnl_matmul_desc_init(&out->product, y, x, NULL, w);
    default: return dnnl_matmul_desc_init(&out->product, x, w, b->ndims ? b : NULL, y);
    }
}

static int prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    const LinearAttr *a = &args->attr->linear;
    const Pass pass = pass_of(args);
    const View *w = prim_view(args, SLOT_W), *b = prim_view(args, SLOT_B);
    const View *x = prim_view(args, SLOT_X), *y = prim_view(args, SLOT_Y);
    assert(w->shape.rank == 2 && a->fused.act < ACT_COUNT);
    assert(x->count % w->shape.dim[1] == 0 && y->count == x->count / w->shape.dim[1] * w->shape.dim[0]);
    *state = NULL;
    if (thin_fits(args)) {
        *workspace = thin_workspace(args);
        return OK;
    }
    if (gemm_op_prepare(args, limit, workspace)) return OK;
    /* with small N reading the weights is most of the work: a copy of them in another format would not pay */
    const int64_t outputs = w->shape.dim[0], inputs = w->shape.dim[1];
    PrimSpec spec = {.pass = pass, .product = true, .pack_weights = false, .act = a->fused, .describe = describe};
    spec.md[SLOT_X] = rows_md(x, inputs);
    spec.md[SLOT_W] = pass == PASS_FORWARD ? transposed_md(w, inputs) : rows_md(w, inputs);
    spec.md[SLOT_Y] = pass == PASS_WEIGHTS ? transposed_md(y, outputs) : rows_md(y, outputs);
    if (pass == PASS_FORWARD) spec.md[SLOT_B] = prim_md(b, 2, (int64_t[]){1, outputs}, (int64_t[]){outputs, 1});
    return prim_prepare(args, &spec, limit, state, workspace, e);
}

int k_cpu_linear_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cpu_linear_dx_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cpu_linear_dw_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

bool k_cpu_linear_dx_overwrites(const KArgs *args, size_t *more) {
    *more = 0;
    if (thin_fits(args)) return true;
    return args->state ? prim_overwrites(args, more) : gemm_op_overwrites(args);
}

static int run(const KArgs *args, Err *e) {
    if (!args->state) return thin_fits(args) ? thin_run(args, e) : gemm_op_run(args, e);
    const int code = prim_run(args, e);
    return code || args->kind != OP_linear_dw ? code : product_bias(args, e);
}

int k_cpu_linear(const KArgs *args, Err *e) { return run(args, e); }

int k_cpu_linear_dx(const KArgs *args, Err *e) { return run(args, e); }

int k_cpu_linear_dw(const KArgs *args, Err *e) { return run(args, e); }
