/* t_sequence.c: recurrent layers, attention, and the cross entropy of a linear layer in parts, on every device, against their float64 twins (tests/reference/), in
 * every element type. Operands and the workspace stand between guard bytes; a second run, with one thread or with
 * threads and blocks in reverse order, must give the same bits, and so must one in place, if ops.def allows it.
 *
 * "cuda:0" is the emulated GPU of tests/emulate/, or a real one: MEMTIDE_CUDA names the plugin. */

#include "each_device.h"
#include "on_device.h"
#include "reference/reference.h"
#include "sample.h"
#include "tap.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3, OPERANDS = OP_IN + OP_OUT };

typedef struct Operand {
    View view;
    size_t bytes;
    uint8_t *block, *first; /* GUARD bytes, the storage, GUARD bytes; the storage after the first run */
    double *exact;          /* what it holds, and then what it should */
} Operand;

typedef struct Bench {
    Device *device;
    OpKind kind;
    Attr attr;
    Operand at[OPERANDS]; /* inputs, then outputs */
    Ref ref;
    StepState state;      /* operand "state", if there is one */
    char problem[200];    /* the first one found */
} Bench;

#define PROBLEM(b, ...) ((b)->problem[0] ? 0 : snprintf((b)->problem, sizeof (b)->problem, __VA_ARGS__))

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static uint32_t drawn;
static double uniform(void) { return 2.0 * rng_uniform(philox(7, RNG_DATA, 0, 0, drawn++).x[0]) - 1; }

static uint8_t *storage(const Operand *o) { return o->block + GUARD; }

/* Operand k: of that shape, with values in [-size, size], as its type holds them. */
static void add(Bench *b, int k, Shape shape, DType t, double size) {
    Operand *o = &b->at[k];
    o->view = (View){NULL, shape, t, 0, {0, 0, 0}, shape_elements(&shape)};
    o->bytes = (size_t)o->view.count * dtype_size(t);
    o->block = must(malloc(o->bytes + 2 * GUARD));
    o->first = must(malloc(o->bytes));
    o->exact = must(calloc((size_t)o->view.count, sizeof *o->exact));
    memset(o->block, GUARD_BYTE, o->bytes + 2 * GUARD);
    o->view.data = storage(o);
    for (int64_t i = 0; i < o->view.count; i++) o->exact[i] = size * uniform();
}

static void add_calls(Bench *b, int k, int calls) {
    add(b, k, shape1(1), DT_I32, 0);
    b->at[k].exact[0] = calls;
}

/* With a loss scale. */
static void add_state(Bench *b, int k) {
    b->state = (StepState){1024, 3, 0, 5};
    add(b, k, shape1(sizeof b->state / sizeof(int32_t)), DT_I32, 0);
    memcpy(storage(&b->at[k]), &b->state, sizeof b->state);
    for (int64_t i = 0; i < b->at[k].view.count; i++) b->at[k].exact[i] = ((int32_t *)b->at[k].view.data)[i];
}

/* Numbers into the storage, and what the storage made of them back. */
static void pack(Operand *o) {
    for (int64_t i = 0; i < o->view.count; i++) {
        if (o->view.dtype == DT_I32) {
            ((int32_t *)o->view.data)[i] = (int32_t)o->exact[i];
            continue;
        }
        dtype_store(o->view.dtype, o->view.data, (size_t)i, (float)o->exact[i]);
        o->exact[i] = dtype_load(o->view.dtype, o->view.data, (size_t)i);
    }
}

static Tensor tensor_of(const Operand *o) { return (Tensor){o->view.shape, o->view.count, o->block ? o->exact : NULL}; }

static void twin(Bench *b, RefFn *f) {
    Ref *r = &b->ref;
    *r = (Ref){.attr = &b->attr, .seed = 42, .state = b->state.loss_scale > 0 ? &b->state : NULL, .scratch = must(calloc(4096, sizeof(double)))};
    for (int k = 0; k < OP_IN; k++) r->in[k] = tensor_of(&b->at[k]);
    for (int k = 0; k < OP_OUT; k++) r->out[k] = tensor_of(&b->at[OP_IN + k]);
    f(r);
    free(r->scratch);
}

static void run(Bench *b) {
    Apply to = {b->device, GUARD, false};
    KArgs a = {.kind = b->kind, .attr = &b->attr, .seed = 42};
    Err e = {0, ""};
    for (int k = 0; k < OPERANDS; k++) *apply_view(&a, k) = b->at[k].view;
    for (int k = OP_IN; k < OPERANDS; k++)
        if (b->at[k].block) memset(storage(&b->at[k]), JUNK_BYTE, b->at[k].bytes);
    if (apply(&to, &a, (size_t)4 << 20, &e)) PROBLEM(b, "%s", e.text);
}

/* Inputs stay as they are; the first run's outputs are kept, those of the second, in another order, compared with
 * them. */
