/* quantize.h: weights into codes of 4 and 8 bits, on the host, to the bits that bitsandbytes 0.50's CPU functions give on
 * one thread (its quantize_4bit, quantize_blockwise and int8_vectorwise_quant). math/quantized.h says what codes mean. */
#ifndef MT_QUANTIZE_H
#define MT_QUANTIZE_H

#include "network/network.h"

/* The parts of a quantised weight, by the names that bitsandbytes has for them; SCB is absmax, too. */
typedef enum QuantPart {
    QUANT_CODES, QUANT_ABSMAX, QUANT_QUANT_MAP, QUANT_NESTED_ABSMAX, QUANT_NESTED_QUANT_MAP, QUANT_NESTED_OFFSET,
    QUANT_PARTS
} QuantPart;

/* The numbers that the 16 codes of 4 bits stand for, and the 256 of 8 bits. */
void quant_map(QuantFormat format, float map[16]);
void quant_nested_map(float map[256]);

/* Fills the parts that the format has, each of as many elements as the layer's parameter has. values: of q->shape, in
 * PyTorch's order. false: out of host memory. */
bool quantize(const Quantization *q, const float *values, void *const part[QUANT_PARTS]);
/* The values that the parts stand for, in fp32. */
void dequantize(const Quantization *q, void *const part[QUANT_PARTS], float *values);

#endif
