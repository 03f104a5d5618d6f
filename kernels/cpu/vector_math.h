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
 * x = n ln 2 + r with |r| <= ln 2 / 2; adding a large number and taking it off again rounds to n. ln 2 is the sum of a
 * number of 9 bits, whose product with n is exact, and a rest. e^r = 1 + r + r^2 q(r); q is fitted by least squares,
 * relative error 5e-11. */
__attribute__((always_inline)) static inline float exp_flushed(float x) {
    const float large = 12582912.0f, rounded = x * 1.44269504f + large, n = rounded - large;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const float scale = f32_from_bits((f32_bits(rounded) - f32_bits(large) + 127) << 23); /* 2^n */
    float q = 1.9790303e-4f;
    q = q * r + 1.3944704e-3f;
    q = q * r + 8.3334973e-3f;
    q = q * r + 4.1666294e-2f;
    q = q * r + 1.6666666e-1f;
    q = q * r + 5.0e-1f;
    return x < -87.0f ? 0.0f : (1.0f + (r + q * (r * r))) * scale;
}

#endif
