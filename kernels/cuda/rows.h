/* rows.h: rows that some warps of a block share, so many that a row of up to ROW_WARPS * WARP * ROW_VALUES elements fits into
 * their registers. For .cu files. A block has row_threads(warps) threads. */
#ifndef MT_ROWS_H
#define MT_ROWS_H

#include "elements.h"

/* ROW_VALUES: elements of a row that a thread has at a time. ROW_WARPS: of a row, at most; they have 128 registers each */
enum { ROW_WARPS = 16, ROW_THREADS_MAX = ROW_WARPS * WARP, ROW_VALUES = 32, ROW_BLOCKS = 2 /* per processor */ };

/* Warps that share a row of n elements: a power of two, the most that a block has for rows that do not fit */
static inline int row_warps(int64_t n) {
    int warps = 1;
    while (warps < ROW_WARPS && warps * (WARP * ROW_VALUES) < n) warps *= 2;
    return warps;
}

static inline int row_threads(int warps) { return warps * WARP > ELEMENT_THREADS ? warps * WARP : ELEMENT_THREADS; }

/* Blocks for so many rows: they stride over them. */
static inline unsigned row_blocks(const KArgs *a, int64_t rows, int warps) {
    const int64_t at_once = row_threads(warps) / (warps * WARP);
    return (unsigned)min_i64((rows + at_once - 1) / at_once, (int64_t)cuda_of(a)->model.processors * ROW_BLOCKS);
}

/* A thread's place: it is `lane` of the `lanes` threads of row `row` of the `rows` that the block has at once. */
typedef struct RowLane { int lanes, lane, rows, row; } RowLane;

static __device__ inline RowLane row_lane(int warps) {
    const int lanes = warps * WARP, lane = (int)threadIdx.x;
    return RowLane{lanes, lane % lanes, (int)blockDim.x / lanes, lane / lanes};
}

/* Where a row lies, and what its threads may read beside it: its elements are [first, end). Pieces of LANES begin where words do, not
 * where rows do; one that is not the row's alone is loaded as a word if it lies in [0, room), and what is not the row's is dropped.
 * In a kernel that writes x no other row may be read: room is 0. aligned: x is for words of LANES */
typedef struct RowSpan { int64_t first, end, room; bool aligned; } RowSpan;

/* The piece from `begin` on, a multiple of LANES; `absent` where it is not the row's */
static __device__ inline void span_load(Elements x, const RowSpan &r, int64_t begin, float absent, float *values) {
    const bool own = begin >= r.first && begin + LANES <= r.end;
    if (r.aligned && (own || begin + LANES <= r.room)) {
        lanes_load<LANES>(x.type, x.data, begin, values);
        for (int i = 0; i < LANES && !own; i++)
            if (begin + i < r.first || begin + i >= r.end) values[i] = absent;
        return;
    }
    for (int i = 0; i < LANES; i++)
        values[i] = begin + i >= r.first && begin + i < r.end ? element_at(x, begin + i) : absent;
}

/* Stores what is the row's. aligned: of y */
static __device__ inline void span_store(Elements y, const RowSpan &r, int64_t begin, bool aligned, const float *values) {
    if (aligned && begin >= r.first && begin + LANES <= r.end) {
        lanes_store<LANES>(y.type, y.data, begin, values);
        return;
    }
    for (int i = 0; i < LANES; i++)
        if (begin + i >= r.first && begin + i < r.end) dtype_store(y.type, y.data, (size_t)(begin + i), values[i]);
}

/* The sum over the threads of a row; all threads of the block must call it. */
static __device__ inline double row_sum(double x, const RowLane &r) {
    __shared__ double of_warp[ROW_WARPS];
    const int warps = r.lanes / WARP, first = r.row * warps;
    double sum = 0;
    x = warp_sum(x);
    if (warps == 1) return x;
    __syncthreads(); /* an earlier sum may still be read */
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = first; i < first + warps; i++) sum += of_warp[i];
    return sum;
}

/* ---- softmax's sum: the largest, and the sum of exp(x - max) */

typedef struct ExpSum { float max; double sum; } ExpSum;

static __device__ inline ExpSum exp_sum_none() { return ExpSum{-INFINITY, 0}; }

/* Adds n numbers, of which -INFINITY is none. When a larger maximum turns up, the sum so far is scaled down. */
static __device__ inline void exp_sum_add(ExpSum *s, const float *x, int n) {
    const float before = s->max;
    float part = 0;
    for (int i = 0; i < n; i++) s->max = fmaxf(s->max, x[i]);
    const float top = s->max == -INFINITY ? 0 : s->max; /* infinity - infinity would be NaN */
    for (int i = 0; i < n; i++) part += expf(x[i] - top);
    s->sum = s->sum * (double)expf(before - top) + (double)part;
}

/* Over the threads of a row; all threads of the block must call it. NaN if all numbers are -INFINITY. */
static __device__ inline ExpSum row_exp_sum(const ExpSum &mine, const RowLane &r) {
    __shared__ float of_warp[ROW_WARPS]; /* all have read it before row_sum's barriers, and so before the next call */
    const int warps = r.lanes / WARP, first = r.row * warps;
    float most = warp_max(mine.max);
    if (warps > 1) {
        if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = most;
        __syncthreads();
        for (int i = first; i < first + warps; i++) most = fmaxf(most, of_warp[i]);
    }
    return ExpSum{most, row_sum(mine.sum * (double)expf(mine.max - most), r)};
}

#endif
