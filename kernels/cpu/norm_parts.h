/* norm_parts.h: what norm.c and norm_columns.c share. The latter normalises images by groups, channel beside channel. */
#ifndef MT_CPU_NORM_PARTS_H
#define MT_CPU_NORM_PARTS_H

#include "tiles.h"
#include "program/norm.h"

/* Group g of sample n is rows [n R, (n + 1) R), channels [g G, (g + 1) G). */
typedef struct Groups { int64_t channels, groups, rows, size; } Groups; /* rows of a sample, channels of a group */

Groups groups_of(const KArgs *a, const View *x, const View *istd);

/* n values of a parameter from `first` on, or `value` where there is none. */
void load_param(const View *v, int64_t first, int64_t n, float value, float *to);
/* Per channel of a tile: adds sums of x and of its squares; of dy (x - mean) and of dy. */
void add_squares(double *sum, double *squares, const float *x, int64_t stride, int64_t rows, int64_t cols);
void add_slopes(double *dw, double *db, const float *dy, int64_t dy_from, const float *x, int64_t x_from,
                const float *mean, int64_t rows, int64_t cols);
/* dx = dy k + (x - mean) slope + shift, each per channel: coef[3][TILE_COLS] */
void batch_dx_tile(float *dx, int64_t to, const float *dy, int64_t dy_from, const float *x, int64_t x_from,
                   const float *mean, const float *coef, int64_t rows, int64_t cols);

/* Does it pay to sum the channels of images side by side, and only then by group? Then each sample has
 * norm_column_blocks items. */
bool norm_by_columns(const Groups *g);
int64_t norm_column_blocks(const Groups *g);
RangeFn norm_columns, norm_dx_columns;
SlabFn norm_dw_columns;

#endif
