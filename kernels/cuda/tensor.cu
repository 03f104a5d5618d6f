/* tensor.cu: arithmetic of operands that are broadcast, reductions along dimensions and their gradients, triangles
 * (core/math/tensor.h). Where much is reduced into an element, a block does it, else a thread. */
#include "sums.h"

enum { MUCH = 128 }; /* terms of a sum that are worth a block */

/* ---- y = f(a, b). y is seen in rows of n elements, `rows` of which lie below each other in a plane. A thread has N neighbours of a
 *      row and goes down its plane: what an operand repeats from row to row is loaded once. A block is `across` threads along a row
 *      and `down` below each other, on as many planes as it has room for; blockIdx.y: a part of the rows. */

struct Binary {
    Strided planes;       /* of operands, as the next two */
    StridedRow rows, line;
    Elements x[2], y;
    BinaryFn f;
    bool whole;           /* pieces lie in words */
    int across, down;
    int64_t count, pieces; /* planes; blocks along a row */
};

/* DOWN_ROWS: that a thread has at least, where there are so many. DOWN_FLIGHT: whose loads are under way together */
enum { DOWN_ROWS = 8, DOWN_FLIGHT = 4, DOWN_BLOCKS = 16 /* per processor */ };

/* N elements of operand k from `at` on, or one for all of them */
template <int N> static __device__ inline void binary_load(const Binary &b, int k, int64_t at, float *x) {
    if (N > 1 && b.line.step[k]) lanes_load<N>(b.x[k].type, b.x[k].data, at, x);
    else
        for (int n = 0; n < N; n++) x[n] = n ? x[0] : element_at(b.x[k], at);
}

/* The operands may lie anywhere, and a may be y. */
template <int N> static __global__ void __launch_bounds__(ELEMENT_THREADS) binary_kernel(const __grid_constant__ Binary b) {
    const int of_plane = b.across * b.down, thread = (int)threadIdx.x;
    const int64_t plane = blockIdx.x / b.pieces * (int)(blockDim.x / of_plane) + thread / of_plane;
    const int64_t column = (blockIdx.x % b.pieces * b.across + thread % b.across) * N;
    const int64_t part = (b.rows.n + gridDim.y - 1) / gridDim.y, begin = part * blockIdx.y;
    const int64_t end = begin + part < b.rows.n ? begin + part : b.rows.n;
    const StridedAt none = {{0}};
    if (plane >= b.count || column >= b.line.n) return;
    const StridedAt from = strided_at(&b.planes, plane, none);
    float kept[2][N];
    for (int k = 0; k < 2; k++)
        if (!b.rows.step[k]) binary_load<N>(b, k, from.at[k] + column * b.line.step[k], kept[k]);
    for (int64_t row = begin + thread / b.across % b.down; row < end; row += DOWN_FLIGHT * b.down) {
        float x[DOWN_FLIGHT][2][N];
        UNROLLED(DOWN_FLIGHT)
        for (int r = 0; r < DOWN_FLIGHT; r++)
            for (int k = 0; k < 2; k++) {
                const int64_t at = row + r * b.down;
                if (!b.rows.step[k])
                    for (int n = 0; n < N; n++) x[r][k][n] = kept[k][n];
                else if (at < end) binary_load<N>(b, k, from.at[k] + at * b.rows.step[k] + column * b.line.step[k], x[r][k]);
            }
        UNROLLED(DOWN_FLIGHT)
        for (int r = 0; r < DOWN_FLIGHT; r++) {
            const int64_t at = row + r * b.down;
            float result[N];
            if (at >= end) continue;
            for (int n = 0; n < N; n++) result[n] = binary_value(b.f, x[r][0][n], x[r][1][n]);
            lanes_store<N>(b.y.type, b.y.data, (plane * b.rows.n + at) * b.line.n + column, result);
        }
    }
}

/* Of operands of one shape */
struct BinaryOf {
    enum { INPUTS = 2 };
    BinaryFn f;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = binary_value(f, x[0][i], x[1][i]);
    }
};

