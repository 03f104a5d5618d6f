/* Convolution and linear layers of the CPU device against float64 loops: every pass, every activation, odd shapes and
 * mixtures of types. Guard bytes stand around every operand and the workspace. Every run must give the same bits. */
#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "../../kernels/cpu/cpu.h"
#include "../../kernels/cpu/isa.h"
#include "memory/device.h"
#include "reference/ref_conv.h"
#include "reference/reference.h"
#include "sample.h"
#include "tap.h"

enum { LINE = 64, GUARD = 16384 /* bytes; oneDNN overruns far */, X = 0, W, B, Y, S, OPERANDS };
/* DX_ACT: dx through an activation whose saved value is S, and its sum B; TRANSPOSE: dx plus a bias B */
enum { FORWARD, DX, DW, DX_ACT, TRANSPOSE, PASSES };

static Device *device;
static int threads;
static uint32_t random_state = 1;

/* One operand: its storage between two guards, a copy of it, and the same values as doubles in PyTorch's order. slope: f' by which
 * each of them was multiplied; NULL: by none. */
typedef struct Operand { View view; unsigned char *block, *copy; size_t bytes; double *exact, *slope; } Operand;

/* Element in PyTorch's order -> where it is stored. */
static size_t stored_at(const View *v, int64_t i) {
    if (!v->channels_last) return (size_t)i;
    int64_t c = v->shape.dim[1], area = v->shape.dim[2] * v->shape.dim[3];
    return (size_t)((i / (c * area) * area + i % area) * c + i / area % c);
}

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static unsigned char *guarded(size_t bytes) {
    unsigned char *p = must(aligned_alloc(LINE, align_up(bytes, LINE) + 2 * GUARD));
    memset(p, 0xA5, align_up(bytes, LINE) + 2 * GUARD);
    return p;
}

static bool guards_whole(const unsigned char *block, size_t bytes) {
    for (size_t i = 0; i < GUARD; i++)
        if (block[i] != 0xA5 || block[GUARD + bytes + i] != 0xA5) return false;
    return true;
}

static Operand operand_new(Shape shape, DType t, bool channels_last) {
    Operand a = {.view = {.shape = shape, .dtype = t, .channels_last = channels_last}};
    a.view.count = shape_elements(&shape);
    a.bytes = (size_t)a.view.count * dtype_size(t);
    a.block = guarded(a.bytes);
    a.copy = must(malloc(a.bytes));
    a.view.data = a.block + GUARD;
    a.exact = must(malloc((size_t)a.view.count * sizeof(double)));
    for (int64_t i = 0; i < a.view.count; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        dtype_store(t, a.view.data, stored_at(&a.view, i), (float)(random_state >> 8) / 8388608.0f - 1.0f);
        a.exact[i] = dtype_load(t, a.view.data, stored_at(&a.view, i));
    }
    memcpy(a.copy, a.view.data, a.bytes);
    return a;
}

static void operand_free(Operand *a) {
    free(a->block);
    free(a->copy);
    free(a->exact);
    free(a->slope);
}

static double act_exact(ActFn f, double x, double slope) {
    switch (f) {
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_LEAKY: return x < 0 ? slope * x : x;
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_TANH: return tanh(x);
    case ACT_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_ELU: return x > 0 ? x : slope * expm1(x);
    case ACT_SOFTPLUS: return log1p(exp(slope * x)) / slope;
    case ACT_HARDSWISH: return x * fmin(fmax(x + 3, 0), 6) / 6;
    case ACT_RELU6: return fmin(fmax(x, 0), 6);
    case ACT_HARDTANH: return fmin(fmax(x, slope), 0.75);
    default: return x;
    }
}

/* Values lie in [-1, 1] and are exact in their types, so a product has a standard deviation of 1/3 and the k-th partial
 * sum one of sqrt(k)/3. Rounding K partial sums to fp32 (unit 2^-24) gives a total error with a standard deviation
 * below 2^-24 sqrt(K) sqrt(K)/3: 2^-24 (K + 8) is more than three of them even if sums are taken one by one. Where a
 * sum comes out at S, its partial sums drifted there: another 2^-24 sqrt(K) S, three standard deviations. Then one
 * rounding to the output's type; dx may be rounded before it is multiplied by f' or a bias is added, too. The sum's error is
 * multiplied by f' as well, which for some functions is large near 0. oneDNN's sigmoid, tanh and erf are polynomials
 * with errors up to some 1e-5. */
static double tolerance(DType t, double expected, double slope, int64_t terms, int pass, ActFn act) {
    double unit = t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0x1p-24;
    double least = t == DT_F16 ? 0x1p-25 : 0, polynomial = act > ACT_LEAKY ? 2e-5 : 0; /* least: f16 subnormals */
    double roundings = pass == DX_ACT || pass == TRANSPOSE ? 2.01 : 1.01;
    if (pass == TRANSPOSE) least += unit; /* of the bias, which may cancel what was rounded */
    double sums = fmax(1, fabs(slope)) * (double)(terms + 8) + sqrt((double)terms) * fabs(expected);
    return 0x1p-24 * sums + roundings * unit * fabs(expected) + least + polynomial;
}

static const double F16_OVERFLOW = 65520; /* what becomes infinite: a steep derivative goes there */

static bool near_exact(const Operand *a, int64_t terms, int pass, ActFn act, double slope) {
    for (int64_t i = 0; i < a->view.count; i++) {
        double expected = act_exact(act, a->exact[i], slope);
        double found = dtype_load(a->view.dtype, a->view.data, stored_at(&a->view, i));
        const double room = tolerance(a->view.dtype, expected, a->slope ? a->slope[i] : 1, terms, pass, act);
        if (fabs(found - expected) <= room) continue;
        if (a->view.dtype == DT_F16 && isinf(found) && found * expected > 0 && fabs(expected) + room >= F16_OVERFLOW) continue;
        printf("# element %lld of %lld: found %.9g, expected %.9g\n", (long long)i, (long long)a->view.count, found,
               expected);
        return false;
    }
    return true;
}

/* db (C) against the sums of the dx that was found. It is summed up before dx is rounded to 16 bits: n roundings, of
 * which each has a standard deviation of unit |dx| / sqrt(3). */
static bool near_sum(const Operand *dx, const Operand *db) {
    int64_t channels = db->view.count, terms = dx->view.count / channels, area = terms / dx->view.shape.dim[0];
    DType t = dx->view.dtype;
    double unit = t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0, found = dtype_load(db->view.dtype, db->view.data, (size_t)c);
        for (int64_t n = 0; n < terms; n++) {
            double x = dtype_load(t, dx->view.data, stored_at(&dx->view, (n / area * channels + c) * area + n % area));
            sum += x;
            squares += x * x;
        }
        double off = tolerance(db->view.dtype, sum, 1, terms, DX, ACT_NONE) + 0x1p-24 * squares + 3 * unit * sqrt(squares);
        if (fabs(found - sum) <= off || found == sum) continue; /* both may be infinite */
        printf("# db %lld of %lld: found %.9g, expected %.9g\n", (long long)c, (long long)channels, found, sum);
        return false;
    }
    return true;
}

/* Where the operands of each pass are in KArgs: {x, w, b, y, s}, outputs counted from OP_IN, -1 = not there. */
static const int place[PASSES][OPERANDS] = {
    {0, 1, 2, OP_IN, -1}, {OP_IN, 1, -1, 0, -1}, {0, OP_IN, OP_IN + 1, 1, -1}, {OP_IN, 1, OP_IN + 1, 0, 2},
    {OP_IN, 1, 2, 0, -1}};

static View *arg(KArgs *args, int at) { return at < OP_IN ? &args->in[at] : &args->out[at - OP_IN]; }

static bool is_own(const KArgs *args) { return !args->state || !((const CpuState *)args->state)->by_library; }

/* Runs the op again over poisoned outputs, with fewer and with more threads. The bits must be the same, and inputs must not
 * change. */
