/* dtype.h: element types and their conversions. Shared with .cu files: C/C++ common subset. */
#ifndef MT_DTYPE_H
#define MT_DTYPE_H

#include <string.h>

#include "base.h"

#define DTYPES(X) X(F32, "f32", 4) X(BF16, "bf16", 2) X(F16, "f16", 2) X(I32, "i32", 4) X(U8, "u8", 1)

/*               enum, text, bytes of an element */
typedef enum DType {
#define X(name, text, size) DT_##name,
    DTYPES(X)
#undef X
    DT_COUNT
} DType;

/* Bytes of an element. */
static inline size_t dtype_size(DType t) {
    static const size_t sizes[] = {
#define X(name, text, size) size,
        DTYPES(X)
#undef X
    };
    assert((unsigned)t < DT_COUNT);
    return sizes[t];
}

static inline const char *dtype_name(DType t) {
    static const char *const names[] = {
#define X(name, text, size) text,
        DTYPES(X)
#undef X
    };
    assert((unsigned)t < DT_COUNT);
    return names[t];
}

/* The distance from 1 to the next larger number: torch.finfo(t).eps. t: a floating type. */
static inline float dtype_epsilon(DType t) { return t == DT_F16 ? 0x1p-10f : t == DT_BF16 ? 0x1p-7f : 0x1p-23f; }
static inline bool dtype_is_float(DType t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

MT_FN uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
MT_FN float f32_from_bits(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

/* round to nearest even; NaN stays NaN */
MT_FN uint16_t bf16_from_f32(float x) {
    uint32_t u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

MT_FN float bf16_to_f32(uint16_t h) { return f32_from_bits((uint32_t)h << 16); }

/* IEEE binary16: rounds to nearest even, overflows to infinity, keeps subnormals. A GPU has one instruction for each
 * conversion; the dozen of the CPU's version would slow down kernels that are limited by the GPU's memory. */
#define F16_FROM_F32(x) ({ uint16_t h_; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h_) : "f"(x)); h_; })
#define F16_TO_F32(h) ({ float x_; asm("cvt.f32.f16 %0, %1;" : "=f"(x_) : "h"(h)); x_; })

/* a: the bits of |x|, x not NaN -> |x| in binary16. Computes every case and then chooses one, so that compilers can
 * vectorize loops over it. */
MT_FN uint32_t f16_magnitude(uint32_t a) {
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
    /* subnormal: a float near 0.5 has the same last bit as the result, so adding 0.5 rounds to that */
    uint32_t tiny = f32_bits(f32_from_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? tiny : normal;
    return a >= 0x477ff000u ? 0x7c00u : h; /* what rounds to 65536 or more is infinity */
}

MT_FN uint16_t f16_from_f32(float x) {
    uint32_t u = f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    uint32_t rounded = MT_GPU(F16_FROM_F32(x), sign | f16_magnitude(a));
    return (uint16_t)(a > 0x7f800000u ? sign | 0x7e00u : rounded);
}

MT_FN float f16_widen(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    uint32_t tiny = f32_bits((float)(int32_t)a * 5.9604644775390625e-08f); /* 2^-24 */
    /* infinity and NaN have the largest exponent, here 31 and there 255 */
    uint32_t normal = (a << 13) + (a >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return f32_from_bits(sign | (a < 0x0400u ? tiny : normal));
}

MT_FN float f16_to_f32(uint16_t h) { return MT_GPU(F16_TO_F32(h), f16_widen(h)); }

/* element i of an array of floating type t */
MT_FN float dtype_load(DType t, const void *p, size_t i) {
    if (t == DT_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* x as that type has it */
MT_FN float dtype_round(DType t, float x) {
    if (t == DT_F32) return x;
    return t == DT_BF16 ? bf16_to_f32(bf16_from_f32(x)) : f16_to_f32(f16_from_f32(x));
}

MT_FN void dtype_store(DType t, void *p, size_t i, float x) {
    if (t == DT_F32) ((float *)p)[i] = x;
    else ((uint16_t *)p)[i] = t == DT_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
}

#endif
