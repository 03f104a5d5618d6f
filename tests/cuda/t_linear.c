/* t_linear.c: linear layers of the CUDA device against float64 loops: every pass; dx through every activation, with its
 * sums; all types; shapes with few outputs, for own kernels, and with more; with and without room for partial sums; a
 * library with epilogues and one without; then every way and algorithm that a pick can name. Guard bytes stand around
 * every operand and the workspace. Threads in another order and other places in memory must give the same bits.
 *
 * Linked with the emulated device's objects it runs there; with the real one's, on a GPU that is here. */
#include <stdlib.h>

#include "linear.h"
#include "program/product.h"
#include "device/on_device.h"
#include "tuning.h"
#include "reference/ref_conv.h"
#include "reference/reference.h"
#include "small_n_gemm.h"
#include "tap.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5, NARROW = 16, X = 0, W, B, Y, S, OPERANDS };
typedef enum Pass { FORWARD, DX, DW, DX_ACT, PASSES } Pass; /* DX_ACT: dx f'(s) and db, its sums */

typedef struct Case { int64_t n, i, o; bool bias; ActFn act; } Case;
static const Case cases[] = {
    {1, 1, 1, true, ACT_NONE},       {3, 7, 5, false, ACT_RELU},     {2, 33, 16, true, ACT_TANH},
    {67, 1541, 13, true, ACT_NONE},  {37, 2056, 10, true, ACT_RELU}, {70, 64, 4, false, ACT_GELU},
    {300, 24, 8, true, ACT_SIGMOID}, {4, 20, 17, true, ACT_GELU},    {33, 65, 40, false, ACT_RELU},
    {16, 64, 64, true, ACT_RELU},    {5, 1030, 24, true, ACT_NONE},  {7, 31, 29, true, ACT_LEAKY},
};

typedef struct Types { const char *name; DType t[OPERANDS]; bool one; } Types; /* one: what products want */
static const Types types[] = {
    {"f32", {DT_F32, DT_F32, DT_F32, DT_F32, DT_F32}, true},
    {"bf16", {DT_BF16, DT_BF16, DT_BF16, DT_BF16, DT_BF16}, true},
    {"f16", {DT_F16, DT_F16, DT_F16, DT_F16, DT_F16}, true},
    {"bf16, b f32", {DT_BF16, DT_BF16, DT_F32, DT_BF16, DT_BF16}, true},
    {"f16, w b f32", {DT_F16, DT_F32, DT_F32, DT_F16, DT_F16}, false},
};

int memtide_cuda_open(const char *name, Device **out, Err *e);

static Device *device;
static uint32_t drawn;

/* One operand: its storage between two guards, a copy of it, and the same values as doubles. */
typedef struct Operand { View view; unsigned char *block, *copy; size_t bytes; double *exact; } Operand;

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static Operand operand_new(Shape shape, DType t) {
    Operand a = {.view = {.shape = shape, .dtype = t, .count = shape_elements(&shape)}};
    a.bytes = (size_t)a.view.count * dtype_size(t);
    a.block = must(malloc(a.bytes + 2 * GUARD));
    a.copy = must(malloc(a.bytes));
    a.exact = must(malloc((size_t)a.view.count * sizeof *a.exact));
    a.view.data = a.block + GUARD;
    memset(a.block, GUARD_BYTE, a.bytes + 2 * GUARD);
    for (int64_t i = 0; i < a.view.count; i++) {
        float x = 2 * rng_uniform(philox(3, RNG_DATA, 0, 0, drawn++).x[0]) - 1;
        dtype_store(t, a.view.data, (size_t)i, x);
        a.exact[i] = dtype_load(t, a.view.data, (size_t)i);
    }
    memcpy(a.copy, a.view.data, a.bytes);
    return a;
}

static void operand_free(Operand *a) {
    free(a->block);
    free(a->copy);
    free(a->exact);
}

/* Within `roundings` roundings to the result's type, and one of the sum of `terms` numbers before something was added
 * to it if `between`; fp32 sums of products of numbers within [-1, 1], see t_onednn.c. */
