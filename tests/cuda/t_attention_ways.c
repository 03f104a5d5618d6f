/* Attention and its gradient by cuDNN's engines, against float64: the gradient of operands wherever they lie, with causal masks,
 * with heads of keys that serve several of q, with the numbers that memtide draws for dropout. A pick says which engine is taken,
 * as after a tuning. What the graphs lack is left to own kernels, whatever a pick says. Linked with the emulated device's objects
 * it runs there, with tests/emulate/cudnn.c for cuDNN; with the real one's, on a GPU that is here.
 *
 *   t_attention_ways [EACH]   of each ranking so many engines (3); each is compiled, for a second or so */
#include <math.h>

#include "attention_cudnn.h"
#include "device/on_device.h"
#include "engines.h"
#include "math/rng.h"
#include "reference/reference.h"
#include "tap.h"
#include "tuning.h"

enum { LIMIT = 64 << 20, EACH = 3, SEED = 42, CALLS = 5, GUARD = 256, GUARD_BYTE = 0xA5, JUNK_BYTE = 0xC3,
       OPERANDS = OP_IN + OP_OUT };

int memtide_cuda_open(const char *name, Device **out, Err *e);

static CudaDevice *device;
static int each = EACH; /* engines of a ranking */
static uint32_t drawn;

/* parts: of (q, k, v) that lie in each operand; kv_heads 0: as many as heads; keys 0: as many as queries */
typedef struct Case {
    const char *name;
    int heads, kv_heads, causal, batch_first;
    int64_t n, queries, keys, width;
    float p, scale;
    int parts[3];
} Case;

static const Case cases[] = {
    {"one operand", 2, 0, 0, 1, 2, 5, 0, 8, 0, 0.4f, {3}},
    {"one operand, causal", 3, 0, 1, 1, 2, 17, 0, 16, 0, 0.25f, {3}},
    {"one operand, time first, causal", 2, 0, 1, 0, 3, 9, 0, 8, 0, -0.4f, {3}},
    {"one query", 2, 0, 0, 1, 2, 1, 7, 8, 0, 0.4f, {1, 2}},
    {"one key", 2, 0, 1, 1, 2, 6, 1, 8, 0, 0.4f, {1, 2}},
    {"of two", 2, 0, 0, 1, 2, 5, 12, 24, 0, 0.2f, {1, 2}},
    {"of two, more keys, causal", 2, 0, 1, 0, 2, 5, 9, 8, 0, 0.4f, {1, 2}},
    {"of two, more queries, causal", 2, 0, 1, 1, 2, 13, 6, 8, 0, 0.4f, {1, 2}},
    {"of three, time first", 2, 0, 0, 0, 3, 7, 6, 8, 0, 0.4f, {1, 1, 1}},
    {"value apart", 2, 0, 0, 1, 2, 6, 6, 8, 0, 0.4f, {2, 0, 1}},
    {"grouped, causal", 4, 2, 1, 1, 2, 11, 0, 8, 0, -0.4f, {3}},
    {"grouped, of three", 6, 2, 0, 1, 2, 5, 7, 8, 0, 0.4f, {1, 1, 1}},
    {"one head of keys, time first", 3, 1, 1, 0, 2, 8, 0, 16, 0, 0.4f, {1, 2}},
    {"dropout", 2, 0, 0, 1, 2, 7, 0, 8, 0.25f, 0.4f, {3}},
    {"dropout, causal, odd keys", 2, 0, 1, 1, 2, 9, 13, 8, 0.5f, 0.4f, {1, 2}},
    {"dropout, grouped, time first, causal", 4, 2, 1, 0, 2, 10, 0, 8, 0.3f, 0.4f, {3}},
    {"wide heads, tiles, causal", 1, 0, 1, 1, 1, 131, 0, 136, 0, 0.1f, {3}},
};

/* ---- an op with its operands, each between guard bytes */

typedef struct Bench {
    Attr attr;
    KArgs args;
    char *block[OPERANDS], *first[OPERANDS]; /* guards and storage; the storage as it was, of outputs after the first run */
    double *exact[OPERANDS];
    DType type;
} Bench;

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static size_t bytes_of(const View *v) { return (size_t)v->count * dtype_size(v->dtype); }

