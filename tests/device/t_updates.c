/* t_updates.c: updates of many tensors in a row on the CUDA device: they are collected into few launches, give the
 * CPU's results, and are done before anything that comes after them.
 *
 * "cuda:0" is the emulated GPU of tests/emulate/, or a real one: MEMTIDE_CUDA names the plugin. Launches are counted
 * by letting the n-th of them fail, which only the emulated one can. */
#include <stdlib.h>
#include <unistd.h>

#include "memory/device.h"
#include "tap.h"

enum { TENSORS = 130, LARGEST = 9000, BUFFERS = 2 + OPTIM_STATES, IN_ONE_LAUNCH = 54, SQUARES_IN_ONE = 96, CODES_IN_ONE = 39,
       FACTORS_IN_ONE = 22, SMALL = 4096 };
/* BUFFERS: g, w, states */

static Device *cpu, *gpu;
static Err e;

/* at: TENSORS x BUFFERS x LARGEST. workspace: of grad_square; its sum is where the loss scale is of the other ops */
typedef struct Side { Device *device; float *at; StepState *state; void *workspace; size_t workspace_bytes; } Side;

/* Odd sizes from one element to several blocks; every third tensor starts where no 16-byte word does. */
static int64_t size_of(int i) { return i % 7 ? 1 + i * 13 : LARGEST - i; }

static View view_at(const Side *s, int i, int buffer) {
    int64_t n = size_of(i);
    float *at = s->at + ((size_t)i * BUFFERS + (size_t)buffer) * LARGEST + (i % 3 == 1);
    return (View){.data = at, .shape = shape1(n), .dtype = DT_F32, .count = n};
}

