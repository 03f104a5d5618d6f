/* t_updates.c: updates of many tensors in a row on the CUDA device: they are collected into few launches, give the
 * CPU's results, and are done before anything that comes after them.
 *
 * "cuda:0" is the emulated GPU of tests/emulate/, or a real one: MEMTIDE_CUDA names the plugin. Launches are counted
 * by letting the n-th of them fail, which only the emulated one can. */
#include <stdlib.h>
#include <unistd.h>

#include "memory/device.h"
#include "tap.h"

enum { TENSORS = 130, LARGEST = 9000, BUFFERS = 2 + OPTIM_STATES, IN_ONE_LAUNCH = 54 };
/* BUFFERS: g, w, states */

static Device *cpu, *gpu;
static Err e;

typedef struct Side { Device *device; float *at; StepState *state; } Side; /* at: TENSORS x BUFFERS x LARGEST */

/* Odd sizes from one element to several blocks; every third tensor starts where no 16-byte word does. */
static int64_t size_of(int i) { return i % 7 ? 1 + i * 13 : LARGEST - i; }

static View view_at(const Side *s, int i, int buffer) {
    int64_t n = size_of(i);
    float *at = s->at + ((size_t)i * BUFFERS + (size_t)buffer) * LARGEST + (i % 3 == 1);
    return (View){.data = at, .shape = shape1(n), .dtype = DT_F32, .count = n};
}

static int update(const Side *s, OpKind kind, const Attr *attr, int i) {
    KArgs a = {.kind = kind, .attr = attr, .device = s->device};
    View state = {.data = s->state, .dtype = DT_F32, .shape = shape1(1), .count = 1};
    a.in[0] = view_at(s, i, 0);
    if (kind == OP_grad_check) {
        a.out[0] = state;
    } else {
        a.in[1] = state;
        for (int k = 0; k < op_master(kind); k++) a.out[k] = view_at(s, i, 1 + k);
    }
    return s->device->table->run(s->device, &a, &e);
}

static size_t bytes_of(const Side *s) { return (size_t)TENSORS * BUFFERS * LARGEST * sizeof *s->at; }

/* All tensors, by the attributes in turn. */
static int update_all(const Side *s, OpKind kind, const Attr *attrs, int n_attrs) {
    int code = OK;
    for (int i = 0; i < TENSORS && !code; i++) code = update(s, kind, &attrs[i % n_attrs], i);
    return code ? code : s->device->table->sync(s->device, &e);
}

static bool is_emulated(void) {
    DeviceInfo info;
    return gpu->table->info(gpu, &info, &e) == OK && strstr(info.name, "emulated");
}

/* Is it exactly `n` launches? One of them fails where the n-th is the last that does. */
static void test_launches(const Side *s, OpKind kind, const Attr *attrs, int n_attrs, int n, const char *what) {
    char nth[64];
    if (!is_emulated()) {
        skip(what, "launches of a real GPU are not counted");
        return;
    }
    snprintf(nth, sizeof nth, "cudaLaunchKernelEx:%d:9", n + 1);
    setenv("EMULATE_FAIL", nth, 1);
    is_int(update_all(s, kind, attrs, n_attrs), OK, "no more launches than that");
    snprintf(nth, sizeof nth, "cudaLaunchKernelEx:%d:9", n);
    setenv("EMULATE_FAIL", nth, 1);
    ok(update_all(s, kind, attrs, n_attrs) == ERR_DEVICE, "%s: %d launches", what, n);
    unsetenv("EMULATE_FAIL");
    has_text(e.text, op_info(kind)->name, "the one that fails says which op it is");
    is_int(gpu->table->sync(gpu, &e), OK, "and is not tried again");
}

static void fill(float *at, size_t n) {
    for (size_t i = 0; i < n; i++) at[i] = rng_uniform(philox(11, RNG_DATA, 0, 0, i).x[0]) + 0.25f;
}

