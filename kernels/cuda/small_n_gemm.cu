/* small_n_gemm.cu: y (N, O) = x (N, I) w^T (O, I) and its gradients, O at most OUTPUTS. Each reads the large operand
 * once:
 *
 *   forward  a warp holds ROWS rows by O sums in registers and walks along I; at the end the lanes' sums are added up
 *   dx       a thread holds O by 8 of w and walks down N
 *   dw, db   a thread holds O by 4 sums and walks down N; db is the column of a thread whose x is 1
 *
 * dy is read from shared memory, as fp32. If there are too few walkers for long walks, walks are split, and bias_parts
 * sums up the parts. There are kernels for some O, for x, w and s of one type in whole 16-byte words with plain
 * activations; and one for everything else (ANY). */
#include "small_n_gemm.h"

#include "bias.h"
#include "lanes.h"
#include "launch.h"
#include "program/product.h"

/* SPLIT_BLOCKS: as COLUMN_BLOCKS of columns.h. CHUNK: columns that a warp takes per step of the forward pass */
enum { OUTPUTS = 16, ROWS = 4, WARPS = 8, BLOCK_ROWS = ROWS * WARPS, CHUNK = 8 * WARP, SPLIT_BLOCKS = 264 };
enum { DX_THREADS = 128, DX_ROWS = 16, DW_THREADS = 128, DW_ROWS = 64, DW_UNROLL = 8, ANY = DT_COUNT };

/* A matrix of rows of `columns` numbers; whole: each row is whole 16-byte words. */
typedef struct Matrix { void *at; DType type; bool whole; int64_t columns; } Matrix;

typedef struct SmallN {
    Matrix x, w, y; /* or their gradients */
    Matrix b, s;    /* b or db; the saved tensor; at NULL: absent */
    int64_t rows, inputs;
    int outputs;
    ActAttr act;
    int64_t part;   /* columns (forward) or rows (dw) of a part of a walk */
    Parts parts;    /* at NULL: there is one part, which goes to the output itself */
} SmallN;

/* v[N] = elements of a row from `column` on; zeros after the row's end. T: the type, or ANY */
template <int T, int N>
static __device__ void load(const Matrix &m, int64_t row, int64_t column, float *v) {
    const int64_t at = row * m.columns + column;
    if (T != ANY || (m.whole && column < m.columns)) lanes_load<N>(T == ANY ? m.type : (DType)T, m.at, at, v);
    else for (int n = 0; n < N; n++) v[n] = column + n < m.columns ? dtype_load(m.type, m.at, (size_t)(at + n)) : 0.0f;
}

template <int T, int N>
static __device__ void store(const Matrix &m, int64_t row, int64_t column, const float *v) {
    const int64_t at = row * m.columns + column;
    if (T != ANY || m.whole) lanes_store<N>(m.type, m.at, at, v);
    else for (int n = 0; n < N && column + n < m.columns; n++) dtype_store(m.type, m.at, (size_t)(at + n), v[n]);
}

/* x f'(s) */
template <int T> static __device__ float times_slope(const ActAttr &act, float x, float s) {
    return x * (T == ANY ? act_slope(act, s) : act_slope_plain(act, s));
}

/* ---- forward */

/* Two lanes that differ in `bit` have 2 HALF numbers each. Each keeps one half of their sum; *first: which */
template <int HALF> static __device__ void trade(float *v, int bit, int *first) {
    const bool upper = threadIdx.x & bit;
    for (int k = 0; k < HALF; k++) {
        const float mine = upper ? v[k + HALF] : v[k], other = upper ? v[k] : v[k + HALF];
        v[k] = mine + __shfl_xor_sync(0xffffffffu, other, bit);
    }
    *first += upper ? HALF : 0;
}

/* Sums up v[V] over the warp's lanes, V a multiple of 16. Lanes 2k and 2k + 1 get V / 16 of the sums, from *first on. */
template <int V> static __device__ void warp_sums(float *v, int *first) {
    *first = 0;
    trade<V / 2>(v, 16, first);
    trade<V / 4>(v, 8, first);
    trade<V / 8>(v, 4, first);
    trade<V / 16>(v, 2, first);
    for (int k = 0; k < V / 16; k++) v[k] += __shfl_xor_sync(0xffffffffu, v[k], 1);
}

static __device__ void put_sum(const SmallN &s, int64_t row, int o, float sum) {
    if (row >= s.rows || o >= s.outputs) return;
    const int64_t at = row * s.outputs + o;
    if (s.parts.at) {
        s.parts.at[blockIdx.y * s.parts.stride + at] = sum;
        return;
    }
    if (s.b.at) sum += dtype_load(s.b.type, s.b.at, (size_t)o);
    dtype_store(s.y.type, s.y.at, (size_t)at, act_value(s.act, sum));
}

