/* linear_q.c: y = x w^T + b and dx = dy w over a weight (O, I) of 4 or 8 bits (math/quantized.h), whose numbers are rounded to x's
 * type: all devices multiply the same weights.
 *
 * As products of gemm.h, which gets numbers from codes while it packs them: the weight is nowhere as a whole. Where the processor
 * multiplies bf16 and x is bf16, oneDNN does: then a panel of the weight at a time becomes bf16 in the workspace, where it stays in
 * the last-level cache; rows of w for y, columns for dx, so that every number of the result is one sum. */
#include "bf16_gemm.h"
#include "codes.h"
#include "cpu.h"
#include "fp32_product.h"
#include "fp32_workspace.h"
#include "gemm.h"
#include "gemm_tiles.h"

/* The shared view of both ops: the result (n, width) = x (n, length) times the weight. type: of the weight's numbers; bias: NULL without */
typedef struct Product {
    int64_t n, width, length;
    Quantized w;
    DType type;
    const View *x, *to, *bias;
    bool forward;
    int threads;
} Product;

static Product product_of(const KArgs *a) {
    const View *x = &a->in[0], *to = &a->out[0];
    const int64_t length = x->shape.dim[x->shape.rank - 1], width = to->shape.dim[to->shape.rank - 1];
    Product p = {.n = x->count / length, .width = width, .length = length, .type = x->dtype, .x = x, .to = to,
                 .forward = a->kind == OP_linear_q, .threads = ((CpuDevice *)a->device)->threads};
    if (p.forward && a->linear_q.b.count) p.bias = &a->linear_q.b;
    p.w = (Quantized){a->linear_q.w.data, a->linear_q.absmax.data, a->linear_q.quant_map.data,
                      a->linear_q.nested_absmax.data, a->linear_q.nested_quant_map.data,
                      a->linear_q.nested_offset.data, p.forward ? length : width};
    return p;
}

/* Numbers [column, column + n) of row `row` of the weight. Those of a later row are asked for: rows lie far apart. */
static void numbers(const Product *p, int64_t row, int64_t column, int64_t n, float *to) {
    enum { AHEAD = 16 /* rows */ };
    codes_ask(&p->w, (row + AHEAD) * p->w.columns + column, n);
    codes_load(&p->w, row * p->w.columns + column, n, to);
    block_round(p->type, to, n);
}

/* ---- by gemm.h */

/* Rows of the weight, as columns of its transpose */
static void columns_of_y(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    float rows[GEMM_COLUMNS * GEMM_STEP];
    for (int64_t c = 0; c < columns; c++) numbers(g->of, column + c, at, depth, rows + c * GEMM_STEP);
    gemm_turn(DT_F32, rows, 0, GEMM_STEP, columns, depth, GEMM_STEP, to, GEMM_COLUMNS);
}

/* Some rows at a time, whose numbers stay in the first cache until they lie in panels. */
static void columns_of_dx(const Gemm *g, int64_t column, int64_t columns, int64_t at, int64_t depth, float *to) {
    enum { ROWS = 16 };
    float rows[ROWS * GEMM_STRIP];
    for (int64_t k = 0; k < depth; k += ROWS) {
        const int64_t n = min_i64(ROWS, depth - k);
        for (int64_t r = 0; r < n; r++) numbers(g->of, at + k + r, column, columns, rows + r * GEMM_STRIP);
        gemm_panels(DT_F32, rows, 0, GEMM_STRIP, n, columns, to + k * GEMM_COLUMNS, depth * GEMM_COLUMNS);
    }
}

static void leave(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    const Product *p = g->of;
    float scratch[BLOCK];
    for (int64_t c = 0; c < columns; c += BLOCK) {
        const int64_t n = min_i64(BLOCK, columns - c);
        const float *b = p->bias ? block_load(p->bias, column + c, n, scratch) : NULL;
        for (int64_t r = 0; r < rows; r++) {
            float *to = sums + r * step + c;
            if (b) sum_rows(to, b, 1, n);
            block_store(p->to, (row + r) * g->n + column + c, n, to);
        }
    }
}

static Gemm gemm_of(const Product *p) {
    Gemm g = {.m = p->n, .n = p->width, .k = p->length, .a = {p->x->dtype, p->x->data, p->length, false}, .of = p, .scale = 1,
              .columns = p->forward ? columns_of_y : columns_of_dx, .strips = !p->forward, .threads = p->threads};
    if (p->to->dtype == DT_F32) g.c = p->to->data, g.c_step = g.n;
    if (!g.c || p->bias) g.leave = leave;
    return g;
}

