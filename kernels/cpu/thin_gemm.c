#include "thin_gemm.h"

#include "act.h"
#include "cpu.h"
#include "parallel.h"
#include "program/product.h"
#include "registers.h"

/* THIN: rows of the short factor, at most. TILE: columns of it that stay in a cache meanwhile; STEP: from a row of copies of them to the
 * next one, a line more, since all would share a few places of the first cache. ROWS: of the long factor, or of the result, in a
 * block. A long sum is made in chunks of columns where there would be less than PIECES pieces of work without; where there would be
 * more, a piece of a gradient has up to MOST blocks. */
enum { THIN = 16, TILE = 1024, STEP = TILE + 16, ROWS = 16, PIECES = 16, MOST = 4 };
/* Rows of the long factor, or of the result, that are computed at a time (DOTS, SUMS), the first with WIDE rows of the short one:
 * as many as there are registers for. */
#if defined __AVX512F__
enum { DOTS = 4, WIDE = 4, SUMS = 8 };
#elif defined __AVX__
enum { DOTS = 4, WIDE = 3, SUMS = 4 };
#else
enum { DOTS = 2, WIDE = 4, SUMS = 4 };
#endif

/* The short factor b (n, k), and the long one, or the result, with m rows of k. turned: few samples, not few outputs. rounds: b is a
 * weight in fp32, which is rounded */
typedef struct Thin {
    const KArgs *args;
    const View *a, *b, *dy;
    int64_t m, n, k;
    int64_t blocks, rows, chunks, columns; /* blocks of so many rows; chunks, or tiles, of so many columns */
    bool turned, rounds;
} Thin;

/* Has oneDNN products of these types? Of 16 bits it multiplies twice as many numbers at a time. */
static bool has_narrow(const KArgs *args, const ProductOperands *p) {
    const CpuDevice *cpu = args->device;
    const DType types[] = {p->x->dtype, p->w->dtype, p->y->dtype};
    bool found = false;
    for (size_t k = 0; k < ARRAY_LEN(types); k++) found |= types[k] != DT_F32 && !cpu->emulated[types[k]];
    return found;
}

/* Few outputs go first. Of y's samples there are fewer where the general product has dot products, which are quicker with more, and in
 * 16 bits none: what a copy of weights takes outweighs the rest. */
static bool thin_of(const KArgs *args, Thin *t) {
    enum { SAMPLES = GEMM_DOT_ROWS ? 8 : THIN };
    const ProductOperands p = product_operands(args);
    const int64_t outputs = p.w->shape.dim[0], inputs = p.w->shape.dim[1], rows = p.x->count / inputs;
    const bool wide = p.x->dtype == DT_F32 && p.w->dtype == DT_F32 && p.y->dtype == DT_F32;
    const bool few_outputs = outputs <= THIN && args->kind != OP_linear_dw;
    const bool few_rows = args->kind == OP_linear ? rows <= SAMPLES && wide : args->kind == OP_linear_dw && rows <= THIN && !has_narrow(args, &p);
    if (!few_outputs && !few_rows) return false;
    *t = (Thin){.args = args, .a = p.x, .b = p.w, .dy = p.y, .m = rows, .n = outputs, .k = inputs, .turned = !few_outputs, .rounds = product_rounds_weight(args)};
    if (t->turned) t->a = p.w, t->b = p.x, t->m = outputs, t->n = rows;
    t->rows = ROWS;
    t->columns = TILE;
    const int64_t blocks = div_up(t->m, ROWS), tiles = div_up(inputs, TILE);
    if (args->kind == OP_linear) t->columns = div_up(tiles, div_up(PIECES, blocks)) * TILE;
    else t->rows = min_i64(max_i64(blocks * tiles / PIECES, 1), MOST) * ROWS;
    t->blocks = div_up(t->m, t->rows);
    t->chunks = div_up(inputs, t->columns);
    return true;
}

