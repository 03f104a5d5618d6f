/* vector_math.h: lets loops under omp simd call libmvec's vector forms, which glibc's own header offers under
 * -ffast-math only (and with it NaN would be lost). */
#ifndef MT_CPU_VECTOR_MATH_H
#define MT_CPU_VECTOR_MATH_H

#include <math.h>

#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((simd("notinbranch"))) float expf(float);
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) float tanhf(float);
__attribute__((simd("notinbranch"))) float erff(float);
#endif
#endif

#endif
