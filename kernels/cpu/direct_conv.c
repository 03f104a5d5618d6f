#include "direct_conv.h"

#include <omp.h>

#include "act.h"
#include "cpu.h"
#include "lanes.h"
#include "bf16_gemm.h"
#include "direct_conv_tiles.h"
#include "fp32_workspace.h"
#include "program/product.h"

/* Units (direct_conv_tiles.h) of the sum that a block of weights has: the block and its factors fit into the first
 * cache. */
enum { CHUNK = 128 };

typedef struct Image { View view; int64_t h, w, pixels, c; } Image; /* pixels: of a sample */

typedef struct Conv {
    const ConvAttr *attr;
    Image x, y;
    View w;
    DType from, type;           /* of the images, and as which they are multiplied */
    bool rounds;                /* the weights: product_rounds_weight */
    int64_t unit;               /* elements of a unit */
    int64_t samples, kh, kw;
    int threads;
} Conv;

static Units units(const Conv *c, const View *v) { return (Units){c->from, c->type, v->data, false}; }

static Units weights(const Conv *c) { return (Units){c->w.dtype, c->type, c->w.data, c->rounds}; }

static Image image(const View *v) {
    const int64_t *d = v->shape.dim;
    return (Image){*v, d[2], d[3], d[2] * d[3], d[1]};
}

static Conv conv_of(const KArgs *args) {
    const ProductOperands p = product_operands(args);
    Conv c = {.attr = &args->attr->conv, .x = image(p.x), .y = image(p.y), .w = *p.w, .from = args->in[0].dtype,
              .kh = p.w->shape.dim[2], .kw = p.w->shape.dim[3],
              .threads = ((CpuDevice *)args->device)->threads};
    c.type = bf16_gemm_fits() ? c.from : DT_F32;
    c.rounds = product_rounds_weight(args);
    c.unit = unit_of(c.type);
    c.samples = c.x.view.shape.dim[0];
    return c;
}

/* The pixel of x that pixel q of y meets at a tap; -1: it lies in the padding. */
static int64_t met(const Conv *c, int64_t tap, int64_t q) {
    const ConvAttr *a = c->attr;
    int64_t i = q / c->y.w * a->stride[0] - a->pad[0] + tap / c->kw * a->dilation[0];
    int64_t j = q % c->y.w * a->stride[1] - a->pad[1] + tap % c->kw * a->dilation[1];
    return i >= 0 && i < c->x.h && j >= 0 && j < c->x.w ? i * c->x.w + j : -1;
}

/* ---- which ones */

/* The weights have at least this many times the elements of the larger image. With fewer, oneDNN's copy of them in its
 * own format pays, or Winograd needs fewer multiplications. For y and dx in bf16 with
 * its instructions oneDNN is faster: it has AMX. */
enum { OUTWEIGH = 4, OUTWEIGH_BF16_DW = 8, OUTWEIGH_BF16 = 16, LEAST_WEIGHTS = 64 << 10 };

/* Both factors of the product have one type, or a weight is rounded to it; the result may have any. */
static bool types_fit(const KArgs *args) {
    DType t = args->in[0].dtype;
    if ((t != DT_F32 && t != DT_BF16) || !operands_are_rows(args)) return false;
    const bool rounds = product_rounds_weight(args) && !bf16_gemm_fits();
    return (args->in[1].dtype == t || rounds) && TILES_FIT;
}

static bool fits(const KArgs *args) {
    if (!product_is_conv(args->kind) || args->attr->conv.groups != 1 || !types_fit(args)) return false;
    Conv c = conv_of(args);
    int64_t most = max_i64(c.x.view.count, c.y.view.count);
    int times = c.type == DT_F32 ? OUTWEIGH : args->kind == OP_conv2d_dw ? OUTWEIGH_BF16_DW : OUTWEIGH_BF16;
    return c.x.c % COLUMNS == 0 && c.y.c % COLUMNS == 0 && c.w.count >= LEAST_WEIGHTS && c.w.count / times >= most;
}

/* ---- y and dx */

