/* recurrent.cu: a layer of RNN, LSTM or GRU in one direction, and its gradients, by the formulas of
 * core/math/rnn_cells.h: products over all steps; and for each step one product with w_hh and one kernel with a thread per
 * sample and unit. Sums, states and gradients of sums are fp32 in the workspace, whatever type the operands have. */
#include "elements.h"
#include "program/rnn_layout.h"

/* DEPTH: terms of a sum that are loaded at once. COLUMNS, ROW_THREADS: of columns_kernel's blocks */
enum { TILE = 16, DEPTH = 64, CELL_THREADS = 256, COLUMNS = 32, ROW_THREADS = 8 };

/* ---- c (m, n) = a (m, k) b (k, n): one thread per element of c, tiles in shared memory */

/* Element (i, j) is x[at + i row + j column]. */
typedef struct Matrix { Elements x; int64_t at, row, column; } Matrix;

/* add: c += a b. skip: b's rows begin with row `skip`; the first rows come last. */
typedef struct Product { Matrix c, a, b; int64_t m, n, k, skip; bool add; } Product;

static Matrix matrix(Elements x, int64_t at, int64_t stride) {
    Matrix m = {x, at, stride, 1};
    return m;
}

static Matrix transposed(Elements x, int64_t at, int64_t stride) {
    Matrix m = {x, at, 1, stride};
    return m;
}

static __device__ inline float element(const Matrix &m, int64_t i, int64_t j) {
    return dtype_load(m.x.type, m.x.data, (size_t)(m.at + i * m.row + j * m.column));
}

static __global__ void product_kernel(Product p) {
    __shared__ float of_a[TILE][DEPTH + 1], of_b[DEPTH][TILE + 1];
    const int y = (int)threadIdx.y, x = (int)threadIdx.x;
    const int64_t i = (int64_t)blockIdx.x * TILE + y, j = (int64_t)blockIdx.y * TILE + x;
    float sum = 0.0f;
    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
        UNROLLED(DEPTH / TILE)
        for (int t = 0; t < DEPTH; t += TILE) {
            const int64_t column = k0 + t + x, k = k0 + t + y, row = k + p.skip;
            of_a[y][t + x] = i < p.m && column < p.k ? element(p.a, i, column) : 0.0f;
            of_b[t + y][x] = j < p.n && k < p.k ? element(p.b, row < p.k ? row : row - p.k, j) : 0.0f;
        }
        __syncthreads();
        for (int t = 0; t < DEPTH; t++) sum = fmaf(of_a[y][t], of_b[t][x], sum);
        __syncthreads();
    }
    if (i >= p.m || j >= p.n) return;
    if (p.add) sum += element(p.c, i, j);
    dtype_store(p.c.x.type, p.c.x.data, (size_t)(p.c.at + i * p.c.row + j * p.c.column), sum);
}

static int product_run(const KArgs *op, Err *e, const Product &p) {
    assert(p.m > 0 && p.n > 0 && p.k >= 0 && p.skip >= 0 && p.skip <= p.k);
    dim3 grid((unsigned)((p.m + TILE - 1) / TILE), (unsigned)((p.n + TILE - 1) / TILE)), block(TILE, TILE);
    return launch_op(op, e, product_kernel, grid, block, p);
}

static int product(const KArgs *op, Err *e, Matrix c, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k) {
    Product p = {c, a, b, m, n, k, 0, false};
    return product_run(op, e, p);
}

/* ---- the layer */

typedef struct Walk {
    RnnPath p;
    Elements x, w_ih, w_hh, b_ih, b_hh, y, saved, dy;
    float *h, *c;                  /* (samples, units): state, or its gradient */
    float *from_x, *from_h;        /* sums: (rows, gates), (samples, gates) */
    float *slopes;                 /* (rows, info.slopes units), gradients of sums */
} Walk;

static Walk walk_of(const KArgs *a, const View *x, const View *y) {
    assert(a->attr->rnn.mode < RNN_MODES && x->shape.rank == 3 && y->shape.rank == 3);
    assert(x->shape.dim[0] == y->shape.dim[0] && x->shape.dim[1] == y->shape.dim[1]);
    Walk w = {};
    w.p = rnn_path(a, x, y);
    w.x = elements_of(x);
    w.y = elements_of(y);
    return w;
}

static Elements floats(float *at) {
    Elements e = {at, DT_F32};
    return e;
}

