#include "gemm_ops.h"

#include <string.h>

#include "act.h"
#include "conv_axis.h"
#include "cpu.h"
#include "gemm.h"
#include "gemm_tiles.h"
#include "isa.h"
#include "parallel.h"
#include "program/product.h"
#include "thin_gemm.h"

typedef struct Walk {
    const KArgs *args;
    const View *image, *w;      /* image: whose patches are multiplied */
    Axis axis[2];
    int64_t channels, all_taps; /* channels: of the image */
    int64_t width, result;      /* of the image of results: pixels across it and in it */
    float *parts;               /* of db: (blocks, columns) */
} Walk;

/* ---- which ones */

/* A convolution by kernels of one pixel */
static bool is_pointwise(const KArgs *args) {
    const int64_t *w = product_operands(args).w->shape.dim;
    return product_is_conv(args->kind) && w[2] * w[3] == 1;
}

/* Is there nothing but rows of a matrix in each image, one for each row of the product? */
static bool is_matrices(const KArgs *args) {
    const ConvAttr *c = &args->attr->conv;
    return !product_is_conv(args->kind) || (is_pointwise(args) && c->stride[0] * c->stride[1] == 1 && !(c->pad[0] | c->pad[1] | c->pad[2] | c->pad[3]));
}

/* Has it a stride or a dilation? */
static bool is_spread(const ConvAttr *c) { return c->stride[0] > 1 || c->stride[1] > 1 || c->dilation[0] > 1 || c->dilation[1] > 1; }

/* Does each result read pixels that no other one reads? */
static bool is_apart(const ConvAttr *c, const int64_t *w) { return c->stride[0] >= w[2] && c->stride[1] >= w[3]; }

/* Without AVX-512 oneDNN's products of linear layers are slower by up to half where rows of a matrix lie 4 KiB apart. Those of
 * pointwise convolutions are as well, most with strides: one took three times as long. They are not where the work is to read
 * images: sums over many pixels for few weights, and few channels. Its other convolutions with strides or dilations are slower, too, by
 * a fifth to two thirds, unless channels are few: then a copied patch is used for few results. */
static bool is_faster(const KArgs *args) {
    enum { OUTWEIGH = 8 /* weights for each pixel */, CHANNELS = 32, SPREAD_CHANNELS = 64 };
    if (isa_has(dnnl_cpu_isa_avx512_core)) return false;
    if (!product_is_conv(args->kind)) return true;
    if (!isa_has(dnnl_cpu_isa_avx2)) return false; /* without AVX2 dx takes longer */
    const ProductOperands p = product_operands(args);
    const ConvAttr *c = &args->attr->conv;
    const int64_t *w = p.w->shape.dim, channels = min_i64(w[0], w[1]);
    const bool dw = product_is_dw(args->kind);
    if (!is_pointwise(args)) return is_spread(c) && (channels >= (dw ? CHANNELS : SPREAD_CHANNELS) || (dw && is_apart(c, w)));
    return dw ? p.w->count >= OUTWEIGH * (p.y->count / w[0]) : channels >= CHANNELS;
}

/* Types that oneDNN has no products of: it would convert whole tensors, or take its plain loops. And what is faster. */
static bool fits(const KArgs *args) {
    const CpuDevice *cpu = args->device;
    if (!product_is_any(args->kind)) return false;
    if ((product_is_conv(args->kind) && args->attr->conv.groups != 1) || !operands_are_rows(args)) return false;
    bool better = is_faster(args);
    for (int k = 0; k < OP_IN + OP_OUT; k++) better |= operand_at(args, k)->count && cpu->emulated[operand_at(args, k)->dtype];
    const View *db = &args->linear_dx.db;
    return better && !(product_is_dx(args->kind) && db->count && db->count != product_operands(args).w->shape.dim[1]);
}

bool product_rounds(const KArgs *args) {
    const CpuDevice *cpu = args->device;
    if (!product_rounds_weight(args)) return false;
    return (!product_is_conv(args->kind) && thin_fits(args)) || (cpu->emulated[DT_BF16] && fits(args));
}

/* ---- the image's part */

/* How many numbers of a patch, from number k on, lie one after the other in the image: channels of a tap, or, where neighbouring
 * taps meet neighbouring pixels, of a row of taps. So the patches of an image of few channels are copied in few pieces. */
static int64_t joined(const Walk *w, int64_t k) {
    const int64_t run = w->channels * (w->axis[1].step == 1 ? w->axis[1].taps : 1);
    return run - k % run;
}

/* A piece of patches of neighbouring pixels of one line of the image: `len` numbers of each of `rows` rows, from number `first` of
 * the line on, `step` apart; numbers outside of [0, line) are the padding. */
