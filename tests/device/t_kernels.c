/* t_kernels.c: ops on every device against their float64 twins (tests/reference/), by a table of cases
 * (kernel_cases.h). Convolutions, linear layers, recurrent layers and attention have tests of their own.
 *
 * Each case runs in every element type. Operands stand between guard bytes. More runs must give the same bits: one by
 * one thread, or with threads and blocks in reverse order; one from storage that is aligned to single elements only;
 * and one in place, if ops.def allows it.
 *
 * "cuda:0" is the emulated GPU of tests/emulate/, or a real one: MEMTIDE_CUDA names the plugin. */
#include "each_device.h"
#include "kernel_cases.h"
#include "on_device.h"
#include "sample.h"
#include "reference/reference.h"
#include "tap.h"
#include "math/quantized.h"
#include "program/formula.h"
#include "program/view.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3, OPERANDS = OP_IN + OP_OUT, LIMIT = 4 << 20 };

/* ---- one case at work */

typedef struct Operand {
    bool present, state, codes; /* state: no numbers, but b->step; codes: of numbers, see is_close */
    Buf buf;
    int64_t count;
    size_t bytes;
    double *values;       /* what the storage was packed from */
    uint8_t *block;       /* GUARD bytes, the storage, GUARD bytes */
    uint8_t *before;      /* the block before a run */
    uint8_t *first;       /* the storage after the first run */
} Operand;

struct Bench {
    Device *device;
    const Case *c;
    const OpTest *test;
    DType f, g;
    StepState step, step_after;
    Operand operand[OPERANDS]; /* inputs, then outputs */
    Ref ref;
    char problem[160];         /* the first one found */
};

static Formula ref_formula_steps; /* of REF_FORMULA */

static uint32_t drawn;
static double uniform(void) { return rng_uniform(philox(7, RNG_DATA, 0, 0, drawn++).x[0]); }

/* 0.1 <= |x| < 2: no number is 0 by chance, so one that is left out is noticed */
static double nonzero(void) { return (0.1 + 1.9 * uniform()) * (uniform() < 0.5 ? -1 : 1); }

static uint8_t *storage(const Operand *o) { return o->block + GUARD; }

#define PROBLEM(b, ...) ((b)->problem[0] ? 0 : snprintf((b)->problem, sizeof (b)->problem, __VA_ARGS__))

static DType type_of(const Bench *b, char letter) {
    switch (letter) {
    case 'f': return b->f;
    case 'g': return b->g;
    case 'i': case 'c': return DT_I32;
    case 'b': case 'q': return DT_U8;
    case 'v': return b->c->absent_in >> 2 & 1 ? b->f : DT_U8;
    case 'a': return b->c->absent_in >> 4 & 1 ? DT_F32 : DT_U8;
    default: return DT_F32;
    }
}

/* Of a part of a quantised weight */
static Shape part_shape(const Case *c, char letter) {
    const int64_t n = shape_elements(&c->z), blocks = quant4_blocks(n);
    const bool eight = c->absent_in >> 3 & 1;
    switch (letter) {
    case 'k': return eight || c->absent_in >> 2 & 1 ? c->z : shape2(quant4_bytes(n), 1);
    case 'o': return shape1(c->z.dim[0]);
    case 'e': return shape1(eight ? c->z.dim[0] : blocks);
    case 'E': return shape1(quant4_nested(blocks));
    default: return shape1(letter == 'm' ? QUANT_MAP : QUANT_NESTED_MAP);
    }
}

static void describe(const Bench *b, Operand *o, char type, char shape) {
    const Case *c = b->c;
    bool x = shape == 'x' || shape == 'r';
    o->present = true;
    o->state = type == 's';
    o->codes = type == 'q';
    o->buf.dtype = type_of(b, type);
    o->buf.shape = strchr("koeEmM", shape) ? part_shape(c, shape) : x ? c->x : shape == 'y' ? c->y : shape == 'z' ? c->z :
        shape == '2' ? shape2(c->x.dim[0], 2) : shape1(shape == 'n' ? c->x.dim[0] : 1);
    o->buf.layout = o->buf.shape.rank == 4 && shape != 'r' && !c->plain ? LAYOUT_NHWC : LAYOUT_ROWS;
    if (shape == 'x' || (shape == 'z' && c->kind == OP_adafactor)) memcpy(o->buf.order, c->order, sizeof c->order);
    o->count = shape_elements(&o->buf.shape);
    o->bytes = o->state ? sizeof(StepState) : (size_t)o->count * dtype_size(o->buf.dtype);
}

