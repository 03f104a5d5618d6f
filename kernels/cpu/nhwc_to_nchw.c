/* nhwc_to_nchw.c: channels-last images to PyTorch's element order and back: per sample a transposition
 * (H W, C) <-> (C, H W). */
#include "parallel.h"
#include "program/nhwc_to_nchw.h"
#include "registers.h"

/* TILE: columns, several lines of memory; LINE: bytes, of which each is written once */
enum { TILE = 32, LINE = 64 };

INLINE void copy_number(void *to, int64_t i, const void *from, int64_t j, bool halves) {
    if (halves) ((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
    else ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
}

/* GEMM_LANES rows and columns from (r, c) on */
INLINE void turn(void *to, const void *from, int64_t rows, int64_t cols, int64_t r, int64_t c, bool halves) {
    R v[GEMM_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < GEMM_LANES; i++) {
        const int64_t at = (r + i) * cols + c;
        v[i] = halves ? (R)__builtin_convertvector(*(const Halves *)((const uint16_t *)from + at), Bits) : *(const R *)((const float *)from + at);
    }
    turn_square(v);
#pragma GCC unroll 16
    for (int i = 0; i < GEMM_LANES; i++) {
        const int64_t at = (c + i) * rows + r;
        if (halves) *(Halves *)((uint16_t *)to + at) = __builtin_convertvector((Bits)v[i], Halves);
        else *(R *)((float *)to + at) = v[i];
    }
}

/* `few` rows, or columns, a constant: numbers that lie side by side come from so many runs, or go to them. For columns [c0, c1) */
INLINE void turn_few(void *to, const void *from, int64_t rows, int64_t cols, int64_t c0, int64_t c1, int few, bool halves) {
    if (rows == few) {
#pragma omp simd
        for (int64_t c = c0; c < c1; c++)
            for (int r = 0; r < few; r++) copy_number(to, c * few + r, from, r * cols + c, halves);
    } else {
#pragma omp simd
        for (int64_t r = 0; r < rows; r++)
            for (int c = 0; c < few; c++) copy_number(to, c * rows + r, from, r * few + c, halves);
    }
}

/* to (cols, rows) = from (rows, cols) transposed, for columns [c0, c1) */
INLINE void turn_columns(void *to, const void *from, int64_t rows, int64_t cols, int64_t c0, int64_t c1, bool halves) {
    const int64_t line = LINE / (halves ? 2 : 4);
    switch (min_i64(rows, cols)) { /* groups of channels, or pixels that become channels */
    case 2: turn_few(to, from, rows, cols, c0, c1, 2, halves); return;
    case 3: turn_few(to, from, rows, cols, c0, c1, 3, halves); return;
    case 4: turn_few(to, from, rows, cols, c0, c1, 4, halves); return;
    default: break;
    }
    for (int64_t r0 = 0; r0 < rows; r0 += line) {
        const int64_t r1 = min_i64(r0 + line, rows), whole = r1 - (r1 - r0) % GEMM_LANES;
        int64_t c = c0;
        for (; c + GEMM_LANES <= c1; c += GEMM_LANES) {
            for (int64_t r = r0; r < whole; r += GEMM_LANES) turn(to, from, rows, cols, r, c, halves);
            for (int64_t k = c; k < c + GEMM_LANES; k++)
                for (int64_t r = whole; r < r1; r++) copy_number(to, k * rows + r, from, r * cols + k, halves);
        }
        for (; c < c1; c++)
            for (int64_t r = r0; r < r1; r++) copy_number(to, c * rows + r, from, r * cols + c, halves);
    }
}

FUSED HOT static void turn_2(void *to, const void *from, int64_t rows, int64_t cols, int64_t c0, int64_t c1) {
    turn_columns(to, from, rows, cols, c0, c1, true);
}
FUSED HOT static void turn_4(void *to, const void *from, int64_t rows, int64_t cols, int64_t c0, int64_t c1) {
    turn_columns(to, from, rows, cols, c0, c1, false);
}

/* Items are tiles of columns, of one sample after the other. */
static void transpose(const KArgs *a, int64_t begin, int64_t end) {
    Rows r;
    if (rows_read(a, &r, NULL)) return; /* never: k_cpu_nhwc_to_nchw has read it, too */
    size_t size = dtype_size(a->in[0].dtype), sample = (size_t)(r.rows * r.cols) * size;
    int64_t tiles = div_up(r.cols, TILE);
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)a->out[0].data + (size_t)(i / tiles) * sample;
        const char *from = (const char *)a->in[0].data + (size_t)(i / tiles) * sample;
        int64_t c0 = i % tiles * TILE;
        (size == 2 ? turn_2 : turn_4)(to, from, r.rows, r.cols, c0, min_i64(c0 + TILE, r.cols));
    }
}

int k_cpu_nhwc_to_nchw(const KArgs *a, Err *e) {
    Rows r;
    int rc = rows_read(a, &r, e);
    assert(rc || (a->in[0].count == a->out[0].count && a->in[0].count == r.samples * r.rows * r.cols));
    assert(rc || dtype_size(a->in[0].dtype) == 2 || dtype_size(a->in[0].dtype) == 4);
    if (rc == OK) range_run(a, r.samples * div_up(r.cols, TILE), 1, transpose);
    return rc;
}

int k_cpu_nhwc_to_nchw_dx(const KArgs *a, Err *e) { return k_cpu_nhwc_to_nchw(a, e); }
