#include "depthwise.h"

#include "act.h"
#include "bf16_gemm.h"
#define REGISTER_LANES
#include "lanes.h"
#include "program/product.h"

/* WIDTH: channels of a block, a line of a cache. HELD: sums in registers. PIXELS: of a block that are packed at a time. COLUMNS: of
 * results at a time. MOST, EACH: taps and channels of a group of the convolution, at most. GROUP, GROUP_DW: blocks of a piece of
 * work, at most: the sums of dw cost workspace, so there are fewer runs of them. PIECES: of work, about. */
enum { WIDTH = 16, VECTORS = WIDTH / LANES, HELD = 14, PIXELS = 1024, APART = PIXELS * LANES, COLUMNS = 112, MOST = 256,
       MOST_STRIDE = 8, EACH = 4, GROUP = 16, GROUP_DW = 4, PIECES = 32, LEAST_CHANNELS = 8, LINE = 64 /* bytes */ };

/* Where a tap finds its weight, or sum, and its input: in floats from those of the first tap */
typedef struct Tap { int64_t w, x; } Tap;

/* Down or across the images. Results (y, dx, or for dw: dy) that are `out` apart meet inputs that are `in` apart, by the same
 * taps: one of the two is the stride, the other 1. first: the first input of those that a band at result 0 meets. reach: how much
 * further than their results inputs lie, at most, counted in steps. tile: results of a band, a multiple of `out`. span: inputs of a
 * band that are `in` apart: they lie together. start: the first tap of results i, i + out, ... */
typedef struct Axis {
    int64_t from, to, in, out, first, reach, tile, span;
    int start[MOST_STRIDE + 1];
    Tap tap[MOST];
} Axis;

typedef struct Depthwise {
    const KArgs *args;
    const View *x, *y;                    /* inputs and results */
    Axis axis[2];
    int64_t channels, taps, each, samples; /* each: channels of a group */
    int64_t down, across;                 /* bands of an image */
    int64_t blocks, group, groups, runs, bands; /* group: blocks of one; bands: of a run */
    int64_t sums;                         /* of a run and a block, in lines */
    float *w, *parts;
} Depthwise;

/* n neighbouring results of a row, of those with the same taps: from result `at` on, whose inputs begin at x */
typedef struct Strip { int phase, n; int64_t x, at; } Strip;

/* Results [row, row + rows) x [column, column + columns) of an image, and n channels from c on. Of the `wide` inputs of a row that
 * are `in` apart, those from lo to hi lie in the image. */
typedef struct Band {
    int64_t image, row, column, rows, columns, c, n;
    int64_t top, left, high, wide, lo[MOST_STRIDE], hi[MOST_STRIDE];
    int strips;
    Strip strip[COLUMNS / HELD + MOST_STRIDE];
} Band;

/* Taps lie at the number of their input until axis_place. */
static Axis axis_of(const KArgs *args, int d, int64_t from, int64_t to, int64_t taps) {
    const ConvAttr *c = &args->attr->conv;
    const bool back = product_is_dx(args->kind);
    const int64_t stride = c->stride[d], pad = c->pad[d], step = c->dilation[d];
    Axis a = {.from = from, .to = to, .in = back ? 1 : stride, .out = back ? stride : 1, .first = INT64_MAX};
    int n = 0;
    for (int64_t i = 0; i < a.out; i++) {
        a.start[i] = n;
        for (int64_t k = 0; k < taps; k++) {
            const int64_t at = back ? i + pad - k * step : k * step - pad;
            if (at % a.out == 0) a.tap[n++] = (Tap){k, at / a.out};
        }
    }
    a.start[a.out] = n;
    for (int k = 0; k < n; k++) a.first = min_i64(a.first, a.tap[k].x);
    for (int k = 0; k < n; k++) a.reach = max_i64(a.reach, (a.tap[k].x - a.first) / a.in);
    return a;
}

/* results: of a band */
static int64_t axis_span(const Axis *a, int64_t results) { return div_up(results, a->out) + a->reach; }

static void axis_place(Axis *a, int64_t step, int64_t w) {
    a->span = axis_span(a, a->tile);
    for (int k = 0; k < a->start[a->out]; k++) {
        const int64_t at = a->tap[k].x - a->first;
        a->tap[k] = (Tap){a->tap[k].w * w, (at % a->in * a->span + at / a->in) * step};
    }
}

