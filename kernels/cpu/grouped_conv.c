#include "grouped_conv.h"

#include <omp.h>

#define REGISTER_LANES
#include "act.h"
#include "conv_axis.h"
#include "cpu.h"
#include "fp32_workspace.h"
#include "gemm_tiles.h"
#include "lanes.h"
#include "program/product.h"

/* LEAST, MOST: channels of a group. TAPS: down a kernel; CLASSES: of dx, down or across; LINES: packed at a time; all at most.
 * SUM_PIXELS: of dy, whose products dw takes at a time; PIECES: of work; both about. SET: channels whose bands take a strip by turns, so
 * that whole lines of memory are read and written while they are in a cache; STRIP: numbers of it. */
enum { LEAST = 2, MOST = 64, TAPS = 16, LINES = 64, SUM_PIXELS = 64, PIECES = 32, SET = 64, STRIP = 65536, CLASSES = 4 };

/* ---- tiles: sums that stay in registers */

/* HELD: registers of sums, one or two for each of up to TILE pixels (y, dx) or numbers (dw) */
#ifdef __AVX512F__
enum { HELD = 24 };
#else
enum { HELD = 12 };
#endif
enum { TILE = 12 };

/* x: packed; by: weights of a line of taps, or a line of dy */
typedef struct Line { const float *x, *by; } Line;

/* y: n numbers of x after one another, `runs` times, `run` floats apart; dw: n pixels. Pixels of x are x_step floats apart, rows of
 * `by` and of sums `step`. The first ones are x_at and by_at after those of a line. b: NULL, or what sums of y begin with. */
typedef struct Tile {
    const Line *line;
    int64_t lines, x_at, by_at, runs, run, n, x_step, step;
    const float *b;
    float *to;
} Tile;

/* Sums of `rows` pixels. spread: a number fills a register of its own, else it is broadcast. */
INLINE void y_tile(const Tile *t, int rows, int vectors, bool spread) {
    if (rows * vectors > HELD) return;
    V s[TILE][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) s[r][v] = t->b ? load(t->b + t->by_at + v * LANES) : (V){0};
    for (int64_t l = 0; l < t->lines; l++) {
        const float *by = t->line[l].by + t->by_at;
        for (int64_t j = 0; j < t->runs; j++) {
            const float *x[TILE / 3]; /* of every third pixel: the two after it are reached from there in one instruction */
#pragma GCC unroll 4
            for (int r = 0; r < rows; r += 3) x[r / 3] = t->line[l].x + t->x_at + j * t->run + r * t->x_step;
#pragma GCC unroll 1
            for (int64_t k = 0; k < t->n; k++, by += t->step) {
                const V b0 = load(by), b1 = vectors == 2 ? load(by + LANES) : b0;
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    const float *at = x[r / 3] + r % 3 * t->x_step;
                    if (spread) s[r][0] += load(at) * b0;
                    else s[r][0] += *at * b0;
                    if (vectors == 2) s[r][1] += *at * b1;
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r += 3) x[r / 3] += spread ? LANES : 1;
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) store(t->to + r * t->step + v * LANES, s[r][v]);
}

/* Adds to the sums of `rows` numbers. Few of them are two sums each, of every other pixel: a sum waits for the one before. */
INLINE void dw_tile(const Tile *t, int rows, int vectors, bool spread) {
    if (rows * vectors > HELD) return;
    const int sets = vectors == 1 && 2 * rows <= HELD && rows <= TILE / 2 ? 2 : 1;
    V s[TILE][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) s[r][v] = load(t->to + r * t->step + v * LANES);
        if (sets == 2) s[rows + r][0] = (V){0};
    }
    for (int64_t l = 0; l < t->lines; l++) {
        const float *x = t->line[l].x + t->x_at, *by = t->line[l].by + t->by_at;
        int64_t p = 0;
#pragma GCC unroll 1
        for (; p + sets <= t->n; p += sets)
#pragma GCC unroll 2
            for (int k = 0; k < sets; k++, x += t->x_step, by += t->step) {
                const V b0 = load(by), b1 = vectors == 2 ? load(by + LANES) : b0;
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    if (spread) s[k * rows + r][0] += load(x + r * LANES) * b0;
                    else s[k * rows + r][0] += x[r] * b0;
                    if (vectors == 2) s[r][1] += x[r] * b1;
                }
            }
        if (p < t->n) {
            const V last = load(by);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                if (spread) s[r][0] += load(x + r * LANES) * last;
                else s[r][0] += x[r] * last;
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        if (sets == 2) s[r][0] += s[rows + r][0];
        for (int v = 0; v < vectors; v++) store(t->to + r * t->step + v * LANES, s[r][v]);
    }
}

