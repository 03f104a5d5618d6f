#include "gemm.h"

#include "gemm_tiles.h"

/* BLOCK_TILES: of rows in a block of a, which stays in the second cache. PANEL: numbers of all threads' panels of b, at most, which
 * should stay in the last one, unless one has less than OWN_PANEL; PANEL_DEPTH: its depth, at most; DIRECT_DEPTH: the same where sums
 * are made where the result lies, so that a panel may be used up without regard to them. SUMS: columns whose sums are made in the
 * workspace at a time, at most, and SUM_NUMBERS: those sums, of few rows. */
enum { BLOCK_TILES = 8, PANEL = 1 << 19, OWN_PANEL = 1 << 17, PANEL_DEPTH = 8 * GEMM_DEPTH, DIRECT_DEPTH = 2 * GEMM_DEPTH, SUMS = 512,
       SUM_NUMBERS = 1 << 16 };

/* Where the numbers of b are read. WHOLE: all is packed already. PANELS: a panel is packed for all rows of a thread. Of few
 * rows: STRIPS, which are packed and used up at once; KEPT: where b lies, by the first rows, which keep what they read for the others;
 * LYING: where b lies. */
typedef enum Way { WHOLE, PANELS, STRIPS, KEPT, LYING } Way;

/* block: rows that are multiplied together; depth, columns: of a panel, or of all that is gone through without one; later: the sums of
 * all of a thread's rows wait for the next panel. by_rows: threads share out the rows, else the columns. */
typedef struct Plan { Way way; int64_t block, depth, columns; bool later, by_rows; } Plan;
/* each: floats from a thread's own to the next one's */
typedef struct Space { float *panel, *a, *strip, *sums, *all; int64_t each; size_t bytes; } Space;

int64_t gemm_block_rows(int64_t m) { return m < BLOCK_TILES * GEMM_ROWS ? div_up(m, 2) * 2 : BLOCK_TILES * GEMM_ROWS; }

/* Dot products add up in another order than tiles: so the shape and the operands alone decide whether they are made. */
static bool is_lying(const Gemm *g) {
    return !g->packed && !g->columns && g->b.transposed && g->b.type == DT_F32 && g->m <= GEMM_DOT_ROWS;
}

/* Is b kept, where there are strips? With more rows the sums of such short parts are added up too often, and sooner so where numbers
 * are converted. */
static bool suits_keeping(const Gemm *g) {
    enum { CONVERTED_ROWS = 32 };
    const int64_t most = g->b.type == DT_F32 ? GEMM_DOT_ROWS : CONVERTED_ROWS;
    return GEMM_DOT_ROWS && !g->packed && g->m <= most && !g->columns && !g->b.transposed;
}

/* Few rows, and b is kept, or there are enough terms: of few terms a panel is small, and takes less workspace. A thread packs all of a for its
 * columns: of few of them that would take too long. Strips are made with AVX2 alone, as dot products are: elsewhere they were not
 * measured. */
static bool has_strips(const Gemm *g) {
    enum { ROWS = 256, TERMS = 128, COLUMNS = 128 /* of a thread */ };
    return GEMM_DOT_ROWS && !g->packed && !is_lying(g) && g->m <= ROWS && (g->k >= TERMS || suits_keeping(g)) &&
           g->n >= (int64_t)g->threads * COLUMNS;
}

/* Terms of a part of a sum. Rows of b often lie a power of two apart, and then share few places of the second cache, where those that
 * come next wait: 64 rows that are 16 KiB apart fit. The way may follow from the threads, the parts may not. */
static int64_t part_of(const Gemm *g) {
    enum { KEPT_DEPTH = 64 };
    return suits_keeping(g) ? KEPT_DEPTH : GEMM_DEPTH;
}

/* Where threads share out the rows: by units of so many, and how many a thread has at most */
static int64_t unit_of(const Gemm *g) { return g->by_blocks ? gemm_block_rows(g->m) : GEMM_ROWS; }
static int64_t most_rows(const Gemm *g) { return min_i64(g->m, div_up(div_up(g->m, unit_of(g)), g->threads) * unit_of(g)); }

