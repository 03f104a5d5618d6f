#include "gemm.h"

#include <omp.h>

#include "gemm_tiles.h"

/* BLOCK_TILES: of rows in a block of a, which stays in the second cache. PANEL: numbers of a panel of b, at most, which
 * should stay in the last one; PANEL_DEPTH: its depth, at most; DIRECT_DEPTH: the same where sums are made where the result
 * lies, so that a panel may be used up without regard to them. SUMS: columns whose sums are made in the workspace at a time,
 * at most. */
enum { BLOCK_TILES = 8, PANEL = 1 << 19, PANEL_DEPTH = 8 * GEMM_DEPTH, DIRECT_DEPTH = 2 * GEMM_DEPTH, SUMS = 512 };

/* height: rows of a tile; block: rows of a block; depth, columns: of a panel; later: all rows' sums wait for the next
 * panel */
typedef struct Plan { int64_t height, block, depth, columns; bool later; } Plan;
/* each: floats from a thread's block to the next one's */
typedef struct Space { float *panel, *a, *sums, *all; int64_t each; size_t bytes; } Space;

/* Few rows have tiles of the same height, an even one: gemm_tile computes two rows at a time. */
static int64_t tile_height(int64_t m) {
    const int64_t tiles = div_up(m, GEMM_ROWS);
    return tiles < BLOCK_TILES ? div_up(div_up(m, tiles), 2) * 2 : GEMM_ROWS;
}

int64_t gemm_block_rows(int64_t m) { return min_i64(div_up(m, GEMM_ROWS), BLOCK_TILES) * tile_height(m); }

static Plan plan_of(const Gemm *g, int64_t panel) {
    Plan p = {.height = tile_height(g->m), .block = gemm_block_rows(g->m)};
    p.depth = min_i64(g->k, g->c ? DIRECT_DEPTH : PANEL_DEPTH);
    if (!g->c && g->m > PANEL_DEPTH) p.depth = g->k; /* else the sums of all rows would outweigh the panel */
    p.columns = min_i64(div_up(g->n, GEMM_COLUMNS), max_i64(1, panel / p.depth / GEMM_COLUMNS)) * GEMM_COLUMNS;
    if (g->packed) p.depth = g->k, p.columns = div_up(g->n, GEMM_COLUMNS) * GEMM_COLUMNS;
    else if (!g->c) p.columns = min_i64(p.columns, SUMS);
    p.later = !g->c && p.depth < g->k;
    return p;
}

static int64_t lines(int64_t floats) { return div_up(floats, 16) * 16; } /* whole lines of the cache */

static Space space_of(const Gemm *g, const Plan *p, float *at) {
    const int64_t panel = g->packed ? 0 : lines(p->depth * p->columns), a = lines(p->block * GEMM_STEP);
    const int64_t sums = g->c || p->later ? 0 : lines(p->block * p->columns);
    const int64_t all = panel + g->threads * (a + sums), rows = p->later ? lines(g->m * p->columns) : 0;
    Space s = {.each = a + sums, .bytes = (size_t)(all + rows) * sizeof(float)};
    if (!at) return s;
    s.panel = at;
    s.a = at + panel;
    s.sums = s.a + a;
    s.all = at + all;
    return s;
}

/* The largest panel that fits into the limit */
static Space fit(const Gemm *g, size_t limit, Plan *p, float *at) {
    for (int64_t panel = PANEL;; panel /= 2) {
        *p = plan_of(g, panel);
        const Space s = space_of(g, p, at);
        if (s.bytes <= limit || g->packed || p->columns == GEMM_COLUMNS) return s;
    }
}

size_t gemm_workspace(const Gemm *g, size_t limit) {
    Plan p;
    return fit(g, limit, &p, NULL).bytes;
}

/* Columns [column, column + columns) of b, numbers [at, at + depth) of each: by parts of GEMM_DEPTH numbers, and in these
 * by tiles (columns / GEMM_COLUMNS, part's depth, GEMM_COLUMNS). Tiles that are read one after the other so lie one after the
 * other: columns of the whole depth would be a power of two apart, and share sets of the cache. */
typedef struct Panel { const Gemm *g; Plan p; Space s; int64_t column, columns, at, depth; } Panel;

/* Where the numbers from `from` on of a tile's columns lie in a panel */
static int64_t tile_at(const Panel *t, int64_t column, int64_t from) {
    return from * div_up(t->columns, GEMM_COLUMNS) * GEMM_COLUMNS + column * min_i64(GEMM_DEPTH, t->depth - from);
}

static void matrix_columns(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    const GemmMatrix *b = &g->b;
    if (b->transposed)
        gemm_turn(b->type, b->at, column * b->stride + at, b->stride, columns, depth, g->k - at, to, GEMM_COLUMNS);
    else gemm_copy(b->type, b->at, at * b->stride + column, b->stride, depth, columns, to, GEMM_COLUMNS);
}

