/* recurrent_walk.c: what the walk forward and the walk back through the steps share. */
#include "cpu.h"
#include "recurrent.h"

enum { SLICE = 16 /* samples */, CACHED = 256 << 10, WORTH = 16 << 10 /* elements of w_hh */ };

bool walk_is_narrow(const KArgs *a, const View *w_hh) {
    const View *x = a->kind == OP_rnn ? &a->in[0] : &a->in[1];
    return x->dtype == DT_BF16 && w_hh->dtype == DT_BF16 && w_hh->count >= WORTH && narrow_fits();
}

Walk walk_of(const KArgs *a, const View *x, const View *y) {
    return (Walk){.p = rnn_path(a, x, y), .x = *x, .y = *y, .narrow = x->dtype != DT_F32,
                  .threads = ((CpuDevice *)a->device)->threads};
}

void walk_take_state(Walk *w, Room *r) {
    int64_t lines = w->p.samples * w->p.units;
    w->zero = room_take(r, w->p.gates);
    w->h = room_take(r, lines);
    w->c = room_take(r, w->p.mode == RNN_LSTM ? lines : 0);
    if (!r->base) return;
    memset(w->zero, 0, (size_t)w->p.gates * sizeof(float));
    memset(w->h, 0, (size_t)lines * sizeof(float));
    if (w->p.mode == RNN_LSTM) memset(w->c, 0, (size_t)lines * sizeof(float));
}

/* Samples of a slice, but for the last one */
static int64_t walk_slice(const Walk *w) { return w->p.gates * w->p.units > CACHED ? w->p.samples : SLICE; }

int64_t walk_slices(const Walk *w) { return (w->p.samples + walk_slice(w) - 1) / walk_slice(w); }
int64_t walk_slice_of(const Walk *w, int last) {
    return last ? w->p.samples - (walk_slices(w) - 1) * walk_slice(w) : min_i64(walk_slice(w), w->p.samples);
}
bool walk_is_even(const Walk *w) { return walk_slice_of(w, 0) == walk_slice_of(w, 1); }

int walk_threads(const Walk *w) { return w->p.samples > walk_slice(w) ? 1 : w->threads; }
void *walk_scratch(const Walk *w, int64_t begin) { return w->scratch + begin / walk_slice(w) * w->each; }

void walk_count(size_t *most, NarrowShape s) {
    size_t bytes = align_up(narrow_scratch(&s), CPU_ALIGNMENT);
    if (bytes > *most) *most = bytes;
}

int walk_run(const Walk *w, SliceFn *slice) {
    int64_t size = walk_slice(w);
    int status = 0;
#pragma omp parallel for schedule(static) reduction(| : status) if (w->p.samples > size)
    for (int64_t n = 0; n < w->p.samples; n += size) status |= slice(w, n, min_i64(n + size, w->p.samples));
    return status;
}

void *walk_take_bytes(Room *r, size_t bytes) { return room_take(r, (int64_t)(bytes / sizeof(float))); }

void *walk_take_packed(Room *r, int64_t n, int64_t k) { return walk_take_bytes(r, narrow_packed(n, k)); }

int walk_pack(const NarrowShape *s, const View *from, void *to) {
    Narrow p;
    int status = narrow_open(&p, s);
    if (!status) status = narrow_pack(&p, s, from->data, to);
    narrow_close(&p);
    return status;
}