/* An absent operand reads as zeros, and what is stored to it is dropped. */
static __device__ inline float at(Elements x, int64_t i) { return x.data ? element_at(x, i) : 0.0f; }
static __device__ inline void put(Elements x, int64_t i, float v) {
    if (x.data) dtype_store(x.type, x.data, (size_t)i, v);
}

/* The next `count` floats of the workspace, NULL if there is none; *used counts all. */
static float *take(const KArgs *a, size_t *used, int64_t count) {
    float *p = a->workspace ? (float *)a->workspace + *used : NULL;
    *used += (size_t)count;
    return p;
}

static int prepared(size_t floats_used, void **state, size_t *workspace) {
    *state = NULL;
    *workspace = floats_used * sizeof(float);
    return OK;
}

static int check(const KArgs *a, size_t floats_used, Err *e) {
    if (a->workspace_bytes >= floats_used * sizeof(float)) return OK;
    return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", floats_used * sizeof(float),
                   a->workspace_bytes);
}

/* ---- forward */

/* Gate g of unit j: its sum from x; its sum from h, which is 0 in the first step */
static __device__ inline float sum_x(const Walk &w, int64_t row, int64_t g, int64_t j) {
    return w.from_x[row * w.p.gates + g * w.p.units + j] + at(w.b_ih, g * w.p.units + j);
}
static __device__ inline float sum_h(const Walk &w, int64_t n, int64_t g, int64_t j, bool first) {
    return (first ? 0.0f : w.from_h[n * w.p.gates + g * w.p.units + j]) + at(w.b_hh, g * w.p.units + j);
}

static __device__ inline void save(const Walk &w, int64_t row, int64_t part, int64_t j, float v) {
    put(w.saved, (row * w.p.info.saved + part) * w.p.units + j, v);
}

static __global__ void cell_kernel(Walk w, int64_t k) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.p.samples * w.p.units) return;
    const int64_t n = i / w.p.units, j = i % w.p.units, row = rnn_row(&w.p, n, k);
    const bool first = k == 0;
    float s[4], before = first ? 0.0f : w.h[i], h;
    for (int g = 0; g < w.p.info.gates; g++) s[g] = sum_x(w, row, g, j);
    if (w.p.mode == RNN_LSTM) {
        for (int g = 0; g < 4; g++) s[g] += sum_h(w, n, g, j, first);
        const LstmUnit u = lstm_unit(s[0], s[1], s[2], s[3], first ? 0.0f : w.c[i]);
        const float all[] = {u.i, u.f, u.g, u.o, u.c};
        for (int p = 0; p < 5; p++) save(w, row, p, j, all[p]);
        w.c[i] = u.c;
        h = u.h;
    } else if (w.p.mode == RNN_GRU) {
        const GruUnit u = gru_unit(s[0] + sum_h(w, n, 0, j, first), s[1] + sum_h(w, n, 1, j, first), s[2],
                                   sum_h(w, n, 2, j, first), before);
        const float all[] = {u.r, u.z, u.n, u.hn};
        for (int p = 0; p < 4; p++) save(w, row, p, j, all[p]);
        h = u.h;
    } else {
        h = act_value(act_of(w.p.mode == RNN_TANH ? ACT_TANH : ACT_RELU), s[0] + sum_h(w, n, 0, j, first));
    }
    w.h[i] = h;
    put(w.y, row * w.p.units + j, h);
}

static unsigned cell_blocks(const Walk &w) {
    return (unsigned)((w.p.samples * w.p.units + CELL_THREADS - 1) / CELL_THREADS);
}

static Walk forward_open(const KArgs *a, size_t *used) {
    Walk w = walk_of(a, &a->rnn.x, &a->rnn.y);
    w.w_ih = elements_of(&a->rnn.w_ih);
    w.w_hh = elements_of(&a->rnn.w_hh);
    w.b_ih = elements_of(&a->rnn.b_ih);
    w.b_hh = elements_of(&a->rnn.b_hh);
    w.saved = elements_of(&a->rnn.saved);
    w.from_x = take(a, used, w.p.rows * w.p.gates);
    w.from_h = take(a, used, w.p.samples * w.p.gates);
    w.h = take(a, used, w.p.samples * w.p.units);
    w.c = take(a, used, w.p.samples * w.p.units);
    return w;
}

int k_cuda_rnn_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    size_t used = 0;
    forward_open(a, &used);
    return prepared(used, state, workspace);
}