/* As many results as others, of at most `most`: a multiple of `out` */
static int64_t even_tile(const Axis *a, int64_t most) {
    return div_up(div_up(a->to, div_up(a->to, most)), a->out) * a->out;
}

/* Does a band fit, of as many columns and then rows as there is room for? */
static bool bands_of(Axis *y, Axis *x) {
    int64_t most = COLUMNS / x->out * x->out, rows;
    do {
        x->tile = even_tile(x, most);
        rows = (PIXELS / (x->in * axis_span(x, x->tile)) / y->in - y->reach) * y->out;
        most = most / 2 / x->out * x->out;
    } while (rows <= 0 && most);
    if (rows <= 0) return false;
    y->tile = even_tile(y, min_i64(rows, max_i64(1, PIXELS / x->tile / y->out) * y->out));
    return true;
}

static bool depthwise_of(const KArgs *args, size_t limit, Depthwise *d, size_t *bytes) {
    const ProductOperands p = product_operands(args);
    const View *x = product_is_dx(args->kind) ? p.y : p.x, *y = product_is_dx(args->kind) ? p.x : p.y;
    const int64_t *from = x->shape.dim, *to = y->shape.dim, *w = p.w->shape.dim;
    *d = (Depthwise){.args = args, .x = x, .y = y, .channels = from[1], .taps = w[2] * w[3], .each = w[1], .samples = from[0],
                     .blocks = div_up(from[1], WIDTH)};
    for (int k = 0; k < 2; k++) d->axis[k] = axis_of(args, k, from[2 + k], to[2 + k], w[2 + k]);
    if (!bands_of(&d->axis[0], &d->axis[1])) return false;
    axis_place(&d->axis[1], LANES, LANES);
    axis_place(&d->axis[0], d->axis[1].in * d->axis[1].span * LANES, w[3] * LANES);
    d->down = div_up(to[2], d->axis[0].tile);
    d->across = div_up(to[3], d->axis[1].tile);
    const int64_t bands = d->samples * d->down * d->across;
    d->sums = product_is_dw(args->kind) ? d->each * d->taps + 1 : args->conv2d_dx.db.count && product_is_dx(args->kind) ? 1 : 0;
    const size_t line = WIDTH * sizeof(float), weights = product_is_dw(args->kind) ? 0 : (size_t)(d->blocks * d->taps) * line;
    const size_t run = (size_t)(d->blocks * d->sums) * line;
    d->group = div_up(d->blocks, div_up(d->blocks, product_is_dw(args->kind) ? GROUP_DW : GROUP));
    d->groups = div_up(d->blocks, d->group);
    d->runs = min_i64(div_up(PIECES, d->groups), bands);
    if (weights + run > limit) return false;
    if (run) d->runs = min_i64(d->runs, (int64_t)((limit - weights) / run));
    d->bands = div_up(bands, d->runs);
    d->runs = div_up(bands, d->bands);
    *bytes = weights + (size_t)d->runs * run;
    d->w = args->workspace;
    d->parts = d->w ? d->w + weights / sizeof(float) : NULL;
    return true;
}

/* oneDNN's y is as fast in fp32; it has no other for most processors, and would make copies. */
static bool gains(const KArgs *args) {
    const bool library = args->kind == OP_conv2d && (args->in[0].dtype == DT_F32 || (args->in[0].dtype == DT_BF16 && bf16_gemm_fits()));
    return TILES_FIT && !library;
}

bool depthwise_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    const ProductOperands p = product_operands(args);
    const ConvAttr *a = &args->attr->conv;
    const int64_t *dim = p.w->shape.dim, channels = p.x->shape.dim[1];
    Depthwise d;
    if (!p.x->channels_last || !p.y->channels_last || channels != dim[0] || channels < LEAST_CHANNELS) return false;
    if (dim[1] * dim[2] * dim[3] > MOST || a->stride[0] > MOST_STRIDE || a->stride[1] > MOST_STRIDE) return false;
    if (product_is_dw(args->kind) ? dim[1] > EACH || LANES % dim[1] : dim[1] > 1 || !gains(args)) return false;
    return depthwise_of(args, limit, &d, bytes);
}

