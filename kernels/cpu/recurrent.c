/* recurrent.c: a layer of RNN, LSTM or GRU in one direction, and its gradients, by the formulas of core/cells.h.
 *
 * What does not depend on the step before is one product over all steps: the sums from the input go where the step will
 * put what it saves (RNN: its output), and the gradients of w and x follow once the walk back has made those of all
 * sums. A walk takes slices of the batch, each through all steps on one thread, so that threads wait for each other
 * once per op and not once per step; where w_hh is too large for a core's own cache, there is one slice and its
 * products are threaded.
 *
 * Operands are fp32, 16-bit ones by copies. Where the processor multiplies bf16 and w_hh is large enough to gain by it,
 * bf16 operands stay as they are: products take them as they lie, h as the y of the step before. The sums from the
 * input are then made step by step beside those from h, and a sample's row passes through `lines` in fp32. */
#include <omp.h>

#include "cpu.h"
#include "narrow.h"
#include "rnn.h"
#include "vector_math.h"
#include "wide.h"

enum { SLICE = 16 /* samples */, CACHED = 256 << 10, WORTH = 16 << 10 /* elements of w_hh */, COLUMNS = 128 };

typedef struct Walk {
    RnnPath p;
    bool narrow;            /* bf16 operands as they are */
    View x, y, saved;       /* (rows, inputs), (rows, units), (rows, info.saved units) or absent */
    View w_ih, w_hh;
    float *zero;            /* (gates) */
    float *h, *c;           /* (samples, units): state, or its gradient */
    float *sums;            /* forward: (samples, gates), from h */
    float *lines;           /* narrow: forward (samples, a row of what is kept), back (slices, scratch of a sample) */
    void *packed_ih, *packed_hh;
    char *scratch;          /* narrow: of a slice's products, `each` bytes */
    size_t each;
    void *scratch_behind;   /* back, narrow: of the products behind the walk */
    int threads;
    const float *b_ih, *b_hh; /* (gates) */
    View dy, slopes;        /* back: slopes (rows, info.slopes units), gradients of the sums */
} Walk;

static bool is_narrow(const KArgs *a, const View *w_hh) {
    const View *x = a->kind == OP_rnn ? &a->in[0] : &a->in[1];
    return x->dtype == DT_BF16 && w_hh->dtype == DT_BF16 && w_hh->count >= WORTH && narrow_fits();
}

static Walk walk_of(const KArgs *a, const View *x, const View *y) {
    return (Walk){.p = rnn_path(a, x, y), .x = *x, .y = *y, .narrow = x->dtype != DT_F32,
                  .threads = ((CpuDevice *)a->device)->threads};
}

/* State before the first step, and gradients of that behind the last one. */
static void take_state(Walk *w, Room *r) {
    int64_t lines = w->p.samples * w->p.units;
    w->zero = room_take(r, w->p.gates);
    w->h = room_take(r, lines);
    w->c = room_take(r, w->p.mode == RNN_LSTM ? lines : 0);
    if (!r->base) return;
    memset(w->zero, 0, (size_t)w->p.gates * sizeof(float));
    memset(w->h, 0, (size_t)lines * sizeof(float));
    if (w->p.mode == RNN_LSTM) memset(w->c, 0, (size_t)lines * sizeof(float));
}

