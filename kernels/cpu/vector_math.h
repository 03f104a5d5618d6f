/* vector_math.h: lets loops under omp simd call libmvec's vector forms. glibc's own header offers them only under
 * -ffast-math, with which NaN would be lost. */
#ifndef MT_CPU_VECTOR_MATH_H
#define MT_CPU_VECTOR_MATH_H

#include <math.h>

#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((simd("notinbranch"))) float expf(float);
__attribute__((simd("notinbranch"))) float logf(float);
__attribute__((simd("notinbranch"))) float cosf(float);
__attribute__((simd("notinbranch"))) float sinf(float);
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) float expm1f(float);
__attribute__((simd("notinbranch"))) float log1pf(float);
#endif
#endif

#endif