/* The same updates on both devices. */
static void test_values(Side *c, Side *g, OpKind kind, const Attr *attr, const char *what) {
    StepState state = {8, 0, 0, 3}, after;
    float *found = malloc(bytes_of(c));
    if (!found) exit(2);
    fill(c->at, bytes_of(c) / sizeof *c->at);
    *c->state = state;
    int code = gpu->table->upload(gpu, g->at, c->at, bytes_of(c), &e);
    if (!code) code = gpu->table->upload(gpu, g->state, &state, sizeof state, &e);
    for (int i = 0; i < TENSORS && !code; i++) {
        code = update(c, kind, attr, i);
        if (!code) code = update(g, kind, attr, i);
    }
    if (!code) code = gpu->table->download(gpu, found, g->at, bytes_of(c), &e); /* waits for what waits */
    if (!code) code = gpu->table->download(gpu, &after, g->state, sizeof after, &e);
    bool near = !code && !memcmp(&after, c->state, sizeof after);
    for (size_t i = 0; i < bytes_of(c) / sizeof *found; i++)
        near &= fabsf(found[i] - c->at[i]) <= 1e-6f * fabsf(c->at[i]);
    ok(near, "%s: as on the CPU %s", what, e.text);
    free(found);
}

static void test_device(void) {
    Attr adam, rmsprop, adagrad, sgd[2], none;
    Side c = {.device = cpu}, g = {.device = gpu};
    void *p = NULL, *q = NULL;
    memset(&adam, 0, sizeof adam);
    memset(&rmsprop, 0, sizeof rmsprop);
    memset(&adagrad, 0, sizeof adagrad);
    memset(sgd, 0, sizeof sgd);
    memset(&none, 0, sizeof none);
    adam.optim.rule = (OptimRule){.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .amsgrad = 1};
    rmsprop.optim.rule = (OptimRule){.lr = 0.01f, .momentum = 0.9f, .eps = 1e-8f, .alpha = 0.99f};
    adagrad.optim.rule = (OptimRule){.lr = 0.1f, .eps = 1e-10f, .lr_decay = 0.1f};
    sgd[0].optim.rule = (OptimRule){.lr = 0.1f, .momentum = 0.9f};
    sgd[1].optim.rule = (OptimRule){.lr = 0.2f, .momentum = 0.9f};
    c.at = malloc(bytes_of(&c));
    c.state = malloc(sizeof *c.state);
    size_t bytes = align_up(bytes_of(&g), gpu->table->alignment), more = gpu->table->alignment;
    if (!c.at || !c.state || gpu->table->alloc(gpu, bytes, &p, &e) || gpu->table->alloc(gpu, more, &q, &e)) exit(2);
    g.at = p;
    g.state = q;
    test_values(&c, &g, OP_adam, &adam, "adam");
    test_values(&c, &g, OP_rmsprop, &rmsprop, "rmsprop");
    test_values(&c, &g, OP_adagrad, &adagrad, "adagrad");
    test_values(&c, &g, OP_sgd, sgd, "sgd");
    test_values(&c, &g, OP_grad_check, &none, "grad_check");
    int whole = (TENSORS + IN_ONE_LAUNCH - 1) / IN_ONE_LAUNCH;
    test_launches(&g, OP_adam, &adam, 1, whole, "130 tensors by one rule");
    test_launches(&g, OP_grad_check, &none, 1, whole, "130 gradients");
    test_launches(&g, OP_sgd, sgd, 2, TENSORS, "two rules that take turns");
    gpu->table->free(gpu, p, bytes);
    gpu->table->free(gpu, q, more);
    free(c.at);
    free(c.state);
}

int main(void) {
    char plugin[1024];
    const char *build = getenv("BUILD");
    snprintf(plugin, sizeof plugin, "%s/emulate/memtide_cuda.so", build ? build : "build");
    setenv("MEMTIDE_CUDA", plugin, 0);
    if (access(getenv("MEMTIDE_CUDA"), R_OK)) skip("updates", "no CUDA plugin was built");
    else if (ok(!device_open("cpu", &cpu, &e) && !device_open("cuda:0", &gpu, &e), "both devices open %s", e.text))
        test_device();
    device_close(gpu);
    device_close(cpu);
    return tap_done();
}
