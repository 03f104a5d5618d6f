/* linear_q.c: y = x w^T + b and dx = dy w over a weight (O, I) of 4 or 8 bits (math/quantized.h). A panel of the weight
 * at a time becomes numbers of x's type in the workspace, where it stays in the last-level cache, and is multiplied
 * there: rows of w for y, columns for dx, so that every number of the result is one sum.
 *
 * Where x is bf16, panels are, too, and x is read as it is. Else 16-bit operands get copies in fp32, and a panel is fp32,
 * of numbers that are rounded to x's type: all devices multiply the same weights. */
#include "bf16_gemm.h"
#include "codes.h"
#include "cpu.h"
#include "fp32_product.h"
#include "fp32_workspace.h"

enum { PANEL = 1 << 20 /* numbers, if LEAST rows or columns are not more */, LEAST = 64, LINE = 1024 };

/* The shared view of both ops: x (N, I), the weight, y (N, O); x is dx, and y is dy. */
typedef struct Product { int64_t n, in, out; Quantized w; } Product;

static Product product_of(const KArgs *a) {
    const View *last = &a->linear_q.y, *x = &a->linear_q.x;
    const int64_t one = last->shape.dim[last->shape.rank - 1], two = x->shape.dim[x->shape.rank - 1];
    const bool forward = a->kind == OP_linear_q;
    Product p = {.n = x->count / two, .in = forward ? two : one, .out = forward ? one : two};
    p.w = (Quantized){a->linear_q.w.data, a->linear_q.absmax.data, a->linear_q.quant_map.data,
                      a->linear_q.nested_absmax.data, a->linear_q.nested_quant_map.data,
                      a->linear_q.nested_offset.data, p.in};
    return p;
}

/* Rows, or columns of the weight in a panel. `length`: numbers in each */
static int64_t panel_width(int64_t all, int64_t length) {
    return min_i64(all, max_i64(LEAST, PANEL / length / LEAST * LEAST));
}

/* What a call has beside its operands. panel: of bf16 where `narrow` is set, else of fp32; type: that its numbers are
 * rounded to; scratch: of bf16 products */
typedef struct Work { bool narrow; DType type; void *panel, *scratch; } Work;

/* A row of a panel, from number i of the weight on */
static void fill_row(const Quantized *q, const Work *w, int64_t i, int64_t n, int64_t at) {
    const View panel = {.data = w->panel, .dtype = w->narrow ? DT_BF16 : DT_F32};
    float line[LINE];
    for (int64_t k = 0; k < n; k += LINE) {
        const int64_t count = min_i64(LINE, n - k);
        float *to = block_target(&panel, at + k, line);
        codes_load(q, i + k, count, to);
        if (!w->narrow) block_round(w->type, to, count);
        block_store(&panel, at + k, count, to);
    }
}

/* The panel of rows [row, row + rows), columns [column, column + columns). */
static void fill_panel(const Quantized *q, const Work *w, int64_t row, int64_t rows, int64_t column, int64_t columns) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) fill_row(q, w, (row + r) * q->columns + column, columns, r * columns);
}

/* ---- the workspace: copies in fp32 | the panel | scratch of bf16 products */

/* c (n, width) of the result = a (n, length) times the panel */
static Bf16GemmShape bf16_shape(const KArgs *a, const Product *p, int64_t width) {
    const bool forward = a->kind == OP_linear_q;
    return (Bf16GemmShape){.m = p->n, .n = width, .k = forward ? p->in : p->out, .a_stride = forward ? p->in : p->out,
                           .b_stride = forward ? p->in : width, .c_stride = forward ? p->out : p->in,
                           .b_transposed = forward, .add = forward && a->linear_q.b.count, .to = DT_BF16,
                           .threads = ((CpuDevice *)a->device)->threads};
}

static void *take(Room *r, size_t bytes) { return room_take(r, (int64_t)((bytes + sizeof(float) - 1) / sizeof(float))); }