static bool near_exact(const Operand *a, int64_t terms, int roundings, bool between) {
    DType t = a->view.dtype;
    double unit = t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0x1p-24, least = t == DT_F16 ? 0x1p-24 : 0;
    double fixed = 0x1p-23 * (double)(terms + 8) + least + (between ? unit * sqrt((double)terms) : 0);
    for (int64_t i = 0; i < a->view.count; i++) {
        double expected = a->exact[i], found = dtype_load(t, a->view.data, (size_t)i);
        if (fabs(found - expected) <= fixed + 1.01 * roundings * unit * fabs(expected)) continue;
        printf("# element %lld of %lld: found %.9g, expected %.9g\n", (long long)i, (long long)a->view.count, found,
               expected);
        return false;
    }
    return true;
}

/* db against the sums of the dx that was found, which may have been rounded after it was summed up */
static bool near_sum(const Operand *dx, const Operand *db) {
    double unit = dx->view.dtype == DT_BF16 ? 0x1p-8 : dx->view.dtype == DT_F16 ? 0x1p-11 : 0x1p-24;
    int64_t channels = db->view.count;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, size = 0;
        for (int64_t i = c; i < dx->view.count; i += channels) {
            double x = dtype_load(dx->view.dtype, dx->view.data, (size_t)i);
            sum += x;
            size += x * x;
        }
        double found = dtype_load(db->view.dtype, db->view.data, (size_t)c);
        if (fabs(found - sum) <= unit * (fabs(sum) + 3 * sqrt(size)) + 1e-5 * sqrt(size)) continue;
        printf("# db %lld of %lld: found %.9g, expected %.9g\n", (long long)c, (long long)channels, found, sum);
        return false;
    }
    return true;
}

/* Where the operands of a pass are in KArgs: {x, w, b, y, s}, outputs counted from OP_IN, -1: not there. */
static const int place[PASSES][OPERANDS] = {
    {0, 1, 2, OP_IN, -1}, {OP_IN, 1, -1, 0, -1}, {0, OP_IN, OP_IN + 1, 1, -1}, {OP_IN, 1, OP_IN + 1, 0, 2}};
static const OpKind kinds[PASSES] = {OP_linear, OP_linear_dx, OP_linear_dw, OP_linear_dx};

static bool is_there(const Operand *t, Pass pass, int k) { return place[pass][k] >= 0 && t[k].block; }
static bool is_output(Pass pass, int k) { return place[pass][k] >= OP_IN; }

static int run(const KArgs *args, Operand *t, Pass pass, size_t limit, bool misaligned, Err *e) {
    const Apply to = {device, GUARD, misaligned};
    for (int k = 0; k < OPERANDS; k++)
        if (is_there(t, pass, k) && is_output(pass, k)) memset(t[k].view.data, 0xFF, t[k].bytes);
    return apply(&to, args, limit, e);
}

/* The first run's outputs become the copies; a later one must give the same. Inputs and guards stay as they are. */
static bool is_same(Operand *t, Pass pass, bool first) {
    bool same = true;
    for (int k = 0; k < OPERANDS; k++) {
        if (!is_there(t, pass, k)) continue;
        if (first && is_output(pass, k)) memcpy(t[k].copy, t[k].view.data, t[k].bytes);
        same &= !memcmp(t[k].copy, t[k].view.data, t[k].bytes);
        for (size_t i = 0; i < GUARD; i++)
            same &= t[k].block[i] == GUARD_BYTE && t[k].block[GUARD + t[k].bytes + i] == GUARD_BYTE;
    }
    return same;
}

static const LinearState *prepared(const KArgs *args, size_t limit, Err *e) {
    void *state = NULL;
    size_t bytes;
    return device->table->prepare(device, args, limit, &state, &bytes, e) ? NULL : state;
}

