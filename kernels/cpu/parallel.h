/* parallel.h: what the CPU device's own loops share: ranges over threads, and blocks of a view as fp32.
 *
 * A kernel is a RangeFn over pieces of at most `grain` items. Elementwise kernels take pieces of BLOCK elements: fp32
 * operands are used where they lie, 16-bit ones pass through a scratch array of fp32 that stays in the first-level
 * cache. The arithmetic is in functions marked HOT, which are not inlined: so their loops are compiled for themselves,
 * as vector code. */
#ifndef MT_CPU_PARALLEL_H
#define MT_CPU_PARALLEL_H

#include <omp.h>

#include "program/operands.h"

enum { BLOCK = 2048 }; /* elements; a multiple of the four numbers that one Philox call draws */

#define HOT __attribute__((noinline))
/* In functions marked FUSED or INLINE the compiler may fuse a product and a sum, where the instruction set has that. */
#define FUSED __attribute__((optimize("fp-contract=fast")))
#define INLINE FUSED static inline __attribute__((always_inline))

/* OpenMP gets so many threads, until threads_back is given what this returns. */
static inline int threads_take(int threads) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}
static inline void threads_back(int before) { omp_set_num_threads(before); }
/* As many as there are, but no more than there is room for */
static inline int threads_within(int64_t room) { return (int)min_i64(room, omp_get_max_threads()); }

/* Runs piece(of, i) for i in [0, count), on threads where there are several: each takes neighbouring ones. device.c sees to
 * it that a small op has only one. */
typedef void PieceFn(const void *of, int64_t i);
void pieces_run(const void *of, int64_t count, PieceFn *piece);

/* One piece: items [begin, end). */
typedef void RangeFn(const KArgs *a, int64_t begin, int64_t end);

/* Runs `piece` over [0, count); each thread takes neighbouring pieces. Pieces are the same for any number of threads. */
void range_run(const KArgs *a, int64_t count, int64_t grain, RangeFn *piece);
/* The same with pieces of BLOCK. */
void blocks_run(const KArgs *a, int64_t count, RangeFn *piece);

/* Of so many columns in all, those that an op which goes down them takes beside each other, COLUMNS_LEAST to COLUMNS_MOST: rows lie far apart,
 * and memory gives long runs faster, but more than the least only where COLUMN_PIECES pieces are left for threads. */
enum { COLUMNS_LEAST = 64, COLUMNS_MOST = 512, COLUMN_PIECES = 16 };
int64_t columns_together(int64_t columns);

/* The sum of piece(begin, end) over [0, count): the same bits for any number of threads. */
typedef double SumFn(const KArgs *a, int64_t begin, int64_t end);
double range_sum(const KArgs *a, int64_t count, SumFn *piece);

/* Elements [begin, begin + n) of a floating type as fp32: where they lie, or converted into scratch[n]. */
float *block_load(const View *v, int64_t begin, int64_t n, float *scratch);
/* Where elements from `begin` on are computed, for block_store: where they lie if the view is fp32, else scratch. */
float *block_target(const View *v, int64_t begin, float *scratch);
/* Rounds values[n] into the view; fp32 values that lie there already stay. */
void block_store(const View *v, int64_t begin, int64_t n, const float *values);

/* Where channel c of the pixel (row, w) of a channels-last image lies; row = n H + h counts the rows of all samples. */
static inline int64_t pixel_at(const View *v, int64_t row, int64_t w, int64_t c) {
    return (row * v->shape.dim[3] + w) * v->shape.dim[1] + c;
}

/* What several kernels do with n numbers in fp32. y may be a or b. */
void block_fill(float *y, float value, int64_t n);
void block_add(float *y, const float *a, const float *b, int64_t n);
void block_multiply(float *y, const float *a, const float *b, int64_t n);
/* Each becomes the nearest number that the type has. */
void block_round(DType type, float *x, int64_t n);
/* sums[i] += x[i] */
void block_sum(double *sums, const float *x, int64_t n);
/* sums[c] += x[row][c], row by row */
void sum_rows(float *sums, const float *x, int64_t rows, int64_t channels);

/* Asks for the line of memory with element `at`, whether there is one or not; size: of an element. */
static inline void line_ask(const void *from, int64_t at, size_t size) {
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * size));
}
/* The same, into the second cache: for what is needed later */
static inline void line_ask_soon(const void *from, int64_t at, size_t size) {
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * size), 0, 2);
}
static inline void view_ask(const View *v, int64_t at) { line_ask(v->data, at, dtype_size(v->dtype)); }

#endif
