/* Every op of whole step programs on two devices in lockstep: the CPU runs a step, and before each of its ops the other
 * device gets the same bytes, runs the same op and must come to the same result.
 *
 * So operands are what ops meet in use (labels, window positions, optimizer states), and no op, type or activation that
 * a program can hold is left out. On the other device operands and workspace stand between guard bytes, outputs are
 * junk before the run, a second run and a run in place must give the same bits, inputs must stay.
 *
 *   t_device          the emulated CUDA device, where it was built; and devices with a fault each, which must be found
 *   t_device DEVICE   that device: t_device cuda:0 */
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "nets.h"
#include "rng.h"
#include "tap.h"
#include "view.h"

enum { GUARD = 512, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3, OPERANDS = OP_IN + OP_OUT, WORKSPACE = OPERANDS, SLOTS };

static Device *cpu;

/* ---- what is run */

typedef struct Net { const char *name, *text, *loss; Shape input; } Net;
#define S2(a, b) {2, {a, b, 1, 1}}
#define S4(a, b, c, d) {4, {a, b, c, d}}

/* Odd sizes, tails of vectors, several blocks; each layer and each loss. */
static const Net nets[] = {
    {"mixed", NET_MIXED, "CrossEntropyLoss", S4(3, 3, 12, 12)},
    {"article", NET_ARTICLE, "CrossEntropyLoss(label_smoothing=0.1)", S4(5, 3, 32, 32)},
    {"one sample", "Sequential{Conv2d(1, 1, 1) ReLU Flatten Linear(1, 10)}", "CrossEntropyLoss", S4(1, 1, 1, 1)},
    {"odd images",
     "Sequential{Conv2d(3, 5, 3, stride=2, padding=1) Tanh MaxPool2d(3, stride=2, padding=1, ceil_mode=true)"
     " Conv2d(5, 7, 2x3, dilation=2) Sigmoid Conv2d(7, 14, 3, groups=7, padding=same) GELU(tanh)"
     " AvgPool2d(3, stride=2, padding=1, count_include_pad=false) AdaptiveAvgPool2d(3) LeakyReLU(0.2)}",
     "MSELoss", S4(3, 3, 37, 29)},
    {"wide rows", "Sequential{Linear(4001, 67) GELU Dropout Linear(67, 33) ReLU Linear(33, 17) Tanh Linear(17, 3)}",
     "BCEWithLogitsLoss(reduction=sum)", S2(5, 4001)},
    {"images to images", "Sequential{Conv2d(16, 64, 3, padding=1) ReLU Residual{Conv2d(64, 64, 1)} Dropout(0.1)}",
     "BCEWithLogitsLoss", S4(2, 16, 9, 11)},
    {"rows", "Sequential{Conv2d(3, 37, 3, padding=1) LeakyReLU Flatten}", "MSELoss", S4(3, 3, 5, 9)},
};

static const struct { const char *name; OptimKind kind; OptimRule rule; int accumulate; } updates[] = {
    /*                            lr momentum dampening decay beta1 beta2 eps nesterov decoupled */
    {"Adam, accumulated",    OPTIM_Adam,  {0.01f, 0, 0, 0.1f, 0.9f, 0.999f, 1e-8f, 0, 0}, 2},
    {"AdamW",                OPTIM_AdamW, {0.01f, 0, 0, 0.1f, 0.9f, 0.999f, 1e-8f, 0, 1}, 1},
    {"SGD with momentum",    OPTIM_SGD,   {0.1f, 0.9f, 0.3f, 0.01f, 0, 0, 0, 0, 0}, 1},
    {"SGD",                  OPTIM_SGD,   {0.1f, 0, 0, 0, 0, 0, 0, 0, 0}, 1},
};

/* ---- one program at work */

/* One storage of an op: operands that share it share a slot. image: GUARD bytes, the storage, GUARD bytes and more. */
typedef struct Slot { int buf; size_t bytes, image; uint8_t *before, *first, *now; char *device; } Slot;