static void check(const char *name, const Case *c, Pass pass, const Attr *attr, size_t limit, Operand *t) {
    KArgs args = {.kind = kinds[pass], .attr = attr};
    const int64_t terms[PASSES] = {c->i, c->o, c->n, c->o};
    Err e = {0, ""};
    for (int k = 0; k < OPERANDS; k++)
        if (is_there(t, pass, k)) *apply_view(&args, place[pass][k]) = t[k].view;
    if (!ok(run(&args, t, pass, limit, false, &e) == OK, "%s runs %s", name, e.text)) return;
    const LinearState *s = prepared(&args, limit, &e);
    if (!ok(s != NULL, "%s is prepared %s", name, e.text)) return;
    /* where there is no room for the product in fp32, and where the bias is rounded */
    bool own = s->way == LINEAR_SMALL_N, rounds = linear_leaves(&args, s->gemm.epilogue) && !s->wide;
    bool between = pass == FORWARD && !own && (rounds || linear_copy(&args, s->gemm.epilogue));
    bool same = is_same(t, pass, true), near = true;
    for (int k = 0; k < OPERANDS; k++) {
        if (!is_there(t, pass, k) || !is_output(pass, k)) continue;
        near &= pass == DX_ACT && k == B ? near_sum(&t[X], &t[B])
                                         : near_exact(&t[k], terms[pass], pass == DX_ACT ? 2 : 1, between);
    }
    ok(near, "%s: as in float64", name);
    setenv("EMULATE_REVERSE", "1", 1);
    same &= run(&args, t, pass, limit, false, &e) == OK && is_same(t, pass, false);
    unsetenv("EMULATE_REVERSE");
    if (own) same &= run(&args, t, pass, limit, true, &e) == OK && is_same(t, pass, false);
    ok(same, "%s: the same bits again, nothing else written %s", name, e.text);
}

/* exact[count] through f, or times f'(s) */
static void through(Operand *a, const Operand *s, const ActAttr *act) {
    Attr attr = {.act = *act};
    Ref r = {.attr = &attr, .in = {{.at = a->exact}, {.at = s ? s->exact : NULL}},
             .out = {{.count = a->view.count, .at = a->exact}}};
    r.in[0].count = a->view.count;
    if (s) ref_act_dx(&r);
    else ref_act(&r);
}

typedef void Check(const char *name, const Case *c, Pass pass, const Attr *attr, size_t limit, Operand *t);

/* channels: of db in DX_ACT */
static void test_pass(const Case *c, const Types *of, Pass pass, ActFn act, int64_t channels, size_t limit,
                      Check *run_check) {
    Attr attr;
    memset(&attr, 0, sizeof attr);
    attr.linear.fused = (ActAttr){.act = act, .slope = act == ACT_LEAKY ? 0.125f : 0.0f};
    Operand t[OPERANDS] = {operand_new(shape2(c->n, c->i), of->t[X]), operand_new(shape2(c->o, c->i), of->t[W]),
                           {.block = NULL}, operand_new(shape2(c->n, c->o), of->t[Y]), {.block = NULL}};
    if (pass == DX_ACT ? channels > 0 : c->bias) t[B] = operand_new(shape1(pass == DX_ACT ? channels : c->o), of->t[B]);
    if (pass == DX_ACT) t[S] = operand_new(shape2(c->n, c->i), of->t[S]);
    if (pass == FORWARD) ref_linear(t[Y].exact, t[X].exact, t[W].exact, t[B].exact, c->n, c->i, c->o);
    else if (pass == DW) ref_linear_dw(t[W].exact, t[B].exact, t[X].exact, t[Y].exact, c->n, c->i, c->o);
    else ref_linear_dx(t[X].exact, t[Y].exact, t[W].exact, c->n, c->i, c->o);
    if (pass == FORWARD) through(&t[Y], NULL, &attr.linear.fused);
    if (pass == DX_ACT) through(&t[X], &t[S], &attr.linear.fused);
    char name[128];
    snprintf(name, sizeof name, "%s %lldx%lld->%lld %s, %s, db of %lld, limit %zu", op_info(kinds[pass])->name,
             (long long)c->n, (long long)c->i, (long long)c->o, act ? "f" : "", of->name, (long long)channels, limit);
    run_check(name, c, pass, &attr, limit, t);
    for (int k = 0; k < OPERANDS; k++) operand_free(&t[k]);
}