/* ---- by panels in bf16. The workspace: the panel | scratch of the products */

enum { PANEL = 1 << 20 /* numbers, if LEAST rows or columns are not more */, LEAST = 64, LINE = 1024 };

static bool is_narrow(const Product *p) { return bf16_gemm_fits() && p->type == DT_BF16 && p->to->dtype == DT_BF16; }

/* Rows, or columns of the weight in a panel */
static int64_t panel_width(const Product *p) { return min_i64(p->width, max_i64(LEAST, PANEL / p->length / LEAST * LEAST)); }

/* c (n, width) of the result = a (n, length) times the panel */
static Bf16GemmShape bf16_shape(const Product *p, int64_t width) {
    return (Bf16GemmShape){.m = p->n, .n = width, .k = p->length, .a_stride = p->length, .b_stride = p->forward ? p->length : width,
                           .c_stride = p->width, .b_transposed = p->forward, .add = p->bias, .to = DT_BF16, .threads = p->threads};
}

typedef struct Work { void *panel, *scratch; } Work;

static void *take(Room *r, size_t bytes) { return room_take(r, (int64_t)((bytes + sizeof(float) - 1) / sizeof(float))); }

static Work lay_out(const Product *p, Room *r) {
    const int64_t each = panel_width(p);
    const Bf16GemmShape whole = bf16_shape(p, each), rest = bf16_shape(p, p->width % each);
    Work w = {.panel = take(r, (size_t)(each * p->length) * 2)};
    w.scratch = take(r, max_size(bf16_gemm_scratch(&whole), rest.n ? bf16_gemm_scratch(&rest) : 0));
    return w;
}

/* The panel of rows [row, row + rows), columns [column, column + columns). */
static void fill_panel(const Product *p, void *to, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const View panel = {.data = to, .dtype = DT_BF16};
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k += LINE) {
            float line[LINE];
            const int64_t n = min_i64(LINE, columns - k);
            codes_load(&p->w, (row + r) * p->w.columns + column + k, n, line);
            block_store(&panel, r * columns + k, n, line);
        }
}

/* Every row of y starts as the bias. */
static void put_bias(const Product *p) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < p->n; r++)
        for (int64_t i = 0; i < p->width; i++)
            dtype_store(p->to->dtype, p->to->data, (size_t)(r * p->width + i), dtype_load(p->bias->dtype, p->bias->data, (size_t)i));
}

static int run_narrow(const KArgs *a, const Product *p, Err *e) {
    const int64_t each = panel_width(p);
    Room needed = {NULL, 0}, room = {a->workspace, 0};
    int status = 0;
    lay_out(p, &needed);
    const int code = room_check(&needed, a, e);
    if (code) return code;
    const Work w = lay_out(p, &room);
    if (p->bias) put_bias(p);
    for (int64_t at = 0; at < p->width && !status; at += each) {
        const int64_t width = min_i64(each, p->width - at);
        if (p->forward) fill_panel(p, w.panel, at, width, 0, p->length);
        else fill_panel(p, w.panel, 0, p->length, at, width);
        const Bf16GemmShape s = bf16_shape(p, width);
        status = bf16_gemm_product(&s, p->x->data, w.panel, (uint16_t *)p->to->data + at, w.scratch);
    }
    return product_check(status, e);
}

/* ---- the ops */

static int prepare(const KArgs *a, size_t limit, void **state, size_t *workspace) {
    const Product p = product_of(a);
    Room r = {NULL, 0};
    const Gemm g = gemm_of(&p);
    if (is_narrow(&p)) lay_out(&p, &r);
    else r.used = gemm_workspace(&g, limit);
    return room_prepared(&r, state, workspace);
}

int k_cpu_linear_q_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)e;
    return prepare(a, limit, state, workspace);
}

int k_cpu_linear_q_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)e;
    return prepare(a, limit, state, workspace);
}

static int run(const KArgs *a, Err *e) {
    const Product p = product_of(a);
    if (is_narrow(&p)) return run_narrow(a, &p, e);
    Gemm g = gemm_of(&p);
    const Room needed = {NULL, gemm_workspace(&g, a->workspace_bytes)};
    const int code = room_check(&needed, a, e);
    if (code) return code;
    g.threads = threads_within(g.threads);
    gemm_run(&g, a->workspace, a->workspace_bytes);
    return OK;
}

int k_cpu_linear_q(const KArgs *a, Err *e) { return run(a, e); }
int k_cpu_linear_q_dx(const KArgs *a, Err *e) { return run(a, e); }
