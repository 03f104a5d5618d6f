/* rows.cu: channels-last images to PyTorch's element order and back: per sample a transposition
 * (H W, C) <-> (C, H W), in square tiles that are read and written along rows. */
#include "launch.h"

enum { TILE = 32, TILE_ROWS = 8 }; /* a block's threads are TILE_ROWS rows of a tile */

/* to (cols, rows) = from (rows, cols) transposed, for each of the samples; tiles: of all samples */
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

/* (C, H W) of the channels-last operand: an image, or a flattened one. */
static void image_of(const View *v, int64_t *c, int64_t *hw) {
    const int64_t *chw = v->order[0] ? v->order : &v->shape.dim[1];
    *c = chw[0];
    *hw = chw[1] * chw[2];
}

static int check(const KArgs *a, const View *image, Err *e) {
    if (a->in[0].dtype != a->out[0].dtype)
        return err_set(e, ERR_INTERNAL, "%s: from %s to %s; both must be of one type", op_info(a->kind)->name,
                       dtype_name(a->in[0].dtype), dtype_name(a->out[0].dtype));
    if (!image->order[0] && !(image->channels_last && image->shape.rank == 4))
        return err_set(e, ERR_INTERNAL, "%s: the operand is neither a channels-last image nor a flattened one",
                       op_info(a->kind)->name);
    return OK;
}

static int transpose_run(const KArgs *a, Err *e, int64_t rows, int64_t cols) {
    int64_t tiles = a->in[0].count / (rows * cols) * ((rows + TILE - 1) / TILE) * ((cols + TILE - 1) / TILE);
    unsigned blocks = blocks_for(a, tiles * TILE * TILE_ROWS, TILE * TILE_ROWS);
    dim3 threads(TILE, TILE_ROWS);
    if (dtype_size(a->in[0].dtype) == 2)
        return launch_op(a, e, transpose<uint16_t>, blocks, threads, (uint16_t *)a->out[0].data,
                         (const uint16_t *)a->in[0].data, rows, cols, tiles);
    return launch_op(a, e, transpose<uint32_t>, blocks, threads, (uint32_t *)a->out[0].data,
                     (const uint32_t *)a->in[0].data, rows, cols, tiles);
}

int k_cuda_to_rows(const KArgs *a, Err *e) {
    int64_t c, hw;
    int rc = check(a, &a->in[0], e);
    if (rc != OK) return rc;
    image_of(&a->in[0], &c, &hw);
    return transpose_run(a, e, hw, c);
}

int k_cuda_to_rows_dx(const KArgs *a, Err *e) {
    int64_t c, hw;
    int rc = check(a, &a->out[0], e);
    if (rc != OK) return rc;
    image_of(&a->out[0], &c, &hw);
    return transpose_run(a, e, c, hw);
}
