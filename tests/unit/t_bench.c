/* Racing on a device whose clock the test turns: medians, graphs, rotation of operands, giving up, failures. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench.h"
#include "tap.h"

typedef struct Fake {
    Device base;
    double clock, cost[32]; /* microseconds: of one run, sample by sample */
    int samples, runs, recorded, allocs;
    size_t allocated;
    bool recording, fail_run, fail_upload;
    const void *first, *last;   /* operands of the first and last run */
} Fake;

static int fake_alloc(Device *d, size_t bytes, void **p, Err *e) {
    Fake *f = (Fake *)d;
    *p = aligned_alloc(256, bytes);
    f->allocs++;
    f->allocated += bytes;
    return *p ? OK : err_set(e, ERR_OOM, "no %zu bytes", bytes);
}

static void fake_free(Device *d, void *p, size_t bytes) {
    ((Fake *)d)->allocs--;
    ((Fake *)d)->allocated -= bytes;
    free(p);
}

static int fake_upload(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    memcpy(to, from, bytes);
    return ((Fake *)d)->fail_upload ? err_set(e, ERR_DEVICE, "no copy") : OK;
}

static int fake_sync(Device *d, Err *e) { (void)d, (void)e; return OK; }

static int fake_record(Device *d, Err *e) {
    (void)e;
    ((Fake *)d)->recording = true;
    ((Fake *)d)->recorded = 0;
    return OK;
}

static int fake_recorded(Device *d, void **graph, Err *e) {
    (void)e;
    ((Fake *)d)->recording = false;
    *graph = d;
    return OK;
}

static int fake_replay(Device *d, void *graph, Err *e) {
    Fake *f = graph;
    (void)d, (void)e;
    f->clock += f->recorded * f->cost[f->samples++];
    return OK;
}

static int fake_mark(Device *d, void **m, Err *e) {
    if (!*m && !(*m = mem_new(sizeof(double)))) return err_set(e, ERR_HOST_MEMORY, "no mark");
    *(double *)*m = ((Fake *)d)->clock;
    return OK;
}

static int fake_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    (void)d, (void)e;
    *seconds = 1e-6 * (*(double *)to - *(double *)from);
    return OK;
}

static void fake_mark_free(Device *d, void *m) { (void)d; mem_free(m); }

static void fake_graph_free(Device *d, void *graph) { (void)graph; ((Fake *)d)->allocs--; }

static const DeviceTable table = {
    .kind = "fake", .alignment = 256, .alloc = fake_alloc, .free = fake_free, .upload = fake_upload, .sync = fake_sync,
    .mark = fake_mark, .between = fake_between, .mark_free = fake_mark_free, .record = fake_record, .recorded = fake_recorded,
    .replay = fake_replay, .graph_free = fake_graph_free,
};

static int fake_run(const KArgs *args, Err *e) {
    Fake *f = args->device;
    if (f->recording) f->recorded++;
    if (f->recording && f->recorded == 1) f->first = args->in[0].data;
    f->last = args->in[0].data;
    f->runs++;
    if (f->fail_run && f->recording) return err_set(e, ERR_DEVICE, "this engine cannot run");
    return args->state == f ? OK : err_set(e, ERR_INTERNAL, "another state");
}

static Fake fake_new(double cost) {
    Fake f = {.base = {&table}, .allocs = 1}; /* 1: the graph that bench_time frees */
    for (int k = 0; k < 32; k++) f.cost[k] = cost;
    return f;
}

int main(void) {
    Fake f = fake_new(10);
    Bench r;
    Err e;
    double us;
    float *x;
    KArgs args = {.kind = OP_act};
    args.in[0] = (View){.shape = shape1(1000), .dtype = DT_F32, .count = 1000};
    args.out[0] = args.in[0];

    is_int(bench_open(&r, &f.base, &args, 30000, &e), OK, "open");
    is_int(r.n_sets, 4, "sets of 8192 bytes that together exceed 30000");
    is_int((long long)f.allocated, 4 * 8192, "and nothing else");
    x = r.set[3].in[0].data;
    ok(x[0] != 0 && x[999] != 0 && x[0] > -1 && x[0] < 1 && x[1] != x[0], "random values");
    f.cost[0] = 100; /* warms up: not counted */
    f.cost[1] = 90, f.cost[2] = 11, f.cost[3] = 12, f.cost[4] = 1;
    is_int(bench_time(&r, fake_run, &f, 500, 0, &us, &e), OK, "time");
    is_int((long long)f.allocated, 4 * 8192 + 512, "with a workspace");
    is_int((long long)r.set[3].workspace_bytes, 500, "of its size");
    is_near(us, 10, 1e-9, 0, "the median of seven, after one that warms up");
    is_int(f.samples, 8, "eight replays");
    is_int(f.runs, 1 + 16, "one run before, a graph of sixteen");
    ok(f.first != f.last, "on operands that change from run to run");

    f = fake_new(30);
    f.allocs = 4; /* two pieces of memory, two graphs */
    bench_time(&r, fake_run, &f, 100, 10, &us, &e);
    is_int(f.samples, 2, "more than twice the best: one sample is enough");
    is_near(us, 30, 1e-9, 0, "which is its time");
    f.fail_run = true;
    is_int(bench_time(&r, fake_run, &f, 600, 0, &us, &e), ERR_DEVICE, "an op that cannot run");
    is_str(e.text, "this engine cannot run", "says why");
    ok(!f.recording, "and leaves no recording behind");
    bench_close(&r);
    is_int(f.allocs, 0, "everything is freed");

    f = fake_new(1);
    f.fail_upload = true;
    is_int(bench_open(&r, &f.base, &args, 1, &e), ERR_DEVICE, "operands that cannot be filled");
    is_int(f.allocs, 1, "everything is freed");
    f.fail_upload = false;
    is_int(bench_open(&r, &f.base, &args, (size_t)1 << 40, &e), OK, "a cache beyond all measure");
    is_int(r.n_sets, RACE_SETS, "as many sets as there may be");
    bench_close(&r);
    return tap_done();
}
