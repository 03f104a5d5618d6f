/* codes.h: numbers of a weight of 4 or 8 bits (math/quantized.h). */
#ifndef MT_CPU_CODES_H
#define MT_CPU_CODES_H

#include "math/quantized.h"

/* Numbers [i, i + n) of the weight, all of one row, in fp32 */
void codes_load(const Quantized *q, int64_t i, int64_t n, float *to);

/* Asks for their codes, which need not be there. */
void codes_ask(const Quantized *q, int64_t i, int64_t n);

#endif