bool thin_fits(const KArgs *args) {
    Thin t;
    return thin_of(args, &t);
}

/* ---- tiles */

/* n elements from `at` on as fp32; up to the next multiple of GEMM_LANES there are zeros after them. copies: even where they
 * could be read where they lie */
static const float *tile_load(const View *v, int64_t at, int64_t n, bool copies, float *buffer) {
    const float *x = block_load(v, at, n, buffer);
    if (x != buffer && (copies || n % GEMM_LANES)) x = memcpy(buffer, x, (size_t)n * sizeof *buffer);
    for (int64_t i = n; x == buffer && i % GEMM_LANES; i++) buffer[i] = 0.0f;
    return x;
}

/* Where to compute n elements, in whole vectors, for block_store: where they lie, or a buffer */
static float *tile_target(const View *v, int64_t at, int64_t n, float *buffer) {
    return n % GEMM_LANES == 0 ? block_target(v, at, buffer) : buffer;
}

/* The short factor's columns [col, col + n). Rows that lie 4 KiB apart would share a few places of the first cache: they
 * are copied. */
static void short_tile(const Thin *t, int64_t col, int64_t n, float (*buffer)[STEP], const float **tile) {
    const bool copies = t->args->kind != OP_linear && t->k % 1024 == 0;
    for (int64_t j = 0; j < t->n; j++) {
        tile[j] = tile_load(t->b, j * t->k + col, n, copies || t->rounds, buffer[j]);
        if (t->rounds) block_round(DT_BF16, buffer[j], n);
    }
}

/* ---- y: dot products of rows, by blocks of ROWS rows of the long factor and chunks of columns */

/* s[j][i] += a[i] b[j], lane by lane, of the columns that begin at c */
INLINE void dot_step(const float *const *a, const float *const *b, int q, int64_t c, R (*s)[DOTS]) {
    R y[WIDE];
#pragma GCC unroll 4
    for (int j = 0; j < q; j++) y[j] = *(const R *)(b[j] + c);
#pragma GCC unroll 4
    for (int i = 0; i < DOTS; i++) {
        const R x = *(const R *)(a[i] + c);
#pragma GCC unroll 4
        for (int j = 0; j < q; j++) s[j][i] += x * y[j];
    }
}

/* sums[j ROWS + i] += a[i] b[j] over n columns, lane by lane, for DOTS rows of a and q of b. A turn of few sums is as short as
 * a multiply-add takes: two turns at a time leave the sums no gap. soon, unless NULL: DOTS rows, `step` apart, that are asked for. */
INLINE void dot(const float *const *a, const float *const *b, int q, int64_t n, bool add, const float *soon, int64_t step, R *sums) {
    enum { LINE = 16 /* numbers */ };
    R s[WIDE][DOTS];
    int64_t c = 0;
#pragma GCC unroll 4
    for (int j = 0; j < q; j++)
#pragma GCC unroll 4
        for (int i = 0; i < DOTS; i++) s[j][i] = add ? sums[j * ROWS + i] : (R){0};
    for (; (q < WIDE || soon) && c + GEMM_LANES < n; c += 2 * GEMM_LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < DOTS; i++) {
            if (soon) line_ask_soon(soon, i * step + c, sizeof *soon);
            if (soon && 2 * GEMM_LANES > LINE) line_ask_soon(soon, i * step + c + LINE, sizeof *soon);
        }
        dot_step(a, b, q, c, s), dot_step(a, b, q, c + GEMM_LANES, s);
    }
    for (; c < n; c += GEMM_LANES) dot_step(a, b, q, c, s);
#pragma GCC unroll 4
    for (int j = 0; j < q; j++)
#pragma GCC unroll 4
        for (int i = 0; i < DOTS; i++) sums[j * ROWS + i] = s[j][i];
}