/* Element `i` of a view. */
static void *place(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

static float *floats(const View *v) { return v->data; }

/* Fp32 numbers that stand for a bias, or zeros. */
static const float *bias_of(const Walk *w, const View *b, Room *r) {
    if (!b->count) return w->zero;
    float *copy = b->dtype == DT_F32 ? NULL : room_take(r, b->count);
    return r->base ? block_load(b, 0, b->count, copy) : NULL;
}

static int64_t slice_size(const Walk *w) { return w->p.gates * w->p.units > CACHED ? w->p.samples : SLICE; }

static int64_t slice_count(const Walk *w) { return (w->p.samples + slice_size(w) - 1) / slice_size(w); }
/* Samples of the first slice, which are the usual ones, or of the last one */
static int64_t slice_of(const Walk *w, int last) {
    return last ? w->p.samples - (slice_count(w) - 1) * slice_size(w) : min_i64(slice_size(w), w->p.samples);
}
static bool slices_even(const Walk *w) { return slice_of(w, 0) == slice_of(w, 1); }

/* On how many threads its products run. */
static int slice_threads(const Walk *w) { return w->p.samples > slice_size(w) ? 1 : w->threads; }
static void *slice_scratch(const Walk *w, int64_t begin) { return w->scratch + begin / slice_size(w) * w->each; }

/* *most: of scratch for products of several shapes */
static void count_scratch(size_t *most, NarrowShape s) {
    size_t bytes = align_up(narrow_scratch(&s), CPU_ALIGNMENT);
    if (bytes > *most) *most = bytes;
}

typedef int SliceFn(const Walk *w, int64_t begin, int64_t end);

static int slices_run(const Walk *w, SliceFn *slice) {
    int64_t size = slice_size(w);
    int status = 0;
#pragma omp parallel for schedule(static) reduction(| : status) if (w->p.samples > size)
    for (int64_t n = 0; n < w->p.samples; n += size) status |= slice(w, n, min_i64(n + size, w->p.samples));
    return status;
}

/* ---- forward */

/* One sample's step. x: its sums from the input, which lie where `saved` (RNN: y) goes; s: those from h */
HOT static void plain_row(const Walk *w, float *y, const float *s, float *h) {
    const float *bi = w->b_ih, *bh = w->b_hh;
    if (w->p.mode == RNN_TANH) {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) y[j] = h[j] = tanhf(y[j] + bi[j] + (s[j] + bh[j]));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++)
            y[j] = h[j] = act_value(ACT_RELU, y[j] + bi[j] + (s[j] + bh[j]), 0.0f);
    }
}

HOT static void lstm_row(const Walk *w, float *saved, const float *s, float *h, float *c, float *y) {
    const float *bi = w->b_ih, *bh = w->b_hh;
    int64_t u = w->p.units;
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        int64_t f = j + u, g = f + u, o = g + u;
        LstmUnit v = lstm_unit(saved[j] + bi[j] + (s[j] + bh[j]), saved[f] + bi[f] + (s[f] + bh[f]),
                               saved[g] + bi[g] + (s[g] + bh[g]), saved[o] + bi[o] + (s[o] + bh[o]), c[j]);
        saved[j] = v.i;
        saved[f] = v.f;
        saved[g] = v.g;
        saved[o] = v.o;
        saved[o + u] = c[j] = v.c;
        y[j] = h[j] = v.h;
    }
}

HOT static void gru_row(const Walk *w, float *saved, const float *s, float *h, float *y) {
    const float *bi = w->b_ih, *bh = w->b_hh;
    int64_t u = w->p.units;
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        int64_t z = j + u, n = z + u;
        GruUnit v = gru_unit(saved[j] + bi[j] + (s[j] + bh[j]), saved[z] + bi[z] + (s[z] + bh[z]), saved[n] + bi[n],
                             s[n] + bh[n], h[j]);
        saved[j] = v.r;
        saved[z] = v.z;
        saved[n] = v.n;
        saved[n + u] = v.hn;
        y[j] = h[j] = v.h;
    }
}

/* What a row of the walk leaves for the gradient: `saved`, of RNN y. */
static int64_t kept_width(const Walk *w) { return max_i64(w->p.info.saved, 1) * w->p.units; }
static const View *kept_in(const Walk *w) { return w->p.info.saved ? &w->saved : &w->y; }

static void forward_sample(const Walk *w, int64_t n, int64_t k) {
    int64_t row = rnn_row(&w->p, n, k), units = w->p.units, width = kept_width(w);
    float *h = w->h + n * units, *y = w->narrow ? h : floats(&w->y) + row * units;
    float *line = w->narrow ? w->lines + n * width : floats(kept_in(w)) + row * width;
    const float *s = w->sums + n * w->p.gates;
    if (w->p.mode == RNN_LSTM) lstm_row(w, line, s, h, w->c + n * units, y);
    else if (w->p.mode == RNN_GRU) gru_row(w, line, s, h, y);
    else plain_row(w, line, s, h);
    if (!w->narrow) return;
    if (w->saved.count) block_store(&w->saved, row * width, width, line);
    block_store(&w->y, row * units, units, h);
}

