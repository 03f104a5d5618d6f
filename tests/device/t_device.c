/* Every op of whole step programs on another device, compared with the CPU's (lockstep.h): every op, type and
 * activation that a program can have.
 *
 *   t_device                    the emulated CUDA device, if it was built; and devices with one fault each, which must be
 *                               found
 *   t_device DEVICE [NETWORK]   that device, with every network below or with one: t_device cuda:0 mixed */
#include <unistd.h>

#include "lockstep.h"
#include "reference/reference.h"
#include "sample.h"

static Device *cpu;

/* ---- what is run */

typedef struct Net { const char *name, *text, *loss; Shape input; } Net;
#define S2(a, b) {2, {a, b, 1, 1}}
#define S4(a, b, c, d) {4, {a, b, c, d}}

/* Odd sizes, tails of vectors, several blocks; each layer and each loss. */
static const Net nets[] = {
    {"mixed", NET_MIXED, "CrossEntropyLoss", S4(3, 3, 12, 12)},
    {"branches", NET_BRANCHES, "CrossEntropyLoss", S4(3, 3, 12, 12)},
    {"article", NET_ARTICLE, "CrossEntropyLoss(label_smoothing=0.1)", S4(5, 3, 32, 32)},
    {"one sample", "Sequential{Conv2d(1, 1, 1) ReLU Flatten Linear(1, 10)}", "CrossEntropyLoss", S4(1, 1, 1, 1)},
    {"odd images",
     "Sequential{Conv2d(3, 5, 3, stride=2, padding=1) Tanh MaxPool2d(3, stride=2, padding=1, ceil_mode=true)"
     " Conv2d(5, 7, 2x3, dilation=2) Sigmoid Conv2d(7, 14, 3, groups=7, padding=same) GELU(tanh)"
     " AvgPool2d(3, stride=2, padding=1, count_include_pad=false) AdaptiveAvgPool2d(3) LeakyReLU(0.2)}",
     "MSELoss", S4(3, 3, 37, 29)},
    {"wide rows", "Sequential{Linear(1537, 67) GELU Dropout Linear(67, 33) ReLU Linear(33, 17) Tanh Linear(17, 3)}",
     "BCEWithLogitsLoss(reduction=sum)", S2(5, 1537)},
    {"images to images", "Sequential{Conv2d(16, 64, 3, padding=1) ReLU Residual{Conv2d(64, 64, 1)} Dropout(0.1)}",
     "BCEWithLogitsLoss", S4(2, 16, 9, 11)},
    {"rolled", "Sequential{Roll(2, 1) Conv2d(3, 16, 3) Roll(-3, 1) StochasticDepth(0.3, row) Roll(1, 2) Conv2d(16, 7, 3)"
     " Roll(1, -1) StochasticDepth(0.2, batch)}", "MSELoss", S4(3, 3, 9, 11)},
    {"weighted", "Sequential{Linear(33, 10)}",
     "CrossEntropyLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1, label_smoothing=0.1)", S2(5, 33)},
    {"weighted logarithms", "Sequential{Linear(33, 10) LogSoftmax(1)}", "NLLLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1)",
     S2(5, 33)},
    {"logarithms", "Sequential{Conv2d(3, 37, 3) LogSoftmax(1)}", "NLLLoss", S4(2, 3, 7, 9)},
    {"absolute", "Sequential{Linear(33, 17)}", "L1Loss", S2(5, 33)},
    {"weights of 4 bits", "Sequential{Linear(33, 50) ReLU Linear4bit(50, 70, quant_type=nf4) Tanh Linear4bit(70, 9, bias=false, "
     "compress_statistics=false)}", "CrossEntropyLoss", S2(5, 33)},
    {"weights of 8 bits", "Sequential{Linear(33, 50) ReLU Linear8bitLt(50, 70) Tanh Linear8bitLt(70, 9, bias=false)}",
     "CrossEntropyLoss", S2(5, 33)},
    {"magnitudes", "Sequential{Graph{base_layer:Linear(33, 70)! lora_A.default:Linear(33, 5, bias=false)<-1>"
     " lora_B.default:Linear(5, 70, bias=false)<1> Scale(2)<2> Add<0,3> lora_magnitude_vector.default:DoraLinear(2)<4>} Tanh"
     " Linear(70, 9)}", "CrossEntropyLoss", S2(5, 33)},
    {"smooth", "Sequential{Linear(33, 17)}", "SmoothL1Loss(beta=0.3)", S2(5, 33)},
    {"robust", "Sequential{Linear(33, 17)}", "HuberLoss(delta=0.3)", S2(5, 33)},
    {"norms", NET_NORMS, "CrossEntropyLoss", S4(3, 3, 12, 12)},
    {"sequence", NET_SEQUENCE, "CrossEntropyLoss", {3, {3, 5, 6, 1}}},
    {"two sequences", NET_CROSS, "CrossEntropyLoss", {3, {3, 5, 6, 1}}},
    {"lines", NET_LINES, "CrossEntropyLoss", {3, {3, 3, 16, 1}}},
    {"patches", NET_PATCHES, "CrossEntropyLoss", S4(3, 3, 12, 12)},
    {"words", NET_WORDS, "CrossEntropyLoss", S2(2, 6)},
    {"a word of each sample", "Graph{Embedding(10, 5)<-1> SelectToken(max)<0,-1> Linear(5, 10)<1>}", "CrossEntropyLoss", S2(4, 6)},
    {"gated", "Sequential{Conv2d(3, 10, 3) GLU(1) Conv2d(5, 6, 3) GLU(2)}", "MSELoss", S4(3, 3, 10, 11)},
    {"bytes", "Sequential{FromBytes(mean=0.5:1:2, std=0.5:1:2) Conv2d(3, 16, 3) ReLU Conv2d(16, 7, 3)}", "MSELoss", S4(3, 3, 9, 11)},
    {"several outputs", NET_HEADS, LOSS_HEADS, S4(3, 3, 12, 12)},
    {"rows", "Sequential{Conv2d(3, 37, 3, padding=1) LeakyReLU Flatten}", "CrossEntropyLoss", S4(3, 3, 5, 9)},
    {"llama", NET_LLAMA, "CrossEntropyLoss", {3, {3, 5, 6, 1}}},
    {"tensor operations", NET_OWN, "CrossEntropyLoss", {3, {3, 5, 6, 1}}},
    {"a script's loss", "Sequential{Linear(33, 10)}", "Loss{LogSoftmax(1) Gather<0,-2> Scale(-1)<1>}", S2(5, 33)},
};

