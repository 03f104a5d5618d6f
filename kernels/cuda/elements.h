/* elements.h: what kernels over elements in memory order share. A thread takes two quads of neighbours at a time: with loads and
 * stores of 8 or 16 bytes where the operands are aligned; element by element in the last quad, or where one is not aligned. The
 * threads of a block have neighbouring quads, so that each request of a warp is one piece of memory in every type.
 * Arithmetic is in fp32. */
#ifndef MT_ELEMENTS_H
#define MT_ELEMENTS_H

#include "lanes.h"
#include "launch.h"

/* LANES: elements that a thread takes at a time; from one of its quads to the next it is QUAD_STEP elements. */
enum { QUAD = 4, TURN_QUADS = 2, LANES = QUAD * TURN_QUADS, ELEMENT_THREADS = 256, QUAD_STEP = ELEMENT_THREADS * QUAD };

typedef struct Elements { void *data; DType type; } Elements;
template <int N> struct ElementsOf { Elements at[N]; };

static inline Elements elements_of(const View *v) {
    Elements e = {v->data, v->dtype};
    return e;
}

static __device__ inline float element_at(Elements x, int64_t i) { return dtype_load(x.type, x.data, (size_t)i); }

static __host__ __device__ inline bool elements_aligned(Elements x) { return lanes_aligned<QUAD>(x.type, x.data); }

/* Where a thread's first quad begins, and how far it is to the one that it takes in its next turn */
static __device__ inline int64_t elements_first() {
    return (int64_t)blockIdx.x * (TURN_QUADS * QUAD_STEP) + (int64_t)threadIdx.x * QUAD;
}
static __device__ inline int64_t elements_stride() { return (int64_t)gridDim.x * (TURN_QUADS * QUAD_STEP); }

/* The N elements of x from `begin` on that lie before `count`, then zeros. aligned: x is for words of N, and begin is a multiple
 * of N. */
template <int N>
static __device__ inline void some_load(Elements x, int64_t begin, int64_t count, bool aligned, float *values) {
    if (aligned && begin + N <= count) {
        lanes_load<N>(x.type, x.data, begin, values);
        return;
    }
    for (int i = 0; i < N; i++) values[i] = begin + i < count ? element_at(x, begin + i) : 0.0f;
}

template <int N>
static __device__ inline void some_store(Elements y, int64_t begin, int64_t count, bool aligned, const float *values) {
    if (aligned && begin + N <= count) {
        lanes_store<N>(y.type, y.data, begin, values);
        return;
    }
    for (int i = 0; i < N; i++)
        if (begin + i < count) dtype_store(y.type, y.data, (size_t)(begin + i), values[i]);
}

/* values[q][k] = quad q, from begin + q QUAD_STEP on, of operand k; zeros after the end. aligned: all operands are; then all
 * quads are loaded before the first is converted, so that their loads are under way together. */
template <int N>
static __device__ inline void elements_load(float (*values)[N][QUAD], const ElementsOf<N> &x, int64_t begin, int64_t count,
                                            bool aligned) {
    if (aligned && begin + (TURN_QUADS - 1) * QUAD_STEP + QUAD <= count) {
        Piece<QUAD> pieces[TURN_QUADS][N];
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++)
            for (int k = 0; k < N; k++) pieces[q][k] = piece_load<QUAD>(x.at[k].type, x.at[k].data, begin + q * QUAD_STEP);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++)
            for (int k = 0; k < N; k++) piece_unpack(x.at[k].type, pieces[q][k], values[q][k]);
        return;
    }
    for (int q = 0; q < TURN_QUADS; q++)
        for (int k = 0; k < N; k++) some_load<QUAD>(x.at[k], begin + q * QUAD_STEP, count, aligned, values[q][k]);
}

/* ---- y = f(x...): `f` is a struct with F::INPUTS and a function that makes four values, from element `begin` on, a multiple of
 *      four, from those of the inputs: void four(float *y, const float (*x)[QUAD], int64_t begin) const. Values after the end of
 *      y are computed, too, and thrown away; begin is before it. All inputs have y's elements. */

template <typename F>
static __global__ void elements_kernel(F f, Elements y, ElementsOf<F::INPUTS> x, int64_t count, bool aligned) {
    for (int64_t begin = elements_first(); begin < count; begin += elements_stride()) {
        float values[TURN_QUADS][F::INPUTS][QUAD];
        elements_load(values, x, begin, count, aligned);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++) {
            const int64_t at = begin + q * QUAD_STEP;
            float result[QUAD];
            if (at >= count) continue;
            f.four(result, values[q], at);
            some_store<QUAD>(y, at, count, aligned, result);
        }
    }
}

template <typename F> static inline int elements_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x) {
    Elements y = elements_of(&a->out[0]);
    int64_t count = a->out[0].count;
    assert(operand_is_float(&a->out[0]));
    bool aligned = elements_aligned(y);
    for (int k = 0; k < F::INPUTS; k++) aligned = aligned && elements_aligned(x.at[k]);
    unsigned blocks = blocks_for(a, (count + LANES - 1) / LANES, ELEMENT_THREADS);
    return launch_op(a, e, elements_kernel<F>, blocks, ELEMENT_THREADS, f, y, x, count, aligned);
}

/* ---- over the lanes of a warp: all of them must call it, and each gets the result */

template <typename T> static __device__ inline T warp_sum(T x) {
    for (int bit = WARP / 2; bit; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
    return x;
}

static __device__ inline float warp_max(float x) {
    for (int bit = WARP / 2; bit; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, bit));
    return x;
}

#endif