typedef struct Lockstep {
    Device *device;
    Program *p;
    Precision precision;
    uint8_t **storage;   /* [n_bufs], the CPU's; of roots only */
    int at;              /* the op */
    KArgs args;          /* of the other device */
    Slot slot[SLOTS];
    int n_slots, of[SLOTS]; /* of[operand or WORKSPACE]: its slot, -1 = absent */
    int same, compared, wrong; /* outputs */
    char problem[256];   /* the first one */
} Lockstep;

static int seen[OP_KIND_COUNT][DT_COUNT]; /* by the type of the first operand of a floating type */

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static void problem(Lockstep *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem(Lockstep *l, const char *format, ...) {
    const Op *op = &l->p->ops[l->at];
    va_list args;
    if (l->wrong++) return;
    int n = snprintf(l->problem, sizeof l->problem, "op %d %s %s: ", l->at, op_info(op->kind)->name, op->path);
    va_start(args, format);
    vsnprintf(l->problem + n, sizeof l->problem - (size_t)n, format, args);
    va_end(args);
}

static int operand_buf(const Op *op, int k) { return k < OP_IN ? op->in[k] : op->out[k - OP_IN]; }
static View *operand_view(KArgs *a, int k) { return k < OP_IN ? &a->in[k] : &a->out[k - OP_IN]; }

/* ---- first values */

static double uniform(uint32_t *drawn) { return rng_uniform(philox(11, RNG_DATA, 0, 0, (*drawn)++).x[0]); }

/* Weights as large as PyTorch's; optimizer states positive, as a mean of squares is. */
static void fill_persistent(const Program *p, int b, uint8_t *to, uint32_t *drawn) {
    const Buf *buf = &p->bufs[b];
    int64_t n = shape_elements(&buf->shape);
    double bound = buf->shape.rank > 1 ? 1 / sqrt((double)(n / buf->shape.dim[0])) : 0.5;
    if (!dtype_is_float(buf->dtype)) memset(to, 0, buf->bytes);
    for (int64_t i = 0; i < n && dtype_is_float(buf->dtype); i++) {
        double x = buf->category == CAT_OPTIMIZER ? 0.01 * uniform(drawn) : bound * (2 * uniform(drawn) - 1);
        dtype_store(buf->dtype, to, (size_t)i, (float)x);
    }
    if (b == p->state) memcpy(to, &(StepState){256, 3, 0, 4}, sizeof(StepState));
}

static void lockstep_open(Lockstep *l) {
    const Program *p = l->p;
    uint32_t drawn = 0;
    l->storage = must(calloc((size_t)p->n_bufs, sizeof *l->storage));
    for (int b = 0; b < p->n_bufs; b++) {
        if (program_root(p, b) != b) continue;
        l->storage[b] = must(aligned_alloc(GUARD, align_up(max_size(p->bufs[b].bytes, 1), GUARD)));
        memset(l->storage[b], JUNK_BYTE, p->bufs[b].bytes);
        if (p->bufs[b].kind == BUF_PERSISTENT) fill_persistent(p, b, l->storage[b], &drawn);
    }
}

static void lockstep_close(Lockstep *l) {
    for (int b = 0; b < l->p->n_bufs; b++) free(l->storage[b]);
    free(l->storage);
    program_free(l->p);
    l->device->table->trim(l->device);
}

static void feed(Lockstep *l, uint32_t step, uint32_t micro) {
    const Program *p = l->p;
    Err e;
    float *x = must(malloc((size_t)shape_elements(&p->bufs[p->input].shape) * 4));
    void *t = must(malloc((size_t)shape_elements(&p->bufs[p->target].shape) * 4));
    net_feed(l->p, step, micro, x, t, &e);
    view_pack(&p->bufs[p->input], x, l->storage[program_root(p, p->input)]);
    view_pack(&p->bufs[p->target], t, l->storage[program_root(p, p->target)]);
    free(x);
    free(t);
}

/* ---- slots */

static int slot_new(Lockstep *l, int buf, size_t bytes, Err *e) {
    const DeviceTable *d = l->device->table;
    for (int s = 0; s < l->n_slots; s++)
        if (l->slot[s].buf == buf) return s;
    Slot *s = &l->slot[l->n_slots];
    void *block = NULL;
    s->buf = buf;
    s->bytes = bytes;
    s->image = align_up(bytes, GUARD) + 2 * GUARD;
    if (d->alloc(l->device, s->image, &block, e)) return -1;
    s->device = block;
    s->before = must(malloc(s->image));
    s->first = must(malloc(s->image));
    s->now = must(malloc(s->image));
    memset(s->before, GUARD_BYTE, s->image);
    memset(s->before + GUARD, JUNK_BYTE, bytes);
    return l->n_slots++;
}

/* Slots hold what the CPU's storage does; junk where an output is not read. */
static int slots_open(Lockstep *l, size_t workspace, Err *e) {
    const Program *p = l->p;
    const Op *op = &p->ops[l->at];
    l->n_slots = 0;
    for (int k = 0; k < SLOTS; k++) {
        int buf = k < OPERANDS ? operand_buf(op, k) : NO_BUF;
        bool read = k < OP_IN || (k < OPERANDS && op_info(op->kind)->out_updated[k - OP_IN]);
        l->of[k] = -1;
        if (k == WORKSPACE ? workspace == 0 : buf == NO_BUF) continue;
        if (k < OPERANDS) buf = program_root(p, buf);
        l->of[k] = slot_new(l, buf, k < OPERANDS ? p->bufs[buf].bytes : workspace, e);
        if (l->of[k] < 0) return e->code;
        if (read) memcpy(l->slot[l->of[k]].before + GUARD, l->storage[buf], p->bufs[buf].bytes);
    }
    return OK;
}

static void slots_close(Lockstep *l) {
    for (int s = 0; s < l->n_slots; s++) {
        free(l->slot[s].before);
        free(l->slot[s].first);
        free(l->slot[s].now);
        l->device->table->free(l->device, l->slot[s].device, l->slot[s].image);
    }
    l->n_slots = 0;
}

/* The op on the other device, from fresh storage; in place: output 0 stands where input 0 does. */
static int run_device(Lockstep *l, bool inplace, Err *e) {
    const DeviceTable *d = l->device->table;
    KArgs a = l->args;
    int code = OK;
    for (int s = 0; s < l->n_slots && !code; s++)
        code = d->upload(l->device, l->slot[s].device, l->slot[s].before, l->slot[s].image, e);
    for (int k = 0; k < OPERANDS; k++)
        if (l->of[k] >= 0) operand_view(&a, k)->data = l->slot[l->of[k]].device + GUARD;
    if (inplace) a.out[0].data = a.in[0].data;
    if (l->of[WORKSPACE] >= 0) a.workspace = l->slot[l->of[WORKSPACE]].device + GUARD;
    if (!code) code = d->run(l->device, &a, e);
    if (!code) code = d->sync(l->device, e);
    for (int s = 0; s < l->n_slots && !code; s++)
        code = d->download(l->device, l->slot[s].now, l->slot[s].device, l->slot[s].image, e);
    return code;
}

/* ---- is it right? */

static bool is_written(const Lockstep *l, int slot) {
    bool written = slot == l->of[WORKSPACE];
    for (int k = OP_IN; k < OPERANDS; k++) written |= l->of[k] == slot;
    return written;
}

static void check_surroundings(Lockstep *l) {
    for (int s = 0; s < l->n_slots; s++) {
        const Slot *t = &l->slot[s];
        size_t end = GUARD + t->bytes;
        if (memcmp(t->now, t->before, GUARD) || memcmp(t->now + end, t->before + end, t->image - end))
            problem(l, "bytes around operand %s changed", t->buf == NO_BUF ? "workspace" : l->p->bufs[t->buf].name);
        if (!is_written(l, s) && memcmp(t->now + GUARD, t->before + GUARD, t->bytes))
            problem(l, "input %s changed", l->p->bufs[t->buf].name);
    }
}

/* what: "the second time"; output 0 may stand in another slot */
static void check_same(Lockstep *l, int slot_of_first, const char *what) {
    for (int k = OP_IN; k < OPERANDS; k++) {
        if (l->of[k] < 0) continue;
        const Slot *first = &l->slot[l->of[k]], *now = k == OP_IN ? &l->slot[slot_of_first] : first;
        if (memcmp(first->first + GUARD, now->now + GUARD, first->bytes))
            problem(l, "output %s differs %s", l->p->bufs[first->buf].name, what);
    }
}

static double magnitude(const View *v, const void *data) {
    double largest = 0;
    for (int64_t i = 0; i < v->count && dtype_is_float(v->dtype); i++)
        largest = fmax(largest, fabs((double)dtype_load(v->dtype, data, (size_t)i)));
    return isfinite(largest) ? largest : 0;
}

static const void *expected_of(const Lockstep *l, int k) {
    return l->storage[program_root(l->p, operand_buf(&l->p->ops[l->at], k))];
}

static bool is_product(OpKind kind) { return kind >= OP_conv2d && kind <= OP_linear_dw; }

/* A sum of n products of numbers up to a and b, taken in any order in fp32 on both sides, each off by at most
 * 2^-24 n a b (far from it: rounding errors are random); TF32 rounds every factor to 11 bits. The sum of a bias
 * gradient may be over numbers that were rounded to 16 bits, or not yet. */
static double product_error(Lockstep *l, int k, const double *ulp) {
    Op op = l->p->ops[l->at];
    const View *y = &l->args.out[k - OP_IN];
    const ActAttr *fused = attr_fused(op.kind, &op.attr);
    op_cost(l->p, &op);
    if (k > OP_IN) { /* db: of dy, or of the op's own dx */
        int from = op.kind == OP_conv2d_dx || op.kind == OP_linear_dx ? OP_IN : 1;
        const View *v = operand_view(&l->args, from);
        double n = (double)v->count / (double)y->count, a = magnitude(v, expected_of(l, from));
        return a * (0x1p-23 * (n + 8) + ulp[v->dtype] * sqrt(n));
    }
    double n = op.flops / 2 / (double)y->count, tf32 = l->precision == PREC_TF32 ? 0x1p-10 * sqrt(n) : 0;
    double a = magnitude(&l->args.in[0], expected_of(l, 0)), b = magnitude(&l->args.in[1], expected_of(l, 1));
    double polynomial = fused && fused->act > ACT_LEAKY ? 2e-5 : 0; /* oneDNN's sigmoid, tanh and erf */
    return a * b * (0x1p-23 * (n + 8) + tf32) + polynomial;
}

/* Both sides round to the output's type, products twice where an activation's derivative comes behind; and a few
 * roundings in fp32 before that, as large as in the largest element where terms cancel. */
static void compare(Lockstep *l, int k) {
    static const double ulp[DT_COUNT] = {[DT_BF16] = 1.0 / 128, [DT_F16] = 1.0 / 1024};
    const Slot *s = &l->slot[l->of[k]];
    const View *v = operand_view(&l->args, k);
    const uint8_t *expected = expected_of(l, k), *found = s->first + GUARD;
    bool product = is_product(l->args.kind);
    double few = product ? product_error(l, k, ulp) : 4e-6 * magnitude(v, expected);
    double unit = ulp[v->dtype] * (product ? 2 : 1);
    l->compared++;
    if (!memcmp(expected, found, s->bytes)) {
        l->same++;
        return;
    }
    if (!dtype_is_float(v->dtype) || s->buf == l->p->state) {
        problem(l, "output %s differs", l->p->bufs[s->buf].name);
        return;
    }
    if (v->dtype == DT_F16) few += 0x1p-24; /* the distance of the smallest ones */
    for (int64_t i = 0; i < v->count; i++) {
        double a = dtype_load(v->dtype, expected, (size_t)i), b = dtype_load(v->dtype, found, (size_t)i);
        if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= unit * fabs(a) + few) continue;
        problem(l, "output %s, element %lld of %lld: found %.9g, expected %.9g", l->p->bufs[s->buf].name, (long long)i,
                (long long)v->count, b, a);
        return;
    }
}

