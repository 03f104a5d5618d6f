/* checkpoint_nets.h: networks and a model of a device for the tests of the checkpoint pass. */
#ifndef CHECKPOINT_NETS_H
#define CHECKPOINT_NETS_H

#include "network/lower.h"
#include "base/mem.h"
#include "net.h"
#include "passes/checkpoint.h"

enum { BATCH = 4 };

static const char plain[] =
    "Sequential{Conv2d(3, 8, 3, padding=1) ReLU Conv2d(8, 8, 3, padding=1) ReLU MaxPool2d(2)"
    " Conv2d(8, 16, 3, padding=1) GELU Dropout(0.25) Conv2d(16, 16, 3, padding=1) Tanh MaxPool2d(2) Flatten"
    " Linear(256, 32) LeakyReLU Dropout(0.5) Linear(32, 10)}";
static const char residual[] =
    "Sequential{Conv2d(3, 8, 3, padding=1) ReLU Residual{Sequential{Conv2d(8, 8, 3, padding=1) GELU"
    " Conv2d(8, 8, 3, padding=1)}} ReLU MaxPool2d(2) Residual{Sequential{Conv2d(8, 16, 3, padding=1) ReLU"
    " Conv2d(16, 16, 1)} Conv2d(8, 16, 1)} ReLU AdaptiveAvgPool2d(2) Flatten Linear(64, 10)}";
static const char marked[] =
    "Sequential{Conv2d(3, 8, 3, padding=1) ReLU Checkpoint{Sequential{Conv2d(8, 8, 3, padding=1) GELU Dropout(0.5)"
    " Conv2d(8, 8, 3, padding=1) ReLU}} Residual{Checkpoint{Sequential{Conv2d(8, 8, 1) Tanh Conv2d(8, 8, 1) Sigmoid}}}"
    " Flatten Checkpoint{Sequential{Linear(2048, 16) ReLU}} Linear(16, 10)}";
static const char views[] =
    "Sequential{Conv2d(3, 4, 3, padding=1) ReLU Checkpoint{Sequential{Conv2d(4, 4, 3, padding=1) GELU Flatten"
    " Linear(1024, 16) GELU Linear(16, 16)}} GELU Linear(16, 10)}";

static int model_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d;
    (void)limit;
    (void)e;
    *state = NULL;
    *workspace = args->kind == OP_linear ? 0 : 1000;
    return OK;
}

static const DeviceTable table = {.kind = "model", .alignment = 64, .prepare = model_prepare};
static Device model = {.table = &table};

__attribute__((unused)) static Settings settings_of(Checkpoint mode) {
    Settings s = settings_default();
    s.checkpoint = mode;
    return s;
}

#define CHOOSE(...)
#define FINISH(...)
#define SPARE(...)
#define BUILD(...) {__VA_ARGS__},
static const Pass building[] = {
#define PASS(name, stage, function, technique) stage(#name, function)
#include "passes/passes.def"
#undef PASS
};

/* Up to the checkpoint pass, for a batch of that shape; NULL and *e on an error. */
__attribute__((unused)) static Program *before_of(const char *text, Shape batch, const Settings *s, Err *e) {
    Network *net = net_new(text, "CrossEntropyLoss", batch, e);
    Program *p = NULL;
    int code = net ? lower_network(net, true, true, &p, e) : e->code;
    if (!code) {
        p->tensor = s->mesh.tensor;
        p->world = s->world / p->tensor;
    }
    Compile c = {.settings = s, .device = &model, .e = e};
    for (size_t i = 0; i < ARRAY_LEN(building) && !code; i++) code = pass_run(&building[i], p, &c);
    network_free(net);
    if (!code) return p;
    program_free(p);
    return NULL;
}

__attribute__((unused)) static Program *before(const char *text, const Settings *s, Err *e) {
    return before_of(text, shape4(BATCH, 3, 16, 16), s, e);
}

__attribute__((unused)) static size_t arena(const Program *p, const Settings *s, Err *e) {
    size_t bytes = 0;
    return whatif(p, NULL, NULL, &(Compile){.settings = s, .device = &model, .e = e}, NULL, &bytes) ? 0 : bytes;
}

static int checkpoint(Program *p, const Settings *s, Err *e) {
    return pass_run(&(Pass){"checkpoint", pass_checkpoint}, p, &(Compile){.settings = s, .device = &model, .e = e});
}

__attribute__((unused)) static double again_seconds(const Program *p) {
    double seconds = 0;
    for (int i = 0; i < p->n_ops; i++) seconds += p->ops[i].recomputed ? op_seconds(&p->ops[i]) : 0;
    return seconds;
}

__attribute__((unused)) static int again_count(const Program *p, OpKind kind) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) n += p->ops[i].recomputed && (kind == OP_KIND_COUNT || p->ops[i].kind == kind);
    return n;
}

/* A copy after the pass; NULL on an error. */
__attribute__((unused)) static Program *after(const Program *p, const Settings *s, Err *e) {
    Program *c = program_copy(p);
    int code = c ? checkpoint(c, s, e) : err_set(e, ERR_HOST_MEMORY, "no copy");
    if (!code) return c;
    program_free(c);
    return NULL;
}

/* The least bytes that the pass says it can reach. */
__attribute__((unused)) static size_t least_of(const Program *p, Settings s, Err *e) {
    size_t least = 0;
    s.budget = 1;
    Program *c = after(p, &s, e);
    const char *number = c || e->code != ERR_OOM ? NULL : strstr(e->text, "reaches is ");
    if (number) least = (size_t)strtoull(number + strlen("reaches is "), NULL, 10);
    program_free(c);
    return least;
}

static const struct { const char *name, *text; } nets[] = {
    {"plain", plain}, {"residual", residual}, {"marked", marked}, {"views", views}};

#endif