/* room: numbers of a panel, at most, and of the sums of few rows */
static Plan plan_of(const Gemm *g, Way way, int64_t room) {
    const int64_t all = div_up(g->n, GEMM_COLUMNS) * GEMM_COLUMNS;
    Plan p = {.way = way, .block = gemm_block_rows(g->m), .depth = g->k, .columns = all};
    if (way != WHOLE && way != PANELS) p.block = g->m;
    /* Each thread packs all of the factor that is not shared out. So the larger one is, unless a thread would have an eighth more of the
     * rows than its share. */
    p.by_rows = g->m >= g->n && p.block < g->m && most_rows(g) * g->threads <= g->m + g->m / 8;
    if (way == PANELS) {
        const int64_t numbers = max_i64(room / g->threads, min_i64(room, OWN_PANEL));
        p.depth = min_i64(g->k, g->c ? DIRECT_DEPTH : PANEL_DEPTH);
        if (!g->c && g->m > PANEL_DEPTH) p.depth = g->k; /* else the sums of all rows would outweigh the panel */
        if (!p.by_rows) p.columns = div_up(all / GEMM_COLUMNS, g->threads) * GEMM_COLUMNS;
        p.columns = min_i64(p.columns, max_i64(1, numbers / p.depth / GEMM_COLUMNS) * GEMM_COLUMNS);
        if (!g->c) p.columns = min_i64(p.columns, SUMS);
    } else if (way != WHOLE) {
        const int64_t sums = min_i64(SUMS, min_i64(room, SUM_NUMBERS) / g->m);
        if (!g->c) p.columns = min_i64(all, max_i64(1, sums / GEMM_COLUMNS) * GEMM_COLUMNS);
    }
    p.later = !g->c && p.depth < g->k;
    return p;
}

static int64_t lines(int64_t floats) { return div_up(floats, 16) * 16; } /* whole lines of the cache */

static Space space_of(const Gemm *g, const Plan *p, float *at) {
    const int64_t panel = p->way == PANELS ? lines(p->depth * p->columns) : 0, a = lines(p->block * GEMM_STEP);
    const int64_t strip = p->way == STRIPS ? GEMM_STRIP * GEMM_DEPTH : p->way == KEPT ? GEMM_COLUMNS * part_of(g) : 0;
    const int64_t sums = g->c || p->later ? 0 : lines(p->block * p->columns);
    const int64_t rows = p->later ? lines((p->by_rows ? most_rows(g) : g->m) * p->columns) : 0, each = panel + a + strip + sums + rows;
    Space s = {.each = each, .bytes = (size_t)(g->threads * each) * sizeof(float)};
    if (!at) return s;
    s.panel = at;
    s.a = s.panel + panel;
    s.strip = s.a + a; /* right after a: a tile may read a row more (GEMM_ROW_STEP) */
    s.sums = s.strip + strip;
    s.all = s.sums + sums;
    return s;
}

/* Strips, if they fit into the limit; else the largest panel, or sums, that does */
static Space fit(const Gemm *g, size_t limit, Plan *p, float *at) {
    const Way way = g->packed ? WHOLE : is_lying(g) ? LYING : PANELS;
    if (has_strips(g)) {
        *p = plan_of(g, suits_keeping(g) ? KEPT : STRIPS, PANEL);
        const Space s = space_of(g, p, at);
        if (s.bytes <= limit) return s;
    }
    for (int64_t room = PANEL;; room /= 2) {
        *p = plan_of(g, way, room);
        const Space s = space_of(g, p, at);
        if (s.bytes <= limit || way == WHOLE || (way == LYING && g->c) || p->columns == GEMM_COLUMNS) return s;
    }
}

size_t gemm_workspace(const Gemm *g, size_t limit) {
    Plan p;
    return fit(g, limit, &p, NULL).bytes;
}

/* A thread's space, of columns [column, column + columns) of b, numbers [at, at + depth) of each: by parts (part_of), and in these
 * by tiles (columns / GEMM_COLUMNS, part's depth, GEMM_COLUMNS). Tiles that are read one after the other so lie one after the
 * other: columns of the whole depth would be a power of two apart, and share sets of the cache. */
typedef struct Panel { const Gemm *g; Plan p; Space s; int64_t column, columns, at, depth; } Panel;

/* Where the numbers from `from` on of a tile's columns lie in a panel */
static int64_t tile_at(const Panel *t, int64_t column, int64_t from) {
    return from * div_up(t->columns, GEMM_COLUMNS) * GEMM_COLUMNS + column * min_i64(part_of(t->g), t->depth - from);
}

static void matrix_columns(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    const GemmMatrix *b = &g->b;
    if (b->transposed)
        gemm_turn(b->type, b->at, column * b->stride + at, b->stride, columns, depth, g->k - at, to, GEMM_COLUMNS);
    else gemm_panels(b->type, b->at, at * b->stride + column, b->stride, depth, columns, to, depth * GEMM_COLUMNS);
}