static void run_twice(Bench *b) {
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < OP_IN && round == 0; k++)
            if (b->at[k].block) memcpy(b->at[k].first, storage(&b->at[k]), b->at[k].bytes);
        const int threads = round ? apply_backwards() : 0;
        run(b);
        if (round) apply_forwards(threads);
        for (int k = 0; k < OPERANDS; k++) {
            Operand *o = &b->at[k];
            if (!o->block) continue;
            if (k >= OP_IN && round == 0) memcpy(o->first, storage(o), o->bytes);
            if (memcmp(o->first, storage(o), o->bytes))
                PROBLEM(b, "%s %d changed", k < OP_IN ? "input" : "from run to run, output", k % OP_IN);
            for (size_t i = 0; i < GUARD; i++)
                if (o->block[i] != GUARD_BYTE || storage(o)[o->bytes + i] != GUARD_BYTE)
                    PROBLEM(b, "bytes around operand %d changed", k);
        }
    }
}

/* Output 0 in the storage of input 0 */
static void run_inplace(Bench *b) {
    Operand *x = &b->at[0], *y = &b->at[OP_IN];
    const View apart = y->view;
    if (op_info(b->kind)->inplace != 0 || !x->block || !y->block || x->bytes != y->bytes) return;
    y->view.data = x->view.data;
    run(b);
    y->view = apart;
    if (memcmp(y->first, storage(x), y->bytes)) PROBLEM(b, "in place output 0 is another one");
    memcpy(storage(y), y->first, y->bytes);
}

/* fp32 rounding on the way, relative to the largest element (sums may cancel), and one rounding to the element type. */
static void compare(Bench *b, double rounding) {
    static const double half_ulp[DT_COUNT] = {[DT_BF16] = 1.0 / 256, [DT_F16] = 1.0 / 2048};
    for (int k = OP_IN; k < OPERANDS; k++) {
        const Operand *o = &b->at[k];
        double largest = 0;
        if (!o->block) continue;
        for (int64_t i = 0; i < o->view.count; i++) largest = fmax(largest, fabs(o->exact[i]));
        for (int64_t i = 0; i < o->view.count; i++) {
            double found = dtype_load(o->view.dtype, o->view.data, (size_t)i), expected = o->exact[i];
            double least = o->view.dtype == DT_F16 ? 1.0 / (1 << 25) : 0;
            double allowed = rounding * largest + 1.01 * half_ulp[o->view.dtype] * fabs(expected) + least;
            if (!(fabs(found - expected) <= allowed))
                PROBLEM(b, "output %d, element %lld of %lld: found %.9g, expected %.9g", k - OP_IN, (long long)i,
                        (long long)o->view.count, found, expected);
        }
    }
}

static void release(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        free(b->at[k].block);
        free(b->at[k].first);
        free(b->at[k].exact);
    }
}