static void add(Bench *b, int k, Shape shape, DType t, double size) {
    View *v = apply_view(&b->args, k);
    *v = (View){NULL, shape, t, 0, {0, 0, 0}, shape_elements(&shape)};
    b->block[k] = must(malloc(bytes_of(v) + 2 * GUARD));
    b->first[k] = must(malloc(bytes_of(v)));
    b->exact[k] = must(calloc((size_t)v->count, sizeof(double)));
    memset(b->block[k], GUARD_BYTE, bytes_of(v) + 2 * GUARD);
    v->data = b->block[k] + GUARD;
    for (int64_t i = 0; i < v->count; i++) {
        if (t == DT_I32) {
            ((int32_t *)v->data)[i] = CALLS;
            b->exact[k][i] = CALLS;
            continue;
        }
        dtype_store(t, v->data, (size_t)i, (float)size * (2 * rng_uniform(philox(7, RNG_DATA, 0, 0, drawn++).x[0]) - 1));
        b->exact[k][i] = dtype_load(t, v->data, (size_t)i);
    }
}

static void bench_free(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        free(b->block[k]);
        free(b->first[k]);
        free(b->exact[k]);
    }
}

static Shape rows(const Case *c, int64_t steps, int64_t features) {
    return c->batch_first ? shape3(c->n, steps, features) : shape3(steps, c->n, features);
}

static void add_parts(Bench *b, int first, const Case *c, double size) {
    const int64_t of_keys = c->width * b->attr.attention.kv_heads, keys = c->keys ? c->keys : c->queries;
    for (int k = 0; k < 3; k++) {
        const int64_t features = k ? c->parts[k] * of_keys : c->width * c->heads + (c->parts[0] - 1) * of_keys;
        if (c->parts[k]) add(b, first + k, rows(c, k ? keys : c->queries, features), b->type, size);
    }
}

static void bench_open(Bench *b, OpKind kind, const Case *c, DType t) {
    memset(b, 0, sizeof *b);
    b->attr.attention = (AttentionAttr){.heads = c->heads, .kv_heads = c->kv_heads ? c->kv_heads : c->heads, .causal = c->causal,
                                        .batch_first = c->batch_first, .scale = c->scale, .p = c->p, .id = 3};
    b->args = (KArgs){.kind = kind, .attr = &b->attr, .device = device, .seed = SEED};
    b->type = t;
}

static void twin(Bench *b, RefFn *f) {
    Ref r = {.attr = &b->attr, .seed = SEED, .scratch = must(calloc(4096, sizeof(double)))};
    for (int k = 0; k < OPERANDS; k++) {
        const View *v = apply_view(&b->args, k);
        *(k < OP_IN ? &r.in[k] : &r.out[k - OP_IN]) = (Tensor){v->shape, v->count, b->exact[k]};
    }
    f(&r);
    free(r.scratch);
}

/* Operand k becomes what is exact for it, rounded to its type. */
static void settle(Bench *b, int k) {
    const View *v = apply_view(&b->args, k);
    for (int64_t i = 0; i < v->count; i++) {
        dtype_store(v->dtype, v->data, (size_t)i, (float)b->exact[k][i]);
        b->exact[k][i] = dtype_load(v->dtype, v->data, (size_t)i);
    }
}

static void open_forward(Bench *b, const Case *c, DType t, bool training) {
    bench_open(b, OP_attention, c, t);
    add_parts(b, 0, c, 2);
    if (c->p > 0) add(b, 3, shape1(1), DT_I32, 0);
    add(b, OP_IN, rows(c, c->queries, c->width * c->heads), t, 0);
    if (training) add(b, OP_IN + 1, shape3(c->n, c->heads, c->queries), DT_F32, 0);
    twin(b, ref_attention);
}

