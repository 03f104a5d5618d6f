/* The runtime on a device of which every call fails once: the error comes out, what was taken is given back. The device
 * computes nothing, keeps what is uploaded, and counts. Then what is read and written by name, and what a feed must not
 * say. */
#include <stdlib.h>

#include "bare.h"
#include "base/mem.h"
#include "nets.h"
#include "run/runtime.h"
#include "tap.h"

/* ---- the device */

static struct { long calls, fail_at, bytes, graphs, replays, runs, marks; bool recording, ticks; double clock; } fake; /* ticks: marks have the clock's time */

static int called(Err *e) {
    if (++fake.calls == fake.fail_at) return err_set(e, ERR_DEVICE, "call %ld fails", fake.calls);
    return OK;
}

static int fake_alloc(Device *d, size_t bytes, void **p, Err *e) {
    (void)d;
    if (called(e)) return ERR_DEVICE;
    if (!(*p = calloc(1, bytes ? bytes : 1))) return err_set(e, ERR_OOM, "no memory");
    fake.bytes += (long)bytes;
    return OK;
}

static void fake_free(Device *d, void *p, size_t bytes) {
    (void)d;
    if (p) fake.bytes -= (long)bytes;
    free(p);
}

static int fake_copy(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    (void)d;
    if (called(e)) return ERR_DEVICE;
    memcpy(to, from, bytes);
    return OK;
}

static int fake_call(Device *d, Err *e) { return (void)d, called(e); }
static int fake_fetch(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    fake.clock += 0.5; /* the end of a step */
    return fake_copy(d, to, from, bytes, e);
}
static int fake_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    return (void)slot, fake_copy(d, to, from, bytes, e);
}
static int fake_sent(Device *d, int slot, Err *e) { return (void)slot, fake_call(d, e); }
static int fake_mark(Device *d, void **m, Err *e) {
    (void)d;
    if (called(e)) return ERR_DEVICE;
    if (!*m && !(*m = malloc(sizeof(double)))) return err_set(e, ERR_HOST_MEMORY, "no mark");
    *(double *)*m = fake.clock;
    fake.marks++;
    return OK;
}
static int fake_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    *seconds = !from || !to ? -1 : fake.ticks ? *(double *)to - *(double *)from : 0.25;
    return fake_call(d, e);
}
static void fake_mark_free(Device *d, void *m) { (void)d; free(m); }

static int fake_record(Device *d, Err *e) {
    (void)d;
    if (called(e)) return ERR_DEVICE;
    fake.recording = true;
    return OK;
}

static int fake_recorded(Device *d, void **graph, Err *e) {
    (void)d;
    fake.recording = false;
    if (called(e)) return ERR_DEVICE;
    fake.graphs++;
    *graph = malloc(1);
    return OK;
}

static int fake_replay(Device *d, void *graph, Err *e) {
    (void)d, (void)graph;
    fake.replays++;
    return called(e);
}

static void fake_graph_free(Device *d, void *graph) {
    (void)d;
    fake.graphs--;
    free(graph);
}

static int fake_run(Device *d, const KArgs *args, Err *e) {
    (void)d, (void)args;
    fake.runs++;
    fake.clock += 1;
    return called(e);
}

static const DeviceTable table = {.kind = "fake", .alignment = 64, .alloc = fake_alloc, .free = fake_free,
    .upload = fake_copy, .download = fake_copy, .sync = fake_call, .host_alloc = fake_alloc, .host_free = fake_free,
    .send = fake_send, .sent = fake_sent, .send_beside = fake_send, .take = fake_copy, .fetch = fake_fetch, .mark = fake_mark,
    .between = fake_between, .mark_free = fake_mark_free,
    .record = fake_record, .recorded = fake_recorded, .replay = fake_replay, .graph_free = fake_graph_free,
    .prepare = bare_prepare, .run = fake_run};
static Device device = {.table = &table};

/* ---- every call fails once */