/* ---- blocks of channels, by themselves: (VECTORS, pixels, LANES), since neighbouring pixels of a vector are loaded from different
 *      banks of the cache. apart: from a pixel's vector to its next one, in floats */

/* What follows in memory is asked for: it is the next block's. */
INLINE void ask(DType t, const void *p, int64_t at) { __builtin_prefetch((const char *)p + (at + WIDTH) * (t == DT_F32 ? 4 : 2)); }

/* Vectors of a pixel of type t, a constant */
INLINE void pack_pixel(DType t, const void *from, int64_t at, float *to, int64_t apart) {
    for (int i = 0; i < VECTORS; i++, at += LANES, to += apart) {
        if (t != DT_F16) store(to, load_as(t, from, at));
        else for (int l = 0; l < LANES; l++) to[l] = f16_to_f32(((const uint16_t *)from)[at + l]);
    }
}

INLINE void unpack_pixel(DType t, const float *from, int64_t apart, void *to, int64_t at) {
    for (int i = 0; i < VECTORS; i++, at += LANES, from += apart) {
        if (t != DT_F16) store_as(t, to, at, load(from));
        else for (int l = 0; l < LANES; l++) ((uint16_t *)to)[at + l] = f16_from_f32(from[l]);
    }
}

/* to (VECTORS, pixels, LANES) = n channels of pixels `step` elements apart, 0 beyond n */
INLINE void pack(const View *v, int64_t at, int64_t step, int64_t pixels, int64_t n, float *to, int64_t apart) {
    const void *from = v->data;
    const DType t = v->dtype;
    const int64_t end = at + pixels * step;
    if (n < WIDTH) {
        for (; at < end; at += step, to += LANES)
            for (int i = 0; i < WIDTH; i++) to[i / LANES * apart + i % LANES] = i < n ? dtype_load(t, from, (size_t)(at + i)) : 0.0f;
        return;
    }
    switch (t) {
#define CASE(t) case t: for (; at < end; at += step, to += LANES) ask(t, from, at), pack_pixel(t, from, at, to, apart); break;
    CASE(DT_F32) CASE(DT_BF16) CASE(DT_F16)
#undef CASE
    default: assert(false);
    }
}

/* The same back */
INLINE void unpack(const float *from, int64_t apart, const View *v, int64_t at, int64_t step, int64_t pixels, int64_t n) {
    void *to = v->data;
    const DType t = v->dtype;
    const int64_t end = at + pixels * step;
    if (n < WIDTH) {
        for (; at < end; at += step, from += LANES)
            for (int i = 0; i < n; i++) dtype_store(t, to, (size_t)(at + i), from[i / LANES * apart + i % LANES]);
        return;
    }
    switch (t) {
#define CASE(t) case t: for (; at < end; at += step, from += LANES) ask(t, to, at), unpack_pixel(t, from, apart, to, at); break;
    CASE(DT_F32) CASE(DT_BF16) CASE(DT_F16)
#undef CASE
    default: assert(false);
    }
}

static int64_t result_at(const Depthwise *d, const Band *b, int64_t row) {
    return ((b->image * d->axis[0].to + b->row + row) * d->axis[1].to + b->column) * d->channels + b->c;
}

/* The k-th band of all images */
static Band band_of(const Depthwise *d, int64_t k) {
    const Axis *y = &d->axis[0], *x = &d->axis[1];
    Band b = {.image = k / d->across / d->down, .row = k / d->across % d->down * y->tile, .column = k % d->across * x->tile};
    b.rows = min_i64(y->tile, y->to - b.row);
    b.columns = min_i64(x->tile, x->to - b.column);
    b.top = y->first + b.row / y->out * y->in;
    b.left = x->first + b.column / x->out * x->in;
    b.high = axis_span(y, b.rows);
    b.wide = axis_span(x, b.columns);
    for (int64_t i = 0; i < x->in; i++) {
        b.lo[i] = min_i64(b.wide, div_up(max_i64(-b.left - i, 0), x->in));
        b.hi[i] = max_i64(b.lo[i], min_i64(b.wide, div_up(max_i64(x->from - b.left - i, 0), x->in)));
    }
    for (int64_t i = 0; i < x->out; i++) {
        const int64_t columns = div_up(max_i64(b.columns - i, 0), x->out);
        for (int64_t at = 0, tiles = div_up(columns, HELD), n; tiles; tiles--, at += n) {
            n = div_up(columns - at, tiles);
            b.strip[b.strips++] = (Strip){(int)i, (int)n, at * LANES, (i + at * x->out) * LANES};
        }
    }
    return b;
}