/* Products of one step, over a slice: the sums from the input, and those from the y of the step before. */
static NarrowShape input_shape(const Walk *w, int64_t samples) {
    return (NarrowShape){.m = samples, .n = w->p.gates, .k = w->p.inputs, .a_stride = w->p.sample * w->p.inputs,
                         .b_stride = w->p.inputs, .b_turned = true, .c_stride = kept_width(w), .to = DT_F32,
                         .packed = true, .threads = slice_threads(w)};
}

static NarrowShape hidden_shape(const Walk *w, int64_t samples) {
    return (NarrowShape){.m = samples, .n = w->p.gates, .k = w->p.units, .a_stride = w->p.sample * w->p.units,
                         .b_stride = w->p.units, .b_turned = true, .c_stride = w->p.gates, .to = DT_F32,
                         .packed = true, .threads = slice_threads(w)};
}

typedef struct Products { Narrow from_input, from_hidden; } Products;

static int products_open(const Walk *w, int64_t samples, Products *p) {
    const NarrowShape input = input_shape(w, samples), hidden = hidden_shape(w, samples);
    memset(p, 0, sizeof *p);
    int status = w->narrow ? narrow_open(&p->from_input, &input) : 0;
    return w->narrow && !status ? narrow_open(&p->from_hidden, &hidden) : status;
}

static int forward_sums(const Walk *w, Products *p, int64_t begin, int64_t end, int64_t k) {
    float *sums = w->sums + begin * w->p.gates;
    if (!w->narrow)
        return k ? product(end - begin, w->p.gates, w->p.units, 1.0f, matrix(w->h + begin * w->p.units, w->p.units),
                           turned(floats(&w->w_hh), w->p.units), false, matrix(sums, w->p.gates)) : 0;
    void *scratch = slice_scratch(w, begin);
    int status = narrow_run(&p->from_input, place(&w->x, rnn_row(&w->p, begin, k) * w->p.inputs), w->packed_ih,
                            w->lines + begin * kept_width(w), scratch);
    if (status || !k) return status;
    const void *before = place(&w->y, rnn_row(&w->p, begin, k - 1) * w->p.units);
    return narrow_run(&p->from_hidden, before, w->packed_hh, sums, scratch);
}

static int forward_slice(const Walk *w, int64_t begin, int64_t end) {
    Products p;
    int status = products_open(w, end - begin, &p);
    memset(w->sums + begin * w->p.gates, 0, (size_t)((end - begin) * w->p.gates) * sizeof(float));
    for (int64_t k = 0; k < w->p.steps && !status; k++) {
        status = forward_sums(w, &p, begin, end, k);
        for (int64_t n = begin; n < end && !status; n++) forward_sample(w, n, k);
    }
    narrow_close(&p.from_input);
    narrow_close(&p.from_hidden);
    return status;
}

static void *take_bytes(Room *r, size_t bytes) { return room_take(r, (int64_t)(bytes / sizeof(float))); }

/* A place for w (n, k) packed, or (k, n) that is not turned. */
static void *take_packed(Room *r, int64_t n, int64_t k) { return take_bytes(r, narrow_packed(n, k)); }

/* Packed for slices of their usual size, which take what any of as many threads wants. */
static int pack(const NarrowShape *s, const View *from, void *to) {
    Narrow p;
    int status = narrow_open(&p, s);
    if (!status) status = narrow_pack(&p, s, from->data, to);
    narrow_close(&p);
    return status;
}

static int forward_start(const Walk *w) {
    if (w->narrow) {
        const NarrowShape input = input_shape(w, slice_of(w, 0)), hidden = hidden_shape(w, slice_of(w, 0));
        int status = pack(&input, &w->w_ih, w->packed_ih);
        return status ? status : pack(&hidden, &w->w_hh, w->packed_hh);
    }
    return product(w->p.rows, w->p.gates, w->p.inputs, 1.0f, matrix(floats(&w->x), w->p.inputs),
                   turned(floats(&w->w_ih), w->p.inputs), false, matrix(floats(kept_in(w)), kept_width(w)));
}