static void matrix_rows(const Gemm *g, int64_t row, int64_t rows, int64_t at, int64_t depth, float *to) {
    const GemmMatrix *a = &g->a;
    if (a->transposed)
        gemm_turn(a->type, a->at, at * a->stride + row, a->stride, depth, rows, g->m - row, to, GEMM_STEP);
    else gemm_copy(a->type, a->at, row * a->stride + at, a->stride, rows, depth, to, GEMM_STEP);
}

static void pack_panel(const Panel *t, int64_t piece) {
    const int64_t tiles = div_up(t->columns, GEMM_COLUMNS), column = piece % tiles * GEMM_COLUMNS, from = piece / tiles * GEMM_DEPTH;
    GemmColumns *columns = t->g->columns ? t->g->columns : matrix_columns;
    columns(t->g, t->column + column, min_i64(GEMM_COLUMNS, t->columns - column), t->at + from,
            min_i64(GEMM_DEPTH, t->depth - from), t->s.panel + tile_at(t, column, from));
}

static int64_t pack_pieces(const Panel *t) { return div_up(t->columns, GEMM_COLUMNS) * div_up(t->depth, GEMM_DEPTH); }

int64_t gemm_packed(int64_t n, int64_t k) { return div_up(n, GEMM_COLUMNS) * GEMM_COLUMNS * k; }

void gemm_pack(const Gemm *g, float *to) {
    const Panel all = {.g = g, .s.panel = to, .columns = g->n, .depth = g->k};
    const int64_t pieces = pack_pieces(&all);
#pragma omp parallel for schedule(static) num_threads(g->threads) if (g->threads > 1)
    for (int64_t i = 0; i < pieces; i++) pack_panel(&all, i);
}

/* Rows [row, row + rows) times columns [begin, end) of the panel, to c, whose rows are `step` apart */
static void run_block(const Panel *t, int64_t row, int64_t rows, int64_t begin, int64_t end, float *a, float *c,
                      int64_t step) {
    GemmRows *take = t->g->rows ? t->g->rows : matrix_rows;
    const float *panel = t->g->packed ? t->g->packed : t->s.panel;
    for (int64_t from = 0; from < t->depth; from += GEMM_DEPTH) {
        const int64_t depth = min_i64(GEMM_DEPTH, t->depth - from);
        take(t->g, row, rows, t->at + from, depth, a);
        for (int64_t col = begin; col < end; col += GEMM_COLUMNS)
            for (int64_t r = 0; r < rows; r += t->p.height) {
                const GemmTile tile = {.a = a + r * GEMM_STEP, .b = panel + tile_at(t, col, from), .depth = depth,
                    .rows = min_i64(t->p.height, rows - r), .columns = min_i64(GEMM_COLUMNS, end - col),
                    .c = c + r * step + col, .c_step = step, .scale = t->g->scale,
                    .add = t->at + from > 0 || (t->g->c && t->g->add)};
                gemm_tile(&tile);
            }
    }
}

/* A piece of work: a block of rows, and one of `parts` parts of the columns */
static void run_piece(const Panel *t, int64_t piece, int64_t parts) {
    const Gemm *g = t->g;
    const int64_t row = piece / parts * t->p.block, rows = min_i64(t->p.block, g->m - row), part = piece % parts;
    const int64_t tiles = div_up(t->columns, GEMM_COLUMNS), begin = tiles * part / parts * GEMM_COLUMNS;
    const int64_t end = min_i64(tiles * (part + 1) / parts * GEMM_COLUMNS, t->columns), step = g->c ? g->c_step : t->p.columns;
    const int64_t own = omp_get_thread_num() * t->s.each;
    float *c = g->c ? g->c + row * step + t->column : t->p.later ? t->s.all + row * step : t->s.sums + own;
    run_block(t, row, rows, begin, end, t->s.a + own, c, step);
    if (g->leave && t->at + t->depth == g->k) g->leave(g, row, rows, t->column + begin, end - begin, c + begin, step);
}

void gemm_run(const Gemm *g, void *workspace, size_t bytes) {
    Plan p;
    const Space s = fit(g, bytes, &p, workspace);
    const int64_t blocks = div_up(g->m, p.block);
    assert(g->m > 0 && g->n > 0 && g->k > 0 && (g->c || g->leave) && s.bytes <= bytes);
#pragma omp parallel num_threads(g->threads) if (g->threads > 1)
    for (int64_t column = 0; column < g->n; column += p.columns)
        for (int64_t at = 0; at < g->k; at += p.depth) {
            const Panel t = {g, p, s, column, min_i64(p.columns, g->n - column), at, min_i64(p.depth, g->k - at)};
            const int64_t packs = g->packed ? 0 : pack_pieces(&t);
            const int64_t parts = min_i64(div_up(t.columns, GEMM_COLUMNS), div_up(g->threads, blocks));
#pragma omp for schedule(static)
            for (int64_t i = 0; i < packs; i++) pack_panel(&t, i);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < blocks * parts; i++) run_piece(&t, i, parts);
        }
}
