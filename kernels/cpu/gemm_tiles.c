#include "gemm_tiles.h"

#include "lanes.h"

typedef float R __attribute__((vector_size(4 * GEMM_LANES), aligned(4), may_alias)); /* a register */
typedef uint32_t Bits __attribute__((vector_size(4 * GEMM_LANES)));
typedef int32_t Places __attribute__((vector_size(4 * GEMM_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * GEMM_LANES), aligned(2), may_alias));

/* ---- factors */

/* Lane by lane what f16_to_f32 (dtype.h) does: a subnormal number becomes right by the product, infinity and NaN by the
 * largest exponent. */
INLINE R f16_lanes(Bits h) {
    const Bits a = (h & 0x7fff) << 13, special = (Bits)((h & 0x7fff) >= 0x7c00) & 0x7f800000u;
    return (R)((Bits)((R)a * 0x1p112f) | special | (h & 0x8000) << 16);
}

/* GEMM_LANES numbers from element `at` on */
INLINE R take(DType t, const void *from, int64_t at) {
    if (t == DT_F32) return *(const R *)((const float *)from + at);
    const Bits h = __builtin_convertvector(*(const Halves *)((const uint16_t *)from + at), Bits);
    return t == DT_BF16 ? (R)(h << 16) : f16_lanes(h);
}

/* Rows lie far apart, so that no processor guesses which lines of memory are needed next: those of a later row are asked for,
 * whether there is such a row or not; of a long one the first ones, since the processor sees to the rest. */
enum { ROWS_AHEAD = 16, LINE = 16 /* numbers, at least */, LINES_AHEAD = 4 };

INLINE void ask_for(DType t, const void *from, int64_t at) {
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * (t == DT_F32 ? 4 : 2)));
}

INLINE void copy(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step,
                 int64_t panel) {
    for (int64_t r = 0; r < rows; r++, at += step, to += to_step) {
        float *here = to;
        int64_t i = 0;
        for (int64_t k = 0; k < min_i64(n, LINES_AHEAD * LINE); k += LINE) ask_for(t, from, at + ROWS_AHEAD * step + k);
        for (; i + GEMM_COLUMNS <= n; i += GEMM_COLUMNS, here += panel) {
            *(R *)here = take(t, from, at + i);
            *(R *)(here + GEMM_LANES) = take(t, from, at + i + GEMM_LANES);
        }
        if (i + GEMM_LANES <= n) *(R *)here = take(t, from, at + i), i += GEMM_LANES, here += GEMM_LANES;
        for (; i < n; i++) *here++ = dtype_load(t, from, (size_t)(at + i));
    }
}

/* `call` with the type as a constant */
#define BY_TYPE(type, call)                                     \
    switch (type) {                                             \
    case DT_F32: { const DType t = DT_F32; call; } break;       \
    case DT_BF16: { const DType t = DT_BF16; call; } break;     \
    default: { const DType t = DT_F16; call; }                  \
    }

FUSED void gemm_copy(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step) {
    BY_TYPE(type, copy(t, from, at, step, rows, n, to, to_step, GEMM_COLUMNS))
}

FUSED void gemm_panels(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t panel) {
    BY_TYPE(type, copy(t, from, at, step, rows, n, to, GEMM_COLUMNS, panel))
}

/* The lanes of two registers, one after the other, that make a new one: rows that are s apart exchange the blocks of s
 * lanes off their diagonal. Constants before anything is optimised: else a processor without AVX-512 gets several instructions
 * for each. */
#define PLACE(l, s, second) ((second) ? ((l) & (s) ? GEMM_LANES + (l) : (l) + (s)) : ((l) & (s) ? GEMM_LANES + (l) - (s) : (l)))
#define PLACES4(l, s, second) PLACE(l, s, second), PLACE(l + 1, s, second), PLACE(l + 2, s, second), PLACE(l + 3, s, second)
#define PLACES8(l, s, second) PLACES4(l, s, second), PLACES4(l + 4, s, second)
#if defined __AVX512F__
#define PLACES(s, second) ((Places){PLACES8(0, s, second), PLACES8(8, s, second)})
#elif defined __AVX__
#define PLACES(s, second) ((Places){PLACES8(0, s, second)})
#else
#define PLACES(s, second) ((Places){PLACES4(0, s, second)})
#endif