static void check(Bench *b, RefFn *f, double rounding, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void check(Bench *b, RefFn *f, double rounding, const char *format, ...) {
    char name[160];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (int k = 0; k < OP_IN; k++)
        if (b->at[k].block) pack(&b->at[k]);
    twin(b, f);
    run_twice(b);
    run_inplace(b);
    compare(b, rounding);
    if (!ok(!b->problem[0], "%s %s: %s", b->device->table->kind, op_info(b->kind)->name, name))
        printf("# %s\n", b->problem);
    release(b);
}

/* ---- recurrent layers */

typedef struct RnnCase {
    const char *name;
    RnnMode mode;
    int batch_first, reverse;
    int64_t n, t, i, h;
    bool bias;
    unsigned absent; /* bit per output of the gradient */
} RnnCase;

static const RnnCase rnns[] = {
    {"tanh of one", RNN_TANH, 1, 0, 1, 1, 1, 1, true, 0},
    {"tanh", RNN_TANH, 1, 0, 3, 5, 7, 9, true, 0},
    {"relu, reverse, time first", RNN_RELU, 0, 1, 2, 4, 5, 6, false, 0},
    {"lstm of one step", RNN_LSTM, 1, 0, 4, 1, 3, 5, true, 0},
    {"lstm", RNN_LSTM, 1, 0, 3, 6, 7, 9, true, 0},
    {"lstm, no bias", RNN_LSTM, 1, 0, 3, 6, 7, 9, false, 0},
    {"lstm, reverse", RNN_LSTM, 1, 1, 2, 5, 4, 8, true, 0},
    {"lstm, time first", RNN_LSTM, 0, 0, 5, 4, 6, 3, true, 0},
    {"lstm, reverse, time first", RNN_LSTM, 0, 1, 3, 4, 2, 7, true, 0},
    {"lstm, several slices", RNN_LSTM, 1, 0, 37, 3, 5, 34, true, 0},
    {"lstm, one slice", RNN_LSTM, 1, 0, 20, 2, 3, 260, true, 0},
    {"lstm, w frozen", RNN_LSTM, 1, 0, 3, 4, 5, 6, true, 0x1e},
    {"lstm, of data", RNN_LSTM, 1, 0, 3, 4, 5, 6, true, 1},
    {"gru", RNN_GRU, 1, 0, 3, 6, 7, 9, true, 0},
    {"gru, no bias", RNN_GRU, 1, 0, 3, 6, 7, 9, false, 0},
    {"gru, reverse, time first", RNN_GRU, 0, 1, 3, 5, 4, 8, true, 0},
    {"gru, several slices", RNN_GRU, 1, 0, 37, 3, 5, 34, true, 0},
    {"gru, x only", RNN_GRU, 0, 0, 3, 3, 4, 2, true, 0x1e},
    /* matrices begin at whole words, as a GPU's library wants them */
    {"lstm of words", RNN_LSTM, 1, 0, 3, 4, 16, 24, true, 0},
    {"lstm of words, reverse, time first", RNN_LSTM, 0, 1, 5, 3, 8, 16, true, 0},
    {"gru of words", RNN_GRU, 1, 0, 3, 4, 16, 24, true, 0},
    {"gru of words, reverse", RNN_GRU, 1, 1, 3, 4, 8, 16, true, 0},
    {"gru of words, of data", RNN_GRU, 0, 0, 2, 3, 8, 8, true, 1},
    {"tanh of words, one sample", RNN_TANH, 1, 0, 1, 5, 8, 16, true, 0},
    {"tanh of words, sums that are worth splitting", RNN_TANH, 0, 0, 20, 30, 8, 8, true, 0},
    /* large enough for products of bf16 */
    {"wide tanh, reverse", RNN_TANH, 1, 1, 5, 4, 33, 130, true, 0},
    {"wide relu, time first", RNN_RELU, 0, 0, 18, 3, 8, 131, false, 0},
    {"wide lstm, several slices", RNN_LSTM, 1, 0, 37, 4, 67, 70, true, 0},
    {"wide lstm, reverse, time first", RNN_LSTM, 0, 1, 20, 3, 5, 66, true, 0},
    {"wide lstm of one step, w frozen", RNN_LSTM, 1, 0, 3, 1, 6, 65, true, 0x1e},
    {"wide gru, several slices", RNN_GRU, 1, 0, 37, 4, 67, 77, true, 0},
    {"wide gru, reverse, time first", RNN_GRU, 0, 1, 3, 5, 6, 80, true, 0},
};

/* Where 16-bit operands are multiplied as they are, what passes from step to step is rounded to 16 bits, too: on a GPU, and on
 * the CPU if w_hh is large enough. */
static double rnn_rounding(const Device *device, const RnnCase *c, DType t) {
    const bool cpu = !strcmp(device->table->kind, "cpu"), rounded = cpu ? t == DT_BF16 && c->h >= 65 : t != DT_F32;
    return !rounded ? 4e-6 : t == DT_BF16 ? 1.0 / 64 : 1.0 / 512;
}

static Shape rows_of(const RnnCase *c, int64_t features) {
    return c->batch_first ? shape3(c->n, c->t, features) : shape3(c->t, c->n, features);
}

static void open_rnn(Bench *b, Device *device, OpKind kind, const RnnCase *c) {
    memset(b, 0, sizeof *b);
    b->device = device;
    b->kind = kind;
    b->attr.rnn = (RnnAttr){c->mode, c->batch_first, c->reverse, 0};
}

/* x, w and b, from operand k on */
static void add_layer(Bench *b, int k, const RnnCase *c, DType t) {
    int64_t gates = rnn_info(c->mode).gates * c->h;
    add(b, k, rows_of(c, c->i), t, 1);
    add(b, k + 1, shape2(gates, c->i), t, 1.5 / sqrt((double)c->i));
    add(b, k + 2, shape2(gates, c->h), t, 1.5 / sqrt((double)c->h));
}

static void forward_rnn(Bench *b, const RnnCase *c, DType t, DType bias, bool training) {
    RnnInfo info = rnn_info(c->mode);
    add_layer(b, 0, c, t);
    for (int k = 3; c->bias && k < 5; k++) add(b, k, shape1(info.gates * c->h), bias, 0.5);
    add(b, OP_IN, rows_of(c, c->h), t, 0);
    if (training && info.saved) add(b, OP_IN + 1, rows_of(c, info.saved * c->h), t, 0);
}

static void check_rnn(Device *device, const RnnCase *c, DType t) {
    Bench b, f;
    for (int training = 0; training < 2; training++) {
        open_rnn(&b, device, OP_rnn, c);
        forward_rnn(&b, c, t, training ? DT_F32 : t, training);
        check(&b, ref_rnn, rnn_rounding(device, c, t), "%s, %s%s", c->name, dtype_name(t),
              training ? "" : ", evaluation");
    }
    /* y and saved as a forward pass leaves them */
    open_rnn(&f, device, OP_rnn, c);
    open_rnn(&b, device, OP_rnn_dx, c);
    add_layer(&b, 1, c, t);
    for (int k = 0; k < 3; k++) pack(&b.at[1 + k]), f.at[k] = b.at[1 + k];
    for (int k = 4; k < 6; k++) {
        int64_t saved = rnn_info(c->mode).saved;
        if (k == 4 || saved) add(&b, k, rows_of(c, (k == 4 ? 1 : saved) * c->h), t, 0);
        f.at[OP_IN + k - 4] = b.at[k];
    }
    twin(&f, ref_rnn);
    add(&b, 0, rows_of(c, c->h), t, 1);
    int64_t gates = rnn_info(c->mode).gates * c->h;
    const Shape out[] = {rows_of(c, c->i), shape2(gates, c->i), shape2(gates, c->h), shape1(gates), shape1(gates)};
    for (int k = 0; k < (c->bias ? 5 : 3); k++)
        if (!(c->absent >> k & 1)) add(&b, OP_IN + k, out[k], k ? DT_F32 : t, 0);
    check(&b, ref_rnn_dx, rnn_rounding(device, c, t), "%s, %s", c->name, dtype_name(t));
}

/* fp32 factors are rounded to TF32 on a GPU where it is allowed, and only there. */
static void check_tf32(Device *device, OpKind kind) {
    const RnnCase c = {"tf32", RNN_GRU, 1, 0, 2, 3, 8, 8, .bias = false};
    const bool back = kind == OP_rnn_dx, cpu = !strcmp(device->table->kind, "cpu");
    Bench b;
    open_rnn(&b, device, kind, &c);
    add_layer(&b, back, &c, DT_F32);
    for (int k = 0; k < 3 && back; k++) add(&b, k ? 3 + k : 0, rows_of(&c, (k == 2 ? 4 : 1) * c.h), DT_F32, 1);
    add(&b, OP_IN, rows_of(&c, back ? c.i : c.h), DT_F32, 0);
    if (back) add(&b, OP_IN + 1, shape2(3 * c.h, c.i), DT_F32, 0), add(&b, OP_IN + 2, shape2(3 * c.h, c.h), DT_F32, 0);
    for (int k = 0; k < OP_IN; k++)
        if (b.at[k].block) pack(&b.at[k]);
    for (b.attr.rnn.tf32 = 0; b.attr.rnn.tf32 < 2; b.attr.rnn.tf32++) {
        run(&b);
        for (int k = OP_IN; k < OPERANDS; k++) {
            if (!b.at[k].block) continue;
            if (b.attr.rnn.tf32 && !memcmp(b.at[k].first, storage(&b.at[k]), b.at[k].bytes) != cpu)
                PROBLEM(&b, "output %d is %s", k - OP_IN, cpu ? "rounded" : "not rounded");
            memcpy(b.at[k].first, storage(&b.at[k]), b.at[k].bytes);
        }
    }
    if (!ok(!b.problem[0], "%s %s: TF32 where it is allowed", device->table->kind, op_info(kind)->name)) printf("# %s\n", b.problem);
    release(&b);
}

/* ---- attention */

typedef struct AttentionCase {
    const char *name;
    int heads, causal, batch_first;
    int64_t n, t, c;
    float p;
    int64_t s;    /* keys, 0: as many as queries */
    int parts[4]; /* of (q, k, v) that lie in each operand; heads of k and v, 0: as many as of q */
    int window;
    float cap;
    int bias;     /* 0: none; else 1 + 1 where it has samples + 2 where it has heads; 5: no gradient, as 1 */
    int lengths[6]; /* of the sequences that each row holds, the last one to its end; of sample n they begin with the n-th */
} AttentionCase;

static const AttentionCase attentions[] = {
    {"one", 1, 0, 1, 1, 1, 1, 0, 0, .parts = {3}},
    {"one step, causal", 2, 1, 1, 2, 1, 6, 0, 0, .parts = {3}},
    {"two heads", 2, 0, 1, 2, 5, 6, 0, 0, .parts = {3}},
    {"causal", 3, 1, 1, 2, 7, 15, 0, 0, .parts = {3}},
    {"time first", 2, 0, 0, 3, 6, 16, 0, 0, .parts = {3}},
    {"time first, causal", 2, 1, 0, 2, 9, 8, 0, 0, .parts = {3}},
    {"tiles", 1, 0, 1, 1, 131, 17, 0, 0, .parts = {3}},
    {"tiles, causal", 2, 1, 1, 1, 130, 32, 0, 0, .parts = {3}},
    {"dropout", 2, 0, 1, 2, 7, 6, 0.25f, 0, .parts = {3}},
    {"dropout, tiles, causal", 1, 1, 1, 2, 70, 5, 0.5f, 0, .parts = {3}},
    {"of two", 2, 0, 1, 2, 5, 6, 0, 7, .parts = {1, 2}},
    {"of two, time first", 3, 0, 0, 3, 8, 9, 0, 3, .parts = {1, 2}},
    {"of two, one query", 2, 0, 1, 2, 1, 8, 0, 9, .parts = {1, 2}},
    {"of two, two keys, causal", 2, 1, 1, 2, 6, 8, 0, 2, .parts = {1, 2}},
    {"of two, tiles", 1, 0, 1, 2, 70, 11, 0, 131, .parts = {1, 2}},
    {"of two, more keys, causal", 2, 1, 1, 2, 5, 6, 0, 9, .parts = {1, 2}},
    {"of two, more keys, tiles, causal", 1, 1, 0, 1, 66, 24, 0, 200, .parts = {1, 2}},
    {"of two, more queries, tiles, causal", 1, 1, 1, 1, 140, 16, 0, 67, .parts = {1, 2}},
    {"of two, dropout", 2, 0, 1, 2, 5, 6, 0.3f, 10, .parts = {1, 2}},
    {"of two, dropout, tiles, causal", 1, 1, 1, 2, 69, 5, 0.4f, 75, .parts = {1, 2}},
    {"of three", 2, 0, 1, 2, 5, 6, 0, 8, .parts = {1, 1, 1}},
    {"of three, time first, dropout, causal", 2, 1, 0, 3, 7, 10, 0.2f, 6, .parts = {1, 1, 1}},
    {"value apart", 2, 0, 1, 2, 6, 8, 0, 6, .parts = {2, 0, 1}},
    {"wide heads, tiles, causal", 2, 1, 1, 1, 70, 144, 0, 0, .parts = {3}},
    {"heads of a tile, dropout, causal", 2, 1, 1, 1, 100, 128, 0.3f, 0, .parts = {3}},
    {"wide head, dropout, causal", 1, 1, 1, 1, 70, 80, 0.3f, 0, .parts = {3}},
    {"of two, wide head, dropout", 1, 0, 0, 2, 3, 131, 0.25f, 66, .parts = {1, 2}},
    {"grouped", 4, 0, 1, 2, 5, 12, 0, 7, .parts = {1, 1, 1, 2}},
    {"grouped, causal, dropout", 6, 1, 1, 2, 7, 24, 0.25f, 0, .parts = {1, 1, 1, 2}},
    {"grouped, tiles, causal", 4, 1, 1, 1, 70, 32, 0, 0, .parts = {1, 1, 1, 2}},
    {"grouped in one, time first", 4, 1, 0, 3, 9, 32, 0, 0, .parts = {3, 0, 0, 2}},
    {"grouped, of two, more keys", 6, 0, 1, 2, 5, 12, 0.2f, 70, .parts = {1, 2, 0, 3}},
    {"one head of keys", 3, 0, 1, 2, 66, 12, 0, 0, .parts = {1, 1, 1, 1}},
    {"one head of keys, more queries, tiles, causal", 2, 1, 1, 1, 140, 24, 0, 67, .parts = {1, 2, 0, 1}},
    {"one wide head of keys, fewer queries, causal", 2, 1, 1, 2, 5, 144, 0, 9, .parts = {1, 1, 1, 1}},
    {"window", 2, 1, 1, 2, 9, 6, 0, 0, .parts = {3}, 3},
    {"window of one", 2, 1, 1, 2, 5, 6, 0, 0, .parts = {3}, 1},
    {"window, tiles", 2, 1, 1, 1, 200, 12, 0, 0, .parts = {1, 1, 1, 1}, 70},
    {"window, tiles, dropout", 1, 1, 0, 2, 150, 5, 0.3f, 0, .parts = {3}, 20},
    {"cap", 2, 1, 1, 2, 7, 6, 0, 0, .parts = {3}, 0, 0.5f},
    {"cap, window, tiles", 2, 1, 1, 1, 140, 16, 0, 0, .parts = {1, 1, 1, 1}, 65, 0.7f},
    {"bias", 2, 0, 1, 2, 5, 6, 0, 7, .parts = {1, 2}, 0, 0, 1},
    {"bias by sample", 2, 0, 1, 3, 5, 6, 0, 0, .parts = {3}, 0, 0, 2},
    {"bias by head, causal", 3, 1, 1, 2, 7, 15, 0, 0, .parts = {3}, 0, 0, 3},
    {"bias by head and sample", 2, 0, 0, 2, 6, 8, 0, 0, .parts = {3}, 0, 0, 4},
    {"bias without gradient", 2, 0, 1, 2, 5, 6, 0, 0, .parts = {3}, 0, 0, 5},
    {"bias, grouped, tiles, causal, dropout", 4, 1, 1, 2, 70, 32, 0.2f, 0, .parts = {1, 1, 1, 2}, 0, 0, 1},
    {"bias by head, grouped, tiles", 4, 0, 1, 2, 66, 32, 0, 131, .parts = {1, 1, 1, 2}, 0, 0, 3},
    {"bias by head, cap, window, tiles", 2, 1, 1, 2, 130, 12, 0, 0, .parts = {3}, 66, 0.9f, 3},
    {"sequences", 2, 1, 1, 3, 9, 6, 0, 0, .parts = {3}, .lengths = {4, 1, 3}},
    {"sequences of one", 1, 1, 1, 2, 3, 4, 0, 0, .parts = {3}, .lengths = {1, 1, 1}},
    {"sequences, time first", 2, 1, 0, 2, 7, 8, 0, 0, .parts = {3}, .lengths = {2, 3}},
    {"sequences, tiles", 2, 1, 1, 2, 300, 12, 0, 0, .parts = {1, 1, 1}, .lengths = {130, 3, 64, 70}},
    {"sequences at tiles, grouped, dropout", 4, 1, 1, 1, 257, 32, 0.2f, 0, .parts = {1, 1, 1, 2}, .lengths = {64, 128, 64}},
    {"sequences, one head of keys, window", 2, 1, 1, 2, 200, 16, 0, 0, .parts = {1, 1, 1, 1}, 20, .lengths = {100, 7, 50}},
    {"sequences, cap, bias by head and sample", 2, 1, 1, 2, 140, 12, 0, 0, .parts = {3}, 0, 0.9f, 4, .lengths = {70, 5}},
    {"spans, causal, grouped, dropout", 2, 1, 1, 1, 270, 256, 0.2f, 0, .parts = {1, 1, 1, 1}},
    {"spans, fewer queries", 1, 0, 0, 2, 3, 130, 0, 513, .parts = {1, 2}},
    {"spans, window, bias, sequences", 1, 1, 1, 1, 290, 128, 0, 0, .parts = {3}, 150, 0, 1, .lengths = {257, 7}},
    {"head wider than a part of a sum", 1, 1, 1, 1, 70, 273, 0, 0, .parts = {3}},
    {"sequences, wide head", 1, 1, 1, 1, 70, 131, 0, 0, .parts = {3}, .lengths = {33, 20}},
};

static Shape steps_of(const AttentionCase *c, int64_t steps, int64_t features) {
    return c->batch_first ? shape3(c->n, steps, features) : shape3(steps, c->n, features);
}

static int kv_heads_of(const AttentionCase *c) { return c->parts[3] ? c->parts[3] : c->heads; }

/* q, k, v, or their gradients, from operand `first` on */
static void add_parts(Bench *b, int first, const AttentionCase *c, DType t, double size) {
    const int64_t of_keys = c->c / c->heads * kv_heads_of(c);
    for (int k = 0; k < 3; k++) {
        int64_t features = k ? c->parts[k] * of_keys : c->c + (c->parts[0] - 1) * of_keys;
        if (c->parts[k]) add(b, first + k, steps_of(c, k && c->s ? c->s : c->t, features), t, size);
    }
}

static void open_attention(Bench *b, Device *device, OpKind kind, const AttentionCase *c) {
    memset(b, 0, sizeof *b);
    b->device = device;
    b->kind = kind;
    const int64_t width = c->c / c->heads;
    float scale = c->parts[3] && width < 64 ? -0.4f : 1 / sqrtf((float)width); /* a grouped one has one of its own */
    b->attr.attention = (AttentionAttr){c->heads, kv_heads_of(c), c->causal, c->batch_first, scale, c->p, 3, c->window,
        c->cap};
}

/* The bias, or its gradient, as operand k */
static void add_bias(Bench *b, int k, const AttentionCase *c, DType t, double size) {
    const int of = c->bias == 5 ? 0 : c->bias - 1;
    if (c->bias) add(b, k, shape4(of & 1 ? c->n : 1, of & 2 ? c->heads : 1, c->t, c->s ? c->s : c->t), t, size);
}

/* The positions of the sequences, as operand k */
static void add_positions(Bench *b, int k, const AttentionCase *c) {
    if (!c->lengths[0]) return;
    add(b, k, shape2(c->n, c->t), DT_I32, 0);
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t t = 0, begin = 0, sequence = n; t < c->t; t++) {
            const int64_t length = sequence < 6 ? c->lengths[sequence] : 0;
            if (length && t - begin == length) begin = t, sequence++;
            b->at[k].exact[n * c->t + t] = (double)(t - begin);
        }
}

