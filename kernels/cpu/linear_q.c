/* linear_q.c: y = x w^T + b and dx = dy w over a weight (O, I) of 4 or 8 bits (math/quantized.h). A panel of the weight
 * at a time becomes fp32 in the workspace, where it stays in the second-level cache, and is multiplied there: rows of w
 * for y, columns for dx, so that every number of the result is one sum. */
#include "math/quantized.h"
#include "cpu.h"
#include "fp32_workspace.h"

enum { PANEL = 1 << 18 /* numbers, if the least are not more */, LEAST = 64, LINE = 1024 };

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

/* Numbers [i, i + n) of the weight, of one block or row */
HOT static void line4(const Quantized *q, float scale, int64_t i, int64_t n, float *to) {
    float map[QUANT_MAP];
    for (int k = 0; k < QUANT_MAP; k++) map[k] = q->map[k] * scale;
    int64_t k = 0;
    if (i & 1 && n > 0) to[k++] = map[q->codes[i / 2] & 15];
    const uint8_t *codes = q->codes + (i + k) / 2;
    for (; k + 1 < n; k += 2, codes++) {
        to[k] = map[*codes >> 4];
        to[k + 1] = map[*codes & 15];
    }
    if (k < n) to[k] = map[*codes >> 4];
}

HOT static void line8(const Quantized *q, float scale, int64_t i, int64_t n, float *to) {
    for (int64_t k = 0; k < n; k++) to[k] = quant8_weight(q->codes[i + k], scale);
}

/* Numbers [i, i + n) of a row of the weight */
static void dequantize(const Quantized *q, int64_t i, int64_t n, float *to) {
    if (!q->map) {
        line8(q, ((const float *)q->absmax)[i / q->columns], i, n, to);
        return;
    }
    for (const int64_t end = i + n; i < end;) {
        const int64_t block = i / QUANT_BLOCK, count = min_i64(end, (block + 1) * QUANT_BLOCK) - i;
        line4(q, quant4_absmax(q, block), i, count, to);
        i += count;
        to += count;
    }
}

/* The panel of rows [row, row + rows), columns [column, column + columns). */
static void fill_panel(const Quantized *q, int64_t row, int64_t rows, int64_t column, int64_t columns, float *panel) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) dequantize(q, (row + r) * q->columns + column, columns, panel + r * columns);
}

static int prepare(const KArgs *a, void **state, size_t *workspace) {
    const Product p = product_of(a);
    const bool forward = a->kind == OP_linear_q;
    const int64_t length = forward ? p.in : p.out, all = forward ? p.out : p.in;
    Room r = {NULL, 0};
    KArgs wide;
    fp32_enter(a, &r, &wide);
    room_take(&r, panel_width(all, length) * length);
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

/* Every row of y starts as the bias. */
static void put_bias(const View *b, const View *y) {
    const int64_t n = b->count, rows = y->count / n;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) memcpy((float *)y->data + r * n, b->data, (size_t)n * sizeof(float));
}

static int forward(const Product *p, const KArgs *w, float *panel) {
    const int64_t each = panel_width(p->out, p->in);
    const View *b = &w->linear_q.b;
    const Matrix x = matrix(w->linear_q.x.data, p->in);
    int status = 0;
    if (b->count) put_bias(b, &w->linear_q.y);
    for (int64_t row = 0; row < p->out && !status; row += each) {
        const int64_t rows = min_i64(each, p->out - row);
        fill_panel(&p->w, row, rows, 0, p->in, panel);
        status = product(p->n, rows, p->in, 1.0f, x, transposed(panel, p->in), b->count > 0,
                         matrix((float *)w->linear_q.y.data + row, p->out));
    }
    return status;
}

static int backward(const Product *p, const KArgs *w, float *panel) {
    const int64_t each = panel_width(p->in, p->out);
    const Matrix dy = matrix(w->linear_q_dx.dy.data, p->out);
    int status = 0;
    for (int64_t column = 0; column < p->in && !status; column += each) {
        const int64_t columns = min_i64(each, p->in - column);
        fill_panel(&p->w, 0, p->out, column, columns, panel);
        status = product(p->n, columns, p->out, 1.0f, dy, matrix(panel, columns), false,
                         matrix((float *)w->linear_q_dx.dx.data + column, p->in));
    }
    return status;
}

static int run(const KArgs *a, int (*products)(const Product *, const KArgs *, float *panel), Err *e) {
    const Product p = product_of(a);
    Room room = {a->workspace, 0};
    KArgs wide;
    void *state;
    size_t needed;
    prepare(a, &state, &needed);
    if (a->workspace_bytes < needed)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", needed, a->workspace_bytes);
    fp32_enter(a, &room, &wide);
    const int code = product_check(products(&p, &wide, room_take(&room, 0)), e);
    fp32_leave(a, &wide);
    return code;
}

int k_cpu_linear_q(const KArgs *a, Err *e) { return run(a, forward, e); }
int k_cpu_linear_q_dx(const KArgs *a, Err *e) { return run(a, backward, e); }
