/* tensor.cu: arithmetic of operands that are broadcast, reductions along dimensions and their gradients, triangles
 * (core/math/tensor.h). Where much is reduced into an element, a block does it, else a thread. */
#include "sums.h"

enum { MUCH = 128 }; /* terms of a sum that are worth a block */

/* along: how far a and b go from one element of y to the next. whole: quads of y lie in words, and so does what is beside them, if
 * it is not one element */
struct Binary { Strided walk; Elements x[2]; int64_t along[2], count; BinaryFn f; bool whole; };

/* Do the operands allow quads? Each goes along with y in its last dimension, or stays, and rows have whole quads. */
static bool quads_fit(const Binary &b, Elements y) {
    const int last = b.walk.rank - 1;
    bool fit = last >= 0 && b.walk.size[last] % QUAD == 0 && elements_aligned(y);
    for (int k = 0; k < 2 && fit; k++) {
        if (b.walk.step[k][last] == 0) continue;
        fit = b.walk.step[k][last] == 1 && elements_aligned(b.x[k]);
        for (int d = 0; d < last; d++) fit = fit && b.walk.step[k][d] % QUAD == 0;
    }
    return fit;
}

/* What stands beside elements [i, i + 4) of y, of which the first exists */
static __device__ inline void binary_load(const Binary &b, int64_t i, float (*x)[QUAD]) {
    const StridedAt none = {{0}};
    if (b.whole) {
        const StridedAt at = strided_at(&b.walk, i, none);
        for (int k = 0; k < 2; k++) {
            if (b.along[k]) lanes_load<QUAD>(b.x[k].type, b.x[k].data, at.at[k], x[k]);
            else x[k][0] = x[k][1] = x[k][2] = x[k][3] = element_at(b.x[k], at.at[k]);
        }
        return;
    }
    for (int n = 0; n < QUAD && i + n < b.count; n++) {
        const StridedAt at = strided_at(&b.walk, i + n, none);
        for (int k = 0; k < 2; k++) x[k][n] = element_at(b.x[k], at.at[k]);
    }
}

/* The operands may lie anywhere, and a may be y. */
static __global__ void binary_kernel(const __grid_constant__ Binary b, Elements y) {
    for (int64_t begin = elements_first(); begin < b.count; begin += elements_stride()) {
        float x[TURN_QUADS][2][QUAD] = {};
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++)
            if (begin + q * QUAD_STEP < b.count) binary_load(b, begin + q * QUAD_STEP, x[q]);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++) {
            float result[QUAD];
            for (int n = 0; n < QUAD; n++) result[n] = binary_value(b.f, x[q][0][n], x[q][1][n]);
            some_store<QUAD>(y, begin + q * QUAD_STEP, b.count, b.whole, result);
        }
    }
}

int k_cuda_binary(const KArgs *a, Err *e) {
    const Shape *const of[] = {&a->binary.a.shape, &a->binary.b.shape};
    const Elements y = elements_of(&a->binary.y);
    Binary b = {strided_of(&a->binary.y.shape, of, 2), {elements_of(&a->binary.a), elements_of(&a->binary.b)}, {},
                a->binary.y.count, a->attr->binary.f, false};
    b.whole = quads_fit(b, y);
    for (int k = 0; k < 2 && b.whole; k++) b.along[k] = b.walk.step[k][b.walk.rank - 1];
    return launch_op(a, e, binary_kernel, blocks_for(a, (b.count + LANES - 1) / LANES, ELEMENT_THREADS), ELEMENT_THREADS, b, y);
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
