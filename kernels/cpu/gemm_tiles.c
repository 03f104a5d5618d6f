#include "gemm_tiles.h"

#include "registers.h"

/* ---- factors */

/* Number `at` alone */
INLINE float take_one(DType t, const void *from, int64_t at) {
    return t == GEMM_F32_AS_BF16 ? dtype_round(DT_BF16, ((const float *)from)[at]) : dtype_load(t, from, (size_t)at);
}

/* Rows lie far apart, so that no processor guesses which lines of memory are needed next: those of a later row are asked for,
 * whether there is such a row or not; of a long one the first ones, since the processor sees to the rest. */
enum { ROWS_AHEAD = 16, LINE = 16 /* numbers, at least */, LINES_AHEAD = 4 };

INLINE size_t bytes_of(DType t) { return t == DT_F32 || t == GEMM_F32_AS_BF16 ? 4 : 2; }

INLINE void copy(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step,
                 int64_t panel) {
    for (int64_t r = 0; r < rows; r++, at += step, to += to_step) {
        float *here = to;
        int64_t i = 0;
        for (int64_t k = 0; k < min_i64(n, LINES_AHEAD * LINE); k += LINE) line_ask(from, at + ROWS_AHEAD * step + k, bytes_of(t));
        for (; i + GEMM_COLUMNS <= n; i += GEMM_COLUMNS, here += panel) {
            *(R *)here = take(t, from, at + i);
            *(R *)(here + GEMM_LANES) = take(t, from, at + i + GEMM_LANES);
        }
        if (i + GEMM_LANES <= n) *(R *)here = take(t, from, at + i), i += GEMM_LANES, here += GEMM_LANES;
        /* the last ones of a row that lies together, and some of those before them once more */
        if (i < n && panel == GEMM_COLUMNS && n >= GEMM_LANES) *(R *)(to + n - GEMM_LANES) = take(t, from, at + n - GEMM_LANES), i = n;
        for (; i < n; i++) *here++ = take_one(t, from, at + i);
    }
}

/* `call` with the type as a constant */
#define BY_TYPE(type, call)                                     \
    switch (type) {                                             \
    case DT_F32: { const DType t = DT_F32; call; } break;       \
    case DT_BF16: { const DType t = DT_BF16; call; } break;     \
    case DT_F16: { const DType t = DT_F16; call; } break;       \
    default: { const DType t = GEMM_F32_AS_BF16; call; }        \
    }

FUSED void gemm_copy(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t to_step) {
    BY_TYPE(type, copy(t, from, at, step, rows, n, to, to_step, GEMM_COLUMNS))
}

FUSED void gemm_panels(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, float *to, int64_t panel) {
    BY_TYPE(type, copy(t, from, at, step, rows, n, to, GEMM_COLUMNS, panel))
}

INLINE int64_t up_to_lanes(int64_t n) { return div_up(n, GEMM_LANES) * GEMM_LANES; }

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
                if (j % LINE == 0) line_ask_soon(from, place + (r + ROWS_AHEAD) * step, bytes_of(t));
            if (i + GEMM_LANES <= rows && j + GEMM_LANES <= n) turn_part(t, from, place, step, true, 0, 0, here, to_step);
            else turn_part(t, from, place, step, false, rows - i, n - j, here, to_step);
        }
    for (int64_t j = whole; j < n; j++)
        for (int64_t i = 0; i < rows; i++) to[j * to_step + i] = take_one(t, from, at + i * step + j);
}

/* Rows of a panel are a constant apart: so places in them need no registers. */
INLINE void turn_to(DType t, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                    int64_t to_step) {
    if (to_step == GEMM_COLUMNS) turn(t, from, at, step, rows, n, there, to, GEMM_COLUMNS);
    else turn(t, from, at, step, rows, n, there, to, to_step);
}

FUSED void gemm_turn(DType type, const void *from, int64_t at, int64_t step, int64_t rows, int64_t n, int64_t there, float *to,
                     int64_t to_step) {
    assert(n <= there);
    BY_TYPE(type, turn_to(t, from, at, step, rows, n, there, to, to_step))
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
INLINE void term(R *s0, R *s1, int rows, int registers, const float *a, int64_t row, R b0, R b1) {
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        const R x = a[i * row] - (R){0}; /* in each lane */
        ADD_PRODUCT(s0[i], x, b0);
        if (registers == 2) ADD_PRODUCT(s1[i], x, b1);
    }
}

INLINE void packed_term(R *s0, R *s1, int rows, int registers, const float *a, int64_t row, const float *b) {
    term(s0, s1, rows, registers, a, row, *(const R *)b, *(const R *)(b + GEMM_LANES));
}

/* The same, where a row of b lies from element `at` on; it is kept. ahead: the element that is asked for */
INLINE void lying_term(R *s0, R *s1, int rows, const float *a, DType type, const void *b, int64_t at, int64_t ahead, float *keep) {
    const R b0 = take(type, b, at), b1 = take(type, b, at + GEMM_LANES);
    line_ask_soon(b, ahead, bytes_of(type));
    *(R *)keep = b0, *(R *)(keep + GEMM_LANES) = b1;
    term(s0, s1, rows, 2, a, GEMM_STEP, b0, b1);
}