static void test_case(const Case *c, const Types *of, size_t limit, Check *run_check) {
    test_pass(c, of, FORWARD, c->act, 0, limit, run_check);
    test_pass(c, of, DX, ACT_NONE, 0, limit, run_check);
    test_pass(c, of, DW, ACT_NONE, 0, limit, run_check);
    test_pass(c, of, DX_ACT, c->act ? c->act : ACT_TANH, c->i, limit, run_check);
    test_pass(c, of, DX_ACT, ACT_RELU, c->i % 8 ? 0 : 8, limit, run_check); /* an image of 8 channels; no db */
}

/* ---- ways */

/* Makes a pick, so that the op is prepared in this way and with this algorithm; false: it cannot be. */
static bool picked(const KArgs *args, LinearWay way, const EngineId *id, size_t limit, Err *e) {
    Tuning *p;
    Pick pick = {.version = gemm_version(), .limit = limit, .engine = *id};
    const LinearState *s;
    EngineId found = {.engine = 0};
    KArgs bound = *args;
    bound.device = device;
    device->table->trim(device, true);
    pick.workspace = limit;
    if (way == LINEAR_SMALL_N)
        pick.workspace = cuda_small_n_fits(product_operands(args).w) ? cuda_small_n_workspace(&bound, limit) : 0;
    snprintf(pick.device, sizeof pick.device, "%s", cuda_of(&bound)->model.name);
    snprintf(pick.way, sizeof pick.way, "%s", linear_ways[way]);
    linear_text(args, pick.op);
    if (tuning_of(cuda_of(&bound), &p, e) || tuned_set(&p->picks, &pick, e)) return false;
    s = prepared(args, limit, e);
    if (s && s->plan) gemm_id(s->plan, &found);
    return s && s->way == way && !memcmp(&found, id, sizeof found);
}

/* id[...]: the library's algorithms for the product as this way places it; returns how many. */
static int candidates(const KArgs *args, LinearWay way, size_t limit, EngineId *id) {
    static const EngineId none = {.engine = 0};
    Gemm g = linear_gemm(args);
    Err e;
    int n = 0;
    memset(id, 0, GEMM_CANDIDATES * sizeof *id);
    if (way == LINEAR_SMALL_N) return 1;
    if (way == LINEAR_FUSED && !g.epilogue) return 0;
    /* any algorithm: whether it takes over before or after a change of type is seen below */
    if (picked(args, way, &none, limit, &e)) g = prepared(args, limit, &e)->gemm;
    if (way == LINEAR_PLAIN) g.epilogue = GEMM_PLAIN;
    return gemm_candidates((CudaDevice *)device, &g, limit / 2, id, &n, &e) ? 0 : n;
}

static void check_ways(const char *name, const Case *c, Pass pass, const Attr *attr, size_t limit, Operand *t) {
    KArgs args = {.kind = kinds[pass], .attr = attr};
    EngineId id[GEMM_CANDIDATES];
    char full[192], text[ENGINE_TEXT];
    int tested[LINEAR_WAYS] = {0};
    Err e;
    for (int k = 0; k < OPERANDS; k++)
        if (is_there(t, pass, k)) *apply_view(&args, place[pass][k]) = t[k].view;
    for (int way = 0; way < LINEAR_WAYS; way++) {
        int n = candidates(&args, (LinearWay)way, limit, id);
        for (int k = 0; k < n; k++) {
            if (!picked(&args, (LinearWay)way, &id[k], limit, &e)) continue;
            snprintf(full, sizeof full, "%s, %s by %s", name, linear_ways[way], engine_text(&id[k], text));
            check(full, c, pass, attr, limit, t);
            tested[way]++;
        }
    }
    ok(tested[LINEAR_PLAIN] > 0, "%s has plain products", name);
    ok((tested[LINEAR_SMALL_N] > 0) == (c->o <= NARROW), "%s has own kernels only if it is narrow", name);
}

