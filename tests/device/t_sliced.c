/* t_sliced.c: a network whose large weights are updated some rows at a time trains as it does when they are updated whole: the
 * same losses, parameters and states but for the rounding of sums, in less memory, which is predicted to the byte. On the CPU, and
 * on the GPU that each_device.h finds. And which weights stay whole, and into how many slices
 * others are cut. */
#include "each_device.h"
#include "trained.h"
#include "truth.h"

typedef struct SlicedNet { const char *what, *text; } SlicedNet;

static const SlicedNet nets[] = {
    {"a linear layer", "Sequential{Flatten Linear(432, 320) GELU Linear(320, 10)}"},
    {"of sequences, without a bias", "Sequential{Flatten Linear(432, 128) Unflatten(1, 2:64) Linear(64, 2048, bias=false) ReLU Linear(2048, 4) Flatten Linear(8, 10)}"},
    {"a convolution", "Sequential{Conv2d(3, 16, 3, stride=4) ReLU Conv2d(16, 1024, 3) ReLU Flatten Linear(1024, 10)}"},
    {"a transposed convolution", "Sequential{Conv2d(3, 64, 12) ReLU ConvTranspose2d(64, 128, 4) ReLU Flatten Linear(2048, 10)}"},
};

static bool is_slice(const Op *op) { return op->kind == OP_slice; }

static const struct { const char *what; Optimizer of; } optimizers[] = {
    {"SGD", {.kind = OPTIM_SGD, .rule = {.lr = 0.05f, .momentum = 0.9f}}},
    {"AdamW", {.kind = OPTIM_AdamW, .rule = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f, .weight_decay = 0.1f, .decoupled = 1, .amsgrad = 1}}},
    {"RMSprop", {.kind = OPTIM_RMSprop, .rule = {.lr = 0.01f, .alpha = 0.9f, .eps = 1, .momentum = 0.5f}}},
};

/* The sum of the differences over that of the values */
static double apart_by(const Trained *a, const Trained *b) {
    double difference = 0, sum = 0;
    for (size_t i = 0; i < a->count && a->count == b->count; i++) {
        difference += fabs((double)a->values[i] - (double)b->values[i]);
        sum += fabs((double)a->values[i]);
    }
    return a->count == b->count && sum > 0 ? difference / sum : INFINITY;
}

/* Compiles, predicts and runs: is what was predicted what is measured? */
static int check_prediction(Device *d, const char *text, const Settings *s, Err *e) {
    float loss[2];
    Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), e);
    const int code = net ? truth_check(d, net, s, true, loss, e) : e->code;
    network_free(net);
    return code;
}

/* A processor's workspace, which has no say in what is cut, may set the peak; on the GPU it must fall in fp32. */
static void check_sliced(Device *d, const SlicedNet *net, const char *by, Settings s) {
    const bool narrow = s.precision == PREC_FP16 || s.precision == PREC_BF16;
    const double rounding = narrow ? 2e-2 : 1e-3;
    Err e = {0, ""};
    s.sliced_updates = false;
    Trained whole = train(d, net->text, &s, is_slice);
    s.sliced_updates = true;
    Trained sliced = train(d, net->text, &s, is_slice);
    const int code = check_prediction(d, net->text, &s, &e);
    const double apart = apart_by(&sliced, &whole), loss = fabs(sliced.loss[TRAINED_STEPS - 1] / whole.loss[TRAINED_STEPS - 1] - 1);
    const bool close = !code && !sliced.code && !whole.code && apart < rounding && loss < rounding && whole.loss[0] != whole.loss[TRAINED_STEPS - 1];
    const bool must = s.precision == PREC_FP32, falls = must && !strcmp(d->table->kind, "cuda");
    const size_t hundredth = whole.peak / 100, most = falls ? whole.peak - hundredth : whole.peak + hundredth;
    const bool less = (!must || sliced.counted >= 2) && sliced.peak <= most;
    if (!ok(close && !whole.counted && less, "%s: %s, %s, %s: %d slices", d->table->kind, net->what, by,
            precision_info(s.precision)->text, sliced.counted))
        printf("# %zu and %zu bytes; losses %g and %g, the rest %g apart; %s%s%s\n", sliced.peak, whole.peak,
               (double)sliced.loss[TRAINED_STEPS - 1], (double)whole.loss[TRAINED_STEPS - 1], apart, sliced.err.text, whole.err.text, e.text);
    free(sliced.values);
    free(whole.values);
}

