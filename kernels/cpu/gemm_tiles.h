/* gemm_tiles.h: the pieces of matrix products (gemm.h) that stay in registers and in the first cache. */
#ifndef MT_CPU_GEMM_TILES_H
#define MT_CPU_GEMM_TILES_H

#include "program/operands.h"

/* GEMM_LANES: numbers in a register. GEMM_ROWS: of a tile, at most, so that its sums and a place of the factors fit into
 * the registers. GEMM_ROW_STEP: of the numbers of rows for which there are tiles; others are computed by the next larger one.
 * GEMM_DOT_ROWS: up to so many rows of a it is quicker to read b where it lies: as dot products with its rows, or by tiles that keep it. */
#if defined __AVX512F__
enum { GEMM_LANES = 16, GEMM_ROWS = 14, GEMM_ROW_STEP = 2, GEMM_DOT_ROWS = 0 };
#elif defined __AVX__
enum { GEMM_LANES = 8, GEMM_ROWS = 6, GEMM_ROW_STEP = 1, GEMM_DOT_ROWS = 48 };
#else
enum { GEMM_LANES = 4, GEMM_ROWS = 6, GEMM_ROW_STEP = 1, GEMM_DOT_ROWS = 0 };
#endif
/* GEMM_COLUMNS: of a tile. GEMM_STRIP: columns that are packed together. GEMM_DEPTH: terms of a part of a sum: what a tile reads fits into the first cache. */
enum { GEMM_COLUMNS = 2 * GEMM_LANES, GEMM_STRIP = 4 * GEMM_COLUMNS, GEMM_DEPTH = 256 };
/* From a row of a to the next one: a cache line more than it has, since all rows might otherwise share sets of the cache */
enum { GEMM_STEP = GEMM_DEPTH + 16 };

/* In place of the type of a factor's numbers: fp32 ones, which are rounded to bf16 as they are read */
#define GEMM_F32_AS_BF16 DT_COUNT

/* `rows` rows of n numbers of type t, from element `at` on and `step` elements apart, as fp32, rows to_step apart. */
void gemm_copy(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step);
/* The same, as columns of panels: GEMM_COLUMNS numbers of a row lie in each, rows GEMM_COLUMNS apart, panels `panel`. */
void gemm_panels(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t panel);
/* As gemm_copy, transposed: to (n, rows). A row has `there` numbers that may be read, at least n. Up to the next multiple of
 * GEMM_LANES after `rows`, anything may be written: there must be room. */
void gemm_turn(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
               int64_t to_step);

/* c (rows, columns) = scale a b; add: += . a (rows, GEMM_STEP), b (GEMM_DEPTH, GEMM_COLUMNS), of which the first
 * `depth` numbers of each sum count; rows up to GEMM_ROWS, columns up to GEMM_COLUMNS; rows of c are c_step apart. In a,
 * rows up to the next multiple of GEMM_ROW_STEP may be read. turned: a (depth, GEMM_STEP) lies transposed. soon, unless NULL: numbers,
 * soon_step apart, that are asked for meanwhile, as many as the depth. */
typedef struct GemmTile {
    const float *a, *b;
    int64_t depth, rows, columns;
    float *c;
    int64_t c_step;
    float scale;
    bool add, turned;
    const float *soon;
    int64_t soon_step;
} GemmTile;
void gemm_tile(const GemmTile *t);
/* The same of GEMM_COLUMNS columns of a matrix as it lies: element `at` is the first one, rows are `step` apart. They are kept, as fp32, in
 * `to`, where other rows' tiles find them. What lies `ahead` elements later is asked for meanwhile. a is not turned. */
typedef struct GemmLying { DType type; const void *from; int64_t at, step, ahead; float *to; } GemmLying;
void gemm_tile_lying(const GemmTile *t, const GemmLying *b);
/* The same of any number of rows and up to GEMM_DOTS columns, where b, `depth` numbers of each column, is not packed: columns are
 * b_step apart. */
enum { GEMM_DOTS = 4 };
void gemm_dots(const GemmTile *t, int64_t b_step);

#endif