/* y and lse are those of a forward pass. */
static void open_gradient(Bench *b, const Case *c, DType t) {
    Bench f;
    bench_open(b, OP_attention_dx, c, t);
    add(b, 0, rows(c, c->queries, c->width * c->heads), t, 1);
    add_parts(b, 1, c, 2);
    add(b, 4, rows(c, c->queries, c->width * c->heads), t, 0);
    add(b, 5, shape3(c->n, c->heads, c->queries), DT_F32, 0);
    if (c->p > 0) add(b, 6, shape1(1), DT_I32, 0);
    bench_open(&f, OP_attention, c, t);
    for (int k = 0; k < 3; k++) f.args.in[k] = b->args.in[1 + k], f.exact[k] = b->exact[1 + k];
    f.args.in[3] = b->args.in[6], f.exact[3] = b->exact[6];
    f.args.out[0] = b->args.in[4], f.exact[OP_IN] = b->exact[4];
    f.args.out[1] = b->args.in[5], f.exact[OP_IN + 1] = b->exact[5];
    twin(&f, ref_attention);
    settle(b, 4);
    settle(b, 5);
    add_parts(b, OP_IN, c, 0);
    twin(b, ref_attention_dx);
}

/* ---- runs */

static void keep(Bench *b, bool outputs) {
    for (int k = outputs ? OP_IN : 0; k < (outputs ? OPERANDS : OP_IN); k++)
        if (b->block[k]) memcpy(b->first[k], b->block[k] + GUARD, bytes_of(apply_view(&b->args, k)));
}

/* What has changed that should not have, or NULL */
static const char *changed(Bench *b) {
    for (int k = 0; k < OPERANDS; k++) {
        const size_t bytes = bytes_of(apply_view(&b->args, k));
        if (!b->block[k]) continue;
        for (size_t i = 0; i < GUARD; i++)
            if ((uint8_t)b->block[k][i] != GUARD_BYTE || (uint8_t)b->block[k][GUARD + bytes + i] != GUARD_BYTE)
                return "bytes around an operand";
        if (memcmp(b->first[k], b->block[k] + GUARD, bytes)) return k < OP_IN ? "an input" : "an output, from run to run";
    }
    return NULL;
}

/* Factors of products are rounded to the operands' type on the way; grouped heads' gradients once more. */
static bool near_exact(Bench *b) {
    const double unit = b->type == DT_BF16 ? 0x1p-8 : 0x1p-11;
    for (int k = OP_IN; k < OPERANDS; k++) {
        const View *v = apply_view(&b->args, k);
        double largest = 0;
        for (int64_t i = 0; i < v->count; i++) largest = fmax(largest, fabs(b->exact[k][i]));
        for (int64_t i = 0; i < v->count; i++) {
            const double found = dtype_load(v->dtype, v->data, (size_t)i), expected = b->exact[k][i];
            const double allowed = v->dtype == DT_F32 ? 4e-6 * largest + 1e-6 : 2 * unit * largest + 1.01 * unit * fabs(expected);
            if (fabs(found - expected) <= allowed) continue;
            printf("# output %d, element %lld of %lld: found %.9g, expected %.9g\n", k - OP_IN, (long long)i, (long long)v->count,
                   found, expected);
            return false;
        }
    }
    return true;
}

static int run(Bench *b, Err *e) {
    const Apply to = {&device->base, GUARD, false};
    for (int k = OP_IN; k < OPERANDS; k++)
        if (b->block[k]) memset(b->block[k] + GUARD, JUNK_BYTE, bytes_of(apply_view(&b->args, k)));
    return apply(&to, &b->args, LIMIT, e);
}

static int prepare(const KArgs *a, AttentionState **s, size_t *workspace, Err *e) {
    void *state = NULL;
    int code = (a->kind == OP_attention ? k_cuda_attention_prepare : k_cuda_attention_dx_prepare)(a, LIMIT, &state, workspace, e);
    *s = state;
    return code;
}

/* From here on the op is run by this engine, if it can be: *taken. */
static int take(const KArgs *a, const EngineId *id, size_t workspace, bool *taken, Err *e) {
    Tuning *p;
    AttentionState *s = NULL;
    size_t bytes;
    Pick pick = {.version = cudnnGetVersion(), .limit = LIMIT, .way = "cudnn", .engine = *id, .workspace = workspace};
    snprintf(pick.device, sizeof pick.device, "%s", device->model.name);
    device->base.table->trim(&device->base, true);
    int code = attention_text(a, pick.op, e);
    if (!code) code = tuning_of(device, &p, e);
    if (!code) code = tuned_set(&p->picks, &pick, e);
    if (!code) code = prepare(a, &s, &bytes, e);
    if (code) return code;
    *taken = s->cudnn && bytes == workspace;
    kernel_state_release(s);
    return OK;
}

