/* prelu.c: y = x < 0 ? w x : x with one slope per channel, or one for all (C = 1: every row is one element). */
#include "tiles.h"
#include "cpu.h"

/* The columns of a row: the channels; or, with one slope for all, COLUMNS elements, whatever they are, each with a sum of its own. */
enum { COLUMNS = 512 };
static int64_t columns_of(const View *x, const View *w) {
    return w->count > 1 ? w->count : min_i64(COLUMNS, x->count);
}

/* Slopes of channels [first, first + n). */
static void load_slopes(const View *w, int64_t first, int64_t n, float *to) {
    float scratch[TILE_COLS];
    bool one = w->count == 1;
    const float *from = block_load(w, one ? 0 : first, one ? 1 : n, scratch);
    for (int64_t i = 0; i < n; i++) to[i] = from[one ? 0 : i];
}

HOT static void prelu_part(float *y, const float *x, const float *w, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0.0f ? w[i] * x[i] : x[i];
}

HOT static void prelu_dx_part(float *dx, const float *dy, const float *x, const float *w, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = x[i] > 0.0f ? dy[i] : w[i] * dy[i];
}

HOT static void prelu_dw_part(double *sum, const float *dy, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += x[i] > 0.0f ? 0.0 : (double)(dy[i] * x[i]);
}

/* Elements [at, at + n), at most TILE_COLS of them, all in one row of `cols` elements: columns from `first` on */
typedef struct Part { int64_t at, first, n; } Part;

static Part part_from(int64_t at, int64_t end, int64_t cols) {
    int64_t first = at % cols;
    return (Part){at, first, min_i64(min_i64(TILE_COLS, cols - first), end - at)};
}

static void prelu_piece(const KArgs *a, int64_t begin, int64_t end) {
    bool backward = a->kind == OP_prelu_dx;
    const View *x = backward ? &a->prelu_dx.x : &a->prelu.x, *w = backward ? &a->prelu_dx.w : &a->prelu.w;
    float from[TILE_COLS], gradient[TILE_COLS], to[TILE_COLS], slope[TILE_COLS];
    int64_t cols = columns_of(x, w);
    for (Part p = part_from(begin, end, cols); p.at < end; p = part_from(p.at + p.n, end, cols)) {
        load_slopes(w, p.first, p.n, slope);
        const float *in = block_load(x, p.at, p.n, from);
        float *out = block_target(&a->out[0], p.at, to);
        if (backward) prelu_dx_part(out, block_load(&a->prelu_dx.dy, p.at, p.n, gradient), in, slope, p.n);
        else prelu_part(out, in, slope, p.n);
        block_store(&a->out[0], p.at, p.n, out);
    }
}

static void prelu_dw_slab(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    float gradient[TILE_COLS], from[TILE_COLS];
    int64_t cols = columns_of(&a->prelu_dw.x, &a->prelu_dw.dw), stop = min_i64(end * cols, a->prelu_dw.x.count);
    for (Part p = part_from(begin * cols, stop, cols); p.at < stop; p = part_from(p.at + p.n, stop, cols)) {
        const float *dy = block_load(&a->prelu_dw.dy, p.at, p.n, gradient);
        prelu_dw_part(sums + p.first, dy, block_load(&a->prelu_dw.x, p.at, p.n, from), p.n);
    }
}

int k_cpu_prelu(const KArgs *a, Err *e) {
    const View *w = a->kind == OP_prelu_dx ? &a->prelu_dx.w : &a->prelu.w;
    (void)e, (void)w;
    assert(a->in[0].count == a->out[0].count && a->in[0].count % w->count == 0);
    assert(a->kind != OP_prelu_dx || a->prelu_dx.x.count == a->prelu_dx.dx.count);
    blocks_run(a, a->prelu.y.count, prelu_piece);
    return OK;
}

int k_cpu_prelu_dx(const KArgs *a, Err *e) { return k_cpu_prelu(a, e); }

int k_cpu_prelu_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit, (void)e;
    int64_t cols = columns_of(&a->prelu_dw.x, &a->prelu_dw.dw);
    *state = NULL;
    *workspace = slabs_workspace(div_up(a->prelu_dw.x.count, cols), cols);
    return OK;
}

int k_cpu_prelu_dw(const KArgs *a, Err *e) {
    assert(a->prelu_dw.dy.count == a->prelu_dw.x.count && a->prelu_dw.x.count % a->prelu_dw.dw.count == 0);
    int64_t cols = columns_of(&a->prelu_dw.x, &a->prelu_dw.dw);
    const double *sums = slabs_run(a, div_up(a->prelu_dw.x.count, cols), cols, prelu_dw_slab);
    double all = 0;
    (void)e;
    for (int64_t c = 0; c < cols; c++) {
        all += sums[c];
        if (a->prelu_dw.dw.count > 1) dtype_store(a->prelu_dw.dw.dtype, a->prelu_dw.dw.data, (size_t)c, (float)sums[c]);
    }
    if (a->prelu_dw.dw.count == 1) dtype_store(a->prelu_dw.dw.dtype, a->prelu_dw.dw.data, 0, (float)all);
    return OK;
}
