/* recurrent.c: a layer of RNN, LSTM or GRU in one direction, and its gradients, by the formulas of
 * core/math/rnn_cells.h.
 *
 * What does not depend on the step before is one product over all steps: the sums from the input, which are put where
 * the step will later put what it saves (RNN: its output); and the gradients of w and x, once the walk back has made
 * those of all sums. A walk takes slices of the batch, each through all steps on one thread. So threads wait for each
 * other once per op and not once per step. Where w_hh is too large for a core's own cache, there is one slice, and its
 * products run on all threads. w_hh is packed once for the products of all steps.
 *
 * Operands are fp32; 16-bit ones get fp32 copies. But where w_hh is large enough to gain by it, bf16 operands are
 * multiplied as they lie (bf16_gemm.h); h is then the y of the step before. The sums from the input
 * are then made step by step beside those from h, and a sample's row passes through `lines` in fp32. */
#include "cpu.h"
#include "recurrent.h"

/* A bias as fp32 numbers; zeros if there is none */
static const float *bias_of(const RnnSteps *w, const View *b, Room *r) {
    if (!b->count) return w->zero;
    float *copy = b->dtype == DT_F32 ? NULL : room_take(r, b->count);
    return r->base ? block_load(b, 0, b->count, copy) : NULL;
}

/* One step of one sample. `saved` (RNN: y) holds its sums from the input and receives what the step saves; s: the sums
 * from h; h, c: the state, which becomes the next one */
FUSED HOT static void plain_row(const RnnSteps *w, float *y, const float *s, float *h) {
    const float *bi = w->b_ih, *bh = w->b_hh;
    if (w->p.mode == RNN_TANH) {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++) y[j] = h[j] = tanh_value(y[j] + bi[j] + (s[j] + bh[j]));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < w->p.units; j++)
            y[j] = h[j] = act_value(act_of(ACT_RELU), y[j] + bi[j] + (s[j] + bh[j]));
    }
}