/* Functions of their own, by rows and by KIND: gcc copies registers where all are one. */
enum { ONE, TWO, SPREAD, KINDS };
#define TILES(f, rows)                                                              \
    FUSED HOT static void f##_##rows##_one(const Tile *t) { f(t, rows, 1, false); } \
    FUSED HOT static void f##_##rows##_two(const Tile *t) { f(t, rows, 2, false); } \
    FUSED HOT static void f##_##rows##_spread(const Tile *t) { f(t, rows, 1, true); }
#define BOTH(rows) TILES(y_tile, rows) TILES(dw_tile, rows)
BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6) BOTH(7) BOTH(8) BOTH(9) BOTH(10) BOTH(11) BOTH(12)
#define NAMES(f, rows) {f##_##rows##_one, f##_##rows##_two, f##_##rows##_spread}
#define ALL(f)                                                                                                           \
    {NAMES(f, 1), NAMES(f, 2), NAMES(f, 3), NAMES(f, 4), NAMES(f, 5), NAMES(f, 6), NAMES(f, 7), NAMES(f, 8), NAMES(f, 9), \
     NAMES(f, 10), NAMES(f, 11), NAMES(f, 12)}
typedef void TileFn(const Tile *t);
static TileFn *const y_tiles[TILE][KINDS] = ALL(y_tile), *const dw_tiles[TILE][KINDS] = ALL(dw_tile);

/* ---- the op */

/* How lines of `to` meet those of `from`, which are packed. `to` of dw is dy, which is read. Pixels of dx are of several classes
 * (conv_axis.h), each with an axis down and one across; those of y and dw are of one. */
typedef struct Walk {
    const KArgs *args;
    const ConvAttr *attr;
    View from, to, w;
    Axis down[CLASSES], across[CLASSES];
    int64_t high, wide;             /* classes */
    int64_t terms, outs;            /* channels of a group in `from` and in `to` */
    bool spread;
    int64_t unit, in, out, bands;   /* floats of a number; channels of a band in `from` and in `to` */
    int64_t row;                    /* floats of a band's sums, or weights, in `to`: whole registers, of which the first `out` count */
    int64_t first, columns, ring;   /* packed columns, and the first of them; packed lines */
    int64_t chunk;                  /* lines of dy that dw takes at a time */
    int64_t lines, runs, run, strip; /* of a class with the most, in all samples; runs of `run` lines, in strips */
    int64_t set, sets;              /* bands that are done by turns, strip by strip */
    float *parts;                   /* sums of db (runs, C), or of dw and db (runs, bands, sums, out) */
    float *own;                     /* thread 0's */
    int64_t each;                   /* floats from one thread's to the next one's */
} Walk;

static int64_t all_taps(const Walk *w) { return w->w.shape.dim[2] * w->w.shape.dim[3]; }
static int64_t pixel_of(const Walk *w) { return w->terms * w->unit; }
/* Rows of a band's dw and, last, its db */
static int64_t sums_of(const Walk *w) { return all_taps(w) * w->terms + 1; }

/* A thread's part of the workspace */
typedef struct Own {
    int64_t band;
    float *weights, *ring;  /* (set, taps, terms, out); (ring, columns, numbers) */
    float *line, *saved;    /* a line of `from` before it is spread, or of sums; of s, or lines of dy */
    int64_t packed[LINES];  /* which line lies in each place of the ring; -1: none */
} Own;