typedef struct Strip { int64_t first, step, line, len, rows; } Strip;

/* The first row that begins at number `from` of the line, or after it */
static int64_t row_from(const Strip *s, int64_t from) {
    return from <= s->first ? 0 : min_i64(s->rows, div_up(from - s->first, s->step));
}

/* Rows from `begin` on, that meet the padding: number by number, those that lie in the line */
static void padded_rows(const Strip *s, const View *v, int64_t at, int64_t begin, int64_t end, float *to, int64_t to_step) {
    for (int64_t r = begin; r < end; r++) {
        const int64_t first = s->first + r * s->step;
        const int64_t skip = min_i64(s->len, max_i64(0, -first)), n = max_i64(0, min_i64(s->len, s->line - first) - skip);
        float *here = to + r * to_step;
        memset(here, 0, (size_t)s->len * sizeof *here);
        if (n) gemm_copy(v->dtype, v->data, at + first + skip, 0, 1, n, here + skip, to_step);
    }
}

/* to[r][0 .. n) = numbers [at, at + n) of the patches of rows [row, row + rows), for each row r */
static void patches(const Walk *w, int64_t row, int64_t rows, int64_t at, int64_t n, float *to, int64_t to_step) {
    const Axis *down = &w->axis[0], *across = &w->axis[1];
    const View *v = w->image;
    const int64_t c = w->channels;
    for (int64_t k = at, len; k < at + n; k += len) {
        const int64_t tap = k / c;
        len = min_i64(joined(w, k), at + n - k);
        for (int64_t r = row, run; r < row + rows; r += run) {
            const int64_t line = r / across->rows, first = r % across->rows;
            run = min_i64(across->rows - first, row + rows - r);
            const int64_t i = line % down->rows * down->stride + down->first + tap / across->taps * down->step;
            const int64_t j = first * across->stride + across->first + tap % across->taps * across->step;
            const bool meets = i >= 0 && i < down->size; /* else all is padding: a line of no numbers */
            const Strip s = {j * c + k % c, across->stride * c, meets ? across->size * c : 0, len, run};
            const int64_t image = (line / down->rows * down->size + i) * across->size * c; /* where the line begins */
            float *here = to + (r - row) * to_step + (k - at);
            const int64_t begin = row_from(&s, 0), end = max_i64(begin, row_from(&s, s.line - len + 1));
            padded_rows(&s, v, image, 0, begin, here, to_step);
            if (end > begin)
                gemm_copy(v->dtype, v->data, image + s.first + begin * s.step, s.step, end - begin, len, here + begin * to_step,
                          to_step);
            padded_rows(&s, v, image, end, run, here, to_step);
        }
    }
}

static void patch_rows(const Gemm *g, int64_t row, int64_t rows, int64_t at, int64_t depth, float *to) {
    patches(g->of, row, rows, at, depth, to, GEMM_STEP);
}

static void patch_columns(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    patches(g->of, at, depth, column, columns, to, GEMM_COLUMNS);
}

/* Weights from channels of dy to channels of dx, tap by tap */
static void tap_columns(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    const Walk *w = g->of;
    const Axis *down = &w->axis[0], *across = &w->axis[1];
    const int64_t o = w->channels, step = w->all_taps * g->n, kw = w->w->shape.dim[3];
    for (int64_t k = at, len; k < at + depth; k += len, to += len * GEMM_COLUMNS) {
        const int64_t t = k / o, i = down->tap + t / across->taps * down->tap_step;
        const int64_t j = across->tap + t % across->taps * across->tap_step;
        len = min_i64(o - k % o, at + depth - k);
        gemm_copy(g->b.type, g->b.at, k % o * step + (i * kw + j) * g->n + column, step, len, columns, to, GEMM_COLUMNS);
    }
}

/* ---- what becomes of sums */

/* The element of the result where a row begins */
static int64_t place_of(const Gemm *g, int64_t row) {
    const Walk *w = g->of;
    const Axis *down = &w->axis[0], *across = &w->axis[1];
    if (down->place_step == 1 && across->place_step == 1) return row * g->n;
    const int64_t line = row / across->rows, sample = line / down->rows;
    const int64_t i = down->place + line % down->rows * down->place_step;
    return (sample * w->result + i * w->width + across->place + row % across->rows * across->place_step) * g->n;
}

static const ActAttr *act_of_op(const KArgs *a) { return product_is_conv(a->kind) ? &a->attr->conv.fused : &a->attr->linear.fused; }