/* The first rows of b, beside which a comes from memory, ask for what is needed next. */
INLINE void dots(const float *const *a, const float *const *b, int64_t rows, int64_t n, bool add, const float *soon, int64_t step, R *sums) {
    for (int64_t q; rows; rows -= q, b += q, sums += q * ROWS, soon = NULL) {
        q = rows == WIDE + 1 ? 2 : min_i64(WIDE, rows);
        switch (q) {
        case 1: dot(a, b, 1, n, add, soon, step, sums); break;
        case 2: dot(a, b, 2, n, add, soon, step, sums); break;
        case 3: dot(a, b, 3, n, add, soon, step, sums); break;
        default: dot(a, b, WIDE, n, add, soon, step, sums);
        }
    }
}

/* The sums of neighbours: of two numbers, fours of x and y in turns; and of two fours, those of x first */
INLINE R fold_pairs(R x, R y) {
#if defined __AVX512F__
    const Places even = {0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30};
#elif defined __AVX__
    const Places even = {0, 2, 8, 10, 4, 6, 12, 14};
#else
    const Places even = {0, 2, 4, 6};
#endif
    return __builtin_shuffle(x, y, even) + __builtin_shuffle(x, y, even + 1);
}

#ifdef __AVX__
INLINE R fold_fours(R x, R y) {
#ifdef __AVX512F__
    const Places even = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
#else
    const Places even = {0, 1, 2, 3, 8, 9, 10, 11};
#endif
    return __builtin_shuffle(x, y, even) + __builtin_shuffle(x, y, even + 4);
}
#endif

/* Lane i: the sum of the lanes of v[i] */
INLINE R lane_sums(const R *v) {
    R four[GEMM_LANES / 4];
#pragma GCC unroll 4
    for (int i = 0; i < GEMM_LANES / 4; i++, v += 4) four[i] = fold_pairs(fold_pairs(v[0], v[1]), fold_pairs(v[2], v[3]));
#ifdef __AVX512F__
    four[0] = fold_fours(four[0], four[1]), four[1] = fold_fours(four[2], four[3]);
#endif
#ifdef __AVX__
    four[0] = fold_fours(four[0], four[1]);
#endif
    return four[0];
}

/* to[j ROWS + i] = a[row + i] b[j] over columns [col, end) */
FUSED static void dots_block(const Thin *t, int64_t row, int64_t col, int64_t end, float *to) {
    float wide[THIN][STEP], own[DOTS][TILE];
    const float *tile[THIN], *a[DOTS];
    const int64_t rows = min_i64(ROWS, t->m - row);
    R sums[THIN * ROWS];
    if (rows < ROWS) memset(sums, 0, (size_t)(t->n * ROWS) * sizeof *sums);
    for (int64_t begin = col; col < end; col += TILE) {
        const int64_t n = min_i64(TILE, end - col);
        short_tile(t, col, n, wide, tile);
        for (int64_t i = 0; i < rows; i += DOTS) {
            const int64_t next = (row + i + DOTS) * t->k + col;
            for (int64_t r = 0; r < DOTS; r++) /* beyond the last row: that row again */
                a[r] = tile_load(t->a, min_i64(row + i + r, t->m - 1) * t->k + col, n, false, own[r]);
            dots(a, tile, t->n, n, col > begin, t->a->dtype == DT_F32 ? (const float *)t->a->data + next : NULL, t->k, sums + i);
        }
    }
    for (int64_t i = 0; i < t->n * ROWS; i += GEMM_LANES) *(R *)(to + i) = lane_sums(sums + i);
}

static float *block_sums(const Thin *t, int64_t chunk, int64_t block) {
    return (float *)t->args->workspace + (chunk * t->blocks + block) * t->n * ROWS;
}