#define EXCHANGE(s)                                                 \
    _Pragma("GCC unroll 16") for (int i = 0; i < GEMM_LANES; i++)   \
        if (!(i & s)) {                                             \
            const R x = v[i], y = v[i + s];                         \
            v[i] = __builtin_shuffle(x, y, PLACES(s, false));       \
            v[i + s] = __builtin_shuffle(x, y, PLACES(s, true));    \
        }

/* Transposes v[GEMM_LANES]. */
INLINE void turn_square(R *v) {
#if defined __AVX512F__
    EXCHANGE(8)
#endif
#if defined __AVX__
    EXCHANGE(4)
#endif
    EXCHANGE(2)
    EXCHANGE(1)
}

INLINE int64_t up_to_lanes(int64_t n) { return (n + GEMM_LANES - 1) / GEMM_LANES * GEMM_LANES; }

/* A square of `turn`, of which there are `rows` rows and n columns; whole: all of them, which needs no comparisons */
INLINE void turn_part(DType t, const void *from, int64_t at, int64_t step, bool whole, int64_t rows, int64_t n, float *to,
                      int64_t to_step) {
    R v[GEMM_LANES];
#pragma GCC unroll 16
    for (int r = 0; r < GEMM_LANES; r++) {
        v[r] = (R){0};
        if (whole || r < rows) v[r] = take(t, from, at + r * step);
    }
    turn_square(v);
#pragma GCC unroll 16
    for (int c = 0; c < GEMM_LANES; c++)
        if (whole || c < n) *(R *)(to + c * to_step) = v[c];
}

INLINE void turn(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                 int64_t to_step) {
    const int64_t whole = min_i64(up_to_lanes(n), there / GEMM_LANES * GEMM_LANES);
    for (int64_t i = 0; i < rows; i += GEMM_LANES)
        for (int64_t j = 0; j < whole; j += GEMM_LANES) {
            const int64_t place = at + i * step + j;
            float *here = to + j * to_step + i;
#pragma GCC unroll 16
            for (int r = 0; r < GEMM_LANES; r++)
                if (j % LINE == 0) ask_for(t, from, place + (r + ROWS_AHEAD) * step);
            if (i + GEMM_LANES <= rows && j + GEMM_LANES <= n) turn_part(t, from, place, step, true, 0, 0, here, to_step);
            else turn_part(t, from, place, step, false, rows - i, n - j, here, to_step);
        }
    for (int64_t j = whole; j < n; j++)
        for (int64_t i = 0; i < rows; i++) to[j * to_step + i] = dtype_load(t, from, (size_t)(at + i * step + j));
}

FUSED void gemm_turn(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                     int64_t to_step) {
    assert(n <= there);
    BY_TYPE(type, turn(t, from, at, step, rows, n, there, to, to_step))
}

/* ---- products: two registers of sums for each row */

/* TERMS: of each sum between two ends of a loop. With AVX2 a loop of one term has so many instructions beside its products that
 * two threads of one core keep each other from them. gcc would copy sums from register to register in a longer loop, so the
 * instruction is named; with AVX-512, whose loops are twice as long, neither is needed. */
#if defined __FMA__ && !defined __AVX512F__
enum { TERMS = 4 };
#define ADD_PRODUCT(s, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(s) : "x"(a), "x"(b))
#else
enum { TERMS = 1 };
#define ADD_PRODUCT(s, a, b) ((s) += (a) * (b))
#endif

