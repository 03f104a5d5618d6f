/* conv2d.c: stands in for kernels/cuda/conv2d.c: the same three ops by the float64 loops of tests/reference, as a task
 * of the emulated stream. The workspace is written over, so that a step whose buffers overlap it comes out wrong. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "emulate.h"
#include "reference/ref_conv.h"

typedef struct Task { KArgs args; Attr attr; } Task;

/* Element in PyTorch's order -> where it is stored. */
static size_t stored_at(const View *v, int64_t i) {
    if (!v->channels_last) return (size_t)i;
    int64_t c = v->shape.dim[1], area = v->shape.dim[2] * v->shape.dim[3];
    return (size_t)((i / (c * area) * area + i % area) * c + i / area % c);
}

/* Absent: NULL */
static double *widen(const View *v) {
    if (!v->count) return NULL;
    double *wide = calloc((size_t)v->count, sizeof *wide);
    if (!wide) abort(); /* a machine that is too small for its tests */
    for (int64_t i = 0; v->data && i < v->count; i++) wide[i] = dtype_load(v->dtype, v->data, stored_at(v, i));
    return wide;
}

static void store(const View *v, const double *wide) {
    for (int64_t i = 0; i < v->count; i++) dtype_store(v->dtype, v->data, stored_at(v, i), (float)wide[i]);
}

static RefConv describe(const ConvAttr *a, const View *x, const View *w) {
    const int64_t *d = x->shape.dim, *k = w->shape.dim;
    return (RefConv){d[0], d[1], d[2], d[3], k[0], k[2], k[3], {a->stride[0], a->stride[1]},
                     {a->pad[0], a->pad[1], a->pad[2], a->pad[3]}, {a->dilation[0], a->dilation[1]}, a->groups};
}

static void forward(const KArgs *args, double *in[OP_IN], double *out[OP_OUT]) {
    const ConvAttr *a = &args->attr->conv;
    RefConv d = describe(a, &args->in[0], &args->in[1]);
    ref_conv2d(out[0], in[0], in[1], in[2], &d);
    for (int64_t i = 0; i < args->out[0].count; i++)
        out[0][i] = act_value(a->fused.act, (float)out[0][i], a->fused.slope, a->fused.high);
}

/* dx f'(s), and its sum over all but the channels */
static void data(const KArgs *args, double *in[OP_IN], double *out[OP_OUT]) {
    const ConvAttr *a = &args->attr->conv;
    const View *x = &args->out[0];
    int64_t area = x->shape.dim[2] * x->shape.dim[3];
    RefConv d = describe(a, x, &args->in[1]);
    ref_conv2d_dx(out[0], in[0], in[1], &d);
    for (int64_t i = 0; i < x->count; i++) {
        if (in[2]) out[0][i] *= act_slope(a->fused.act, (float)in[2][i], a->fused.slope, a->fused.high);
        if (out[1]) out[1][i / area % x->shape.dim[1]] += out[0][i];
    }
}

static void weights(const KArgs *args, double *in[OP_IN], double *out[OP_OUT]) {
    RefConv d = describe(&args->attr->conv, &args->in[0], &args->out[0]);
    ref_conv2d_dw(out[0], out[1], in[0], in[1], &d);
}

static void run_task(void *of) {
    const Task *task = of;
    KArgs args = task->args;
    double *in[OP_IN], *out[OP_OUT];
    args.attr = &task->attr;
    if (args.workspace_bytes) memset(args.workspace, 0xFF, args.workspace_bytes);
    for (int k = 0; k < OP_IN; k++) in[k] = widen(&args.in[k]);
    for (int k = 0; k < OP_OUT; k++) {
        View blank = args.out[k];
        blank.data = NULL;
        out[k] = widen(&blank);
    }
    if (args.kind == OP_conv2d) forward(&args, in, out);
    if (args.kind == OP_conv2d_dx) data(&args, in, out);
    if (args.kind == OP_conv2d_dw) weights(&args, in, out);
    for (int k = 0; k < OP_OUT; k++)
        if (out[k]) store(&args.out[k], out[k]);
    for (int k = 0; k < OP_IN; k++) free(in[k]);
    for (int k = 0; k < OP_OUT; k++) free(out[k]);
}

static int enqueue(const KArgs *args, Err *e) {
    Task task = {*args, *args->attr};
    CudaDevice *c = cuda_of(args);
    cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = c->stream};
    return cuda_check(c, emulate_launch(&config, run_task, &task, sizeof task), op_info(args->kind)->name, e);
}

/* Bytes that depend on the shapes and stay within the limit, as a library's do. */
static int prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    size_t bytes = 1000 + 16 * (size_t)args->out[0].shape.dim[1];
    (void)e;
    *state = NULL;
    *workspace = bytes < limit ? bytes : limit;
    return OK;
}

int k_cuda_conv2d_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cuda_conv2d_dx_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cuda_conv2d_dw_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cuda_conv2d(const KArgs *args, Err *e) { return enqueue(args, e); }
int k_cuda_conv2d_dx(const KArgs *args, Err *e) { return enqueue(args, e); }
int k_cuda_conv2d_dw(const KArgs *args, Err *e) { return enqueue(args, e); }
