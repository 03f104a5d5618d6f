/* act.h: activations and their gradients, for products that have just made x or dy: y = f(x); dx = dy f'(s). While a
 * piece of dx is in the cache, it is also summed over all but the channels: that sum is the gradient of a bias. */
#ifndef MT_CPU_ACT_H
#define MT_CPU_ACT_H

#include "program/kernel.h"

/* y[n] = f(x[n]); y may be x. slope[n] = f'(s[n]); slope may be s. dx[n] = dy[n] f'(s[n]); dx may be dy, or s. */
void act_block(const ActAttr *f, float *y, const float *x, int64_t n);
void act_slope_block(const ActAttr *f, float *slope, const float *s, int64_t n);
void act_dx_block(const ActAttr *f, float *dx, const float *dy, const float *s, int64_t n);

/* dx = dy f'(s), and db (C) = the sum of dx (..., C), before dx is rounded to its type; db may be absent. dy may be dx, or s
 * may be.
 * `parts` has act_dx_parts bytes. The number of threads changes no bit. */
void act_dx_sums(const ActAttr *act, const View *dy, const View *s, const View *dx, const View *db, float *parts);
size_t act_dx_parts(const View *dx, const View *db);

/* sums[c] += x[row][c], row by row */
void sum_rows(float *sums, const float *x, int64_t rows, int64_t channels);
/* db[c] = parts[0][c] + parts[1][c] + ..., in this order */
void sum_parts(const View *db, const float *parts, int64_t n);

#endif