/* Three steps: run, recorded, replayed; the next one begins before the result of the one before is asked for. */
static int train(const Case *c, AllocKind kind, Err *e) {
    Runtime *r = NULL;
    int code = runtime_open(&device, kind, 0, &(Job){c->net, c->p}, 1, 7, 0, &r, e);
    for (int i = 0; i < 4 && !code; i++) {
        StepResult out = {.seconds = 0.25};
        if (i < 3) code = runtime_begin(r, 0, net_feed, c->p, e);
        if (!code && i > 0) code = runtime_result(r, &out, e);
        if (!code && out.seconds != 0.25) code = err_set(e, ERR_INTERNAL, "the device's time is lost");
    }
    if (!r) return code;
    const int left = runtime_close_checked(r, code ? NULL : e);
    return code ? code : left;
}

/* The n-th call, or the n-th allocation of the host, for every n. */
static void fail_each(const Case *c, AllocKind kind, bool host) {
    const long before = mem_live(), most = 5000;
    int wrong = 0, code = ERR_DEVICE;
    long n = 0;
    while (code && n < most) {
        Err e = {0, ""};
        memset(&fake, 0, sizeof fake);
        n++;
        if (host) mem_fail_after(n);
        else fake.fail_at = n;
        code = train(c, kind, &e);
        mem_fail_after(0);
        wrong += code && (code != (host ? ERR_HOST_MEMORY : ERR_DEVICE) || e.code != code);
        wrong += fake.bytes != 0 || fake.graphs != 0 || fake.recording || mem_live() != before;
    }
    ok(!code && n > 10, "%s: %ld %s, each made to fail", alloc_name(kind), n - 1, host ? "allocations" : "calls");
    is_int(wrong, 0, "each failure comes out as it is, and all is given back");
}

static void test_failures(void) {
    Settings s = settings_default();
    s.accumulate = 2;
    s.precision = PREC_AMP_FP16; /* a loss scale that is looked at in every step */
    s.offload = OFFLOAD_ALL;
    s.offload_least = 0;
    s.keep_output = true;
    Case c = case_open(&device, "Sequential{Conv2d(3, 4, 3) Tanh Flatten Linear(144, 10)}", "CrossEntropyLoss",
                       shape4(2, 3, 8, 8), &s);
    for (int kind = 0; c.p && kind < ALLOC_COUNT; kind++) {
        fail_each(&c, (AllocKind)kind, false);
        fail_each(&c, (AllocKind)kind, true);
    }
    case_close(&c);
}

static void test_recording(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Linear(6, 10)", "CrossEntropyLoss", shape2(2, 6), &s);
    Err e = {0, ""};
    if (!c.p) return;
    int ops = 0;
    for (int i = 0; i < c.p->n_ops; i++) ops += c.p->ops[i].kind != OP_view;
    memset(&fake, 0, sizeof fake);
    is_int(train(&c, ALLOC_PLANNED, &e), OK, "three steps");
    ok(fake.runs == 2 * ops && fake.replays == 2, "the second is recorded and replayed, as is the third");
    memset(&fake, 0, sizeof fake);
    is_int(train(&c, ALLOC_DIRECT, &e), OK, "three steps with addresses that change");
    ok(fake.runs == 3 * ops && fake.replays == 0, "are run");
    memset(&fake, 0, sizeof fake);
    c.p->graph = false;
    is_int(train(&c, ALLOC_PLANNED, &e), OK, "three steps that nobody may record");
    ok(fake.runs == 3 * ops && fake.replays == 0, "are run, too");
    case_close(&c);
}

/* ---- from begin to begin: an op takes 1 here, what is kept 0.5, and the host 100 between two steps */