/* blockIdx: (BLOCK_ROWS rows, part of the columns). After the last row and the last output these are read again; what
 * comes of it is thrown away. */
template <int O, int T>
static __global__ void __launch_bounds__(WARPS *WARP, 1) forward_kernel(const __grid_constant__ SmallN s) {
    const int lane = (int)threadIdx.x % WARP;
    const int64_t row = (int64_t)blockIdx.x * BLOCK_ROWS + threadIdx.x / WARP * ROWS;
    const int64_t begin = blockIdx.y * s.part, end = begin + s.part < s.inputs ? begin + s.part : s.inputs;
    float sums[ROWS * O], x[ROWS][8], w[8];
    for (int k = 0; k < ROWS * O; k++) sums[k] = 0.0f;
    for (int64_t column = begin + lane * 8; column < end; column += CHUNK) {
        for (int r = 0; r < ROWS; r++) load<T, 8>(s.x, row + r < s.rows ? row + r : s.rows - 1, column, x[r]);
        UNROLLED(O)
        for (int o = 0; o < O; o++) {
            load<T, 8>(s.w, o < s.outputs ? o : s.outputs - 1, column, w);
            for (int r = 0; r < ROWS; r++)
                for (int k = 0; k < 8; k++) sums[r * O + o] = fmaf(x[r][k], w[k], sums[r * O + o]);
        }
    }
    int first;
    warp_sums<ROWS * O>(sums, &first);
    if (lane % 2) return;
    UNROLLED(1) /* put_sum has the code of every activation: once is enough */
    for (int k = 0; k < ROWS * O / 16; k++) {
        put_sum(s, row + (first + k) / O, (first + k) % O, sums[0]);
        for (int i = 0; i < ROWS * O / 16 - 1; i++) sums[i] = sums[i + 1];
    }
}

/* ---- dy in shared memory: ROWS_HERE rows of O numbers, zeros after the last row and output */

template <int O, int ROWS_HERE, int THREADS>
static __device__ void dy_stage(const SmallN &s, int64_t row, int64_t end, float4 (*dy)[O / 4]) {
    for (int i = (int)threadIdx.x; i < ROWS_HERE * O; i += THREADS) {
        const int64_t r = row + i / O;
        const int o = i % O;
        const bool there = r < end && o < s.outputs;
        ((float *)dy)[i] = there ? dtype_load(s.y.type, s.y.at, (size_t)(r * s.outputs + o)) : 0.0f;
    }
    __syncthreads();
}

/* acc[n] += d[o] w[o][n] over the four outputs of a group */
template <int N> static __device__ void add4(float4 d, const float (*w)[N], float *acc) {
    for (int n = 0; n < N; n++)
        acc[n] = fmaf(d.w, w[3][n], fmaf(d.z, w[2][n], fmaf(d.y, w[1][n], fmaf(d.x, w[0][n], acc[n]))));
}

/* ---- gradient of the input: blockIdx: (DX_ROWS rows, 8 DX_THREADS columns) */

template <int O, int T>
static __global__ void __launch_bounds__(DX_THREADS, O > 12 ? 2 : 3) dx_kernel(const __grid_constant__ SmallN s) {
    __shared__ float4 dy[DX_ROWS][O / 4];
    const int64_t row = (int64_t)blockIdx.x * DX_ROWS, end = row + DX_ROWS < s.rows ? row + DX_ROWS : s.rows;
    const int64_t column = ((int64_t)blockIdx.y * DX_THREADS + threadIdx.x) * 8;
    float w[O][8];
    dy_stage<O, DX_ROWS, DX_THREADS>(s, row, end, dy);
    if (column >= s.inputs) return;
    for (int o = 0; o < O; o++) load<T, 8>(s.w, o < s.outputs ? o : s.outputs - 1, column, w[o]);
    UNROLLED(T == ANY ? 1 : 2)
    for (int r = 0; r < DX_ROWS; r++) {
        float dx[8], saved[8];
        if (row + r >= end) break;
        for (int k = 0; k < 8; k++) dx[k] = 0.0f;
        for (int q = 0; q < O / 4; q++) add4<8>(dy[r][q], &w[4 * q], dx);
        if (s.s.at) {
            load<T, 8>(s.s, row + r, column, saved);
            for (int k = 0; k < 8; k++) dx[k] = times_slope<T>(s.act, dx[k], saved[k]);
        }
        store<T, 8>(s.x, row + r, column, dx);
    }
}

/* ---- gradients of weights and bias: blockIdx: (4 DW_THREADS columns, a part of the rows) */