static void leave_y(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    const KArgs *a = ((const Walk *)g->of)->args;
    float scratch[BLOCK];
    for (int64_t c = 0; c < columns; c += BLOCK) {
        const int64_t n = min_i64(BLOCK, columns - c);
        const float *b = a->linear.b.count ? block_load(&a->linear.b, column + c, n, scratch) : NULL;
        for (int64_t r = 0; r < rows; r++) {
            float *y = sums + r * step + c;
            if (b) sum_rows(y, b, 1, n);
            act_block(act_of_op(a), y, y, n);
            block_store(&a->linear.y, place_of(g, row + r) + column + c, n, y);
        }
    }
}

/* The activation's operand comes from memory while sums wait in a cache: what a later row needs is asked for. */
static void leave_dx(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    enum { AHEAD = 2 /* rows */, LINE = 16 /* numbers, at least */ };
    const Walk *w = g->of;
    const KArgs *a = w->args;
    const View *dx = &a->linear_dx.dx, *s = &a->linear_dx.s;
    float saved[BLOCK], *parts = a->linear_dx.db.count ? w->parts + row / gemm_block_rows(g->m) * g->n + column : NULL;
    if (parts) memset(parts, 0, (size_t)columns * sizeof *parts);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += BLOCK) {
            const int64_t n = min_i64(BLOCK, columns - c), at = place_of(g, row + r) + column + c;
            float *to = sums + r * step + c;
            for (int64_t k = 0; k < n && s->count; k += LINE) view_ask(s, at + AHEAD * g->n + k);
            if (s->count) act_dx_block(act_of_op(a), to, to, block_load(s, at, n, saved), n);
            if (parts) sum_rows(parts + c, to, 1, n);
            block_store(dx, at, n, to);
        }
}

static void leave_dw(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    const View *dw = &((const Walk *)g->of)->args->linear_dw.dw;
    for (int64_t r = 0; r < rows; r++) block_store(dw, (row + r) * g->n + column, columns, sums + r * step);
}

/* ---- products */

static GemmMatrix matrix_of(const View *v, int64_t stride, bool is_transposed) {
    return (GemmMatrix){v->dtype, v->data, stride, is_transposed};
}

static GemmMatrix weights_of(const KArgs *args, const View *w, int64_t stride, bool is_transposed) {
    GemmMatrix m = matrix_of(w, stride, is_transposed);
    if (product_rounds_weight(args)) m.type = GEMM_F32_AS_BF16;
    return m;
}

/* Are the sums made where the result lies? A convolution's dx may lie where s does, which is read after the sums. */
static bool is_direct(const KArgs *args, const Walk *w) {
    if (args->kind == OP_conv2d_dx && args->conv2d_dx.s.count) return false;
    return args->out[0].dtype == DT_F32 && w->axis[0].place_step == 1 && w->axis[1].place_step == 1;
}

/* Are sums the result? */
static bool is_bare(const KArgs *args) {
    if (product_is_dw(args->kind)) return true;
    if (product_is_dx(args->kind)) return !args->linear_dx.s.count && !args->linear_dx.db.count;
    return !args->linear.b.count && !act_of_op(args)->act;
}

/* Pixel (i, j) of the first stride x stride ones: the class that it stands for, of dx; else there is only one. */
static Gemm product_of(const KArgs *args, int64_t i, int64_t j, Walk *w) {
    const ProductOperands p = product_operands(args);
    const int64_t outputs = p.w->shape.dim[0], numbers = p.w->count / outputs; /* of the weights */
    Gemm g = {.scale = 1, .of = w, .threads = ((CpuDevice *)args->device)->threads};
    *w = (Walk){.args = args, .w = p.w, .all_taps = 1};
    if (product_is_dw(args->kind)) {
        g.m = outputs, g.n = numbers, g.k = p.y->count / outputs, g.leave = leave_dw;
        g.a = matrix_of(p.y, outputs, true), g.b = matrix_of(p.x, numbers, false);
    } else if (product_is_dx(args->kind)) {
        g.m = p.y->count / outputs, g.n = numbers, g.k = outputs, g.leave = leave_dx;
        g.a = matrix_of(p.y, outputs, false), g.b = weights_of(args, p.w, numbers, false);
    } else {
        g.m = p.y->count / outputs, g.n = outputs, g.k = numbers, g.leave = leave_y;
        g.a = matrix_of(p.x, numbers, false), g.b = weights_of(args, p.w, numbers, true);
    }
    for (int d = 0; d < 2; d++) w->axis[d] = (Axis){.place_step = 1};
    if (!is_matrices(args)) {
        const int64_t *x = p.x->shape.dim, *y = p.y->shape.dim, *taps = p.w->shape.dim, at[] = {i, j};
        w->all_taps = taps[2] * taps[3];
        w->result = x[2] * x[3];
        w->width = x[3];
        w->image = product_is_dx(args->kind) ? p.y : p.x;
        w->channels = product_is_dx(args->kind) ? outputs : x[1];
        for (int d = 0; d < 2; d++)
            w->axis[d] = product_is_dx(args->kind) ? backward_axis(&args->attr->conv, d, x[2 + d], y[2 + d], taps[2 + d], at[d])
                                           : forward_axis(&args->attr->conv, d, x[2 + d], y[2 + d], taps[2 + d]);
        if (product_is_dw(args->kind)) g.columns = patch_columns;
        else g.rows = patch_rows;
        if (product_is_dx(args->kind)) {
            g.m = x[0] * w->axis[0].rows * w->axis[1].rows;
            g.n = x[1];
            g.k = w->axis[0].taps * w->axis[1].taps * outputs;
            g.columns = tap_columns;
        }
    }
    if (is_direct(args, w)) {
        g.c = args->out[0].data, g.c_step = g.n;
        if (is_bare(args)) g.leave = NULL;
    }
    g.by_blocks = product_is_dx(args->kind) && args->linear_dx.db.count; /* each has its sums of db */
    return g;
}

