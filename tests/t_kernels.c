/* t_kernels.c: every kernel of the CPU device's own loops against its float64 twin (tests/reference/), as a table of
 * cases.
 *
 * Each case runs in every element type. Operands stand between guard bytes; a second run with one thread and, where
 * ops.def allows it, a run in place must give the same bits. Convolutions and matrix products are in t_onednn.c. */
#include <omp.h>
#include <stdlib.h>

#include "reference/reference.h"
#include "tap.h"
#include "view.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3, OPERANDS = OP_IN + OP_OUT };

/* ---- what is tested */

typedef struct Case {
    const char *name;
    OpKind kind;
    Shape x, y;            /* y: where it differs from x */
    Attr attr;
    unsigned absent_in, absent_out; /* bit per operand */
    int64_t order[3];      /* x is a flattened image */
    StepState state;
    uint32_t micro, calls;
    int infinity_at;       /* grad_check: element + 1 */
} Case;

/* One operand is two letters. Type: f the case's, g the case's other one (all combinations are run), w f32, i labels, b
 * window positions, c dropout's calls, s the step state. Shape: x or y, r x in plain rows, n samples, 1 one element. */
typedef struct Bench Bench;
typedef void FillFn(Bench *b);
typedef struct OpTest { OpKind kind; const char *in, *out; FillFn *fill; } OpTest;
static FillFn fill_calls, fill_coarse, fill_positions, fill_labels, fill_probabilities, fill_squares, fill_infinity;

static const OpTest op_tests[] = {
    {OP_act, "fx", "fx", NULL},
    {OP_act_dx, "fx fx", "fx", NULL},
    {OP_maxpool, "fx", "fy by", fill_coarse},
    {OP_maxpool_dx, "fy by", "fx", fill_positions},
    {OP_avgpool, "fx", "fy", NULL},
    {OP_avgpool_dx, "fy", "fx", NULL},
    {OP_adaptive_avgpool, "fx", "fy", NULL},
    {OP_adaptive_avgpool_dx, "fy", "fx", NULL},
    {OP_dropout, "fx c1", "fx", fill_calls},
    {OP_dropout_dx, "fx c1", "fx", fill_calls},
    {OP_count_call, "", "c1", fill_calls},
    {OP_add, "fx fx", "fx", NULL},
    {OP_cast, "fx", "gx", NULL},
    {OP_view, "fx", "fx", NULL},
    {OP_to_rows, "fx", "fr", NULL},
    {OP_to_rows_dx, "fr", "fx", NULL},
    {OP_cross_entropy, "fx in", "w1", fill_labels},
    {OP_cross_entropy_dx, "fx in s1", "fx", fill_labels},
    {OP_mse, "fx wx", "w1", NULL},
    {OP_mse_dx, "fx wx s1", "fx", NULL},
    {OP_bce_logits, "fx wx", "w1", fill_probabilities},
    {OP_bce_logits_dx, "fx wx s1", "fx", fill_probabilities},
    {OP_accumulate, "fx", "gx", NULL},
    {OP_grad_check, "fx", "s1", fill_infinity},
    {OP_step_begin, "", "s1", NULL},
    {OP_sgd, "fx s1", "fx gx wx", NULL},
    {OP_adam, "fx s1", "fx gx gx wx", fill_squares},
    {OP_scale_update, "", "s1", NULL},
};

