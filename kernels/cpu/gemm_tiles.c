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

INLINE void copy(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step) {
    const int64_t whole = n / GEMM_LANES * GEMM_LANES;
    for (int64_t r = 0; r < rows; r++, at += step, to += to_step) {
        for (int64_t i = 0; i < min_i64(n, LINES_AHEAD * LINE); i += LINE) ask_for(t, from, at + ROWS_AHEAD * step + i);
        for (int64_t i = 0; i < whole; i += GEMM_LANES) *(R *)(to + i) = take(t, from, at + i);
        for (int64_t i = whole; i < n; i++) to[i] = dtype_load(t, from, (size_t)(at + i));
    }
}

FUSED void gemm_copy(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to,
                     int64_t to_step) {
    switch (t) {
    case DT_F32: copy(DT_F32, from, at, step, rows, n, to, to_step); break;
    case DT_BF16: copy(DT_BF16, from, at, step, rows, n, to, to_step); break;
    default: assert(t == DT_F16), copy(DT_F16, from, at, step, rows, n, to, to_step);
    }
}

/* Of as many lines as a strip has: each of a row is asked for. */
INLINE void to_tiles(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t tile) {
    const int64_t whole = n / GEMM_COLUMNS * GEMM_COLUMNS;
    for (int64_t r = 0; r < rows; r++, at += step, to += GEMM_COLUMNS) {
        float *here = to;
        for (int64_t i = 0; i < n; i += LINE) ask_for(t, from, at + ROWS_AHEAD * step + i);
        for (int64_t i = 0; i < whole; i += GEMM_COLUMNS, here += tile) {
            *(R *)here = take(t, from, at + i);
            *(R *)(here + GEMM_LANES) = take(t, from, at + i + GEMM_LANES);
        }
        for (int64_t i = whole; i < n; i++) here[i - whole] = dtype_load(t, from, (size_t)(at + i));
    }
}

FUSED void gemm_to_tiles(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t tile) {
    switch (t) {
    case DT_F32: to_tiles(DT_F32, from, at, step, rows, n, to, tile); break;
    case DT_BF16: to_tiles(DT_BF16, from, at, step, rows, n, to, tile); break;
    default: assert(t == DT_F16), to_tiles(DT_F16, from, at, step, rows, n, to, tile);
    }
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

/* Four lanes of a new register: numbers p, q, r, s of the same four lanes of two registers, 4 to 7 being the second one's. Such
 * shuffles stay in a quarter or half of a register, and have one instruction. */
#define FOUR(l, k) ((k) < 4 ? (l) + (k) : GEMM_LANES + (l) + (k) - 4)
#define FOURS(l, p, q, r, s) FOUR(l, p), FOUR(l, q), FOUR(l, r), FOUR(l, s)
#if defined __AVX512F__
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__), FOURS(4, __VA_ARGS__), FOURS(8, __VA_ARGS__), FOURS(12, __VA_ARGS__)})
#elif defined __AVX__
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__), FOURS(4, __VA_ARGS__)})
#else
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__)})
#endif

/* Transposes squares of four lanes of v[4]. */
INLINE void turn_fours(R *v) {
    const R x = __builtin_shuffle(v[0], v[1], ALL_FOURS(0, 4, 1, 5)), y = __builtin_shuffle(v[0], v[1], ALL_FOURS(2, 6, 3, 7));
    const R z = __builtin_shuffle(v[2], v[3], ALL_FOURS(0, 4, 1, 5)), w = __builtin_shuffle(v[2], v[3], ALL_FOURS(2, 6, 3, 7));
    v[0] = __builtin_shuffle(x, z, ALL_FOURS(0, 1, 4, 5));
    v[1] = __builtin_shuffle(x, z, ALL_FOURS(2, 3, 6, 7));
    v[2] = __builtin_shuffle(y, w, ALL_FOURS(0, 1, 4, 5));
    v[3] = __builtin_shuffle(y, w, ALL_FOURS(2, 3, 6, 7));
}