bool gemm_op_overwrites(const KArgs *args) {
    Walk w;
    product_of(args, 0, 0, &w);
    return !is_direct(args, &w);
}

/* Classes of pixels of dx, down or across */
static int64_t classes(const KArgs *args, int d) { return args->kind == OP_conv2d_dx ? args->attr->conv.stride[d] : 1; }

/* ---- the op */

/* Rows of parts: the sums of db of a block of rows each */
static int64_t part_rows(const KArgs *args, const Gemm *g) {
    return g->m && product_is_dx(args->kind) && args->linear_dx.db.count ? div_up(g->m, gemm_block_rows(g->m)) : 0;
}

/* rows: of parts, of all classes; parts: their bytes; product: those of the largest product */
typedef struct Sizes { int64_t rows; size_t parts, product; } Sizes;

static Sizes sizes_of(const KArgs *args, size_t limit) {
    Sizes s = {0};
    Walk w;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < classes(args, 0); i++)
            for (int64_t j = 0; j < classes(args, 1); j++) {
                const Gemm g = product_of(args, i, j, &w);
                if (!pass) s.rows += part_rows(args, &g);
                else if (g.m && g.k)
                    s.product = max_size(s.product, gemm_workspace(&g, limit > s.parts ? limit - s.parts : 0));
                s.parts = align_up((size_t)(s.rows * g.n) * sizeof(float), CPU_ALIGNMENT);
            }
    return s;
}

bool gemm_op_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    if (!fits(args)) return false;
    const Sizes s = sizes_of(args, limit);
    *bytes = s.parts + s.product;
    return true;
}

/* Pixels of dx that no tap meets */
static void clear(const Gemm *g, const View *dx) {
    static const float zeros[BLOCK];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < g->m; r++)
        for (int64_t c = 0; c < g->n; c += BLOCK)
            block_store(dx, place_of(g, r) + c, min_i64(BLOCK, g->n - c), zeros);
}

/* One class, whose sums of db begin with row `part`; returns the row after them. */
static int64_t run_class(const KArgs *args, int64_t i, int64_t j, int64_t part, void *workspace, size_t bytes) {
    Walk w;
    Gemm g = product_of(args, i, j, &w);
    const int64_t rows = part_rows(args, &g);
    w.parts = (float *)args->workspace + part * g.n;
    g.threads = threads_within(g.threads);
    if (g.m && g.k) gemm_run(&g, workspace, bytes);
    else if (g.m) clear(&g, &args->out[0]), memset(w.parts, 0, (size_t)(rows * g.n) * sizeof *w.parts);
    return part + rows;
}

int product_bias(const KArgs *args, Err *e) {
    KArgs sums = {.kind = OP_bias_db, .device = args->device};
    sums.bias_db.dy = args->linear_dw.dy;
    sums.bias_db.db = args->linear_dw.db;
    return sums.bias_db.db.count ? k_cpu_bias_db(&sums, e) : OK;
}

int gemm_op_run(const KArgs *args, Err *e) {
    const Sizes s = sizes_of(args, args->workspace_bytes);
    if (args->workspace_bytes < s.parts + s.product)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", s.parts + s.product,
                       args->workspace_bytes);
    int64_t part = 0;
    for (int64_t i = 0; i < classes(args, 0); i++)
        for (int64_t j = 0; j < classes(args, 1); j++)
            part = run_class(args, i, j, part, (char *)args->workspace + s.parts, args->workspace_bytes - s.parts);
    if (s.rows) sum_parts(&args->linear_dx.db, args->workspace, s.rows);
    return product_is_dw(args->kind) ? product_bias(args, e) : OK;
}