static Walk forward_open(const KArgs *a, Room *r, KArgs *wide) {
    if (is_narrow(a, &a->in[2])) *wide = *a;
    else wide_enter(a, r, wide);
    Walk w = walk_of(wide, &wide->in[0], &wide->out[0]);
    w.w_ih = wide->in[1];
    w.w_hh = wide->in[2];
    w.saved = wide->out[1];
    if (w.narrow) {
        w.packed_ih = take_packed(r, w.p.gates, w.p.inputs);
        w.packed_hh = take_packed(r, w.p.gates, w.p.units);
        w.lines = room_take(r, w.p.samples * kept_width(&w));
        for (int k = slices_even(&w); k < 2; k++) {
            count_scratch(&w.each, input_shape(&w, slice_of(&w, k)));
            count_scratch(&w.each, hidden_shape(&w, slice_of(&w, k)));
        }
        w.scratch = take_bytes(r, (size_t)slice_count(&w) * w.each);
    } else if (!w.saved.count) {
        w.saved.data = room_take(r, w.p.rows * w.p.info.saved * w.p.units);
    }
    w.sums = room_take(r, w.p.samples * w.p.gates);
    take_state(&w, r);
    w.b_ih = bias_of(&w, &wide->in[3], r);
    w.b_hh = bias_of(&w, &wide->in[4], r);
    return w;
}

int k_cpu_rnn_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    Room r = {NULL, 0};
    KArgs wide;
    (void)limit;
    (void)e;
    forward_open(a, &r, &wide);
    return room_prepared(&r, state, workspace);
}

int k_cpu_rnn(const KArgs *a, Err *e) {
    Room needed = {NULL, 0}, r = {a->workspace, 0};
    KArgs wide;
    forward_open(a, &needed, &wide);
    int code = room_check(&needed, a, e);
    if (code) return code;
    Walk w = forward_open(a, &r, &wide);
    int status = forward_start(&w);
    if (!status) status = slices_run(&w, forward_slice);
    if (!w.narrow) wide_leave(a, &wide);
    return product_check(status, e);
}

/* ---- back */

/* One sample's step: d, the gradients of its sums; dh: in, the gradient of h from the step behind; out, what goes
 * straight on to the step before. y_before, c_before: of the step before. */
HOT static void plain_back_row(const Walk *w, const float *y, const float *dy, float *dh, float *d) {
    ActFn f = w->p.mode == RNN_TANH ? ACT_TANH : ACT_RELU;
    if (f == ACT_TANH) {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) d[j] = (dy[j] + dh[j]) * act_slope(ACT_TANH, y[j], 0.0f);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) d[j] = (dy[j] + dh[j]) * act_slope(ACT_RELU, y[j], 0.0f);
    }
    memset(dh, 0, (size_t)w->p.units * sizeof *dh);
}

HOT static void lstm_back_row(const Walk *w, const float *saved, const float *c_before, const float *dy, float *dh,
                              float *dc, float *d) {
    int64_t u = w->p.units;
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        LstmUnit v = {saved[j], saved[j + u], saved[j + 2 * u], saved[j + 3 * u], saved[j + 4 * u], 0.0f};
        LstmSlope s = lstm_slope(v, c_before[j], dy[j] + dh[j], dc[j]);
        d[j] = s.i;
        d[j + u] = s.f;
        d[j + 2 * u] = s.g;
        d[j + 3 * u] = s.o;
        dc[j] = s.c;
        dh[j] = 0.0f;
    }
}

HOT static void gru_back_row(const Walk *w, const float *saved, const float *y_before, const float *dy, float *dh,
                             float *d) {
    int64_t u = w->p.units;
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        GruUnit v = {saved[j], saved[j + u], saved[j + 2 * u], saved[j + 3 * u], 0.0f};
        GruSlope s = gru_slope(v, y_before[j], dy[j] + dh[j]);
        d[j] = s.n;
        d[j + u] = s.r;
        d[j + 2 * u] = s.z;
        d[j + 3 * u] = s.hn;
        dh[j] = s.h;
    }
}