/* Transposes v[GEMM_LANES]. */
INLINE void turn_square(R *v) {
#if defined __AVX512F__
    EXCHANGE(8)
#endif
#if defined __AVX__
    EXCHANGE(4)
#endif
#pragma GCC unroll 4
    for (int i = 0; i < GEMM_LANES; i += 4) turn_fours(v + i);
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

/* Rows of a panel are a constant apart: so places in them need no registers. */
INLINE void turn_to(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                    int64_t to_step) {
    if (to_step == GEMM_COLUMNS) turn(t, from, at, step, rows, n, there, to, GEMM_COLUMNS);
    else turn(t, from, at, step, rows, n, there, to, to_step);
}

FUSED void gemm_turn(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                     int64_t to_step) {
    assert(n <= there);
    switch (t) {
    case DT_F32: turn_to(DT_F32, from, at, step, rows, n, there, to, to_step); break;
    case DT_BF16: turn_to(DT_BF16, from, at, step, rows, n, there, to, to_step); break;
    default: assert(t == DT_F16), turn_to(DT_F16, from, at, step, rows, n, there, to, to_step);
    }
}

/* ---- products: two registers of sums for each row */

__attribute__((noinline)) static void leave_part(const GemmTile *t, int64_t row, const float *sums) {
    float *to = t->c + row * t->c_step;
    for (int64_t k = 0; k < t->columns; k++) to[k] = t->add ? to[k] + sums[k] : sums[k];
}

INLINE void leave(const GemmTile *t, int64_t row, R s0, R s1) {
    float *to = t->c + row * t->c_step, sums[GEMM_COLUMNS];
    if (t->columns == GEMM_COLUMNS || t->columns == GEMM_LANES) {
        const bool two = t->columns == GEMM_COLUMNS;
        if (t->add) s0 += *(const R *)to;
        if (t->add && two) s1 += *(const R *)(to + GEMM_LANES);
        *(R *)to = s0;
        if (two) *(R *)(to + GEMM_LANES) = s1;
        return;
    }
    *(R *)sums = s0;
    *(R *)(sums + GEMM_LANES) = s1;
    leave_part(t, row, sums);
}

/* rows, registers, turned: constants. The loop over the depth is not unrolled: gcc would then copy registers. Where the
 * processor has time for it, lines are asked for: those of c, and what comes soon. */
INLINE void tile(const GemmTile *t, int rows, int registers, bool turned) {
    const int64_t row = turned ? 1 : GEMM_STEP, next = turned ? GEMM_STEP : 1; /* of a */
    const bool asks = rows == GEMM_ROWS && !turned;
    R s0[GEMM_ROWS] = {{0}}, s1[GEMM_ROWS] = {{0}};
    const float *a = t->a, *b = t->b, *soon = t->soon ? t->soon : t->a;
    const int64_t soon_step = t->soon_step;
#pragma GCC unroll 14
    for (int i = 0; i < rows && asks; i++) __builtin_prefetch(t->c + min_i64(i, t->rows - 1) * t->c_step, 1);
#pragma GCC unroll 1
    for (int64_t k = 0; k < t->depth; k++, a += next, b += GEMM_COLUMNS, soon += soon_step) {
        const R b0 = *(const R *)b, b1 = *(const R *)(b + GEMM_LANES);
        if (asks) __builtin_prefetch(soon, 0, 2);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            s0[i] += a[i * row] * b0;
            if (registers == 2) s1[i] += a[i * row] * b1;
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
        if (i < t->rows) leave(t, i, t->scale * s0[i], t->scale * s1[i]);
}

INLINE void tile_of(const GemmTile *t, int rows) {
    const int registers = t->columns > GEMM_LANES ? 2 : 1;
    if (registers == 2 && !t->turned) tile(t, rows, 2, false);
    else if (registers == 2) tile(t, rows, 2, true);
    else if (!t->turned) tile(t, rows, 1, false);
    else tile(t, rows, 1, true);
}

FUSED void gemm_tile(const GemmTile *t) {
    assert(0 < t->rows && t->rows <= GEMM_ROWS && 0 < t->columns && t->columns <= GEMM_COLUMNS);
    switch ((t->rows + 1) / 2) {
    case 1: tile_of(t, 2); break;
    case 2: tile_of(t, 4); break;
    case 3: tile_of(t, 6); break;
#ifdef __AVX512F__
    case 4: tile_of(t, 8); break;
    case 5: tile_of(t, 10); break;
    case 6: tile_of(t, 12); break;
    default: tile_of(t, 14); break;
#endif
    }
}

/* ---- dot products, of rows of b where they lie */

enum { DOTS = 3 }; /* rows of a that are taken together: so all sums, and a place of the factors, fit into 16 registers */
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

/* Lane i: the sum of the lanes of v[i] */
INLINE Four lane_sums(R *v) {
    turn_fours(v);
    const R s = (v[0] + v[1]) + (v[2] + v[3]);
#if defined __AVX512F__
    return (__builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7)) +
           (__builtin_shufflevector(s, s, 8, 9, 10, 11) + __builtin_shufflevector(s, s, 12, 13, 14, 15));
#elif defined __AVX__
    return __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
#else
    return s;
#endif
}

/* A register of each row: rows, columns are constants */
INLINE void add_products(R (*s)[GEMM_DOTS], const float *a, int64_t a_step, const float *b, int64_t b_step, int rows, int columns) {
    R x[DOTS];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) x[i] = *(const R *)(a + i * a_step);
#pragma GCC unroll 4
    for (int j = 0; j < columns; j++) {
        const R y = *(const R *)(b + j * b_step);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) s[i][j] += x[i] * y;
    }
}