int k_cuda_rnn(const KArgs *a, Err *e) {
    size_t used = 0;
    const Walk w = forward_open(a, &used);
    int code = check(a, used, e);
    if (!code)
        code = product(a, e, matrix(floats(w.from_x), 0, w.p.gates), matrix(w.x, 0, w.p.inputs),
                       transposed(w.w_ih, 0, w.p.inputs), w.p.rows, w.p.gates, w.p.inputs);
    for (int64_t k = 0; k < w.p.steps && !code; k++) {
        if (k)
            code = product(a, e, matrix(floats(w.from_h), 0, w.p.gates), matrix(floats(w.h), 0, w.p.units),
                           transposed(w.w_hh, 0, w.p.units), w.p.samples, w.p.gates, w.p.units);
        if (!code) code = launch_op(a, e, cell_kernel, cell_blocks(w), CELL_THREADS, w, k);
    }
    return code;
}

/* ---- back */

static __device__ inline float saved_at(const Walk &w, int64_t row, int64_t part, int64_t j) {
    return at(w.saved, (row * w.p.info.saved + part) * w.p.units + j);
}

static __global__ void back_kernel(Walk w, int64_t k) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.p.samples * w.p.units) return;
    const int64_t n = i / w.p.units, j = i % w.p.units;
    const int64_t row = rnn_row(&w.p, n, k), before = k ? rnn_row(&w.p, n, k - 1) : 0;
    const bool last = k == w.p.steps - 1;
    float dh = at(w.dy, row * w.p.units + j) + (last ? 0.0f : w.h[i]), through = 0.0f, v[5], d[4];
    for (int p = 0; p < w.p.info.saved; p++) v[p] = saved_at(w, row, p, j);
    if (w.p.mode == RNN_LSTM) {
        const LstmUnit u = {v[0], v[1], v[2], v[3], v[4], 0.0f};
        const LstmSlope s = lstm_slope(u, k ? saved_at(w, before, 4, j) : 0.0f, dh, last ? 0.0f : w.c[i]);
        d[0] = s.i, d[1] = s.f, d[2] = s.g, d[3] = s.o;
        w.c[i] = s.c;
    } else if (w.p.mode == RNN_GRU) {
        const GruUnit u = {v[0], v[1], v[2], v[3], 0.0f};
        const GruSlope s = gru_slope(u, k ? at(w.y, before * w.p.units + j) : 0.0f, dh);
        d[0] = s.n, d[1] = s.r, d[2] = s.z, d[3] = s.hn;
        through = s.h;
    } else {
        d[0] = dh * act_slope(act_of(w.p.mode == RNN_TANH ? ACT_TANH : ACT_RELU), at(w.y, row * w.p.units + j));
    }
    for (int p = 0; p < w.p.info.slopes; p++) w.slopes[(row * w.p.info.slopes + p) * w.p.units + j] = d[p];
    w.h[i] = through;
}

/* Clears the slopes of the first step: see hidden_gradients. */
static __global__ void clear_kernel(Walk w) {
    const int64_t width = w.p.info.slopes * w.p.units, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.p.samples * width; i += stride)
        w.slopes[rnn_row(&w.p, i / width, 0) * width + i % width] = 0.0f;
}

/* sum[j] = the sum of column `column` + j of slopes. ROW_THREADS threads share the rows; their sums are added up in
 * order. */
static __global__ void columns_kernel(Walk w, int64_t column, int64_t count, Elements sum) {
    __shared__ float part[ROW_THREADS][COLUMNS];
    const int64_t j = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, width = w.p.info.slopes * w.p.units;
    float mine = 0.0f;
    for (int64_t row = threadIdx.y; j < count && row < w.p.rows; row += ROW_THREADS)
        mine += w.slopes[row * width + column + j];
    part[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y || j >= count) return;
    for (int r = 1; r < ROW_THREADS; r++) mine += part[r][threadIdx.x];
    put(sum, j, mine);
}

static int sum_rows(const KArgs *a, Err *e, const Walk &w, const View *sum, int64_t row, int64_t column,
                    int64_t count) {
    Elements to = {(char *)sum->data + (size_t)row * dtype_size(sum->dtype), sum->dtype};
    return launch_op(a, e, columns_kernel, (unsigned)((count + COLUMNS - 1) / COLUMNS), dim3(COLUMNS, ROW_THREADS), w,
                     column, count, to);
}