/* Where a GPU's tensor cores multiply, probabilities and their gradients are rounded to the operands' type. */
static double attention_rounding(const Device *device, DType t) {
    bool rounded = t != DT_F32 && !strcmp(device->table->kind, "cuda");
    return !rounded ? 4e-6 : t == DT_BF16 ? 1.0 / 128 : 1.0 / 1024;
}

/* The gradient's inputs, y and lse as a forward pass leaves them, and the outputs */
static void open_gradient(Bench *b, Device *device, const AttentionCase *c, DType t) {
    Bench f;
    open_attention(&f, device, OP_attention, c);
    open_attention(b, device, OP_attention_dx, c);
    add(b, 0, steps_of(c, c->t, c->c), t, 1);
    add_parts(b, 1, c, t, 2);
    add(b, 4, steps_of(c, c->t, c->c), t, 0);
    add(b, 5, shape3(c->n, c->heads, c->t), DT_F32, 0);
    if (c->p > 0) add_calls(b, 6, 5);
    add_bias(b, 7, c, t, 1);
    add_positions(b, 8, c);
    for (int k = 0; k < 3; k++) {
        if (b->at[1 + k].block) pack(&b->at[1 + k]);
        f.at[k] = b->at[1 + k];
    }
    if (b->at[7].block) pack(&b->at[7]);
    f.at[3] = b->at[6];
    f.at[4] = b->at[7];
    f.at[5] = b->at[8];
    f.at[OP_IN] = b->at[4];
    f.at[OP_IN + 1] = b->at[5];
    twin(&f, ref_attention);
    add_parts(b, OP_IN, c, t, 0);
    if (c->bias != 5) add_bias(b, OP_IN + 3, c, t, 0);
}

