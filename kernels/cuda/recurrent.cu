/* recurrent.cu: the kernels of a recurrent layer, by the formulas of core/math/rnn_cells.h: a thread per sample and unit for each
 * step; sums for the biases; and products for which a library is not asked (recurrent.c). */
#include "recurrent.h"

#include "elements.h"

/* DEPTH: terms of a sum that are loaded at once. COLUMNS, ROW_THREADS: of sums_kernel's blocks */
enum { TILE = 16, DEPTH = 64, CELL_THREADS = 256, COLUMNS = 32, ROW_THREADS = 8 };

/* ---- c (m, n) = a (m, k) b (k, n): one thread per element of c, tiles in shared memory */

static __device__ inline int64_t place(const RnnMatrix &m, int64_t i, int64_t j) {
    return m.at + (m.transposed ? j * m.stride + i : i * m.stride + j);
}

static __device__ inline float element(const RnnMatrix &m, int64_t i, int64_t j) {
    return dtype_load(m.type, m.data, (size_t)place(m, i, j));
}

static __global__ void product_kernel(RnnProduct p) {
    __shared__ float of_a[TILE][DEPTH + 1], of_b[DEPTH][TILE + 1];
    const int y = (int)threadIdx.y, x = (int)threadIdx.x;
    const int64_t i = (int64_t)blockIdx.x * TILE + y, j = (int64_t)blockIdx.y * TILE + x;
    float sum = 0.0f;
    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
        UNROLLED(DEPTH / TILE)
        for (int t = 0; t < DEPTH; t += TILE) {
            const int64_t column = k0 + t + x, row = k0 + t + y;
            of_a[y][t + x] = i < p.m && column < p.k ? element(p.a, i, column) : 0.0f;
            of_b[t + y][x] = j < p.n && row < p.k ? element(p.b, row, j) : 0.0f;
        }
        __syncthreads();
        for (int t = 0; t < DEPTH; t++) sum = fmaf(of_a[y][t], of_b[t][x], sum);
        __syncthreads();
    }
    if (i >= p.m || j >= p.n) return;
    if (p.add) sum += element(p.c, i, j);
    dtype_store(p.c.type, p.c.data, (size_t)place(p.c, i, j), sum);
}

int cuda_rnn_product(const KArgs *a, const RnnProduct *p, Err *e) {
    assert(p->m > 0 && p->n > 0 && p->k >= 0);
    dim3 grid((unsigned)((p->m + TILE - 1) / TILE), (unsigned)((p->n + TILE - 1) / TILE)), block(TILE, TILE);
    return launch_op(a, e, product_kernel, grid, block, *p);
}

/* ---- the cells of a step */

typedef struct Walk {
    RnnLayer l;
    Elements h, slopes, b_ih, b_hh, y, saved, dy;
} Walk;

/* An absent operand reads as zeros, and what is stored to it is dropped. */
static __device__ inline float at(Elements x, int64_t i) { return x.data ? element_at(x, i) : 0.0f; }
static __device__ inline void put(Elements x, int64_t i, float v) {
    if (x.data) dtype_store(x.type, x.data, (size_t)i, v);
}

/* Gate g of unit j: its sum from x; its sum from h, which is 0 in the first step */
static __device__ inline float sum_x(const Walk &w, int64_t row, int64_t g, int64_t j) {
    return w.l.from_x[row * w.l.p.gates + g * w.l.p.units + j] + at(w.b_ih, g * w.l.p.units + j);
}
static __device__ inline float sum_h(const Walk &w, int64_t n, int64_t g, int64_t j, bool first) {
    return (first ? 0.0f : w.l.from_h[n * w.l.p.gates + g * w.l.p.units + j]) + at(w.b_hh, g * w.l.p.units + j);
}

static __device__ inline void save(const Walk &w, int64_t row, int64_t part, int64_t j, float v) {
    put(w.saved, (row * w.l.p.info.saved + part) * w.l.p.units + j, v);
}

static __global__ void cell_kernel(Walk w, int64_t k) {
    const RnnPath &p = w.l.p;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.samples * p.units) return;
    const int64_t n = i / p.units, j = i % p.units, row = rnn_row(&p, n, k);
    const bool first = k == 0;
    float s[4], h;
    for (int g = 0; g < p.info.gates; g++) s[g] = sum_x(w, row, g, j);
    if (p.mode == RNN_LSTM) {
        for (int g = 0; g < 4; g++) s[g] += sum_h(w, n, g, j, first);
        const LstmUnit u = lstm_unit(s[0], s[1], s[2], s[3], first ? 0.0f : w.l.c[i]);
        const float all[] = {u.i, u.f, u.g, u.o, u.c};
        for (int part = 0; part < 5; part++) save(w, row, part, j, all[part]);
        w.l.c[i] = u.c;
        h = u.h;
    } else if (p.mode == RNN_GRU) {
        const GruUnit u = gru_unit(s[0] + sum_h(w, n, 0, j, first), s[1] + sum_h(w, n, 1, j, first), s[2],
                                   sum_h(w, n, 2, j, first), first ? 0.0f : w.l.state[i]);
        const float all[] = {u.r, u.z, u.n, u.hn};
        for (int part = 0; part < 4; part++) save(w, row, part, j, all[part]);
        w.l.state[i] = h = u.h;
    } else {
        h = act_value(act_of(p.mode == RNN_TANH ? ACT_TANH : ACT_RELU), s[0] + sum_h(w, n, 0, j, first));
    }
    if (w.h.data != w.l.state) put(w.h, i, h);
    put(w.y, row * p.units + j, h);
}

