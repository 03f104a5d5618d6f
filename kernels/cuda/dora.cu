/* dora.cu: the magnitudes of DoRA (math/dora.h): the norms of the rows of w + scaling b a, which never exist as a whole; and
 * features times their magnitude, with its gradient. */
#include "math/dora.h"
#include "channels.h"
#include "numbers.h"

/* ---- norms: a block has TILE columns of some rows. It has a's in shared memory, RANKS rows of it at a time, and w + scaling b a of
 *      WARP_ROWS rows in the registers of each warp. Of a tile it makes the rows' squares; a second kernel adds them up. */

enum { TILE = WARP * LANES, PITCH = WARP + PARAM_PAD, RANKS = 32, DORA_WARPS = ELEMENT_THREADS / WARP, WARP_ROWS = 8,
       BLOCK_ROWS = DORA_WARPS * WARP_ROWS, ROWS_PER_RANK = 32 /* of a block, at least: so a is read seldom */,
       DORA_BLOCKS = 4 /* per processor */ };

/* whole: LANES neighbours of w lie in words */
struct DoraRows {
    Elements w, a, b;
    Quantized codes;
    bool quantized, whole;
    int64_t rank, rows, columns;
    float scaling;
    double *parts; /* [tiles][rows], if there is more than one tile */
    float *norm;
};

/* Which of a tile's columns is number j of a lane: its LANES are neighbours (N > 1), or a warp's are. And where shared memory has it */
template <int N> static __device__ inline int tile_column(int lane, int j) { return N > 1 ? lane * LANES + j : j * WARP + lane; }
template <int N> static __device__ inline int tile_place(int c) {
    return N > 1 ? param_place<LANES>(c, PITCH) : c / WARP * PITCH + c % WARP;
}

/* The lane's numbers of w in a row of a tile; 0 after the last column. map: as in numbers.h */
template <int N> static __device__ inline void dora_load(const DoraRows &d, const float *map, int64_t row, int64_t first, float *w) {
    const int lane = (int)threadIdx.x % WARP;
    const int64_t at = row * d.columns + first + tile_column<N>(lane, 0);
    if (N > 1 && d.whole) {
        for (int j = 0; j < LANES; j++) w[j] = 0;
        if (first + lane * LANES >= d.columns) return;
        if (d.quantized) numbers<LANES>(d.codes, map, at, w);
        else lanes_load<LANES>(d.w.type, d.w.data, at, w);
        return;
    }
    for (int j = 0; j < LANES; j++) {
        const int c = tile_column<N>(lane, j);
        w[j] = 0;
        if (first + c >= d.columns) continue;
        if (d.quantized) numbers<1>(d.codes, map, row * d.columns + first + c, w + j);
        else w[j] = element_at(d.w, row * d.columns + first + c);
    }
}

