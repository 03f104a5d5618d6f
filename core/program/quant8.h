/* quant8.h: numbers of 8 bits in blocks that share a scale (Dettmers et al. 2022, 8-bit Optimizers via Block-wise
 * Quantization), as torchao's optimizers keep their states. For every device, in fp32. Shared with .cu files.
 *
 * A number is the value of its code, of magnitude at most 1, times the scale, which is the largest magnitude of the
 * block. The values other than 0 and 1 are in the decades 0.1 .. 1 times 10^-6, 10^-5, .. 1. In each decade they are
 * evenly spaced: decade j has 2^j positive and 2^j negative values in a signed map, 2^(j + 1) values in a positive
 * one. */
#ifndef MT_QUANT8_H
#define MT_QUANT8_H

#include "kernel.h"

/* LEAST: a parameter with fewer numbers has no codes; MOST: the largest block; DECADES: of values */
enum { CODES_LEAST = 4096, CODES_MOST = 2048, CODES_DECADES = 7 };

typedef enum CodeMap { CODES_SIGNED, CODES_POSITIVE } CodeMap;

/* 10^n, 0 <= n < 8 */
MT_FN float quant8_ten(int n) { return (n & 1 ? 10.0f : 1.0f) * (n & 2 ? 100.0f : 1.0f) * (n & 4 ? 1e4f : 1.0f); }

/* The value of the code. Values have places, numbered by magnitude: those of decade j begin at 2^(j + map), so that the
 * logarithm of a place gives its decade. The place before the first decade is 0, the one after the last is 1. */
MT_FN float code_value(CodeMap map, int code) {
    const int place = map == CODES_POSITIVE ? code + 1 : code < 127 ? 127 - code : code - 127;
    const uint32_t bits = f32_bits((float)place + 0.5f);
    const int decade = (int)(bits >> 23) - 127 - (int)map;
    const float inside = f32_from_bits((bits & 0x7fffffu) | 0x3f800000u) - 1.0f; /* 0 .. 1 in the decade */
    const float value = (0.1f + 0.9f * inside) * (quant8_ten(decade) * 1e-6f), least = decade < 0 ? 0.0f : value;
    const float most = least < 1.0f ? least : 1.0f;
    return map == CODES_SIGNED && code < 127 ? -most : most;
}

/* Is `a` nearer to the first value of the next decade than to the last value of decade j, whose upper end is `end`? */
MT_FN int quant8_above(CodeMap map, float a, int j, float end) {
    return a >= end * (1.0f + 0.9f / (float)(1 << (j + (int)map)));
}

/* The code of the value nearest to x, |x| <= 1. -1 has no code: it gets that of the nearest value. */
MT_FN int code_of(CodeMap map, float x) {
    const float a = fabsf(x), zero = map == CODES_SIGNED ? 0.275e-6f : 0.1625e-6f; /* half of the smallest value */
    const float one = 1.0f - 0.225f / (float)(1 << (CODES_DECADES - 1 + (int)map));
    const int decade = quant8_above(map, a, 0, 1e-6f) + quant8_above(map, a, 1, 1e-5f) +
                       quant8_above(map, a, 2, 1e-4f) + quant8_above(map, a, 3, 1e-3f) +
                       quant8_above(map, a, 4, 1e-2f) + quant8_above(map, a, 5, 1e-1f);
    const int n = 1 << (decade + (int)map);
    const float inside = (a * quant8_ten(CODES_DECADES - 1 - decade) - 0.1f) * (float)n * (1.0f / 0.9f);
    int place = (int)(inside > 0.0f ? inside : 0.0f);
    place = n + (place < n ? place : n - 1) + (a >= one);
    place = a < zero ? (int)map : place;
    if (map == CODES_POSITIVE) return place - 1;
    return x < 0.0f ? 127 - (place < 127 ? place : 127) : 127 + place;
}

/* The scale of a block, which is never 0. bits: the largest quant8_magnitude of its numbers */
MT_FN float quant8_scale(uint32_t bits) {
    const float most = f32_from_bits(bits);
    return most < 1e-12f ? 1e-12f : most;
}

/* The bits of |x|. They are ordered as the magnitudes are; those of a NaN are larger than all. */
MT_FN uint32_t quant8_magnitude(float x) { return f32_bits(x) & 0x7fffffffu; }

/* Blocks are consecutive in PyTorch's order. An image is stored channels-last: its groups of (channels, pixels) are in
 * memory as (pixels, channels). Everything else is stored in PyTorch's order: pixels is 1. */
typedef struct Quant8Order { int64_t channels, pixels; } Quant8Order;

static inline Quant8Order quant8_order(const View *v) {
    const int64_t *d = v->shape.dim;
    Quant8Order o = {1, 1};
    if (v->channels_last && v->shape.rank == 4) o.channels = d[1], o.pixels = d[2] * d[3];
    else if (v->order[0]) o.channels = v->order[0], o.pixels = v->order[1] * v->order[2];
    if (o.channels == 1) o.pixels = 1;
    return o;
}

/* The place in memory of element i in PyTorch's order. */
MT_FN int64_t quant8_at(Quant8Order o, int64_t i) {
    int64_t row, channel;
    if (o.pixels == 1) return i;
    row = i / o.pixels;
    channel = row % o.channels;
    return (row - channel) * o.pixels + (i - row * o.pixels) * o.channels + channel;
}

#endif