/* Taps in the order of the pixels that they meet */
static Axis ascending(Axis a) {
    if (a.step >= 0) return a;
    a.first += (a.taps - 1) * a.step, a.step = -a.step;
    a.tap += (a.taps - 1) * a.tap_step, a.tap_step = -a.tap_step;
    return a;
}

/* Classes of pixels of dx, down or across */
static int64_t classes(const KArgs *args, int d) { return product_is_dx(args->kind) ? args->attr->conv.stride[d] : 1; }

/* The first and the last pixel that `rows` rows of n classes meet */
static int64_t first_met(const Axis *a, int64_t n) {
    int64_t first = a->first;
    for (int64_t k = 1; k < n; k++) first = min_i64(first, a[k].first);
    return first;
}

static int64_t last_met(const Axis *a, int64_t n, int64_t rows) {
    int64_t last = INT64_MIN;
    for (int64_t k = 0; k < n; k++) last = max_i64(last, a[k].first + (rows - 1) * a[k].stride + max_i64(0, a[k].taps - 1) * a[k].step);
    return last;
}

static Walk walk_of(const KArgs *args) {
    const ProductOperands p = product_operands(args);
    const bool dx = product_is_dx(args->kind);
    const int64_t *x = p.x->shape.dim, *y = p.y->shape.dim, *taps = p.w->shape.dim;
    Walk w = {.args = args, .attr = &args->attr->conv, .from = dx ? *p.y : *p.x, .to = dx ? *p.x : *p.y, .w = *p.w,
              .high = classes(args, 0), .wide = classes(args, 1)};
    const int64_t outputs = y[1] / w.attr->groups;
    w.terms = dx ? outputs : taps[1], w.outs = dx ? taps[1] : outputs;
    w.spread = w.attr->groups > 1 && w.terms < LANES;
    w.unit = w.spread ? LANES : 1, w.in = w.spread ? LANES : w.terms, w.out = w.spread ? LANES : w.outs;
    w.row = div_up(w.out, LANES) * LANES;
    w.bands = w.from.shape.dim[1] / w.in;
    for (int d = 0; d < 2; d++)
        for (int64_t k = 0; k < classes(args, d); k++)
            (d ? w.across : w.down)[k] = dx ? ascending(backward_axis(w.attr, d, x[2 + d], y[2 + d], taps[2 + d], k))
                                            : forward_axis(w.attr, d, x[2 + d], y[2 + d], taps[2 + d]);
    const int64_t rows = w.down->rows, pixels = w.across->rows;
    w.first = first_met(w.across, w.wide), w.columns = last_met(w.across, w.wide, pixels) - w.first + 1;
    w.chunk = product_is_dw(args->kind) ? min_i64(div_up(SUM_PIXELS, pixels), rows) : 1;
    w.ring = last_met(w.down, w.high, w.chunk) - first_met(w.down, w.high) + 1;
    w.lines = x[0] * rows;
    w.set = min_i64(w.bands, max_i64(1, SET / w.row)), w.sets = div_up(w.bands, w.set);
    w.runs = min_i64(div_up(PIECES, w.sets), w.lines);
    /* sums of dw take no more room than the images do */
    if (product_is_dw(args->kind)) w.runs = max_i64(1, min_i64(w.runs, (w.from.count + w.to.count) / (w.bands * sums_of(&w) * w.row)));
    w.run = div_up(w.lines, w.runs);
    w.strip = max_i64(w.chunk, STRIP / (w.set * (w.columns * w.down->stride * w.in + w.wide * w.high * pixels * w.row)));
    return w;
}

/* *floats: what it takes */
static Own own_of(const Walk *w, float *at, int64_t *floats) {
    const int64_t line = w->across->rows * w->row;
    const bool dw = product_is_dw(w->args->kind), saves = product_is_dx(w->args->kind) && w->attr->fused.act;
    Room r = {.base = (char *)at};
    Own o = {.weights = room_take(&r, dw ? 0 : w->set * all_taps(w) * w->terms * w->row)};
    o.ring = room_take(&r, w->ring * w->columns * pixel_of(w));
    o.line = room_take(&r, max_i64(w->spread ? w->columns * w->in : 0, dw ? 0 : line));
    o.saved = room_take(&r, dw ? w->chunk * line : saves ? line : 0);
    *floats = (int64_t)(r.used / sizeof(float));
    return o;
}

