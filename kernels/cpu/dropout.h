/* dropout.h: what dropout multiplies by, for attention.c, too. */
#ifndef MT_CPU_DROPOUT_H
#define MT_CPU_DROPOUT_H

#include <stdint.h>

/* factors[i]: of element begin + i; begin and n are multiples of 4 */
void dropout_factors(float *factors, float p, uint64_t seed, uint32_t id, uint32_t call, uint64_t begin, int64_t n);

#endif
