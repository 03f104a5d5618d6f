/* softmax.cu: softmax and its logarithm along lines of n elements, which lie `stride` apart. Some warps of a block share a line:
 * it is read once if it fits into their registers (rows.h), else twice. */
#include "rows.h"

/* whole: pieces of the lines lie in words */
typedef struct Lines {
    Elements x, y, z; /* x, y; or dy, y, dx */
    int64_t count, n, stride;
    bool log, whole;
} Lines;

/* The first element of line k */
static __device__ inline int64_t start_of(const Lines &l, int64_t k) {
    return k / l.stride * l.n * l.stride + k % l.stride;
}

/* The elements of a line that its threads have in one turn. A thread has pieces of N neighbours; N is 1 if stride is not. */
template <int N> struct LinePart {
    const Lines &l;
    const RowLane &r;
    int64_t start, n; /* the line's first element; 0 elements after the last line */
    int64_t from;     /* the turn's first */
};

static __device__ inline int64_t turn_of(const RowLane &r) { return (int64_t)r.lanes * ROW_VALUES; }

template <int N> static __device__ inline int64_t line_at(const LinePart<N> &p, int k) { return p.from + (k * p.r.lanes + p.r.lane) * N; }

/* Calls each(g) for those groups of eight of the thread's values in which any thread of a line has an element. */
enum { GROUP = 8 };
template <int N, typename Each> static __device__ inline void groups_of(const LinePart<N> &p, Each each) {
    UNROLLED(ROW_VALUES / GROUP)
    for (int g = 0; g < ROW_VALUES / GROUP; g++)
        if (p.from + (int64_t)g * GROUP * p.r.lanes < p.l.n) each(g);
}

template <int N> static __device__ inline void line_load(float *values, Elements x, const LinePart<N> &p, float absent) {
    UNROLLED(ROW_VALUES / N)
    for (int k = 0; k < ROW_VALUES / N; k++) {
        const int64_t c = line_at(p, k);
        if (c >= p.n)
            for (int i = 0; i < N; i++) values[k * N + i] = absent;
        else if (N == 1) values[k] = element_at(x, p.start + c * p.l.stride);
        else some_load<N>(x, p.start + c, p.start + p.n, p.l.whole, values + k * N);
    }
}

template <int N> static __device__ inline void line_store(const float *values, Elements y, const LinePart<N> &p) {
    UNROLLED(ROW_VALUES / N)
    for (int k = 0; k < ROW_VALUES / N; k++) {
        const int64_t c = line_at(p, k);
        if (c >= p.n) continue;
        if (N == 1) dtype_store(y.type, y.data, (size_t)(p.start + c * p.l.stride), values[k]);
        else some_store<N>(y, p.start + c, p.start + p.n, p.l.whole, values + k * N);
    }
}

template <int N>
static __global__ void __launch_bounds__(ELEMENT_THREADS, ROW_BLOCKS) softmax_kernel(const __grid_constant__ Lines l, int warps) {
    const RowLane r = row_lane(warps);
    const int64_t turn = turn_of(r);
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < l.count; first += (int64_t)gridDim.x * r.rows) {
        const int64_t k = first + r.row;
        LinePart<N> p = {l, r, start_of(l, k), k < l.count ? l.n : 0, 0};
        float x[ROW_VALUES];
        ExpSum mine = exp_sum_none();
        for (p.from = 0; p.from < l.n; p.from += turn) {
            line_load<N>(x, l.x, p, -INFINITY);
            groups_of(p, [&](int g) { exp_sum_add(&mine, x + g * GROUP, GROUP); });
        }
        const ExpSum all = row_exp_sum(mine, r);
        const float factor = (float)(1 / all.sum), log_sum = (float)log(all.sum);
        for (p.from = 0; p.from < l.n; p.from += turn) {
            if (l.n > turn) line_load<N>(x, l.x, p, -INFINITY);
            groups_of(p, [&](int g) {
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
                    x[i] = l.log ? x[i] - all.max - log_sum : expf(x[i] - all.max) * factor;
            });
            line_store<N>(x, l.y, p);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(ELEMENT_THREADS, ROW_BLOCKS) softmax_dx_kernel(const __grid_constant__ Lines l, int warps) {
    const RowLane r = row_lane(warps);
    const int64_t turn = turn_of(r);
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < l.count; first += (int64_t)gridDim.x * r.rows) {
        const int64_t k = first + r.row;
        LinePart<N> p = {l, r, start_of(l, k), k < l.count ? l.n : 0, 0};
        float dy[ROW_VALUES], y[ROW_VALUES];
        double mine = 0;
        for (p.from = 0; p.from < l.n; p.from += turn) {
            line_load<N>(dy, l.x, p, 0);
            line_load<N>(y, l.y, p, 0);
            groups_of(p, [&](int g) {
                float part = 0;
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++) part += l.log ? dy[i] : dy[i] * y[i];
                mine += (double)part;
            });
        }
        const float sum = (float)row_sum(mine, r);
        for (p.from = 0; p.from < l.n; p.from += turn) {
            if (l.n > turn) line_load<N>(dy, l.x, p, 0);
            if (l.n > turn) line_load<N>(y, l.y, p, 0);
            groups_of(p, [&](int g) {
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
                    dy[i] = l.log ? dy[i] - expf(y[i]) * sum : y[i] * (dy[i] - sum);
            });
            line_store<N>(dy, l.z, p);
        }
    }
}

typedef void LinesKernel(Lines, int);

/* kernel: for pieces of 8, 4, 1 elements. Which of them follows from the shape alone, and with it the order of the sums. */
static int lines_run(const KArgs *a, Err *e, LinesKernel *const kernel[3], Lines l) {
    int64_t outer;
    assert(0 <= a->attr->softmax.axis && a->attr->softmax.axis < a->in[0].shape.rank);
    assert(a->in[0].count == a->out[0].count && (a->kind == OP_softmax || a->softmax_dx.y.count == a->out[0].count));
    l.n = a->in[0].shape.dim[a->attr->softmax.axis];
    view_split(&a->in[0], a->attr->softmax.axis, &outer, &l.stride);
    l.count = a->in[0].count / l.n;
    l.log = a->attr->softmax.log;
    const int which = l.stride == 1 && l.n % 8 == 0 ? 0 : l.stride == 1 && l.n % 4 == 0 ? 1 : 2;
    const Elements all[] = {l.x, l.y, l.z};
    l.whole = true;
    for (int k = 0; k < 3; k++)
        if (all[k].data)
            l.whole = l.whole && (which ? lanes_fit<4>(all[k].data, all[k].type, l.n) : lanes_fit<8>(all[k].data, all[k].type, l.n));
    const int warps = row_warps(l.n);
    return launch_op(a, e, kernel[which], row_blocks(a, l.count, warps), ELEMENT_THREADS, l, warps);
}

int k_cuda_softmax(const KArgs *a, Err *e) {
    static LinesKernel *const kernel[] = {softmax_kernel<8>, softmax_kernel<4>, softmax_kernel<1>};
    Lines l = {};
    l.x = elements_of(&a->softmax.x);
    l.y = elements_of(&a->softmax.y);
    return lines_run(a, e, kernel, l);
}

int k_cuda_softmax_dx(const KArgs *a, Err *e) {
    static LinesKernel *const kernel[] = {softmax_dx_kernel<8>, softmax_dx_kernel<4>, softmax_dx_kernel<1>};
    Lines l = {};
    l.x = elements_of(&a->softmax_dx.dy);
    l.y = elements_of(&a->softmax_dx.y);
    l.z = elements_of(&a->softmax_dx.dx);
    return lines_run(a, e, kernel, l);
}
