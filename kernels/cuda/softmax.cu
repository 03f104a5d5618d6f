/* softmax.cu: softmax and its logarithm along lines of n elements, which lie `stride` apart. Some warps of a block share a line:
 * it is read once if it fits into their registers (rows.h), else twice. */
#include "rows.h"

/* to: y; or dx of x, which is dy then, and y. room: RowSpan's. whole: x and y are for words, whole_to: `to` is */
typedef struct Lines {
    Elements x, y, to;
    int64_t count, n, stride, room;
    bool log, whole, whole_to;
} Lines;

/* The first element of line k */
static __device__ inline int64_t start_of(const Lines &l, int64_t k) {
    return k / l.stride * l.n * l.stride + k % l.stride;
}

/* The elements of a line that its threads have in one turn. A thread has pieces of N neighbours: LANES, where words begin; or 1, if
 * stride is not. `from` and what follows count the line's elements, and before them those of its first word that are not its own. */
template <int N> struct LinePart {
    const Lines &l;
    const RowLane &r;
    int64_t start, n, before; /* the line's first element; 0 elements after the last line */
    int64_t from;             /* the turn's first */
    RowSpan span;
};

template <int N> static __device__ inline LinePart<N> line_part(const Lines &l, const RowLane &r, int64_t k) {
    const int64_t start = start_of(l, k), n = k < l.count ? l.n : 0, before = N > 1 ? start % N : 0;
    return LinePart<N>{l, r, start, n, before, 0, {start, start + n, l.room, l.whole}};
}

static __device__ inline int64_t turn_of(const RowLane &r) { return (int64_t)r.lanes * ROW_VALUES; }

template <int N> static __device__ inline int64_t line_at(const LinePart<N> &p, int k) { return p.from + (k * p.r.lanes + p.r.lane) * N; }

/* Where every line has ended: all lines of a block have as many turns. */
template <int N> static __host__ __device__ inline int64_t line_end(const Lines &l) { return N > 1 && l.n % N ? l.n + N - 1 : l.n; }

/* Calls each(g) for those groups of eight of the thread's values in which any thread of a line may have an element. */
enum { GROUP = 8 };
template <int N, typename Each> static __device__ inline void groups_of(const LinePart<N> &p, Each each) {
    UNROLLED(ROW_VALUES / GROUP)
    for (int g = 0; g < ROW_VALUES / GROUP; g++)
        if (p.from + (int64_t)g * GROUP * p.r.lanes < line_end<N>(p.l)) each(g);
}

template <int N> static __device__ inline void line_load(float *values, Elements x, const LinePart<N> &p, float absent) {
    UNROLLED(ROW_VALUES / N)
    for (int k = 0; k < ROW_VALUES / N; k++) {
        const int64_t c = line_at(p, k);
        if (!p.n || c >= p.before + p.n)
            for (int i = 0; i < N; i++) values[k * N + i] = absent;
        else if constexpr (N == 1) values[k] = element_at(x, p.start + c * p.l.stride);
        else span_load(x, p.span, p.start - p.before + c, absent, values + k * N);
    }
}