/* Writes the operand's numbers to its storage; to_storage false: reads them from it. */
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

static bool is_updated(const Bench *b, int k) { return k >= OP_IN && op_info(b->c->kind)->out[k - OP_IN].updated; }

/* Fills the storage as a run finds it: inputs and updated outputs with numbers, other outputs with junk. */
static void fill(Bench *b) {
    b->step = b->c->state;
    for (int k = 0; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        if (!o->present) continue;
        memset(o->block, GUARD_BYTE, o->bytes + 2 * GUARD);
        if (o->state) memcpy(storage(o), &b->step, sizeof b->step);
        else if (k < OP_IN || is_updated(b, k)) transfer(o, true);
        else memset(storage(o), JUNK_BYTE, o->bytes);
        memcpy(o->before, o->block, o->bytes + 2 * GUARD);
    }
}

/* The same again, for a further run */
static void load(Bench *b) {
    for (int k = 0; k < OPERANDS; k++)
        if (b->operand[k].present) memcpy(b->operand[k].block, b->operand[k].before, b->operand[k].bytes + 2 * GUARD);
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
        o->before = malloc(o->bytes + 2 * GUARD);
        o->first = malloc(o->bytes);
        if (!o->values || !o->block || !o->before || !o->first) exit(2);
        for (int64_t i = 0; i < o->count; i++) o->values[i] = nonzero();
    }
    if (b->test->fill) b->test->fill(b);
    fill(b);
    for (int k = 0; k < OPERANDS; k++) /* the twin starts from what the element type could hold */
        if (b->operand[k].present && !b->operand[k].state && (k < OP_IN || is_updated(b, k)))
            transfer(&b->operand[k], false);
}

static void bench_close(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        free(b->operand[k].values);
        free(b->operand[k].block);
        free(b->operand[k].before);
        free(b->operand[k].first);
    }
}