/* `n` numbers of `v` as fp32, where they lie or in *scratch, which moves on. */
static const float *row_load(const View *v, int64_t begin, int64_t n, float **scratch) {
    float *to = *scratch;
    *scratch += n;
    return block_load(v, begin, n, to);
}

/* What row_load and block_target may need for one sample: saved, c or y of the step before, y, dy, slopes. */
static int64_t scratch_size(const Walk *w) { return (w->p.info.saved + 3 + w->p.info.slopes) * w->p.units; }

static void back_sample(const Walk *w, int64_t n, int64_t k, float *scratch) {
    int64_t row = rnn_row(&w->p, n, k), u = w->p.units, width = w->p.info.saved * u;
    int64_t before = k ? rnn_row(&w->p, n, k - 1) : 0;
    const float *dy = row_load(&w->dy, row * u, u, &scratch), *last = w->zero;
    float *dh = w->h + n * u, *d = block_target(&w->slopes, row * w->p.info.slopes * u, scratch);
    scratch += w->p.info.slopes * u;
    if (w->p.mode == RNN_LSTM) {
        if (k) last = row_load(&w->saved, before * width + 4 * u, u, &scratch);
        lstm_back_row(w, row_load(&w->saved, row * width, width, &scratch), last, dy, dh, w->c + n * u, d);
    } else if (w->p.mode == RNN_GRU) {
        if (k) last = row_load(&w->y, before * u, u, &scratch);
        gru_back_row(w, row_load(&w->saved, row * width, width, &scratch), last, dy, dh, d);
    } else {
        plain_back_row(w, row_load(&w->y, row * u, u, &scratch), dy, dh, d);
    }
    block_store(&w->slopes, row * w->p.info.slopes * u, w->p.info.slopes * u, d);
}

/* dh += d w_hh over a slice */
static NarrowShape back_shape(const Walk *w, int64_t samples) {
    return (NarrowShape){.m = samples, .n = w->p.units, .k = w->p.gates, .add = true, .packed = true, .to = DT_F32,
                         .a_stride = w->p.sample * w->p.info.slopes * w->p.units, .b_stride = w->p.units,
                         .c_stride = w->p.units, .threads = slice_threads(w)};
}

static int back_slice(const Walk *w, int64_t begin, int64_t end) {
    int64_t units = w->p.units, width = w->p.info.slopes * units;
    float *dh = w->h + begin * units, *scratch = w->narrow ? w->lines + begin / slice_size(w) * scratch_size(w) : NULL;
    const NarrowShape shape = back_shape(w, end - begin);
    Narrow p;
    memset(&p, 0, sizeof p);
    int status = w->narrow ? narrow_open(&p, &shape) : 0;
    for (int64_t k = w->p.steps - 1; k >= 0 && !status; k--) {
        for (int64_t n = begin; n < end; n++) back_sample(w, n, k, scratch);
        void *d = place(&w->slopes, rnn_row(&w->p, begin, k) * width + rnn_hidden(&w->p));
        if (!k) break;
        status = w->narrow ? narrow_run(&p, d, w->packed_hh, dh, slice_scratch(w, begin))
                           : product(end - begin, units, w->p.gates, 1.0f, matrix(d, w->p.sample * width),
                                     matrix(floats(&w->w_hh), units), true, matrix(dh, units));
    }
    narrow_close(&p);
    return status;
}

HOT static void add_columns(double *sum, const float *from, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) sum[j] += (double)from[j];
}