/* Lays the workspace out. *wide: the op over fp32 operands, or as it is */
static Work lay_out(const KArgs *a, const Product *p, Room *r, KArgs *wide) {
    const bool forward = a->kind == OP_linear_q;
    const int64_t length = forward ? p->in : p->out, all = forward ? p->out : p->in, width = panel_width(all, length);
    Work w = {.narrow = a->in[0].dtype == DT_BF16 && a->out[0].dtype == DT_BF16, .type = a->in[0].dtype};
    *wide = *a;
    if (!w.narrow) fp32_enter(a, r, wide);
    w.panel = take(r, (size_t)(width * length) * (w.narrow ? 2 : 4));
    if (!w.narrow) return w;
    const Bf16GemmShape whole = bf16_shape(a, p, width), rest = bf16_shape(a, p, all % width);
    w.scratch = take(r, max_size(bf16_gemm_scratch(&whole), rest.n ? bf16_gemm_scratch(&rest) : 0));
    return w;
}

static int prepare(const KArgs *a, void **state, size_t *workspace) {
    const Product p = product_of(a);
    Room r = {NULL, 0};
    KArgs wide;
    lay_out(a, &p, &r, &wide);
    return room_prepared(&r, state, workspace);
}

int k_cpu_linear_q_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    (void)e;
    return prepare(a, state, workspace);
}

int k_cpu_linear_q_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    (void)e;
    return prepare(a, state, workspace);
}

/* ---- runs */

/* Every row of y starts as the bias. */
static void put_bias(const View *b, const View *y) {
    const int64_t n = b->count, rows = y->count / n;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            dtype_store(y->dtype, y->data, (size_t)(r * n + i), dtype_load(b->dtype, b->data, (size_t)i));
}

/* The product with the panel for rows, or columns, [at, at + width) of the weight */
static int panel_product(const KArgs *a, const Product *p, const Work *w, int64_t at, int64_t width) {
    const bool forward = a->kind == OP_linear_q;
    const View *from = &a->in[0], *to = &a->out[0];
    void *c = (char *)to->data + (size_t)at * dtype_size(to->dtype);
    if (w->narrow) {
        const Bf16GemmShape s = bf16_shape(a, p, width);
        return bf16_gemm_product(&s, from->data, w->panel, c, w->scratch);
    }
    const int64_t length = forward ? p->in : p->out;
    return product(p->n, width, length, 1.0f, matrix(from->data, length),
                   forward ? transposed(w->panel, length) : matrix(w->panel, width), forward && a->linear_q.b.count,
                   matrix(c, forward ? p->out : p->in));
}

static int run(const KArgs *a, Err *e) {
    const bool forward = a->kind == OP_linear_q;
    const Product p = product_of(a);
    const int64_t all = forward ? p.out : p.in, each = panel_width(all, forward ? p.in : p.out);
    Room needed = {NULL, 0}, room = {a->workspace, 0};
    KArgs wide;
    int status = 0;
    lay_out(a, &p, &needed, &wide);
    int code = room_check(&needed, a, e);
    if (code) return code;
    const Work w = lay_out(a, &p, &room, &wide);
    if (forward && a->linear_q.b.count) put_bias(&wide.linear_q.b, &wide.linear_q.y);
    for (int64_t at = 0; at < all && !status; at += each) {
        const int64_t width = min_i64(each, all - at);
        if (forward) fill_panel(&p.w, &w, at, width, 0, p.in);
        else fill_panel(&p.w, &w, 0, p.out, at, width);
        status = panel_product(&wide, &p, &w, at, width);
    }
    code = product_check(status, e);
    if (!w.narrow) fp32_leave(a, &wide);
    return code;
}

int k_cpu_linear_q(const KArgs *a, Err *e) { return run(a, e); }
int k_cpu_linear_q_dx(const KArgs *a, Err *e) { return run(a, e); }