/* May pieces of a row be quads? Each operand goes along with y in a row, or stays, and rows have whole quads. */
static bool quads_fit(const Binary &b) {
    bool fit = b.line.n % QUAD == 0 && elements_aligned(b.y);
    for (int k = 0; k < 2 && fit; k++) {
        if (b.line.step[k] == 0) continue;
        fit = b.line.step[k] == 1 && elements_aligned(b.x[k]) && b.rows.step[k] % QUAD == 0;
        for (int d = 0; d < b.planes.rank; d++) fit = fit && b.planes.step[k][d] % QUAD == 0;
    }
    return fit;
}

/* whole: y's shape; of: the operands' */
static int binary_run(const KArgs *a, Err *e, const Shape *whole, const Shape *const of[2], const View *one, const View *two,
                      const View *y, BinaryFn f) {
    Binary b = {strided_of(whole, of, 2), {}, {}, {elements_of(one), elements_of(two)}, elements_of(y), f, false, 0, 0, 0, 0};
    if (one->count == y->count && two->count == y->count)
        return elements_run(a, e, BinaryOf{f}, ElementsOf<2>{{b.x[0], b.x[1]}});
    b.line = strided_take_row(&b.planes);
    b.rows = strided_take_row(&b.planes);
    b.count = strided_count(&b.planes);
    const int N = quads_fit(b) ? QUAD : 1;
    const int64_t along = b.line.n / N; /* threads */
    b.pieces = (along + ELEMENT_THREADS - 1) / ELEMENT_THREADS;
    b.across = (int)((along + b.pieces - 1) / b.pieces);
    b.down = (int)min_i64(ELEMENT_THREADS / b.across, (b.rows.n + DOWN_ROWS - 1) / DOWN_ROWS);
    const int64_t planes = ELEMENT_THREADS / (b.across * b.down), blocks = (b.count + planes - 1) / planes * b.pieces;
    const int64_t parts = min_i64((b.rows.n + b.down * DOWN_ROWS - 1) / (b.down * DOWN_ROWS),
                                  (int64_t)cuda_of(a)->model.processors * DOWN_BLOCKS / blocks + 1);
    const dim3 grid((unsigned)blocks, (unsigned)parts);
    assert(operand_is_float(y) && blocks <= GRID_MAX_X);
    return launch_op(a, e, N > 1 ? binary_kernel<QUAD> : binary_kernel<1>, grid, (unsigned)(b.across * b.down * planes), b);
}

int k_cuda_binary(const KArgs *a, Err *e) {
    const Shape *const of[] = {&a->binary.a.shape, &a->binary.b.shape};
    return binary_run(a, e, &a->binary.y.shape, of, &a->binary.a, &a->binary.b, &a->binary.y, a->attr->binary.f);
}

/* x s or x + s, where s is broadcast over a run of dimensions in the order of memory */
int k_cuda_broadcast(const KArgs *a, Err *e) {
    const View *x = &a->broadcast.x, *s = &a->broadcast.s;
    Broadcast r;
    const bool fits = broadcast_read(&x->shape, &s->shape, x->channels_last != 0, &r);
    const Shape whole = shape3(r.outer, r.run, r.inner), part = shape3(r.outer, 1, r.inner), *const of[] = {&whole, &part};
    assert(fits && x->count == a->broadcast.y.count && operand_is_float(s));
    return (void)fits, binary_run(a, e, &whole, of, x, s, &a->broadcast.y, a->attr->broadcast.add ? BINARY_ADD : BINARY_MUL);
}

/* ---- sums and maxima */

struct Fold {
    Strided kept, reduced; /* operands: what is read, the two of a binary op, what is made */
    Elements x, a, b, y;
    int64_t count, terms;
    BinaryAttr binary;
    int max, slopes;
    ReduceFn fn;
    double factor;
};

