/* recurrent.c: a layer of RNN, LSTM or GRU in one direction, and its gradients, by the formulas of core/cells.h.
 *
 * What does not depend on the step before is one product over all steps: the sums from the input go where the step will
 * put what it saves (RNN: its output), and the gradients of w and x follow once the walk back has made those of all
 * sums. A walk takes slices of the batch, each through all steps on one thread, so that threads wait for each other
 * once per op and not once per step; where w_hh is too large for a core's own cache, there is one slice and its
 * products are threaded. */
#include "cpu.h"
#include "rnn.h"
#include "vector_math.h"
#include "wide.h"

enum { SLICE = 16 /* samples */, CACHED = 256 << 10 /* elements of w_hh */, COLUMNS = 64 };

typedef struct Walk {
    RnnPath p;
    float *x, *y, *saved;   /* (rows, inputs), (rows, units), (rows, info.saved units) */
    float *w_ih, *w_hh;
    float *zero;            /* (gates) */
    float *h, *c;           /* (samples, units): state, or its gradient */
    float *sums;            /* forward: (samples, gates), from h */
    const float *b_ih, *b_hh; /* (gates) */
    float *dy, *slopes;     /* back: slopes (rows, info.slopes units), gradients of the sums */
} Walk;

static Walk walk_of(const KArgs *a, const View *x, const View *y) {
    return (Walk){.p = rnn_path(a, x, y), .x = x->data, .y = y->data};
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

typedef int SliceFn(const Walk *w, int64_t begin, int64_t end);

static int slices_run(const Walk *w, SliceFn *slice) {
    int64_t size = w->p.gates * w->p.units > CACHED ? w->p.samples : SLICE;
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

static int forward_slice(const Walk *w, int64_t begin, int64_t end) {
    int64_t units = w->p.units, gates = w->p.gates;
    Matrix h = matrix(w->h + begin * units, units), sums = matrix(w->sums + begin * gates, gates);
    int status = 0;
    memset(sums.at, 0, (size_t)((end - begin) * gates) * sizeof(float));
    for (int64_t k = 0; k < w->p.steps && !status; k++) {
        if (k) status = product(end - begin, gates, units, 1.0f, h, turned(w->w_hh, units), false, sums);
        for (int64_t n = begin; n < end && !status; n++) {
            int64_t row = rnn_row(&w->p, n, k);
            float *y = w->y + row * units, *saved = w->saved + row * w->p.info.saved * units;
            const float *s = w->sums + n * gates;
            float *state = w->h + n * units;
            if (w->p.mode == RNN_LSTM) lstm_row(w, saved, s, state, w->c + n * units, y);
            else if (w->p.mode == RNN_GRU) gru_row(w, saved, s, state, y);
            else plain_row(w, y, s, state);
        }
    }
    return status;
}

static Walk forward_open(const KArgs *a, Room *r, KArgs *wide) {
    wide_enter(a, r, wide);
    const View *b_ih = &wide->in[3], *b_hh = &wide->in[4], *saved = &wide->out[1];
    Walk w = walk_of(a, &wide->in[0], &wide->out[0]);
    w.w_ih = wide->in[1].data;
    w.w_hh = wide->in[2].data;
    w.saved = saved->count ? saved->data : room_take(r, w.p.rows * w.p.info.saved * w.p.units);
    w.sums = room_take(r, w.p.samples * w.p.gates);
    take_state(&w, r);
    w.b_ih = b_ih->count ? b_ih->data : w.zero;
    w.b_hh = b_hh->count ? b_hh->data : w.zero;
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
    Matrix sums = w.p.info.saved ? matrix(w.saved, w.p.info.saved * w.p.units) : matrix(w.y, w.p.units);
    int status = product(w.p.rows, w.p.gates, w.p.inputs, 1.0f, matrix(w.x, w.p.inputs), turned(w.w_ih, w.p.inputs),
                         false, sums);
    if (!status) status = slices_run(&w, forward_slice);
    wide_leave(a, &wide);
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

static void back_sample(const Walk *w, int64_t n, int64_t k) {
    int64_t row = rnn_row(&w->p, n, k), u = w->p.units, width = w->p.info.saved * u;
    const float *y = w->y + row * u, *dy = w->dy + row * u, *saved = w->saved + row * width;
    float *dh = w->h + n * u, *d = w->slopes + row * w->p.info.slopes * u;
    int64_t before = k ? rnn_row(&w->p, n, k - 1) : 0;
    if (w->p.mode == RNN_LSTM)
        lstm_back_row(w, saved, k ? w->saved + before * width + 4 * u : w->zero, dy, dh, w->c + n * u, d);
    else if (w->p.mode == RNN_GRU) gru_back_row(w, saved, k ? w->y + before * u : w->zero, dy, dh, d);
    else plain_back_row(w, y, dy, dh, d);
}

static int back_slice(const Walk *w, int64_t begin, int64_t end) {
    int64_t units = w->p.units, width = w->p.info.slopes * units;
    Matrix dh = matrix(w->h + begin * units, units);
    int status = 0;
    for (int64_t k = w->p.steps - 1; k >= 0 && !status; k--) {
        for (int64_t n = begin; n < end; n++) back_sample(w, n, k);
        Matrix d = matrix(w->slopes + rnn_row(&w->p, begin, k) * width + rnn_hidden(&w->p), w->p.sample * width);
        if (k) status = product(end - begin, units, w->p.gates, 1.0f, d, matrix(w->w_hh, units), true, dh);
    }
    return status;
}

/* sum[n] = sum over rows of COLUMNS or fewer of their columns */
HOT static void sum_columns(float *sum, const float *from, int64_t stride, int64_t rows, int64_t n) {
    double part[COLUMNS] = {0};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) part[j] += from[r * stride + j];
    for (int64_t j = 0; j < n; j++) sum[j] = (float)part[j];
}

static void sum_rows(const Walk *w, float *sum, int64_t column, int64_t n) {
    int64_t width = w->p.info.slopes * w->p.units;
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < n; j += COLUMNS)
        sum_columns(sum + j, w->slopes + column + j, width, w->p.rows, min_i64(COLUMNS, n - j));
}

/* Runs of columns of slopes that belong to runs of w_ih's rows. */
typedef struct Run { int64_t column, row, count; } Run;

static int input_runs(const Walk *w, Run run[2]) {
    int64_t u = w->p.units;
    run[0] = w->p.mode == RNN_GRU ? (Run){u, 0, 2 * u} : (Run){0, 0, w->p.gates};
    run[1] = (Run){0, 2 * u, u};
    return w->p.mode == RNN_GRU ? 2 : 1;
}

static int input_gradients(const Walk *w, float *dx, float *dw, float *db) {
    int64_t rows = w->p.rows, width = w->p.info.slopes * w->p.units, in = w->p.inputs;
    Run run[2];
    int runs = input_runs(w, run), status = 0;
    for (int i = 0; i < runs; i++) {
        float *d = w->slopes + run[i].column;
        int64_t n = run[i].count, at = run[i].row * in;
        if (db) sum_rows(w, db + run[i].row, run[i].column, n);
        if (dw) status |= product(n, in, rows, 1.0f, turned(d, width), matrix(w->x, in), false, matrix(dw + at, in));
        if (dx) status |= product(rows, in, n, 1.0f, matrix(d, width), matrix(w->w_ih + at, in), i > 0, matrix(dx, in));
    }
    return status;
}

/* Rows of slopes meet the rows of y of one step before. The walk's first step has none: its slopes, which nothing needs
 * any more, become zero, so that every other row has its partner at the same distance. */
static int hidden_gradients(const Walk *w, float *dw, float *db) {
    int64_t u = w->p.units, width = w->p.info.slopes * u, column = rnn_hidden(&w->p), rows = w->p.rows - w->p.step;
    if (db) sum_rows(w, db, column, w->p.gates);
    if (!dw) return 0;
    for (int64_t n = 0; n < w->p.samples; n++)
        memset(w->slopes + rnn_row(&w->p, n, 0) * width, 0, (size_t)width * sizeof(float));
    float *d = w->slopes + column + (w->p.reverse ? 0 : w->p.step * width);
    float *y = w->y + (w->p.reverse ? w->p.step * u : 0);
    if (rows == 0) memset(dw, 0, (size_t)(w->p.gates * u) * sizeof(float));
    return rows ? product(w->p.gates, u, rows, 1.0f, turned(d, width), matrix(y, u), false, matrix(dw, u)) : 0;
}

static Walk back_open(const KArgs *a, Room *r, KArgs *wide) {
    wide_enter(a, r, wide);
    Walk w = walk_of(a, &wide->in[1], &wide->in[4]);
    w.dy = wide->in[0].data;
    w.w_ih = wide->in[2].data;
    w.w_hh = wide->in[3].data;
    w.saved = wide->in[5].data;
    w.slopes = room_take(r, w.p.rows * w.p.info.slopes * w.p.units);
    take_state(&w, r);
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
    int status = slices_run(&w, back_slice);
    if (!status) status = input_gradients(&w, wide.out[0].data, wide.out[1].data, wide.out[3].data);
    if (!status) status = hidden_gradients(&w, wide.out[2].data, wide.out[4].data);
    wide_leave(a, &wide);
    return product_check(status, e);
}
