/* exponential.h: exponentials, and what activations and gates make of them, once for every device. Shared with .cu files. They are sums
 * and products, so a loop over vectors computes them without a call, and their bits depend on no library. */
#ifndef MT_EXPONENTIAL_H
#define MT_EXPONENTIAL_H

#include <math.h>

#include "base/dtype.h"

/* e^x = scale (1 + rest), of -87 <= x <= 88: x = n ln 2 + r with |r| <= ln 2 / 2 and scale = 2^n. Elsewhere both are any numbers.
 *
 * Adding a large number rounds x / ln 2 to n, and leaves n + 127, the exponent of 2^n, in its last bits. ln 2 is the sum of a
 * number of 9 bits, whose product with n is exact, and a rest. e^r = 1 + r + r^2 q(r); q is fitted by least squares to the largest
 * relative error, 3e-9. */
typedef struct Exponential { float scale, rest; } Exponential;

MT_FN Exponential exponential_of(float x) {
    const float large = 12582912.0f + 127.0f, rounded = x * 1.44269504f + large, n = rounded - large;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.38145918e-3f;
    p = p * r + 8.36871658e-3f;
    p = p * r + 4.1668389e-2f;
    p = p * r + 1.66665211e-1f;
    p = p * r + 4.9999994e-1f;
    p = p * r + 1.0f;
    const Exponential e = {f32_from_bits(f32_bits(rounded) << 23), p * r};
    return e;
}

/* Below it e^x is no normal number of fp32. */
#define EXP_LEAST (-87.0f)

/* y, or 0 where it is not valid. No condition: compilers follow the other side of one to the end of a loop, and compute both. */
MT_FN float zero_unless(bool valid, float y) { return f32_from_bits(f32_bits(y) & -(uint32_t)valid); }

/* e^x for x <= 0, right to the last place; 0 where x < EXP_LEAST. NaN stays NaN, here and below. */
MT_FN float exp_flushed(float x) {
    const Exponential e = exponential_of(x);
    return zero_unless(!(x < EXP_LEAST), (e.rest + 1.0f) * e.scale);
}

/* 2^y for -126 <= y <= 0: y = n + f with |f| <= 1/2; the polynomial is fitted as above, to 2e-9. */
MT_FN float exp2_negative(float y) {
    const float large = 12582912.0f + 127.0f, rounded = y + large, f = y - (rounded - large);
    float p = 1.53533736e-4f;
    p = p * f + 1.33988797e-3f;
    p = p * f + 9.61843692e-3f;
    p = p * f + 5.55033237e-2f;
    p = p * f + 2.40226477e-1f;
    p = p * f + 6.93147182e-1f;
    p = p * f + 1.0f;
    return p * f32_from_bits(f32_bits(rounded) << 23);
}

/* e^x - 1 for x <= 0, with the same relative error near 0 and far from it */
MT_FN float expm1_negative(float x) {
    const Exponential e = exponential_of(x);
    return x < EXP_LEAST ? -1.0f : e.rest * e.scale + (e.scale - 1.0f);
}

/* 1 / (1 + e^-x); 0 where that is no normal number */
MT_FN float sigmoid_value(float x) {
    const Exponential e = exponential_of(-x);
    return zero_unless(!(x < EXP_LEAST), 1.0f / (1.0f + zero_unless(!(x > -EXP_LEAST), (e.rest + 1.0f) * e.scale)));
}

/* tanh(x) = (1 - e^-2x) / (1 + e^-2x) */
MT_FN float tanh_value(float x) {
    const float e = expm1_negative(-2.0f * fabsf(x));
    return copysignf(e / (2.0f + e), x);
}

/* log(1 + e^-|x|): log(1 + e^x) is that much above max(x, 0) */
MT_FN float softplus_rest(float x) { return log1pf(exp_flushed(-fabsf(x))); }

#endif