/* What a band meets of a row i of inputs; 0 in the padding */
INLINE void pack_row(const Depthwise *d, const Band *b, int64_t i, float *to) {
    const Axis *x = &d->axis[1];
    const bool inside = i >= 0 && i < d->axis[0].from;
    for (int64_t k = 0; k < x->in; k++, to += x->span * LANES) {
        const int64_t lo = b->lo[k], hi = inside ? b->hi[k] : lo, wide = b->wide;
        for (float *v = to; v < to + VECTORS * APART; v += APART) {
            for (int64_t p = 0; p < lo; p++) store(v + p * LANES, (V){0});
            for (int64_t p = hi; p < wide; p++) store(v + p * LANES, (V){0});
        }
        pack(d->x, ((b->image * d->axis[0].from + i) * x->from + b->left + k + lo * x->in) * d->channels + b->c, x->in * d->channels,
             hi - lo, b->n, to + lo * LANES, APART);
    }
}

FUSED static void pack_inputs(const Depthwise *d, const Band *b, float *to) {
    const Axis *y = &d->axis[0], *x = &d->axis[1];
    for (int64_t k = 0; k < y->in; k++)
        for (int64_t u = 0; u < b->high; u++)
            pack_row(d, b, b->top + u * y->in + k, to + (k * y->span + u) * x->in * x->span * LANES);
}

/* Weights (VECTORS, taps, LANES) of a block */
static void pack_weights(const void *of, int64_t block) {
    const Depthwise *d = of;
    const View *w = &d->args->conv2d.w;
    for (int64_t c = 0; c < WIDTH; c++) {
        const int64_t from = (block * WIDTH + c) * d->taps;
        float *to = d->w + block * WIDTH * d->taps + c / LANES * LANES * d->taps + c % LANES;
        for (int64_t k = 0; k < d->taps; k++)
            to[k * LANES] = block * WIDTH + c < d->channels ? dtype_load(w->dtype, w->data, (size_t)(from + k)) : 0.0f;
    }
}

/* sums[LANES] += pixels[n][LANES] */
INLINE void sum_pixels(float *sums, const float *pixels, int64_t n) {
    V sum = load(sums);
    for (int64_t p = 0; p < n; p++) sum += load(pixels + p * LANES);
    store(sums, sum);
}

/* ---- y, dx */

/* n neighbouring results of a row, `step` floats apart: each input that is loaded meets a sum in a register */
INLINE void tile(const Axis *axis, int down, int across, const float *x, const float *w, V b, int n, float *to, int64_t step) {
    V a[HELD];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) a[t] = b;
    for (int k = axis[0].start[down]; k < axis[0].start[down + 1]; k++)
        for (int l = axis[1].start[across]; l < axis[1].start[across + 1]; l++) {
            const Tap *i = &axis[0].tap[k], *j = &axis[1].tap[l];
            const float *from = x + i->x + j->x;
            const V f = load(w + i->w + j->w);
#pragma GCC unroll 16
            for (int t = 0; t < n; t++) a[t] += f * load(from + t * LANES);
        }
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) store(to + t * step, a[t]);
}

/* Not inlined: else the compiler keeps an address of each input. */
FUSED HOT static void strip_run(const Axis *axis, int down, int across, const float *x, const float *w, const float *bias, int n, float *to) {
    const int64_t step = axis[1].out * LANES;
    switch (n) {
#define CASE(n) case n: tile(axis, down, across, x, w, load(bias), n, to, step); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#undef CASE
    }
}

