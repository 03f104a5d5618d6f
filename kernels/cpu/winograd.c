#include "winograd.h"

#include <omp.h>
#include <string.h>

#include "act.h"
#include "cpu.h"
#include "lanes.h"
#include "fp32_workspace.h"
#include "program/operands.h"
#include "program/product.h"
#include "winograd_tiles.h"

/* STRIPS: at most; STRIP_TILES: tiles of a strip, at least; SUM_TILES: tiles that dw takes at a time. V_FLOATS,
 * U_FLOATS, A_FLOATS: of v, u and a, at most: v and a should stay in a cache of 2 MiB, u is read once per block of
 * tiles. */
enum { STRIPS = 64, STRIP_TILES = 2 * TILE_ROWS, SUM_TILES = 64, V_FLOATS = 131072, U_FLOATS = 524288,
       A_FLOATS = 131072 };

/* x and y of a convolution; or dy and dx, with the filters rotated by 180 degrees */
typedef struct Conv {
    Image x, y;
    Filters w;
    int64_t high, wide, tiles; /* tiles of y: down and across an image; of all images */
    int threads;
} Conv;

/* ---- which ones */

/* bf16, where the processor has no products of it, is computed in fp32 all the same. */
static bool type_fits(const KArgs *args, DType t) {
    return t == DT_F32 || (t == DT_BF16 && ((CpuDevice *)args->device)->emulated[DT_BF16]);
}

static bool operands_fit(const KArgs *args) {
    for (int k = 0; k < OP_IN + OP_OUT; k++)
        if (operand_at(args, k)->count && !type_fits(args, operand_at(args, k)->dtype)) return false;
    return operands_are_rows(args);
}

/* The activation follows where y lies. In bf16 that rounds twice, unless the second result is exact. */
static bool act_fits(const KArgs *args) {
    const ActFn f = args->attr->conv.fused.act;
    return args->kind != OP_conv2d || args->out[0].dtype == DT_F32 || f == 0 || f == ACT_RELU;
}

static bool attr_fits(const ConvAttr *c) {
    for (int k = 0; k < 4; k++)
        if (c->pad[k] < 0 || c->pad[k] > 2) return false;
    return c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1 && c->dilation[1] == 1 && c->groups == 1;
}

static bool op_fits(const KArgs *args) {
    if (!product_is_conv(args->kind)) return false;
    const int64_t *w = product_operands(args).w->shape.dim;
    return w[2] == 3 && w[3] == 3 && w[0] % PANEL == 0 && w[1] % PANEL == 0 && attr_fits(&args->attr->conv) &&
           operands_fit(args) && act_fits(args) && TILES_FIT;
}

static Image image(const View *v, int64_t top, int64_t left) {
    const int64_t *d = v->shape.dim;
    return (Image){v->dtype, v->data, d[2], d[3], d[1], top, left};
}

static Conv conv_of(const KArgs *args) {
    const int32_t *pad = args->attr->conv.pad;
    bool dx = args->kind == OP_conv2d_dx;
    const ProductOperands p = product_operands(args);
    const View *x = dx ? p.y : p.x, *y = dx ? p.x : p.y, *w = p.w;
    int64_t inputs = w->shape.dim[1];
    Conv c = {.x = image(x, dx ? 2 - pad[0] : pad[0], dx ? 2 - pad[1] : pad[1]), .y = image(y, 0, 0),
              .w = {w->dtype, w->data, 0, 9 * inputs, 1, inputs, false}, .threads = ((CpuDevice *)args->device)->threads};
    if (dx) c.w = (Filters){w->dtype, w->data, 8 * inputs, 1, 9 * inputs, -inputs, false};
    c.w.rounds = product_rounds_weight(args);
    c.high = div_up(c.y.h, 2);
    c.wide = div_up(c.y.w, 2);
    c.tiles = y->shape.dim[0] * c.high * c.wide;
    return c;
}

/* ---- y and dx */

/* group: outputs whose u exist at a time; strip, block: tiles of each */
typedef struct Plan { int64_t group, strip, strips, block; } Plan;
typedef struct Space { float *u, *parts, *v, *m; int64_t each; } Space; /* each: floats from a thread's v to the next */

static Space space_of(const KArgs *args, const Conv *c, const Plan *p, Room *r) {
    Space s;
    s.u = room_take(r, p->group / PANEL * point_floats(c->x.c, PANEL));
    s.parts = room_take(r, args->conv2d_dx.db.count ? p->strips * c->y.c : 0);
    int64_t v = point_floats(p->block, c->x.c), m = point_floats(p->block, PANEL);
    s.each = v + m;
    s.v = room_take(r, c->threads * s.each);
    s.m = s.v ? s.v + v : NULL;
    return s;
}