/* With loss_chunks */
static const Net in_parts[] = {
    {"a loss in parts", NET_VOCABULARY("Linear(8, 40)"), "CrossEntropyLoss(ignore_index=3)", S2(3, 6)},
    {"a tied head", NET_TIED, "CrossEntropyLoss(label_smoothing=0.1)", S2(3, 6)},
    {"nothing trained", "Sequential{Embedding(40, 8)! Linear(8, 40)! Flatten(0, 1)}", "CrossEntropyLoss", S2(3, 6)},
};

static const struct { const char *name; OptimKind kind; OptimRule rule; int accumulate; } updates[] = {
    {"Adam, accumulated", OPTIM_Adam,
     {.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}, 2},
    {"amsgrad", OPTIM_Adam, {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .amsgrad = 1}, 1},
    {"AdamW", OPTIM_AdamW,
     {.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decoupled = 1,
      .clip_norm = 0.5f}, 1},
    {"SGD with momentum", OPTIM_SGD, {.lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f, .weight_decay = 0.01f}, 1},
    {"SGD", OPTIM_SGD, {.lr = 0.1f, .clip_norm = 0.5f}, 1},
    {"RMSprop", OPTIM_RMSprop, {.lr = 0.001f, .momentum = 0.5f, .eps = 1e-8f, .alpha = 0.99f}, 1},
    {"AdamW8bit, amsgrad", OPTIM_AdamW8bit,
     {.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .decoupled = 1, .amsgrad = 1,
      .block_size = 49}, 1},
    {"Adagrad", OPTIM_Adagrad, {.lr = 0.01f, .eps = 1e-10f, .lr_decay = 0.1f}, 1},
    {"RAdam", OPTIM_RAdam, {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f, .weight_decay = 0.1f}, 1},
    {"NAdam", OPTIM_NAdam,
     {.lr = 0.002f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-3f, .momentum_decay = 0.004f, .nesterov = 1}, 1},
    {"Lion", OPTIM_Lion, {.lr = 0.0001f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f, .decoupled = 1}, 1},
    {"Adamax", OPTIM_Adamax, {.lr = 0.002f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-3f}, 1},
    {"Adadelta", OPTIM_Adadelta, {.lr = 0.1f, .alpha = 0.9f, .eps = 1e-3f, .clip_norm = 0.5f}, 1},
    {"Adam8bit", OPTIM_Adam8bit,
     {.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .block_size = 256}, 1},
    {"PagedAdam", OPTIM_PagedAdam, {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f}, 1},
    {"PagedAdamW8bit", OPTIM_PagedAdamW8bit,
     {.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .decoupled = 1, .block_size = 256}, 2},
    {"Rule", OPTIM_Rule, {.lr = 0.01f, .clip_norm = 0.5f}, 1},
    {"Adafactor", OPTIM_Adafactor, {.lr = 0.01f, .eps2 = 1e-3f, .beta2_decay = -0.8f, .d = 1, .clip_norm = 0.5f}, 1},
};