/* Leaves the sums of a tile that has fewer rows or columns than are computed. */
HOT static void leave_part(const GemmTile *t, const float *sums) {
    for (int64_t i = 0; i < t->rows; i++, sums += GEMM_COLUMNS)
        for (int64_t k = 0; k < t->columns; k++) {
            float *to = t->c + i * t->c_step + k;
            *to = t->add ? *to + sums[k] : sums[k];
        }
}

/* A term of each sum: a number of each row of a, which are `row` apart, times a row of b */
INLINE void term(R *s0, R *s1, int rows, int registers, const float *a, int64_t row, const float *b) {
    const R b0 = *(const R *)b, b1 = *(const R *)(b + GEMM_LANES);
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        const R x = a[i * row] - (R){0}; /* in each lane */
        ADD_PRODUCT(s0[i], x, b0);
        if (registers == 2) ADD_PRODUCT(s1[i], x, b1);
    }
}

/* rows, registers, turned: constants */
INLINE void tile(const GemmTile *t, int rows, int registers, bool turned) {
    const int64_t row = turned ? 1 : GEMM_STEP, next = turned ? GEMM_STEP : 1; /* of a */
    const int64_t whole = t->depth / TERMS * TERMS;
    R s0[GEMM_ROWS] = {{0}}, s1[GEMM_ROWS] = {{0}};
    const float *a = t->a, *b = t->b;
#pragma GCC unroll 1
    for (int64_t k = 0; k < whole; k += TERMS, a += TERMS * next, b += TERMS * GEMM_COLUMNS)
#pragma GCC unroll 4
        for (int j = 0; j < TERMS; j++) term(s0, s1, rows, registers, a + j * next, row, b + j * GEMM_COLUMNS);
#pragma GCC unroll 1
    for (int64_t k = whole; k < t->depth; k++, a += next, b += GEMM_COLUMNS) term(s0, s1, rows, registers, a, row, b);
    if (t->rows == rows && t->columns == registers * GEMM_LANES) {
        float *c = t->c;
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++, c += t->c_step) {
            s0[i] *= t->scale, s1[i] *= t->scale;
            if (t->add) s0[i] += *(const R *)c;
            if (t->add && registers == 2) s1[i] += *(const R *)(c + GEMM_LANES);
            *(R *)c = s0[i];
            if (registers == 2) *(R *)(c + GEMM_LANES) = s1[i];
        }
        return;
    }
    float sums[GEMM_ROWS * GEMM_COLUMNS];
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        *(R *)(sums + i * GEMM_COLUMNS) = t->scale * s0[i];
        *(R *)(sums + i * GEMM_COLUMNS + GEMM_LANES) = t->scale * s1[i];
    }
    leave_part(t, sums);
}

/* Functions of their own: gcc copies registers where all are one. */
#define TILE(rows, registers, turned)                                                        \
    FUSED HOT static void tile_##rows##_##registers##_##turned(const GemmTile *t) { tile(t, rows, registers, turned); }
#define TILES(rows) TILE(rows, 1, false) TILE(rows, 1, true) TILE(rows, 2, false) TILE(rows, 2, true)
#define NAMES(rows)                                                                           \
    {{tile_##rows##_1_false, tile_##rows##_1_true}, {tile_##rows##_2_false, tile_##rows##_2_true}}
TILES(2) TILES(4) TILES(6)
#ifdef __AVX512F__
TILES(8) TILES(10) TILES(12) TILES(14)
#endif

typedef void TileFn(const GemmTile *t);
static TileFn *const tiles[(GEMM_ROWS + 1) / 2][2][2] = { /* by pairs of rows, by registers, by turned */
    NAMES(2), NAMES(4), NAMES(6),
#ifdef __AVX512F__
    NAMES(8), NAMES(10), NAMES(12), NAMES(14),
#endif
};

void gemm_tile(const GemmTile *t) {
    assert(0 < t->rows && t->rows <= GEMM_ROWS && 0 < t->columns && t->columns <= GEMM_COLUMNS);
    tiles[(t->rows - 1) / 2][t->columns > GEMM_LANES][t->turned](t);
}