/* Plans as many outputs and tiles at a time as `limit` bytes have room for. *bytes: what it needs, or the least that a plan needs. */
static bool plan_of(const KArgs *args, const Conv *c, size_t limit, Plan *p, size_t *bytes) {
    int64_t most = max_i64(STRIP_TILES, V_FLOATS / POINTS / c->x.c);
    p->strip = div_up(max_i64(STRIP_TILES, div_up(c->tiles, STRIPS)), TILE_ROWS) * TILE_ROWS;
    p->strips = div_up(c->tiles, p->strip);
    for (int64_t panels = max_i64(1, U_FLOATS / POINTS / c->x.c / PANEL); panels; panels /= 2) {
        p->group = min_i64(c->y.c, panels * PANEL);
        for (int64_t n = div_up(p->strip, most);; n++) {
            Room r = {0};
            p->block = div_up(div_up(p->strip, n), TILE_ROWS) * TILE_ROWS;
            if (p->block < STRIP_TILES) break;
            space_of(args, c, p, &r);
            *bytes = r.used;
            if (r.used <= limit) return true;
        }
    }
    return false;
}

/* first, channels: a group of outputs */
typedef struct Run { const KArgs *args; Conv c; Plan p; Space s; int64_t first, channels; } Run;

/* What is done to `n` elements from element `at` on, of `rows` neighbouring pixels */
typedef void ElementsFn(const Run *r, int64_t at, int64_t n, int64_t rows, float *sums);

/* Is dx's product multiplied onto the slopes, which lie in its place before it is made? So dx may have the storage of s. Slopes
 * that 16 bits would round are made of s after the product. */
static bool slopes_first(const KArgs *args) {
    const ActAttr *act = &args->attr->conv.fused;
    return args->kind == OP_conv2d_dx && act->act && args->out[0].dtype == args->conv2d_dx.s.dtype && act_slopes_fit(act, args->out[0].dtype);
}

bool winograd_overwrites(const KArgs *args) { return slopes_first(args); }

/* Before dx is made: the slopes, in its place. */
static void slope_elements(const Run *r, int64_t at, int64_t n, int64_t rows, float *sums) {
    (void)rows, (void)sums;
    const View *dx = &r->args->out[0];
    float of_s[BLOCK], to[BLOCK], *slope = block_target(dx, at, to);
    act_slope_block(&r->args->attr->conv.fused, slope, block_load(&r->args->conv2d_dx.s, at, n, of_s), n);
    block_store(dx, at, n, slope);
}

/* When y or dx is made: applies the activation, or its gradient, and adds `rows` rows of dx to the sums of db. */
static void finish_elements(const Run *r, int64_t at, int64_t n, int64_t rows, float *sums) {
    const KArgs *args = r->args;
    const ActAttr *act = &args->attr->conv.fused;
    const bool done = args->kind == OP_conv2d_dx && (!act->act || slopes_first(args)); /* only sums are asked for */
    float of_y[BLOCK], of_s[BLOCK], *y = block_load(&args->out[0], at, n, of_y);
    if (args->kind == OP_conv2d) act_block(act, y, y, n);
    else if (!done) act_dx_block(act, y, y, block_load(&args->conv2d_dx.s, at, n, of_s), n);
    if (sums) sum_rows(sums, y, rows, n / rows);
    if (!done) block_store(&args->out[0], at, n, y);
}

/* The group's channels of `pixels` neighbouring pixels, some rows or a part of one at a time */
static void each_pixel(const Run *r, int64_t pixel, int64_t pixels, ElementsFn *fn, float *sums) {
    const int64_t all = r->c.y.c, rows = r->channels == all ? max_i64(1, BLOCK / all) : 1;
    for (int64_t k = 0, n; k < pixels; k += n) {
        n = min_i64(rows, pixels - k);
        for (int64_t c = 0; c < r->channels; c += BLOCK)
            fn(r, (pixel + k) * all + r->first + c, n * min_i64(BLOCK, r->channels - c), n, sums ? sums + c : NULL);
    }
}

/* All pixels of some tiles. */
static void each_tile(const Run *r, const Tiles *t, ElementsFn *fn, float *sums) {
    const Image *y = &r->c.y;
    for (int64_t k = 0, n; k < t->n; k += n) {
        int64_t tile = t->first + k, j = tile % t->wide, row = tile / t->wide, i = row % t->high;
        n = min_i64(t->n - k, t->wide - j);
        int64_t pixels = min_i64(2 * (j + n), y->w) - 2 * j;
        int64_t pixel = (row / t->high * y->h + 2 * i) * y->w + 2 * j;
        each_pixel(r, pixel, pixels, fn, sums);
        if (2 * i + 1 < y->h) each_pixel(r, pixel + y->w, pixels, fn, sums);
    }
}