/* Runs the kernel once, on freshly filled storage; in place: output 0 has the storage of input 0. */
static void run(Bench *b, bool inplace, bool misaligned) {
    Apply to = {b->device, GUARD, misaligned};
    KArgs a;
    Err e = {0, ""};
    memset(&a, 0, sizeof a);
    load(b);
    a.kind = b->c->kind;
    a.attr = &b->c->attr;
    a.seed = 42;
    a.micro = b->c->micro;
    a.script = &ref_formula_steps;
    for (int k = 0; k < OPERANDS; k++) {
        Operand *o = &b->operand[k];
        View v = view_of(o->present ? &o->buf : NULL, o->present ? storage(o) : NULL);
        if (k < OP_IN) a.in[k] = v;
        else a.out[k - OP_IN] = v;
    }
    if (inplace) a.out[0].data = a.in[0].data;
    if (apply(&to, &a, b->c->limit ? (size_t)b->c->limit : LIMIT, &e) != OK) PROBLEM(b, "the kernel failed: %s", e.text);
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

/* The tolerance: half a unit in the last place for rounding the result, and a few fp32 roundings before it, more of them where
 * `terms` numbers may be added up one after the other: errors of either sign grow by the root of their number. Where terms
 * cancel, these are as large as the output's largest element's. */
static bool is_close(DType t, double found, double expected, double largest, int terms) {
    static const double half_ulp[DT_COUNT] = {[DT_BF16] = 1.0 / 256, [DT_F16] = 1.0 / 2048};
    double subnormal = t == DT_F16 ? 1.0 / (1 << 25) : 0; /* half the distance of the smallest ones */
    if (isnan(expected)) return isnan(found);
    if (!dtype_is_float(t)) return found == expected;
    double roundings = 4e-6 * fmax(1, sqrt(terms) / 64) * largest;
    return found == expected || fabs(found - expected) <= half_ulp[t] * fabs(expected) + subnormal + roundings;
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
            if (!is_close(o->buf.dtype, o->values[i], expected[i], largest, b->c->terms) &&
                !(o->codes && fabs(o->values[i] - expected[i]) <= 1))
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

/* A library's products want matrices that start at whole 16-byte words. */
static bool runs_anywhere(OpKind kind) { return kind != OP_linear_q && kind != OP_linear_q_dx; }

static void bench_run(Bench *b) {
    bool alias = b->c->kind == OP_view; /* not an operation but a claim: only in place */
    save(b);
    run(b, alias, false);
    for (int k = 0; k < OP_IN; k++)
        if (b->operand[k].present && memcmp(b->operand[k].first, storage(&b->operand[k]), b->operand[k].bytes))
            PROBLEM(b, "input %d changed", k);
    check_guards(b);
    save(b);
    const int threads = apply_backwards();
    run(b, alias, false);
    apply_forwards(threads);
    check_same(b, 0, "from run to run");
    if (runs_anywhere(b->c->kind)) {
        run(b, alias, true);
        check_guards(b);
        check_same(b, 0, "where nothing is aligned");
    }
    if (op_info(b->c->kind)->inplace == 0 && b->operand[0].bytes == b->operand[OP_IN].bytes) run(b, true, false);
    check_guards(b);
    check_same(b, OP_IN, "in place");
    twin(b);
    compare(b);
}

static void case_run(Device *device, const OpTest *test, const Case *c, DType f, DType g) {
    Bench *b = calloc(1, sizeof *b);
    char x[SHAPE_TEXT];
    if (!b) exit(2);
    *b = (Bench){.device = device, .c = c, .test = test, .f = f, .g = g};
    drawn = 0; /* a case's numbers are the same whatever stands before it */
    bench_open(b);
    bench_run(b);
    if (!ok(!b->problem[0], "%s %s %s %s %s %s", device->table->kind, op_info(c->kind)->name, c->name,
            shape_text(&c->x, x), dtype_name(f), dtype_name(g)))
        printf("# %s\n", b->problem);
    bench_close(b);
    free(b);
}

/* ---- data that an op needs in place of plain numbers */

/* The counter is the op's last operand, input or output. */
static void fill_calls(Bench *b) {
    b->operand[b->c->kind == OP_count_call ? OP_IN : b->c->kind != OP_randn].values[0] = b->c->calls;
}

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

static void fill_batches(Bench *b) {
    Operand *var = &b->operand[OP_IN + 4];
    for (int64_t i = 0; i < var->count; i++) var->values[i] = fabs(var->values[i]);
    if (b->operand[OP_IN + 5].present) b->operand[OP_IN + 5].values[0] = b->c->calls;
}

/* Quarters, of which many are equal, and their maxima. */
static void fill_maxima(Bench *b) {
    Operand *x = &b->operand[1], *y = &b->operand[2];
    if (!x->present) return;
    for (int64_t i = 0; i < x->count; i++) x->values[i] = floor(4 * x->values[i]) / 4;
    Ref r = {.attr = &b->c->attr, .in = {{x->buf.shape, x->count, x->values}},
             .out = {{y->buf.shape, y->count, y->values}}};
    ref_reduce(&r);
}

static void fill_variance(Bench *b) {
    Operand *var = &b->operand[4];
    for (int64_t i = 0; i < var->count; i++) var->values[i] = fabs(var->values[i]);
}

/* Few different tokens, so that most rows have the same one twice, and some have none */
static void fill_places(Bench *b) {
    for (int64_t i = 0; i < b->operand[0].count; i++) b->operand[0].values[i] = floor(uniform() * 4);
}

/* Of a table of which w has some of the rows, the others, too */
static void fill_indices(Bench *b) {
    Operand *idx = &b->operand[b->c->kind == OP_embedding ? 0 : 1];
    const double rows = (double)(b->c->z.dim[0] * (b->c->attr.embedding.first ? 3 : 1));
    for (int64_t i = 0; i < idx->count; i++) idx->values[i] = floor(uniform() * rows);
}

/* Positions of sequences of up to 8 steps */
static void fill_steps(Bench *b) {
    Operand *positions = &b->operand[1];
    for (int64_t i = 0; i < positions->count; i++)
        positions->values[i] = i % b->c->x.dim[1] && uniform() > 0.2 ? positions->values[i - 1] + 1 : 0;
}

static void fill_labels(Bench *b) {
    Operand *t = &b->operand[1], *w = &b->operand[b->c->kind == OP_cross_entropy ? 2 : 3];
    for (int64_t i = 0; i < w->count; i++) w->values[i] = fabs(w->values[i]); /* else their sum may cancel out */
    for (int64_t i = 0; i < t->count; i++) t->values[i] = floor(uniform() * (double)b->c->x.dim[1]);
}

static void fill_rows(Bench *b) {
    Operand *t = &b->operand[1];
    for (int64_t i = 0; i < t->count; i++) t->values[i] = floor(uniform() * (double)b->c->x.dim[1]);
}

/* Beside labels what cross_entropy finds out about the rows of x, in the type that they have. */
static void fill_stats(Bench *b) {
    Operand *x = &b->operand[0], *stats = &b->operand[4];
    fill_labels(b);
    transfer(x, true);
    transfer(x, false);
    for (int64_t n = 0; stats->present && n < b->c->x.dim[0]; n++)
        ref_softmax_stats(&x->values[n * b->c->x.dim[1]], b->c->x.dim[1], &stats->values[2 * n]);
}

/* Of the losses that want them: as targets, and of BCELoss as inputs, too. */
static void fill_probabilities(Bench *b) {
    LossFn f = b->c->attr.loss.f;
    for (int k = f == LOSS_BCE ? 0 : 1; k < 2 && f >= LOSS_BCE; k++)
        for (int64_t i = 0; i < b->operand[k].count; i++) b->operand[k].values[i] = 0.02 + 0.96 * uniform();
}

/* A learning rate, the square of a norm that is clipped or is not, and states as updates leave them: means and sums
 * of squares are positive, and larger than the square of a mean. */
static void fill_update(Bench *b) {
    if (b->operand[2].present) b->operand[2].values[0] = 0.02;
    if (b->operand[3].present) b->operand[3].values[0] = b->c->attr.optim.rule.clip_norm > 1 ? 1e-3 : 1e7;
    for (int k = 1; k < op_master(b->c->kind); k++) {
        Operand *state = &b->operand[OP_IN + k];
        const char *name = op_info(b->c->kind)->out[k].name;
        bool squares = strstr(name, "sq") || strstr(name, "var") || !strcmp(name, "sum") || !strcmp(name, "second");
        bool mean = !strcmp(name, "grad_avg");
        for (int64_t i = 0; i < state->count; i++)
            state->values[i] = squares ? fabs(state->values[i]) : mean ? 0.1 * state->values[i] : state->values[i];
    }
}

/* Any codes, and scales above 0. */
static void fill_codes(Bench *b) {
    Operand *scale = &b->operand[OP_IN + op_master(b->c->kind) - 1];
    fill_update(b);
    for (Operand *code = &b->operand[OP_IN + 1]; code <= &b->operand[OP_IN + OPTIM_STATES]; code++)
        for (int64_t i = 0; i < code->count; i++) code->values[i] = floor(256 * uniform());
    for (int64_t i = 0; i < scale->count; i++) scale->values[i] = fabs(scale->values[i]);
}

/* Any codes, and maps and scales in which every weight has few bits: 16-bit types hold it exactly. */
static void fill_quantized(Bench *b) {
    const double scales[] = {0.5, 1, 2}, unit = b->c->absent_in >> 3 & 1 ? 127 : 1;
    for (int k = 1; k <= 6; k++)
        for (int64_t i = 0; i < b->operand[k].count; i++) {
            const bool map = k == 3 || k == 5, codes = b->operand[k].buf.dtype == DT_U8;
            double value = map ? floor(9 * uniform()) / 4 - 1 : scales[(int)(3 * uniform())] * unit;
            if (k == 6) value = 2;
            b->operand[k].values[i] = codes ? floor(256 * uniform()) : value;
        }
}

static void fill_bytes(Bench *b) {
    for (int64_t i = 0; i < b->operand[0].count; i++) b->operand[0].values[i] = floor(256 * uniform());
}

static void fill_infinity(Bench *b) {
    if (b->c->infinity_at) b->operand[0].values[abs(b->c->infinity_at) - 1] = b->c->infinity_at > 0 ? -INFINITY : NAN;
}

/* ---- what a table of numbers cannot say */

static View view_at(void *data, Shape shape, DType t, int channels_last) {
    return (View){data, shape, t, channels_last, {0, 0, 0}, shape_elements(&shape)};
}

static void test_special_values(Device *d) {
    Err e = {0, ""};
    Apply to = {d, 0, false};
    float x[4] = {-1, NAN, 2, 1}, y[4];
    uint8_t idx[1];
    Attr relu = {.act = {.act = ACT_RELU}},
         window = {.pool = {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}}};
    KArgs a = {.kind = OP_act, .attr = &relu, .in = {view_at(x, shape2(1, 4), DT_F32, 0)},
               .out = {view_at(y, shape2(1, 4), DT_F32, 0)}};
    is_int(apply(&to, &a, LIMIT, &e), OK, "relu of a NaN runs");
    ok(y[0] == 0 && isnan(y[1]) && y[2] == 2, "relu lets a NaN through");
    KArgs p = {.kind = OP_maxpool, .attr = &window, .in = {view_at(x, shape4(1, 1, 2, 2), DT_F32, 1)},
               .out = {view_at(y, shape4(1, 1, 1, 1), DT_F32, 1), view_at(idx, shape4(1, 1, 1, 1), DT_U8, 1)}};
    is_int(apply(&to, &p, LIMIT, &e), OK, "maxpool of a NaN runs");
    ok(isnan(y[0]) && idx[0] == 1, "maxpool lets a NaN win");
    for (int i = 0; i < 4; i++) x[i] = -INFINITY;
    is_int(apply(&to, &p, LIMIT, &e), OK, "maxpool of -inf runs");
    ok(y[0] == -INFINITY && idx[0] == 0, "the first of equal infinities is the maximum");
    p.in[0].channels_last = 0;
    is_int(apply(&to, &p, LIMIT, &e), ERR_INTERNAL, "an image in another layout is refused");
    has_text(e.text, "maxpool", "and the message names the op");
    KArgs v = {.kind = OP_view, .attr = &relu, .in = {view_at(x, shape2(1, 4), DT_F32, 0)},
               .out = {view_at(y, shape2(1, 4), DT_F32, 0)}};
    is_int(apply(&to, &v, LIMIT, &e), ERR_INTERNAL, "a view of other storage is refused");
}

static void test_ignored(Device *d) {
    Err e = {0, ""};
    Apply to = {d, 0, false};
    float x[20], y[20], stats[4], loss;
    int32_t t[2] = {-100, -100};
    Attr attr = {.loss = {1, 0, -100, 0}};
    KArgs a = {.kind = OP_cross_entropy, .attr = &attr,
               .in = {view_at(x, shape2(2, 10), DT_F32, 0), view_at(t, shape1(2), DT_I32, 0)},
               .out = {view_at(&loss, shape1(1), DT_F32, 0), view_at(stats, shape2(2, 2), DT_F32, 0)}};
    for (int i = 0; i < 20; i++) x[i] = i % 3 ? 100.0f * (float)i : i % 2 ? NAN : INFINITY; /* numbers of which none matters */
    is_int(apply(&to, &a, LIMIT, &e), OK, "all samples ignored: runs");
    ok(isnan(loss), "the mean over no samples is NaN");
    a.kind = OP_cross_entropy_dx;
    a.in[4] = a.out[1];
    a.out[0] = view_at(y, shape2(2, 10), DT_F32, 0);
    a.out[1] = (View){0};
    is_int(apply(&to, &a, LIMIT, &e), OK, "its gradient runs");
    bool zero = true;
    for (int i = 0; i < 20; i++) zero &= y[i] == 0;
    ok(zero, "and is zero");
}

/* The bits of fp32 numbers, by index: every 16-bit number of both types, the middle between it and the next one, and
 * the neighbours of that middle. */
enum { NEAR = 5, NUMBERS = 2 * 65536 * NEAR };

static float number_at(int i) {
    static const uint32_t steps[2][NEAR] = {{0, 0x7fff, 0x8000, 0x8001, 0xffff}, {0, 0x0fff, 0x1000, 0x1001, 0x1fff}};
    uint16_t h = (uint16_t)(i / NEAR / 2);
    int f16 = i / NEAR % 2;
    return f32_from_bits(f32_bits(f16 ? f16_to_f32(h) : bf16_to_f32(h)) + steps[f16][i % NEAR]);
}

static void test_conversions(Device *d) {
    static const DType types[] = {DT_BF16, DT_F16};
    float *wide = malloc(NUMBERS * sizeof *wide);
    uint16_t *narrow = malloc(NUMBERS * sizeof *narrow);
    Apply to = {d, 0, false};
    Attr attr;
    Err e = {0, ""};
    memset(&attr, 0, sizeof attr);
    if (!wide || !narrow) exit(2);
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        KArgs a = {.kind = OP_cast, .attr = &attr, .in = {view_at(wide, shape1(NUMBERS), DT_F32, 0)},
                   .out = {view_at(narrow, shape1(NUMBERS), types[t], 0)}};
        long wrong = 0;
        for (int i = 0; i < NUMBERS; i++) wide[i] = number_at(i);
        if (apply(&to, &a, LIMIT, &e)) wrong = -1;
        for (int i = 0; i < NUMBERS; i++)
            wrong += narrow[i] != (types[t] == DT_F16 ? f16_from_f32(wide[i]) : bf16_from_f32(wide[i]));
        is_int(wrong, 0, "every fp32 number near a 16-bit one is rounded as core/base/dtype.h does");
        for (int i = 0; i < NUMBERS; i++) narrow[i] = (uint16_t)i;
        View narrow_view = a.out[0];
        a.out[0] = a.in[0];
        a.in[0] = narrow_view;
        wrong = apply(&to, &a, LIMIT, &e) ? -1 : 0;
        for (int i = 0; i < NUMBERS; i++) {
            float x = dtype_load(types[t], narrow, (size_t)i);
            wrong += isnan(x) ? !isnan(wide[i]) : f32_bits(x) != f32_bits(wide[i]);
        }
        is_int(wrong, 0, "every 16-bit number is widened as core/base/dtype.h does");
    }
    free(wide);
    free(narrow);
}

