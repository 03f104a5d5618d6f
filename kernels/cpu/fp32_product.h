/* fp32_product.h: products of matrices in fp32 by oneDNN, for ops that have some inside. */
#ifndef MT_FP32_PRODUCT_H
#define MT_FP32_PRODUCT_H

#include "base/base.h"
#include "base/err.h"

/* A matrix by rows, which are `stride` elements apart; transposed: the transpose of that matrix. */
typedef struct Matrix { float *at; int64_t stride; bool transposed; } Matrix;
static inline Matrix matrix(float *at, int64_t stride) { Matrix m = {at, stride, false}; return m; }
static inline Matrix transposed(float *at, int64_t stride) { Matrix m = {at, stride, true}; return m; }

/* c (m, n) = scale a (m, k) b (k, n); add: c += that. c overlaps neither a nor b. Runs on all threads, or, inside a
 * parallel region, on the calling one. Returns 0 or oneDNN's status, of several failures the bitwise or. */
int product(int64_t m, int64_t n, int64_t k, float scale, Matrix a, Matrix b, bool add, Matrix c);
/* The status of products as an ErrCode. */
int product_check(int status, Err *e);

#endif