/* finishes: what follows y or dx is done, too */
static void run_block(const Run *r, const Tiles *t, float *v, float *m, bool finishes) {
    const Conv *c = &r->c;
    const View *b = &r->args->conv2d.b;
    const bool biased = r->args->kind == OP_conv2d && b->count, multiply = slopes_first(r->args);
    float held[PANEL];
    int64_t block = r->p.block, inputs = c->x.c;
    tiles_patches(&c->x, t, 0, inputs, v, block);
    if (multiply) each_tile(r, t, slope_elements, NULL);
    for (int64_t o = 0; o < r->channels; o += PANEL) {
        const float *u = r->s.u + o / PANEL * point_floats(inputs, PANEL);
        for (int p = 0; p < POINTS; p++)
            tiles_product(v + p * point_stride(block, inputs), block, t->n, inputs, u + p * point_stride(inputs, PANEL),
                          m + p * point_stride(block, PANEL));
        const float *bias = biased ? block_load(b, r->first + o, PANEL, held) : NULL;
        tiles_outputs(&c->y, t, r->first + o, bias, multiply, m, block);
    }
    if (finishes && r->args->attr->conv.fused.act && !multiply) each_tile(r, t, finish_elements, NULL);
}

static void run_strip(const Run *r, int64_t strip) {
    int64_t begin = strip * r->p.strip, end = min_i64(begin + r->p.strip, r->c.tiles);
    int64_t own = omp_get_thread_num() * r->s.each;
    float *sums = r->args->conv2d_dx.db.count ? r->s.parts + strip * r->c.y.c + r->first : NULL;
    if (sums) memset(sums, 0, (size_t)r->channels * sizeof *sums);
    for (int64_t t = begin; t < end; t += r->p.block) {
        Tiles tiles = {r->c.high, r->c.wide, t, min_i64(r->p.block, end - t)};
        run_block(r, &tiles, r->s.v + own, r->s.m + own, !sums);
    }
    /* Sums of db are made of a whole strip at once: their order must not follow from the blocks, which the workspace decides. */
    if (sums) each_tile(r, &(Tiles){r->c.high, r->c.wide, begin, end - begin}, finish_elements, sums);
}

/* Transforms the filters between a panel of outputs and a panel of inputs. */
static void run_filters(const Run *r, int64_t piece) {
    int64_t inputs = r->c.x.c, panels = inputs / PANEL, o = piece / panels, i = piece % panels;
    tiles_filters(&r->c.w, r->first + o * PANEL, i * PANEL, PANEL, r->s.u + o * point_floats(inputs, PANEL), inputs);
}

static void run_group(const Run *r, int threads) {
    int64_t filters = r->channels / PANEL * (r->c.x.c / PANEL);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < filters; k++) run_filters(r, k);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < r->p.strips; k++) run_strip(r, k);
    }
}

static void run(const KArgs *args, const Conv *c, const Plan *p, int threads) {
    Room room = {.base = args->workspace};
    Run r = {.args = args, .c = *c, .p = *p, .s = space_of(args, c, p, &room)};
    for (; r.first < c->y.c; r.first += p->group) {
        r.channels = min_i64(p->group, c->y.c - r.first);
        run_group(&r, threads);
    }
    if (args->conv2d_dx.db.count) sum_parts(&args->conv2d_dx.db, r.s.parts, p->strips);
}

/* ---- dw: rectangles of dw, (outputs, inputs) */

typedef struct Split { int64_t outputs, inputs; } Split;
typedef struct Sums { float *v, *e, *a, *b, *db; int64_t each; } Sums; /* b: of some tiles; db: of all */

static Sums sums_of(const Conv *c, const Split *s, Room *r) {
    int64_t v = point_floats(SUM_TILES, s->inputs), e = point_floats(SUM_TILES, s->outputs);
    int64_t a = point_floats(s->outputs, s->inputs);
    Sums at = {.each = v + e + a + 2 * s->outputs};
    at.v = room_take(r, c->threads * at.each);
    if (!at.v) return at;
    at.e = at.v + v;
    at.a = at.e + e;
    at.b = at.a + a;
    at.db = at.b + s->outputs;
    return at;
}