/* db[row + j] = sum over rows of slopes of their column + j, j below n */
static void sum_columns(const Walk *w, const View *db, int64_t row, int64_t column, int64_t n) {
    int64_t width = w->p.info.slopes * w->p.units, rows = w->p.rows;
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < n; j += COLUMNS) {
        double part[COLUMNS] = {0};
        float scratch[COLUMNS];
        int64_t count = min_i64(COLUMNS, n - j);
        for (int64_t r = 0; r < rows; r++)
            add_columns(part, block_load(&w->slopes, r * width + column + j, count, scratch), count);
        for (int64_t i = 0; i < count; i++) scratch[i] = (float)part[i];
        block_store(db, row + j, count, scratch);
    }
}

/* Runs of columns of slopes that belong to runs of w_ih's rows. */
typedef struct Run { int64_t column, row, count; } Run;

static int input_runs(const Walk *w, Run run[2]) {
    int64_t u = w->p.units;
    run[0] = w->p.mode == RNN_GRU ? (Run){u, 0, 2 * u} : (Run){0, 0, w->p.gates};
    run[1] = (Run){0, 2 * u, u};
    return w->p.mode == RNN_GRU ? 2 : 1;
}

/* Of `n` columns of slopes: the gradients of as many rows of w_ih, and what they add to that of x */
static NarrowShape to_w_shape(const Walk *w, int64_t n, DType to) {
    return (NarrowShape){.m = n, .n = w->p.inputs, .k = w->p.rows, .a_stride = w->p.info.slopes * w->p.units,
                         .a_turned = true, .b_stride = w->p.inputs, .c_stride = w->p.inputs, .to = to,
                         .threads = w->threads};
}

static NarrowShape to_x_shape(const Walk *w, int64_t n, bool add, DType to) {
    return (NarrowShape){.m = w->p.rows, .n = w->p.inputs, .k = n, .a_stride = w->p.info.slopes * w->p.units,
                         .b_stride = w->p.inputs, .c_stride = w->p.inputs, .add = add, .to = to,
                         .threads = w->threads};
}

/* Of the slopes of all steps but one, the gradient of w_hh */
static NarrowShape to_hidden_shape(const Walk *w, DType to) {
    return (NarrowShape){.m = w->p.gates, .n = w->p.units, .k = w->p.rows - w->p.step,
                         .a_stride = w->p.info.slopes * w->p.units, .a_turned = true, .b_stride = w->p.units,
                         .c_stride = w->p.units, .to = to, .threads = w->threads};
}

/* Gradients of operands: c (m, n) = a b, of matrices that lie as `s` says; of fp32 or bf16 */
static int gradient(const Walk *w, NarrowShape s, void *a, void *b, const View *c, int64_t at) {
    if (w->narrow) return narrow_product(&s, a, b, place(c, at), w->scratch_behind);
    return product(s.m, s.n, s.k, 1.0f, (Matrix){a, s.a_stride, s.a_turned}, (Matrix){b, s.b_stride, s.b_turned}, s.add,
                   matrix(place(c, at), s.c_stride));
}

static int input_gradients(const Walk *w, const View *dx, const View *dw, const View *db) {
    int64_t in = w->p.inputs;
    Run run[2];
    int runs = input_runs(w, run), status = 0;
    for (int i = 0; i < runs; i++) {
        void *d = place(&w->slopes, run[i].column);
        int64_t n = run[i].count, at = run[i].row * in;
        if (db->count) sum_columns(w, db, run[i].row, run[i].column, n);
        if (dw->count) status |= gradient(w, to_w_shape(w, n, dw->dtype), d, w->x.data, dw, at);
        if (dx->count) status |= gradient(w, to_x_shape(w, n, i > 0, dx->dtype), d, place(&w->w_ih, at), dx, 0);
    }
    return status;
}

/* Rows of slopes meet the rows of y of one step before. The walk's first step has none: its slopes, which nothing needs
 * any more, become zero, so that every other row has its partner at the same distance. */