/* A pass from one image to the other; rows: samples, rounded up to whole tiles. */
typedef struct Walk {
    const KArgs *args;
    Conv c;
    Image from, to;
    int64_t units, rows;        /* units: of a pixel of `from` */
    float *a, *b, *sums;        /* a (pixels, units, rows); thread 0's b (CHUNK, 32) and sums (pixels, rows, 32) */
    int64_t each;               /* floats from one thread's b and sums to the next one's */
} Walk;

static Walk walk_of(const KArgs *args, const Conv *c, Room *r) {
    Walk w = {.args = args, .c = *c, .rows = div_up(c->samples, ROWS) * ROWS};
    w.from = args->kind == OP_conv2d ? c->x : c->y;
    w.to = args->kind == OP_conv2d ? c->y : c->x;
    w.units = w.from.c / c->unit;
    w.a = room_take(r, w.from.pixels * w.units * w.rows);
    int64_t block = CHUNK * COLUMNS;
    w.each = block + w.to.pixels * w.rows * COLUMNS;
    w.b = room_take(r, c->threads * w.each);
    w.sums = w.b ? w.b + block : NULL;
    return w;
}

/* a: the samples of a pixel as columns */
static void transpose_pixel(const Walk *w, int64_t pixel) {
    direct_conv_columns(units(&w->c, &w->from.view), pixel * w->units, w->from.pixels * w->units, w->c.samples, w->units,
                        w->a + pixel * w->units * w->rows, w->rows);
}

/* A block of weights: n units of a tap, the first of them `unit` */
typedef struct Block { int64_t tap, unit, n; } Block;

/* b (n, 32): a block's weights from units of `from` to 32 channels of `to` */
static void take_weights(const Walk *w, const Block *k, int64_t channel, float *b) {
    const Conv *c = &w->c;
    int64_t taps = c->kh * c->kw;
    if (w->args->kind == OP_conv2d)
        direct_conv_transpose(weights(c), (channel * taps + k->tap) * w->units + k->unit, taps * w->units, k->n, b);
    else
        direct_conv_rows(weights(c), (k->unit * c->unit * taps + k->tap) * c->x.c + channel, taps * c->x.c,
                         k->n * c->unit, COLUMNS, b);
}

/* Weights lie in rows far apart, so that no processor guesses which lines of memory are needed next: asks for those of a block, for
 * part number `part` of `parts`. */
static void ask_for(const Walk *w, const Block *k, int64_t channel, int64_t part, int64_t parts) {
    enum { LINE = 64 };
    const Conv *c = &w->c;
    const int64_t taps = c->kh * c->kw, size = (int64_t)dtype_size(c->w.dtype), first = k->unit * c->unit, n = k->n * c->unit;
    const bool forward = w->args->kind == OP_conv2d;
    const int64_t rows = forward ? COLUMNS : n, step = taps * c->x.c * size, bytes = (forward ? n : COLUMNS) * size;
    const char *at = (const char *)c->w.data + (forward ? (channel * taps + k->tap) * c->x.c + first
                                                        : (first * taps + k->tap) * c->x.c + channel) * size;
    for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++)
        for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(at + r * step + i, 0, 2);
}

/* Adds the products with a block of weights to the sums of all pixels. Meanwhile the next block is asked for, unless it is NULL. */
static void add_block(const Walk *w, const Block *k, const Block *next, int64_t channel, const float *b, float *sums) {
    static const Part whole = {0, 0};
    const int64_t tiles = w->rows / ROWS;
    for (int64_t q = 0; q < w->c.y.pixels; q++) {
        int64_t p = met(&w->c, k->tap, q), from = w->args->kind == OP_conv2d ? p : q, to = p + q - from;
        for (int64_t row = 0; row < w->rows; row += ROWS) {
            if (next) ask_for(w, next, channel, q * tiles + row / ROWS, w->c.y.pixels * tiles);
            if (p < 0) continue;
            Product product = {.type = w->c.type, .a = w->a + (from * w->units + k->unit) * w->rows + row, .b = b,
                               .a_step = w->rows, .n = k->n, .c = sums + (to * w->rows + row) * COLUMNS,
                               .c_step = COLUMNS, .add = true};
            direct_conv_product(&product, &whole, 1);
        }
    }
}