static void test_engine(Bench *b, const Engine *engine, size_t workspace, const char *name) {
    char text[ENGINE_TEXT];
    bool taken = false;
    const char *wrong = NULL;
    Err e = {0, ""};
    engine_text(&engine->id, text);
    int code = take(&b->args, &engine->id, workspace, &taken, &e);
    if (!code && !taken) {
        ok(device->ordinal != NOT_HERE && engine->compiled, "%s, engine %s: it cannot be made ready", name, text);
        return;
    }
    for (int round = 0; round < 2 && !code && !wrong; round++) {
        setenv("EMULATE_REVERSE", round ? "1" : "0", 1);
        setenv("EMULATE_LATE", round ? "1" : "0", 1);
        code = run(b, &e);
        if (round == 0) keep(b, true);
        if (!code) wrong = changed(b);
    }
    if (wrong) printf("# %s changed\n", wrong);
    if (code) printf("# %s\n", e.text);
    ok(!code && !wrong && near_exact(b), "%s, engine %s", name, text);
}

static void test_engines(Bench *b, const char *name) {
    Sdpa sdpa;
    Graph g;
    Engines list = {NULL};
    Err e = {0, ""};
    int tested = 0;
    if (!ok(sdpa_read(&b->args, &sdpa), "%s: cuDNN can run it", name)) return;
    keep(b, false);
    int code = sdpa_graph(device, &sdpa, &g, &e);
    for (int r = 0; r < ENGINE_RANKINGS && !code; r++) code = engines_ask(device, &g, r, each, &list, &e);
    for (int k = 0; k < list.n; k++) {
        if (!engine_may(&list.at[k], false)) continue;
        test_engine(b, &list.at[k], sdpa_before(&sdpa) + list.at[k].workspace, name);
        tested++;
    }
    ok(!code && tested > 0, "%s: %d engines %s", name, tested, e.text);
    engines_free(&list);
    graph_free(&g);
}

static void test_case(const Case *c, DType t) {
    static const char *const passes[] = {"evaluation", "training", "gradient"};
    for (int pass = 0; pass < 3; pass++) {
        Bench b;
        char name[96];
        snprintf(name, sizeof name, "%s, %s, %s", c->name, dtype_name(t), passes[pass]);
        if (pass == 2) open_gradient(&b, c, t);
        else open_forward(&b, c, t, pass == 1);
        test_engines(&b, name);
        bench_free(&b);
    }
}

/* ---- what is left to own kernels */

static void refused(const char *what, const Bench *b) {
    const EngineId id = {.engine = 0};
    Sdpa sdpa;
    bool taken = true;
    Err e = {0, ""};
    ok(!sdpa_read(&b->args, &sdpa), "%s: no graph", what);
    is_int(take(&b->args, &id, 0, &taken, &e), OK, "a pick that names one");
    ok(!taken, "is not taken");
}

static void test_refusals(void) {
    const Case plain = {"", 2, 0, 1, 1, 2, 6, 0, 8, 0.25f, 0.4f, {3}};
    Case c = plain;
    Bench b;
    Sdpa sdpa;
    open_forward(&b, &c, DT_BF16, true);
    ok(sdpa_read(&b.args, &sdpa), "what has a graph");
    b.attr.attention.window = 3;
    refused("a window", &b);
    b.attr.attention.window = 0;
    b.attr.attention.cap = 0.5f;
    refused("a cap", &b);
    b.attr.attention.cap = 0;
    b.attr.attention.p = 1;
    refused("dropout of everything", &b);
    b.attr.attention.p = 0.25f;
    b.args.attention.positions = (View){.shape = shape2(2, 6), .dtype = DT_I32, .count = 12};
    refused("several sequences in a row", &b);
    b.args.attention.positions = (View){.count = 0};
    b.args.attention.bias = (View){.shape = shape4(1, 1, 6, 6), .dtype = DT_BF16, .count = 36};
    refused("a bias", &b);
    bench_free(&b);
    open_forward(&b, &c, DT_F32, true);
    refused("fp32", &b);
    bench_free(&b);
    open_gradient(&b, &c, DT_F16);
    b.args.attention_dx.dy.dtype = DT_F32;
    refused("dy of another type", &b);
    bench_free(&b);
    c.width = 12;
    open_forward(&b, &c, DT_BF16, true);
    refused("heads that do not fill words", &b);
    bench_free(&b);
    c = (Case){"", 2, 0, 0, 1, 2, 1, 1, 8, 0, 0.4f, {1, 2}};
    open_forward(&b, &c, DT_BF16, true);
    refused("one query with one key", &b);
    bench_free(&b);
}

