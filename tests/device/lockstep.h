/* lockstep.h: a program's steps on two devices at once: the CPU runs a step; before each of its ops the other device
 * gets the same bytes and runs the same op, which must give the same result.
 *
 * So ops get real operands (labels, window positions, optimizer states). On the other device operands and workspace
 * stand between guard bytes, and outputs are junk before the run. A second run and a run in place must give the same
 * bits, and inputs must not change. */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <stdlib.h>

#include "memory/device.h"
#include "unit/nets.h"
#include "math/rng.h"
#include "tap.h"
#include "program/view.h"

enum { GUARD = 512, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3, OPERANDS = OP_IN + OP_OUT, WORKSPACE = OPERANDS, SLOTS };

/* One storage of an op: operands that share it share a slot. image: GUARD bytes, the storage, GUARD bytes and more. */
typedef struct Slot { int buf; size_t bytes, image; uint8_t *before, *first, *now; char *device; } Slot;

typedef struct Lockstep {
    Device *cpu, *device;
    Program *p;          /* compiled for the CPU */
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

/* Weights are as large as PyTorch's. Optimizer states are positive, as a mean of squares is; or any codes. */
static void fill_persistent(const Program *p, int b, uint8_t *to, uint32_t *drawn) {
    const Buf *buf = &p->bufs[b];
    int64_t n = shape_elements(&buf->shape);
    double bound = buf->shape.rank > 1 ? 1 / sqrt((double)(n / buf->shape.dim[0])) : 0.5;
    if (!dtype_is_float(buf->dtype)) memset(to, 0, buf->bytes);
    for (size_t i = 0; i < buf->bytes && buf->dtype == DT_U8; i++) to[i] = (uint8_t)(256 * uniform(drawn));
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
    l->device->table->trim(l->device, true);
}

static void feed(Lockstep *l, uint32_t step, uint32_t micro) {
    const Program *p = l->p;
    Err e;
    float *x = must(malloc((size_t)shape_elements(&p->bufs[p->inputs[0]].shape) * 4));
    void *t = must(malloc((size_t)shape_elements(&p->bufs[p->target].shape) * 4));
    net_feed(l->p, step, micro, x, t, &e);
    if (p->bufs[p->inputs[0]].dtype == DT_I32) /* indices come as numbers */
        for (int64_t i = 0; i < shape_elements(&p->bufs[p->inputs[0]].shape); i++) {
            int32_t index = (int32_t)x[i];
            memcpy(&x[i], &index, sizeof index);
        }
    uint8_t *bytes = (uint8_t *)x;
    for (int64_t i = 0; p->bufs[p->inputs[0]].dtype == DT_U8 && i < shape_elements(&p->bufs[p->inputs[0]].shape); i++)
        bytes[i] = (uint8_t)(255 * fabsf(x[i] - truncf(x[i])));
    view_pack(&p->bufs[p->inputs[0]], x, l->storage[program_root(p, p->inputs[0])]);
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

/* Must output 0 have a slot of its own, though the CPU has it where an input lies? */
static bool stands_apart(const Lockstep *l) {
    const DeviceTable *d = l->device->table;
    const Op *op = &l->p->ops[l->at];
    const OpInfo *info = op_info(op->kind);
    size_t more = 0;
    if (!info->asks || op->in[info->inplace] == NO_BUF) return false;
    if (program_root(l->p, op->in[info->inplace]) != program_root(l->p, op->out[0])) return false;
    return !d->overwrites || !d->overwrites(l->device, &l->args, &more) || more;
}

/* Copies the CPU's storage to the slots; outputs that are not read become junk. */
static int slots_open(Lockstep *l, size_t workspace, Err *e) {
    const Program *p = l->p;
    const Op *op = &p->ops[l->at];
    l->n_slots = 0;
    for (int k = 0; k < SLOTS; k++) {
        int buf = k < OPERANDS ? operand_buf(op, k) : NO_BUF;
        bool read = k < OP_IN || (k < OPERANDS && op_info(op->kind)->out[k - OP_IN].updated);
        l->of[k] = -1;
        if (k == WORKSPACE ? workspace == 0 : buf == NO_BUF) continue;
        if (k < OPERANDS && !(k == OP_IN && stands_apart(l))) buf = program_root(p, buf);
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

/* Runs the op on the other device, from fresh storage; in place: output 0 has the storage of input 0. */
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

/* The largest magnitude of a product's weight, or a bound: of codes that of the scales */
static double weight_magnitude(const Lockstep *l) {
    const bool codes = l->args.kind == OP_linear_q || l->args.kind == OP_linear_q_dx;
    double sum = codes ? 0 : magnitude(&l->args.in[1], expected_of(l, 1));
    for (int k = 2; codes && k <= 6; k++)
        if (k != 3 && k != 5 && l->args.in[k].count) sum += magnitude(&l->args.in[k], expected_of(l, k));
    return sum;
}

static bool is_product(OpKind kind) {
    return (kind >= OP_conv2d && kind <= OP_linear_q_dx) || kind == OP_conv_transpose;
}

/* A bias gradient `db`: the sum of n numbers up to a, of operand `from`. All may have one sign: then partial sums are
 * up to n a. They may be rounded to 16 bits before the sum, or not. */
static double sum_error(Lockstep *l, int from, const View *db, const double *ulp) {
    const View *v = operand_view(&l->args, from);
    double n = (double)v->count / (double)db->count, a = magnitude(v, expected_of(l, from));
    return a * (0x1p-23 * (n + 8) + ulp[v->dtype]) * sqrt(n);
}

/* A sum of n products of numbers up to a and b of either sign, in any order in fp32 on both sides: partial sums are
 * around sqrt(n) a b, and n roundings of these, which are random, are below 2^-24 n a b. TF32 rounds every factor to 11
 * bits. A GPU's library may leave bias and activation to a kernel after its rounding to y's type, or read the bias in
 * that type. A sum that begins with the bias is rounded n times as a number of the output's size. */
static double product_error(Lockstep *l, int k, const double *ulp) {
    Op op = l->p->ops[l->at];
    const View *y = &l->args.out[k - OP_IN];
    const ActAttr *fused = attr_fused(op.kind, &op.attr);
    op_cost(l->p, &op);
    if (k > OP_IN) { /* db: of dy, or of the op's own dx, whose error it sums up */
        const bool own = op.kind == OP_conv2d_dx || op.kind == OP_linear_dx;
        const double rows = (double)l->args.out[0].count / (double)y->count;
        return sum_error(l, own ? OP_IN : 1, y, ulp) + (own ? sqrt(rows) * product_error(l, OP_IN, ulp) : 0);
    }
    double n = op.flops / 2 / (double)y->count, tf32 = l->precision == PREC_TF32 ? 0x1p-10 * sqrt(n) : 0;
    double a = magnitude(&l->args.in[0], expected_of(l, 0)), b = weight_magnitude(l);
    double polynomial = fused && fused->act > ACT_LEAKY ? 2e-5 : 0; /* oneDNN's sigmoid, tanh and erf */
    bool biased = op.kind == OP_conv2d || op.kind == OP_linear || op.kind == OP_linear_q || op.kind == OP_conv_transpose;
    double rounded = biased ? (ulp[y->dtype] / 2 + 0x1p-24 * n) * magnitude(y, expected_of(l, k)) : 0;
    return a * b * (0x1p-23 * (n + 8) + tf32) + polynomial + rounded;
}

/* What an op has on its way from product to product is rounded to 16 bits, relative to the largest of each: a loss in parts does
 * so with logits, their gradient, and with each part dw; a recurrent layer with each step's h and gradients of sums. TF32 rounds
 * factors to 11. */
static double between_error(const Lockstep *l, const double *ulp) {
    return 4 * (l->precision == PREC_TF32 ? 0x1p-10 : ulp[l->args.in[0].dtype]);
}

/* Both sides round to the output's type; products with an activation's derivative after them may be rounded twice.
 * There are a few roundings in fp32 before that; where terms cancel, they are as large as the largest element's.
 * Tensor cores also round attention's probabilities to that type. */
static void compare(Lockstep *l, int k) {
    static const double ulp[DT_COUNT] = {[DT_BF16] = 1.0 / 128, [DT_F16] = 1.0 / 1024}, exact[DT_COUNT] = {0};
    const Slot *s = &l->slot[l->of[k]];
    const View *v = operand_view(&l->args, k);
    const uint8_t *expected = expected_of(l, k), *found = s->first + GUARD;
    OpKind kind = l->args.kind;
    bool product = is_product(kind), attention = kind == OP_attention || kind == OP_attention_dx;
    bool between = kind == OP_linear_cross_entropy || kind == OP_linear_cross_entropy_dx || kind == OP_rnn || kind == OP_rnn_dx;
    /* a normalisation's dw and db are sums of dy's numbers, too, dw of them times about 1; nothing is rounded to 16 bits */
    double few = product ? product_error(l, k, ulp) : kind == OP_bias_db ? sum_error(l, 0, v, ulp)
                 : kind == OP_norm_dw ? sum_error(l, 0, v, exact) + 4e-6 * magnitude(v, expected)
                 : (4e-6 + (attention ? ulp[v->dtype] : between ? between_error(l, ulp) : 0)) * magnitude(v, expected);
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
    a.device = l->cpu;
    a.state = op->state;
    a.micro = micro;
    for (int k = 0; k < OPERANDS; k++)
        if (l->of[k] >= 0) operand_view(&a, k)->data = l->storage[program_root(l->p, operand_buf(op, k))];
    a.workspace = op->workspace == NO_BUF ? NULL : l->storage[op->workspace];
    a.workspace_bytes = op->workspace == NO_BUF ? 0 : l->p->bufs[op->workspace].bytes;
    if (l->cpu->table->run(l->cpu, &a, &e)) problem(l, "the CPU: %s", e.text);
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

/* Two steps: in the second one, states are those of the first. Frees the program. */
static void lockstep_run(Lockstep *l) {
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

#endif