/* Does any pixel of y meet one of x at this tap? */
static bool reaches(const Conv *c, int64_t tap) {
    for (int64_t q = 0; q < c->y.pixels; q++)
        if (met(c, tap, q) >= 0) return true;
    return false;
}

/* *k: the block there, or the first one after it; false: there is none */
static bool block_from(const Walk *w, Block *k) {
    for (; k->tap < w->c.kh * w->c.kw; k->tap++, k->unit = 0) {
        k->n = min_i64(CHUNK, w->units - k->unit);
        if (k->n > 0 && reaches(&w->c, k->tap)) return true;
    }
    return false;
}

/* Stores the sums of 32 channels: y with bias and activation, or dx with the activation's gradient and its sum db. */
static void leave(const Walk *w, int64_t channel, float *sums) {
    const KArgs *args = w->args;
    const ActAttr *act = &w->c.attr->fused;
    bool forward = args->kind == OP_conv2d;
    const View *b = &args->conv2d.b, *s = &args->conv2d_dx.s;
    float held[COLUMNS], bias[COLUMNS] = {0}, db[COLUMNS] = {0};
    const float *add = forward && b->count ? block_load(b, channel, COLUMNS, held) : bias;
    for (int64_t i = 0; i < w->c.samples * w->to.pixels; i++) {
        int64_t sample = i / w->to.pixels, pixel = i % w->to.pixels, at = i * w->to.c + channel;
        float *v = sums + (pixel * w->rows + sample) * COLUMNS;
        if (forward) {
            sum_rows(v, add, 1, COLUMNS);
            act_block(act, v, v, COLUMNS);
        } else if (act->act) {
            act_dx_block(act, v, v, block_load(s, at, COLUMNS, held), COLUMNS);
        }
        sum_rows(db, v, 1, COLUMNS);
        block_store(&args->out[0], at, COLUMNS, v);
    }
    if (args->conv2d_dx.db.count) block_store(&args->conv2d_dx.db, channel, COLUMNS, db);
}

static void walk_panel(const Walk *w, int64_t channel) {
    int64_t own = omp_get_thread_num() * w->each;
    float *b = w->b + own, *sums = w->sums + own;
    memset(sums, 0, (size_t)(w->to.pixels * w->rows * COLUMNS) * sizeof *sums);
    Block k = {0}, next;
    for (bool more = block_from(w, &k); more; k = next) {
        next = (Block){k.tap, k.unit + k.n, 0};
        more = block_from(w, &next);
        take_weights(w, &k, channel, b);
        add_block(w, &k, more ? &next : NULL, channel, b, sums);
    }
    leave(w, channel, sums);
}

static void walk_run(const Walk *w, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < w->from.pixels; k++) transpose_pixel(w, k);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < w->to.c; k += COLUMNS) walk_panel(w, k);
    }
}

/* ---- dw */

typedef struct Sums {
    Conv c;
    View dw, db;
    int64_t units;              /* that the samples make */
    float *a, *b, *tiles;       /* a (O / 8, pixels, units, 8), b (C / 32, pixels, units, 32); thread 0's (8, C) */
    int64_t each;
} Sums;

static Sums sums_of(const KArgs *args, const Conv *c, Room *r) {
    Sums s = {.c = *c, .dw = args->conv2d_dw.dw, .db = args->conv2d_dw.db, .units = div_up(c->samples, c->unit)};
    s.a = room_take(r, c->y.pixels * s.units * c->y.c);
    s.b = room_take(r, c->x.pixels * s.units * c->x.c);
    s.each = s.dw.dtype == DT_F32 ? 0 : ROWS * c->x.c;
    s.tiles = room_take(r, c->threads * s.each);
    return s;
}

