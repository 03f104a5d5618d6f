/* Every way of every pass of a convolution, by the first engines that cuDNN has for it, against float64. A pick says
 * which way and engine are taken, as after a tuning. Linked with the emulated device's objects it runs there, with
 * tests/emulate/cudnn.c for cuDNN; with the real one's, on a GPU that is here.
 *
 *   t_conv_ways [EACH]   of each ranking so many engines (3); a quarter of them is compiled, for a second or so each */
#include <math.h>

#include "described.h"
#include "device/on_device.h"
#include "tuning.h"
#include "reference/ref_conv.h"
#include "math/rng.h"

enum { LIMIT = 64 << 20, EACH = 3, X = 0, W, Y, B, S, DB, OPERANDS };

int memtide_cuda_open(const char *name, Device **out, Err *e);

static CudaDevice *device;
static int each = EACH; /* engines of a ranking */
static uint32_t drawn;

/* ---- operands: as they lie, and as doubles in PyTorch's order */

typedef struct Operand { View *view; double *exact; } Operand;

static size_t stored_at(const View *v, int64_t i) {
    if (!v->channels_last) return (size_t)i;
    int64_t c = v->shape.dim[1], area = v->shape.dim[2] * v->shape.dim[3];
    return (size_t)((i / (c * area) * area + i % area) * c + i / area % c);
}

static double value(const View *v, int64_t i) { return dtype_load(v->dtype, v->data, stored_at(v, i)); }

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static Operand operand_new(View *v) {
    Operand o = {v, NULL};
    if (!v->count) return o;
    v->data = must(malloc((size_t)v->count * dtype_size(v->dtype)));
    o.exact = must(malloc((size_t)v->count * sizeof *o.exact));
    for (int64_t i = 0; i < v->count; i++) {
        float x = 2 * rng_uniform(philox(3, RNG_DATA, 0, 0, drawn++).x[0]) - 1;
        dtype_store(v->dtype, v->data, stored_at(v, i), x);
        o.exact[i] = value(v, i);
    }
    return o;
}

/* The operands of an op, by what they are in a convolution. */
static void operands_new(KArgs *a, ConvPass pass, Operand *t) {
    View *x = pass == CONV_DATA ? &a->out[0] : &a->in[0], *w = pass == CONV_WEIGHTS ? &a->out[0] : &a->in[1];
    View *y = pass == CONV_FORWARD ? &a->out[0] : pass == CONV_DATA ? &a->in[0] : &a->in[1];
    static View none;
    View *third = &a->in[2];
    View *b = pass == CONV_FORWARD ? third : &none, *s = pass == CONV_DATA ? third : &none;
    View *all[OPERANDS] = {x, w, y, b, s, &a->out[1]};
    for (int k = 0; k < OPERANDS; k++) t[k] = operand_new(all[k]);
}

static void operands_free(Operand *t) {
    for (int k = 0; k < OPERANDS; k++) {
        if (!t[k].exact) continue;
        free(t[k].view->data);
        free(t[k].exact);
    }
}

/* What is to come out replaces what was drawn for it. */
static void compute(ConvPass pass, const Case *c, bool relu, Operand *t) {
    RefConv d = {c->n, c->c, c->size, c->size, c->o, c->k, c->k, {1, 1}, {c->pad, c->pad, c->pad, c->pad}, {1, 1}, 1};
    int64_t area = c->size * c->size;
    if (pass == CONV_WEIGHTS) ref_conv2d_dw(t[W].exact, t[DB].exact, t[X].exact, t[Y].exact, &d);
    if (pass == CONV_FORWARD) {
        ref_conv2d(t[Y].exact, t[X].exact, t[W].exact, t[B].exact, &d);
        for (int64_t i = 0; relu && i < t[Y].view->count; i++) t[Y].exact[i] = fmax(t[Y].exact[i], 0);
    }
    if (pass != CONV_DATA) return;
    ref_conv2d_dx(t[X].exact, t[Y].exact, t[W].exact, &d);
    for (int64_t i = 0; t[DB].exact && i < t[DB].view->count; i++) t[DB].exact[i] = 0;
    for (int64_t i = 0; i < t[X].view->count; i++) {
        if (relu) t[X].exact[i] *= t[S].exact[i] > 0;
        if (t[DB].exact) t[DB].exact[i / area % c->c] += t[X].exact[i];
    }
}

static double unit_of(DType t) { return t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0; }

/* Sums of n products within [-1, 1] in fp32 (TF32: of factors with 11 bits); `low`, the 16-bit type at work, is rounded
 * to before and after an epilogue; `terms` numbers that were rounded so are summed up. */
static bool near_exact(const Operand *o, int64_t n, int64_t terms, DType low, bool tf32) {
    double unit = unit_of(low), last = fmax(unit, unit_of(o->view->dtype));
    double fixed = sqrt((double)terms) * ((0x1p-23 * (double)(n + 8) + (tf32 ? 0x1p-10 * sqrt((double)n) : 0)) +
                                          unit * sqrt((double)n)) + 0x1p-23 * (double)terms + 0x1p-24;
    for (int64_t i = 0; i < o->view->count; i++) {
        double found = value(o->view, i);
        if (fabs(found - o->exact[i]) <= fixed + 2.02 * last * fabs(o->exact[i])) continue;
        printf("# element %lld: found %.9g, expected %.9g\n", (long long)i, found, o->exact[i]);
        return false;
    }
    return true;
}