static void matrix_rows(const Gemm *g, int64_t row, int64_t rows, int64_t at, int64_t depth, float *to) {
    const GemmMatrix *a = &g->a;
    if (a->transposed)
        gemm_turn(a->type, a->at, at * a->stride + row, a->stride, depth, rows, g->m - row, to, GEMM_STEP);
    else gemm_copy(a->type, a->at, row * a->stride + at, a->stride, rows, depth, to, GEMM_STEP);
}

/* Columns of a matrix that lies by rows are packed by strips: of each row, whole lines of memory. */
static int64_t packed_together(const Panel *t) {
    const bool by_rows = t->g->columns ? t->g->strips : !t->g->b.transposed;
    return t->p.way != KEPT && by_rows ? GEMM_STRIP : GEMM_COLUMNS;
}

/* Columns from `column` on, numbers from `from` on, of a panel: as many as are packed together */
static void pack(const Panel *t, int64_t column, int64_t from, float *to) {
    GemmColumns *columns = t->g->columns ? t->g->columns : matrix_columns;
    columns(t->g, t->column + column, min_i64(packed_together(t), t->columns - column), t->at + from,
            min_i64(part_of(t->g), t->depth - from), to);
}

static void pack_panel(const Panel *t, int64_t piece) {
    const int64_t each = packed_together(t), pieces = div_up(t->columns, each);
    const int64_t column = piece % pieces * each, from = piece / pieces * part_of(t->g);
    pack(t, column, from, t->s.panel + tile_at(t, column, from));
}

static int64_t pack_pieces(const Panel *t) {
    return div_up(t->columns, packed_together(t)) * div_up(t->depth, part_of(t->g));
}

int64_t gemm_packed(int64_t n, int64_t k) { return div_up(n, GEMM_COLUMNS) * GEMM_COLUMNS * k; }

void gemm_pack(const Gemm *g, float *to) {
    Gemm whole = *g;
    whole.packed = to; /* its parts are those of a product whose b is packed */
    const Panel all = {.g = &whole, .s.panel = to, .columns = g->n, .depth = g->k};
    const int64_t pieces = pack_pieces(&all);
#pragma omp parallel for schedule(static) num_threads(g->threads) if (g->threads > 1)
    for (int64_t i = 0; i < pieces; i++) pack_panel(&all, i);
}

/* Rows [row, row + rows) times columns [begin, end) of the panel. c: rows `step` apart */
typedef struct Piece { const Panel *of; int64_t row, rows, begin, end; float *c; int64_t step; } Piece;

/* The tile of the piece's first row and column `col`, for numbers from `from` on, of all rows and `columns` columns at most */
static GemmTile tile_of(const Piece *p, int64_t col, int64_t from, int64_t columns) {
    const Panel *t = p->of;
    return (GemmTile){.a = t->s.a, .depth = min_i64(part_of(t->g), t->depth - from), .rows = p->rows,
                      .columns = min_i64(columns, p->end - col), .c = p->c + col, .c_step = p->step, .scale = t->g->scale,
                      .add = t->at + from > 0 || (t->g->c && t->g->add)};
}

static void run_dots(const Piece *p, int64_t from) {
    const Panel *t = p->of;
    const GemmMatrix *b = &t->g->b;
    for (int64_t col = p->begin; col < p->end; col += GEMM_DOTS) {
        GemmTile tile = tile_of(p, col, from, GEMM_DOTS);
        tile.b = (const float *)b->at + (t->column + col) * b->stride + t->at + from;
        gemm_dots(&tile, b->stride);
    }
}

/* The first row of a tile. All tiles have the same height, nearly: one of few rows has too few sums to keep the processor busy. */
static int64_t tile_row(int64_t rows, int64_t tile, int64_t tiles) {
    return min_i64(rows, div_up(rows * tile, tiles * GEMM_ROW_STEP) * GEMM_ROW_STEP);
}

/* The first rows' tile of columns that are kept in a strip. It asks for columns of the same rows, or of the next part's. */
static void run_lying(const GemmTile *tile, const Piece *p, int64_t col, int64_t from) {
    const Panel *t = p->of;
    const GemmMatrix *b = &t->g->b;
    const int64_t ahead = col + GEMM_STRIP < p->end ? GEMM_STRIP : part_of(t->g) * b->stride + p->begin - col;
    gemm_tile_lying(tile, &(GemmLying){b->type, b->at, (t->at + from) * b->stride + t->column + col, b->stride, ahead, t->s.strip});
}

