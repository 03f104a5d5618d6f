/* resample.c: upsampling, means over windows, and the gradients of both, of channels-last images. All of them are one
 * formula: an output pixel is a sum of input pixels, each times the share of its row and the share of its column:
 *
 *   y[o][p] = sum over j of across(p, j) * (sum over i of down(o, i) * x[i][j])
 *
 * The sums over rows are made for a run of columns at a time. Those over columns follow a list of taps, which is made
 * once for some rows of output. Gradients gather, too: every dx is written once, summed in a fixed order. */
#include <string.h>

#include "parallel.h"
#include "program/window.h"

/* At most: ROOM elements of a run of columns, of which PART channels; TAPS of a list, which ROWS rows use */
enum { ROOM = 4096, PART = 512, TAPS = 512, ROWS = 8 };

/* ---- shares along one axis */

typedef struct Axis {
    OpKind kind;
    int axis; /* 0: down, 1: across */
    int64_t in, out;
    const UpsampleAttr *upsample;
    const PoolAttr *pool; /* NULL: adaptive, or no pooling */
} Axis;

static Axis axis_of(const KArgs *a, int axis) {
    bool pools = a->kind == OP_avgpool || a->kind == OP_avgpool_dx;
    return (Axis){a->kind, axis, a->in[0].shape.dim[2 + axis], a->out[0].shape.dim[2 + axis], &a->attr->upsample,
                  pools ? &a->attr->pool : NULL};
}

/* The input elements that output element `o` is made of. As `o` grows, neither end gets smaller. */
static Span reach_of(const Axis *x, int64_t o) {
    if (x->kind == OP_upsample) {
        Sample s = upsample_sample(x->upsample, x->axis, o, x->in, x->out);
        return (Span){s.at[0], s.at[1] + 1, 0};
    }
    if (x->kind == OP_upsample_dx) {
        Reach r = upsample_reach(x->upsample, x->axis, o, x->out, x->in);
        return (Span){r.lo, r.hi, 0};
    }
    bool forward = x->kind == OP_avgpool || x->kind == OP_adaptive_avgpool;
    return forward ? span_of(x->pool, x->axis, o, x->in, x->out) : windows_of(x->pool, x->axis, o, x->out, x->in);
}

static float sample_share(Sample s, int64_t i) {
    return (s.at[0] == i ? s.share[0] : 0) + (s.at[1] == i ? s.share[1] : 0);
}

/* The shares of both axes multiply to 1 / divisor_of. */
static float mean_share(const Axis *x, int64_t window, int64_t in, int64_t out) {
    if (x->pool && x->pool->divisor) return x->axis ? 1.0f : 1.0f / (float)x->pool->divisor;
    return 1.0f / (float)span_of(x->pool, x->axis, window, in, out).length;
}

/* The share that input element i has in output element o */
static float share_of(const Axis *x, int64_t o, int64_t i) {
    switch (x->kind) {
    case OP_upsample: return sample_share(upsample_sample(x->upsample, x->axis, o, x->in, x->out), i);
    case OP_upsample_dx: return sample_share(upsample_sample(x->upsample, x->axis, i, x->out, x->in), o);
    case OP_avgpool:
    case OP_adaptive_avgpool: return mean_share(x, o, x->in, x->out);
    default: return mean_share(x, i, x->out, x->in);
    }
}

/* ---- columns */

/* sum[to] += share from[at], for n channels from these elements on */
typedef struct Tap { int32_t to, at; float share; } Tap;

/* The taps of the next `outputs` output columns, which are made of input columns [lo, hi). rest: 0; or, if there is one
 * output column and its taps do not fit into one list, how many of its input columns the lists so far have */
typedef struct Taps {
    Tap tap[TAPS];
    int64_t count, outputs, lo, hi, rest;
} Taps;

/* Lists output columns from `first` on, n channels of each; rest: the first `rest` input columns of column `first` have
 * been listed before. */
static void taps_list(Taps *t, const Axis *x, int64_t first, int64_t rest, int64_t n) {
    int64_t most = ROOM / n, outputs = rest ? 1 : min_i64(most, x->out - first);
    t->count = t->outputs = t->rest = 0;
    t->lo = t->hi = reach_of(x, first).lo + rest;
    for (; t->outputs < outputs && !t->rest; t->outputs++) {
        int64_t o = first + t->outputs;
        Span s = reach_of(x, o);
        bool fits = s.hi - t->lo <= most && t->count + s.hi - s.lo <= TAPS;
        if (!fits && t->outputs > 0) return;
        for (int64_t i = t->outputs ? s.lo : t->lo; i < s.hi && !t->rest; i++) {
            float share = share_of(x, o, i);
            if (share != 0) t->tap[t->count++] = (Tap){(int32_t)((o - first) * n), (int32_t)((i - t->lo) * n), share};
            t->hi = i + 1;
            if (i + 1 < s.hi && (t->hi - t->lo == most || t->count == TAPS)) t->rest = t->hi - s.lo;
        }
    }
}

