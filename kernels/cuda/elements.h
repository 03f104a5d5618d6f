/* elements.h: what kernels over elements in memory order share. A thread takes eight neighbours at a time: with 16-byte
 * loads and stores where the operands are aligned; element by element in the last piece, or where one is not aligned.
 * Arithmetic is in fp32. */
#ifndef MT_ELEMENTS_H
#define MT_ELEMENTS_H

#include "lanes.h"
#include "launch.h"

enum { LANES = 8, ELEMENT_THREADS = 256 };

typedef struct Elements { void *data; DType type; } Elements;
template <int N> struct ElementsOf { Elements at[N]; };

static inline Elements elements_of(const View *v) {
    Elements e = {v->data, v->dtype};
    return e;
}

static __device__ inline float element_at(Elements x, int64_t i) { return dtype_load(x.type, x.data, (size_t)i); }

static __host__ __device__ inline bool elements_aligned(Elements x) { return lanes_aligned<LANES>(x.type, x.data); }

/* values[k] = elements [begin, begin + n) of operand k, then zeros; `begin` is a multiple of LANES. whole: n is LANES
 * and all operands are aligned; then all are loaded before the first is converted, so that their loads are under way
 * together. */
template <int N>
static __device__ inline void elements_load(float (*values)[LANES], const ElementsOf<N> &x, int64_t begin, int n,
                                            bool whole) {
    if (whole) {
        Piece<LANES> pieces[N];
        for (int k = 0; k < N; k++) pieces[k] = piece_load<LANES>(x.at[k].type, x.at[k].data, begin);
        for (int k = 0; k < N; k++) piece_unpack(x.at[k].type, pieces[k], values[k]);
        return;
    }
    for (int k = 0; k < N; k++)
        for (int i = 0; i < LANES; i++)
            values[k][i] = i < n ? dtype_load(x.at[k].type, x.at[k].data, (size_t)(begin + i)) : 0.0f;
}

static __device__ inline void elements_store(Elements y, int64_t begin, int n, bool whole, const float *values) {
    if (whole) {
        lanes_store<LANES>(y.type, y.data, begin, values);
        return;
    }
    for (int i = 0; i < LANES; i++)
        if (i < n) dtype_store(y.type, y.data, (size_t)(begin + i), values[i]);
}

/* ---- y = f(x...): `f` is a struct with F::INPUTS and a function that makes eight values, from element `begin` on, from
 *      those of the inputs: void eight(float *y, const float (*x)[LANES], int64_t begin) const. Lanes after the end of y
 *      are computed, too, and thrown away. All inputs have y's elements. */

template <typename F>
static __global__ void elements_kernel(F f, Elements y, ElementsOf<F::INPUTS> x, int64_t count, bool aligned) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x * LANES;
    for (int64_t begin = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * LANES; begin < count; begin += stride) {
        int n = count - begin < LANES ? (int)(count - begin) : LANES;
        bool whole = aligned && n == LANES;
        float values[F::INPUTS][LANES], result[LANES];
        elements_load(values, x, begin, n, whole);
        f.eight(result, values, begin);
        elements_store(y, begin, n, whole, result);
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