static void check_attention(Device *device, const AttentionCase *c, DType t) {
    const double rounding = attention_rounding(device, t);
    Bench b;
    Shape lse = shape3(c->n, c->heads, c->t);
    for (int training = 0; training < 2; training++) {
        open_attention(&b, device, OP_attention, c);
        add_parts(&b, 0, c, t, 2);
        if (c->p > 0) add_calls(&b, 3, 5);
        add_bias(&b, 4, c, t, 1);
        add_positions(&b, 5, c);
        add(&b, OP_IN, steps_of(c, c->t, c->c), t, 0);
        if (training) add(&b, OP_IN + 1, lse, DT_F32, 0);
        check(&b, ref_attention, rounding, "%s, %s%s", c->name, dtype_name(t), training ? "" : ", evaluation");
    }
    open_gradient(&b, device, c, t);
    check(&b, ref_attention_dx, rounding, "%s, %s", c->name, dtype_name(t));
}

/* A row of three sequences as long as a tile: what the middle one gives is the same where the numbers of the other two are no
 * numbers. Within a tile such a number would spread: a product by 0 is no number either. So tiles of other sequences are not
 * read. */
static void check_unread(Device *device, OpKind kind, DType t) {
    enum { TILE = 64 };
    const AttentionCase c = {"unread", 2, 1, 1, 1, 3 * TILE, 16, 0, 0, .parts = {1, 1, 1}, .lengths = {TILE, TILE, TILE}};
    const bool gradient = kind == OP_attention_dx;
    Bench b;
    if (gradient) open_gradient(&b, device, &c, t);
    else {
        open_attention(&b, device, kind, &c);
        add_parts(&b, 0, &c, t, 2);
        add_positions(&b, 5, &c);
        add(&b, OP_IN, steps_of(&c, c.t, c.c), t, 0);
    }
    for (int k = 0; k < OP_IN; k++)
        if (b.at[k].block) pack(&b.at[k]);
    run(&b);
    for (int k = OP_IN; k < OPERANDS; k++)
        if (b.at[k].block) memcpy(b.at[k].first, storage(&b.at[k]), b.at[k].bytes);
    for (int k = 0; k < OP_IN; k++) {
        const View *v = &b.at[k].view;
        if (!b.at[k].block || v->dtype != t || v->shape.rank != 3 || v->shape.dim[1] != c.t) continue;
        for (int64_t i = 0; i < v->count; i++)
            if (i / v->shape.dim[2] / TILE != 1) dtype_store(t, v->data, (size_t)i, NAN);
    }
    run(&b);
    for (int k = OP_IN; k < OPERANDS; k++) {
        const size_t third = b.at[k].bytes / 3;
        if (b.at[k].block && memcmp(b.at[k].first + third, storage(&b.at[k]) + third, third))
            PROBLEM(&b, "output %d read another sequence", k - OP_IN);
    }
    ok(!b.problem[0], "%s %s: tiles of other sequences are not read, %s %s", device->table->kind, op_info(kind)->name,
       dtype_name(t), b.problem);
    release(&b);
}