static void test_times(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Linear(6, 10)", "CrossEntropyLoss", shape2(2, 6), &s);
    Runtime *r = NULL;
    Err e = {0, ""};
    StepResult found[3];
    if (!c.p) return;
    double ops = 0;
    for (int i = 0; i < c.p->n_ops; i++) ops += c.p->ops[i].kind != OP_view;
    memset(&fake, 0, sizeof fake);
    fake.ticks = true;
    c.p->graph = false;
    int code = runtime_open(&device, ALLOC_PLANNED, 0, &(Job){c.net, c.p}, 1, 7, 0, &r, &e);
    for (int i = 0; i < 3 && !code; i++) {
        if (i) fake.clock += 100;
        code = runtime_begin(r, 0, net_feed, c.p, &e);
        if (!code && i) code = runtime_result(r, &found[i - 1], &e);
    }
    if (!code) code = runtime_result(r, &found[2], &e);
    is_int(code, OK, "three steps");
    ok(found[0].seconds == ops + 100.5 && found[1].seconds == ops + 100.5, "a step lasts until the next one begins, with what the host does meanwhile");
    ok(found[2].seconds == ops + 0.5, "the last one until its own end");
    ok(found[0].ops == ops && found[1].ops == ops && found[2].ops == ops, "its ops have a time of their own");
    is_int(runtime_close_checked(r, &e), OK, "all is given back");
    case_close(&c);
}

/* ---- ops that are timed one by one */

static void test_timed(void) {
    Settings s = settings_default();
    s.accumulate = 3;
    Case c = case_open(&device, "Sequential{Flatten Linear(6, 10)}", "CrossEntropyLoss", shape3(2, 2, 3), &s);
    Runtime *r = NULL;
    Err e = {0, ""};
    StepResult out;
    double seconds[64], least = 1, sum = 0, timing = 0;
    if (!c.p || !ok(c.p->n_ops <= 64, "a step of %d ops", c.p->n_ops)) return;
    memset(&fake, 0, sizeof fake);
    int wrong = 0, runs = 0, code = runtime_open(&device, ALLOC_PLANNED, 0, &(Job){c.net, c.p}, 1, 7, 0, &r, &e);
    for (int i = 0; i < 2 && !code; i++) code = runtime_step(r, 0, net_feed, c.p, &out, &e);
    const long replays = fake.replays;
    fake.runs = 0;
    if (!code) code = runtime_step_timed(r, 0, net_feed, c.p, seconds, &out, &e);
    is_int(code, OK, "a timed step");
    for (int i = 0; i < c.p->n_ops; i++) { /* the fake device's elapsed says 0.25 each time */
        const int times = c.p->ops[i].kind == OP_view ? 0 : i < c.p->body_end ? 3 : 1;
        wrong += seconds[i] != 0.25 * times;
        sum += seconds[i];
        runs += times;
        if (seconds[i] < least) least = seconds[i];
    }
    is_int(wrong, 0, "each op has the time of all its runs");
    ok(least == 0, "a view has none");
    ok(fake.runs == runs && fake.replays == replays, "all %d are run, though the step was recorded", runs);
    ok(sum > 0 && out.seconds == 0.25 && out.ops == 0, "no section has a time");
    ok(runtime_timing_seconds(r, &timing, &e) == OK && timing == 0.25, "the time of timing nothing");
    is_int(runtime_step(r, 0, net_feed, c.p, &out, &e), OK, "a step after it");
    ok(fake.replays > replays, "is replayed as before");
    int failed = 0, left = 0;
    for (long n = 1; n < 200; n++) { /* each call fails once */
        fake.calls = 0;
        fake.fail_at = n;
        code = runtime_step_timed(r, 0, net_feed, c.p, seconds, &out, &e);
        if (!code) break;
        failed++;
        left += code != ERR_DEVICE || e.code != ERR_DEVICE;
    }
    fake.fail_at = 0;
    ok(failed > runs && left == 0, "%d calls, each made to fail", failed);
    fake.fail_at = fake.calls + 1;
    is_int(runtime_timing_seconds(r, &timing, &e), ERR_DEVICE, "so does the time of nothing");
    fake.fail_at = 0;
    is_int(runtime_close_checked(r, &e), OK, "all is given back");
    is_int(fake.bytes, 0, "to the device, too");
    case_close(&c);
}

