/* join.cu: mul; concat, slice, slice_dx, roll, which move elements; bias_db. A tensor is seen as (outer, axis, inner)
 * in the order in which it lies in memory; a run is all that has one outer index: (axis, inner). */
#include "bias.h"
#include "elements.h"

struct Product {
    enum { INPUTS = 2 };
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i] * x[1][i];
    }
};

int k_cuda_mul(const KArgs *a, Err *e) {
    assert(a->mul.a.count == a->mul.y.count && a->mul.b.count == a->mul.y.count);
    ElementsOf<2> x = {{elements_of(&a->mul.a), elements_of(&a->mul.b)}};
    return elements_run(a, e, Product{}, x);
}

/* length: elements of a run; start: the first element of the part in it */
typedef struct Runs { int64_t length, start; } Runs;

static Runs runs_of(const KArgs *a, const View *v, int64_t start) {
    int64_t outer, inner;
    assert(0 <= a->attr->axis.axis && a->attr->axis.axis < v->shape.rank && start >= 0);
    assert(a->in[0].dtype == a->out[0].dtype && a->in[0].channels_last == a->out[0].channels_last);
    view_split(v, a->attr->axis.axis, &outer, &inner);
    Runs r = {v->count / outer, start * inner};
    return r;
}

/* Copies between a part, of runs of `part` elements, and its place in the runs of the whole; out: from the whole */
template <typename T>
static __global__ void move_part(T *to, const T *from, Runs whole, int64_t part, int64_t count, bool out) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        int64_t place = i / part * whole.length + whole.start + i % part;
        if (out) to[i] = from[place];
        else to[place] = from[i];
    }
}

/* to (whole runs) = the part at its place, 0 elsewhere */
template <typename T>
static __global__ void widen_part(T *to, const T *from, Runs whole, int64_t part, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        int64_t k = i % whole.length - whole.start;
        to[i] = k >= 0 && k < part ? from[i / whole.length * part + k] : T(0);
    }
}

template <typename T>
static int move_run(const KArgs *a, Err *e, const View *whole, const View *part, int64_t start, bool out) {
    const View *to = out ? part : whole, *from = out ? whole : part;
    return launch_op(a, e, move_part<T>, blocks_for(a, part->count, ELEMENT_THREADS), ELEMENT_THREADS, (T *)to->data,
                     (const T *)from->data, runs_of(a, whole, start), runs_of(a, part, 0).length, part->count, out);
}

static int move(const KArgs *a, Err *e, const View *whole, const View *part, int64_t start, bool out) {
    return (dtype_size(part->dtype) == 2 ? move_run<uint16_t> : move_run<uint32_t>)(a, e, whole, part, start, out);
}

int k_cuda_concat(const KArgs *a, Err *e) {
    int64_t start = 0;
    int code = OK;
    for (int k = 0; k < OP_IN && a->in[k].count && !code; k++) {
        code = move(a, e, &a->concat.y, &a->in[k], start, false);
        start += a->in[k].shape.dim[a->attr->axis.axis];
    }
    return code;
}

int k_cuda_slice(const KArgs *a, Err *e) { return move(a, e, &a->slice.x, &a->slice.y, a->attr->axis.start, true); }

template <typename T> static int widen(const KArgs *a, Err *e) {
    const View *dx = &a->slice_dx.dx, *dy = &a->slice_dx.dy;
    return launch_op(a, e, widen_part<T>, blocks_for(a, dx->count, ELEMENT_THREADS), ELEMENT_THREADS, (T *)dx->data,
                     (const T *)dy->data, runs_of(a, dx, a->attr->axis.start), runs_of(a, dy, 0).length, dx->count);
}

int k_cuda_slice_dx(const KArgs *a, Err *e) {
    return (dtype_size(a->slice_dx.dx.dtype) == 2 ? widen<uint16_t> : widen<uint32_t>)(a, e);
}

template <typename T>
static __global__ void roll(T *to, const T *from, Runs runs, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        to[i] = from[i % runs.length < runs.start ? i + runs.length - runs.start : i - runs.start];
}

template <typename T> static int roll_run(const KArgs *a, Err *e) {
    const View *x = &a->roll.x;
    return launch_op(a, e, roll<T>, blocks_for(a, x->count, ELEMENT_THREADS), ELEMENT_THREADS, (T *)a->roll.y.data,
                     (const T *)x->data, runs_of(a, x, a->attr->axis.start), x->count);
}

int k_cuda_roll(const KArgs *a, Err *e) {
    return (dtype_size(a->roll.x.dtype) == 2 ? roll_run<uint16_t> : roll_run<uint32_t>)(a, e);
}

int k_cuda_bias_db(const KArgs *a, Err *e) { return bias_sum(a, &a->bias_db.dy, &a->bias_db.db, NULL, 0, e); }
