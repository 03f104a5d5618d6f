/* nhwc_to_nchw.cu: channels-last images to PyTorch's element order and back: per sample a transposition
 * (H W, C) <-> (C, H W), in square tiles that are both read and written along rows; or, where images are small, in pieces that
 * have all pixels of some channels. */
#include "launch.h"
#include "program/nhwc_to_nchw.h"

/* SECTOR: bytes of memory that are moved together. A block's threads are TILE_ROWS rows of a tile. */
enum { SECTOR = 32, TILE = 32, TILE_ROWS = 8 };

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

/* ---- images of few pixels: a block takes all pixels of some channels. Where channels come first, they are one piece of memory, which
 *      is moved in words that begin where rows of pixels need not; where they come last, a warp has neighbouring channels. */

enum { PIECE_THREADS = 256, PIECE_BYTES = 32768, PIECE_CHANNELS = 32, BANK = 4 };

/* width: channels of a block, a power of two; groups: of so many channels, of a sample; pitch: elements from a channel's pixels in
 * shared memory to the next one's, an odd number of its words, so that neighbouring channels lie in different banks; pair: two
 * elements of the piece are moved as one word; last: `to` has channels last */
struct Piece {
    void *to;
    const void *from;
    int64_t pixels, channels, groups, pieces;
    int width, pitch;
    bool pair, last;
};

template <typename T> static __device__ inline void piece_of_strips(const Piece &p, T *tile, int64_t sample, int64_t c0, int n) {
    for (int i = (int)threadIdx.x; i < p.width * (int)p.pixels; i += PIECE_THREADS) {
        const int c = i % p.width, at = i / p.width;
        const int64_t place = sample + at * p.channels + c0 + c;
        if (c >= n) continue;
        if (p.last) ((T *)p.to)[place] = tile[c * p.pitch + at];
        else tile[c * p.pitch + at] = ((const T *)p.from)[place];
    }
}

/* Of 16-bit elements; begin: the piece's first element */
static __device__ inline void piece_of_pairs(const Piece &p, uint16_t *tile, int64_t begin, int count) {
    const int pixels = (int)p.pixels;
    for (int i = (int)threadIdx.x; i < count / 2; i += PIECE_THREADS) {
        const int c = 2 * i / pixels, at = 2 * i % pixels;
        uint16_t *const one = &tile[c * p.pitch + at], *const two = at + 1 < pixels ? one + 1 : &tile[(c + 1) * p.pitch];
        if (p.last) {
            const uint32_t both = ((const uint32_t *)p.from)[begin / 2 + i];
            *one = (uint16_t)both, *two = (uint16_t)(both >> 16);
        } else {
            ((uint32_t *)p.to)[begin / 2 + i] = *one | (uint32_t)*two << 16;
        }
    }
}

template <typename T> static __device__ inline void piece_of_elements(const Piece &p, T *tile, int64_t begin, int count) {
    for (int i = (int)threadIdx.x; i < count; i += PIECE_THREADS) {
        T *const one = &tile[i / (int)p.pixels * p.pitch + i % (int)p.pixels];
        if (p.last) *one = ((const T *)p.from)[begin + i];
        else ((T *)p.to)[begin + i] = *one;
    }
}

template <typename T> static __device__ inline void piece_whole(const Piece &p, T *tile, int64_t begin, int count) {
    if constexpr (sizeof(T) == 2) {
        if (p.pair) return piece_of_pairs(p, tile, begin, count);
    }
    piece_of_elements(p, tile, begin, count);
}

template <typename T> static __global__ void __launch_bounds__(PIECE_THREADS) transpose_pieces(const __grid_constant__ Piece p) {
    __shared__ T tile[PIECE_BYTES / sizeof(T)];
    for (int64_t k = blockIdx.x; k < p.pieces; k += gridDim.x) {
        const int64_t sample = k / p.groups * p.pixels * p.channels, c0 = k % p.groups * p.width;
        const int n = c0 + p.width < p.channels ? p.width : (int)(p.channels - c0), count = n * (int)p.pixels;
        if (p.last) piece_whole(p, tile, sample + c0 * p.pixels, count);
        else piece_of_strips(p, tile, sample, c0, n);
        __syncthreads();
        if (p.last) piece_of_strips(p, tile, sample, c0, n);
        else piece_whole(p, tile, sample + c0 * p.pixels, count);
        __syncthreads(); /* before the next piece takes its place */
    }
}

/* width: 0 where the pixels are too many, or the channels too few for a sector of memory */
static Piece piece_of(const KArgs *a, const Rows *r, bool last) {
    const int64_t size = (int64_t)dtype_size(a->in[0].dtype);
    Piece p = {a->out[0].data, a->in[0].data, last ? r->cols : r->rows, last ? r->rows : r->cols, 0, 0, PIECE_CHANNELS, 0, false, last};
    p.pitch = (int)(((min_i64(p.pixels, PIECE_BYTES) * size + BANK - 1) / BANK | 1) * BANK / size);
    while (p.width && p.width * p.pitch * size > PIECE_BYTES) p.width /= 2;
    if (p.width * size < SECTOR || p.channels < p.width) return p.width = 0, p;
    p.groups = (p.channels + p.width - 1) / p.width;
    p.pieces = r->samples * p.groups;
    p.pair = p.pixels * p.channels % 2 == 0 && ((uintptr_t)p.to | (uintptr_t)p.from) % sizeof(uint32_t) == 0;
    return p;
}

int k_cuda_nhwc_to_nchw(const KArgs *a, Err *e) {
    Rows r;
    int rc = rows_read(a, &r, e);
    if (rc != OK) return rc;
    assert(a->in[0].count == a->out[0].count && a->in[0].count == r.samples * r.rows * r.cols);
    assert(dtype_size(a->in[0].dtype) == 2 || dtype_size(a->in[0].dtype) == 4);
    const Piece p = piece_of(a, &r, a->kind == OP_nhwc_to_nchw_dx);
    if (p.width)
        return launch_op(a, e, dtype_size(a->in[0].dtype) == 2 ? transpose_pieces<uint16_t> : transpose_pieces<uint32_t>,
                         blocks_for(a, p.pieces, 1), PIECE_THREADS, p);
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