/* y of a block's rows; sums: (n, ROWS) */
static void leave_y(const Thin *t, int64_t block, float *sums) {
    const View *b = &t->args->linear.b, *y = &t->args->linear.y;
    const int64_t row = block * ROWS, rows = min_i64(ROWS, t->m - row);
    float scratch[ROWS];
    const float *bias = t->turned && b->count ? block_load(b, row, rows, scratch) : NULL;
    for (int64_t j = 0; j < t->n && b->count; j++) {
        const float same = bias ? 0.0f : dtype_load(b->dtype, b->data, (size_t)j);
        for (int64_t i = 0; i < rows; i++) sums[j * ROWS + i] += bias ? bias[i] : same;
    }
    act_block(&t->args->attr->linear.fused, sums, sums, t->n * ROWS);
    for (int64_t j = 0; j < t->n; j++, sums += ROWS) {
        if (t->turned) block_store(y, j * t->m + row, rows, sums);
        else
            for (int64_t i = 0; i < rows; i++) dtype_store(y->dtype, y->data, (size_t)((row + i) * t->n + j), sums[i]);
    }
}

static void dots_piece(const void *of, int64_t piece) {
    const Thin *t = of;
    const int64_t block = piece / t->chunks, chunk = piece % t->chunks, col = chunk * t->columns;
    float own[THIN * ROWS], *to = t->chunks > 1 ? block_sums(t, chunk, block) : own;
    dots_block(t, block * ROWS, col, min_i64(t->k, col + t->columns), to);
    if (t->chunks == 1) leave_y(t, block, own);
}

/* Adds the chunks' sums up. */
static void join_piece(const void *of, int64_t block) {
    const Thin *t = of;
    float *sums = block_sums(t, 0, block);
    for (int64_t c = 1; c < t->chunks; c++) sum_rows(sums, block_sums(t, c, block), 1, t->n * ROWS);
    leave_y(t, block, sums);
}

/* ---- dx and dw: sums of the short factor's rows, by blocks of ROWS rows of the result and tiles of columns */

/* to[i][c] = sum of d[j][i] b[j][c] over n rows of b, for SUMS rows of the result and `vectors` vectors of columns */
INLINE void sum_tile(const float *const *b, float (*d)[SUMS], int64_t n, int64_t c, int vectors, float *const *to) {
    R s0[SUMS] = {{0}}, s1[SUMS] = {{0}};
    for (int64_t j = 0; j < n; j++) {
        const R b0 = *(const R *)(b[j] + c), b1 = vectors == 2 ? *(const R *)(b[j] + c + GEMM_LANES) : b0;
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            s0[i] += d[j][i] * b0;
            if (vectors == 2) s1[i] += d[j][i] * b1;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++) {
        *(R *)(to[i] + c) = s0[i];
        if (vectors == 2) *(R *)(to[i] + c + GEMM_LANES) = s1[i];
    }
}

/* d[j][i]: what row j of the short factor is multiplied by in row `row + i` of the result; 0 beyond the last row */
static void factors(const Thin *t, int64_t row, int64_t rows, float (*d)[SUMS]) {
    for (int64_t j = 0; j < t->n; j++)
        for (int64_t i = 0; i < SUMS; i++) {
            const int64_t at = t->turned ? j * t->m + row + i : (row + i) * t->n + j;
            d[j][i] = i < rows ? dtype_load(t->dy->dtype, t->dy->data, (size_t)at) : 0.0f;
        }
}

/* n elements of dx from `at` on, in `to`, lack only the activation's gradient: multiplies by it, adds the elements to
 * their sums and stores them. */
static void leave_dx(const KArgs *args, int64_t at, int64_t n, float *to, float *sums) {
    const ActAttr *act = &args->attr->linear.fused;
    const View *s = &args->linear_dx.s, *dx = &args->linear_dx.dx;
    float saved[TILE], *out = act->act ? tile_target(dx, at, n, to) : to;
    if (act->act) act_dx_block(act, out, to, tile_load(s, at, n, false, saved), n);
    if (sums) sum_rows(sums, out, 1, n);
    block_store(dx, at, n, out);
}

