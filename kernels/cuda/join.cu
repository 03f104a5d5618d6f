/* join.cu: concat, slice, slice_dx, roll, which move elements; bias_db. A tensor is seen as (outer, axis, inner)
 * in the order in which it lies in memory; a run is all that has one outer index: (axis, inner). */
#include "bias.h"
#include "elements.h"
#include "words.h"

/* A whole tensor, a part of which is another one: runs of `run` words each, of which the part's are `part` from `start` on */
typedef struct Runs { int64_t run, part, start; } Runs;

/* Of `part`, whose first index along the axis is `start`, in bytes */
static Runs runs_of(const KArgs *a, const View *whole, const View *part, int64_t start) {
    const int64_t size = (int64_t)dtype_size(whole->dtype);
    int64_t outer, inner;
    assert(0 <= a->attr->axis.axis && a->attr->axis.axis < whole->shape.rank && start >= 0);
    assert(part->dtype == whole->dtype && part->channels_last == whole->channels_last);
    view_split(whole, a->attr->axis.axis, &outer, &inner);
    return Runs{whole->count / outer * size, part->count / outer * size, start * inner * size};
}

static uint64_t bits_of(const Runs &r, const View *whole, const View *part) {
    return (uint64_t)(r.run | r.part | r.start) | (uintptr_t)whole->data | (uintptr_t)part->data;
}

static Runs in_words(const Runs &r, int bytes) { return Runs{r.run / bytes, r.part / bytes, r.start / bytes}; }

/* ---- copies between parts and their places in the whole; out: from the whole. blockIdx.y: the part */

struct Moves {
    void *whole, *part[OP_IN];
    Runs runs[OP_IN];
    int64_t count[OP_IN]; /* words of a part */
    bool out;
};

template <typename T> static __global__ void move_parts(const __grid_constant__ Moves m) {
    const Runs r = m.runs[blockIdx.y];
    const int64_t stride = (int64_t)gridDim.x * blockDim.x, count = m.count[blockIdx.y];
    T *const whole = (T *)m.whole, *const part = (T *)m.part[blockIdx.y];
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t place = i / r.part * r.run + r.start + i % r.part;
        if (m.out) part[i] = whole[place];
        else whole[place] = part[i];
    }
}

/* start: the first part's */
static int move(const KArgs *a, Err *e, const View *whole, const View *parts, int n, int64_t start, bool out) {
    Moves m = {};
    uint64_t bits = 0;
    int64_t most = 0;
    m.whole = whole->data;
    m.out = out;
    for (int k = 0; k < n; k++) {
        m.runs[k] = runs_of(a, whole, &parts[k], start);
        m.part[k] = parts[k].data;
        bits |= bits_of(m.runs[k], whole, &parts[k]);
        start += parts[k].shape.dim[a->attr->axis.axis];
    }
    const int bytes = word_bytes(bits);
    for (int k = 0; k < n; k++) {
        m.runs[k] = in_words(m.runs[k], bytes);
        m.count[k] = parts[k].count * (int64_t)dtype_size(whole->dtype) / bytes;
        most = max_i64(most, m.count[k]);
    }
    const dim3 grid(blocks_for(a, most, ELEMENT_THREADS), (unsigned)n);
    return launch_op(a, e, FOR_WORDS(move_parts, bytes), grid, ELEMENT_THREADS, m);
}

int k_cuda_concat(const KArgs *a, Err *e) {
    int n = 0;
    while (n < OP_IN && a->in[n].count) n++;
    return move(a, e, &a->concat.y, a->in, n, 0, false);
}

int k_cuda_slice(const KArgs *a, Err *e) { return move(a, e, &a->slice.x, &a->slice.y, 1, a->attr->axis.start, true); }

/* ---- to (whole runs) = the part at its place, 0 elsewhere */

template <typename T> static __global__ void widen_part(void *to, const void *from, Runs r, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t k = i % r.run - r.start;
        T word = {};
        if (k >= 0 && k < r.part) word = ((const T *)from)[i / r.run * r.part + k];
        ((T *)to)[i] = word;
    }
}

int k_cuda_slice_dx(const KArgs *a, Err *e) {
    const View *dx = &a->slice_dx.dx, *dy = &a->slice_dx.dy;
    const Runs r = runs_of(a, dx, dy, a->attr->axis.start);
    const int bytes = word_bytes(bits_of(r, dx, dy));
    const int64_t count = dx->count * (int64_t)dtype_size(dx->dtype) / bytes;
    return launch_op(a, e, FOR_WORDS(widen_part, bytes), blocks_for(a, count, ELEMENT_THREADS), ELEMENT_THREADS, dx->data,
                     (const void *)dy->data, in_words(r, bytes), count);
}

/* ---- each run turned by r.start */

template <typename T> static __global__ void roll(void *to, const void *from, Runs r, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        ((T *)to)[i] = ((const T *)from)[i % r.run < r.start ? i + r.run - r.start : i - r.start];
}

int k_cuda_roll(const KArgs *a, Err *e) {
    const View *x = &a->roll.x, *y = &a->roll.y;
    const Runs r = runs_of(a, x, y, a->attr->axis.start);
    const int bytes = word_bytes(bits_of(r, x, y));
    const int64_t count = x->count * (int64_t)dtype_size(x->dtype) / bytes;
    return launch_op(a, e, FOR_WORDS(roll, bytes), blocks_for(a, count, ELEMENT_THREADS), ELEMENT_THREADS, y->data,
                     (const void *)x->data, in_words(r, bytes), count);
}

int k_cuda_bias_db(const KArgs *a, Err *e) { return bias_sum(a, &a->bias_db.dy, &a->bias_db.db, NULL, 0, e); }