/* Halves the rectangle, down to a panel by a panel, until there is a piece of work for every thread and it fits into the cache and
 * the limit. *bytes: what it needs. Is that within the limit? */
static bool split_of(const Conv *c, size_t limit, Split *s, size_t *bytes) {
    *s = (Split){c->y.c, c->x.c};
    for (;;) {
        Room r = {0};
        sums_of(c, s, &r);
        *bytes = r.used;
        bool shared = div_up(c->y.c, s->outputs) * div_up(c->x.c, s->inputs) >= c->threads;
        int64_t *larger = s->outputs >= s->inputs ? &s->outputs : &s->inputs;
        const bool good = shared && r.used <= limit && s->outputs * s->inputs <= A_FLOATS / POINTS;
        if (good || *larger == PANEL) return r.used <= limit;
        *larger = div_up(*larger / 2, PANEL) * PANEL;
    }
}

static void run_split(const KArgs *args, const Conv *c, const Split *s, const Sums *at, int64_t piece) {
    int64_t across = div_up(c->x.c, s->inputs), o = piece / across * s->outputs, i = piece % across * s->inputs;
    int64_t outputs = min_i64(s->outputs, c->y.c - o), inputs = min_i64(s->inputs, c->x.c - i);
    int64_t own = omp_get_thread_num() * at->each;
    float *v = at->v + own, *e = at->e + own, *a = at->a + own, *b = at->b + own;
    float *db = i || !args->conv2d_dw.db.count ? NULL : at->db + own;
    memset(a, 0, (size_t)point_floats(outputs, inputs) * sizeof *a);
    if (db) memset(db, 0, (size_t)outputs * sizeof *db);
    for (int64_t t = 0; t < c->tiles; t += SUM_TILES) {
        Tiles tiles = {c->high, c->wide, t, min_i64(SUM_TILES, c->tiles - t)};
        if (db) memset(b, 0, (size_t)outputs * sizeof *b);
        tiles_patches(&c->x, &tiles, i, inputs, v, SUM_TILES);
        tiles_gradients(&c->y, &tiles, o, outputs, e, SUM_TILES, db ? b : NULL);
        for (int p = 0; p < POINTS; p++)
            tiles_product_add(e + p * point_stride(SUM_TILES, outputs), outputs,
                              v + p * point_stride(SUM_TILES, inputs), inputs, SUM_TILES, tiles.n,
                              a + p * point_stride(outputs, inputs));
        if (db) sum_rows(db, b, 1, outputs);
    }
    tiles_filter_gradients(&c->w, o, outputs, i, inputs, a);
    if (db) block_store(&args->conv2d_dw.db, o, outputs, db);
}

static void run_dw(const KArgs *args, const Conv *c, const Split *s, int threads) {
    Room room = {.base = args->workspace};
    Sums at = sums_of(c, s, &room);
    int64_t pieces = div_up(c->y.c, s->outputs) * div_up(c->x.c, s->inputs);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < pieces; k++) run_split(args, c, s, &at, k);
}

/* ---- the op */

/* With fewer tiles the filters' transforms take what the products save: at 16 to 64 tiles oneDNN's y is faster by up
 * to a third. dw transforms filters only once, at its end. */
enum { FEW_TILES = 64, FEW_TILES_DW = 28 };

/* One thread's bytes are within the limit, or it is not taken: other threads have no say in that, since they must not change
 * bits. Neither plan nor split changes any. */
bool winograd_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    Plan plan;
    Split split;
    if (!op_fits(args)) return false;
    Conv c = conv_of(args), alone = c;
    bool dw = args->kind == OP_conv2d_dw;
    alone.threads = 1;
    if (c.tiles < (dw ? FEW_TILES_DW : FEW_TILES)) return false;
    if (!(dw ? split_of(&alone, limit, &split, bytes) : plan_of(args, &alone, limit, &plan, bytes))) return false;
    if (dw) split_of(&c, limit, &split, bytes);
    else plan_of(args, &c, limit, &plan, bytes);
    return true;
}

int winograd_run(const KArgs *args, Err *e) {
    Plan plan;
    Split split;
    size_t bytes = 0;
    Conv c = conv_of(args);
    bool dw = args->kind == OP_conv2d_dw;
    if (!(dw ? split_of(&c, args->workspace_bytes, &split, &bytes)
             : plan_of(args, &c, args->workspace_bytes, &plan, &bytes)))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", bytes, args->workspace_bytes);
    assert(op_fits(args));
    const int threads = threads_within(c.threads);
    if (dw) run_dw(args, &c, &split, threads);
    else run(args, &c, &plan, threads);
    return OK;
}
