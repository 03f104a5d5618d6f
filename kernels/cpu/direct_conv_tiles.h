/* direct_conv_tiles.h: pieces of convolutions done tap by tap (direct_conv.h), for AVX-512: matrices of units, and
 * their products.
 *
 * A unit is four bytes: an fp32 number, or two bf16 ones that are neighbours in a product's sum. What a product sums
 * over is counted in units, and but for how its operands are read, the two types are alike. Sums are fp32. */
#ifndef MT_CPU_TAPS_TILES_H
#define MT_CPU_TAPS_TILES_H

#include "program/kernel.h"

enum { ROWS = 8, COLUMNS = 32, UNIT = 4 /* bytes */ };

/* Elements in a unit */
static inline int64_t unit_of(DType t) { return UNIT / (int64_t)dtype_size(t); }

/* `rows` rows of n units, `stride` units apart -> (n, step), a row per column; columns beyond them are 0 */
void direct_conv_columns(const float *from, int64_t stride, int64_t rows, int64_t n, float *to, int64_t step);
/* The same of COLUMNS rows; n is a multiple of 16. */
void direct_conv_turn(const float *from, int64_t stride, int64_t n, float *to);
/* `rows` rows of `width` elements from element `at` on, `stride` elements apart -> (units, width): a unit is made of
 * neighbouring rows; an odd last one has a partner of 0. */
void direct_conv_rows(DType t, const void *from, int64_t at, int64_t stride, int64_t rows, int64_t width, float *to);

/* c (ROWS, COLUMNS) = (add: +=) sum over parts of a^T b, which are (n, ROWS) and (n, COLUMNS) at their offsets. Rows
 * are a_step, COLUMNS and c_step apart. */
typedef struct Part { int64_t a, b; } Part;
typedef struct Product {
    DType type;
    const float *a, *b;
    int64_t a_step, n;
    float *c;
    int64_t c_step;
    bool add;
} Product;
void direct_conv_product(const Product *p, const Part *part, int64_t parts);

#endif