/* ---- one op on both */

static void run_cpu(Lockstep *l, uint32_t micro) {
    const Op *op = &l->p->ops[l->at];
    KArgs a = l->args;
    Err e = {0, ""};
    a.device = cpu;
    a.state = op->state;
    a.micro = micro;
    for (int k = 0; k < OPERANDS; k++)
        if (l->of[k] >= 0) operand_view(&a, k)->data = l->storage[program_root(l->p, operand_buf(op, k))];
    a.workspace = op->workspace == NO_BUF ? NULL : l->storage[op->workspace];
    a.workspace_bytes = op->workspace == NO_BUF ? 0 : l->p->bufs[op->workspace].bytes;
    if (cpu->table->run(cpu, &a, &e)) problem(l, "the CPU: %s", e.text);
}

/* Output 0 could take over the storage of input 0, and does not here. */
static bool can_be_inplace(const Lockstep *l) {
    int uses = 0;
    for (int k = 0; k < OPERANDS; k++) uses += l->of[k] == l->of[0];
    return op_info(l->args.kind)->inplace == 0 && uses == 1 && l->of[0] >= 0 && l->of[OP_IN] >= 0
           && l->slot[l->of[0]].bytes == l->slot[l->of[OP_IN]].bytes;
}

static void note_type(Lockstep *l) {
    DType t = DT_COUNT;
    for (int k = 0; k < OPERANDS && t == DT_COUNT; k++)
        if (l->of[k] >= 0 && dtype_is_float(operand_view(&l->args, k)->dtype)) t = operand_view(&l->args, k)->dtype;
    seen[l->args.kind][t == DT_COUNT ? DT_F32 : t]++; /* without any: of whole numbers */
}