/* What follows a row of results: the activation, or its slopes, and the sums of db */
FUSED static void leave_row(const Depthwise *d, const Band *b, int64_t row, float *y, float *sums) {
    const ActAttr *act = &d->args->attr->conv.fused;
    const int64_t at = result_at(d, b, row), n = b->columns * LANES;
    _Alignas(LINE) float s[COLUMNS * WIDTH];
    if (!product_is_dx(d->args->kind)) {
        if (act->act) act_block(act, y, y, VECTORS * n);
    } else if (d->args->conv2d_dx.s.count) {
        pack(&d->args->conv2d_dx.s, at, d->channels, b->columns, b->n, s, n);
        act_dx_block(act, y, y, s, VECTORS * n);
    }
    for (int v = 0; v < VECTORS && sums; v++) sum_pixels(sums + v * LANES, y + v * n, b->columns);
    unpack(y, n, d->y, at, d->channels, b->columns, b->n);
}

FUSED static void band_run(const Depthwise *d, const Band *b, int64_t run) {
    _Alignas(LINE) float x[PIXELS * WIDTH], y[COLUMNS * WIDTH], bias[WIDTH] = {0};
    const Axis *down = &d->axis[0], *across = &d->axis[1];
    const View *of = &d->args->conv2d.b;
    const float *w = d->w + b->c * d->taps;
    if (!product_is_dx(d->args->kind) && of->count) pack(of, b->c, WIDTH, 1, b->n, bias, LANES);
    pack_inputs(d, b, x);
    for (int64_t row = 0; row < b->rows; row++) {
        const float *from = x + row / down->out * across->in * across->span * LANES;
        for (int v = 0; v < VECTORS; v++)
            for (const Strip *s = b->strip; s < b->strip + b->strips; s++)
                strip_run(d->axis, (int)(row % down->out), s->phase, from + v * APART + s->x, w + v * d->taps * LANES, bias + v * LANES,
                          s->n, y + v * b->columns * LANES + s->at);
        leave_row(d, b, row, y, d->sums ? d->parts + (run * d->blocks * WIDTH + b->c) : NULL);
    }
}

/* ---- dw */

/* Rotates channels within their groups of `each`: the next one takes a channel's place. */
INLINE void turn_groups(float *dy, int64_t pixels, int each) {
    LaneInts next = lane_numbers();
    for (int i = 0; i < LANES; i++) next[i] = i / each * each + (i + 1) % each;
    for (int64_t p = 0; p < pixels * LANES; p += LANES) store(dy + p, __builtin_shuffle(load(dy + p), next));
}

