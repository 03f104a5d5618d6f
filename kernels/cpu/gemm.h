/* gemm.h: products of matrices of any floating types, with sums in fp32, on any processor. Factors are converted while
 * they are packed, a piece at a time that stays in a cache: so 16-bit types need neither copies in fp32 nor instructions
 * of their own.
 *
 *   c (m, n) = scale a (m, k) b (k, n)
 *
 *   workspace = [panel of b, block of a, strip of b, sums, all rows' sums, of thread 0 | ... of thread 1]
 *
 * Each thread has some rows of c, or some columns, and packs for itself what they need, a panel of b and a block of a at a time: to
 * read what another core has just written takes several times as long as to pack it. Few rows are one block, for which a strip of b
 * is packed and used up at once; still fewer are multiplied with b where it lies, by all rows or by the first ones alone.
 * A sum is made in the order of k, in parts of the same length whatever the number of threads and the room, and how a part is
 * added up follows from the shape and the operands alone: so neither the threads nor the room changes a bit. */
#ifndef MT_CPU_GEMM_H
#define MT_CPU_GEMM_H

#include "program/operands.h"

typedef struct Gemm Gemm;
/* Rows [row, row + rows) of a, numbers [at, at + depth) of each, as rows that are GEMM_STEP apart. */
typedef void GemmRows(const Gemm *, int64_t row, int64_t rows, int64_t at, int64_t depth, float *to);
/* Numbers [at, at + depth) of columns [column, column + columns) of b, as rows that are GEMM_COLUMNS apart; beyond its
 * columns a row may hold anything. There are at most GEMM_COLUMNS columns. With
 * `strips` there are up to GEMM_STRIP: each GEMM_COLUMNS of them are a panel of `depth` such rows, one panel after the other. */
typedef void GemmColumns(const Gemm *, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to);
/* What becomes of finished sums, of rows [row, row + rows) and columns [column, column + columns), rows `step` apart. */
typedef void GemmLeave(const Gemm *, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step);

/* A matrix by rows, which are `stride` elements apart; transposed: the transpose of that matrix. type: or GEMM_F32_AS_BF16 (gemm_tiles.h) */
typedef struct GemmMatrix { DType type; const void *at; int64_t stride; bool transposed; } GemmMatrix;

struct Gemm {
    int64_t m, n, k;
    GemmMatrix a, b;
    const float *packed;    /* b as gemm_pack has made it; NULL: it is packed by the way */
    GemmRows *rows;         /* NULL: as `a` says */
    GemmColumns *columns;   /* NULL: as `b` says */
    bool strips;            /* see GemmColumns */
    float scale;
    float *c;               /* where the sums are made, rows c_step apart; NULL: in the workspace */
    int64_t c_step;
    bool add;               /* c += */
    GemmLeave *leave;       /* NULL if c is all that is wanted */
    bool by_blocks;         /* leave must get whole blocks */
    const void *of;         /* what rows, columns and leave need */
    int threads;            /* that it may take, 1 inside a parallel region */
};

/* `leave` gets at most so many rows. by_blocks: blocks of so many, counted from row 0, whatever the number of threads. */
int64_t gemm_block_rows(int64_t m);
/* Bytes of workspace, a multiple of 64: at most `limit`, where there is a way. Asked again with its answer as the limit,
 * it gives the same one. */
size_t gemm_workspace(const Gemm *g, size_t limit);
/* b packed, for many products: floats, and the packing on g->threads threads. */
int64_t gemm_packed(int64_t n, int64_t k);
void gemm_pack(const Gemm *g, float *to);
/* bytes: at least what gemm_workspace has said for some limit */
void gemm_run(const Gemm *g, void *workspace, size_t bytes);

#endif