template <int N> static __device__ inline void line_store(const float *values, Elements y, const LinePart<N> &p) {
    UNROLLED(ROW_VALUES / N)
    for (int k = 0; k < ROW_VALUES / N; k++) {
        const int64_t c = line_at(p, k);
        if (!p.n || c >= p.before + p.n) continue;
        if constexpr (N == 1) dtype_store(y.type, y.data, (size_t)(p.start + c * p.l.stride), values[k]);
        else span_store(y, p.span, p.start - p.before + c, p.l.whole_to, values + k * N);
    }
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS_MAX, 1) softmax_kernel(const __grid_constant__ Lines l, int warps) {
    const RowLane r = row_lane(warps);
    const int64_t turn = turn_of(r), end = line_end<N>(l);
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < l.count; first += (int64_t)gridDim.x * r.rows) {
        LinePart<N> p = line_part<N>(l, r, first + r.row);
        float x[ROW_VALUES];
        ExpSum mine = exp_sum_none();
        for (p.from = 0; p.from < end; p.from += turn) {
            line_load<N>(x, l.x, p, -INFINITY);
            groups_of(p, [&](int g) { exp_sum_add(&mine, x + g * GROUP, GROUP); });
        }
        const ExpSum all = row_exp_sum(mine, r);
        const float factor = (float)(1 / all.sum), log_sum = (float)log(all.sum);
        for (p.from = 0; p.from < end; p.from += turn) {
            if (end > turn) line_load<N>(x, l.x, p, -INFINITY);
            groups_of(p, [&](int g) {
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
                    x[i] = l.log ? x[i] - all.max - log_sum : expf(x[i] - all.max) * factor;
            });
            line_store<N>(x, l.to, p);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS_MAX, 1) softmax_dx_kernel(const __grid_constant__ Lines l, int warps) {
    const RowLane r = row_lane(warps);
    const int64_t turn = turn_of(r), end = line_end<N>(l);
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < l.count; first += (int64_t)gridDim.x * r.rows) {
        LinePart<N> p = line_part<N>(l, r, first + r.row);
        float dy[ROW_VALUES], y[ROW_VALUES];
        double mine = 0;
        for (p.from = 0; p.from < end; p.from += turn) {
            line_load<N>(dy, l.x, p, 0);
            line_load<N>(y, l.y, p, 0);
            groups_of(p, [&](int g) {
                float part = 0;
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++) part += l.log ? dy[i] : dy[i] * y[i];
                mine += (double)part;
            });
        }
        const float sum = (float)row_sum(mine, r);
        for (p.from = 0; p.from < end; p.from += turn) {
            if (end > turn) line_load<N>(dy, l.x, p, 0);
            if (end > turn) line_load<N>(y, l.y, p, 0);
            groups_of(p, [&](int g) {
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
                    dy[i] = l.log ? dy[i] - expf(y[i]) * sum : y[i] * (dy[i] - sum);
            });
            line_store<N>(dy, l.to, p);
        }
    }
}

typedef void LinesKernel(Lines, int);

/* kernel: for pieces of LANES and of 1. Which of them follows from the shape alone, and with it the order of the sums. */
static int lines_run(const KArgs *a, Err *e, LinesKernel *const kernel[2], Lines l) {
    int64_t outer;
    assert(0 <= a->attr->softmax.axis && a->attr->softmax.axis < a->in[0].shape.rank);
    assert(a->in[0].count == a->out[0].count && (a->kind == OP_softmax || a->softmax_dx.y.count == a->out[0].count));
    l.n = a->in[0].shape.dim[a->attr->softmax.axis];
    view_split(&a->in[0], a->attr->softmax.axis, &outer, &l.stride);
    l.count = a->in[0].count / l.n;
    l.log = a->attr->softmax.log;
    l.room = l.to.data == l.x.data || l.to.data == l.y.data ? 0 : a->in[0].count;
    l.whole = lanes_aligned<LANES>(l.x.type, l.x.data) && (!l.y.data || lanes_aligned<LANES>(l.y.type, l.y.data));
    l.whole_to = lanes_aligned<LANES>(l.to.type, l.to.data);
    const bool pieces = l.stride == 1;
    const int warps = row_warps(pieces ? line_end<LANES>(l) : line_end<1>(l));
    return launch_op(a, e, kernel[pieces ? 0 : 1], row_blocks(a, l.count, warps), row_threads(warps), l, warps);
}

int k_cuda_softmax(const KArgs *a, Err *e) {
    static LinesKernel *const kernel[] = {softmax_kernel<LANES>, softmax_kernel<1>};
    Lines l = {};
    l.x = elements_of(&a->softmax.x);
    l.to = elements_of(&a->softmax.y);
    return lines_run(a, e, kernel, l);
}

int k_cuda_softmax_dx(const KArgs *a, Err *e) {
    static LinesKernel *const kernel[] = {softmax_dx_kernel<LANES>, softmax_dx_kernel<1>};
    Lines l = {};
    l.x = elements_of(&a->softmax_dx.dy);
    l.y = elements_of(&a->softmax_dx.y);
    l.to = elements_of(&a->softmax_dx.dx);
    return lines_run(a, e, kernel, l);
}