/* Leaves the sums of a tile. */
INLINE void leave(const GemmTile *t, R *s0, R *s1, int rows, int registers) {
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

/* rows, registers, turned: constants. Where the processor has time for it, lines are asked for: those of c, and what comes soon. */
INLINE void tile(const GemmTile *t, int rows, int registers, bool turned) {
    const int64_t row = turned ? 1 : GEMM_STEP, next = turned ? GEMM_STEP : 1; /* of a */
    const int64_t whole = t->depth / TERMS * TERMS;
    const bool asks = TERMS > 1 && rows >= GEMM_ROWS - 1 && !turned;
    R s0[GEMM_ROWS] = {{0}}, s1[GEMM_ROWS] = {{0}};
    const float *a = t->a, *b = t->b, *soon = t->soon ? t->soon : t->a;
    const int64_t soon_step = t->soon_step;
#pragma GCC unroll 14
    for (int i = 0; i < rows && asks; i++) __builtin_prefetch(t->c + min_i64(i, t->rows - 1) * t->c_step, 1);
#pragma GCC unroll 1
    for (int64_t k = 0; k < whole; k += TERMS, a += TERMS * next, b += TERMS * GEMM_COLUMNS, soon += TERMS * soon_step)
#pragma GCC unroll 4
        for (int j = 0; j < TERMS; j++) {
            if (asks) __builtin_prefetch(soon + j * soon_step, 0, 2);
            packed_term(s0, s1, rows, registers, a + j * next, row, b + j * GEMM_COLUMNS);
        }
#pragma GCC unroll 1
    for (int64_t k = whole; k < t->depth; k++, a += next, b += GEMM_COLUMNS) packed_term(s0, s1, rows, registers, a, row, b);
    leave(t, s0, s1, rows, registers);
}

/* rows, type: constants */
INLINE void lying(const GemmTile *t, const GemmLying *b, int rows, DType type) {
    const int64_t whole = t->depth / TERMS * TERMS, step = b->step, ahead = b->ahead;
    R s0[GEMM_ROWS] = {{0}}, s1[GEMM_ROWS] = {{0}};
    const void *from = b->from;
    const float *a = t->a;
    int64_t at = b->at;
    float *keep = b->to;
#pragma GCC unroll 1
    for (int64_t k = 0; k < whole; k += TERMS, a += TERMS, keep += TERMS * GEMM_COLUMNS)
#pragma GCC unroll 4
        for (int j = 0; j < TERMS; j++, at += step) lying_term(s0, s1, rows, a + j, type, from, at, at + ahead, keep + j * GEMM_COLUMNS);
#pragma GCC unroll 1
    for (int64_t k = whole; k < t->depth; k++, a++, at += step, keep += GEMM_COLUMNS) lying_term(s0, s1, rows, a, type, from, at, at + ahead, keep);
    leave(t, s0, s1, rows, 2);
}

/* Functions of their own: gcc copies registers where all are one. */
#define TILE(rows, registers, turned)                                                        \
    FUSED HOT static void tile_##rows##_##registers##_##turned(const GemmTile *t) { tile(t, rows, registers, turned); }
#define LYING(rows)                                                                                                          \
    FUSED HOT static void lying_##rows(const GemmTile *of, const GemmLying *b) { BY_TYPE(b->type, lying(of, b, rows, t)) }
#define TILES(rows) TILE(rows, 1, false) TILE(rows, 1, true) TILE(rows, 2, false) TILE(rows, 2, true) LYING(rows)
#define NAMES(rows)                                                                           \
    {{{tile_##rows##_1_false, tile_##rows##_1_true}, {tile_##rows##_2_false, tile_##rows##_2_true}}, lying_##rows}
typedef void TileFn(const GemmTile *t);
typedef void LyingFn(const GemmTile *t, const GemmLying *b);
#ifdef __AVX512F__
TILES(2) TILES(4) TILES(6) TILES(8) TILES(10) TILES(12) TILES(14)
#define ALL NAMES(2), NAMES(4), NAMES(6), NAMES(8), NAMES(10), NAMES(12), NAMES(14)
#else
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#define ALL NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6)
#endif
/* by rows: by registers, by turned */
static const struct { TileFn *packed[2][2]; LyingFn *lying; } tiles[GEMM_ROWS / GEMM_ROW_STEP] = {ALL};

void gemm_tile(const GemmTile *t) {
    assert(0 < t->rows && t->rows <= GEMM_ROWS && 0 < t->columns && t->columns <= GEMM_COLUMNS);
    tiles[(t->rows - 1) / GEMM_ROW_STEP].packed[t->columns > GEMM_LANES][t->turned](t);
}

void gemm_tile_lying(const GemmTile *t, const GemmLying *b) {
    assert(0 < t->rows && t->rows <= GEMM_ROWS && t->columns == GEMM_COLUMNS && !t->turned);
    tiles[(t->rows - 1) / GEMM_ROW_STEP].lying(t, b);
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
        line_ask_soon(soon, k, sizeof *soon);
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