static __device__ inline float fold_term(const Fold &f, StridedAt from, int64_t r) {
    const StridedAt at = strided_at(&f.reduced, r, from);
    const float x = element_at(f.x, at.at[0]);
    if (!f.slopes) return reduce_term(f.fn, x);
    return x * binary_slope(f.binary.f, f.binary.second != 0, f.a.data ? element_at(f.a, at.at[1]) : 0.0f,
                            f.b.data ? element_at(f.b, at.at[2]) : 0.0f);
}

static __global__ void fold_threads(const __grid_constant__ Fold f) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < f.count; i += stride) {
        const StridedAt none = {{0}}, from = strided_at(&f.kept, i, none);
        double sum = 0;
        float most = -INFINITY;
        for (int64_t r = 0; r < f.terms; r++) {
            const float x = fold_term(f, from, r);
            sum += (double)x;
            most = reduce_larger(most, x);
        }
        dtype_store(f.y.type, f.y.data, (size_t)from.at[3], f.max ? most : reduce_result(f.fn, sum * f.factor));
    }
}

static __device__ inline float block_largest(float x) {
    __shared__ float of_thread[ELEMENT_THREADS];
    __syncthreads(); /* an earlier one may still be read */
    of_thread[threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < ELEMENT_THREADS; i++) x = reduce_larger(x, of_thread[i]);
    return x; /* of thread 0 */
}

static __global__ void fold_blocks(const __grid_constant__ Fold f) {
    for (int64_t i = blockIdx.x; i < f.count; i += gridDim.x) {
        const StridedAt none = {{0}}, from = strided_at(&f.kept, i, none);
        double sum = 0;
        float most = -INFINITY;
        for (int64_t r = threadIdx.x; r < f.terms; r += ELEMENT_THREADS) {
            const float x = fold_term(f, from, r);
            sum += (double)x;
            most = reduce_larger(most, x);
        }
        if (f.max) most = block_largest(most);
        else sum = block_sum(sum);
        if (threadIdx.x == 0)
            dtype_store(f.y.type, f.y.data, (size_t)from.at[3], f.max ? most : reduce_result(f.fn, sum * f.factor));
    }
}

/* Where neighbouring elements of y are made of neighbours: a block has a warp of them, and its warps take turns at the terms. */
enum { FOLD_WARPS = 32, FOLD_BLOCKS = 2 /* per processor, which has room for no more */ };
static __global__ void __launch_bounds__(FOLD_WARPS * WARP) fold_columns(const __grid_constant__ Fold f) {
    __shared__ double of_warp[FOLD_WARPS][WARP];
    for (int64_t first = (int64_t)blockIdx.x * WARP; first < f.count; first += (int64_t)gridDim.x * WARP) {
        const int64_t i = first + threadIdx.x;
        const StridedAt none = {{0}}, from = strided_at(&f.kept, i < f.count ? i : 0, none);
        double sum = 0;
        float most = -INFINITY;
        UNROLLED(4)
        for (int64_t r = threadIdx.y; r < f.terms; r += FOLD_WARPS) {
            const float x = i < f.count ? fold_term(f, from, r) : 0;
            sum += (double)x;
            most = reduce_larger(most, x);
        }
        of_warp[threadIdx.y][threadIdx.x] = f.max ? (double)most : sum;
        __syncthreads();
        for (int k = 1; k < FOLD_WARPS && threadIdx.y == 0; k++) {
            sum += of_warp[k][threadIdx.x];
            most = reduce_larger(most, (float)of_warp[k][threadIdx.x]);
        }
        if (threadIdx.y == 0 && i < f.count)
            dtype_store(f.y.type, f.y.data, (size_t)from.at[3], f.max ? most : reduce_result(f.fn, sum * f.factor));
        __syncthreads(); /* of_warp is read before the next elements' is written */
    }
}

