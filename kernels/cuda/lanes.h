/* lanes.h: N neighbouring elements of a floating type, N = 1, 4 or 8: as they lie (a Piece), or as fp32 in registers.
 * Where N is more than 1, they are loaded and stored in words of 8 or 16 bytes; lanes_fit says before the launch
 * whether that is possible. For .cu files.
 *
 * The type is looked at once per piece, in branches that all threads take alike. So one kernel serves all types, at
 * the price of a few instructions per 16 bytes; where the type is a constant, the branches are gone. */
#ifndef MT_LANES_H
#define MT_LANES_H

#include "cuda.h"

/* 16-bit elements leave the second half of the words unused. */
template <int N> struct Piece { uint32_t word[N]; };

/* Does p lie where a word of N elements may begin? */
template <int N> static __host__ __device__ inline bool lanes_aligned(DType t, const void *p) {
    const unsigned bytes = N * (t == DT_F32 ? 4 : 2);
    return (uintptr_t)p % (bytes < 16 ? bytes : 16) == 0;
}

/* May rows of `row` elements, the first at p, be loaded and stored N elements at a time? row: 0 if the kernel takes
 * care of a rest. */
template <int N> static inline bool lanes_fit(const void *p, DType t, int64_t row) {
    return row % N == 0 && lanes_aligned<N>(t, p);
}

static __device__ inline void words_load(const uint4 *from, uint32_t *to) {
    const uint4 w = *from;
    to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
}

static __device__ inline void words_store(uint4 *to, const uint32_t *from) {
    *to = make_uint4(from[0], from[1], from[2], from[3]);
}

/* Elements [i, i + N) */
template <int N> static __device__ inline Piece<N> piece_load(DType t, const void *p, int64_t i) {
    const bool wide = t == DT_F32;
    const char *from = (const char *)p + i * (wide ? 4 : 2);
    Piece<N> v = {};
    if (N == 1) {
        v.word[0] = wide ? *(const uint32_t *)from : *(const uint16_t *)from;
    } else if (N == 8 || wide) {
        words_load((const uint4 *)from, v.word);
        if (N == 8 && wide) words_load((const uint4 *)from + 1, v.word + 4 % N);
    } else {
        const uint2 w = *(const uint2 *)from;
        v.word[0] = w.x, v.word[1 % N] = w.y;
    }
    return v;
}

template <int N> static __device__ inline void piece_store(DType t, void *p, int64_t i, const Piece<N> &v) {
    const bool wide = t == DT_F32;
    char *to = (char *)p + i * (wide ? 4 : 2);
    if (N == 1) {
        if (wide) *(uint32_t *)to = v.word[0];
        else *(uint16_t *)to = (uint16_t)v.word[0];
    } else if (N == 8 || wide) {
        words_store((uint4 *)to, v.word);
        if (N == 8 && wide) words_store((uint4 *)to + 1, v.word + 4 % N);
    } else {
        *(uint2 *)to = make_uint2(v.word[0], v.word[1 % N]);
    }
}

/* x[N] as fp32 */
template <int N> static __device__ inline void piece_unpack(DType t, const Piece<N> &v, float *x) {
    if (t == DT_F32)
        for (int n = 0; n < N; n++) x[n] = f32_from_bits(v.word[n]);
    else if (t == DT_BF16)
        for (int n = 0; n < N; n++) x[n] = bf16_to_f32((uint16_t)(v.word[n / 2] >> n % 2 * 16));
    else
        for (int n = 0; n < N; n++) x[n] = f16_to_f32((uint16_t)(v.word[n / 2] >> n % 2 * 16));
}

/* x[N] rounded to the type */
template <int N> static __device__ inline Piece<N> piece_pack(DType t, const float *x) {
    Piece<N> v = {};
    if (t == DT_F32)
        for (int n = 0; n < N; n++) v.word[n] = f32_bits(x[n]);
    else if (t == DT_BF16)
        for (int n = 0; n < N; n++) v.word[n / 2] |= (uint32_t)bf16_from_f32(x[n]) << n % 2 * 16;
    else
        for (int n = 0; n < N; n++) v.word[n / 2] |= (uint32_t)f16_from_f32(x[n]) << n % 2 * 16;
    return v;
}

template <int N> static __device__ inline void lanes_load(DType t, const void *p, int64_t i, float *x) {
    piece_unpack(t, piece_load<N>(t, p, i), x);
}

template <int N> static __device__ inline void lanes_store(DType t, void *p, int64_t i, const float *x) {
    piece_store(t, p, i, piece_pack<N>(t, x));
}

#endif