/* The last numbers, less than a register has, followed by zeros */
INLINE void add_rest(R (*s)[GEMM_DOTS], const float *a, const float *b, int64_t b_step, int64_t n, int rows, int columns) {
    float x[DOTS * GEMM_LANES] = {0}, y[GEMM_DOTS * GEMM_LANES] = {0};
    for (int64_t k = 0; k < n; k++) {
        for (int i = 0; i < rows; i++) x[i * GEMM_LANES + k] = a[i * GEMM_STEP + k];
        for (int j = 0; j < columns; j++) y[j * GEMM_LANES + k] = b[j * b_step + k];
    }
    add_products(s, x, GEMM_LANES, y, GEMM_LANES, rows, columns);
}

/* c[row + i][0 .. columns) for `rows` rows. Each of the first few asks for one of the next columns. */
INLINE void dots(const GemmTile *t, int64_t b_step, int64_t row, int rows, int columns) {
    R s[DOTS][GEMM_DOTS] = {{{0}}};
    const float *a = t->a + row * GEMM_STEP, *b = t->b, *soon = b + (GEMM_DOTS + row / DOTS % GEMM_DOTS) * b_step;
    int64_t k = 0;
#pragma GCC unroll 1
    for (; k + GEMM_LANES <= t->depth; k += GEMM_LANES) {
        __builtin_prefetch(soon + k);
        add_products(s, a + k, GEMM_STEP, b + k, b_step, rows, columns);
    }
    if (k < t->depth) add_rest(s, a + k, b + k, b_step, t->depth - k, rows, columns);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        float *c = t->c + (row + i) * t->c_step;
        Four sums = t->scale * lane_sums(s[i]);
        if (columns == 1) *c = t->add ? *c + sums[0] : sums[0];
        else {
            if (t->add) sums += *(const Four *)c;
            *(Four *)c = sums;
        }
    }
}

INLINE void dots_of(const GemmTile *t, int64_t b_step, int columns) {
    int64_t row = 0;
    for (; row + DOTS <= t->rows; row += DOTS) dots(t, b_step, row, DOTS, columns);
    if (t->rows - row == 2) dots(t, b_step, row, 2, columns);
    else if (t->rows > row) dots(t, b_step, row, 1, columns);
}

FUSED void gemm_dots(const GemmTile *t, int64_t b_step) {
    GemmTile one = *t;
    assert(0 < t->columns && t->columns <= GEMM_DOTS);
    if (t->columns == GEMM_DOTS) dots_of(t, b_step, GEMM_DOTS);
    else
        for (int64_t j = 0; j < t->columns; j++, one.b += b_step, one.c++) dots_of(&one, b_step, 1);
}