/* ---- operands */

/* LANES channels of n pixels, `step` elements apart -> (n, each, LANES): in each lane the numbers of its group of `each` lanes */
INLINE void spread_as(DType t, const void *from, int64_t at, int64_t step, int64_t n, int each, float *to) {
    enum { AHEAD = 16 /* pixels: no processor guesses which lines of memory are needed next */ };
    const LaneInts first = lane_numbers() & -each;
    for (int64_t p = 0; p < n; p++, at += step) {
        __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)(at + AHEAD * step) * dtype_size(t)));
        const V v = load_as(t, from, at);
#pragma GCC unroll 8
        for (int k = 0; k < each; k++, to += LANES) store(to, __builtin_shuffle(v, first + k));
    }
}

FUSED static void spread_numbers(DType t, const void *from, int64_t at, int64_t step, int64_t n, int64_t each, float *to) {
    const int which = each == 2 ? 0 : each == 4 ? 2 : 4;
    switch (which + (t == DT_BF16)) {
    case 0: spread_as(DT_F32, from, at, step, n, 2, to); break;
    case 1: spread_as(DT_BF16, from, at, step, n, 2, to); break;
    case 2: spread_as(DT_F32, from, at, step, n, 4, to); break;
    case 3: spread_as(DT_BF16, from, at, step, n, 4, to); break;
    case 4: spread_as(DT_F32, from, at, step, n, 8, to); break;
    default: spread_as(DT_BF16, from, at, step, n, 8, to);
    }
}

/* Line i of a sample, packed (columns, numbers): 0 beyond the image */
static const float *packed_line(const Walk *w, Own *o, int64_t sample, int64_t i) {
    const int64_t place = i % w->ring, line = sample * w->down->size + i, size = w->across->size, pixel = pixel_of(w);
    const int64_t begin = min_i64(max_i64(-w->first, 0), w->columns), end = max_i64(min_i64(size - w->first, w->columns), begin);
    const int64_t channels = w->from.shape.dim[1], n = end - begin;
    const int64_t at = (line * size + w->first + begin) * channels + o->band * w->in;
    float *to = o->ring + place * w->columns * pixel, *inner = to + begin * pixel;
    if (o->packed[place] == line) return to;
    o->packed[place] = line;
    memset(to, 0, (size_t)(begin * pixel) * sizeof *to);
    memset(to + end * pixel, 0, (size_t)((w->columns - end) * pixel) * sizeof *to);
    if (!w->spread && w->in == channels) gemm_copy(w->from.dtype, w->from.data, at, 0, 1, n * channels, inner, 0); /* pixels lie side by side */
    else if (w->spread && w->from.dtype != DT_F16) spread_numbers(w->from.dtype, w->from.data, at, channels, n, w->terms, inner);
    else gemm_copy(w->from.dtype, w->from.data, at, channels, n, w->in, w->spread ? o->line : inner, w->in);
    if (w->spread && w->from.dtype == DT_F16) spread_numbers(DT_F32, o->line, 0, w->in, n, w->terms, inner);
    return to;
}

/* Of `pixels` pixels that lie side by side, those from whose first channel on there are `row` numbers */
INLINE int64_t filled(int64_t pixels, int64_t channels, int64_t row) {
    return pixels * channels < row ? 0 : (pixels * channels - row) / channels + 1;
}

/* n pixels of a band of `of`, an image as `to` is: (n, w->row). Where pixels lie side by side, the next ones' channels fill a row up. */
INLINE void take_as(const Walk *w, DType t, const View *of, int64_t at, int64_t n, float *to) {
    const int64_t whole = filled(n, w->out, w->row);
    for (int64_t p = 0; p < n; p++, at += w->out, to += w->row)
        if (p < whole)
            for (int64_t c = 0; c < w->row; c += LANES) store(to + c, load_as(t, of->data, at + c));
        else
            for (int64_t c = 0; c < w->out; c++) to[c] = dtype_load(t, of->data, (size_t)(at + c));
}