/* wrong < 0: could not be compiled */
static Lockstep check(Device *device, const Net *net, int chunks, Precision precision, size_t update) {
    Settings s = settings_default();
    Lockstep l = {.cpu = cpu, .device = device, .precision = precision};
    Err e = {0, ""};
    s.precision = precision;
    s.loss_chunks = chunks;
    s.optimizer = (Optimizer){.kind = updates[update].kind, .rule = updates[update].rule};
    s.accumulate = updates[update].accumulate;
    s.offload = update % 2 ? OFFLOAD_ALL : OFFLOAD_NONE;
    s.offload_least = 0;
    s.recompute_light = update % 3 != 2;
    s.recompute_least = 0;
    s.page_least = 1;
    Network *n = net_new(net->text, net->loss, net->input, &e);
    const bool made = n && (s.optimizer.kind != OPTIM_Rule || formula_read(&s.optimizer.formula, REF_FORMULA, &e) == OK);
    if (made && compile(n, &s, cpu, NULL, NULL, &l.p, &e) == OK) lockstep_run(&l);
    else {
        l.wrong = -1;
        snprintf(l.problem, sizeof l.problem, "%.200s", e.text);
    }
    network_free(n);
    return l;
}

static void check_net(Device *device, size_t i, const Net *net, int chunks) {
    for (int precision = 0; precision < PREC_COUNT; precision++) {
        size_t u = (i + (size_t)precision) % ARRAY_LEN(updates);
        Lockstep l = check(device, net, chunks, (Precision)precision, u);
        if (!ok(l.wrong == 0, "%s, %s, %s: %d of %d outputs have the CPU's bits", net->name,
                precision_info((Precision)precision)->text, updates[u].name, l.same, l.compared))
            printf("# %d wrong, the first: %s\n", l.wrong, l.problem);
        fflush(stdout);
    }
}

static void check_covered(void) {
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const int *n = seen[kind];
        const OpInfo *info = op_info((OpKind)kind);
        bool forward = info->autocast == AUTOCAST_LOW || info->autocast == AUTOCAST_SAME;
        bool enough = forward ? n[DT_F32] && n[DT_BF16] && n[DT_F16] : n[DT_F32] || n[DT_BF16] || n[DT_F16];
        if (op_exchanges((OpKind)kind)) continue; /* t_ranks has several ranks */
        if (kind != OP_view && kind != OP_batchnorm_eval) /* no step of training has it */
            ok(enough, "%s was run %d times in f32, %d in bf16, %d in f16", info->name, n[DT_F32], n[DT_BF16],
               n[DT_F16]);
    }
}

/* ---- the CPU with a fault, to see that faults are found */

typedef enum Fault { NO_FAULT, WRONG_VALUE, WRITES_BEYOND, CHANGES_INPUT, VARIES, FAILS, FAULTS } Fault;
typedef struct Faulty { Device base; Fault fault; int runs; } Faulty;

static int faulty_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d;
    KArgs a = *args;
    a.device = cpu;
    return cpu->table->prepare(cpu, &a, limit, state, workspace, e);
}