/* Shapes that meet a single element, odd tails, and several blocks on several threads. */
#define S2(a, b) {2, {a, b, 1, 1}}
#define S4(a, b, c, d) {4, {a, b, c, d}}
#define ONE S2(1, 1)
#define ODD S2(3, 7)
#define BIG S2(5, 4001)
#define IMAGE S4(2, 3, 5, 7)
#define ACT(f) .attr.act = {ACT_##f, 0.1f, 0}
#define POOL(kh, kw, sh, sw, ph, pw, dh, dw, pad, div) .attr.pool = {{kh, kw}, {sh, sw}, {ph, pw}, {dh, dw}, pad, div}
#define BOTH_ACT(f, shape) {#f, OP_act, .x = shape, ACT(f)}, {#f, OP_act_dx, .x = shape, ACT(f)}
#define BOTH_POOL(op, text, X, Y, ...) \
    {text, OP_##op, .x = X, .y = Y, __VA_ARGS__}, {text, OP_##op##_dx, .x = X, .y = Y, __VA_ARGS__}
#define LOSS(scale, smoothing, ignore, sum) .attr.loss = {scale, smoothing, ignore, sum}
#define SCALED .state = {1024, 3, 0, 5}
#define NO_STATE .absent_in = 1 << 2
#define BOTH_LOSS(op, text, shape, ...) \
    {text, OP_##op, .x = shape, __VA_ARGS__}, {text, OP_##op##_dx, .x = shape, SCALED, __VA_ARGS__}, \
    {text ", no scaler", OP_##op##_dx, .x = shape, NO_STATE, __VA_ARGS__}
/*                 lr momentum dampening decay beta1 beta2 eps nesterov decoupled */
#define RULE(...) .attr.optim = {{__VA_ARGS__}}
#define SGD_PLAIN RULE(0.1f, 0, 0, 0, 0, 0, 0, 0, 0)
#define SGD_FULL RULE(0.1f, 0.9f, 0.3f, 0.01f, 0, 0, 0, 0, 0)
#define SGD_NESTEROV RULE(0.1f, 0.9f, 0, 0.01f, 0, 0, 0, 1, 0)
#define ADAM RULE(0.01f, 0, 0, 0.1f, 0.9f, 0.999f, 1e-8f, 0, 0)
#define ADAMW RULE(0.01f, 0, 0, 0.1f, 0.9f, 0.999f, 1e-8f, 0, 1)

static const Case cases[] = {
    BOTH_ACT(RELU, ONE), BOTH_ACT(RELU, ODD), BOTH_ACT(RELU, BIG), BOTH_ACT(RELU, IMAGE),
    BOTH_ACT(NONE, ODD), BOTH_ACT(LEAKY, BIG), BOTH_ACT(SIGMOID, BIG), BOTH_ACT(TANH, BIG), BOTH_ACT(GELU, BIG),
    BOTH_ACT(GELU_TANH, BIG), BOTH_ACT(SIGMOID, ONE), BOTH_ACT(TANH, ODD), BOTH_ACT(GELU, ODD),
    BOTH_ACT(GELU_TANH, IMAGE),
    BOTH_POOL(maxpool, "one pixel", S4(1, 1, 1, 1), S4(1, 1, 1, 1), POOL(1, 1, 1, 1, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "2x2", S4(3, 19, 8, 6), S4(3, 19, 4, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "3x3 overlapping, padded", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "3x2 dilated, oblong", S4(2, 3, 11, 8), S4(2, 3, 8, 6), POOL(3, 2, 1, 1, 1, 0, 3, 2, 0, 0)),
    BOTH_POOL(maxpool, "ceil_mode", S4(2, 3, 6, 8), S4(2, 3, 3, 4), POOL(3, 3, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "many channels", S4(1, 1037, 4, 4), S4(1, 1037, 2, 2), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0)),
    {"without idx", OP_maxpool, .x = IMAGE, .y = S4(2, 3, 2, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0),
     .absent_out = 1 << 1},
    BOTH_POOL(avgpool, "one pixel", S4(1, 1, 1, 1), S4(1, 1, 1, 1), POOL(1, 1, 1, 1, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "2x2", S4(3, 19, 8, 6), S4(3, 19, 4, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "gaps between windows", S4(2, 3, 8, 9), S4(2, 3, 3, 2), POOL(2, 3, 3, 5, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "padding counted", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "padding not counted", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 0, 0)),
    BOTH_POOL(avgpool, "divisor", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 5)),
    BOTH_POOL(avgpool, "ceil_mode, padding counted", S4(2, 3, 6, 8), S4(2, 3, 4, 5),
              POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "ceil_mode, not counted", S4(2, 3, 6, 8), S4(2, 3, 3, 4), POOL(3, 3, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(avgpool, "many channels", S4(1, 1037, 4, 4), S4(1, 1037, 2, 2), POOL(2, 2, 2, 2, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(adaptive_avgpool, "to one", S4(2, 19, 5, 7), S4(2, 19, 1, 1), .micro = 0),
    BOTH_POOL(adaptive_avgpool, "uneven", S4(2, 3, 10, 7), S4(2, 3, 4, 3), .micro = 0),
    BOTH_POOL(adaptive_avgpool, "same", IMAGE, IMAGE, .micro = 0),
    BOTH_POOL(adaptive_avgpool, "larger", S4(1, 3, 3, 2), S4(1, 3, 7, 5), .micro = 0),
    {"one", OP_dropout, .x = ONE, .attr.drop = {0.5f, 1, 0}},
    {"odd", OP_dropout, .x = ODD, .attr.drop = {0.25f, 2, 0}, .calls = 13},
    {"several blocks", OP_dropout, .x = BIG, .attr.drop = {0.5f, 3, 0}, .calls = 3},
    {"image", OP_dropout, .x = IMAGE, .attr.drop = {0.1f, 4, 0}},
    {"p = 0", OP_dropout, .x = ODD, .attr.drop = {0, 5, 0}},
    {"p = 1", OP_dropout, .x = BIG, .attr.drop = {1, 6, 0}},
    {"gradient", OP_dropout_dx, .x = BIG, .attr.drop = {0.5f, 3, 0}, .calls = 3},
    {"gradient of an image", OP_dropout_dx, .x = IMAGE, .attr.drop = {0.1f, 4, 0}},
    {"one", OP_add, .x = ONE}, {"odd", OP_add, .x = ODD}, {"several blocks", OP_add, .x = BIG},
    {"image", OP_add, .x = IMAGE},
    {"one", OP_cast, .x = ONE}, {"odd", OP_cast, .x = ODD}, {"several blocks", OP_cast, .x = BIG},
    {"image", OP_cast, .x = IMAGE},
    {"same storage", OP_view, .x = ODD},
    {"image", OP_to_rows, .x = IMAGE}, {"flattened", OP_to_rows, .x = S2(2, 105), .order = {3, 5, 7}},
    {"tiles", OP_to_rows, .x = S4(3, 67, 9, 5)}, {"one", OP_to_rows, .x = S4(1, 1, 1, 1)},
    {"image", OP_to_rows_dx, .x = IMAGE}, {"flattened", OP_to_rows_dx, .x = S2(2, 105), .order = {3, 5, 7}},
    {"tiles", OP_to_rows_dx, .x = S4(3, 67, 9, 5)}, {"one", OP_to_rows_dx, .x = S4(1, 1, 1, 1)},
    BOTH_LOSS(cross_entropy, "one sample", S2(1, 2), LOSS(1, 0, -100, 0)),
    BOTH_LOSS(cross_entropy, "mean", S2(13, 10), LOSS(0.5f, 0, -100, 0)),
    BOTH_LOSS(cross_entropy, "sum", S2(13, 10), LOSS(1, 0, -100, 1)),
    BOTH_LOSS(cross_entropy, "ignored", S2(13, 5), LOSS(1, 0, 2, 0)),
    BOTH_LOSS(cross_entropy, "smoothed, ignored", S2(13, 5), LOSS(1, 0.1f, 2, 0)),
    BOTH_LOSS(cross_entropy, "many", S2(301, 37), LOSS(1, 0.1f, -100, 0)),
    BOTH_LOSS(mse, "one", ONE, LOSS(1, 0, 0, 0)), BOTH_LOSS(mse, "mean", BIG, LOSS(0.25f, 0, 0, 0)),
    BOTH_LOSS(mse, "sum of an image", IMAGE, LOSS(1, 0, 0, 1)),
    BOTH_LOSS(bce_logits, "one", ONE, LOSS(1, 0, 0, 0)), BOTH_LOSS(bce_logits, "mean", BIG, LOSS(0.25f, 0, 0, 0)),
    BOTH_LOSS(bce_logits, "sum of an image", IMAGE, LOSS(1, 0, 0, 1)),
    {"next", OP_count_call, .x = ONE, .calls = 6},
    {"first", OP_accumulate, .x = BIG}, {"second", OP_accumulate, .x = BIG, .micro = 1},
    {"second, odd", OP_accumulate, .x = ODD, .micro = 1},
    {"finite", OP_grad_check, .x = BIG, SCALED}, {"infinity", OP_grad_check, .x = BIG, SCALED, .infinity_at = 20000},
    {"NaN", OP_grad_check, .x = ONE, SCALED, .infinity_at = -1},
    {"step", OP_step_begin, .x = ONE, SCALED}, {"overflow", OP_step_begin, .x = ONE, .state = {1024, 3, 1, 5}},
    {"plain", OP_sgd, .x = BIG, SGD_PLAIN, .absent_in = 1 << 1, .absent_out = 6},
    {"plain, scaler, master", OP_sgd, .x = ODD, SGD_PLAIN, SCALED, .absent_out = 2},
    {"without a state", OP_sgd, .x = BIG, SGD_NESTEROV, .absent_in = 1 << 1, .absent_out = 4},
    {"first update", OP_sgd, .x = ODD, SGD_FULL, .state = {1024, 0, 0, 1}},
    {"later update", OP_sgd, .x = BIG, SGD_FULL, SCALED},
    {"nesterov, master", OP_sgd, .x = BIG, SGD_NESTEROV, SCALED},
    {"overflow", OP_sgd, .x = ODD, SGD_FULL, .state = {1024, 0, 1, 1}},
    {"one", OP_adam, .x = ONE, ADAM, .state = {1, 0, 0, 1}, .absent_out = 8},
    {"adam", OP_adam, .x = BIG, ADAM, SCALED, .absent_out = 8}, {"adam, master", OP_adam, .x = ODD, ADAM, SCALED},
    {"adamw", OP_adam, .x = BIG, ADAMW, SCALED, .absent_out = 8}, {"adamw, master", OP_adam, .x = ODD, ADAMW, SCALED},
    {"overflow", OP_adam, .x = ODD, ADAM, .state = {1024, 0, 1, 5}},
    {"good", OP_scale_update, .x = ONE, SCALED, .attr.scaler = {2, 0.5f, 2000}},
    {"grows", OP_scale_update, .x = ONE, SCALED, .attr.scaler = {2, 0.5f, 4}},
    {"backs off", OP_scale_update, .x = ONE, .state = {1024, 3, 1, 5}, .attr.scaler = {2, 0.5f, 4}},
};

/* ---- one case at work */

/* The kernels by kind; what is not tested here is linked all the same. */
static KernelRun *const kernels[] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) k_cpu_##name,
#include "ops.def"
#undef OP
};

typedef struct Operand {
    bool present, state;  /* state: no numbers, but b->step */
    Buf buf;
    int64_t count;
    size_t bytes;
    double *values;       /* what the storage was packed from */
    uint8_t *block;       /* GUARD bytes, the storage, GUARD bytes */
    uint8_t *first;       /* the storage after the first run */
} Operand;

struct Bench {
    const Case *c;
    const OpTest *test;
    DType f, g;
    StepState step, step_after;
    Operand operand[OPERANDS]; /* inputs, then outputs */
    Ref ref;
    char problem[160];         /* the first one found */
};

static uint32_t drawn;
static double uniform(void) { return rng_uniform(philox(7, RNG_DATA, 0, 0, drawn++).x[0]); }

/* 0.1 <= |x| < 2: nothing is zero by chance, so nothing that is left out goes unseen */
static double nonzero(void) { return (0.1 + 1.9 * uniform()) * (uniform() < 0.5 ? -1 : 1); }

static uint8_t *storage(const Operand *o) { return o->block + GUARD; }

#define PROBLEM(b, ...) ((b)->problem[0] ? 0 : snprintf((b)->problem, sizeof (b)->problem, __VA_ARGS__))

static DType type_of(const Bench *b, char letter) {
    switch (letter) {
    case 'f': return b->f;
    case 'g': return b->g;
    case 'i': case 'c': return DT_I32;
    case 'b': return DT_U8;
    default: return DT_F32;
    }
}

static void describe(const Bench *b, Operand *o, char type, char shape) {
    const Case *c = b->c;
    bool x = shape == 'x' || shape == 'r';
    o->present = true;
    o->state = type == 's';
    o->buf.dtype = type_of(b, type);
    o->buf.shape = x ? c->x : shape == 'y' ? c->y : shape1(shape == 'n' ? c->x.dim[0] : 1);
    o->buf.layout = o->buf.shape.rank == 4 && shape != 'r' ? LAYOUT_NHWC : LAYOUT_ROWS;
    if (shape == 'x') memcpy(o->buf.order, c->order, sizeof c->order);
    o->count = shape_elements(&o->buf.shape);
    o->bytes = o->state ? sizeof(StepState) : (size_t)o->count * dtype_size(o->buf.dtype);
}

/* The operand's numbers as the storage holds them; `to_storage` false: back from it. */
static void transfer(const Operand *o, bool to_storage) {
    uint32_t *words = malloc((size_t)o->count * 4); /* fp32 or int32 */
    bool whole = !dtype_is_float(o->buf.dtype);
    if (!words) exit(2);
    if (!to_storage) view_unpack(&o->buf, storage(o), words);
    for (int64_t i = 0; i < o->count; i++) {
        if (!to_storage) o->values[i] = whole ? (int32_t)words[i] : f32_from_bits(words[i]);
        else words[i] = whole ? (uint32_t)(int32_t)o->values[i] : f32_bits((float)o->values[i]);
    }
    if (to_storage) view_pack(&o->buf, words, storage(o));
    free(words);
}

static bool is_updated(const Bench *b, int k) { return k >= OP_IN && op_info(b->c->kind)->out_updated[k - OP_IN]; }

/* Storage as it is before a run: inputs and updated outputs hold numbers, other outputs junk. */
static void load(Bench *b) {
    b->step = b->c->state;
    for (int k = 0; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        if (!o->present) continue;
        memset(o->block, GUARD_BYTE, o->bytes + 2 * GUARD);
        if (o->state) memcpy(storage(o), &b->step, sizeof b->step);
        else if (k < OP_IN || is_updated(b, k)) transfer(o, true);
        else memset(storage(o), JUNK_BYTE, o->bytes);
    }
}

static void bench_open(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        const char *spec = k < OP_IN ? b->test->in : b->test->out;
        int slot = k % OP_IN;
        unsigned absent = k < OP_IN ? b->c->absent_in : b->c->absent_out;
        if ((size_t)slot * 3 >= strlen(spec) || absent >> slot & 1) continue;
        Operand *o = &b->operand[k];
        describe(b, o, spec[3 * slot], spec[3 * slot + 1]);
        o->values = calloc((size_t)o->count, sizeof *o->values);
        o->block = malloc(o->bytes + 2 * GUARD);
        o->first = malloc(o->bytes);
        if (!o->values || !o->block || !o->first) exit(2);
        for (int64_t i = 0; i < o->count; i++) o->values[i] = nonzero();
    }
    if (b->test->fill) b->test->fill(b);
    load(b);
    for (int k = 0; k < OPERANDS; k++) /* the twin starts from what the element type could hold */
        if (b->operand[k].present && !b->operand[k].state && (k < OP_IN || is_updated(b, k)))
            transfer(&b->operand[k], false);
}

static void bench_close(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        free(b->operand[k].values);
        free(b->operand[k].block);
        free(b->operand[k].first);
    }
}

/* The kernel once, on freshly loaded storage; in place: output 0 stands where input 0 does. */
static void run(Bench *b, bool inplace) {
    KArgs a;
    Err e = {0, ""};
    memset(&a, 0, sizeof a);
    load(b);
    a.kind = b->c->kind;
    a.attr = &b->c->attr;
    a.seed = 42;
    a.micro = b->c->micro;
    for (int k = 0; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        View v = view_of(o->present ? &o->buf : NULL, o->present ? storage(o) : NULL);
        if (k < OP_IN) a.in[k] = v;
        else a.out[k - OP_IN] = v;
    }
    if (inplace) a.out[0].data = a.in[0].data;
    if (kernels[a.kind](&a, &e) != OK) PROBLEM(b, "the kernel failed: %s", e.text);
    if (inplace) memcpy(storage(&b->operand[OP_IN]), a.out[0].data, b->operand[OP_IN].bytes);
}

static void twin(Bench *b) {
    Ref *r = &b->ref;
    *r = (Ref){.attr = &b->c->attr, .seed = 42, .micro = b->c->micro, .channels_last = b->c->x.rank == 4};
    b->step_after = b->c->state;
    for (int k = 0; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        Tensor t = {o->buf.shape, o->count, o->state ? NULL : o->values};
        if (!o->present) continue;
        if (o->state) r->state = &b->step_after;
        else if (k < OP_IN) r->in[k] = t;
        else r->out[k - OP_IN] = t;
    }
    ref_table[b->c->kind](r);
}

/* Half a unit in the last place for the result's rounding, and a few fp32 roundings before it. Where terms cancel,
 * these are as large as in the output's largest element. */
static bool is_close(DType t, double found, double expected, double largest) {
    static const double half_ulp[DT_COUNT] = {[DT_BF16] = 1.0 / 256, [DT_F16] = 1.0 / 2048};
    double subnormal = t == DT_F16 ? 1.0 / (1 << 25) : 0; /* half the distance of the smallest ones */
    if (isnan(expected)) return isnan(found);
    if (!dtype_is_float(t)) return found == expected;
    return found == expected || fabs(found - expected) <= half_ulp[t] * fabs(expected) + subnormal + 4e-6 * largest;
}

static void compare(Bench *b) {
    for (int k = OP_IN; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        if (!o->present) continue;
        if (o->state) {
            if (memcmp(o->first, &b->step_after, sizeof b->step_after)) PROBLEM(b, "the state differs");
            continue;
        }
        double *expected = o->values;
        o->values = calloc((size_t)o->count, sizeof *o->values);
        if (!o->values) exit(2);
        memcpy(storage(o), o->first, o->bytes);
        transfer(o, false);
        double largest = 0;
        for (int64_t i = 0; i < o->count; i++) largest = fmax(largest, fabs(expected[i]));
        for (int64_t i = 0; i < o->count; i++)
            if (!is_close(o->buf.dtype, o->values[i], expected[i], largest))
                PROBLEM(b, "output %d, element %lld: found %.9g, expected %.9g", k - OP_IN, (long long)i, o->values[i],
                        expected[i]);
        free(expected);
    }
}

static void check_guards(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        const Operand *o = &b->operand[k];
        for (size_t i = 0; o->present && i < GUARD; i++)
            if (o->block[i] != GUARD_BYTE || storage(o)[o->bytes + i] != GUARD_BYTE)
                PROBLEM(b, "bytes around operand %d changed", k);
    }
}

static void save(Bench *b) {
    for (int k = 0; k < OPERANDS; k++)
        if (b->operand[k].present) memcpy(b->operand[k].first, storage(&b->operand[k]), b->operand[k].bytes);
}

/* `from`: OP_IN compares the outputs only */
static void check_same(Bench *b, int from, const char *what) {
    for (int k = from; k < OPERANDS; k++) {
        const Operand *o = &b->operand[k];
        if (o->present && memcmp(o->first, storage(o), o->bytes)) PROBLEM(b, "operand %d differs %s", k, what);
    }
}

static void case_run(const OpTest *test, const Case *c, DType f, DType g) {
    Bench *b = calloc(1, sizeof *b);
    int threads = omp_get_max_threads(), inplace_slot = op_info(c->kind)->inplace;
    bool alias = c->kind == OP_view; /* not an operation but a claim: only in place */
    if (!b) exit(2);
    b->c = c;
    b->test = test;
    b->f = f;
    b->g = g;
    bench_open(b);
    save(b);
    run(b, alias);
    for (int k = 0; k < OP_IN; k++)
        if (b->operand[k].present && memcmp(b->operand[k].first, storage(&b->operand[k]), b->operand[k].bytes))
            PROBLEM(b, "input %d changed", k);
    check_guards(b);
    save(b);
    omp_set_num_threads(1);
    run(b, alias);
    omp_set_num_threads(threads);
    check_same(b, 0, "from run to run");
    if (inplace_slot == 0) run(b, true);
    check_guards(b);
    check_same(b, OP_IN, "in place");
    twin(b);
    compare(b);
    char x[SHAPE_TEXT];
    if (!ok(!b->problem[0], "%s %s %s %s %s", op_info(c->kind)->name, c->name, shape_text(&c->x, x), dtype_name(f),
            dtype_name(g)))
        printf("# %s\n", b->problem);
    bench_close(b);
    free(b);
}

/* ---- data that an op needs in place of plain numbers */

/* The counter is the op's last operand, input or output. */
static void fill_calls(Bench *b) { b->operand[b->c->kind == OP_count_call ? OP_IN : 1].values[0] = b->c->calls; }

/* Quarters: many windows hold their maximum twice. */
static void fill_coarse(Bench *b) {
    Operand *x = &b->operand[0];
    for (int64_t i = 0; i < x->count; i++) x->values[i] = floor(4 * x->values[i]) / 4;
}

/* Positions as a forward pass finds them. */
static void fill_positions(Bench *b) {
    Operand *dx = &b->operand[OP_IN], *idx = &b->operand[1];
    double *y = calloc((size_t)idx->count, sizeof *y);
    if (!y) exit(2);
    Ref r = {.attr = &b->c->attr, .in = {{dx->buf.shape, dx->count, dx->values}},
             .out = {{idx->buf.shape, idx->count, y}, {idx->buf.shape, idx->count, idx->values}}};
    ref_maxpool(&r);
    free(y);
}

static void fill_labels(Bench *b) {
    Operand *t = &b->operand[1];
    for (int64_t i = 0; i < t->count; i++) t->values[i] = floor(uniform() * (double)b->c->x.dim[1]);
}

static void fill_probabilities(Bench *b) {
    for (int64_t i = 0; i < b->operand[1].count; i++) b->operand[1].values[i] = uniform();
}

/* Adam's v is a mean of squares. */
static void fill_squares(Bench *b) {
    Operand *v = &b->operand[OP_IN + 2];
    for (int64_t i = 0; i < v->count; i++) v->values[i] = fabs(v->values[i]);
}

static void fill_infinity(Bench *b) {
    if (b->c->infinity_at) b->operand[0].values[abs(b->c->infinity_at) - 1] = b->c->infinity_at > 0 ? -INFINITY : NAN;
}

/* ---- what a table of numbers cannot say */

static View view_at(void *data, Shape shape, DType t, int channels_last) {
    return (View){data, shape, t, channels_last, {0, 0, 0}, shape_elements(&shape)};
}

static void test_special_values(void) {
    Err e = {0, ""};
    float x[4] = {-1, NAN, 2, 1}, y[4];
    uint8_t idx[1];
    Attr attr = {.act = {ACT_RELU, 0, 0}}, window = {.pool = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, 0, 0}};
    KArgs a = {.attr = &attr, .in = {view_at(x, shape2(1, 4), DT_F32, 0)},
               .out = {view_at(y, shape2(1, 4), DT_F32, 0)}};
    is_int(k_cpu_act(&a, &e), OK, "relu of a NaN runs");
    ok(y[0] == 0 && isnan(y[1]) && y[2] == 2, "relu lets a NaN through");
    KArgs p = {.kind = OP_maxpool, .attr = &window, .in = {view_at(x, shape4(1, 1, 2, 2), DT_F32, 1)},
               .out = {view_at(y, shape4(1, 1, 1, 1), DT_F32, 1), view_at(idx, shape4(1, 1, 1, 1), DT_U8, 1)}};
    is_int(k_cpu_maxpool(&p, &e), OK, "maxpool of a NaN runs");
    ok(isnan(y[0]) && idx[0] == 1, "maxpool lets a NaN win");
    for (int i = 0; i < 4; i++) x[i] = -INFINITY;
    is_int(k_cpu_maxpool(&p, &e), OK, "maxpool of -inf runs");
    ok(y[0] == -INFINITY && idx[0] == 0, "the first of equal infinities is the maximum");
    p.in[0].channels_last = 0;
    is_int(k_cpu_maxpool(&p, &e), ERR_INTERNAL, "an image in another layout is refused");
    has_text(e.text, "maxpool", "and the message names the op");
    KArgs v = {.in = {view_at(x, shape2(1, 4), DT_F32, 0)}, .out = {view_at(y, shape2(1, 4), DT_F32, 0)}};
    is_int(k_cpu_view(&v, &e), ERR_INTERNAL, "a view of other storage is refused");
}

static void test_ignored(void) {
    Err e = {0, ""};
    float x[20] = {0}, y[20];
    int32_t t[2];
    Attr attr = {.loss = {1, 0, -100, 0}};
    KArgs a = {.attr = &attr, .in = {view_at(x, shape2(2, 10), DT_F32, 0), view_at(t, shape1(2), DT_I32, 0)},
               .out = {view_at(y, shape2(2, 10), DT_F32, 0)}};
    t[0] = t[1] = -100;
    is_int(k_cpu_cross_entropy(&a, &e), OK, "all samples ignored: runs");
    ok(isnan(y[0]), "the mean over no samples is NaN");
    is_int(k_cpu_cross_entropy_dx(&a, &e), OK, "its gradient runs");
    bool zero = true;
    for (int i = 0; i < 20; i++) zero &= y[i] == 0;
    ok(zero, "and is zero");
}

int main(void) {
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    int covered[OP_KIND_COUNT] = {0};
    for (size_t i = 0; i < ARRAY_LEN(op_tests); i++)
        for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
            if (cases[k].kind != op_tests[i].kind) continue;
            covered[cases[k].kind]++;
            for (size_t f = 0; f < ARRAY_LEN(types); f++)
                for (size_t g = 0; g < (strchr(op_tests[i].out, 'g') ? ARRAY_LEN(types) : 1); g++)
                    case_run(&op_tests[i], &cases[k], types[f], types[g]);
        }
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        ok(op_info(kind)->prepared ? !ref_table[kind] : ref_table[kind] && covered[kind], "%s has %s",
           op_info(kind)->name,
           op_info(kind)->prepared ? "its test in t_onednn.c" : "a twin and cases");
    test_special_values();
    test_ignored();
    return tap_done();
}
