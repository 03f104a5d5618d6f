#include "direct_conv_tiles.h"

#include <string.h>

#define REGISTER_LANES
#include "registers.h"

typedef int32_t Lanes __attribute__((vector_size(4 * LANES)));

/* ---- matrices of units */

static bool widens(Units u) { return u.from == DT_BF16 && u.to == DT_F32; }

FUSED void direct_conv_columns(Units u, int64_t first, int64_t stride, int64_t rows, int64_t n, float *to, int64_t step) {
    assert(rows <= step && n <= stride);
    const uint16_t *narrow = (const uint16_t *)u.at + first;
    const float *raw = (const float *)u.at + first;
    for (int64_t r = 0; r < step; r++)
        for (int64_t k = 0; k < n; k++) {
            if (r >= rows) to[k * step + r] = 0.0f;
            else if (widens(u)) to[k * step + r] = bf16_to_f32(narrow[r * stride + k]);
            else memcpy(to + k * step + r, raw + r * stride + k, UNIT);
        }
}

INLINE void transpose_all(DType t, const void *from, int64_t first, int64_t stride, int64_t n, float *to) {
    for (int64_t u = 0; u < n; u += GEMM_LANES)
        for (int c = 0; c < COLUMNS; c += GEMM_LANES) {
            R v[GEMM_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < GEMM_LANES; i++) v[i] = take(t, from, first + (c + i) * stride + u);
            turn_square(v);
#pragma GCC unroll 16
            for (int i = 0; i < GEMM_LANES; i++) *(R *)(to + (u + i) * COLUMNS + c) = v[i];
        }
}

FUSED void direct_conv_transpose(Units u, int64_t first, int64_t stride, int64_t n, float *to) {
    assert(n % GEMM_LANES == 0);
    if (widens(u)) transpose_all(DT_BF16, u.at, first, stride, n, to);
    else if (u.rounds) transpose_all(GEMM_F32_AS_BF16, u.at, first, stride, n, to);
    else transpose_all(DT_F32, u.at, first, stride, n, to);
}

/* Pairs of two rows' elements; without a second row its elements are 0 */
INLINE void pair_rows(const uint16_t *first, const uint16_t *second, int64_t width, uint32_t *to) {
    for (int64_t c = 0; c < width && second; c++) to[c] = (uint32_t)first[c] | (uint32_t)second[c] << 16;
    for (int64_t c = 0; c < width && !second; c++) to[c] = first[c];
}

INLINE void widen_row(const uint16_t *from, int64_t width, float *to) {
    for (int64_t c = 0; c < width; c++) to[c] = bf16_to_f32(from[c]);
}

INLINE void round_row(const float *from, int64_t width, float *to) {
    assert(width % LANES == 0); /* weights: COLUMNS of them */
    for (int64_t c = 0; c < width; c += LANES) store(to + c, lanes_rounded(load(from + c)));
}

FUSED void direct_conv_rows(Units u, int64_t at, int64_t stride, int64_t rows, int64_t width, float *to) {
    assert((u.from == DT_F32 || u.from == DT_BF16) && (u.to == u.from || widens(u)) && (!u.rounds || u.to == DT_F32));
    const char *row = (const char *)u.at + at * (int64_t)dtype_size(u.from);
    int64_t next = stride * (int64_t)dtype_size(u.from), unit = unit_of(u.to);
    for (int64_t r = 0; r < rows; r += unit, row += unit * next, to += width) {
        const uint16_t *narrow = (const uint16_t *)(const void *)row;
        const uint16_t *second = r + 1 < rows ? (const uint16_t *)(const void *)(row + next) : NULL;
        if (widens(u)) widen_row(narrow, width, to);
        else if (u.rounds) round_row((const float *)(const void *)row, width, to);
        else if (unit == 1) memcpy(to, row, (size_t)width * UNIT);
        else pair_rows(narrow, second, width, (uint32_t *)(void *)to);
    }
}

/* ---- products: two vectors of sums for each of HELD rows stay in registers */

#ifdef __AVX512F__
enum { HELD = ROWS };
#else
enum { HELD = ROWS / 2 };
#endif

INLINE V broadcast(const float *unit) {
    int32_t bits;
    memcpy(&bits, unit, sizeof bits);
    return (V)((Lanes){0} + bits);
}

/* sum += a b, lane by lane; pairs: a lane is two bf16 numbers, and both products are added */
INLINE V multiply_add(V sum, V a, V b, bool pairs) {
#ifdef __AVX512BW__ /* tests/wide.h defines __AVX512F__ where the instruction is not */
    if (pairs) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }
#endif
    (void)pairs; /* never here: bf16_gemm_fits() is false */
    return sum + a * b;
}

/* Rows [row, row + HELD) and columns [column, column + 2 LANES) of c */
INLINE void product_part(const Product *p, const Part *part, int64_t parts, bool pairs, int row, int column) {
    V s0[HELD] = {0}, s1[HELD] = {0};
    for (int64_t k = 0; k < parts; k++) {
        const float *a = p->a + part[k].a + row, *b = p->b + part[k].b + column;
        for (int64_t u = 0; u < p->n; u++, a += p->a_step, b += COLUMNS) {
            V b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 8
            for (int i = 0; i < HELD; i++) {
                V factor = broadcast(a + i);
                s0[i] = multiply_add(s0[i], factor, b0, pairs);
                s1[i] = multiply_add(s1[i], factor, b1, pairs);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < HELD; i++) {
        float *to = p->c + (row + i) * p->c_step + column;
        if (p->add) s0[i] += load(to), s1[i] += load(to + LANES);
        store(to, s0[i]);
        store(to + LANES, s1[i]);
    }
}

INLINE void product(const Product *p, const Part *part, int64_t parts, bool pairs) {
    for (int row = 0; row < ROWS; row += HELD)
        for (int column = 0; column < COLUMNS; column += 2 * LANES) product_part(p, part, parts, pairs, row, column);
}

FUSED void direct_conv_product(const Product *p, const Part *part, int64_t parts) {
    if (p->type == DT_BF16) product(p, part, parts, true);
    else product(p, part, parts, false);
}
