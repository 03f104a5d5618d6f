/* launch.h: how .cu files start a kernel. nvcc takes it, and so does g++, which compiles .cu files against
 * tests/emulate/: kernels are started in this way only.
 *
 * Device code that both take: static __shared__ arrays; __syncthreads, __syncwarp, shuffles and votes (all threads of
 * the block, or of the mask, must call them; if any thread of a block does, its thread 0 must, too); atomics on whole
 * numbers. A structure that a function returns goes to shared or global memory by way of a variable of the thread: else the
 * shadow memory (tests/emulate/shadow/shadow.h) may not see that it is written. */
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

/* The limits of every GPU since compute capability 7.5 */
enum { GRID_MAX_X = INT32_MAX, GRID_MAX_YZ = 65535, BLOCK_MAX = 1024 };

/* The same on the stream of op `a`: OK or an ErrCode. */
template <typename... P, typename... A>
static inline int launch_op(const KArgs *a, Err *e, void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    CudaDevice *device = cuda_of(a);
    assert(grid.x > 0 && grid.x <= GRID_MAX_X && grid.y > 0 && grid.y <= GRID_MAX_YZ && grid.z == 1);
    assert(block.x > 0 && block.y > 0 && block.z == 1 && block.x * block.y <= BLOCK_MAX);
    return cuda_check(device, launch(kernel, grid, block, device->stream, args...), op_info(a->kind)->name, e);
}

/* Blocks that cover `items` with one item per thread, up to a limit: kernels then stride over the grid. Starting a
 * block costs time, and with this many the last ones to run leave few processors idle. */
static inline unsigned blocks_for(const KArgs *a, int64_t items, int threads) {
    assert(items > 0 && threads > 0 && cuda_of(a)->model.processors > 0);
    return (unsigned)min_i64((items + threads - 1) / threads, (int64_t)cuda_of(a)->model.processors * 64);
}

#endif