/* ---- the cross entropy of a linear layer's output */

typedef struct LossCase {
    const char *name;
    int64_t n, i, o;
    LossAttr attr;
    bool bias, weights, scaled;
    unsigned absent; /* bit per output of the gradient: dx, dw, db, loss */
} LossCase;

#define OF(scale_, chunks_, ...) {.scale = scale_, .chunks = chunks_, __VA_ARGS__}
static const LossCase losses[] = {
    {"one", 1, 1, 1, OF(1, 1, .ignore_index = -100), true, false, false, 0},
    {"one part", 5, 7, 33, OF(1, 1, .ignore_index = -100), true, false, false, 0},
    {"fewer rows than parts", 5, 7, 33, OF(1, 100, .ignore_index = -100), true, false, false, 0},
    {"few classes", 37, 19, 6, OF(0.25f, 3, .ignore_index = -100), true, false, true, 0},
    {"two parts", 16, 8, 24, OF(1, 2, .ignore_index = 3), false, false, false, 4},
    {"a smaller last part", 37, 13, 129, OF(0.5f, 4, .ignore_index = -100), true, false, true, 0},
    {"class weights", 37, 13, 129, OF(1, 4, .ignore_index = 5), true, true, true, 0},
    {"smooth labels", 37, 13, 129, OF(1, 3, .smoothing = 0.2f, .ignore_index = 5), false, true, false, 4},
    {"z-loss", 29, 13, 129, OF(1, 3, .beta = 0.05f, .ignore_index = 5), true, true, true, 0},
    {"a sum", 29, 13, 129, OF(1, 3, .sum = 1, .ignore_index = 5), true, false, true, 0},
    {"a frozen head", 37, 20, 65, OF(1, 3, .ignore_index = -100), true, false, false, 6},
    {"a head alone", 37, 20, 65, OF(1, 3, .ignore_index = -100), true, false, false, 1},
    {"a bias alone", 37, 20, 65, OF(1, 3, .ignore_index = -100), true, false, false, 3},
    {"without the loss", 37, 20, 65, OF(1, 3, .ignore_index = -100), true, false, true, 8},
    {"long rows, many parts", 100, 40, 1111, OF(1, 9, .ignore_index = -100), false, false, true, 4},
};