template <int N> static __global__ void __launch_bounds__(ELEMENT_THREADS, 2) dora_norm_kernel(const __grid_constant__ DoraRows d, int64_t each) {
    __shared__ float factor[RANKS][LANES * PITCH], times[DORA_WARPS][RANKS][WARP_ROWS], map[QUANT_MAP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t first = (int64_t)blockIdx.x * TILE, begin = blockIdx.y * each, end = begin + each < d.rows ? begin + each : d.rows;
    if (d.codes.map && threadIdx.x < QUANT_MAP) map[threadIdx.x] = d.codes.map[threadIdx.x];
    __syncthreads();
    for (int64_t top = begin; top < end; top += BLOCK_ROWS) {
        const int64_t row = top + warp * WARP_ROWS;
        float w[WARP_ROWS][LANES] = {};
        for (int r = 0; r < WARP_ROWS; r++)
            if (row + r < end) dora_load<N>(d, d.codes.map ? map : NULL, row + r, first, w[r]);
        for (int64_t k = 0; k < d.rank; k += RANKS) {
            const int ranks = d.rank - k < RANKS ? (int)(d.rank - k) : RANKS;
            if (d.rank > RANKS || top == begin) {
                __syncthreads(); /* all have read what was there */
                for (int i = 0; i < ranks; i++) {
                    const int64_t c = first + threadIdx.x;
                    factor[i][tile_place<N>((int)threadIdx.x)] = c < d.columns ? element_at(d.a, (k + i) * d.columns + c) : 0.0f;
                }
                __syncthreads();
            }
            __syncwarp(); /* the lanes have read what was there */
            for (int i = lane; i < ranks * WARP_ROWS; i += WARP) {
                const int r = i / ranks, of = i % ranks;
                times[warp][of][r] = row + r < end ? d.scaling * element_at(d.b, (row + r) * d.rank + k + of) : 0.0f;
            }
            __syncwarp();
            for (int i = 0; i < ranks; i++)
                UNROLLED(LANES)
                for (int j = 0; j < LANES; j++) {
                    const float a = factor[i][j * PITCH + lane];
                    UNROLLED(WARP_ROWS)
                    for (int r = 0; r < WARP_ROWS; r++) w[r][j] = dora_weight(w[r][j], times[warp][i][r], a);
                }
        }
        double mine = 0; /* of the row that is the lane's */
        for (int r = 0; r < WARP_ROWS; r++) {
            float sum = 0;
            for (int j = 0; j < LANES; j++)
                if (first + tile_column<N>(lane, j) < d.columns) sum += w[r][j] * w[r][j];
            const double all = warp_sum((double)sum);
            if (lane == r) mine = all;
        }
        if (lane >= WARP_ROWS || row + lane >= end) continue;
        if (gridDim.x == 1) d.norm[row + lane] = (float)sqrt(mine);
        else d.parts[blockIdx.x * d.rows + row + lane] = mine;
    }
}

static __global__ void dora_norm_finish(const __grid_constant__ DoraRows d, int tiles) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (row >= d.rows) return;
    for (int i = 0; i < tiles; i++) sum += d.parts[i * d.rows + row];
    d.norm[row] = (float)sqrt(sum);
}

static int64_t dora_tiles(const KArgs *a) { return (a->dora_norm.a.shape.dim[1] + TILE - 1) / TILE; }

int k_cuda_dora_norm_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = dora_tiles(a) > 1 ? (size_t)(dora_tiles(a) * a->dora_norm.norm.count) * sizeof(double) : 0;
    return OK;
}