/* Operands that a product cannot take are refused before the run, by name. */
static void test_refusals(void) {
    Attr attr;
    memset(&attr, 0, sizeof attr);
    KArgs a = {.kind = OP_linear, .attr = &attr, .device = device};
    size_t bytes;
    Err e = {0, ""};
    a.in[0] = (View){.shape = shape2(4, 8), .dtype = DT_F16, .count = 32};
    a.in[1] = (View){.shape = shape2(20, 8), .dtype = DT_F32, .count = 160};
    a.out[0] = (View){.shape = shape2(4, 20), .dtype = DT_F16, .count = 80};
    is_int(device->table->prepare(device, &a, 0, &a.state, &bytes, &e), ERR_UNSUPPORTED, "a product of two types");
    has_text(e.text, "f16 and f32", "and the message names them");
}

/* Workspace follows from shapes and limit, and is what pays. */
static void test_workspace(void) {
    static const struct { Case c; size_t limit; size_t bytes; } plans[] = {
        {{64, 25088, 4096, false, ACT_NONE}, 4 << 20, 4 << 20},  /* 32 tiles: 4 parts of a million bytes */
        {{64, 512, 10000, false, ACT_NONE}, 4 << 20, 0},         /* 79 tiles: one part each */
        {{64, 100352, 10, false, ACT_NONE}, 4 << 20, 131 * 640 * 4}, /* 131 parts of 768 columns */
        {{64, 100352, 10, false, ACT_NONE}, 10000, 3 * 640 * 4},
        {{64, 100352, 10, false, ACT_NONE}, 0, 0},
    };
    for (size_t k = 0; k < ARRAY_LEN(plans); k++) {
        const Case *c = &plans[k].c;
        Attr attr;
        memset(&attr, 0, sizeof attr);
        KArgs a = {.kind = OP_linear, .attr = &attr, .device = device};
        size_t bytes = 1;
        Err e = {0, ""};
        a.in[0] = (View){.shape = shape2(c->n, c->i), .dtype = DT_BF16, .count = c->n * c->i};
        a.in[1] = (View){.shape = shape2(c->o, c->i), .dtype = DT_BF16, .count = c->o * c->i};
        a.out[0] = (View){.shape = shape2(c->n, c->o), .dtype = DT_BF16, .count = c->n * c->o};
        is_int(device->table->prepare(device, &a, plans[k].limit, &a.state, &bytes, &e), OK, "prepared");
        ok(bytes == plans[k].bytes, "%lld x %lld -> %lld within %zu bytes: %zu", (long long)c->n, (long long)c->i,
           (long long)c->o, plans[k].limit, bytes);
    }
}

static void test_device(void) {
    static const size_t limits[] = {4 << 20, 8192, 0}; /* 8192: for a part of the rows */
    for (size_t k = 0; k < ARRAY_LEN(types); k++)
        for (size_t c = 0; c < ARRAY_LEN(cases); c++)
            for (size_t l = 0; l < ARRAY_LEN(limits); l++)
                if (types[k].one || cases[c].o <= NARROW) test_case(&cases[c], &types[k], limits[l], check);
    device->table->trim(device, true);
    setenv("EMULATE_EPILOGUES", "0", 1);
    for (size_t c = 0; c < ARRAY_LEN(cases); c++)
        if (cases[c].o > NARROW) test_case(&cases[c], &types[1], 4 << 20, check);
    unsetenv("EMULATE_EPILOGUES");
    setenv("EMULATE_PRODUCTS", "0 0 0", 1);
    for (size_t k = 0; k < ARRAY_LEN(types); k += 3)
        for (size_t c = 2; c < ARRAY_LEN(cases); c += 3) test_case(&cases[c], &types[k], 1 << 16, check_ways);
    unsetenv("EMULATE_PRODUCTS");
    device->table->trim(device, true);
    test_refusals();
    test_workspace();
}

int main(void) {
    Err e = {0, ""};
    setenv("MEMTIDE_PICKS", "/nowhere", 1); /* no picks but those of the test */
    int code = memtide_cuda_open("cuda:0", &device, &e);
    if (code && strstr(e.text, "driver")) {
        skip("linear layers", e.text);
    } else if (ok(code == OK, "cuda:0 opens %s", e.text)) {
        test_device();
        device->table->close(device);
    }
    return tap_done();
}