/* `width` channels of an image: (pixels, units, width) */
static void take_panel(const Sums *s, const Image *m, int64_t panel, int64_t width, float *to) {
    for (int64_t p = 0; p < m->pixels; p++)
        direct_conv_rows(units(&s->c, &m->view), p * m->c + panel * width, m->pixels * m->c, s->c.samples, width,
                         to + (panel * m->pixels + p) * s->units * width);
}

static void sum_bias(const Sums *s, int64_t output) {
    float held[ROWS], db[ROWS] = {0};
    for (int64_t i = 0; i < s->c.samples * s->c.y.pixels; i++)
        sum_rows(db, block_load(&s->c.y.view, i * s->c.y.c + output, ROWS, held), 1, ROWS);
    block_store(&s->db, output, ROWS, db);
}

enum { PARTS = 64 }; /* of a sum, at most, in one call of direct_conv_product */

/* c (ROWS, inputs), rows c_step apart: a tap of ROWS outputs */
static void sum_tap(const Sums *s, int64_t output, int64_t tap, float *c, int64_t c_step) {
    const Conv *v = &s->c;
    Part part[PARTS];
    Product p = {.type = v->type, .a = s->a + output * v->y.pixels * s->units, .a_step = ROWS, .n = s->units,
                 .c_step = c_step};
    for (int64_t q = 0, parts; q < v->y.pixels; p.add = true) {
        for (parts = 0; q < v->y.pixels && parts < PARTS; q++) {
            int64_t from = met(v, tap, q);
            if (from >= 0) part[parts++] = (Part){q * s->units * ROWS, from * s->units * COLUMNS};
        }
        for (int64_t input = 0; input < v->x.c; input += COLUMNS) {
            p.b = s->b + input * v->x.pixels * s->units;
            p.c = c + input;
            direct_conv_product(&p, part, parts);
        }
    }
}

static void sum_outputs(const Sums *s, int64_t output) {
    int64_t taps = s->c.kh * s->c.kw, inputs = s->c.x.c;
    float *own = s->each ? s->tiles + omp_get_thread_num() * s->each : NULL;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t at = (output * taps + tap) * inputs, next = taps * inputs;
        if (!own) sum_tap(s, output, tap, (float *)s->dw.data + at, next);
        else sum_tap(s, output, tap, own, inputs);
        for (int64_t r = 0; r < ROWS && own; r++) block_store(&s->dw, at + r * next, inputs, own + r * inputs);
    }
    if (s->db.count) sum_bias(s, output);
}

static void sums_run(const Sums *s, int threads) {
    const Image *x = &s->c.x, *y = &s->c.y;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t k = 0; k < y->c / ROWS; k++) take_panel(s, y, k, ROWS, s->a);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < x->c / COLUMNS; k++) take_panel(s, x, k, COLUMNS, s->b);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < y->c; k += ROWS) sum_outputs(s, k);
    }
}

/* ---- the op */

static void take_room(const KArgs *args, const Conv *c, Room *r) {
    if (args->kind == OP_conv2d_dw) sums_of(args, c, r);
    else walk_of(args, c, r);
}

static size_t bytes_for(const KArgs *args, int threads) {
    Room r = {0};
    Conv c = conv_of(args);
    c.threads = threads;
    take_room(args, &c, &r);
    return r.used;
}

/* Within the limit are one thread's bytes: others must not change what is taken. */
bool direct_conv_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    if (!fits(args)) return false;
    *bytes = bytes_for(args, conv_of(args).threads);
    return bytes_for(args, 1) <= limit;
}

int direct_conv_run(const KArgs *args, Err *e) {
    Room needed = {0}, r = {.base = args->workspace};
    Conv c = conv_of(args);
    take_room(args, &c, &needed);
    const int code = room_check(&needed, args, e), threads = threads_within(c.threads);
    if (code) return code;
    assert(c.x.c % COLUMNS == 0 && c.y.c % COLUMNS == 0 && c.attr->groups == 1);
    if (args->kind == OP_conv2d_dw) {
        Sums s = sums_of(args, &c, &r);
        sums_run(&s, threads);
    } else {
        Walk w = walk_of(args, &c, &r);
        walk_run(&w, threads);
    }
    return OK;
}