static Elements in_type(void *data, DType t) {
    Elements e = {data, t};
    return e;
}

static unsigned cell_blocks(const RnnLayer *l) {
    return (unsigned)((l->p.samples * l->p.units + CELL_THREADS - 1) / CELL_THREADS);
}

int cuda_rnn_cells(const KArgs *a, const RnnLayer *l, int64_t k, Err *e) {
    Walk w = {};
    w.l = *l;
    w.h = in_type(l->h, a->rnn.x.dtype);
    w.b_ih = elements_of(&a->rnn.b_ih);
    w.b_hh = elements_of(&a->rnn.b_hh);
    w.y = elements_of(&a->rnn.y);
    w.saved = elements_of(&a->rnn.saved);
    return launch_op(a, e, cell_kernel, cell_blocks(l), CELL_THREADS, w, k);
}

/* ---- back */

static __device__ inline float saved_at(const Walk &w, int64_t row, int64_t part, int64_t j) {
    return at(w.saved, (row * w.l.p.info.saved + part) * w.l.p.units + j);
}

/* Only GRU's state has something that does not come through the product with w_hh, which is then added to it. */
static __global__ void back_kernel(Walk w, int64_t k) {
    const RnnPath &p = w.l.p;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.samples * p.units) return;
    const int64_t n = i / p.units, j = i % p.units, row = rnn_row(&p, n, k), before = k ? rnn_row(&p, n, k - 1) : 0;
    const bool last = k == p.steps - 1;
    const float dh = at(w.dy, row * p.units + j) + (last ? 0.0f : w.l.state[i]);
    float v[5], d[4];
    for (int part = 0; part < p.info.saved; part++) v[part] = saved_at(w, row, part, j);
    if (p.mode == RNN_LSTM) {
        const LstmUnit u = {v[0], v[1], v[2], v[3], v[4], 0.0f};
        const LstmSlope s = lstm_slope(u, k ? saved_at(w, before, 4, j) : 0.0f, dh, last ? 0.0f : w.l.c[i]);
        d[0] = s.i, d[1] = s.f, d[2] = s.g, d[3] = s.o;
        w.l.c[i] = s.c;
    } else if (p.mode == RNN_GRU) {
        const GruUnit u = {v[0], v[1], v[2], v[3], 0.0f};
        const GruSlope s = gru_slope(u, k ? at(w.y, before * p.units + j) : 0.0f, dh);
        d[0] = s.n, d[1] = s.r, d[2] = s.z, d[3] = s.hn;
        w.l.state[i] = s.h;
    } else {
        d[0] = dh * act_slope(act_of(p.mode == RNN_TANH ? ACT_TANH : ACT_RELU), at(w.y, row * p.units + j));
    }
    for (int part = 0; part < p.info.slopes; part++) put(w.slopes, row * w.l.width + part * p.units + j, d[part]);
}

static Walk walk_back(const KArgs *a, const RnnLayer *l) {
    Walk w = {};
    w.l = *l;
    w.slopes = in_type(l->slopes, a->rnn_dx.x.dtype);
    w.y = elements_of(&a->rnn_dx.y);
    w.saved = elements_of(&a->rnn_dx.saved);
    w.dy = elements_of(&a->rnn_dx.dy);
    return w;
}

int cuda_rnn_cells_back(const KArgs *a, const RnnLayer *l, int64_t k, Err *e) {
    return launch_op(a, e, back_kernel, cell_blocks(l), CELL_THREADS, walk_back(a, l), k);
}

static __global__ void clear_kernel(Walk w) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x, width = w.l.width;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.l.p.samples * width; i += stride)
        put(w.slopes, rnn_row(&w.l.p, i / width, 0) * width + i % width, 0.0f);
}

int cuda_rnn_clear_first(const KArgs *a, const RnnLayer *l, Err *e) {
    const unsigned blocks = blocks_for(a, l->p.samples * l->width, CELL_THREADS);
    return launch_op(a, e, clear_kernel, blocks, CELL_THREADS, walk_back(a, l));
}

/* The sum of each column of slopes goes to db_ih, to db_hh or to both: of GRU's columns, n r z hn, the first three are
 * w_ih's, whose rows are r z n, the last three w_hh's. ROW_THREADS threads share the rows; their sums are added up in order. */
static __global__ void sums_kernel(Walk w, Elements db_ih, Elements db_hh) {
    __shared__ float part[ROW_THREADS][COLUMNS];
    const RnnPath &p = w.l.p;
    const int64_t j = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, count = p.info.slopes * p.units, n = rnn_hidden(&p);
    float mine = 0.0f;
    for (int64_t row = threadIdx.y; j < count && row < p.rows; row += ROW_THREADS) mine += at(w.slopes, row * w.l.width + j);
    part[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y || j >= count) return;
    for (int r = 1; r < ROW_THREADS; r++) mine += part[r][threadIdx.x];
    if (j < p.gates) put(db_ih, j < n ? j + p.gates - n : j - n, mine);
    if (j >= n) put(db_hh, j - n, mine);
}

int cuda_rnn_bias_gradients(const KArgs *a, const RnnLayer *l, Err *e) {
    const unsigned blocks = (unsigned)((l->p.info.slopes * l->p.units + COLUMNS - 1) / COLUMNS);
    return launch_op(a, e, sums_kernel, blocks, dim3(COLUMNS, ROW_THREADS), walk_back(a, l), elements_of(&a->rnn_dx.db_ih),
                     elements_of(&a->rnn_dx.db_hh));
}
