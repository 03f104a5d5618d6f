/* quantized.h: weights of 4 and 8 bits, as bitsandbytes stores them (Dettmers et al. 2023, QLoRA; 2022, LLM.int8()). For
 * every device, in fp32. Shared with .cu files.
 *
 * 4 bits: two codes in a byte, that of the earlier weight in the upper half. A weight is the number that a map of 16 has
 * for its code, times the largest magnitude (absmax) of its block: 64 weights that follow each other in PyTorch's order,
 * from one row into the next. With double quantisation absmax is a code of 8 bits, too: the number that a map of 256 has
 * for it, times the nested_absmax of its 256 blocks, plus one nested_offset for all.
 * 8 bits: a number from -127 to 127 (two's complement), times the row's largest magnitude (SCB), divided by 127. */
#ifndef MT_QUANTIZED_H
#define MT_QUANTIZED_H

#include "base/base.h"

typedef enum QuantFormat { QUANT_NONE, QUANT_NF4, QUANT_FP4, QUANT_INT8 } QuantFormat; /* NONE: no codes */
enum { QUANT_BLOCK = 64, QUANT_NESTED = 256, QUANT_MAP = 16, QUANT_NESTED_MAP = 256 };

/* Where a quantised weight (rows, columns) lies. map: NULL for 8 bits; nested_absmax: NULL without double
 * quantisation. */
typedef struct Quantized {
    const uint8_t *codes;
    const void *absmax; /* uint8_t[blocks] with double quantisation; else float[blocks], of 8 bits float[rows] */
    const float *map, *nested_absmax, *nested_map, *nested_offset;
    int64_t columns;
} Quantized;

/* Bytes of the codes of n weights, and the blocks that they are in. */
MT_FN int64_t quant4_bytes(int64_t n) { return (n + 1) / 2; }
MT_FN int64_t quant4_blocks(int64_t n) { return (n + QUANT_BLOCK - 1) / QUANT_BLOCK; }
MT_FN int64_t quant4_nested(int64_t blocks) { return (blocks + QUANT_NESTED - 1) / QUANT_NESTED; }

/* The absmax of a block of 4-bit weights. */
MT_FN float quant4_absmax(const Quantized *q, int64_t block) {
    if (!q->nested_absmax) return ((const float *)q->absmax)[block];
    return q->nested_map[((const uint8_t *)q->absmax)[block]] * q->nested_absmax[block / QUANT_NESTED] +
           *q->nested_offset;
}

/* The code of weight i. */
MT_FN int quant4_code(const uint8_t *codes, int64_t i) { return i & 1 ? codes[i / 2] & 15 : codes[i / 2] >> 4; }

/* A weight of 8 bits; scb: of its row. The last factor is 1 / 127 as fp32. */
MT_FN float quant8_weight(uint8_t code, float scb) { return (float)(int8_t)code * scb * 7.874015718698502e-3f; }

/* Weight i in PyTorch's order. */
MT_FN float quantized_weight(const Quantized *q, int64_t i) {
    if (q->map) return q->map[quant4_code(q->codes, i)] * quant4_absmax(q, i / QUANT_BLOCK);
    return quant8_weight(q->codes[i], ((const float *)q->absmax)[i / q->columns]);
}

#endif