static void test_training(Device *d) {
    for (size_t n = 0; n < ARRAY_LEN(nets); n++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            const size_t k = (n + (size_t)precision) % ARRAY_LEN(optimizers);
            Settings s = settings_default();
            s.precision = (Precision)precision;
            s.optimizer = optimizers[k].of;
            s.scaler.enabled = SAID_FALSE;
            check_sliced(d, &nets[n], optimizers[k].what, s);
        }
}

/* ---- what stays whole */

#define LARGE "Sequential{Flatten Linear(432, 320) GELU Linear(320, 10)}"

/* How many slices a program has. */
static int slices_of(Device *d, const char *text, const Settings *s) {
    int n = 0;
    Err e = {0, ""};
    Program *p = NULL;
    Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), &e);
    if (!net || compile(net, s, d, NULL, NULL, &p, &e)) printf("# %s\n", e.text);
    for (int i = 0; p && i < p->n_ops; i++) n += is_slice(&p->ops[i]);
    const bool made = p != NULL;
    program_free(p);
    network_free(net);
    return made ? n : -1;
}

static void test_whole(Device *d) {
    const Settings usual = settings_default();
    ok(slices_of(d, LARGE, &usual) >= 2, "%s: by default it is sliced", d->table->kind);
#define WHOLE(what, text, ...)                                                  \
    {                                                                           \
        Settings s = usual;                                                     \
        __VA_ARGS__;                                                            \
        ok(slices_of(d, text, &s) == 0, "%s: whole: %s", d->table->kind, what); \
    }
    WHOLE("where the setting is off", LARGE, s.sliced_updates = false)
    WHOLE("where all gradients count", LARGE, s.optimizer.rule.clip_norm = 1)
    WHOLE("where gradients are summed up", LARGE, s.accumulate = 2)
    WHOLE("where gradients are kept", LARGE, s.keep_gradients = true)
    WHOLE("where an overflow skips the update", LARGE, s.scaler.enabled = SAID_TRUE)
    WHOLE("where it is not trained", LARGE, s.eval = true)
    WHOLE("states of rows and columns", LARGE, s.optimizer.kind = OPTIM_Adafactor; s.optimizer.rule.d = 1)
    WHOLE("states of 8 bits", LARGE, s.optimizer.kind = OPTIM_Adam8bit; s.optimizer.rule.block_size = 256)
    WHOLE("states on the host", LARGE, s.optimizer.kind = OPTIM_PagedAdamW)
    WHOLE("slices of fewer than 65,536 numbers", "Sequential{Flatten Linear(432, 288) GELU Linear(288, 10)}", (void)s)
    WHOLE("an odd number of rows", "Sequential{Flatten Linear(432, 319) GELU Linear(319, 10)}", (void)s)
    WHOLE("rows that begin where no vector does", "Sequential{Conv2d(3, 3, 2) Flatten Linear(363, 370) GELU Linear(370, 10)}", (void)s)
    WHOLE("groups", "Sequential{Conv2d(3, 64, 3, stride=4) ReLU Conv2d(64, 1024, 3, groups=2) ReLU Flatten Linear(1024, 10)}", (void)s)
    WHOLE("a weight of two layers", "Sequential{Flatten Linear(432, 432) Linear(432, 432) Again Linear(432, 10)}", (void)s)
    WHOLE("what is small beside the activations", "Sequential{Conv2d(3, 64, 1) Conv2d(64, 32, 3) GELU Conv2d(32, 1024, 1) GELU Conv2d(1024, 2, 1) AdaptiveAvgPool2d(1) Flatten}", (void)s)
#undef WHOLE
}

/* ---- into how many slices */

/* At most 16, each of at least 65,536 numbers; and as few as bring the peak to within a hundredth of what more would. */
static const struct { const char *what, *text; int slices; } counts[] = {
    {"a weight that is nearly all", "Sequential{Flatten Linear(432, 4096) GELU Linear(4096, 10)}", 16},
    {"one of fewer numbers", "Sequential{Flatten Linear(432, 640) GELU Linear(640, 10)}", 4},
    {"two weights", "Sequential{Flatten Linear(432, 2048) GELU Linear(2048, 1024) GELU Linear(1024, 10)}", 24},
    {"many weights", "Sequential{Flatten Linear(432, 1024) GELU Linear(1024, 1024) GELU Linear(1024, 1024) GELU Linear(1024, 1024) GELU Linear(1024, 1024) GELU Linear(1024, 1024) GELU Linear(1024, 10)}", 42},
};

static void test_counts(Device *d) {
    const Settings usual = settings_default();
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        const int found = slices_of(d, counts[i].text, &usual);
        ok(found == counts[i].slices, "%s: %s: %d slices", d->table->kind, counts[i].what, found);
    }
}

int main(void) {
    each_device(test_training);
    each_device(test_counts);
    each_device(test_whole);
    return tap_done();
}
