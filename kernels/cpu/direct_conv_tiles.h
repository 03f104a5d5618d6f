/* direct_conv_tiles.h: pieces of convolutions that are done tap by tap (direct_conv.h), for AVX-512 and AVX2: matrices
 * of units, and their products.
 *
 * A unit is four bytes: an fp32 number, or two bf16 ones that are neighbours in a product's sum. The terms of a sum
 * are counted in units; except for how operands are read, the two types are alike. Sums are fp32.
 *
 * Numbers of type `from` become units of type `to`: bf16 ones are converted where `to` is fp32. rounds: fp32 ones become numbers
 * that bf16 has, but stay fp32. */
#ifndef MT_CPU_DIRECT_CONV_TILES_H
#define MT_CPU_DIRECT_CONV_TILES_H

#include "program/operands.h"

enum { ROWS = 8, COLUMNS = 32, UNIT = 4 /* bytes */ };

/* Elements in a unit */
static inline int64_t unit_of(DType t) { return UNIT / (int64_t)dtype_size(t); }

typedef struct Units { DType from, to; const void *at; bool rounds; } Units;

/* `rows` rows of n units from unit `first` on, `stride` units apart -> (n, step): each row becomes a column; the columns
 * from `rows` to `step` are 0 */
void direct_conv_columns(Units u, int64_t first, int64_t stride, int64_t rows, int64_t n, float *to, int64_t step);
/* The same of COLUMNS rows -> (n, COLUMNS); n is a multiple of 16. */
void direct_conv_transpose(Units u, int64_t first, int64_t stride, int64_t n, float *to);
/* `rows` rows of `width` elements from element `at` on, `stride` elements apart -> (units, width): neighbouring rows
 * make a unit, of as many elements as it has; a lacking last one is 0. */
void direct_conv_rows(Units u, int64_t at, int64_t stride, int64_t rows, int64_t width, float *to);

/* c (ROWS, COLUMNS) = the sum over parts of a^T b; add: c += it. A part's a (n, ROWS) and b (n, COLUMNS) lie at its
 * offsets. Rows of a, b and c are a_step, COLUMNS and c_step floats apart. */
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