static int faulty_run(Device *d, const KArgs *args, Err *e) {
    Faulty *f = (Faulty *)d;
    KArgs a = *args;
    a.device = cpu;
    int code = cpu->table->run(cpu, &a, e);
    if (a.kind != OP_act_dx || code) return code;
    size_t bytes = (size_t)a.out[0].count * dtype_size(a.out[0].dtype);
    uint8_t *y = a.out[0].data, *kept = a.in[0].data == y ? a.in[1].data : a.in[0].data; /* one of them may be overwritten */
    switch (f->fault) {
    case WRONG_VALUE: y[bytes - 1] ^= 0x40; break;                    /* the last element's exponent */
    case WRITES_BEYOND: y[bytes] = 0; break;
    case CHANGES_INPUT: kept[0] ^= 1; break;
    case VARIES: if (f->runs++ % 2) y[0] ^= 1; break;
    case FAILS: return err_set(e, ERR_DEVICE, "the device is gone");
    default: break;
    }
    return OK;
}

static void faulty_trim(Device *d, bool all) {
    (void)d;
    cpu->table->trim(cpu, all);
}

static int faulty_sync(Device *d, Err *e) {
    (void)d;
    return cpu->table->sync(cpu, e);
}

static bool faulty_overwrites(Device *d, const KArgs *args, size_t *more) {
    (void)d;
    return cpu->table->overwrites(cpu, args, more);
}

static void test_faults(void) {
    static const char *const told[FAULTS] = {"", ": found", "bytes around operand", "input", "the second time",
                                             "the device is gone"};
    for (int fault = 0; fault < FAULTS; fault++) {
        DeviceTable table = *cpu->table;
        Faulty f = {.base = {.table = &table}, .fault = (Fault)fault};
        table.run = faulty_run;
        table.prepare = faulty_prepare;
        table.overwrites = faulty_overwrites;
        table.trim = faulty_trim;
        table.sync = faulty_sync;
        Lockstep l = check(&f.base, &nets[0], 1, PREC_AMP_BF16, 0);
        if (!fault) ok(l.wrong == 0 && l.same == l.compared, "the CPU agrees with itself, bit for bit");
        else has_text(l.problem, told[fault], "a fault is found");
    }
}

/* ---- which device */

/* only: one network's name, or NULL */
static void check_device(const char *name, const char *only) {
    Device *device = NULL;
    Err e = {0, ""};
    if (!ok(device_open(name, &device, &e) == OK, "%s opens", name)) {
        printf("# %s\n", e.text);
        return;
    }
    memset(seen, 0, sizeof seen);
    if (ok(device->table->alignment <= GUARD, "%s: guards keep its alignment", name)) {
        for (size_t i = 0; i < ARRAY_LEN(nets); i++)
            if (only ? !strcmp(only, nets[i].name) : sampled(i, ARRAY_LEN(nets))) check_net(device, i, &nets[i], 1);
        for (size_t i = 0; i < ARRAY_LEN(in_parts); i++)
            if (only ? !strcmp(only, in_parts[i].name) : sampled(i, ARRAY_LEN(in_parts))) check_net(device, i, &in_parts[i], 3);
        if (!only && !sample_most()) check_covered();
    }
    device_close(device);
}

static void check_emulated(void) {
    char path[4096];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/emulate/memtide_cuda.so", build ? build : "build");
    if (access(path, R_OK)) skip("the emulated CUDA device", "it was not built");
    else if (ok(!setenv("MEMTIDE_CUDA", path, 1), "the emulated plugin is chosen")) check_device("cuda:0", NULL);
}

int main(int argc, char **argv) {
    Err e = {0, ""};
    if (device_open("cpu", &cpu, &e)) {
        printf("Bail out! no CPU: %s\n", e.text);
        return 1;
    }
    DeviceTable table = *cpu->table;
    table.rounds = NULL; /* a program must suit both devices: only a CPU may round weights */
    cpu->table = &table;
    if (argc > 1) check_device(argv[1], argc > 2 ? argv[2] : NULL);
    else {
        test_faults();
        check_emulated();
    }
    device_close(cpu);
    return tap_done();
}