/* Columns [column, column + count) of slopes belong to w_ih's rows [row, row + count). */
static int input_gradients(const KArgs *a, Err *e, const Walk &w, int64_t column, int64_t row, int64_t count) {
    const View *dw = &a->rnn_dx.dw_ih, *db = &a->rnn_dx.db_ih;
    const int64_t width = w.p.info.slopes * w.p.units, in = w.p.inputs;
    int code = db->count ? sum_rows(a, e, w, db, row, column, count) : OK;
    if (code || !dw->count) return code;
    return product(a, e, matrix(elements_of(dw), row * in, in), transposed(floats(w.slopes), column, width),
                   matrix(w.x, 0, in), count, in, w.p.rows);
}

/* GRU's slopes begin with those of w_ih's last rows: b is read from there on. */
static int data_gradient(const KArgs *a, Err *e, const Walk &w) {
    const View *dx = &a->rnn_dx.dx;
    const int64_t skip = w.p.mode == RNN_GRU ? 2 * w.p.units : 0;
    Product p = {matrix(elements_of(dx), 0, w.p.inputs), matrix(floats(w.slopes), 0, w.p.info.slopes * w.p.units),
                 matrix(w.w_ih, 0, w.p.inputs), w.p.rows, w.p.inputs, w.p.gates, skip, false};
    return dx->count ? product_run(a, e, p) : OK;
}

/* The gradient of w_hh: each row of slopes is multiplied by the row of y of the step before. The walk's first step has
 * no step before: its slopes, which nothing needs any more, become zero, so that all rows have their partners at the
 * same distance. */
static int hidden_gradients(const KArgs *a, Err *e, const Walk &w, int64_t column) {
    const View *dw = &a->rnn_dx.dw_hh, *db = &a->rnn_dx.db_hh;
    const int64_t width = w.p.info.slopes * w.p.units, u = w.p.units;
    int code = db->count ? sum_rows(a, e, w, db, 0, column, w.p.gates) : OK;
    if (code || !dw->count) return code;
    code = launch_op(a, e, clear_kernel, blocks_for(a, w.p.samples * width, CELL_THREADS), CELL_THREADS, w);
    if (code) return code;
    return product(a, e, matrix(elements_of(dw), 0, u),
                   transposed(floats(w.slopes), column + (w.p.reverse ? 0 : w.p.step * width), width),
                   matrix(w.y, w.p.reverse ? w.p.step * u : 0, u), w.p.gates, u, w.p.rows - w.p.step);
}

static Walk back_open(const KArgs *a, size_t *used) {
    Walk w = walk_of(a, &a->rnn_dx.x, &a->rnn_dx.y);
    w.dy = elements_of(&a->rnn_dx.dy);
    w.w_ih = elements_of(&a->rnn_dx.w_ih);
    w.w_hh = elements_of(&a->rnn_dx.w_hh);
    w.saved = elements_of(&a->rnn_dx.saved);
    w.slopes = take(a, used, w.p.rows * w.p.info.slopes * w.p.units);
    w.h = take(a, used, w.p.samples * w.p.units);
    w.c = take(a, used, w.p.samples * w.p.units);
    return w;
}

int k_cuda_rnn_dx_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    size_t used = 0;
    back_open(a, &used);
    return prepared(used, state, workspace);
}

static int walk_back(const KArgs *a, Err *e, const Walk &w, int64_t column) {
    const int64_t u = w.p.units, width = w.p.info.slopes * u;
    int code = OK;
    for (int64_t k = w.p.steps - 1; k >= 0 && !code; k--) {
        Product dh = {matrix(floats(w.h), 0, u),
                      matrix(floats(w.slopes), rnn_row(&w.p, 0, k) * width + column, w.p.sample * width),
                      matrix(w.w_hh, 0, u), w.p.samples, u, w.p.gates, 0, true};
        code = launch_op(a, e, back_kernel, cell_blocks(w), CELL_THREADS, w, k);
        if (k && !code) code = product_run(a, e, dh);
    }
    return code;
}

int k_cuda_rnn_dx(const KArgs *a, Err *e) {
    size_t used = 0;
    const Walk w = back_open(a, &used);
    const bool gru = w.p.mode == RNN_GRU;
    const int64_t u = w.p.units, column = rnn_hidden(&w.p);
    int code = check(a, used, e);
    if (!code) code = walk_back(a, e, w, column);
    if (!code) code = input_gradients(a, e, w, column, 0, gru ? 2 * u : w.p.gates);
    if (!code && gru) code = input_gradients(a, e, w, 0, 2 * u, u);
    if (!code) code = data_gradient(a, e, w);
    return code ? code : hidden_gradients(a, e, w, column);
}