/* The sums of dy over the samples, of outputs [row, row + rows) */
static void leave_db(const Thin *t, int64_t row, int64_t rows, float (*d)[SUMS]) {
    const View *db = &t->args->linear_dw.db;
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < t->n; j++) sum += d[j][i];
        dtype_store(db->dtype, db->data, (size_t)(row + i), sum);
    }
}

/* Rows [row, end) of the result, columns [col, col + TILE). sums: dx's sums of these columns, for db; NULL: there is no such db */
FUSED static void sums_block(const Thin *t, int64_t row, int64_t end, int64_t col, float *sums) {
    const int64_t n = min_i64(TILE, t->k - col);
    /* with an activation dx may lie where s does, so products stay in the buffers until s has been read */
    const bool buffered = !t->turned && t->args->attr->linear.fused.act;
    float wide[THIN][STEP], buffer[SUMS][TILE], d[THIN][SUMS], *to[SUMS];
    const float *tile[THIN];
    short_tile(t, col, n, wide, tile);
    for (; row < end; row += SUMS) {
        const int64_t rows = min_i64(SUMS, end - row);
        factors(t, row, rows, d);
        for (int64_t i = 0; i < SUMS; i++)
            to[i] = buffered || i >= rows ? buffer[i] : tile_target(t->a, (row + i) * t->k + col, n, buffer[i]);
        int64_t c = 0;
        for (; c + GEMM_LANES < n; c += 2 * GEMM_LANES) {
            /* s is read after the products; its rows are far apart, so no processor guesses which lines are needed */
            for (int64_t i = 0; i < rows && buffered; i++) view_ask(&t->args->linear_dx.s, (row + i) * t->k + col + c);
            sum_tile(tile, d, t->n, c, 2, to);
        }
        if (c < n) sum_tile(tile, d, t->n, c, 1, to);
        for (int64_t i = 0; i < rows; i++) {
            if (!t->turned) leave_dx(t->args, (row + i) * t->k + col, n, to[i], sums);
            else block_store(t->a, (row + i) * t->k + col, n, to[i]);
        }
        if (t->turned && col == 0 && t->args->linear_dw.db.count) leave_db(t, row, rows, d);
    }
}

/* Each block of dx has a row of the workspace, of the sums of its columns. */
static bool has_parts(const Thin *t) { return !t->turned && t->args->linear_dx.db.count; }

static void sums_piece(const void *of, int64_t piece) {
    const Thin *t = of;
    const int64_t block = piece / t->chunks, col = piece % t->chunks * TILE;
    float *sums = has_parts(t) ? (float *)t->args->workspace + block * t->k + col : NULL;
    if (sums) memset(sums, 0, (size_t)min_i64(TILE, t->k - col) * sizeof *sums);
    sums_block(t, block * t->rows, min_i64(t->m, (block + 1) * t->rows), col, sums);
}

/* ---- the ops */

static size_t workspace_of(const Thin *t) {
    int64_t floats = t->chunks > 1 ? t->chunks * t->blocks * t->n * ROWS : 0;
    if (t->args->kind != OP_linear) floats = has_parts(t) ? t->blocks * t->k : 0;
    return align_up((size_t)floats * sizeof(float), 64);
}

size_t thin_workspace(const KArgs *args) {
    Thin t;
    return thin_of(args, &t) ? workspace_of(&t) : 0;
}

int thin_run(const KArgs *args, Err *e) {
    Thin t;
    const bool is_thin = thin_of(args, &t);
    (void)is_thin;
    assert(is_thin && t.dy->count == (t.turned ? t.n * t.m : t.m * t.n));
    if (args->workspace_bytes < workspace_of(&t))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", workspace_of(&t), args->workspace_bytes);
    pieces_run(&t, t.blocks * t.chunks, args->kind == OP_linear ? dots_piece : sums_piece);
    if (args->kind == OP_linear && t.chunks > 1) pieces_run(&t, t.blocks, join_piece);
    if (args->kind == OP_linear_dx && has_parts(&t)) sum_parts(&args->linear_dx.db, args->workspace, t.blocks);
    return OK;
}
