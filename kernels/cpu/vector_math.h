/* vector_math.h: lets loops under omp simd call libmvec's vector forms. glibc's own header offers them only under
 * -ffast-math, with which NaN would be lost. */
#ifndef MT_CPU_VECTOR_MATH_H
#define MT_CPU_VECTOR_MATH_H

#include <math.h>

#include "base/dtype.h"

#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((simd("notinbranch"))) float expf(float);
__attribute__((simd("notinbranch"))) float logf(float);
__attribute__((simd("notinbranch"))) float cosf(float);
__attribute__((simd("notinbranch"))) float sinf(float);
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) float tanhf(float);
__attribute__((simd("notinbranch"))) float expm1f(float);
__attribute__((simd("notinbranch"))) float log1pf(float);
#endif
#endif

/* exp(x) for x <= 0, right to the last place; 0 where the result would be below the smallest normal number, since
 * libmvec passes such lanes to libm one by one. NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; adding a large number rounds x / ln 2 to n, and leaves n + 127, the exponent of 2^n,
 * in its last bits. ln 2 is the sum of a number of 9 bits, whose product with n is exact, and a rest.
 * e^r = 1 + r + r^2 q(r); q is fitted by least squares to the largest relative error, 3e-9. */
__attribute__((always_inline)) static inline float exp_flushed(float x) {
    const float large = 12582912.0f + 127.0f, rounded = x * 1.44269504f + large, n = rounded - large;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f, scale = f32_from_bits(f32_bits(rounded) << 23); /* 2^n */
    float p = 1.38145918e-3f;
    p = p * r + 8.36871658e-3f;
    p = p * r + 4.1668389e-2f;
    p = p * r + 1.66665211e-1f;
    p = p * r + 4.9999994e-1f;
    p = p * r + 1.0f;
    return x < -87.0f ? 0.0f : (p * r + 1.0f) * scale;
}

#endif