/* Beside its own columns each tile of a panel asks for a part of the next ones. */
static void run_tiles(const Piece *p, int64_t from) {
    const Panel *t = p->of;
    const bool strips = t->p.way == STRIPS || t->p.way == KEPT;
    const int64_t each = packed_together(t), tiles = div_up(p->rows, GEMM_ROWS), share = div_up(GEMM_COLUMNS, tiles);
    const float *panel = t->p.way == WHOLE ? t->g->packed : t->s.panel;
    for (int64_t col = p->begin; col < p->end; col += GEMM_COLUMNS) {
        GemmTile tile = tile_of(p, col, from, GEMM_COLUMNS);
        const int64_t place = (col - p->begin) % each;
        const bool keeps = t->p.way == KEPT && tile.columns == GEMM_COLUMNS;
        if (strips && !keeps && !place) pack(t, col, from, t->s.strip);
        tile.b = strips ? t->s.strip + place * tile.depth : panel + tile_at(t, col, from);
        if (!strips) tile.soon = tile.b + tile.depth * GEMM_COLUMNS, tile.soon_step = share;
        for (int64_t i = 0; i < tiles; i++) {
            tile.rows = tile_row(p->rows, i + 1, tiles) - tile_row(p->rows, i, tiles);
            if (keeps && !i) run_lying(&tile, p, col, from);
            else gemm_tile(&tile);
            tile.a += tile.rows * GEMM_STEP;
            tile.c += tile.rows * p->step;
            if (tile.soon) tile.soon += tile.depth * share;
        }
    }
}

/* A thread's part of the result: rows [row, rows_end), columns [column, columns_end) */
typedef struct Share { int64_t row, rows_end, column, columns_end; } Share;

static Share share_of(const Gemm *g, const Plan *p, int64_t thread) {
    const int64_t unit = p->by_rows ? unit_of(g) : GEMM_COLUMNS, size = p->by_rows ? g->m : g->n, units = div_up(size, unit);
    const int64_t begin = units * thread / g->threads * unit, end = min_i64(units * (thread + 1) / g->threads * unit, size);
    return p->by_rows ? (Share){begin, end, 0, g->n} : (Share){0, g->m, begin, end};
}

/* Rows [row, row + rows), at most a block, of the share times its columns in the panel */
static void run_piece(const Panel *t, const Share *of, int64_t row, int64_t rows) {
    const Gemm *g = t->g;
    GemmRows *take = g->rows ? g->rows : matrix_rows;
    Piece p = {t, row, rows, max_i64(0, of->column - t->column), min_i64(t->columns, of->columns_end - t->column), t->s.sums,
               g->c ? g->c_step : t->p.columns};
    if (g->c) p.c = g->c + row * p.step + t->column;
    else if (t->p.later) p.c = t->s.all + (row - of->row) * p.step;
    for (int64_t from = 0, part = part_of(g); from < t->depth; from += part) {
        take(g, row, rows, t->at + from, min_i64(part, t->depth - from), t->s.a);
        if (t->p.way == LYING) run_dots(&p, from);
        else run_tiles(&p, from);
    }
    if (!g->leave || t->at + t->depth < g->k) return;
    const int64_t block = gemm_block_rows(g->m);
    for (int64_t r = 0; r < rows; r += block)
        g->leave(g, row + r, min_i64(block, rows - r), t->column + p.begin, p.end - p.begin, p.c + r * p.step + p.begin, p.step);
}

static void run_share(const Gemm *g, const Plan *p, const Space *s, const Share *of) {
    const bool whole = p->way == WHOLE; /* then the panel has the columns of all threads */
    for (int64_t column = whole ? 0 : of->column; column < of->columns_end; column += p->columns)
        for (int64_t at = 0; at < g->k; at += p->depth) {
            const Panel t = {g, *p, *s, column, min_i64(p->columns, (whole ? g->n : of->columns_end) - column), at, min_i64(p->depth, g->k - at)};
            const int64_t packs = p->way == PANELS ? pack_pieces(&t) : 0;
            for (int64_t i = 0; i < packs; i++) pack_panel(&t, i);
            for (int64_t row = of->row; row < of->rows_end; row += p->block) run_piece(&t, of, row, min_i64(p->block, of->rows_end - row));
        }
}

void gemm_run(const Gemm *g, void *workspace, size_t bytes) {
    Plan p;
    const Space s = fit(g, bytes, &p, workspace);
    assert(g->m > 0 && g->n > 0 && g->k > 0 && (g->c || g->leave) && s.bytes <= bytes);
#pragma omp parallel for schedule(static) num_threads(g->threads) if (g->threads > 1)
    for (int i = 0; i < g->threads; i++) {
        const int64_t own = i * s.each;
        const Share share = share_of(g, &p, i);
        run_share(g, &p, &(Space){s.panel + own, s.a + own, s.strip + own, s.sums + own, s.all + own, s.each, s.bytes}, &share);
    }
}
