/* lanes.h: N neighbouring elements of a floating type as fp32 in registers, N = 1, 4 or 8. Where N elements are whole
 * 16-byte (8-byte) words they travel as such; lanes_fit says so before the launch. For .cu files. */
#ifndef MT_LANES_H
#define MT_LANES_H

#include "cuda.h"

/* May N elements at every multiple of `row` elements from p be taken together? row: a row's length, or their count
 * where the kernel takes care of the tail. */
template <int N> static inline bool lanes_fit(const void *p, DType t, int64_t row) {
    size_t bytes = N * dtype_size(t);
    return row % N == 0 && (uintptr_t)p % (bytes < 16 ? bytes : 16) == 0;
}

static __device__ inline float lanes_widen(DType t, uint32_t half) {
    return t == DT_BF16 ? bf16_to_f32((uint16_t)half) : f16_to_f32((uint16_t)half);
}

static __device__ inline uint32_t lanes_round(DType t, float x) { return t == DT_BF16 ? bf16_from_f32(x) : f16_from_f32(x); }

static __device__ inline void lanes_split(DType t, uint32_t word, float *v) {
    v[0] = lanes_widen(t, word & 0xffffu);
    v[1] = lanes_widen(t, word >> 16);
}

static __device__ inline uint32_t lanes_join(DType t, const float *v) {
    return lanes_round(t, v[0]) | lanes_round(t, v[1]) << 16;
}

/* v[N] = elements [i, i + N) */
template <int N> static __device__ inline void lanes_load(DType t, const void *p, int64_t i, float *v) {
    if (N == 1) {
        v[0] = dtype_load(t, p, (size_t)i);
    } else if (t == DT_F32) {
        const float4 *from = (const float4 *)((const float *)p + i);
        for (int k = 0; k < N / 4; k++) {
            float4 word = from[k];
            v[4 * k] = word.x, v[4 * k + 1] = word.y, v[4 * k + 2] = word.z, v[4 * k + 3] = word.w;
        }
    } else if (N == 4) {
        uint2 word = *(const uint2 *)((const uint16_t *)p + i);
        lanes_split(t, word.x, v), lanes_split(t, word.y, v + 2);
    } else {
        uint4 word = *(const uint4 *)((const uint16_t *)p + i);
        lanes_split(t, word.x, v), lanes_split(t, word.y, v + 2 % N);
        lanes_split(t, word.z, v + 4 % N), lanes_split(t, word.w, v + 6 % N);
    }
}

/* elements [i, i + N) = v[N], rounded */
template <int N> static __device__ inline void lanes_store(DType t, void *p, int64_t i, const float *v) {
    if (N == 1) {
        dtype_store(t, p, (size_t)i, v[0]);
    } else if (t == DT_F32) {
        float4 *to = (float4 *)((float *)p + i);
        for (int k = 0; k < N / 4; k++) to[k] = make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
    } else if (N == 4) {
        *(uint2 *)((uint16_t *)p + i) = make_uint2(lanes_join(t, v), lanes_join(t, v + 2));
    } else {
        *(uint4 *)((uint16_t *)p + i) = make_uint4(lanes_join(t, v), lanes_join(t, v + 2 % N),
                                                   lanes_join(t, v + 4 % N), lanes_join(t, v + 6 % N));
    }
}

#endif