static int run_both(Lockstep *l, uint32_t micro, Err *e) {
    const DeviceTable *d = l->device->table;
    KArgs *a = &l->args;
    view_args(l->p, &l->p->ops[l->at], a);
    a->device = l->device;
    a->state = NULL;
    a->seed = 42;
    a->micro = micro;
    int code = op_info(a->kind)->prepared
             ? d->prepare(l->device, a, settings_default().workspace_limit, &a->state, &a->workspace_bytes, e) : OK;
    if (!code) code = slots_open(l, a->workspace_bytes, e);
    if (!code) run_cpu(l, micro);
    if (!code) code = run_device(l, false, e);
    if (code) return code;
    note_type(l);
    check_surroundings(l);
    for (int s = 0; s < l->n_slots; s++) memcpy(l->slot[s].first, l->slot[s].now, l->slot[s].image);
    for (int k = OP_IN; k < OPERANDS; k++)
        if (l->of[k] >= 0) compare(l, k);
    code = run_device(l, false, e);
    if (!code) check_same(l, l->of[OP_IN], "the second time");
    if (code || !can_be_inplace(l)) return code;
    code = run_device(l, true, e);
    if (!code) check_same(l, l->of[0], "in place");
    return code;
}

static void run_ops(Lockstep *l, int from, int to, uint32_t micro) {
    for (l->at = from; l->at < to; l->at++) {
        Err e = {0, ""};
        if (l->p->ops[l->at].kind == OP_view) continue; /* no operation: a claim about storage */
        if (run_both(l, micro, &e)) problem(l, "%s", e.text);
        slots_close(l);
    }
}