FUSED static void take_rows(const Walk *w, const View *of, int64_t at, int64_t step, int64_t n, float *to) {
    if (w->row > w->out && step == w->out && of->dtype == DT_F32) take_as(w, DT_F32, of, at, n, to);
    else if (w->row > w->out && step == w->out && of->dtype == DT_BF16) take_as(w, DT_BF16, of, at, n, to);
    else gemm_copy(of->dtype, of->data, at, step, n, w->out, to, w->row);
}

/* Element of w where row `row` of a band's weights begins, of a tap of a class in the order of its axes */
static int64_t weights_at(const Walk *w, const Axis *down, const Axis *across, int64_t band, int64_t row, int64_t tap) {
    const int64_t *d = w->w.shape.dim, output = band * (product_is_dx(w->args->kind) ? w->in : w->out) + row;
    const int64_t i = down->tap + tap / across->taps * down->tap_step, j = across->tap + tap % across->taps * across->tap_step;
    return (output * d[2] * d[3] + i * d[3] + j) * d[1];
}

/* A band's weights, class by class: (taps, terms, out). Rows of w are outputs: of y, `out` of them; of dx, the terms of each group. */
static void take_weights(const Walk *w, int64_t band, float *to) {
    const View *v = &w->w;
    const DType type = w->attr->groups == 1 && product_rounds_weight(w->args) ? GEMM_F32_AS_BF16 : v->dtype;
    const int64_t n = v->shape.dim[1], step = all_taps(w) * n;
    for (int64_t k = 0; k < w->high * w->wide; k++) {
        const Axis *down = &w->down[k / w->wide], *across = &w->across[k % w->wide];
        for (int64_t tap = 0; tap < down->taps * across->taps; tap++, to += w->terms * w->row) {
            if (!product_is_dx(w->args->kind))
                gemm_turn(type, v->data, weights_at(w, down, across, band, 0, tap), step, w->out, n, n, to, w->row);
            for (int64_t row = 0; row < w->in && product_is_dx(w->args->kind); row += w->terms)
                gemm_copy(type, v->data, weights_at(w, down, across, band, row, tap), step, w->terms, n,
                          to + row / w->terms * w->outs, w->row);
        }
    }
}

/* How taps of a line follow one another: neighbouring ones that meet neighbouring pixels are one run of numbers. */
static Tile tile_of(const Walk *w, const Axis *across, const Line *line, int64_t lines) {
    const int64_t pixel = pixel_of(w);
    const bool joined = across->step == 1 || across->taps == 1;
    return (Tile){.line = line, .lines = lines, .x_at = (across->first - w->first) * pixel, .runs = joined ? 1 : across->taps,
                  .run = across->step * pixel, .n = joined ? across->taps * w->terms : w->terms, .x_step = across->stride * pixel,
                  .step = w->row};
}

/* Packed lines that lines [line, line + n) of a class meet at a tap; returns how many there are. by, step: of the first, to the next */
static int64_t met_lines(const Walk *w, Own *o, const Axis *down, int64_t line, int64_t n, int64_t tap, const float *by, int64_t step,
                         Line *to) {
    int64_t lines = 0;
    for (int64_t l = line; l < line + n; l++, by += step) {
        const int64_t i = l % w->down->rows * down->stride + down->first + tap * down->step;
        if (i >= 0 && i < down->size) to[lines++] = (Line){packed_line(w, o, l / w->down->rows, i), by};
    }
    return lines;
}

/* All sums of `rows` rows, whose numbers of x lie row_x floats apart, into to (rows, w->row) */
static void each_tile(const Walk *w, Tile *t, int64_t rows, int64_t row_x, float *to, TileFn *const tiles[TILE][KINDS]) {
    const int64_t x_at = t->x_at;
    for (int64_t vectors; t->by_at < w->row; t->by_at += vectors * LANES) {
        vectors = w->row - t->by_at >= 2 * LANES ? 2 : 1;
        const int64_t n = div_up(rows, min_i64(TILE, HELD / vectors));
        for (int64_t k = 0; k < n; k++) {
            const int64_t begin = rows * k / n, end = rows * (k + 1) / n;
            t->x_at = x_at + begin * row_x;
            t->to = to + begin * w->row + t->by_at;
            tiles[end - begin - 1][w->spread ? SPREAD : vectors == 2 ? TWO : ONE](t);
        }
    }
}

