/* nhwc_to_nchw.cu: channels-last images to PyTorch's element order and back: per sample a transposition
 * (H W, C) <-> (C, H W), in square tiles that are both read and written along rows. */
#include "launch.h"
#include "program/nhwc_to_nchw.h"

enum { TILE = 32, TILE_ROWS = 8 }; /* a block's threads are TILE_ROWS rows of a tile */

/* to (cols, rows) = from (rows, cols) transposed, for each sample; tiles: of all samples */
template <typename T>
static __global__ void transpose(T *to, const T *from, int64_t rows, int64_t cols, int64_t tiles) {
    __shared__ T tile[TILE][TILE + 1]; /* + 1: a column lies in different banks */
    int64_t across = (cols + TILE - 1) / TILE, of_sample = across * ((rows + TILE - 1) / TILE);
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        int64_t sample = t / of_sample * rows * cols, r0 = t % of_sample / across * TILE, c0 = t % across * TILE;
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
            if (r0 + k < rows && c0 + threadIdx.x < cols)
                tile[k][threadIdx.x] = from[sample + (r0 + k) * cols + c0 + threadIdx.x];
        __syncthreads();
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
            if (c0 + k < cols && r0 + threadIdx.x < rows)
                to[sample + (c0 + k) * rows + r0 + threadIdx.x] = tile[threadIdx.x][k];
        __syncthreads();
    }
}

int k_cuda_nhwc_to_nchw(const KArgs *a, Err *e) {
    Rows r;
    int rc = rows_read(a, &r, e);
    if (rc != OK) return rc;
    assert(a->in[0].count == a->out[0].count && a->in[0].count == r.samples * r.rows * r.cols);
    assert(dtype_size(a->in[0].dtype) == 2 || dtype_size(a->in[0].dtype) == 4);
    int64_t tiles = r.samples * ((r.rows + TILE - 1) / TILE) * ((r.cols + TILE - 1) / TILE);
    unsigned blocks = blocks_for(a, tiles * TILE * TILE_ROWS, TILE * TILE_ROWS);
    dim3 threads(TILE, TILE_ROWS);
    if (dtype_size(a->in[0].dtype) == 2)
        return launch_op(a, e, transpose<uint16_t>, blocks, threads, (uint16_t *)a->out[0].data,
                         (const uint16_t *)a->in[0].data, r.rows, r.cols, tiles);
    return launch_op(a, e, transpose<uint32_t>, blocks, threads, (uint32_t *)a->out[0].data,
                     (const uint32_t *)a->in[0].data, r.rows, r.cols, tiles);
}

int k_cuda_nhwc_to_nchw_dx(const KArgs *a, Err *e) { return k_cuda_nhwc_to_nchw(a, e); }
