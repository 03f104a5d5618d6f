/* linear_q.cu: panels of a weight of 4 or 8 bits as numbers that a library multiplies. */
#include "linear_q.h"

#include "lanes.h"
#include "launch.h"
#include "numbers.h"

enum { THREADS = 256, GROUP = 8 /* numbers that a thread makes at a time, where rows are made of such groups */ };

struct Codes { Quantized w; Panel p; DType type; void *to; };

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