/* ---- values by name */

static void test_values(void) {
    Settings s = settings_default();
    s.precision = PREC_MASTER_BF16;
    s.keep_output = true;
    Case c = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(2, 3), &s);
    Runtime *r = NULL;
    Err e = {0, ""};
    memset(&fake, 0, sizeof fake);
    if (!c.p || !ok(runtime_open(&device, ALLOC_PLANNED, 0, &(Job){c.net, c.p}, 1, 7, 0, &r, &e) == OK, "opens: %s", e.text))
        return;
    const float w[6] = {1, 2, 3, 4, 5, 1.00390625f}; /* the last one lies between two of bf16 */
    float found[6];
    Shape shape;
    is_int(runtime_write(r, "weight", w, &e), OK, "a parameter is written");
    ok(runtime_read(r, 0, "weight", found, &e) == OK && !memcmp(found, w, 5 * sizeof *w) && found[5] == 1,
       "and read back as its type has it");
    ok(runtime_read(r, 0, "weight.master", found, &e) == OK && !memcmp(found, w, sizeof w), "its master as it was");
    ok(runtime_shape(r, 0, "weight", &shape, &e) == OK && shape.dim[0] == 2 && shape.dim[1] == 3, "its shape");
    is_int(runtime_type(r, 0, "weight"), DT_BF16, "its type");
    is_int(runtime_type(r, 0, "none"), DT_F32, "of none: fp32");
    is_int(runtime_read(r, 0, "none", found, &e), ERR_SCRIPT, "a name that is not there");
    has_text(e.text, "no buffer \"none\" can be read", "is told");
    is_int(runtime_shape(r, 0, "none", &shape, &e), ERR_SCRIPT, "has no shape");
    is_int(runtime_write(r, "none", w, &e), ERR_SCRIPT, "and cannot be written");
    StepResult out;
    is_int(runtime_step(r, 0, net_feed, c.p, &out, &e), OK, "a step");
    ok(runtime_read(r, 0, "y", found, &e) == OK && found[0] == 0, "its output was kept");
    ok(runtime_shape(r, 0, "y", &shape, &e) == OK && shape.dim[0] == 2 && shape.dim[1] == 2, "with its shape");
    is_int(runtime_updates(r), 1, "one update");
    runtime_set_updates(r, 41);
    is_int(runtime_updates(r), 41, "goes on where it is told");

    /* each persistent buffer as bytes, there and back */
    int wrong = 0, n = 0;
    for (const Buf *b; (b = runtime_persistent(r, n)) != NULL; n++) {
        unsigned char bytes[64], again[64];
        if (b->bytes > sizeof bytes) return;
        for (size_t i = 0; i < b->bytes; i++) bytes[i] = (unsigned char)(31 * i + (size_t)n);
        wrong += runtime_write_bytes(r, n, bytes, &e) || runtime_read_bytes(r, n, again, &e) ||
                 memcmp(bytes, again, b->bytes) != 0;
    }
    ok(n > 4 && wrong == 0, "%d buffers are written and read as bytes", n);
    static const char *const what[] = {"read", "write", "read bytes", "write bytes"};
    for (int i = 0; i < 8; i++) { /* a device and a host that fail */
        unsigned char bytes[64] = {0};
        fake.fail_at = i < 4 ? fake.calls + 1 : 0;
        mem_fail_after(i < 4 ? 0 : 1);
        int code = i % 4 == 0   ? runtime_read(r, 0, "weight", found, &e)
                   : i % 4 == 1 ? runtime_write(r, "weight", w, &e)
                   : i % 4 == 2 ? runtime_read_bytes(r, 0, bytes, &e)
                                : runtime_write_bytes(r, 0, bytes, &e);
        mem_fail_after(0);
        is_int(code, i < 4 ? ERR_DEVICE : ERR_HOST_MEMORY, what[i % 4]);
    }
    fake.fail_at = 0;
    is_int((long long)runtime_empty_cache(r), 0, "nothing is cached");
    runtime_reset_peak(r);
    is_int((long long)runtime_ledger(r)->peak.held, (long long)runtime_ledger(r)->held, "the peak begins anew");
    is_int(runtime_close_checked(r, &e), OK, "all is given back");
    case_close(&c);
}