/* ---- y and dx */

/* from (pixels, row) -> n channels of pixels that are `step` elements apart. Where n is no whole register and pixels lie side by side,
 * what is written beyond a pixel is the next ones', which come after it. */
INLINE void put_as(DType t, void *to, int64_t at, int64_t step, int64_t pixels, int64_t n, const float *from, int64_t row) {
    const int64_t whole = n % LANES == 0 ? pixels : step == n ? filled(pixels, n, row) : 0;
    for (int64_t p = 0; p < pixels; p++, at += step, from += row)
        if (p < whole)
            for (int64_t c = 0; c < n; c += LANES) store_as(t, to, at + c, load(from + c));
        else
            for (int64_t c = 0; c < n; c++) dtype_store(t, to, (size_t)(at + c), from[c]);
}

FUSED static void put(const View *to, int64_t at, int64_t step, int64_t pixels, int64_t n, const float *from, int64_t row) {
    if (to->dtype == DT_F32) put_as(DT_F32, to->data, at, step, pixels, n, from, row);
    else if (to->dtype == DT_BF16) put_as(DT_BF16, to->data, at, step, pixels, n, from, row);
    else
        for (int64_t p = 0; p < pixels; p++, at += step, from += row) block_store(to, at, n, from);
}

/* Stores a line's sums: y with its activation, or dx with the activation's gradient, added to db. */
static void leave_line(const Walk *w, const Own *o, const Axis *down, const Axis *across, int64_t line, float *db) {
    const int64_t *d = w->to.shape.dim, n = across->rows * w->row, step = across->place_step * d[1], rows = w->down->rows;
    const int64_t row = line / rows * d[2] + down->place + line % rows * down->place_step;
    const int64_t at = (row * d[3] + across->place) * d[1] + o->band * w->out;
    const ActAttr *act = &w->attr->fused;
    const View *s = &w->args->conv2d_dx.s;
    if (!product_is_dx(w->args->kind)) act_block(act, o->line, o->line, n);
    else if (act->act) {
        take_rows(w, s, at, step, across->rows, o->saved);
        act_dx_block(act, o->line, o->line, o->saved, n);
    }
    if (db) {
        float sums[MOST] = {0};
        sum_rows(sums, o->line, across->rows, w->row);
        sum_rows(db, sums, 1, w->out);
    }
    put(&w->to, at, step, across->rows, w->out, o->line, w->row);
}

/* A line of one class; weights: of its taps */
static void y_line(const Walk *w, Own *o, const Axis *down, const Axis *across, int64_t line, const float *weights, float *db) {
    const View *b = &w->args->conv2d.b;
    float held[MOST], bias[MOST] = {0};
    Line from[TAPS];
    int64_t lines = 0;
    for (int64_t tap = 0; tap < down->taps; tap++)
        lines += met_lines(w, o, down, line, 1, tap, weights + tap * across->taps * w->terms * w->row, 0, from + lines);
    Tile t = tile_of(w, across, from, lines);
    if (!product_is_dx(w->args->kind) && b->count) {
        memcpy(bias, block_load(b, o->band * w->out, w->out, held), (size_t)w->out * sizeof *bias);
        t.b = bias;
    }
    each_tile(w, &t, across->rows, t.x_step, o->line, y_tiles);
    leave_line(w, o, down, across, line, db);
}

static void y_lines(const Walk *w, Own *o, int64_t begin, int64_t end, float *db) {
    for (int64_t line = begin; line < end; line++) {
        const float *weights = o->weights;
        for (int64_t k = 0; k < w->high * w->wide; k++) {
            const Axis *down = &w->down[k / w->wide], *across = &w->across[k % w->wide];
            if (line % w->down->rows < down->rows && across->rows) y_line(w, o, down, across, line, weights, db);
            weights += down->taps * across->taps * w->terms * w->row;
        }
    }
}