/* Two steps: in the second one, states are those of the first. */
static void run_program(Lockstep *l) {
    lockstep_open(l);
    for (uint32_t step = 0; step < 2; step++) {
        for (uint32_t micro = 0; micro < (uint32_t)l->p->micro_batches; micro++) {
            feed(l, step, micro);
            run_ops(l, 0, l->p->body_end, micro);
        }
        run_ops(l, l->p->body_end, l->p->n_ops, 0);
    }
    lockstep_close(l);
}

/* wrong < 0: could not be compiled */
static Lockstep check(Device *device, const Net *net, Precision precision, size_t update) {
    Settings s = settings_default();
    Lockstep l = {.device = device, .precision = precision};
    Err e = {0, ""};
    s.precision = precision;
    s.optimizer = (Optimizer){updates[update].kind, updates[update].rule};
    s.accumulate = updates[update].accumulate;
    Network *n = net_new(net->text, net->loss, net->input, &e);
    if (n && compile(n, &s, cpu, NULL, NULL, &l.p, &e) == OK) run_program(&l);
    else {
        l.wrong = -1;
        snprintf(l.problem, sizeof l.problem, "%.200s", e.text);
    }
    network_free(n);
    return l;
}

static void check_device(Device *device) {
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < ARRAY_LEN(nets); i++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            size_t u = (i + (size_t)precision) % ARRAY_LEN(updates);
            Lockstep l = check(device, &nets[i], (Precision)precision, u);
            if (!ok(l.wrong == 0, "%s, %s, %s: %d of %d outputs have the CPU's bits", nets[i].name,
                    precision_info((Precision)precision)->text, updates[u].name, l.same, l.compared))
                printf("# %d wrong, the first: %s\n", l.wrong, l.problem);
            fflush(stdout);
        }
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const int *n = seen[kind];
        const OpInfo *info = op_info((OpKind)kind);
        bool forward = info->autocast == AUTOCAST_LOW || info->autocast == AUTOCAST_SAME;
        bool enough = forward ? n[DT_F32] && n[DT_BF16] && n[DT_F16] : n[DT_F32] || n[DT_BF16] || n[DT_F16];
        if (kind != OP_view)
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
    uint8_t *y = a.out[0].data, *x = a.in[0].data;
    switch (f->fault) {
    case WRONG_VALUE: y[bytes - 1] ^= 0x40; break;                    /* the last element's exponent */
    case WRITES_BEYOND: y[bytes] = 0; break;
    case CHANGES_INPUT: if (x != y) x[0] ^= 1; break;
    case VARIES: if (f->runs++ % 2) y[0] ^= 1; break;
    case FAILS: return err_set(e, ERR_DEVICE, "the device is gone");
    default: break;
    }
    return OK;
}