/* ---- programs that share their parameters */

static void test_shared(void) {
    Settings s = settings_default(), other = settings_default();
    other.precision = PREC_BF16;
    Case c = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(2, 3), &s), d;
    d = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(2, 3), &other);
    Job jobs[] = {{c.net, c.p}, {d.net, d.p}};
    Runtime *r = NULL;
    Err e = {0, ""};
    memset(&fake, 0, sizeof fake);
    if (!ok(c.p && d.p, "two programs")) return;
    is_int(runtime_open(&device, ALLOC_PLANNED, 0, jobs, 2, 7, 0, &r, &e), ERR_SCRIPT, "in two precisions");
    has_text(e.text, "share weight, but it is f32 (2, 3) in one and bf16 (2, 3) in another", "are refused");
    jobs[1] = jobs[0];
    is_int(runtime_open(&device, ALLOC_PLANNED, 0, jobs, 2, 7, 0, &r, &e), OK, "in one they run together");
    is_int(runtime_close_checked(r, &e), OK, "and all is given back");
    is_int(fake.bytes, 0, "each time");
    case_close(&d);
    case_close(&c);
}

/* ---- feeds */

typedef struct Feed { const Program *p; float x; int32_t label; } Feed;

static int feed_one(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e) {
    const Feed *f = arg;
    (void)step, (void)micro, (void)e;
    for (int64_t i = 0; i < shape_elements(&f->p->bufs[f->p->inputs[0]].shape); i++) x[i] = f->x;
    for (int64_t i = 0; i < shape_elements(&f->p->bufs[f->p->target].shape); i++) ((int32_t *)t)[i] = f->label;
    return OK;
}

static void test_feeds(void) {
    static const struct { float x; int32_t label; const char *message; } cases[] = {
        {10, 9, ""}, {0, 0, ""}, {0, -100, ""},
        {11, 0, "input 0 is 11: expected an index below 11, the rows of nn.Embedding"},
        {-1, 0, "input 0 is -1: expected an index below 11"}, {2.5, 0, "input 0 is 2.5: expected an index below 11"},
        {NAN, 0, "nan: expected an index below 11"}, {3e9f, 0, "input 0 is 3e+09: expected an index below 11"},
        {0, 10, "target 10 of sample 0 is out of bounds for 10 classes"},
        {0, -1, "target -1 of sample 0 is out of bounds for 10 classes"}};
    Settings s = settings_default();
    Case c = case_open(&device, NET_WORDS, "CrossEntropyLoss", shape2(2, 6), &s);
    for (size_t i = 0; c.p && i < ARRAY_LEN(cases); i++) {
        Feed feed = {c.p, cases[i].x, cases[i].label};
        Runtime *r = NULL;
        Err e = {0, ""};
        memset(&fake, 0, sizeof fake);
        int code = runtime_open(&device, ALLOC_DIRECT, 0, &(Job){c.net, c.p}, 1, 7, 0, &r, &e);
        if (!code) code = runtime_step(r, 0, feed_one, &feed, NULL, &e);
        is_int(code, cases[i].message[0] ? ERR_SCRIPT : OK, "a feed is looked at before the device has it");
        has_text(e.text, cases[i].message, cases[i].message);
        is_int(runtime_close_checked(r, &e), OK, "and all is given back");
    }
    case_close(&c);
}

int main(void) {
    test_failures();
    test_recording();
    test_times();
    test_timed();
    test_values();
    test_shared();
    test_feeds();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