/* ---- names: what the choice depends on is in them */

enum { NAMES = 32 };
typedef struct Names { char text[NAMES][PICK_OP]; int n; } Names;

static void name_op(Names *names, const Bench *b, const char *what) {
    Err e = {0, ""};
    char *text = names->text[names->n];
    bool new = attention_text(&b->args, text, &e) == OK;
    for (int k = 0; k < names->n; k++) new = new && strcmp(names->text[k], text) != 0;
    ok(new, "%s: a name of its own: %s", what, text);
    names->n++;
}

static void test_names(void) {
    static Names names;
    const Case plain = {"", 4, 0, 1, 1, 2, 6, 0, 8, 0.25f, 0.4f, {3}};
    Case c = plain;
    Bench b;
    open_forward(&b, &c, DT_BF16, true);
    AttentionAttr *a = &b.attr.attention;
    name_op(&names, &b, "attention");
    const struct { const char *what; int32_t *at; int32_t other; } numbers[] = {
        {"other heads", &a->heads, 2}, {"grouped heads", &a->kv_heads, 2}, {"no mask", &a->causal, 0},
        {"time first", &a->batch_first, 0}, {"a window", &a->window, 3}};
    for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
        const int32_t own = *numbers[k].at;
        *numbers[k].at = numbers[k].other;
        name_op(&names, &b, numbers[k].what);
        *numbers[k].at = own;
    }
    float *const factors[] = {&a->scale, &a->p, &a->cap};
    for (size_t k = 0; k < ARRAY_LEN(factors); k++) {
        const float own = *factors[k];
        *factors[k] = 0.125f;
        name_op(&names, &b, "another factor");
        *factors[k] = own;
    }
    b.args.attention.positions = (View){.shape = shape2(2, 6), .dtype = DT_I32, .count = 12};
    name_op(&names, &b, "sequences");
    b.args.attention.positions.count = 0;
    for (int64_t heads = 1; heads <= 4; heads += 3) {
        b.args.attention.bias = (View){.shape = shape4(1, heads, 6, 6), .dtype = DT_BF16, .count = 36 * heads};
        name_op(&names, &b, "a bias");
    }
    bench_free(&b);
    open_forward(&b, &c, DT_BF16, false);
    name_op(&names, &b, "without lse");
    bench_free(&b);
    open_forward(&b, &c, DT_F16, true);
    name_op(&names, &b, "fp16");
    bench_free(&b);
    open_gradient(&b, &c, DT_BF16);
    name_op(&names, &b, "the gradient");
    b.args.attention_dx.dy.dtype = DT_F32;
    name_op(&names, &b, "dy of another type");
    bench_free(&b);
    c.n = 3;
    open_forward(&b, &c, DT_BF16, true);
    name_op(&names, &b, "more samples");
    bench_free(&b);
    c = plain;
    c.parts[0] = 1, c.parts[1] = 2;
    open_forward(&b, &c, DT_BF16, true);
    name_op(&names, &b, "of two");
    bench_free(&b);
    c.keys = 7;
    open_forward(&b, &c, DT_BF16, true);
    name_op(&names, &b, "of two, more keys");
    bench_free(&b);
}

int main(int argc, char **argv) {
    static const DType types[] = {DT_BF16, DT_F16};
    char folder[] = "/tmp/memtide-test-XXXXXX", command[64];
    Device *opened;
    Err e;
    if (!mkdtemp(folder)) return 1;
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("MEMTIDE_PICKS");
    if (memtide_cuda_open("cuda:0", &opened, &e)) {
        skip("attention by cuDNN", e.text);
        return tap_done();
    }
    device = (CudaDevice *)opened;
    if (argc > 1) each = atoi(argv[1]);
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t k = 0; k < ARRAY_LEN(cases); k++)
            if (types[t] == DT_F16 || device->model.capability >= 80) test_case(&cases[k], types[t]);
    test_refusals();
    test_names();
    opened->table->close(opened);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) puts("# the test's folder is still there");
    return tap_done();
}