/* ---- dw */

static float *sums_at(const Walk *w, int64_t run, int64_t band) { return w->parts + (run * w->bands + band) * sums_of(w) * w->row; }

static void dw_lines(const Walk *w, Own *o, int64_t begin, int64_t end, float *sums) {
    const Axis *down = w->down, *across = w->across;
    const int64_t channels = w->to.shape.dim[1];
    float *db = sums + (sums_of(w) - 1) * w->row;
    for (int64_t line = begin, n; line < end; line += n) {
        n = min_i64(min_i64(w->chunk, end - line), down->rows - line % down->rows);
        float *dy = o->saved;
        take_rows(w, &w->to, line * across->rows * channels + o->band * w->out, channels, n * across->rows, dy);
        if (w->args->conv2d_dw.db.count) sum_rows(db, dy, n * across->rows, w->row);
        for (int64_t tap = 0; tap < down->taps; tap++) {
            Line from[LINES];
            Tile t = tile_of(w, across, from, met_lines(w, o, down, line, n, tap, dy, across->rows * w->row, from));
            const int64_t numbers = t.n, x_at = t.x_at;
            t.n = across->rows;
            for (int64_t j = 0; j < t.runs; j++, t.by_at = 0) {
                t.x_at = x_at + j * t.run;
                each_tile(w, &t, numbers, w->unit, sums + (tap * across->taps * w->terms + j * numbers) * w->row, dw_tiles);
            }
        }
    }
}

/* Adds the runs' sums up, and stores those of a band. */
static void leave_sums(const void *of, int64_t band) {
    const Walk *w = of;
    const View *db = &w->args->conv2d_dw.db;
    const int64_t n = w->terms;
    float *sums = sums_at(w, 0, band), row_of[MOST];
    for (int64_t r = 1; r < w->runs; r++) sum_rows(sums, sums_at(w, r, band), 1, sums_of(w) * w->row);
    for (int64_t tap = 0; tap < all_taps(w); tap++)
        for (int64_t row = 0; row < w->out; row++) {
            for (int64_t c = 0; c < n; c++) row_of[c] = sums[(tap * n + c) * w->row + row];
            block_store(&w->w, weights_at(w, w->down, w->across, band, row, tap), n, row_of);
        }
    if (db->count) block_store(db, band * w->out, w->out, sums + (sums_of(w) - 1) * w->row);
}

/* ---- the op */

/* The n sums that a band of a run adds to; NULL: none */
static float *run_sums(const Walk *w, int64_t run, int64_t band, int64_t *n) {
    *n = product_is_dw(w->args->kind) ? sums_of(w) * w->row : w->out;
    if (product_is_dw(w->args->kind)) return sums_at(w, run, band);
    return w->parts ? w->parts + run * w->to.shape.dim[1] + band * w->out : NULL;
}

static void set_run(const Walk *w, Own *o, int64_t set, int64_t run) {
    const int64_t first = set * w->set, bands = min_i64(w->set, w->bands - first), weights = all_taps(w) * w->terms * w->row;
    const int64_t end = min_i64((run + 1) * w->run, w->lines);
    float *const of_set = o->weights;
    int64_t n;
    for (int64_t k = 0; k < bands; k++) {
        float *sums = run_sums(w, run, first + k, &n);
        if (sums) memset(sums, 0, (size_t)n * sizeof *sums);
        if (!product_is_dw(w->args->kind)) take_weights(w, first + k, of_set + k * weights);
    }
    for (int64_t line = run * w->run; line < end; line += w->strip)
        for (int64_t k = 0; k < bands; k++) {
            float *sums = run_sums(w, run, first + k, &n);
            o->band = first + k;
            for (int l = 0; l < LINES; l++) o->packed[l] = -1;
            if (product_is_dw(w->args->kind)) dw_lines(w, o, line, min_i64(end, line + w->strip), sums);
            else o->weights = of_set + k * weights, y_lines(w, o, line, min_i64(end, line + w->strip), sums);
        }
    o->weights = of_set;
}

