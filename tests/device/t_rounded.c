/* t_rounded.c: a network whose products round a weight as they read it trains as it does with copies of the weights: the same bits of
 * losses, parameters and states, with 1, 2 and 3 threads, in less memory, which is predicted to the byte. */
#include <omp.h>

#include "memory/device.h"
#include "trained.h"
#include "truth.h"

static const struct { const char *what, *text; } nets[] = {
    {"linear layers", "Sequential{Flatten Linear(432, 64) GELU Linear(64, 4096) ReLU Linear(4096, 10)}"},
    {"few rows of a long sum", "Sequential{Flatten Linear(432, 1024) GELU Linear(1024, 264) ReLU Linear(264, 20)}"},
    {"a convolution, tap by tap", "Sequential{Conv2d(3, 96, 9) ReLU Conv2d(96, 256, 3, padding=1) ReLU Flatten Linear(4096, 10)}"},
    {"a convolution with a stride", "Sequential{Conv2d(3, 24, 3, stride=2) ReLU Conv2d(24, 512, 3, stride=2) ReLU Flatten Linear(2048, 10)}"},
};

static bool is_cast(const Op *op) { return op->kind == OP_cast; }

/* From now on the device rounds no weight, or does again; so does the device that makes the choices. */
static void set_table(Device *d, const DeviceTable *table) {
    Device *alone = d;
    Err e;
    if (d->table->alone(d, &alone, &e)) ok(0, "alone: %s", e.text);
    d->table = alone->table = table;
}

static bool same(const Trained *a, const Trained *b) {
    return !a->code && !b->code && a->count == b->count && a->count && !memcmp(a->values, b->values, a->count * sizeof *a->values) &&
           !memcmp(a->loss, b->loss, sizeof a->loss) && a->loss[0] != a->loss[TRAINED_STEPS - 1];
}

static void check_prediction(Device *d, const char *what, const char *text, const Settings *s) {
    float loss[2];
    Err e = {0, ""};
    Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), &e);
    const int code = net ? truth_check(d, net, s, true, loss, &e) : e.code;
    network_free(net);
    ok(!code, "%s: predicted is measured %s", what, e.text);
}

/* Of one thread */
static float first[ARRAY_LEN(nets)][TRAINED_STEPS];

static void test_nets(int threads, bool emulated) {
    Device *d = NULL;
    Err e;
    omp_set_num_threads(threads);
    if (device_cpu_open(&d, &e)) {
        ok(0, "open: %s", e.text);
        return;
    }
    const DeviceTable *table = d->table;
    DeviceTable without = *table;
    without.rounds = NULL;
    Settings s = settings_default();
    s.precision = PREC_AMP_BF16;
    s.optimizer = (Optimizer){.kind = OPTIM_SGD, .rule = {.lr = 0.05f}};
    for (size_t n = 0; n < ARRAY_LEN(nets); n++) {
        Trained rounded = train(d, nets[n].text, &s, is_cast);
        set_table(d, &without);
        Trained copies = train(d, nets[n].text, &s, is_cast);
        set_table(d, table);
        if (!ok(same(&rounded, &copies), "%s, %d threads: the same bits", nets[n].what, threads))
            printf("# losses %g and %g; %s%s\n", (double)rounded.loss[TRAINED_STEPS - 1], (double)copies.loss[TRAINED_STEPS - 1],
                   rounded.err.text, copies.err.text);
        if (threads == 1) memcpy(first[n], rounded.loss, sizeof first[n]);
        ok(!memcmp(first[n], rounded.loss, sizeof first[n]), "%s: as with one thread", nets[n].what);
        const bool less = rounded.counted < copies.counted && rounded.peak < copies.peak;
        ok(less || !emulated, "%s: %d copies, not %d; %zu bytes, not %zu", nets[n].what, rounded.counted, copies.counted, rounded.peak,
           copies.peak);
        check_prediction(d, nets[n].what, nets[n].text, &s);
        free(rounded.values);
        free(copies.values);
    }
    table->close(d);
}

int main(void) {
    Device *d = NULL;
    DeviceInfo info;
    Err e;
    if (device_cpu_open(&d, &e) || d->table->info(d, &info, &e)) {
        ok(0, "open: %s", e.text);
        return tap_done();
    }
    d->table->close(d);
    for (int threads = 1; threads <= 3; threads++) test_nets(threads, info.emulated[DT_BF16]);
    return tap_done();
}