static int fold_run(const KArgs *a, Fold *f, const Shape *whole, const Shape *const of[4], Err *e) {
    const Strided walk = strided_of(whole, of, 4);
    strided_split(&walk, 3, &f->kept, &f->reduced);
    f->count = strided_count(&f->kept);
    f->terms = strided_count(&f->reduced);
    if (f->terms < MUCH)
        return launch_op(a, e, fold_threads, blocks_for(a, f->count, ELEMENT_THREADS), ELEMENT_THREADS, *f);
    const int last = f->kept.rank - 1;
    if (last >= 0 && f->kept.step[0][last] == 1 && f->kept.size[last] >= WARP)
        return launch_op(a, e, fold_columns,
                         (unsigned)min_i64((f->count + WARP - 1) / WARP, (int64_t)cuda_of(a)->model.processors * FOLD_BLOCKS),
                         dim3(WARP, FOLD_WARPS), *f);
    return launch_op(a, e, fold_blocks, blocks_for(a, f->count, 1), ELEMENT_THREADS, *f);
}

int k_cuda_binary_da(const KArgs *a, Err *e) {
    const View *one = &a->binary_da.a, *two = &a->binary_da.b;
    const Shape *const of[4] = {&a->binary_da.dy.shape, one->count ? &one->shape : NULL,
                                two->count ? &two->shape : NULL, &a->binary_da.da.shape};
    Fold f = {};
    f.x = elements_of(&a->binary_da.dy), f.a = elements_of(one), f.b = elements_of(two);
    if (!one->count) f.a.data = NULL;
    if (!two->count) f.b.data = NULL;
    f.y = elements_of(&a->binary_da.da);
    f.binary = a->attr->binary;
    f.slopes = 1;
    f.factor = 1;
    return fold_run(a, &f, of[0], of, e);
}

int k_cuda_reduce(const KArgs *a, Err *e) {
    const Shape *const of[4] = {&a->reduce.x.shape, NULL, NULL, &a->reduce.y.shape};
    Fold f = {};
    f.x = elements_of(&a->reduce.x), f.y = elements_of(&a->reduce.y);
    f.fn = a->attr->reduce.f;
    f.max = reduce_is_max(f.fn);
    f.factor = a->attr->reduce.f == REDUCE_MEAN ? (double)a->reduce.y.count / (double)a->reduce.x.count : 1;
    return fold_run(a, &f, of[0], of, e);
}

struct Unfold { Strided walk; Elements dy, dx; int64_t count; float factor; Elements x, y; /* of a norm */ };

static __global__ void repeat_kernel(const __grid_constant__ Unfold u) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < u.count; i += stride) {
        const StridedAt none = {{0}}, at = strided_at(&u.walk, i, none);
        const float slope = u.x.data ? norm_slope(element_at(u.x, i), element_at(u.y, at.at[0])) : 1.0f;
        dtype_store(u.dx.type, u.dx.data, (size_t)i, u.factor * element_at(u.dy, at.at[0]) * slope);
    }
}

struct MaxDx { Strided kept, reduced; Elements dy, x, y, dx; int64_t count, terms; int share; };

static __global__ void max_dx_kernel(const __grid_constant__ MaxDx m) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < m.count; i += stride) {
        const StridedAt none = {{0}}, from = strided_at(&m.kept, i, none);
        const float most = element_at(m.y, from.at[1]);
        float dy = element_at(m.dy, from.at[1]);
        int64_t equal = 0;
        for (int64_t r = 0; r < m.terms; r++) equal += element_at(m.x, strided_at(&m.reduced, r, from).at[0]) == most;
        if (m.share && equal > 0) dy /= (float)equal;
        equal = 0;
        for (int64_t r = 0; r < m.terms; r++) {
            const int64_t at = strided_at(&m.reduced, r, from).at[0];
            const bool is = element_at(m.x, at) == most && (m.share || !equal);
            equal += is;
            dtype_store(m.dx.type, m.dx.data, (size_t)at, is ? dy : 0.0f);
        }
    }
}