/* ---- ways */

/* Runs the op by this way and engine; false, with *e: it was not so, or failed. */
static bool run_way(Asked *q, const Conv *v, const Way *way, const Engine *engine, Err *e) {
    Tuning *p;
    ConvState *s = NULL;
    size_t bytes;
    ConvState place;
    conv_place(v, way->does, engine->workspace, LIMIT, &place);
    Pick pick = {.version = cudnnGetVersion(), .limit = LIMIT, .engine = engine->id, .workspace = place.workspace};
    const Apply to = {&device->base, 0, false};
    snprintf(pick.device, sizeof pick.device, "%s", device->model.name);
    snprintf(pick.op, sizeof pick.op, "%s", v->op);
    snprintf(pick.way, sizeof pick.way, "%s", way->name);
    device->base.table->trim(&device->base, true);
    if (tuning_of(device, &p, e) || tuned_set(&p->picks, &pick, e) || prepare(q, LIMIT, &s, &bytes, e)) return false;
    bool taken = s->does == way->does;
    conv_release(s);
    if (!taken) return err_set(e, ERR_UNSUPPORTED, "the engine cannot be made ready"), false;
    return apply(&to, &q->args, LIMIT, e) == OK;
}

static void test_way(Asked *q, const Conv *v, const Way *way, const Engine *engine, const Case *c, const char *name) {
    const DType low = v->x.dtype;
    int64_t out = c->size + 2 * c->pad - c->k + 1, area = c->n * out * out;
    const int64_t n[] = {c->c * c->k * c->k, c->o * c->k * c->k, area};
    bool relu = v->attr.fused.act == ACT_RELU;
    Operand t[OPERANDS];
    Err e = {0, ""};
    char text[ENGINE_TEXT];
    operands_new(&q->args, v->pass, t);
    compute(v->pass, c, relu, t);
    engine_text(&engine->id, text);
    if (!run_way(q, v, way, engine, &e)) {
        ok(e.code == ERR_UNSUPPORTED, "%s %s, engine %s: %s", name, way->name, text, e.text);
    } else {
        const Operand *main = &t[v->pass == CONV_FORWARD ? Y : v->pass == CONV_DATA ? X : W];
        bool near = near_exact(main, n[v->pass], 1, low, v->attr.tf32);
        if (t[DB].exact && v->pass == CONV_DATA)
            near &= near_exact(&t[DB], n[CONV_DATA], c->n * c->size * c->size, low, v->attr.tf32);
        if (t[DB].exact && v->pass == CONV_WEIGHTS) near &= near_exact(&t[DB], 1, area, DT_F32, false);
        ok(near, "%s %s, engine %s", name, way->name, text);
    }
    operands_free(t);
}

static int test_ways(Asked *q, ConvPass pass, const Case *c, const char *name) {
    Conv v;
    Err e;
    int tested = 0;
    if (!ok(conv_read(&q->args, pass, &v, &e) == OK, "%s is read", name)) return 0;
    for (int k = 0; k < WAYS; k++) {
        Graph g;
        Engines list = {NULL};
        if (!conv_can(&v, conv_ways[k].does)) continue;
        bool good = conv_graph(device, &v, conv_ways[k].does, &g, &e) == OK;
        for (int r = 0; r < ENGINE_RANKINGS && good; r++) good = !engines_ask(device, &g, r, each, &list, &e);
        for (int i = 0; i < list.n; i++)
            if (engine_may(&list.at[i], v.exact)) test_way(q, &v, &conv_ways[k], &list.at[i], c, name), tested++;
        engines_free(&list);
        graph_free(&g);
    }
    return tested;
}

int main(int argc, char **argv) {
    static const char *const passes[] = {"y", "dx", "dw"}, *const extras[] = {"bare", "with act", "with all"};
    Device *opened;
    Err e;
    if (memtide_cuda_open("cuda:0", &opened, &e)) {
        skip("every way of a convolution", e.text);
        return tap_done();
    }
    device = (CudaDevice *)opened;
    if (argc > 1) each = atoi(argv[1]);
    for (size_t l = 0; l < ARRAY_LEN(small_layers); l++)
        for (size_t p = 0; p < ARRAY_LEN(precisions); p++)
            for (int k = 0; k < 9; k++) {
                Asked q;
                char name[96];
                snprintf(name, sizeof name, "%lld->%lld %s %s %s", (long long)small_layers[l].c,
                         (long long)small_layers[l].o, precisions[p].name, passes[k / 3], extras[k % 3]);
                ask(&q, device, &small_layers[l], &precisions[p], (ConvPass)(k / 3), (Extras)(k % 3));
                ok(test_ways(&q, (ConvPass)(k / 3), &small_layers[l], name) > 0, "%s has engines", name);
            }
    opened->table->close(opened);
    return tap_done();
}
