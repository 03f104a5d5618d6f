/* recurrent_dx.c: the gradients of a recurrent layer; see recurrent.c. */

#include "cpu.h"
#include "isa.h"
#include "recurrent.h"

enum { COLUMNS = 128 };

/* One step of one sample. d: receives the gradients of its sums. dh: on entry the gradient of h from the step after; on
 * return the part of it that goes straight on to the step before. y_before, c_before: of the step before */
FUSED HOT static void plain_back_row(const RnnSteps *w, const float *y, const float *dy, float *dh, float *d) {
    ActFn f = w->p.mode == RNN_TANH ? ACT_TANH : ACT_RELU;
    if (f == ACT_TANH) {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) d[j] = (dy[j] + dh[j]) * act_slope(act_of(ACT_TANH), y[j]);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) d[j] = (dy[j] + dh[j]) * act_slope(act_of(ACT_RELU), y[j]);
    }
    memset(dh, 0, (size_t)w->p.units * sizeof *dh);
}

FUSED HOT static void lstm_back_row(const RnnSteps *w, const float *saved, const float *c_before, const float *dy, float *dh,
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

FUSED HOT static void gru_back_row(const RnnSteps *w, const float *saved, const float *y_before, const float *dy, float *dh,
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

/* n numbers of `v` as fp32, where they lie or in *scratch, which then points after them */
static const float *row_load(const View *v, int64_t begin, int64_t n, float **scratch) {
    float *to = *scratch;
    *scratch += n;
    return block_load(v, begin, n, to);
}

/* Floats that row_load and block_target need for one sample: saved, c or y of the step before, y, dy, slopes */
static int64_t scratch_size(const RnnSteps *w) { return (w->p.info.saved + 3 + w->p.info.slopes) * w->p.units; }

static void back_sample(const RnnSteps *w, int64_t n, int64_t k, float *scratch) {
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
static Bf16GemmShape back_shape(const RnnSteps *w, int64_t samples) {
    return (Bf16GemmShape){.m = samples, .n = w->p.units, .k = w->p.gates, .add = true, .packed = true, .to = DT_F32,
                         .a_stride = w->p.sample * w->p.info.slopes * w->p.units, .b_stride = w->p.units,
                         .c_stride = w->p.units, .threads = rnn_steps_threads(w)};
}

static RnnProduct back_product(const RnnSteps *w) {
    return (RnnProduct){.n = w->p.units, .k = w->p.gates, .a_stride = w->p.sample * w->p.info.slopes * w->p.units,
                        .add = true};
}

static int back_slice(const RnnSteps *w, int64_t begin, int64_t end) {
    int64_t units = w->p.units, width = w->p.info.slopes * units;
    float *dh = w->h + begin * units;
    float *scratch = w->narrow ? w->lines + begin / rnn_steps_slice_of(w, 0) * scratch_size(w) : NULL;
    const Bf16GemmShape shape = back_shape(w, end - begin);
    const RnnProduct back = back_product(w);
    Bf16Gemm p;
    memset(&p, 0, sizeof p);
    int status = w->narrow ? bf16_gemm_open(&p, &shape) : 0;
    for (int64_t k = w->p.steps - 1; k >= 0 && !status; k--) {
        for (int64_t n = begin; n < end; n++) back_sample(w, n, k, scratch);
        void *d = place(&w->slopes, rnn_row(&w->p, begin, k) * width + rnn_hidden(&w->p));
        if (!k) break;
        if (w->narrow) status = bf16_gemm_run(&p, d, w->packed_hh, dh, rnn_steps_scratch(w, begin));
        else rnn_steps_multiply(w, &back, begin, end, d, dh);
    }
    bf16_gemm_close(&p);
    return status;
}

/* db[row + j] = sum over rows of slopes of their column + j, j below n */
static void sum_columns(const RnnSteps *w, const View *db, int64_t row, int64_t column, int64_t n) {
    int64_t width = w->p.info.slopes * w->p.units, rows = w->p.rows;
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < n; j += COLUMNS) {
        double part[COLUMNS] = {0};
        float scratch[COLUMNS];
        int64_t count = min_i64(COLUMNS, n - j);
        for (int64_t r = 0; r < rows; r++)
            block_sum(part, block_load(&w->slopes, r * width + column + j, count, scratch), count);
        for (int64_t i = 0; i < count; i++) scratch[i] = (float)part[i];
        block_store(db, row + j, count, scratch);
    }
}

/* Columns [column, column + count) of slopes belong to w_ih's rows [row, row + count). */
typedef struct Run { int64_t column, row, count; } Run;

static int input_runs(const RnnSteps *w, Run run[2]) {
    int64_t u = w->p.units;
    run[0] = w->p.mode == RNN_GRU ? (Run){u, 0, 2 * u} : (Run){0, 0, w->p.gates};
    run[1] = (Run){0, 2 * u, u};
    return w->p.mode == RNN_GRU ? 2 : 1;
}

/* From n columns of slopes: the gradients of n rows of w_ih; and what they add to the gradient of x */
static Bf16GemmShape to_w_shape(const RnnSteps *w, int64_t n, DType to) {
    return (Bf16GemmShape){.m = n, .n = w->p.inputs, .k = w->p.rows, .a_stride = w->p.info.slopes * w->p.units,
                         .a_transposed = true, .b_stride = w->p.inputs, .c_stride = w->p.inputs, .to = to,
                         .threads = w->threads};
}

static Bf16GemmShape to_x_shape(const RnnSteps *w, int64_t n, bool add, DType to) {
    return (Bf16GemmShape){.m = w->p.rows, .n = w->p.inputs, .k = n, .a_stride = w->p.info.slopes * w->p.units,
                         .b_stride = w->p.inputs, .c_stride = w->p.inputs, .add = add, .to = to,
                         .threads = w->threads};
}

/* The gradient of w_hh, from the slopes of all steps but one */
static Bf16GemmShape to_hidden_shape(const RnnSteps *w, DType to) {
    return (Bf16GemmShape){.m = w->p.gates, .n = w->p.units, .k = w->p.rows - w->p.step,
                         .a_stride = w->p.info.slopes * w->p.units, .a_transposed = true, .b_stride = w->p.units,
                         .c_stride = w->p.units, .to = to, .threads = w->threads};
}

/* The same product of fp32 operands by gemm.h; c: NULL where only its workspace is asked for. Only without AVX-512: there
 * oneDNN takes twice as long where the first factor lies transposed, as for dw. */
static Gemm wide_product(const Bf16GemmShape *s, const void *a, const void *b, float *c) {
    static float somewhere;
    return (Gemm){.m = s->m, .n = s->n, .k = s->k, .a = {DT_F32, a, s->a_stride, s->a_transposed},
                  .b = {DT_F32, b, s->b_stride, s->b_transposed}, .scale = 1, .c = c ? c : &somewhere,
                  .c_step = s->c_stride, .add = s->add, .threads = s->threads};
}

/* c (m, n) = a b in fp32 or bf16; `s` says how the matrices lie. c begins with element `at` of its view. */
static int gradient(const RnnSteps *w, Bf16GemmShape s, void *a, void *b, const View *c, int64_t at) {
    if (w->narrow) return bf16_gemm_product(&s, a, b, place(c, at), w->scratch_after);
    if (!w->after_bytes)
        return product(s.m, s.n, s.k, 1.0f, (Matrix){a, s.a_stride, s.a_transposed}, (Matrix){b, s.b_stride, s.b_transposed},
                       s.add, matrix(place(c, at), s.c_stride));
    Gemm g = wide_product(&s, a, b, place(c, at));
    g.threads = threads_within(g.threads);
    gemm_run(&g, w->scratch_after, w->after_bytes);
    return 0;
}

static int input_gradients(const RnnSteps *w, const View *dx, const View *dw, const View *db) {
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

/* The gradient of w_hh: each row of slopes is multiplied by the row of y of the step before. The walk's first step has
 * no step before: its slopes, which nothing needs any more, become zero, so that all rows have their partners at the
 * same distance. */
static int hidden_gradients(const RnnSteps *w, const View *dw, const View *db, const View *db_ih) {
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

/* *most becomes at least the bytes of scratch that products of shape `s` need. */
static void count_gradient(const RnnSteps *w, size_t *most, Bf16GemmShape s) {
    const Gemm g = wide_product(&s, NULL, NULL, NULL);
    if (w->narrow) rnn_steps_count(most, s);
    else if (!isa_has(dnnl_cpu_isa_avx512_core)) *most = max_size(*most, gemm_workspace(&g, SIZE_MAX));
}

/* Scratch for the products that make the gradients of x and w. */
static size_t gradients_scratch(const RnnSteps *w, const View *dx, const View *dw_ih, const View *dw_hh) {
    Run run[2];
    size_t most = 0;
    for (int k = input_runs(w, run) - 1; k >= 0; k--) {
        if (dw_ih->count) count_gradient(w, &most, to_w_shape(w, run[k].count, dw_ih->dtype));
        if (dx->count) count_gradient(w, &most, to_x_shape(w, run[k].count, k > 0, dx->dtype));
    }
    if (dw_hh->count && w->p.rows > w->p.step) count_gradient(w, &most, to_hidden_shape(w, dw_hh->dtype));
    return most;
}

static RnnSteps back_open(const KArgs *a, Room *r, KArgs *wide) {
    if (rnn_steps_is_narrow(a, &a->rnn_dx.w_hh)) *wide = *a;
    else fp32_enter(a, r, wide);
    RnnSteps w = rnn_steps_of(wide, &wide->rnn_dx.x, &wide->rnn_dx.y);
    w.dy = wide->rnn_dx.dy;
    w.w_ih = wide->rnn_dx.w_ih;
    w.w_hh = wide->rnn_dx.w_hh;
    w.saved = wide->rnn_dx.saved;
    int64_t slopes = w.p.rows * w.p.info.slopes * w.p.units;
    w.slopes = (View){.dtype = w.narrow ? DT_BF16 : DT_F32, .count = slopes};
    w.slopes.data = room_take(r, w.narrow ? (slopes + 1) / 2 : slopes);
    Room after = *r; /* the gradients' scratch takes the place of what only the walk needs */
    if (w.narrow) {
        w.packed_hh = rnn_steps_take_packed(r, w.p.units, w.p.gates);
        w.lines = room_take(r, rnn_steps_slices(&w) * scratch_size(&w));
        for (int k = rnn_steps_is_even(&w); k < 2; k++)
            rnn_steps_count(&w.each, back_shape(&w, rnn_steps_slice_of(&w, k)));
        w.scratch = rnn_steps_take_bytes(r, (size_t)rnn_steps_slices(&w) * w.each);
    } else {
        const RnnProduct back = back_product(&w);
        rnn_steps_take_product(&w, &back, r);
    }
    rnn_steps_take_state(&w, r);
    const View *dx = &wide->rnn_dx.dx, *dw_ih = &wide->rnn_dx.dw_ih, *dw_hh = &wide->rnn_dx.dw_hh;
    w.after_bytes = gradients_scratch(&w, dx, dw_ih, dw_hh);
    w.scratch_after = rnn_steps_take_bytes(&after, w.after_bytes);
    if (after.used > r->used) r->used = after.used;
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
    RnnSteps w = back_open(a, &r, &wide);
    const Bf16GemmShape shape = back_shape(&w, rnn_steps_slice_of(&w, 0));
    const View *db_ih = &wide.rnn_dx.db_ih, *db_hh = &wide.rnn_dx.db_hh;
    const RnnProduct back = back_product(&w);
    int status = 0;
    if (w.narrow) status = rnn_steps_pack(&shape, &w.w_hh, w.packed_hh);
    else rnn_steps_pack_product(&w, &back);
    if (!status) status = rnn_steps_run(&w, back_slice);
    if (!status) status = input_gradients(&w, &wide.rnn_dx.dx, &wide.rnn_dx.dw_ih, db_ih);
    if (!status) status = hidden_gradients(&w, &wide.rnn_dx.dw_hh, db_hh, db_ih);
    if (!w.narrow) fp32_leave(a, &wide);
    return product_check(status, e);
}