template <int O, int T>
static __global__ void __launch_bounds__(DW_THREADS) dw_kernel(const __grid_constant__ SmallN s) {
    __shared__ float4 dy[DW_ROWS][O / 4];
    const int64_t begin = blockIdx.y * s.part, end = begin + s.part < s.rows ? begin + s.part : s.rows;
    const int64_t column = ((int64_t)blockIdx.x * DW_THREADS + threadIdx.x) * 4;
    const bool of_bias = column >= s.inputs;
    float acc[O][4];
    for (int o = 0; o < O; o++) acc[o][0] = acc[o][1] = acc[o][2] = acc[o][3] = 0.0f;
    for (int64_t row = begin; row < end; row += DW_ROWS) {
        __syncthreads(); /* all threads are done with the rows before */
        dy_stage<O, DW_ROWS, DW_THREADS>(s, row, end, dy);
        const int here = end - row < DW_ROWS ? (int)(end - row) : (int)DW_ROWS;
        UNROLLED(DW_UNROLL)
        for (int r = 0; r < here; r++) {
            float x[4] = {1.0f, 0.0f, 0.0f, 0.0f};
            if (!of_bias) load<T, 4>(s.x, row + r, column, x);
            for (int q = 0; q < O / 4; q++) {
                const float4 d = dy[r][q];
                for (int n = 0; n < 4; n++) {
                    acc[4 * q][n] = fmaf(d.x, x[n], acc[4 * q][n]);
                    acc[4 * q + 1][n] = fmaf(d.y, x[n], acc[4 * q + 1][n]);
                    acc[4 * q + 2][n] = fmaf(d.z, x[n], acc[4 * q + 2][n]);
                    acc[4 * q + 3][n] = fmaf(d.w, x[n], acc[4 * q + 3][n]);
                }
            }
        }
    }
    float *partial = s.parts.at ? s.parts.at + blockIdx.y * s.parts.stride : NULL; /* (O, I), then (O) */
    const Matrix dw = partial ? Matrix{partial, DT_F32, s.w.whole, s.inputs} : s.w;
    const bool writes = !of_bias || (s.b.at && column < s.inputs + 4);
    UNROLLED(O)
    for (int o = 0; o < O; o++) {
        if (!writes || o >= s.outputs) break;
        if (!of_bias) store<T, 4>(dw, o, column, acc[o]);
        else if (partial) partial[s.outputs * s.inputs + o] = acc[o][0];
        else dtype_store(s.b.type, s.b.at, (size_t)o, acc[o][0]);
    }
}

/* ---- how the work is split */

extern "C" bool cuda_small_n_fits(const View *w) { return w->shape.dim[0] <= OUTPUTS; }

static Matrix matrix_of(const View *v, int64_t columns) {
    const bool whole = lanes_fit<4>(v->data, v->dtype, columns) && lanes_fit<8>(v->data, v->dtype, columns);
    const Matrix m = {v->data, v->dtype, whole, columns};
    return m;
}

/* The op's operands, and its walks in as many parts as `bytes` have room for. */
static SmallN small_n_of(const KArgs *a, size_t bytes) {
    const bool forward = a->kind == OP_linear, dx = a->kind == OP_linear_dx;
    const ProductOperands p = product_operands(a);
    const View *b = forward ? &a->linear.b : &a->linear_dx.db;
    assert(p.w->shape.rank == 2 && cuda_small_n_fits(p.w) && p.x->count % p.w->shape.dim[1] == 0);
    assert(p.y->count == p.x->count / p.w->shape.dim[1] * p.w->shape.dim[0]);
    SmallN s = {};
    s.inputs = p.w->shape.dim[1];
    s.outputs = (int)p.w->shape.dim[0];
    s.rows = p.x->count / s.inputs;
    s.x = matrix_of(p.x, s.inputs);
    s.w = matrix_of(p.w, s.inputs);
    s.y = matrix_of(p.y, s.outputs);
    s.b = matrix_of(b, b->count);
    if (dx) s.s = matrix_of(&a->linear_dx.s, s.inputs);
    s.act = a->attr->linear.fused;
    /* forward: parts of the columns; dw: of the rows */
    const int64_t sums = s.outputs * s.inputs + (b->count ? s.outputs : 0);
    const int64_t others = forward ? (s.rows + BLOCK_ROWS - 1) / BLOCK_ROWS
                                   : (s.inputs / 4 + DW_THREADS) / DW_THREADS; /* blocks of a part */
    const int64_t length = forward ? s.inputs : s.rows, step = forward ? (int)CHUNK : (int)DW_ROWS;
    s.parts.count = forward ? s.rows * s.outputs : sums;
    s.parts.stride = (s.parts.count + 3) / 4 * 4; /* whole 16-byte words */
    int64_t parts = min_i64(SPLIT_BLOCKS / others, (length + step - 1) / step);
    parts = min_i64(parts, (int64_t)(bytes / sizeof(float)) / s.parts.stride);
    if (dx || parts < 2) parts = 1;
    s.part = ((length + parts - 1) / parts + step - 1) / step * step;
    s.parts.parts = (int)((length + s.part - 1) / s.part);
    if (s.parts.parts > 1) s.parts.at = (float *)a->workspace;
    return s;
}