static bool run_again(KArgs *args, Operand *t, const int *at) {
    Err e;
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < OPERANDS; k++)
            if (at[k] >= OP_IN && t[k].block) memset(t[k].view.data, 0xFF, t[k].bytes);
        if (round) omp_set_num_threads(2 * round - 1);
        int code = device->table->run(device, args, &e);
        omp_set_num_threads(threads);
        if (code) return ok(0, "run: %s", e.text);
        for (int k = 0; k < OPERANDS; k++) {
            if (at[k] < 0 || !t[k].block) continue;
            if (at[k] >= OP_IN && round == 0) memcpy(t[k].copy, t[k].view.data, t[k].bytes);
            else if (memcmp(t[k].copy, t[k].view.data, t[k].bytes)) return false;
        }
    }
    return true;
}

/* The op with dx in the storage of s, which must give the bits that are in the copies; all else stays. Threads change
 * nothing. */
static bool run_over(KArgs *args, Operand *t) {
    Err e;
    bool same = true;
    for (int round = 0; round < 3; round++) {
        memcpy(t[S].view.data, t[S].copy, t[S].bytes);
        if (t[B].block) memset(t[B].view.data, 0xFF, t[B].bytes);
        args->out[0].data = t[S].view.data;
        omp_set_num_threads(1 + round);
        int code = device->table->run(device, args, &e);
        omp_set_num_threads(threads);
        if (code) return ok(0, "run: %s", e.text);
        same &= !memcmp(t[S].view.data, t[X].copy, t[X].bytes) && (!t[B].block || !memcmp(t[B].view.data, t[B].copy, t[B].bytes));
        same &= !memcmp(t[W].view.data, t[W].copy, t[W].bytes) && !memcmp(t[Y].view.data, t[Y].copy, t[Y].bytes);
    }
    args->out[0].data = t[X].view.data;
    return same && guards_whole(t[S].block, t[S].bytes);
}

/* Is f' one of two numbers, so that a bit can say which? */
static bool has_two_slopes(ActFn f) {
    return f == ACT_RELU || f == ACT_LEAKY || f == ACT_RELU6 || f == ACT_HARDTANH || f == ACT_CLAMP || f == ACT_HARDSIGMOID;
}

/* Who has overwritten s in which type: own loops, oneDNN through a copy in fp32, oneDNN beside bits. */
enum { BY_OWN, BY_COPY, BY_BITS, WAYS };
static int met_over[DT_COUNT][WAYS];

/* Own loops can write over s without more workspace, but for Winograd's in bf16 where bf16 lacks a slope, and linear layers' in fp32,
 * whose sums are made in dx.
 * oneDNN's products that are made in fp32 copies always can, and those that it writes into dx itself where the slopes can be kept
 * as bits. */
static void check_over(const char *name, const KArgs *as, ActFn act, Operand *t) {
    KArgs args = *as;
    size_t more;
    const bool can = device->table->overwrites(device, &args, &more);
    const DType type = t[X].view.dtype;
    const int way = is_own(&args) ? BY_OWN : more ? BY_BITS : BY_COPY;
    const bool lacks = type == DT_BF16 && (act == ACT_LEAKY || act == ACT_HARDSIGMOID);
    const bool may_refuse = is_own(&args) && (lacks || (type == DT_F32 && args.kind == OP_linear_dx));
    ok(can || !has_two_slopes(act) || may_refuse, "%s: may overwrite", name);
    if (is_own(&args)) ok(!more, "%s: without more workspace", name);
    else if (type == DT_F16) ok(can && !more, "%s: without more workspace", name);
    else if (type == DT_F32) ok(can == has_two_slopes(act) && more, "%s: only beside bits", name);
    if (!can) return;
    ok(more < align_up(t[X].bytes, LINE) || align_up(more, LINE) == LINE, "%s: %zu bytes more, less than dx has", name, more);
    met_over[type][way]++;
    args.workspace_bytes += more;
    unsigned char *workspace = guarded(args.workspace_bytes);
    args.workspace = workspace + GUARD;
    ok(run_over(&args, t) && guards_whole(workspace, args.workspace_bytes), "%s: over s, the same bits", name);
    if (more) {
        Err e = {0, ""};
        args.workspace_bytes--;
        args.out[0].data = t[S].view.data;
        ok(device->table->run(device, &args, &e) == ERR_INTERNAL, "%s: not with less", name);
    }
    memcpy(t[S].view.data, t[S].copy, t[S].bytes);
    free(workspace);
}

static KArgs args_of(OpKind kind, int pass, const Attr *attr, const Operand *t) {
    KArgs args = {.kind = kind, .attr = attr, .device = device};
    for (int k = 0; k < OPERANDS; k++)
        if (place[pass][k] >= 0 && t[k].block) *arg(&args, place[pass][k]) = t[k].view;
    return args;
}

/* Does the device round a weight in fp32 in place of reading a copy of it? Then the exact numbers are those. */
static bool rounds_weight(OpKind kind, int pass, const Attr *attr, Operand *t) {
    if (pass == DW || t[W].view.dtype != DT_F32 || dtype_size(t[X].view.dtype) != 2) return false;
    const KArgs args = args_of(pass == TRANSPOSE ? OP_conv2d_dx : kind, pass, attr, t);
    if (!device->table->rounds(device, &args)) return false;
    for (int64_t i = 0; i < t[W].view.count; i++) t[W].exact[i] = (double)dtype_round(t[X].view.dtype, (float)t[W].exact[i]);
    return true;
}

static bool run_for(OpKind kind, int pass, const Attr *attr, size_t limit, Operand *t) {
    KArgs args = args_of(kind, pass, attr, t);
    Err e;
    if (device->table->prepare(device, &args, limit, &args.state, &args.workspace_bytes, &e)) return ok(0, "prepare: %s", e.text);
    args.workspace = must(aligned_alloc(LINE, align_up(args.workspace_bytes, LINE)));
    const int code = device->table->run(device, &args, &e);
    free(args.workspace);
    return !code || ok(0, "run: %s", e.text);
}

/* A weight in fp32 gives the bits that its copy gives, also where it is no number, too large for 16 bits, or between two numbers. */
static void check_copy(const char *name, OpKind kind, int pass, const Attr *attr, size_t limit, Operand *t) {
    uint32_t *w = t[W].view.data;
    for (int64_t i = 0; i < t[W].view.count; i += 5) w[i] = (w[i] & 0xffff0000) | 0x8000;
    w[0] = 0x7f800001, w[t[W].view.count / 2] = 0x7f7fffff;
    Operand copies[OPERANDS];
    memcpy(copies, t, sizeof copies);
    copies[W] = operand_new(t[W].view.shape, t[X].view.dtype, t[W].view.channels_last);
    for (int64_t i = 0; i < t[W].view.count; i++)
        dtype_store(copies[W].view.dtype, copies[W].view.data, (size_t)i, dtype_load(DT_F32, w, (size_t)i));
    bool same = run_for(kind, pass, attr, limit, copies);
    for (int k = 0; k < OPERANDS; k++)
        if (place[pass][k] >= OP_IN && t[k].block) {
            memcpy(t[k].copy, t[k].view.data, t[k].bytes);
            memset(t[k].view.data, 0xFF, t[k].bytes);
        }
    same &= run_for(kind, pass, attr, limit, t);
    for (int k = 0; k < OPERANDS; k++)
        if (place[pass][k] >= OP_IN && t[k].block) same &= !memcmp(t[k].copy, t[k].view.data, t[k].bytes);
    ok(same, "%s: as with a copy of w in 16 bits", name);
    operand_free(&copies[W]);
}

/* How many passes have rounded a weight */
static int met_rounded[PASSES];