static void faulty_trim(Device *d) {
    (void)d;
    cpu->table->trim(cpu);
}

static void test_faults(void) {
    static const char *const told[FAULTS] = {"", ": found", "bytes around operand", "input", "the second time",
                                             "the device is gone"};
    for (int fault = 0; fault < FAULTS; fault++) {
        DeviceTable table = *cpu->table;
        Faulty f = {{&table}, (Fault)fault, 0};
        table.run = faulty_run;
        table.prepare = faulty_prepare;
        table.trim = faulty_trim;
        Lockstep l = check(&f.base, &nets[0], PREC_AMP_BF16, 0);
        if (!fault) ok(l.wrong == 0 && l.same == l.compared, "the CPU agrees with itself, bit for bit");
        else has_text(l.problem, told[fault], "a fault is found");
    }
}

/* ---- which device */

static int check_named(const char *name) {
    Device *device = NULL;
    Err e = {0, ""};
    if (device_open(name, &device, &e)) {
        skip(name, e.text);
        return 0;
    }
    if (ok(device->table->alignment <= GUARD, "%s: guards keep its alignment", name)) check_device(device);
    device_close(device);
    return 1;
}

static void check_emulated(void) {
    char path[4096];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/emulate/memtide_cuda.so", build ? build : "build");
    if (access(path, R_OK)) {
        skip("the emulated CUDA device", "it was not built");
        return;
    }
    if (!setenv("MEMTIDE_CUDA", path, 1)) ok(check_named("cuda:0"), "the emulated CUDA device opens");
}

int main(int argc, char **argv) {
    Err e = {0, ""};
    if (device_open("cpu", &cpu, &e)) {
        printf("Bail out! no CPU: %s\n", e.text);
        return 1;
    }
    if (argc > 1) check_named(argv[1]);
    else {
        test_faults();
        check_emulated();
    }
    device_close(cpu);
    return tap_done();
}