int k_cuda_reduce_dx(const KArgs *a, Err *e) {
    const View *dx = &a->reduce_dx.dx, *dy = &a->reduce_dx.dy;
    const ReduceFn fn = a->attr->reduce.f;
    if (!reduce_is_max(fn)) {
        const Shape *const of[] = {&dy->shape};
        Unfold u = {strided_of(&dx->shape, of, 1), elements_of(dy), elements_of(dx), dx->count,
                    fn == REDUCE_MEAN ? (float)((double)dy->count / (double)dx->count) : 1.0f, {}, {}};
        if (fn == REDUCE_NORM) u.x = elements_of(&a->reduce_dx.x), u.y = elements_of(&a->reduce_dx.y);
        return launch_op(a, e, repeat_kernel, blocks_for(a, u.count, ELEMENT_THREADS), ELEMENT_THREADS, u);
    }
    const Shape *const of[] = {&dx->shape, &dy->shape};
    const Strided walk = strided_of(&dx->shape, of, 2);
    MaxDx m = {};
    strided_split(&walk, 1, &m.kept, &m.reduced);
    m.dy = elements_of(dy), m.x = elements_of(&a->reduce_dx.x), m.y = elements_of(&a->reduce_dx.y);
    m.dx = elements_of(dx);
    m.count = strided_count(&m.kept), m.terms = strided_count(&m.reduced);
    m.share = fn == REDUCE_AMAX;
    return launch_op(a, e, max_dx_kernel, blocks_for(a, m.count, ELEMENT_THREADS), ELEMENT_THREADS, m);
}

/* ---- triangles */

struct Triangle { Elements a, b, y; TriangleAttr of; int64_t rows, columns, count; };

static __global__ void where_kernel(const __grid_constant__ Triangle t) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < t.count; i += stride) {
        const bool in = in_triangle(&t.of, i / t.columns % t.rows, i % t.columns);
        dtype_store(t.y.type, t.y.data, (size_t)i,
                    in ? element_at(t.a, i) : t.b.data ? element_at(t.b, i) : t.of.value);
    }
}

int k_cuda_where(const KArgs *a, Err *e) {
    const Shape *s = &a->where.y.shape;
    Triangle t = {elements_of(&a->where.a), elements_of(&a->where.b), elements_of(&a->where.y), a->attr->triangle,
                  s->dim[s->rank - 2], s->dim[s->rank - 1], a->where.y.count};
    if (!a->where.b.count) t.b.data = NULL;
    return launch_op(a, e, where_kernel, blocks_for(a, t.count, ELEMENT_THREADS), ELEMENT_THREADS, t);
}

/* ---- elements by label, which was checked when it came in */

struct Gather { Elements x, y; const int32_t *t; int64_t columns, count; };

static __global__ void gather_kernel(const __grid_constant__ Gather g) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < g.count; i += stride)
        dtype_store(g.y.type, g.y.data, (size_t)i, element_at(g.x, i * g.columns + g.t[i]));
}

/* x: dy; y: dx, each of whose elements is written once */
static __global__ void gather_dx_kernel(const __grid_constant__ Gather g) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < g.count; i += stride) {
        const int64_t row = i / g.columns;
        dtype_store(g.y.type, g.y.data, (size_t)i, i % g.columns == g.t[row] ? element_at(g.x, row) : 0.0f);
    }
}

int k_cuda_gather(const KArgs *a, Err *e) {
    const Gather g = {elements_of(&a->gather.x), elements_of(&a->gather.y), (const int32_t *)a->gather.t.data,
                      a->gather.x.shape.dim[1], a->gather.y.count};
    return launch_op(a, e, gather_kernel, blocks_for(a, g.count, ELEMENT_THREADS), ELEMENT_THREADS, g);
}

int k_cuda_gather_dx(const KArgs *a, Err *e) {
    const View *dx = &a->gather_dx.dx;
    const Gather g = {elements_of(&a->gather_dx.dy), elements_of(dx), (const int32_t *)a->gather_dx.t.data,
                      dx->shape.dim[1], dx->count};
    return launch_op(a, e, gather_dx_kernel, blocks_for(a, g.count, ELEMENT_THREADS), ELEMENT_THREADS, g);
}
