/* bias.h: what a library leaves to do after a matrix product or convolution: bias and activation; an activation's
 * gradient, and its sum, which is a bias's gradient; sums of partial results.
 *
 * All functions see a tensor as rows of C channels, where C is the length of the vector beside it: (N, H, W, C) or
 * (N, C). `a` is the op that runs: its device, and its name for messages. Sums are in fp32, in an order that depends on
 * shapes and workspace only. For C and .cu files. */
#ifndef MT_BIAS_H
#define MT_BIAS_H

#include "cuda.h"

/* `parts` arrays of `count` fp32 numbers, `stride` apart: the sums of single blocks */
typedef struct Parts {
    float *at;
    int64_t count, stride;
    int parts;
} Parts;

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of workspace for sums over rows, at most `limit`. With more of them more blocks share the work; 0 is enough,
 * too. */
size_t bias_workspace(int64_t rows, int64_t channels, size_t limit);

/* y = f(x + b), also in place; b may be absent */
int bias_act(const KArgs *a, const View *x, const View *b, ActAttr act, const View *y, Err *e);
/* db (C) = sum of dy over the rows */
int bias_sum(const KArgs *a, const View *dy, const View *db, void *workspace, size_t bytes, Err *e);
/* dx *= f'(s), in place, and db (C) = sum of dx over the rows; db may be absent */
int bias_act_dx(const KArgs *a, const View *dx, const View *s, ActAttr act, const View *db, void *workspace,
                size_t bytes, Err *e);

/* out[i] = f(sum over the parts of part[i] + b[i mod length of b]); b NULL or absent: none */
int bias_parts(const KArgs *a, const Parts *parts, const View *b, ActAttr act, const View *out, Err *e);

/* (rows, from_channels) -> (rows, to_channels): missing channels become 0, surplus ones are left out. Types may
 * differ. */
int bias_pad(const KArgs *a, const void *from, DType from_type, int64_t from_channels, void *to, DType to_type,
             int64_t to_channels, int64_t rows, Err *e);

#ifdef __cplusplus
}
#endif

#endif