/* Where a part's logits and their gradient are rounded to 16 bits, and dw with every part */
static double loss_rounding(DType t) { return t == DT_F32 ? 4e-6 : t == DT_BF16 ? 1.0 / 50 : 1.0 / 400; }

static void open_loss(Bench *b, Device *device, OpKind kind, const LossCase *c, DType t) {
    memset(b, 0, sizeof *b);
    b->device = device;
    b->kind = kind;
    b->attr.loss = c->attr;
    add(b, 0, shape2(c->n, c->i), t, 2);
    add(b, 1, shape2(c->o, c->i), t, 1);
    if (c->bias) add(b, 2, shape1(c->o), DT_F32, 1);
    add(b, 3, shape1(c->n), DT_I32, 0);
    for (int64_t k = 0; k < c->n; k++) b->at[3].exact[k] = floor((0.5 + 0.499 * uniform()) * (double)c->o);
    if (c->weights) add(b, 4, shape1(c->o), DT_F32, 1);
    for (int64_t k = 0; c->weights && k < c->o; k++) b->at[4].exact[k] = 0.1 + fabs(b->at[4].exact[k]);
}

/* dw_type: of dw; under autocast a copy of w in 16 bits is multiplied, and dw has 32. */
static void check_loss(Device *device, const LossCase *c, DType t, DType dw_type) {
    Bench b;
    drawn = 0; /* the same numbers whatever was checked before: db's sums cancel, by chance to less than their rounding */
    open_loss(&b, device, OP_linear_cross_entropy, c, t);
    add(&b, OP_IN, shape1(1), DT_F32, 0);
    check(&b, ref_linear_cross_entropy, loss_rounding(t), "%s, %s", c->name, dtype_name(t));
    open_loss(&b, device, OP_linear_cross_entropy_dx, c, t);
    if (c->scaled) add_state(&b, 5);
    if (!(c->absent & 1)) add(&b, OP_IN, shape2(c->n, c->i), t, 0);
    if (!(c->absent & 2)) add(&b, OP_IN + 1, shape2(c->o, c->i), dw_type, 0);
    if (!(c->absent & 4)) add(&b, OP_IN + 2, shape1(c->o), DT_F32, 0);
    if (!(c->absent & 8)) add(&b, OP_IN + 3, shape1(1), DT_F32, 0);
    check(&b, ref_linear_cross_entropy_dx, loss_rounding(t), "%s, %s, dw of %s", c->name, dtype_name(t),
          dtype_name(dw_type));
}