/* terms: of the sums in y, dx, dw, dx; t[k].block NULL: absent; *own: must the op not be oneDNN's? NULL: it may be */
static void check_pass(const char *name, OpKind kind, int pass, const Attr *attr, size_t limit, Operand *t,
                       const int64_t *terms, ActFn act, double slope, const bool *own) {
    KArgs args = {.kind = kind, .attr = attr, .device = device};
    const int *at = place[pass];
    void *again = NULL;
    Err e;
    for (int k = 0; k < OPERANDS; k++)
        if (at[k] >= 0 && t[k].block) {
            *arg(&args, at[k]) = t[k].view;
            arg(&args, at[k])->data = NULL;
        }
    if (device->table->prepare(device, &args, limit, &args.state, &args.workspace_bytes, &e)) {
        ok(0, "%s: prepare: %s", name, e.text);
        return;
    }
    size_t bytes = 0;
    device->table->prepare(device, &args, limit, &again, &bytes, &e);
    ok(again == args.state && bytes == args.workspace_bytes, "%s: prepared once", name);
    if (own) ok(*own == is_own(&args), "%s: by %s", name, *own ? "own loops" : "oneDNN");
    for (int k = 0; k < OPERANDS; k++)
        if (at[k] >= 0 && t[k].block) arg(&args, at[k])->data = t[k].view.data;
    unsigned char *workspace = guarded(args.workspace_bytes);
    args.workspace = workspace + GUARD;
    ok(run_again(&args, t, at), "%s: the same bits again, inputs untouched", name);
    if (pass == DX_ACT) check_over(name, &args, (kind == OP_conv2d_dx ? attr->conv.fused : attr->linear.fused).act, t);
    bool whole = guards_whole(workspace, args.workspace_bytes), near = true;
    for (int k = 0; k < OPERANDS; k++) {
        if (at[k] < 0 || !t[k].block) continue;
        whole &= guards_whole(t[k].block, t[k].bytes);
        if (at[k] < OP_IN) continue;
        if (pass == DX_ACT && k == B) near &= near_sum(&t[X], &t[B]);
        else near &= near_exact(&t[k], terms[pass], pass, pass ? ACT_NONE : act, slope);
    }
    ok(whole, "%s: nothing written outside", name);
    ok(near, "%s: as in float64", name);
    free(workspace);
}

typedef struct Types { const char *name; DType t[OPERANDS]; } Types;
static const Types types[] = {
    {"f32", {DT_F32, DT_F32, DT_F32, DT_F32}},       {"bf16", {DT_BF16, DT_BF16, DT_BF16, DT_BF16}},
    {"f16", {DT_F16, DT_F16, DT_F16, DT_F16}},       {"bf16, b f32", {DT_BF16, DT_BF16, DT_F32, DT_BF16}},
    {"bf16, w b f32", {DT_BF16, DT_F32, DT_F32, DT_BF16}}, {"f16, w b f32", {DT_F16, DT_F32, DT_F32, DT_F16}},
    {"bf16, y f32", {DT_BF16, DT_BF16, DT_F32, DT_F32}},
};

