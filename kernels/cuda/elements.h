/* elements.h: what kernels over elements in memory order share. A thread's piece is eight neighbours: 16-byte loads and
 * stores where the operands are aligned, single elements in the last piece and elsewhere. Arithmetic is in fp32.
 *
 * The element type is looked at per piece, in branches that all threads take alike: one kernel serves all combinations
 * of types, at the price of a few instructions per 16 bytes. All operands are loaded before the first is converted, so
 * that their loads are under way together. */
#ifndef MT_ELEMENTS_H
#define MT_ELEMENTS_H

#include "launch.h"

enum { LANES = 8, ELEMENT_THREADS = 256, VECTOR_BYTES = 16 };

typedef struct Elements { void *data; DType type; } Elements;
template <int N> struct ElementsOf { Elements at[N]; };

/* Eight elements as they lie; 16-bit ones leave the second half unused. */
typedef struct Piece { uint4 at[2]; } Piece;

static inline Elements elements_of(const View *v) {
    Elements e = {v->data, v->dtype};
    return e;
}

static __host__ __device__ inline bool elements_aligned(Elements x) { return (uintptr_t)x.data % VECTOR_BYTES == 0; }

/* `begin` is a multiple of LANES */
static __device__ inline Piece piece_load(Elements x, int64_t begin) {
    bool wide = x.type == DT_F32;
    const uint4 *from = (const uint4 *)((const char *)x.data + (wide ? 4 : 2) * begin);
    Piece p;
    p.at[0] = from[0];
    p.at[1] = wide ? from[1] : p.at[0];
    return p;
}

static __device__ inline void piece_store(Elements y, int64_t begin, Piece p) {
    bool wide = y.type == DT_F32;
    uint4 *to = (uint4 *)((char *)y.data + (wide ? 4 : 2) * begin);
    to[0] = p.at[0];
    if (wide) to[1] = p.at[1];
}

static __device__ inline void piece_unpack(DType type, const Piece *p, float *values) {
    uint4 a = p->at[0], b = p->at[1];
    uint32_t w[LANES] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (type == DT_F32) {
        for (int i = 0; i < LANES; i++) values[i] = f32_from_bits(w[i]);
    } else if (type == DT_BF16) {
        for (int i = 0; i < LANES; i++) values[i] = bf16_to_f32((uint16_t)(w[i / 2] >> (i % 2 * 16)));
    } else {
        for (int i = 0; i < LANES; i++) values[i] = f16_to_f32((uint16_t)(w[i / 2] >> (i % 2 * 16)));
    }
}

static __device__ inline Piece piece_pack(DType type, const float *values) {
    uint32_t w[LANES] = {0};
    if (type == DT_F32) {
        for (int i = 0; i < LANES; i++) w[i] = f32_bits(values[i]);
    } else if (type == DT_BF16) {
        for (int i = 0; i < LANES; i++) w[i / 2] |= (uint32_t)bf16_from_f32(values[i]) << (i % 2 * 16);
    } else {
        for (int i = 0; i < LANES; i++) w[i / 2] |= (uint32_t)f16_from_f32(values[i]) << (i % 2 * 16);
    }
    Piece p = {{make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])}};
    return p;
}

/* values[k] = elements [begin, begin + n) of operand k; whole: n is LANES and all operands are aligned */
template <int N>
static __device__ inline void elements_load(float (*values)[LANES], const ElementsOf<N> &x, int64_t begin, int n,
                                            bool whole) {
    if (whole) {
        Piece pieces[N];
        for (int k = 0; k < N; k++) pieces[k] = piece_load(x.at[k], begin);
        for (int k = 0; k < N; k++) piece_unpack(x.at[k].type, &pieces[k], values[k]);
        return;
    }
    for (int k = 0; k < N; k++)
        for (int i = 0; i < LANES; i++)
            values[k][i] = i < n ? dtype_load(x.at[k].type, x.at[k].data, (size_t)(begin + i)) : 0.0f;
}

static __device__ inline void elements_store(Elements y, int64_t begin, int n, bool whole, const float *values) {
    if (whole) {
        piece_store(y, begin, piece_pack(y.type, values));
        return;
    }
    for (int i = 0; i < LANES; i++)
        if (i < n) dtype_store(y.type, y.data, (size_t)(begin + i), values[i]);
}

/* ---- y = f(x...): `f` is a struct with F::INPUTS and a function that makes eight values from those of the inputs,
 *      void eight(float *y, const float (*x)[LANES], int64_t begin) const */

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
    bool aligned = elements_aligned(y);
    for (int k = 0; k < F::INPUTS; k++) aligned = aligned && elements_aligned(x.at[k]);
    unsigned blocks = blocks_for(a, (count + LANES - 1) / LANES, ELEMENT_THREADS);
    return launch_op(a, e, elements_kernel<F>, blocks, ELEMENT_THREADS, f, y, x, count, aligned);
}

#endif
