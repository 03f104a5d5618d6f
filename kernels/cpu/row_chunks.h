/* row_chunks.h: walks through a row in parts of up to PART elements, which are fp32 on the stack: for softmax, and for
 * the loss that contains one. */
#ifndef MT_ROW_CHUNKS_H
#define MT_ROW_CHUNKS_H

#include "parallel.h"

#include "math/exponential.h"

enum { PART = 512 };
/* A loop over the parts of a row of n elements: part [from, from + m) */
#define EACH_PART(from, m, n) for (int64_t from = 0, m; m = min_i64(PART, (n) - from), from < (n); from += m)

HOT static float part_max(float most, const float *x, int64_t n) {
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

FUSED HOT static float part_exp_sum(const float *x, float most, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += exp_flushed(x[i] - most);
    return sum;
}

/* The same of n rows beside each other, an element of each at a time: most[i] and sum[i] are row i's. */
HOT static void larger(float *most, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) most[i] = x[i] > most[i] ? x[i] : most[i];
}

FUSED HOT static void add_exponentials(float *sum, const float *x, const float *most, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += exp_flushed(x[i] - most[i]);
}

#endif
