/* act.h: activations and their gradients, for products that have just made x or dy: y = f(x); dx = dy f'(s), and while
 * a piece of it is in the cache, its sums over all but the channels, which are the gradient of a bias. */
#ifndef MT_CPU_ACT_H
#define MT_CPU_ACT_H

#include "program/kernel.h"

/* y[n] = f(x[n]); y may be x. dx[n] = dy[n] f'(s[n]); dx may be dy. */
void act_block(const ActAttr *f, float *y, const float *x, int64_t n);
void act_dx_block(const ActAttr *f, float *dx, const float *dy, const float *s, int64_t n);

/* dx = dy f'(s) and, unless its count is 0, db (C) = sums of dx (..., C) before it is rounded to its type. dy may be
 * dx. `parts` has act_dx_parts bytes. The number of threads changes no bit. */
void act_dx_sums(const ActAttr *act, const View *dy, const View *s, const View *dx, const View *db, float *parts);
size_t act_dx_parts(const View *dx, const View *db);

/* sums[c] += x[row][c], row by row */
void sum_rows(float *sums, const float *x, int64_t rows, int64_t channels);
/* db[c] = parts[0][c] + parts[1][c] + ..., in this order */
void sum_parts(const View *db, const float *parts, int64_t n);

#endif