int k_cuda_dora_norm(const KArgs *a, Err *e) {
    const View *of_a = &a->dora_norm.a;
    const int64_t tiles = dora_tiles(a);
    DoraRows d = {};
    d.w = elements_of(&a->dora_norm.w), d.a = elements_of(of_a), d.b = elements_of(&a->dora_norm.b);
    d.codes.codes = (const uint8_t *)a->dora_norm.w.data, d.codes.absmax = a->dora_norm.absmax.data;
    d.codes.map = (const float *)a->dora_norm.quant_map.data;
    d.codes.nested_absmax = (const float *)a->dora_norm.nested_absmax.data;
    d.codes.nested_map = (const float *)a->dora_norm.nested_quant_map.data;
    d.codes.nested_offset = (const float *)a->dora_norm.nested_offset.data;
    d.codes.columns = d.columns = of_a->shape.dim[1];
    d.quantized = a->dora_norm.absmax.count > 0;
    d.rank = of_a->shape.dim[0];
    d.rows = a->dora_norm.norm.count;
    d.scaling = a->attr->dora.scaling;
    d.parts = (double *)a->workspace;
    d.norm = (float *)a->dora_norm.norm.data;
    d.whole = d.quantized ? (uintptr_t)d.codes.codes % LANES == 0 : lanes_aligned<LANES>(d.w.type, d.w.data);
    assert(a->dora_norm.b.shape.dim[1] == d.rank && tiles <= GRID_MAX_X);
    assert(a->workspace_bytes >= (tiles > 1 ? (size_t)(tiles * d.rows) * sizeof(double) : 0));
    const int64_t least = (d.rank * ROWS_PER_RANK + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    const int64_t parts = min_i64((d.rows + least - 1) / least, (int64_t)cuda_of(a)->model.processors * DORA_BLOCKS / tiles + 1);
    const int64_t each = (d.rows + parts - 1) / parts;
    const dim3 grid((unsigned)tiles, (unsigned)((d.rows + each - 1) / each));
    const int code = launch_op(a, e, d.columns % LANES ? dora_norm_kernel<1> : dora_norm_kernel<LANES>, grid, ELEMENT_THREADS, d, each);
    if (code || tiles == 1) return code;
    return launch_op(a, e, dora_norm_finish, (unsigned)((d.rows + ELEMENT_THREADS - 1) / ELEMENT_THREADS), ELEMENT_THREADS, d, (int)tiles);
}

/* ---- features */

struct DoraFeatures {
    enum { INPUTS = 1, PARAMS = 2 };
    Elements magnitude, norm, bias; /* bias: data NULL where there is none */
    __device__ void prepare(int64_t c, float *params) const {
        params[0] = bias.data ? element_at(bias, c) : 0.0f;
        params[1] = dora_factor(element_at(magnitude, c), element_at(norm, c));
    }
    __device__ float at(const float *x, const float *params) const { return dora_feature(x[0], params[0], params[1]); }
};

int k_cuda_dora(const KArgs *a, Err *e) {
    assert(a->dora.x.count == a->dora.y.count && a->dora.x.count % a->dora.norm.count == 0);
    const ElementsOf<1> x = {{elements_of(&a->dora.x)}};
    const DoraFeatures f = {elements_of(&a->dora.magnitude), elements_of(&a->dora.norm), elements_of(&a->dora.b)};
    return by_channel_run(a, e, f, x, a->dora.x.count / a->dora.norm.count, a->dora.norm.count);
}

/* ---- the magnitudes' gradient */

struct DoraTerms : PlainSums {
    enum { INPUTS = 2, PARAMS = 1 };
    Elements bias; /* data NULL where there is none */
    __device__ void prepare(int64_t c, float *params) const { params[0] = bias.data ? element_at(bias, c) : 0.0f; }
    __device__ void add(const float *x, const float *params, const float *, double *sum) const {
        sum[0] += (double)dora_term(x[0], x[1], params[0]);
    }
};

static __global__ void dora_finish(const double *parts, int n, int64_t channels, const float *norm, Elements dm) {
    const double sum = channel_sum(parts, n, 0, channels);
    const int64_t c = channel_here();
    if (threadIdx.y == 0 && c < channels) dtype_store(dm.type, dm.data, (size_t)c, (float)(sum / (double)norm[c]));
}

int k_cuda_dora_dm_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = channel_workspace(a->dora_dm.x.count / a->dora_dm.norm.count, a->dora_dm.norm.count);
    return OK;
}

int k_cuda_dora_dm(const KArgs *a, Err *e) {
    const int64_t channels = a->dora_dm.norm.count, rows = a->dora_dm.x.count / channels;
    assert(a->dora_dm.dy.count == a->dora_dm.x.count && a->dora_dm.x.count % channels == 0);
    const ElementsOf<2> both = {{elements_of(&a->dora_dm.dy), elements_of(&a->dora_dm.x)}};
    const int code = channels_run(a, e, DoraTerms{{}, elements_of(&a->dora_dm.b)}, both, rows, channels, true);
    if (code) return code;
    return launch_op(a, e, dora_finish, channel_blocks(channels), channel_threads(), (const double *)a->workspace,
                     channel_parts(rows, channels), channels, (const float *)a->dora_dm.norm.data, elements_of(&a->dora_dm.dm));
}