static int hidden_gradients(const Walk *w, const View *dw, const View *db, const View *db_ih) {
    int64_t u = w->p.units, width = w->p.info.slopes * u, column = rnn_hidden(&w->p), rows = w->p.rows - w->p.step;
    bool known = w->p.mode != RNN_GRU && db_ih->dtype == db->dtype && db_ih->count == db->count; /* the same sums */
    if (known && db->count) memcpy(db->data, db_ih->data, (size_t)db->count * dtype_size(db->dtype));
    else if (db->count) sum_columns(w, db, 0, column, w->p.gates);
    if (!dw->count) return 0;
    for (int64_t n = 0; n < w->p.samples; n++)
        memset(place(&w->slopes, rnn_row(&w->p, n, 0) * width), 0, (size_t)width * dtype_size(w->slopes.dtype));
    if (rows == 0) memset(dw->data, 0, (size_t)dw->count * dtype_size(dw->dtype));
    if (rows == 0) return 0;
    void *d = place(&w->slopes, column + (w->p.reverse ? 0 : w->p.step * width));
    void *y = place(&w->y, w->p.reverse ? w->p.step * u : 0);
    return gradient(w, to_hidden_shape(w, dw->dtype), d, y, dw, 0);
}

/* Scratch for the products that make the gradients of x and w. */
static size_t gradients_scratch(const Walk *w, const View *dx, const View *dw_ih, const View *dw_hh) {
    Run run[2];
    size_t most = 0;
    for (int k = input_runs(w, run) - 1; k >= 0; k--) {
        if (dw_ih->count) count_scratch(&most, to_w_shape(w, run[k].count, dw_ih->dtype));
        if (dx->count) count_scratch(&most, to_x_shape(w, run[k].count, k > 0, dx->dtype));
    }
    if (dw_hh->count && w->p.rows > w->p.step) count_scratch(&most, to_hidden_shape(w, dw_hh->dtype));
    return most;
}

static Walk back_open(const KArgs *a, Room *r, KArgs *wide) {
    if (is_narrow(a, &a->in[3])) *wide = *a;
    else wide_enter(a, r, wide);
    Walk w = walk_of(wide, &wide->in[1], &wide->in[4]);
    w.dy = wide->in[0];
    w.w_ih = wide->in[2];
    w.w_hh = wide->in[3];
    w.saved = wide->in[5];
    int64_t slopes = w.p.rows * w.p.info.slopes * w.p.units;
    w.slopes = (View){.dtype = w.narrow ? DT_BF16 : DT_F32, .count = slopes};
    w.slopes.data = room_take(r, w.narrow ? (slopes + 1) / 2 : slopes);
    Room behind = *r; /* the gradients' scratch lies where what only the walk needs was */
    if (w.narrow) {
        w.packed_hh = take_packed(r, w.p.units, w.p.gates);
        w.lines = room_take(r, slice_count(&w) * scratch_size(&w));
        for (int k = slices_even(&w); k < 2; k++) count_scratch(&w.each, back_shape(&w, slice_of(&w, k)));
        w.scratch = take_bytes(r, (size_t)slice_count(&w) * w.each);
    }
    take_state(&w, r);
    if (!w.narrow) return w;
    w.scratch_behind = take_bytes(&behind, gradients_scratch(&w, &wide->out[0], &wide->out[1], &wide->out[2]));
    if (behind.used > r->used) r->used = behind.used;
    return w;
}

int k_cpu_rnn_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    Room r = {NULL, 0};
    KArgs wide;
    (void)limit;
    (void)e;
    back_open(a, &r, &wide);
    return room_prepared(&r, state, workspace);
}

int k_cpu_rnn_dx(const KArgs *a, Err *e) {
    Room needed = {NULL, 0}, r = {a->workspace, 0};
    KArgs wide;
    back_open(a, &needed, &wide);
    int code = room_check(&needed, a, e);
    if (code) return code;
    Walk w = back_open(a, &r, &wide);
    const NarrowShape shape = back_shape(&w, slice_of(&w, 0));
    int status = w.narrow ? pack(&shape, &w.w_hh, w.packed_hh) : 0;
    if (!status) status = slices_run(&w, back_slice);
    if (!status) status = input_gradients(&w, &wide.out[0], &wide.out[1], &wide.out[3]);
    if (!status) status = hidden_gradients(&w, &wide.out[2], &wide.out[4], &wide.out[3]);
    if (!w.narrow) wide_leave(a, &wide);
    return product_check(status, e);
}