typedef struct ConvCase { const char *name; RefConv d; bool bias; ActFn act; size_t limit; } ConvCase;
static const ConvCase convs[] = {
    {"1x1 of one", {1, 1, 1, 1, 1, 1, 1, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"3->64 3x3", {2, 3, 9, 9, 64, 3, 3, {1, 1}, {0}, {1, 1}, 1}, true, ACT_RELU, 4 << 20},
    {"16->32 3x3 padded", {3, 16, 7, 8, 32, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20},
    {"16->32 without scratch", {3, 16, 7, 8, 32, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 0},
    {"5->7 odd, no bias", {3, 5, 11, 13, 7, 3, 5, {1, 1}, {1, 2, 1, 2}, {1, 1}, 1}, false, ACT_NONE, 4 << 20},
    {"asymmetric padding", {2, 8, 6, 7, 4, 2, 2, {1, 1}, {0, 1, 1, 0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"stride 2 by 3", {2, 6, 15, 14, 10, 3, 4, {2, 3}, {1, 0, 1, 0}, {1, 1}, 1}, true, ACT_LEAKY, 4 << 20},
    {"dilation 2 by 3", {2, 4, 14, 15, 6, 3, 3, {1, 1}, {2, 3, 2, 3}, {2, 3}, 1}, true, ACT_TANH, 4 << 20},
    {"two groups", {2, 8, 9, 9, 12, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2}, true, ACT_SIGMOID, 4 << 20},
    {"depthwise", {2, 16, 8, 8, 16, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 16}, true, ACT_RELU, 4 << 20},
    {"depthwise twice, stride 2", {2, 5, 9, 9, 10, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 5}, false, ACT_NONE, 4 << 20},
    {"several parts of dx", {4, 13, 50, 52, 5, 1, 1, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"channels beyond a block", {1, 2100, 5, 4, 2, 1, 1, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"1x1, stride 2, few channels", {1, 5, 12, 16, 3, 1, 1, {2, 2}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"1x1 without scratch", {2, 64, 4, 9, 96, 1, 1, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 0},
    {"1x1 in the padding", {2, 17, 2, 9, 96, 1, 1, {2, 2}, {0, 0, 1, 0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"1x3 in the padding", {2, 40, 12, 5, 16, 1, 3, {2, 2}, {0, 1, 1, 1}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"1x1 gelu", {2, 24, 5, 5, 17, 1, 1, {1, 1}, {0}, {1, 1}, 1}, true, ACT_GELU, 4 << 20},
    {"3x3 hardtanh", {2, 8, 6, 7, 9, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_HARDTANH, 4 << 20},
    {"3x3 relu6, stride 2", {2, 8, 6, 7, 9, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU6, 4 << 20},
    {"7x7 of pictures, stride 2", {2, 3, 17, 23, 19, 7, 7, {2, 2}, {3, 3, 3, 3}, {1, 1}, 1}, true, ACT_RELU, 4 << 20},
    {"wider than the image", {3, 2, 4, 3, 9, 3, 9, {1, 1}, {1, 4, 1, 4}, {1, 1}, 1}, true, ACT_NONE, 4 << 20},
    {"whole image, gelu_tanh", {2, 3, 6, 6, 5, 6, 6, {1, 1}, {0}, {1, 1}, 1}, true, ACT_GELU_TANH, 4 << 20},
};

/* own: the passes that are not oneDNN's, as bits */
typedef struct OwnCase { ConvCase conv; int own; } OwnCase;
enum { ALL = 1 << FORWARD | 1 << DX | 1 << DW | 1 << DX_ACT, NOT_DW = ALL & ~(1 << DW) };

/* 3x3 in fp32 by Winograd's algorithm: padding from 0 to 2; odd sizes, so that the last tiles are partial; ragged
 * blocks of tiles and of outputs. And cases just outside, which are oneDNN's: few tiles, other channels, little
 * workspace. */
#define THREE(n, c, h, w, o, ...) {n, c, h, w, o, 3, 3, {1, 1}, {__VA_ARGS__}, {1, 1}, 1}
static const OwnCase winograds[] = {
    {{"images of one pixel", THREE(64, 32, 1, 1, 64, 1, 1, 1, 1), true, ACT_RELU, 4 << 20}, ALL},
    {{"unpadded, odd, one image", THREE(1, 64, 17, 21, 96, 0, 0, 0, 0), true, ACT_RELU, 4 << 20}, ALL},
    {{"padded by 2", THREE(5, 96, 6, 9, 32, 2, 2, 2, 2), true, ACT_HARDTANH, 4 << 20}, ALL},
    {{"uneven padding", THREE(6, 32, 8, 5, 64, 0, 1, 2, 1), false, ACT_LEAKY, 4 << 20}, ALL},
    {{"one piece of dw", THREE(4, 32, 1, 40, 32, 1, 1, 1, 1), true, ACT_NONE, 4 << 20}, ALL},
    {{"some outputs at a time", THREE(10, 64, 1, 360, 64, 1, 1, 1, 1), true, ACT_RELU, 500000}, ALL},
    {{"few tiles", THREE(63, 32, 1, 1, 64, 1, 1, 1, 1), true, ACT_RELU, 4 << 20}, 1 << DW},
    {{"very few tiles", THREE(27, 32, 1, 1, 64, 1, 1, 1, 1), true, ACT_RELU, 4 << 20}, 0},
    {{"other channels", THREE(3, 48, 9, 9, 32, 1, 1, 1, 1), true, ACT_RELU, 4 << 20}, 0},
    {{"little workspace", THREE(3, 32, 9, 9, 64, 1, 1, 1, 1), true, ACT_RELU, 65536}, 0},
    {{"padded by 3", THREE(3, 32, 9, 9, 64, 3, 3, 3, 3), true, ACT_RELU, 4 << 20}, 0},
};

/* Tap by tap: samples that make ragged tiles, taps that reach no pixel, more pixels than a sum has parts, sums in
 * blocks. And cases just outside, which are oneDNN's: larger images, small weights, groups, other channels, little
 * workspace. */
static const OwnCase tapped[] = {
    {{"images of a pixel", {9, 96, 1, 1, 96, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, ALL},
    {{"3x3 padded", {3, 96, 3, 3, 96, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_GELU, 4 << 20}, ALL},
    {{"stride 2 by 1", {2, 128, 4, 3, 96, 3, 3, {2, 1}, {1, 0, 1, 0}, {1, 1}, 1}, true, ACT_LEAKY, 4 << 20}, ALL},
    {{"1x1, stride 2", {2, 352, 2, 3, 256, 1, 1, {2, 2}, {0}, {1, 1}, 1}, false, ACT_NONE, 4 << 20}, ALL},
    {{"dilation 2 by 3", {1, 96, 4, 3, 128, 3, 3, {1, 1}, {2, 3, 2, 3}, {2, 3}, 1}, true, ACT_TANH, 4 << 20}, ALL},
    {{"uneven padding", {1, 64, 3, 4, 160, 2, 5, {1, 1}, {0, 3, 2, 1}, {1, 1}, 1}, true, ACT_SIGMOID, 4 << 20}, ALL},
    {{"many pixels", {1, 128, 9, 8, 128, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_NONE, 4 << 20}, ALL},
    {{"larger images", {9, 96, 5, 5, 96, 2, 4, {1, 1}, {0}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"small weights", {1, 64, 2, 2, 64, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"groups of 128", {1, 256, 2, 2, 256, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2}, true, ACT_RELU, 4 << 20}, 0},
    {{"112 channels", {1, 112, 2, 2, 96, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"no workspace", {1, 96, 2, 2, 96, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 2048}, 0},
};

/* Products that oneDNN has where there is AVX-512 or no AVX2: of kernels of one pixel with few channels, or few weights for the pixels of
 * dw; of kernels with strides or dilations with few channels, but for dw of patches without overlap. And few channels on both sides, y
 * and dw alone, which fill no register, or of more than an image. */
#define ONE(n, c, h, w, o, ...) {n, c, h, w, o, 1, 1, __VA_ARGS__, {1, 1}, 1}
enum { FEW = 1 << FORWARD | 1 << DW };
static const OwnCase products[] = {
    {{"1x1, 32->64", ONE(2, 32, 5, 7, 64, {1, 1}, {0}), true, ACT_RELU, 4 << 20}, ALL},
    {{"1x1, some weights", ONE(2, 32, 8, 16, 64, {1, 1}, {0}), false, ACT_NONE, 4 << 20}, ALL},
    {{"1x1, fewer weights", ONE(1, 32, 3, 86, 64, {1, 1}, {0}), false, ACT_NONE, 4 << 20}, NOT_DW},
    {{"1x1, 31->64", ONE(2, 31, 5, 7, 64, {1, 1}, {0}), true, ACT_RELU, 4 << 20}, 1 << DW},
    {{"1x1, 64->31", ONE(2, 64, 9, 14, 31, {1, 1}, {0}), true, ACT_GELU, 4 << 20}, 0},
    {{"1x1, several depths", ONE(1, 300, 6, 6, 85, {1, 1}, {0}), true, ACT_RELU6, 4 << 20}, ALL},
    {{"1x1, stride 2 by 3", ONE(2, 40, 7, 8, 48, {2, 3}, {0}), true, ACT_TANH, 4 << 20}, ALL},
    {{"1x1, stride 2, all pixels met or not", ONE(3, 64, 6, 6, 33, {2, 2}, {0}), false, ACT_NONE, 4 << 20}, ALL},
    {{"1x1, padded", ONE(2, 64, 5, 6, 48, {1, 1}, {1, 0, 1, 1}), true, ACT_LEAKY, 4 << 20}, ALL},
    {{"1x1, padded, stride 2", ONE(2, 64, 5, 6, 48, {2, 2}, {1, 0, 1, 1}), true, ACT_RELU, 4 << 20}, ALL},
    {{"1x1, no workspace", ONE(2, 32, 5, 7, 64, {1, 1}, {0}), true, ACT_RELU, 0}, ALL},
    {{"1x1, two groups", {2, 66, 4, 4, 66, 1, 1, {1, 1}, {0}, {1, 1}, 2}, true, ACT_NONE, 4 << 20}, 0},
    {{"1x2", {2, 64, 4, 4, 64, 1, 2, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20}, 0},
    {{"3x3, stride 2, 64->65", {2, 64, 9, 10, 65, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, ALL},
    {{"3x3, stride 2, 63->64", {2, 63, 9, 10, 64, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_GELU, 4 << 20}, 1 << DW},
    {{"3x3, stride 2, 31->64", {2, 31, 9, 10, 64, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"4x4, strides 1 by 3", {2, 64, 9, 10, 65, 4, 4, {1, 3}, {1, 2, 0, 1}, {1, 1}, 1}, false, ACT_LEAKY, 4 << 20}, ALL},
    {{"1x3, dilation 4", {2, 64, 1, 40, 64, 1, 3, {1, 1}, {0, 4, 0, 4}, {1, 4}, 1}, true, ACT_TANH, 4 << 20}, ALL},
    {{"3x3, dilation 2 down", {1, 70, 12, 11, 64, 3, 3, {1, 1}, {2, 1, 2, 1}, {2, 1}, 1}, true, ACT_NONE, 4 << 20}, ALL},
    {{"4x4 patches", {2, 3, 9, 12, 32, 4, 4, {4, 4}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20}, 1 << DW},
    {{"2x3 patches, apart", {2, 16, 9, 12, 20, 2, 3, {3, 4}, {0}, {1, 1}, 1}, false, ACT_NONE, 4 << 20}, 1 << DW},
    {{"7x7, stride 2", {1, 3, 20, 21, 64, 7, 7, {2, 2}, {3, 3, 3, 3}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"1->6", {3, 1, 13, 29, 6, 5, 5, {1, 1}, {0}, {1, 1}, 1}, true, ACT_TANH, 4 << 20}, 1 << FORWARD},
    {{"3->6", {2, 3, 12, 17, 6, 5, 5, {1, 1}, {2, 2, 2, 2}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, FEW},
    {{"3->8", {2, 3, 9, 14, 8, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"4->16", {2, 4, 9, 14, 16, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 1 << DW},
    {{"5->8", {2, 5, 9, 14, 8, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, false, ACT_GELU, 4 << 20}, 1 << FORWARD},
    {{"6->16, one pixel", {5, 6, 5, 5, 16, 5, 5, {1, 1}, {0}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, FEW},
    {{"16->11, stride 2 by 3", {2, 16, 12, 31, 11, 3, 5, {2, 3}, {1, 0, 0, 2}, {1, 1}, 1}, true, ACT_LEAKY, 4 << 20}, FEW},
    {{"12->13 dilated", {2, 12, 14, 15, 13, 3, 3, {1, 1}, {2, 3, 2, 3}, {2, 3}, 1}, true, ACT_SILU, 4 << 20}, FEW},
    {{"16->1, one pixel of a line", {3, 16, 4, 3, 1, 3, 3, {1, 1}, {0}, {1, 1}, 1}, true, ACT_NONE, 4 << 20}, 1 << FORWARD},
    {{"16->3, padded", {2, 16, 6, 40, 3, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_SIGMOID, 4 << 20}, 1 << FORWARD},
    {{"17->12", {2, 17, 6, 9, 12, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"40->52, 5x5", {2, 40, 7, 9, 52, 5, 5, {1, 1}, {2, 2, 2, 2}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 0},
    {{"63->64, stride 2", {2, 63, 7, 9, 64, 3, 4, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1}, true, ACT_RELU, 4 << 20}, 1 << DW},
};
#undef ONE

/* Groups of few channels: ragged, wide rows, more taps than registers, bands of rows and columns, strides with and without taps for
 * each pixel, taps that never meet the image. own: DX of all gradients of x, FORWARD where oneDNN would make copies */
enum { OWN_X = 1 << FORWARD | 1 << DX };
static const OwnCase depthwise[] = {
    {{"5x5 wide", {2, 21, 5, 300, 21, 5, 5, {1, 1}, {2, 2, 2, 2}, {1, 1}, 21}, true, ACT_RELU, 4 << 20}, OWN_X | 1 << DW},
    {{"3x9 strides", {3, 32, 9, 40, 32, 3, 9, {2, 3}, {1, 4, 0, 5}, {1, 1}, 32}, true, ACT_RELU6, 4 << 20}, OWN_X | 1 << DW},
    {{"2x1 strides", {2, 19, 70, 33, 19, 2, 1, {3, 2}, {1, 0, 1, 0}, {1, 1}, 19}, true, ACT_SILU, 4 << 20}, OWN_X | 1 << DW},
    {{"7x7 of 3x2", {2, 40, 3, 2, 40, 7, 7, {1, 1}, {3, 3, 3, 3}, {1, 1}, 40}, true, ACT_GELU, 4 << 20}, OWN_X | 1 << DW},
    {{"3x5 dilated, strides", {2, 24, 30, 29, 24, 3, 5, {2, 2}, {3, 4, 2, 5}, {3, 2}, 24}, true, ACT_TANH, 4 << 20}, OWN_X | 1 << DW},
    {{"far taps", {1, 16, 100, 100, 16, 3, 3, {1, 1}, {40, 40, 40, 40}, {40, 40}, 16}, true, ACT_NONE, 4 << 20}, 0},
    {{"twos dilated", {2, 22, 8, 9, 22, 3, 3, {2, 1}, {2, 1, 2, 1}, {2, 3}, 11}, false, ACT_NONE, 20000}, 1 << DW},
    {{"fours", {2, 36, 8, 140, 36, 1, 3, {1, 1}, {0, 1, 0, 1}, {1, 1}, 9}, true, ACT_NONE, 4 << 20}, 1 << DW},
    {{"little workspace", {1, 48, 7, 6, 48, 5, 5, {1, 1}, {2, 2, 2, 2}, {1, 1}, 48}, true, ACT_NONE, 4096}, 0},
    {{"3x3 each", {2, 48, 7, 6, 48, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 48}, true, ACT_RELU, 4 << 20}, OWN_X | 1 << DW},
};

/* Groups of few channels: ragged tiles, taps in the padding, taps apart and lines that they skip, classes of dx that no tap meets,
 * one or several groups in a register, other numbers of outputs than of inputs. One group in a register is oneDNN's in dx. And cases just outside, which are oneDNN's. */
#define GROUPS(n, c, h, w, o, kh, kw, g, ...) {n, c, h, w, o, kh, kw, __VA_ARGS__, g}
static const OwnCase grouped[] = {
    {{"twos", GROUPS(2, 48, 9, 8, 48, 3, 3, 24, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4 << 20}, ALL},
    {{"fours", GROUPS(3, 32, 13, 27, 32, 3, 3, 8, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_GELU, 4 << 20}, ALL},
    {{"fours, stride 2 by 3", GROUPS(2, 16, 12, 17, 16, 3, 5, 4, {2, 3}, {1, 0, 0, 2}, {1, 1}), true, ACT_LEAKY, 4 << 20}, ALL},
    {{"fours, one band", GROUPS(3, 8, 9, 8, 8, 3, 3, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_GELU, 4 << 20}, ALL},
    {{"eights dilated", GROUPS(2, 32, 14, 15, 32, 3, 3, 4, {1, 1}, {2, 3, 2, 3}, {2, 3}), false, ACT_TANH, 4 << 20}, ALL},
    {{"eights, 1x1, stride 2", GROUPS(2, 48, 7, 9, 48, 1, 1, 6, {2, 2}, {0}, {1, 1}), true, ACT_RELU, 4 << 20}, ALL},
    {{"sixteens", GROUPS(5, 64, 7, 7, 64, 3, 3, 4, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4 << 20}, ALL},
    {{"sixteens, stride 2, dilated", GROUPS(2, 48, 11, 14, 48, 3, 2, 3, {2, 2}, {3, 1, 2, 0}, {2, 2}), true, ACT_SIGMOID, 4 << 20}, ALL},
    {{"16 -> 48", GROUPS(3, 32, 8, 5, 96, 3, 3, 2, {1, 1}, {0, 1, 2, 1}, {1, 1}), true, ACT_HARDTANH, 4 << 20}, ALL},
    {{"64 -> 16, many lines", GROUPS(9, 128, 10, 3, 32, 5, 1, 2, {1, 1}, {2, 0, 2, 0}, {1, 1}), true, ACT_RELU, 4 << 20}, ALL},
    {{"one line", GROUPS(1, 64, 1, 70, 64, 1, 7, 2, {1, 1}, {0, 3, 0, 3}, {1, 1}), true, ACT_NONE, 4 << 20}, ALL},
    {{"80 of a group", GROUPS(1, 160, 5, 5, 160, 3, 3, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4 << 20}, 0},
    {{"12 of a group", GROUPS(2, 48, 6, 5, 48, 3, 3, 4, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4 << 20}, 0},
    {{"fours, ragged", GROUPS(2, 20, 6, 5, 20, 3, 3, 5, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4 << 20}, 0},
    {{"a tall kernel", GROUPS(1, 32, 17, 3, 32, 17, 1, 2, {1, 1}, {0}, {1, 1}), true, ACT_RELU, 4 << 20}, 0},
    {{"taps far apart", GROUPS(1, 32, 70, 3, 32, 3, 1, 2, {1, 1}, {0}, {32, 1}), true, ACT_RELU, 4 << 20}, 0},
    {{"little workspace", GROUPS(3, 32, 9, 9, 32, 3, 3, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}), true, ACT_RELU, 4096}, 0},
};

/* exact dx times f'(s) */
static void through(Operand *dx, const Operand *s, const ActAttr *fused) {
    Attr attr = {.act = *fused};
    dx->slope = must(malloc((size_t)dx->view.count * sizeof(double)));
    for (int64_t i = 0; i < dx->view.count; i++) dx->slope[i] = 1;
    Ref r = {.attr = &attr, .in = {{.at = dx->slope}, {.at = s->exact}},
             .out = {{.count = dx->view.count, .at = dx->slope}}};
    ref_act_dx(&r);
    for (int64_t i = 0; i < dx->view.count; i++) dx->exact[i] *= dx->slope[i];
}

/* Hardtanh's bounds lie among the values that it meets. */
static ActAttr act_attr(ActFn f) {
    return (ActAttr){.act = f, .slope = f == ACT_LEAKY ? 0.125f : f == ACT_HARDTANH ? -0.5f : 0.0f, .high = 0.75f};
}

static void test_conv(const ConvCase *c, const Types *types_of, int pass, ActFn act, const bool *own) {
    static const OpKind kinds[PASSES] = {OP_conv2d, OP_conv2d_dx, OP_conv2d_dw, OP_conv2d_dx, OP_conv_transpose};
    const RefConv *d = &c->d;
    int64_t oh = ref_conv_oh(d), ow = ref_conv_ow(d), per_group = d->c / d->groups;
    Attr attr;
    memset(&attr, 0, sizeof attr);
    for (int k = 0; k < 2; k++) attr.conv.stride[k] = (int32_t)d->stride[k];
    for (int k = 0; k < 2; k++) attr.conv.dilation[k] = (int32_t)d->dilation[k];
    for (int k = 0; k < 4; k++) attr.conv.pad[k] = (int32_t)d->pad[k];
    attr.conv.groups = (int32_t)d->groups;
    attr.conv.fused = act_attr(act);
    int64_t to_x = d->o / d->groups * d->kh * d->kw;
    int64_t terms[] = {per_group * d->kh * d->kw + 1, to_x, d->n * oh * ow, to_x, to_x + 1};
    Shape x = shape4(d->n, d->c, d->h, d->w);
    Operand t[OPERANDS] = {operand_new(x, types_of->t[X], true),
                           operand_new(shape4(d->o, per_group, d->kh, d->kw), types_of->t[W], true), {.block = NULL},
                           operand_new(shape4(d->n, d->o, oh, ow), types_of->t[Y], true), {.block = NULL}};
    if (c->bias) t[B] = operand_new(shape1(pass == DX_ACT || pass == TRANSPOSE ? d->c : d->o), types_of->t[B], false);
    if (pass == DX_ACT) t[S] = operand_new(x, types_of->t[X], true);
    const bool rounds = rounds_weight(kinds[pass], pass, &attr, t);
    if (pass == FORWARD) ref_conv2d(t[Y].exact, t[X].exact, t[W].exact, t[B].exact, d);
    else if (pass == DW) ref_conv2d_dw(t[W].exact, t[B].exact, t[X].exact, t[Y].exact, d);
    else ref_conv2d_dx(t[X].exact, t[Y].exact, t[W].exact, d);
    if (pass == DX_ACT) through(&t[X], &t[S], &attr.conv.fused);
    for (int64_t i = 0; pass == TRANSPOSE && c->bias && i < t[X].view.count; i++)
        t[X].exact[i] += t[B].exact[i / (d->h * d->w) % d->c];
    char name[96];
    snprintf(name, sizeof name, "%s %s, %s, f %d", op_info(kinds[pass])->name, c->name, types_of->name, act);
    check_pass(name, kinds[pass], pass, &attr, c->limit, t, terms, act, attr.conv.fused.slope, own);
    if (rounds) check_copy(name, kinds[pass], pass, &attr, c->limit, t), met_rounded[pass]++;
    for (int k = 0; k < OPERANDS; k++) operand_free(&t[k]);
}

typedef struct LinearCase { const char *name; int64_t n, i, o; bool bias; ActFn act; } LinearCase;
static const LinearCase linears[] = {
    {"1x1->1", 1, 1, 1, true, ACT_NONE},           {"3x7->5 no bias", 3, 7, 5, false, ACT_RELU},
    {"2x33->16", 2, 33, 16, true, ACT_TANH},       {"5x1000->10", 5, 1000, 10, true, ACT_LEAKY},
    {"67x1541->13", 67, 1541, 13, true, ACT_NONE}, {"3x20000->3", 3, 20000, 3, true, ACT_SIGMOID},
    {"8x512->4", 8, 512, 4, false, ACT_GELU},      {"4x20->17", 4, 20, 17, true, ACT_GELU},
    {"33x65->40 no bias", 33, 65, 40, false, ACT_RELU}, {"16x64->64", 16, 64, 64, true, ACT_GELU_TANH},
    {"40x3000->20", 40, 3000, 20, true, ACT_NONE}, {"1x300->100", 1, 300, 100, true, ACT_LEAKY},
    {"7x31->29", 7, 31, 29, true, ACT_SIGMOID},    {"130x9->530", 130, 9, 530, true, ACT_RELU},
    {"2100x3->130", 2100, 3, 130, true, ACT_NONE},
    /* few samples: rows 4 KiB apart, a sum in chunks, whole blocks, and more blocks than pieces of work */
    {"8x1024->70", 8, 1024, 70, true, ACT_RELU},   {"3x5000->33", 3, 5000, 33, true, ACT_SIGMOID},
    {"12x48->128", 12, 48, 128, true, ACT_RELU}, {"5x1040->1100", 5, 1040, 1100, false, ACT_NONE},
    {"520x24->7", 520, 24, 7, true, ACT_RELU}, {"17x40->17", 17, 40, 17, true, ACT_NONE},
    /* dot products of weights that are not packed, a row fewer and more than they have at most; strips of several blocks of rows */
    {"47x260->131", 47, 260, 131, true, ACT_RELU}, {"49x260->131", 49, 260, 131, true, ACT_GELU},
    {"60x280->530", 60, 280, 530, true, ACT_RELU},
    /* dx of few rows, whose first ones keep the weights that they read: one, less than a tile, several tiles, the most, one more; parts of a
     * sum that are whole and not, with columns beyond the last whole tile; terms that are too few */
    {"1x530->200", 1, 530, 200, true, ACT_NONE},   {"5x260->129", 5, 260, 129, true, ACT_TANH},
    {"8x300->256", 8, 300, 256, false, ACT_RELU},  {"9x1024->131", 9, 1024, 131, true, ACT_LEAKY},
    {"48x270->140", 48, 270, 140, true, ACT_RELU}, {"49x270->140", 49, 270, 140, true, ACT_RELU},
    {"13x2048->70", 13, 2048, 70, true, ACT_GELU}, {"6x17->300", 6, 17, 300, true, ACT_SIGMOID},
};

/* In fp32: few outputs, and few samples, are own products; so are all others without AVX-512. */
static bool is_own_linear(const LinearCase *c, int pass) {
    const bool few_outputs = c->o <= 16 && pass != DW, few_samples = c->n <= 16 && (pass == FORWARD || pass == DW);
    return few_outputs || few_samples || !isa_has(dnnl_cpu_isa_avx512_core);
}

static void test_linear(const LinearCase *c, const Types *types_of, int pass, ActFn act) {
    static const OpKind kinds[TRANSPOSE] = {OP_linear, OP_linear_dx, OP_linear_dw, OP_linear_dx};
    Attr attr;
    memset(&attr, 0, sizeof attr);
    attr.linear.fused = act_attr(act);
    int64_t terms[] = {c->i + 1, c->o, c->n, c->o};
    Operand t[OPERANDS] = {operand_new(shape2(c->n, c->i), types_of->t[X], false),
                           operand_new(shape2(c->o, c->i), types_of->t[W], false), {.block = NULL},
                           operand_new(shape2(c->n, c->o), types_of->t[Y], false), {.block = NULL}};
    if (c->bias) t[B] = operand_new(shape1(pass == DX_ACT ? c->i : c->o), types_of->t[B], false);
    if (pass == DX_ACT) t[S] = operand_new(shape2(c->n, c->i), types_of->t[X], false);
    const bool rounds = rounds_weight(kinds[pass], pass, &attr, t);
    if (pass == FORWARD) ref_linear(t[Y].exact, t[X].exact, t[W].exact, t[B].exact, c->n, c->i, c->o);
    else if (pass == DW) ref_linear_dw(t[W].exact, t[B].exact, t[X].exact, t[Y].exact, c->n, c->i, c->o);
    else ref_linear_dx(t[X].exact, t[Y].exact, t[W].exact, c->n, c->i, c->o);
    if (pass == DX_ACT) through(&t[X], &t[S], &attr.linear.fused);
    char name[96];
    snprintf(name, sizeof name, "%s %s, %s, f %d", op_info(kinds[pass])->name, c->name, types_of->name, act);
    const bool own = is_own_linear(c, pass), wide = types_of == types;
    check_pass(name, kinds[pass], pass, &attr, 4 << 20, t, terms, act, attr.linear.fused.slope, wide ? &own : NULL);
    if (rounds) check_copy(name, kinds[pass], pass, &attr, 4 << 20, t), met_rounded[pass]++;
    for (int k = 0; k < OPERANDS; k++) operand_free(&t[k]);
}

static void test_device(void) {
    const DeviceTable *d = device->table;
    DeviceInfo info;
    Err e;
    void *p = NULL;
    char back[8] = "";
    is_int(d->info(device, &info, &e), OK, "info");
    has_text(info.driver, "oneDNN ", "the driver is oneDNN");
    ok(info.name[0] && info.threads > 0, "a name and threads");
    ok(info.memory_free > 0 && info.memory_free <= info.memory_total, "free memory is some of the memory");
    ok(info.emulated[DT_F16] && !info.emulated[DT_F32], "fp16 is emulated, fp32 is not");
    is_int(info.emulated[DT_BF16], !isa_has(dnnl_cpu_isa_avx512_core_bf16), "bf16 is where there is no instruction");
    is_int(d->alloc(device, 100, &p, &e), ERR_INTERNAL, "100 bytes are no multiple of the alignment");
    is_int(d->alloc(device, (size_t)1 << 62, &p, &e), ERR_OOM, "2^62 bytes are too many");
    has_text(e.text, "4611686018427387904", "the message says how many");
    is_int(d->alloc(device, 128, &p, &e), OK, "128 bytes");
    is_int((long long)((uintptr_t)p % d->alignment), 0, "aligned");
    ok(!d->upload(device, p, "memtide", 8, &e) && !d->download(device, back, p, 8, &e), "there and back");
    is_str(back, "memtide", "the same bytes");
    d->free(device, p, 128);
    double after = -1, before = 1;
    void *mark[2] = {NULL, NULL};
    ok(!d->mark(device, &mark[0], &e) && !d->mark(device, &mark[1], &e) && !d->between(device, mark[0], mark[1], &after, &e) &&
       !d->between(device, mark[1], mark[0], &before, &e) && after >= 0 && before == -after, "marks have a time between them");
    for (int i = 0; i < 2; i++) d->mark_free(device, mark[i]);
}

/* More rows than oneDNN counts are an error where it would divide by zero. */
static void test_rows(void) {
    Attr attr;
    Err e = {0, ""};
    size_t bytes;
    void *state;
    memset(&attr, 0, sizeof attr);
    attr.conv = (ConvAttr){.stride = {1, 1}, .dilation = {1, 1}, .groups = 2};
    KArgs conv = {.kind = OP_conv2d, .attr = &attr};
    const Shape shapes[] = {shape4((int64_t)1 << 32, 64, 1, 1), shape4(64, 32, 1, 1)};
    for (int k = 0; k < 2; k++)
        conv.in[k] = (View){NULL, shapes[k], DT_F32, 1, {0, 0, 0}, shape_elements(&shapes[k])};
    conv.out[0] = conv.in[0];
    is_int(device->table->prepare(device, &conv, 0, &state, &bytes, &e), ERR_DEVICE, "2^32 rows are refused");
    has_text(e.text, "at most 2147483647 rows of channels, found 4294967296", "and counted");
}

/* y by the case's activation, dx by each of them in turn, so that every type meets every one. */
static ActFn act_in(int pass, ActFn forward, size_t turn) {
    if (pass == DX_ACT) return (ActFn)(1 + turn % (ACT_COUNT - 1));
    return pass == FORWARD ? forward : ACT_NONE;
}

/* Is case c of n run in this turn? Of a sample (sample.h) each type and pass has others. */
static bool in_turn(size_t c, size_t n, size_t turn) { return sampled((c + 3 * turn) % n, n); }

/* fp32, and types that the device only converts */
static bool grouped_by(const Types *t) {
    DeviceInfo info;
    Err e;
    if (device->table->info(device, &info, &e) || !isa_has(dnnl_cpu_isa_avx2)) return false;
    for (int k = 0; k < OPERANDS; k++)
        if (t->t[k] != DT_F32 && !info.emulated[t->t[k]]) return false;
    return true;
}

static void test_groups(const Types *t, int pass, size_t turn) {
    for (size_t k = 0; k < ARRAY_LEN(grouped); k++) {
        const RefConv *d = &grouped[k].conv.d;
        const int lanes = isa_has(dnnl_cpu_isa_avx512_core) ? 16 : 8;
        const bool dx = pass == DX || pass == DX_ACT, is_register = d->c / d->groups == lanes;
        const bool left = dx && is_register && t->t[Y] == DT_F32; /* one register for a group */
        const bool few = pass == DW && d->c / d->groups <= 4; /* depthwise.h has them on any processor */
        const bool own = few || (grouped_by(t) && !left && d->c % lanes == 0 && grouped[k].own >> pass & 1);
        if (in_turn(k, ARRAY_LEN(grouped), turn)) test_conv(&grouped[k].conv, t, pass, act_in(pass, grouped[k].conv.act, k + turn), &own);
    }
}

/* Types that the device only converts are multiplied by gemm.h: in every pass x or its gradient is of type t[X]. */
static bool packed_by(const Types *t, const RefConv *d) {
    DeviceInfo info;
    Err e;
    return !device->table->info(device, &info, &e) && info.emulated[t->t[X]] && d->groups == 1;
}

/* bf16 comes here, too, where the device only converts it; what Winograd's algorithm leaves is then gemm.h's. */
static void test_winograd(void) {
    bool can = isa_has(dnnl_cpu_isa_avx2);
    if (!can) skip("convolutions by Winograd", "no AVX2");
    for (size_t t = 0; t < ARRAY_LEN(types) && can; t++)
        for (int pass = FORWARD; pass < TRANSPOSE; pass++)
            for (size_t k = 0; k < ARRAY_LEN(winograds); k++) {
                const bool packed = packed_by(&types[t], &winograds[k].conv.d);
                if (t && (!packed || types[t].t[X] != DT_BF16)) continue;
                if (!in_turn(k, ARRAY_LEN(winograds), t + (size_t)pass)) continue;
                test_conv(&winograds[k].conv, &types[t], pass, act_in(pass, winograds[k].conv.act, k + t),
                          &(bool){packed || winograds[k].own >> pass & 1});
            }
}

/* Products of factors of the same type, which the processor multiplies; what is made of them may have another. */
static bool tapped_by(const Types *t, int pass) {
    const dnnl_cpu_isa_t needed = t->t[X] == DT_BF16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx2;
    const int *at = place[pass];
    DType factor[2] = {DT_F32, DT_F32};
    for (int k = 0; k < OPERANDS; k++)
        if (at[k] == 0 || at[k] == 1) factor[at[k]] = t->t[k];
    return factor[0] == factor[1] && factor[0] != DT_F16 && isa_has(needed);
}

static void test_taps(const Types *t, int pass) {
    for (size_t k = 0; k < ARRAY_LEN(tapped); k++) {
        bool own = packed_by(t, &tapped[k].conv.d) || (tapped_by(t, pass) && tapped[k].own >> pass & 1);
        if (in_turn(k, ARRAY_LEN(tapped), (size_t)(t - types) + (size_t)pass))
            test_conv(&tapped[k].conv, t, pass, act_in(pass, tapped[k].conv.act, k), &own);
    }
}

static void test_products(const Types *t, int pass) {
    const bool faster = t == types && isa_has(dnnl_cpu_isa_avx2) && !isa_has(dnnl_cpu_isa_avx512_core);
    for (size_t k = 0; k < ARRAY_LEN(products); k++) {
        const bool own = packed_by(t, &products[k].conv.d) || (faster && products[k].own >> pass & 1);
        if (in_turn(k, ARRAY_LEN(products), (size_t)(t - types) + (size_t)pass))
            test_conv(&products[k].conv, t, pass, act_in(pass, products[k].conv.act, k), &own);
    }
}

static bool depthwise_by(const OwnCase *c, DType x, int pass) {
    if (pass == DW) return c->own >> DW & 1;
    const bool library = pass == FORWARD && (x == DT_F32 || (x == DT_BF16 && isa_has(dnnl_cpu_isa_avx512_core_bf16)));
    return isa_has(dnnl_cpu_isa_avx2) && !library && c->own >> (pass == FORWARD ? FORWARD : DX) & 1;
}

/* A NaN in x must reach the loss, through a ReLU too. */
static void test_nan(void) {
    Attr attr = {.conv = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .fused = {.act = ACT_RELU}}};
    KArgs args = {.kind = OP_conv2d, .attr = &attr, .device = device};
    Operand x = operand_new(shape4(1, 32, 16, 16), DT_F32, true), w = operand_new(shape4(32, 32, 3, 3), DT_F32, true);
    Operand y = operand_new(shape4(1, 32, 14, 14), DT_F32, true);
    Err e;
    ((float *)x.view.data)[(5 * 16 + 7) * 32] = NAN;
    args.in[0] = x.view, args.in[1] = w.view, args.out[0] = y.view;
    is_int(device->table->prepare(device, &args, 4 << 20, &args.state, &args.workspace_bytes, &e), OK, "prepared");
    args.workspace = must(aligned_alloc(LINE, align_up(args.workspace_bytes, LINE)));
    is_int(device->table->run(device, &args, &e), OK, "run");
    int lost = 0;
    for (int i = 3; i < 6; i++)
        for (int j = 5; j < 8; j++)
            for (int c = 0; c < 32; c++) lost += !isnan(((float *)y.view.data)[(i * 14 + j) * 32 + c]);
    is_int(lost, 0, "a NaN is in all that depends on it");
    ok(!isnan(((float *)y.view.data)[0]), "and not elsewhere");
    free(args.workspace);
    operand_free(&x);
    operand_free(&w);
    operand_free(&y);
}

/* A convolution by 64 filters of 3x3 over images of 10x10 and 32 channels, with an activation */
typedef struct Filtered { RefConv d; Operand x, w, y; Attr attr; KArgs args; } Filtered;

static void filtered_open(Filtered *f, int64_t images, DType t, ActFn act) {
    Err e;
    memset(f, 0, sizeof *f);
    f->d = (RefConv){.n = images, .c = 32, .h = 10, .w = 10, .o = 64, .kh = 3, .kw = 3, .stride = {1, 1},
                     .dilation = {1, 1}, .groups = 1};
    f->x = operand_new(shape4(images, 32, 10, 10), t, true);
    f->w = operand_new(shape4(64, 32, 3, 3), t, true);
    f->y = operand_new(shape4(images, 64, 8, 8), t, true);
    f->attr.conv = (ConvAttr){.stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .fused = act_attr(act)};
    f->args = (KArgs){.kind = OP_conv2d, .attr = &f->attr, .device = device};
    f->args.in[0] = f->x.view, f->args.in[1] = f->w.view, f->args.out[0] = f->y.view;
    if (device->table->prepare(device, &f->args, 4 << 20, &f->args.state, &f->args.workspace_bytes, &e))
        ok(0, "prepare: %s", e.text);
    f->args.workspace = must(aligned_alloc(LINE, align_up(f->args.workspace_bytes, LINE)));
}

static bool filtered_is_right(Filtered *f) {
    Err e;
    const ActAttr *act = &f->attr.conv.fused;
    ref_conv2d(f->y.exact, f->x.exact, f->w.exact, NULL, &f->d);
    return !device->table->run(device, &f->args, &e) && near_exact(&f->y, 289, FORWARD, act->act, act->slope);
}

static void filtered_close(Filtered *f) {
    free(f->args.workspace);
    operand_free(&f->x);
    operand_free(&f->w);
    operand_free(&f->y);
}

/* An op is prepared while oneDNN still has the primitive of an equal one that is gone, and runs after so many others
 * that oneDNN has dropped it. */
static void test_late(DType t, ActFn act) {
    enum { OTHERS = 40, BLOCKS = 2000 };
    Filtered early, late, other;
    void *block[BLOCKS];
    Err e;
    filtered_open(&early, 2, t, act);
    ok(filtered_is_right(&early), "%s, f %d: a convolution", dtype_name(t), act);
    device->table->trim(device, true);
    filtered_close(&early);
    filtered_open(&late, 2, t, act);
    for (int k = 0; k < BLOCKS; k++) /* over what was freed */
        memset(block[k] = must(malloc(16 + 8 * (size_t)k)), 0xA5, 16 + 8 * (size_t)k);
    for (int k = 0; k < OTHERS; k++) {
        filtered_open(&other, 3 + k, t, ACT_NONE);
        if (device->table->run(device, &other.args, &e)) ok(0, "%s: %d images: %s", dtype_name(t), 3 + k, e.text);
        filtered_close(&other);
    }
    ok(filtered_is_right(&late), "%s, f %d: the same one, run late", dtype_name(t), act);
    for (int k = 0; k < BLOCKS; k++) free(block[k]);
    filtered_close(&late);
}

/* A type that oneDNN has is not copied to fp32, whatever the limit: here the copies would be the largest scratch. */
static void test_narrow_types(void) {
    if (!isa_has(dnnl_cpu_isa_avx512_core_bf16)) {
        skip("gradients of bf16 weights in bf16", "no products of bf16");
        return;
    }
    Attr attr = {.conv = {.stride = {1, 1}, .pad = {1, 1, 1, 1}, .dilation = {1, 1}, .groups = 1}};
    KArgs args = {.kind = OP_conv2d_dw, .attr = &attr, .device = device};
    Operand x = operand_new(shape4(64, 64, 56, 56), DT_BF16, true), dy = operand_new(x.view.shape, DT_BF16, true);
    Operand dw = operand_new(shape4(64, 64, 3, 3), DT_F32, true);
    Err e;
    args.in[0] = x.view, args.in[1] = dy.view, args.out[0] = dw.view;
    is_int(device->table->prepare(device, &args, 0, &args.state, &args.workspace_bytes, &e), OK, "prepared");
    ok(args.workspace_bytes < (size_t)x.view.count * sizeof(float), "gradients of bf16 weights in bf16: %zu bytes",
       args.workspace_bytes);
    operand_free(&x);
    operand_free(&dy);
    operand_free(&dw);
}

int main(void) {
    Err e;
    omp_set_num_threads(threads = 2); /* shares of workspace and work that do not depend on the machine */
    if (device_cpu_open(&device, &e)) {
        ok(0, "open: %s", e.text);
        return tap_done();
    }
    test_device();
    test_nan();
    test_narrow_types();
    for (int k = 0; k < 2 && !sample_most(); k++) test_late(k ? DT_BF16 : DT_F32, ACT_TANH), test_late(k ? DT_BF16 : DT_F32, ACT_LEAKY);
    test_winograd();
    test_rows();
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        for (int pass = FORWARD; pass < PASSES; pass++) {
            const size_t turn = k + (size_t)pass;
            for (size_t c = 0; c < ARRAY_LEN(convs); c++)
                if (in_turn(c, ARRAY_LEN(convs), turn))
                    test_conv(&convs[c], &types[k], pass, act_in(pass, convs[c].act, c + k), NULL);
            if (pass < TRANSPOSE) test_taps(&types[k], pass), test_products(&types[k], pass), test_groups(&types[k], pass, turn);
            for (size_t c = 0; c < ARRAY_LEN(depthwise); c++)
                if (in_turn(c, ARRAY_LEN(depthwise), turn))
                    test_conv(&depthwise[c].conv, &types[k], pass, act_in(pass, depthwise[c].conv.act, c + k),
                              &(bool){depthwise_by(&depthwise[c], types[k].t[X], pass)});
            for (size_t c = 0; c < ARRAY_LEN(linears) && pass < TRANSPOSE; c++)
                if (in_turn(c, ARRAY_LEN(linears), turn))
                    test_linear(&linears[c], &types[k], pass, act_in(pass, linears[c].act, c + k));
        }
        device->table->trim(device, true);
    }
    if (sample_most()) return device->table->close(device), tap_done(); /* the rest counts what all cases met */
    const bool narrow = isa_has(dnnl_cpu_isa_avx512_core_bf16);
    ok(met_over[DT_F32][BY_OWN] && met_over[DT_BF16][BY_OWN] && met_over[DT_F16][BY_OWN] && met_over[DT_F16][BY_COPY] &&
       met_over[DT_F32][BY_BITS] && (!narrow || met_over[DT_BF16][BY_BITS]), "dx has overwritten s in every way");
    for (int pass = FORWARD; pass < TRANSPOSE; pass++)
        ok(!met_rounded[pass] == (pass == DW), "weights in fp32 were rounded in pass %d", pass);
    device->table->close(device);
    return tap_done();
}