static void test_device(Device *device) {
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    check_tf32(device, OP_rnn);
    check_tf32(device, OP_rnn_dx);
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        for (size_t i = 0; i < ARRAY_LEN(rnns); i++) /* the CPU treats a large w_hh apart */
            if (sampled(t * ARRAY_LEN(rnns) + i, 3 * ARRAY_LEN(rnns)) && type_sampled(device, i, types[t]) &&
                (rnns[i].h < 100 || !strcmp(device->table->kind, "cpu")))
                check_rnn(device, &rnns[i], types[t]);
        for (size_t i = 0; i < ARRAY_LEN(attentions); i++)
            if (sampled(t * ARRAY_LEN(attentions) + i, 3 * ARRAY_LEN(attentions)) && type_sampled(device, i, types[t]))
                check_attention(device, &attentions[i], types[t]);
        check_unread(device, OP_attention, types[t]);
        check_unread(device, OP_attention_dx, types[t]);
        for (size_t i = 0; i < ARRAY_LEN(losses); i++) {
            if (!sampled(t * ARRAY_LEN(losses) + i, 3 * ARRAY_LEN(losses)) || !type_sampled(device, i, types[t])) continue;
            check_loss(device, &losses[i], types[t], types[t]);
            if (types[t] != DT_F32) check_loss(device, &losses[i], types[t], DT_F32);
        }
    }
}

int main(void) {
    each_device(test_device);
    return tap_done();
}
