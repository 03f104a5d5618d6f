/* linear_q.cu: panels of a weight of 4 or 8 bits as numbers that a library multiplies. */
#include "linear_q.h"

#include "lanes.h"
#include "launch.h"

enum { THREADS = 256, GROUP = 8 /* numbers that a thread makes at a time, where rows are made of such groups */ };

struct Codes { Quantized w; Panel p; DType type; void *to; };

/* N codes, N = 1, 4 or 8 (0: none), from where a word of N bytes may begin */
template <int N> static __device__ inline void codes_load(const uint8_t *from, uint8_t *to) {
    if (N == 1) to[0] = *from;
    uint32_t word[2] = {};
    if (N == 4) word[0] = *(const uint32_t *)from;
    if (N == 8) word[0] = ((const uint2 *)from)->x, word[1] = ((const uint2 *)from)->y;
    for (int k = 0; k < N && N > 1; k++) to[k] = (uint8_t)(word[k / 4] >> k % 4 * 8);
}

/* Numbers [i, i + N) of the weight, which lie in one block and one row. N > 1: i is a multiple of N. */
template <int N> static __device__ inline void numbers(const Quantized &w, const float *map, int64_t i, float *x) {
    if (!map) {
        const float scb = ((const float *)w.absmax)[i / w.columns];
        uint8_t codes[N];
        codes_load<N>(w.codes + i, codes);
        for (int k = 0; k < N; k++) x[k] = quant8_weight(codes[k], scb);
        return;
    }
    const float absmax = quant4_absmax(&w, i / QUANT_BLOCK);
    if constexpr (N == 1) {
        x[0] = map[quant4_code(w.codes, i)] * absmax;
    } else {
        uint8_t codes[N / 2];
        codes_load<N / 2>(w.codes + i / 2, codes);
        for (int k = 0; k < N / 2; k++) {
            x[2 * k] = map[codes[k] >> 4] * absmax;
            x[2 * k + 1] = map[codes[k] & 15] * absmax;
        }
    }
}

template <int N> static __global__ void dequantize_kernel(const __grid_constant__ Codes c) {
    __shared__ float map[QUANT_MAP];
    const int64_t stride = (int64_t)gridDim.x * blockDim.x, groups = c.p.columns / N, count = c.p.rows * groups;
    if (c.w.map && threadIdx.x < QUANT_MAP) map[threadIdx.x] = c.w.map[threadIdx.x];
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = i / groups, column = i % groups * N;
        float x[N];
        numbers<N>(c.w, c.w.map ? map : NULL, (c.p.row + row) * c.w.columns + c.p.column + column, x);
        lanes_store<N>(c.type, c.to, row * c.p.columns + column, x);
    }
}

int cuda_dequantize(const KArgs *a, const Quantized *w, Panel p, DType type, void *to, Err *e) {
    const Codes c = {*w, p, type, to};
    const bool whole = w->columns % GROUP == 0 && p.column % GROUP == 0 && lanes_fit<GROUP>(to, type, p.columns) &&
                       (uintptr_t)w->codes % GROUP == 0;
    const int64_t threads = p.rows * p.columns / (whole ? GROUP : 1);
    return launch_op(a, e, whole ? dequantize_kernel<GROUP> : dequantize_kernel<1>, blocks_for(a, threads, THREADS),
                     THREADS, c);
}