HOT static void add_share(float *sum, const float *x, float share, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += share * x[i];
}

HOT static void add_taps(float *sum, const float *from, const Tap *tap, int64_t count, int64_t n) {
    for (int64_t k = 0; k < count; k++) {
        float *to = sum + tap[k].to, share = tap[k].share;
        const float *x = from + tap[k].at;
#pragma omp simd
        for (int64_t c = 0; c < n; c++) to[c] += share * x[c];
    }
}

/* ---- rows */

/* Adds the taps' input to sum (outputs, n): channels from c on of a row of output. */
static void row_add(const KArgs *a, const Taps *t, int64_t row, int64_t c, int64_t n, float *sum) {
    const View *x = &a->in[0];
    const Axis down = axis_of(a, 0);
    int64_t o = row % down.out, first = row / down.out * down.in, columns = t->hi - t->lo;
    int64_t lines = n == x->shape.dim[1] ? 1 : columns, length = lines ? columns * n / lines : 0;
    float from[ROOM], rows[ROOM];
    const Span s = reach_of(&down, o);
    memset(rows, 0, (size_t)(columns * n) * sizeof *rows);
    for (int64_t i = s.lo; i < s.hi; i++) {
        float share = share_of(&down, o, i);
        for (int64_t k = 0; k < lines && share != 0; k++)
            add_share(rows + k * n, block_load(x, pixel_at(x, first + i, t->lo + k, c), length, from), share, length);
    }
    add_taps(sum, rows, t->tap, t->count, n);
}

/* Makes rows [begin, end) of output columns from `first` on, n channels from c on; returns how many columns. */
static int64_t columns_make(const KArgs *a, const Axis *across, int64_t begin, int64_t end, int64_t first, int64_t c,
                            int64_t n) {
    const View *y = &a->out[0];
    float scratch[ROOM];
    Taps t;
    taps_list(&t, across, first, 0, n);
    const bool many = t.rest, whole = n == y->shape.dim[1]; /* all channels: neighbouring pixels lie together */
    int64_t lines = whole ? 1 : t.outputs, length = t.outputs * n / lines;
    for (int64_t row = begin; row < end; row++) {
        float *sum = whole ? block_target(y, pixel_at(y, row, first, c), scratch) : scratch;
        if (many && row > begin) taps_list(&t, across, first, 0, n);
        memset(sum, 0, (size_t)(t.outputs * n) * sizeof *sum);
        row_add(a, &t, row, c, n, sum);
        while (t.rest) {
            taps_list(&t, across, first, t.rest, n);
            row_add(a, &t, row, c, n, sum);
        }
        for (int64_t k = 0; k < lines; k++) block_store(y, pixel_at(y, row, first + k, c), length, sum + k * n);
    }
    return t.outputs;
}

static void rows_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Axis across = axis_of(a, 1);
    int64_t channels = a->out[0].shape.dim[1];
    for (int64_t c = 0; c < channels; c += PART)
        for (int64_t w = 0; w < across.out;)
            w += columns_make(a, &across, begin, end, w, c, min_i64(PART, channels - c));
}

static int resample(const KArgs *a, Err *e) {
    int64_t rows = a->out[0].shape.dim[2];
    if (!a->in[0].channels_last || !a->out[0].channels_last || a->in[0].shape.rank != 4)
        return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)",
                       op_info(a->kind)->name);
    assert(a->in[0].shape.dim[0] == a->out[0].shape.dim[0] && a->in[0].shape.dim[1] == a->out[0].shape.dim[1]);
    range_run(a, a->out[0].shape.dim[0] * rows, min_i64(rows, ROWS), rows_piece);
    return OK;
}

int k_cpu_upsample(const KArgs *a, Err *e) { return resample(a, e); }
int k_cpu_upsample_dx(const KArgs *a, Err *e) { return resample(a, e); }
int k_cpu_avgpool(const KArgs *a, Err *e) { return resample(a, e); }
int k_cpu_avgpool_dx(const KArgs *a, Err *e) { return resample(a, e); }
int k_cpu_adaptive_avgpool(const KArgs *a, Err *e) { return resample(a, e); }
int k_cpu_adaptive_avgpool_dx(const KArgs *a, Err *e) { return resample(a, e); }