FUSED HOT static void lstm_row(const RnnSteps *w, float *saved, const float *s, float *h, float *c, float *y) {
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

FUSED HOT static void gru_row(const RnnSteps *w, float *saved, const float *s, float *h, float *y) {
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

/* What a row of the walk keeps for the gradient: `saved`, or y if the mode is RNN */
static int64_t kept_width(const RnnSteps *w) { return max_i64(w->p.info.saved, 1) * w->p.units; }
static const View *kept_in(const RnnSteps *w) { return w->p.info.saved ? &w->saved : &w->y; }

static void forward_sample(const RnnSteps *w, int64_t n, int64_t k) {
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
static Bf16GemmShape input_shape(const RnnSteps *w, int64_t samples) {
    return (Bf16GemmShape){.m = samples, .n = w->p.gates, .k = w->p.inputs, .a_stride = w->p.sample * w->p.inputs,
                         .b_stride = w->p.inputs, .b_transposed = true, .c_stride = kept_width(w), .to = DT_F32,
                         .packed = true, .threads = rnn_steps_threads(w)};
}

static Bf16GemmShape hidden_shape(const RnnSteps *w, int64_t samples) {
    return (Bf16GemmShape){.m = samples, .n = w->p.gates, .k = w->p.units, .a_stride = w->p.sample * w->p.units,
                         .b_stride = w->p.units, .b_transposed = true, .c_stride = w->p.gates, .to = DT_F32,
                         .packed = true, .threads = rnn_steps_threads(w)};
}

typedef struct Products { Bf16Gemm from_input, from_hidden; } Products;

static int products_open(const RnnSteps *w, int64_t samples, Products *p) {
    const Bf16GemmShape input = input_shape(w, samples), hidden = hidden_shape(w, samples);
    memset(p, 0, sizeof *p);
    int status = w->narrow ? bf16_gemm_open(&p->from_input, &input) : 0;
    return w->narrow && !status ? bf16_gemm_open(&p->from_hidden, &hidden) : status;
}

static RnnProduct hidden_product(const RnnSteps *w) {
    return (RnnProduct){.n = w->p.gates, .k = w->p.units, .a_stride = w->p.units, .transposed = true};
}

static int forward_sums(const RnnSteps *w, Products *p, int64_t begin, int64_t end, int64_t k) {
    float *sums = w->sums + begin * w->p.gates;
    if (!w->narrow) {
        const RnnProduct hidden = hidden_product(w);
        if (k) rnn_steps_multiply(w, &hidden, begin, end, w->h + begin * w->p.units, sums);
        return 0;
    }
    void *scratch = rnn_steps_scratch(w, begin);
    int status = bf16_gemm_run(&p->from_input, place(&w->x, rnn_row(&w->p, begin, k) * w->p.inputs), w->packed_ih,
                            w->lines + begin * kept_width(w), scratch);
    if (status || !k) return status;
    const void *before = place(&w->y, rnn_row(&w->p, begin, k - 1) * w->p.units);
    return bf16_gemm_run(&p->from_hidden, before, w->packed_hh, sums, scratch);
}

static int forward_slice(const RnnSteps *w, int64_t begin, int64_t end) {
    Products p;
    int status = products_open(w, end - begin, &p);
    memset(w->sums + begin * w->p.gates, 0, (size_t)((end - begin) * w->p.gates) * sizeof(float));
    for (int64_t k = 0; k < w->p.steps && !status; k++) {
        status = forward_sums(w, &p, begin, end, k);
        for (int64_t n = begin; n < end && !status; n++) forward_sample(w, n, k);
    }
    bf16_gemm_close(&p.from_input);
    bf16_gemm_close(&p.from_hidden);
    return status;
}

static int forward_start(const RnnSteps *w) {
    if (w->narrow) {
        const int64_t samples = rnn_steps_slice_of(w, 0);
        const Bf16GemmShape input = input_shape(w, samples), hidden = hidden_shape(w, samples);
        int status = rnn_steps_pack(&input, &w->w_ih, w->packed_ih);
        return status ? status : rnn_steps_pack(&hidden, &w->w_hh, w->packed_hh);
    }
    const RnnProduct hidden = hidden_product(w);
    rnn_steps_pack_product(w, &hidden);
    return product(w->p.rows, w->p.gates, w->p.inputs, 1.0f, matrix(floats(&w->x), w->p.inputs),
                   transposed(floats(&w->w_ih), w->p.inputs), false, matrix(floats(kept_in(w)), kept_width(w)));
}

static RnnSteps forward_open(const KArgs *a, Room *r, KArgs *wide) {
    if (rnn_steps_is_narrow(a, &a->rnn.w_hh)) *wide = *a;
    else fp32_enter(a, r, wide);
    RnnSteps w = rnn_steps_of(wide, &wide->rnn.x, &wide->rnn.y);
    w.w_ih = wide->rnn.w_ih;
    w.w_hh = wide->rnn.w_hh;
    w.saved = wide->rnn.saved;
    if (w.narrow) {
        w.packed_ih = rnn_steps_take_packed(r, w.p.gates, w.p.inputs);
        w.packed_hh = rnn_steps_take_packed(r, w.p.gates, w.p.units);
        w.lines = room_take(r, w.p.samples * kept_width(&w));
        for (int k = rnn_steps_is_even(&w); k < 2; k++) {
            rnn_steps_count(&w.each, input_shape(&w, rnn_steps_slice_of(&w, k)));
            rnn_steps_count(&w.each, hidden_shape(&w, rnn_steps_slice_of(&w, k)));
        }
        w.scratch = rnn_steps_take_bytes(r, (size_t)rnn_steps_slices(&w) * w.each);
    } else {
        const RnnProduct hidden = hidden_product(&w);
        if (!w.saved.count) w.saved.data = room_take(r, w.p.rows * w.p.info.saved * w.p.units);
        rnn_steps_take_product(&w, &hidden, r);
    }
    w.sums = room_take(r, w.p.samples * w.p.gates);
    rnn_steps_take_state(&w, r);
    w.b_ih = bias_of(&w, &wide->rnn.b_ih, r);
    w.b_hh = bias_of(&w, &wide->rnn.b_hh, r);
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
    RnnSteps w = forward_open(a, &r, &wide);
    int status = forward_start(&w);
    if (!status) status = rnn_steps_run(&w, forward_slice);
    if (!w.narrow) fp32_leave(a, &wide);
    return product_check(status, e);
}