static int update(const Side *s, OpKind kind, const Attr *attr, int i) {
    if (kind == OP_adafactor && size_of(i) > SMALL && !s->workspace_bytes) return OK; /* it is not one of many in a launch */
    KArgs a = {.kind = kind, .attr = attr, .device = s->device};
    View state = {.data = s->state, .dtype = DT_F32, .shape = shape1(1), .count = 1};
    a.in[0] = view_at(s, i, 0);
    a.workspace = s->workspace;
    a.workspace_bytes = s->workspace_bytes;
    if (kind == OP_grad_check || kind == OP_grad_square) {
        a.out[0] = state;
    } else if (kind == OP_adafactor) { /* of vectors: the weight, and the means of its squares */
        a.in[1] = state;
        a.out[0] = view_at(s, i, 1);
        a.out[3] = view_at(s, i, 2);
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

/* ---- the sum of squares */

/* Of tensors [0, n), which the sum begins with. */
static float squares_of(const Side *s, int n) {
    const Attr first = {.square = {1, 0.5f}}, later = {.square = {0, 0.5f}};
    float sum = NAN;
    int code = OK;
    for (int i = 0; i < n && !code; i++) code = update(s, OP_grad_square, i ? &later : &first, i);
    if (!code) code = s->device->table->download(s->device, &sum, s->state, sizeof sum, &e);
    return code ? NAN : sum;
}

static void test_squares(Side *c, Side *g) {
    const Attr later = {.square = {0, 1}};
    const size_t room = gpu->table->alignment, bytes = 1024 * sizeof(double);
    void *workspace;
    fill(c->at, bytes_of(c) / sizeof *c->at);
    if (gpu->table->alloc(gpu, bytes, &workspace, &e) || gpu->table->upload(gpu, g->at, c->at, bytes_of(c), &e)) exit(2);
    const float all = squares_of(c, TENSORS), three = squares_of(c, 3);
    *g = (Side){gpu, g->at, g->state, workspace, bytes};
    float found = squares_of(g, TENSORS);
    ok(fabsf(found - all) <= 1e-5f * all, "130 squares: %g, as on the CPU %g", found, all);
    test_launches(g, OP_grad_square, &later, 1, 2 * ((TENSORS + SQUARES_IN_ONE - 1) / SQUARES_IN_ONE), "130 squares");
    g->workspace_bytes = room; /* for 32 sums */
    const int few = (int)(room / sizeof(double));
    test_launches(g, OP_grad_square, &later, 1, 2 * ((TENSORS + few - 1) / few), "130 squares, room for few sums");
    g->workspace_bytes = 0;
    test_launches(g, OP_grad_square, &later, 1, TENSORS, "130 squares, no workspace");
    /* The third one's workspace lies where the second one's gradient does, which still waits. */
    *g = (Side){gpu, g->at, g->state, workspace, bytes};
    const Attr begins = {.square = {1, 0.5f}}, goes_on = {.square = {0, 0.5f}};
    int code = update(g, OP_grad_square, &begins, 1);
    if (!code) code = update(g, OP_grad_square, &goes_on, 0);
    g->workspace = (char *)view_at(g, 0, 0).data + room, g->workspace_bytes = room;
    if (!code) code = update(g, OP_grad_square, &goes_on, 2);
    if (!code) code = gpu->table->download(gpu, &found, g->state, sizeof found, &e);
    ok(!code && fabsf(found - three) <= 1e-5f * three, "a workspace over a gradient that waits: %g, expected %g", found, three);
    gpu->table->free(gpu, workspace, bytes);
    *g = (Side){gpu, g->at, g->state, NULL, 0};
}

/* A small parameter waits, and the workspace of a large one lies where its gradient does. */
static void test_factors(Side *c, Side *g, const Attr *attr) {
    enum { WAITS = TENSORS - 1, LARGE = 0 };
    const View gradient = view_at(g, WAITS, 0), weight = view_at(g, WAITS, 1), want = view_at(c, WAITS, 1);
    const StepState state = {8, 0, 0, 3};
    const size_t room = gpu->table->alignment;
    float *found = malloc((size_t)want.count * sizeof *found);
    if (!found) exit(2);
    fill(c->at, bytes_of(c) / sizeof *c->at);
    *c->state = state;
    int code = gpu->table->upload(gpu, g->at, c->at, bytes_of(c), &e);
    if (!code) code = gpu->table->upload(gpu, g->state, &state, sizeof state, &e);
    if (!code) code = update(c, OP_adafactor, attr, WAITS);
    if (!code) code = update(g, OP_adafactor, attr, WAITS);
    g->workspace = (void *)align_up((uintptr_t)gradient.data, room), g->workspace_bytes = room;
    if (!code) code = update(g, OP_adafactor, attr, LARGE);
    if (!code) code = gpu->table->download(gpu, found, weight.data, (size_t)want.count * sizeof *found, &e);
    bool near = !code;
    for (int64_t i = 0; i < want.count; i++) near &= fabsf(found[i] - ((float *)want.data)[i]) <= 1e-6f;
    ok(near, "a workspace over a gradient that waits for Adafactor");
    *g = (Side){gpu, g->at, g->state, NULL, 0};
    free(found);
}

/* ---- states of 8 bits: of each tensor g, w [EIGHTS], then the codes of two states, then the scales of both blocks of each */

enum { BLOCK = 64, EIGHTS = 2 * BLOCK, EIGHTS_BYTES = 2 * EIGHTS * 4 + 2 * EIGHTS + 4 * 4 };

static int update_codes(const Side *s, const Attr *attr, int i) {
    uint8_t *at = (uint8_t *)s->at + (size_t)i * EIGHTS_BYTES, *codes = at + 2 * EIGHTS * 4;
    const View numbers = {.data = at, .shape = shape1(EIGHTS), .dtype = DT_F32, .count = EIGHTS};
    KArgs a = {.kind = OP_adam8bit, .attr = attr, .device = s->device};
    a.in[0] = a.out[0] = numbers;
    a.out[0].data = at + EIGHTS * 4;
    a.in[1] = (View){.data = s->state, .dtype = DT_F32, .shape = shape1(1), .count = 1};
    for (int k = 0; k < 2; k++)
        a.out[1 + k] = (View){.data = codes + k * EIGHTS, .shape = shape1(EIGHTS), .dtype = DT_U8, .count = EIGHTS};
    a.out[1 + OPTIM_STATES] = (View){.data = codes + 2 * EIGHTS, .shape = shape1(4), .dtype = DT_F32, .count = 4};
    return s->device->table->run(s->device, &a, &e);
}

static void test_codes(Side *c, Side *g) {
    const size_t bytes = (size_t)TENSORS * EIGHTS_BYTES;
    const StepState state = {8, 0, 0, 3};
    uint8_t *found = malloc(bytes), *begin = malloc(bytes);
    Attr attr = {.optim = {.rule = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .block_size = BLOCK}}};
    int code = OK, worst = 0;
    e = (Err){0, ""};
    if (!found || !begin) exit(2);
    for (int i = 0; i < TENSORS; i++) {
        uint8_t *at = begin + (size_t)i * EIGHTS_BYTES;
        fill((float *)(void *)at, EIGHTS_BYTES / 4);
        for (int k = 0; k < 2 * EIGHTS; k++) at[2 * EIGHTS * 4 + k] = (uint8_t)(i + 3 * k);
    }
    memcpy(c->at, begin, bytes);
    *c->state = state;
    if (gpu->table->upload(gpu, g->at, begin, bytes, &e) || gpu->table->upload(gpu, g->state, &state, sizeof state, &e)) exit(2);
    for (int i = 0; i < TENSORS && !code; i++) {
        code = update_codes(c, &attr, i);
        if (!code) code = update_codes(g, &attr, i);
    }
    if (!code) code = gpu->table->download(gpu, found, g->at, bytes, &e);
    bool near = !code;
    for (int i = 0; i < TENSORS; i++) {
        const uint8_t *x = found + (size_t)i * EIGHTS_BYTES, *y = (uint8_t *)c->at + (size_t)i * EIGHTS_BYTES;
        const float *w = (const float *)(const void *)x, *v = (const float *)(const void *)y;
        for (int k = 0; k < 2 * EIGHTS; k++) near &= fabsf(w[k] - v[k]) <= 1e-6f * fabsf(v[k]);
        for (int k = 2 * EIGHTS * 4; k < 2 * EIGHTS * 5; k++) {
            const int apart = abs(x[k] - y[k]);
            if (apart > worst) worst = apart;
        }
        for (int k = 0; k < 4; k++) near &= fabsf(w[EIGHTS * 5 / 2 + k] - v[EIGHTS * 5 / 2 + k]) <= 1e-6f * v[EIGHTS * 5 / 2 + k];
    }
    ok(near && worst <= 1, "130 tensors of codes: as on the CPU %s", e.text);
    const int launches = (TENSORS + CODES_IN_ONE - 1) / CODES_IN_ONE;
    char nth[64];
    for (int more = 1; more >= 0 && is_emulated(); more--) {
        snprintf(nth, sizeof nth, "cudaLaunchKernelEx:%d:9", launches + more);
        setenv("EMULATE_FAIL", nth, 1);
        for (int i = code = 0; i < TENSORS && !code; i++) code = update_codes(g, &attr, i);
        if (!code) code = gpu->table->sync(gpu, &e);
        ok(more ? code == OK : code == ERR_DEVICE, "130 tensors of codes: %s", more ? "no more launches than that" : "4 launches");
    }
    unsetenv("EMULATE_FAIL");
    free(found);
    free(begin);
}

static void test_device(void) {
    Attr adam, rmsprop, adagrad, adafactor, sgd[2], none;
    Side c = {.device = cpu}, g = {.device = gpu};
    void *p = NULL, *q = NULL;
    memset(&adam, 0, sizeof adam);
    memset(&rmsprop, 0, sizeof rmsprop);
    memset(&adagrad, 0, sizeof adagrad);
    memset(&adafactor, 0, sizeof adafactor);
    memset(sgd, 0, sizeof sgd);
    memset(&none, 0, sizeof none);
    adam.optim.rule = (OptimRule){.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .amsgrad = 1};
    rmsprop.optim.rule = (OptimRule){.lr = 0.01f, .momentum = 0.9f, .eps = 1e-8f, .alpha = 0.99f};
    adagrad.optim.rule = (OptimRule){.lr = 0.1f, .eps = 1e-10f, .lr_decay = 0.1f};
    adafactor.optim.rule = (OptimRule){.lr = 0.01f, .eps = 1e-7f, .eps2 = 1e-3f, .beta2_decay = -0.8f, .d = 1};
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
    test_values(&c, &g, OP_adafactor, &adafactor, "adafactor");
    test_values(&c, &g, OP_sgd, sgd, "sgd");
    test_values(&c, &g, OP_grad_check, &none, "grad_check");
    int whole = (TENSORS + IN_ONE_LAUNCH - 1) / IN_ONE_LAUNCH;
    test_launches(&g, OP_adam, &adam, 1, whole, "130 tensors by one rule");
    test_launches(&g, OP_grad_check, &none, 1, whole, "130 gradients");
    int small = 0;
    for (int i = 0; i < TENSORS; i++) small += size_of(i) <= SMALL;
    test_launches(&g, OP_adafactor, &adafactor, 1, (small + FACTORS_IN_ONE - 1) / FACTORS_IN_ONE, "111 small parameters");
    test_launches(&g, OP_sgd, sgd, 2, TENSORS, "two rules that take turns");
    test_squares(&c, &g);
    test_factors(&c, &g, &adafactor);
    test_codes(&c, &g);
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
