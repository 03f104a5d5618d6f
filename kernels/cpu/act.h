/* act.h: activations and their gradients, for products that have just made x or dy: y = f(x); dx = dy f'(s). While a
 * piece of dx is in the cache, it is also summed over all but the channels: that sum is the gradient of a bias. */
#ifndef MT_CPU_ACT_H
#define MT_CPU_ACT_H

#include "program/kernel.h"

/* y[n] = f(x[n]); y may be x. slope[n] = f'(s[n]); slope may be s. dx[n] = dy[n] f'(s[n]); dx may be dy, or s. */
void act_block(const ActAttr *f, float *y, const float *x, int64_t n);
void act_slope_block(const ActAttr *f, float *slope, const float *s, int64_t n);
void act_dx_block(const ActAttr *f, float *dx, const float *dy, const float *s, int64_t n);

/* y[n] = f(x[n]), rounded as stored in that type; y may be x. */
void act_rounded_block(const MulAttr *f, float *y, const float *x, int64_t n);

/* Does the type have all values of f'? */
bool act_slopes_fit(const ActAttr *f, DType type);
/* Has f' two values only? Then act_bits keeps in act_bits_bytes which of them each element of s has: 1 bit for each, and
 * s may be overwritten. */
bool act_has_bits(const ActAttr *f);
size_t act_bits_bytes(const View *s);
void act_bits(const ActAttr *f, const View *s, void *bits);

/* dx = dy f'(s), and db (C) = the sum of dx (..., C), before dx is rounded to its type; db may be absent. dy may be dx, or
 * s may be. bits: of s, which is not read then; or NULL. `parts` has act_dx_parts bytes. The number of threads changes no
 * bit of the results. */
void act_dx_sums(const ActAttr *act, const View *dy, const View *s, const void *bits, const View *dx, const View *db, float *parts);
size_t act_dx_parts(const View *dx, const View *db);

/* db[c] = parts[0][c] + parts[1][c] + ..., in this order */
void sum_parts(const View *db, const float *parts, int64_t n);

#endif