/* dx in fp32 with one register for a group: oneDNN takes a sixth less time. */
static bool leaves(const KArgs *args, int64_t in) { return product_is_dx(args->kind) && in == LANES && args->in[0].dtype == DT_F32; }

/* A convolution that is one group, w (out, in). oneDNN would convert whole images of types that the processor does not multiply, and
 * products by gemm.h copy each number for each tap; but of many weights the sums of all runs take more room than they do. In fp32 oneDNN
 * has kernels for images of few channels, and is quicker where outputs fill one register; with AVX-512 this was not measured. */
static bool is_faster(const KArgs *args, int64_t in, int64_t out) {
    enum { FEW = 16, IMAGE = 4, DW_WEIGHTS = 1 << 14 };
    const bool dw = product_is_dw(args->kind);
    if (args->in[0].dtype != DT_F32) return in <= MOST && out <= MOST && !(dw && product_operands(args).w->count > DW_WEIGHTS);
    if (in > FEW || out > FEW || LANES_FIT || product_is_dx(args->kind)) return false;
    return dw ? in > 1 && out > LANES / 2 && out != LANES : in > IMAGE || out % LANES;
}

static bool fits(const KArgs *args) {
    if (!product_is_conv(args->kind) || !operands_are_rows(args)) return false;
    const ConvAttr *a = &args->attr->conv;
    if (!TILES_FIT || classes(args, 0) > CLASSES || classes(args, 1) > CLASSES) return false;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const View *v = operand_at(args, k);
        if (v->count && v->dtype != DT_F32 && !((CpuDevice *)args->device)->emulated[v->dtype]) return false;
    }
    const int64_t *w = product_operands(args).w->shape.dim, in = w[1], out = w[0] / a->groups;
    const bool small = in == out && in >= LEAST && in < LANES && LANES % in == 0 && w[0] % LANES == 0;
    const bool large = in % LANES == 0 && out % LANES == 0 && in <= MOST && out <= MOST;
    const bool better = a->groups == 1 ? is_faster(args, in, out) : (small || large) && !leaves(args, in);
    return better && w[2] <= TAPS && walk_of(args).ring <= LINES;
}

/* Takes room for the sums and for what `threads` threads need. */
static Walk lay_out(const KArgs *args, int threads, Room *r) {
    Walk w = walk_of(args);
    const View *db = &args->conv2d_dx.db;
    own_of(&w, NULL, &w.each);
    if (product_is_dw(args->kind)) w.parts = room_take(r, w.runs * w.bands * sums_of(&w) * w.row);
    else if (product_is_dx(args->kind) && db->count) w.parts = room_take(r, w.runs * db->count);
    w.own = room_take(r, threads * w.each);
    return w;
}

/* Within the limit are one thread's bytes: others must not change what is taken. */
bool grouped_conv_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    Room one = {0}, all = {0};
    if (!fits(args)) return false;
    lay_out(args, 1, &one);
    lay_out(args, ((CpuDevice *)args->device)->threads, &all);
    *bytes = all.used;
    return one.used <= limit;
}

int grouped_conv_run(const KArgs *args, Err *e) {
    Room needed = {0}, r = {.base = args->workspace};
    const int prepared = ((CpuDevice *)args->device)->threads, threads = (int)min_i64(prepared, omp_get_max_threads());
    assert(fits(args));
    lay_out(args, prepared, &needed);
    const int code = room_check(&needed, args, e);
    if (code) return code;
    const Walk w = lay_out(args, prepared, &r);
#pragma omp parallel num_threads(threads)
    {
        int64_t floats;
        Own o = own_of(&w, w.own + omp_get_thread_num() * w.each, &floats);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < w.sets * w.runs; k++) set_run(&w, &o, k % w.sets, k / w.sets);
    }
    if (product_is_dw(args->kind)) pieces_run(&w, w.bands, leave_sums);
    else if (w.parts) sum_parts(&args->conv2d_dx.db, w.parts, w.runs);
    return OK;
}