/* ---- devices */

static void test_device(Device *device) {
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t i = 0; i < ARRAY_LEN(op_tests); i++) {
        struct { const Case *c; DType f, g; } run[ARRAY_LEN(cases) * 9];
        size_t n = 0;
        if (!op_sampled(op_info(op_tests[i].kind)->name)) continue;
        for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
            bool both = strchr(op_tests[i].in, 'g') || strchr(op_tests[i].out, 'g');
            if (cases[k].kind != op_tests[i].kind) continue;
            for (size_t f = 0; f < ARRAY_LEN(types); f++)
                for (size_t g = 0; g < (both ? ARRAY_LEN(types) : 1); g++)
                    if ((f == g || types[f] == DT_F32 || types[g] == DT_F32) &&
                        type_sampled(device, k, types[f]) && type_sampled(device, k, types[g])) {
                        run[n].c = &cases[k];
                        run[n].f = types[f];
                        run[n++].g = types[g];
                    }
        }
        for (size_t k = 0; k < n; k++)
            if (sampled(k, n)) case_run(device, &op_tests[i], run[k].c, run[k].f, run[k].g);
    }
    test_special_values(device);
    test_ignored(device);
    if (!sample_most()) test_conversions(device);
}

/* An op has a twin, cases and this test, or a test of its own: those of several ranks have t_ranks and t_nccl. */
static void test_covered(void) {
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        int covered = 0;
        for (size_t k = 0; k < ARRAY_LEN(cases); k++) covered += cases[k].kind == (OpKind)kind;
        ok(ref_table[kind] ? covered : op_info(kind)->prepared || op_exchanges(kind), "%s has %s", op_info(kind)->name,
           ref_table[kind] ? "a twin and cases" : "its test elsewhere");
    }
}

int main(void) {
    Err e = {0, ""};
    ok(formula_read(&ref_formula_steps, REF_FORMULA, &e) == OK, "reads the formula of ref_formula: %s", e.text);
    test_covered();
    each_device(test_device);
    return tap_done();
}
