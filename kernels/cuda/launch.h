/* launch.h: how .cu files start a kernel. nvcc and g++ (which compiles them against tests/emulate/) both take it, so
 * kernels are started this way only.
 *
 * Device code that both take: static __shared__ arrays; __syncthreads, __syncwarp, shuffles and votes (all threads of
 * the block, or of the mask, must come; if any thread of a block does, its thread 0 must); atomics on whole numbers. */
#ifndef MT_LAUNCH_H
#define MT_LAUNCH_H

#include "cuda.h"

enum { WARP = 32 };

/* Enqueues kernel<<<grid, block, 0, stream>>>(args...) */
template <typename... P, typename... A>
static inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* The same on the stream of op `a`: OK or an ErrCode. */
template <typename... P, typename... A>
static inline int launch_op(const KArgs *a, Err *e, void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    CudaDevice *device = cuda_of(a);
    return cuda_check(device, launch(kernel, grid, block, device->stream, args...), op_info(a->kind)->name, e);
}

/* Blocks that cover `items` with one each per thread. There is a limit, beyond which kernels stride over the grid: a
 * block's start costs something, and with this many the last ones to run leave few processors idle. */
static inline unsigned blocks_for(const KArgs *a, int64_t items, int threads) {
    return (unsigned)min_i64((items + threads - 1) / threads, (int64_t)cuda_of(a)->model.processors * 64);
}

#endif