/* sums[taps] += the products of a band's dy with the inputs that it meets, for m x n taps */
INLINE void meet(const Depthwise *d, const Band *b, const float *x, const float *dy, const Tap *down, int m, const Tap *across, int n,
                 float *sums) {
    const int64_t step = d->axis[1].in * d->axis[1].span * LANES;
    V a[HELD];
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 16
        for (int j = 0; j < n; j++) a[i * n + j] = load(sums + down[i].w + across[j].w);
    for (int64_t row = 0; row < b->rows; row++, x += step) {
        for (int64_t p = 0; p < b->columns * LANES; p += LANES, dy += LANES) {
            const V g = load(dy);
#pragma GCC unroll 16
            for (int i = 0; i < m; i++)
#pragma GCC unroll 16
                for (int j = 0; j < n; j++) a[i * n + j] += g * load(x + p + down[i].x + across[j].x);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 16
        for (int j = 0; j < n; j++) store(sums + down[i].w + across[j].w, a[i * n + j]);
}

/* Taps at a time: each has an address and a sum in registers. */
enum { ROW = 7, ROWS = 3, POINTERS = 12 };

FUSED static void meet_taps(const Depthwise *d, const Band *b, const float *x, const float *dy, float *sums) {
    const Axis *down = &d->axis[0], *across = &d->axis[1];
    for (int j = 0, n; j < across->start[1]; j += n) {
        n = (int)min_i64(ROW, across->start[1] - j);
        for (int i = 0, m; i < down->start[1]; i += m) {
            m = (int)min_i64(min_i64(ROWS, POINTERS / n), down->start[1] - i);
            switch (m * (ROW + 1) + n) {
#define CASE(m, n) case m * (ROW + 1) + n: meet(d, b, x, dy, down->tap + i, m, across->tap + j, n, sums); break;
            CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6) CASE(1, 7) CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
            CASE(2, 5) CASE(2, 6) CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
#undef CASE
            }
        }
    }
}

/* Adds to the sums (VECTORS, each and taps, then db; LANES). */
FUSED static void band_sum(const Depthwise *d, const Band *b, int64_t run) {
    _Alignas(LINE) float x[PIXELS * WIDTH], dy[PIXELS * WIDTH];
    float *sums = d->parts + (run * d->blocks + b->c / WIDTH) * d->sums * WIDTH;
    const int64_t pixels = b->rows * b->columns;
    pack_inputs(d, b, x);
    for (int64_t row = 0; row < b->rows; row++)
        pack(d->y, result_at(d, b, row), d->channels, b->columns, b->n, dy + row * b->columns * LANES, APART);
    for (int v = 0; v < VECTORS; v++, sums += LANES) {
        if (d->args->conv2d_dw.db.count) sum_pixels(sums + d->each * d->taps * LANES, dy + v * APART, pixels);
        for (int64_t e = 0; e < d->each; e++, sums += d->taps * LANES) {
            if (e) turn_groups(dy + v * APART, pixels, (int)d->each);
            meet_taps(d, b, x + v * APART, dy + v * APART, sums);
        }
    }
}

/* Where dw has a tap of the weight from channel c of x to the channel that lies e further in its group */
static int64_t weight_at(const Depthwise *d, const View *dw, int64_t c, int64_t e, int64_t tap) {
    int64_t i = c % d->each, o = c - i + (i + e) % d->each;
    return dw->channels_last ? (o * d->taps + tap) * d->each + i : (o * d->each + i) * d->taps + tap;
}

/* Adds up what the runs have summed, in their order. */
static void leave_block(const void *of, int64_t block) {
    const Depthwise *d = of;
    const View *dw = &d->args->conv2d_dw.dw, *db = product_is_dw(d->args->kind) ? &d->args->conv2d_dw.db : &d->args->conv2d_dx.db;
    const int64_t n = min_i64(WIDTH, d->channels - block * WIDTH);
    for (int64_t k = 0; k < d->sums; k++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t c = block * WIDTH + i;
            float sum = 0.0f;
            for (int64_t r = 0; r < d->runs; r++) sum += d->parts[(r * d->blocks + block) * d->sums * WIDTH + (i / LANES * d->sums + k) * LANES + i % LANES];
            if (k < d->sums - 1) dtype_store(dw->dtype, dw->data, (size_t)weight_at(d, dw, c, k / d->taps, k % d->taps), sum);
            else if (db->count) dtype_store(db->dtype, db->data, (size_t)c, sum);
        }
}

/* ---- the op */

/* A run of bands, and a group of blocks: neighbouring channels of a band follow each other. */
static void piece(const void *of, int64_t i) {
    const Depthwise *d = of;
    const int64_t run = i / d->groups, first = i % d->groups * d->group, last = min_i64(first + d->group, d->blocks);
    const int64_t end = min_i64((run + 1) * d->bands, d->samples * d->down * d->across);
    memset(d->parts + (run * d->blocks + first) * d->sums * WIDTH, 0, (size_t)((last - first) * d->sums * WIDTH) * sizeof *d->parts);
    for (int64_t k = run * d->bands; k < end; k++) {
        Band b = band_of(d, k);
        for (int64_t block = first; block < last; block++) {
            b.c = block * WIDTH;
            b.n = min_i64(WIDTH, d->channels - b.c);
            if (product_is_dw(d->args->kind)) band_sum(d, &b, run);
            else band_run(d, &b, run);
        }
    }
}

int depthwise_run(const KArgs *args, Err *e) {
    Depthwise d;
    size_t bytes = 0;
    if (!depthwise_of(args, args->workspace_bytes, &d, &bytes))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", bytes, args->workspace_bytes);
    assert(operand_is_float(d.x) && operand_is_float(d.y));
    if (!product_is_dw(args->kind)) pieces_run(&d, d.blocks, pack_weights);
    pieces_run(&d, d.runs * d.groups, piece);
    if (d.sums) pieces_run(&d, d.blocks, leave_block);
    return OK;
}
