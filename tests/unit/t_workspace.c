/* The workspace passes: what a library needs is a buffer; where nothing is within the limit, the op takes what is free
 * below the step's peak, and the peak stays. */
#include "passes/compile.h"
#include "net.h"
#include "tap.h"

/* A library of two ways: the slow one needs LEAST, the fast one MOST; only these are there for gradients of weights of
 * convolutions. States tell them apart. */
enum { LEAST = 4096, MOST = 1 << 20 };
static char slow, fast;
static size_t most_asked;

static int prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d, (void)e;
    bool library = args->kind == OP_conv2d_dw;
    most_asked = library ? max_size(most_asked, limit) : most_asked;
    *state = !library ? NULL : limit >= MOST ? &fast : &slow;
    *workspace = !library ? 0 : limit >= MOST ? MOST : LEAST;
    return OK;
}

/* The same library with several threads, of which each needs as much: it has the same ways, with other states. */
enum { THREADS = 3 };
static char slow_all, fast_all;

static int prepare_all(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    const int code = prepare(d, args, limit, state, workspace, e);
    *workspace *= THREADS;
    if (*state) *state = *state == &fast ? &fast_all : &slow_all;
    return code;
}

static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = prepare};
static Device device = {.table = &table};

static int alone(Device *d, Device **out, Err *e) {
    (void)d, (void)e;
    return *out = &device, OK;
}

static const DeviceTable table_all = {.kind = "none", .alignment = 64, .prepare = prepare_all, .alone = alone};
static Device device_all = {.table = &table_all};

typedef struct Found { int slow, fast; size_t arena, bound; } Found;

/* The network's gradients of weights by their ways, and the height of the plan. */
static Found compiled_on(Device *on, const char *text, int64_t batch, size_t limit) {
    const bool all = on == &device_all;
    const size_t times = all ? THREADS : 1;
    Settings s = settings_default();
    Found found = {0, 0, 0, 0};
    const Placement *place;
    Program *p = NULL;
    Err e = {0, ""};
    s.workspace_limit = limit;
    s.sliced_updates = false; /* the large linear layer's gradient is to be at the peak */
    Network *net = net_new(text, "CrossEntropyLoss", shape4(batch, 8, 64, 64), &e);
    int code = net ? compile(net, &s, on, NULL, NULL, &p, &e) : e.code;
    if (!code) code = placement_of(p, 64, &place, &e);
    network_free(net);
    if (!ok(!code, "%s, batch %d, limit %zu: compiled%s%s", text, (int)batch, limit, code ? ": " : "", e.text))
        return found;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_conv2d_dw) continue;
        const size_t bytes = p->bufs[p->ops[i].workspace].bytes;
        found.slow += p->ops[i].state == (all ? &slow_all : &slow) && bytes == times * LEAST;
        found.fast += p->ops[i].state == (all ? &fast_all : &fast) && bytes == times * MOST;
    }
    found.arena = place->arena;
    found.bound = place->persistent + place->plan.lower_bound;
    program_free(p);
    return found;
}

static Found compiled(const char *text, int64_t batch, size_t limit) { return compiled_on(&device, text, batch, limit); }

/* The peak is at the large linear layer, or at the first convolution's maps. */
static const char *const deep = "Sequential{Conv2d(8, 8, 3, padding=same) ReLU Conv2d(8, 8, 3, padding=same) ReLU "
                                "MaxPool2d(8) Flatten Linear(512, 4096) ReLU Linear(4096, 10)}";
static const char *const flat = "Sequential{Conv2d(8, 8, 3, padding=same) AvgPool2d(64) Flatten Linear(8, 10)}";

static void test_within(void) {
    most_asked = 0;
    Found f = compiled(deep, 2, LEAST);
    is_int(f.slow, 2, "within the limit: the two convolutions have what they got");
    is_int((long long)most_asked, LEAST, "and nobody asks for more");
    f = compiled(deep, 2, MOST);
    is_int(f.fast, 2, "a limit that allows the fast way");
}

static void test_spare(void) {
    Found tight = compiled(deep, 2, LEAST), f = compiled(deep, 2, LEAST - 1);
    is_int(f.fast, 2, "beyond the limit, far below the peak: the fast way");
    is_int((long long)f.arena, (long long)tight.arena, "the plan is as high as before");
    is_int((long long)f.arena, (long long)f.bound, "and at its bound");
}

static void test_peak(void) {
    Found f = compiled(flat, 64, 0);
    is_int(f.slow, 1, "beyond the limit, at the peak: the least");
    is_int((long long)f.arena, (long long)f.bound, "the plan is at its bound");
}

/* Threads need more, but change no choice: within the limit, beyond it below the peak, and at the peak. */
static void test_threads(void) {
    const struct { const char *text; int64_t batch; size_t limit; } cases[] = {
        {deep, 2, LEAST}, {deep, 2, MOST}, {deep, 2, MOST - 1}, {deep, 2, LEAST - 1}, {deep, 2, 0}, {flat, 64, 0}, {flat, 64, MOST}};
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        const Found one = compiled(cases[k].text, cases[k].batch, cases[k].limit);
        const Found all = compiled_on(&device_all, cases[k].text, cases[k].batch, cases[k].limit);
        ok(one.slow + one.fast > 0 && one.slow == all.slow && one.fast == all.fast, "case %zu: %d slow and %d fast, with threads %d and %d", k,
           one.slow, one.fast, all.slow, all.fast);
    }
}

int main(void) {
    test_threads();
    test_within();
    test_spare();
    test_peak();
    return tap_done();
}