extern "C" size_t cuda_small_n_workspace(const KArgs *a, size_t limit) {
    const View *dx = &a->linear_dx.dx, *db = &a->linear_dx.db;
    if (a->kind == OP_linear_dx) return db->count ? bias_workspace(dx->count / db->count, db->count, limit) : 0;
    const SmallN s = small_n_of(a, limit);
    return s.parts.parts > 1 ? (size_t)s.parts.parts * (size_t)s.parts.stride * sizeof(float) : 0;
}

/* ---- launches */

typedef void SmallNKernel(SmallN s);
enum { TYPES = 3, WIDTHS = 3 };
typedef struct Kernels { SmallNKernel *of[TYPES][WIDTHS], *any; } Kernels;
static const int widths[WIDTHS] = {4, 12, OUTPUTS}; /* the kernels' O; 12 is for ten classes, the most common case */
#define WIDTHS_OF(kernel, T) {kernel<4, T>, kernel<12, T>, kernel<OUTPUTS, T>}
#define KERNELS(kernel) \
    {{WIDTHS_OF(kernel, DT_F32), WIDTHS_OF(kernel, DT_BF16), WIDTHS_OF(kernel, DT_F16)}, kernel<OUTPUTS, ANY>}
static const Kernels forwards = KERNELS(forward_kernel), dxs = KERNELS(dx_kernel), dws = KERNELS(dw_kernel);

/* The kernel for m's type, or the one for everything. m and `other`, which may be absent, are read. */
static SmallNKernel *pick(const SmallN &s, const Kernels &kernels, const Matrix &m, const Matrix &other,
                          const Matrix &written) {
    const bool one = m.whole && written.whole && (!other.at || (other.whole && other.type == m.type));
    if (!one || (s.s.at && !act_is_plain((ActFn)s.act.act))) return kernels.any;
    int width = 0;
    while (s.outputs > widths[width]) width++;
    return kernels.of[m.type][width];
}

extern "C" int cuda_small_n_forward(const KArgs *a, Err *e) {
    const SmallN s = small_n_of(a, a->workspace_bytes);
    const dim3 grid((unsigned)((s.rows + BLOCK_ROWS - 1) / BLOCK_ROWS), (unsigned)s.parts.parts);
    SmallNKernel *kernel = pick(s, forwards, s.x, s.w, s.x);
    const int code = launch_op(a, e, kernel, grid, dim3(WARPS * WARP), s);
    return code || !s.parts.at ? code : bias_parts(a, &s.parts, &a->linear.b, s.act, &a->linear.y, e);
}

extern "C" int cuda_small_n_dx(const KArgs *a, Err *e) {
    const SmallN s = small_n_of(a, 0);
    const int64_t across = (s.inputs + 8 * DX_THREADS - 1) / (8 * DX_THREADS);
    const dim3 grid((unsigned)((s.rows + DX_ROWS - 1) / DX_ROWS), (unsigned)across);
    SmallNKernel *kernel = pick(s, dxs, s.w, s.s, s.x);
    const int code = launch_op(a, e, kernel, grid, dim3(DX_THREADS), s);
    if (code || !a->linear_dx.db.count) return code;
    return bias_sum(a, &a->linear_dx.dx, &a->linear_dx.db, a->workspace, a->workspace_bytes, e);
}

extern "C" int cuda_small_n_dw(const KArgs *a, Err *e) {
    const SmallN s = small_n_of(a, a->workspace_bytes);
    const int64_t threads = (s.inputs + 3) / 4 + (s.b.at ? 1 : 0);
    const dim3 grid((unsigned)((threads + DW_THREADS - 1) / DW_THREADS), (unsigned)s.parts.parts);
    int code = launch_op(a, e, pick(s, dws, s.x, s.s, s.w), grid, dim3(DW_THREADS), s);
    if (code || !s.parts.at) return code;
    Parts dw = s.parts, db = s.parts;
    dw.count = s.outputs * s.inputs;
    db.count = s.outputs;
    db.at += dw.count;
    code = bias_parts(a, &dw, NULL, ActAttr(), &a->linear_dw.dw, e);
    return code || !s.b.at ? code : bias_parts(a, &db, NULL, ActAttr(), &a->linear_dw.db, e);
}
