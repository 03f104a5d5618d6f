/* rnn_steps.c: what the walks through the steps, forward (recurrent.c) and back (recurrent_dx.c), share. */
#include "cpu.h"
#include "recurrent.h"

/* SLICE: samples of a slice. CACHED: elements of w_hh that fit into a core's own cache. WORTH: elements of w_hh from
 * which on products in bf16 pay. */
enum { SLICE = 16, CACHED = 256 << 10, WORTH = 16 << 10 };

bool rnn_steps_is_narrow(const KArgs *a, const View *w_hh) {
    const View *x = a->kind == OP_rnn ? &a->rnn.x : &a->rnn_dx.x;
    return x->dtype == DT_BF16 && w_hh->dtype == DT_BF16 && w_hh->count >= WORTH;
}

RnnSteps rnn_steps_of(const KArgs *a, const View *x, const View *y) {
    assert(a->attr->rnn.mode < RNN_MODES && x->shape.rank == 3 && y->shape.rank == 3);
    assert(x->shape.dim[0] == y->shape.dim[0] && x->shape.dim[1] == y->shape.dim[1]);
    return (RnnSteps){.p = rnn_path(a, x, y), .x = *x, .y = *y, .narrow = x->dtype != DT_F32,
                  .threads = ((CpuDevice *)a->device)->threads};
}

void rnn_steps_take_state(RnnSteps *w, Room *r) {
    int64_t lines = w->p.samples * w->p.units;
    w->zero = room_take(r, w->p.gates);
    w->h = room_take(r, lines);
    w->c = room_take(r, w->p.mode == RNN_LSTM ? lines : 0);
    if (!r->base) return;
    memset(w->zero, 0, (size_t)w->p.gates * sizeof(float));
    memset(w->h, 0, (size_t)lines * sizeof(float));
    if (w->p.mode == RNN_LSTM) memset(w->c, 0, (size_t)lines * sizeof(float));
}

/* Samples of every slice except the last one */
static int64_t rnn_steps_slice(const RnnSteps *w) { return w->p.gates * w->p.units > CACHED ? w->p.samples : SLICE; }

int64_t rnn_steps_slices(const RnnSteps *w) { return div_up(w->p.samples, rnn_steps_slice(w)); }
int64_t rnn_steps_slice_of(const RnnSteps *w, int last) {
    const int64_t size = rnn_steps_slice(w);
    return last ? w->p.samples - (rnn_steps_slices(w) - 1) * size : min_i64(size, w->p.samples);
}
bool rnn_steps_is_even(const RnnSteps *w) { return rnn_steps_slice_of(w, 0) == rnn_steps_slice_of(w, 1); }

int rnn_steps_threads(const RnnSteps *w) { return w->p.samples > rnn_steps_slice(w) ? 1 : w->threads; }
void *rnn_steps_scratch(const RnnSteps *w, int64_t begin) { return w->scratch + begin / rnn_steps_slice(w) * w->each; }

void rnn_steps_count(size_t *most, Bf16GemmShape s) {
    size_t bytes = align_up(bf16_gemm_scratch(&s), CPU_ALIGNMENT);
    if (bytes > *most) *most = bytes;
}

int rnn_steps_run(const RnnSteps *w, SliceFn *slice) {
    int64_t size = rnn_steps_slice(w);
    int status = 0;
#pragma omp parallel for schedule(static) reduction(| : status) if (w->p.samples > size)
    for (int64_t n = 0; n < w->p.samples; n += size) status |= slice(w, n, min_i64(n + size, w->p.samples));
    return status;
}

void *rnn_steps_take_bytes(Room *r, size_t bytes) {
    assert(bytes % sizeof(float) == 0);
    return room_take(r, (int64_t)(bytes / sizeof(float)));
}

void *rnn_steps_take_packed(Room *r, int64_t n, int64_t k) { return rnn_steps_take_bytes(r, bf16_gemm_packed(n, k)); }

int rnn_steps_pack(const Bf16GemmShape *s, const View *from, void *to) {
    Bf16Gemm p;
    int status = bf16_gemm_open(&p, s);
    if (!status) status = bf16_gemm_pack(&p, s, from->data, to);
    bf16_gemm_close(&p);
    return status;
}

/* ---- one step's products in fp32 */

static Gemm product_of(const RnnSteps *w, const RnnProduct *p, int64_t samples) {
    return (Gemm){.m = samples, .n = p->n, .k = p->k, .a = {DT_F32, NULL, p->a_stride, false},
                  .b = {DT_F32, w->w_hh.data, p->transposed ? p->k : p->n, p->transposed}, .packed = w->packed_hh,
                  .scale = 1, .c_step = p->n, .add = p->add, .threads = rnn_steps_threads(w)};
}

void rnn_steps_take_product(RnnSteps *w, const RnnProduct *p, Room *r) {
    static float somewhere;
    w->packed_hh = room_take(r, gemm_packed(p->n, p->k));
    for (int last = 0; last < 2; last++) {
        Gemm g = product_of(w, p, rnn_steps_slice_of(w, last));
        g.packed = g.c = &somewhere;
        w->each = max_size(w->each, gemm_workspace(&g, SIZE_MAX));
    }
    w->scratch = rnn_steps_take_bytes(r, (size_t)rnn_steps_slices(w) * w->each);
}

void rnn_steps_pack_product(const RnnSteps *w, const RnnProduct *p) {
    Gemm g = product_of(w, p, 1);
    g.threads = w->threads;
    gemm_pack(&g, w->packed_hh);
}

void rnn_steps_multiply(const RnnSteps *w, const RnnProduct *p, int64_t begin, int64_t end, float *a, float *c) {
    Gemm g = product_of(w, p, end - begin);
    g.a.at = a;
    g.c = c;
    gemm_run(&g, rnn_steps_scratch(w, begin), w->each);
}
