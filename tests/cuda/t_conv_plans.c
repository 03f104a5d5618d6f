/* What cuDNN answers about convolutions on an H200, asked without one: the workspace of every convolution of the
 * article's network and of VGG16, in every precision; which fusions it has; which engines may be taken. The figures
 * are those of one version of cuDNN: when it is replaced, what has changed is seen here and not in a training run. */
#include "described.h"

enum { LIMIT = 4 << 20, KNOWN = 91900 };

static CudaDevice *device;

/* The article's two, then VGG16's nine different ones, batch 64. */
static const Case layers[] = {
    {64, 3, 64, 3, 32, 0},    {64, 64, 128, 3, 30, 0},  {64, 3, 64, 3, 224, 1},   {64, 64, 64, 3, 224, 1},
    {64, 64, 128, 3, 112, 1}, {64, 128, 128, 3, 112, 1}, {64, 128, 256, 3, 56, 1}, {64, 256, 256, 3, 56, 1},
    {64, 256, 512, 3, 28, 1}, {64, 512, 512, 3, 28, 1}, {64, 512, 512, 3, 14, 1},
};
enum { LAYERS = sizeof layers / sizeof *layers };

typedef struct Expected { const char *way; size_t workspace; } Expected;
/* [layer][precision][pass]: y with bias and ReLU; dx and dw without what own kernels add to them */
static const Expected expected[LAYERS][PRECISIONS][3] = {
#include "conv_plans.inc"
};

/* PRINT_PLANS=1 prints what conv_plans.inc is to hold, for another version of cuDNN. */
static void test_workspaces(void) {
    static const char *const passes[] = {"y", "dx", "dw"};
    bool print = getenv("PRINT_PLANS") != NULL;
    for (int l = 0; l < LAYERS; l++)
        for (int k = 0; k < PRECISIONS * 3; k++) {
            int p = k / 3, pass = k % 3;
            const Expected *want = &expected[l][p][pass];
            Asked q;
            ConvState *s;
            size_t bytes = 0;
            Err e = {.text = ""};
            ask(&q, device, &layers[l], &precisions[p], (ConvPass)pass, pass ? BARE : WITH_ACT);
            int code = prepare(&q, LIMIT, &s, &bytes, &e);
            const char *way = code ? e.text : way_name(s->does);
            bool same = want->way && bytes == want->workspace && !strcmp(way, want->way);
            ok(same, "%lld->%lld @%lld %s %s: %zu bytes, %s", (long long)layers[l].c, (long long)layers[l].o,
               (long long)layers[l].size, precisions[p].name, passes[pass], want->workspace,
               want->way ? want->way : "nothing");
            if (!same) printf("# found %zu, %s\n", bytes, way);
            if (print) fprintf(stderr, "%s%s{\"%s\", %zu}", k == 0 ? "{" : " ", pass ? "" : "{", way, bytes);
            if (print && pass < 2) fprintf(stderr, ",");
            if (print && pass == 2)
                fprintf(stderr, "}%s /* %s */\n", p == PRECISIONS - 1 ? "}," : ",", precisions[p].name);
            conv_release(s);
        }
}

/* Has cuDNN an engine within the limit that may be taken, and of what kind are they? */
static const char *support(const Asked *q, unsigned does) {
    static char text[64];
    ConvState s;
    Conv v;
    Graph g;
    Engines list = {NULL};
    Err e;
    int shipped = 0, compiled = 0;
    if (conv_read(&q->args, (ConvPass)(q->args.kind - OP_conv2d), &v, &e)) return e.text[0] ? "unreadable" : "";
    if (conv_graph(device, &v, does, &g, &e) == OK)
        for (int r = 0; r < ENGINE_RANKINGS; r++) engines_ask(device, &g, r, ENGINES_ALL, &list, &e);
    for (int k = 0; k < list.n; k++) {
        bool fits = conv_place(&v, does, list.at[k].workspace, LIMIT, &s) <= LIMIT;
        if (!fits || !engine_may(&list.at[k], v.exact)) continue;
        shipped += !list.at[k].compiled;
        compiled += list.at[k].compiled;
    }
    snprintf(text, sizeof text, "%s%s%s", shipped ? "shipped" : "", shipped && compiled ? ", " : "",
             compiled ? "compiled" : shipped ? "" : "none");
    engines_free(&list);
    graph_free(&g);
    return text;
}

static const struct { const char *what; ConvPass pass; unsigned does; const char *found[PRECISIONS]; } fusions[] = {
    {"conv + bias + ReLU", CONV_FORWARD, WAY_ACT,
     {"shipped", "shipped, compiled", "compiled", "compiled", "shipped, compiled", "shipped, compiled"}},
    {"conv + 16-bit bias + ReLU", CONV_FORWARD, WAY_ACT | WAY_CAST,
     {NULL, NULL, "shipped, compiled", "shipped, compiled", NULL, NULL}},
    {"dgrad + dReLU", CONV_DATA, WAY_ACT, {"compiled", "compiled", "compiled", "compiled", "compiled", "compiled"}},
    {"dgrad + dReLU + db", CONV_DATA, WAY_ACT | WAY_SUM,
     {"none", "compiled", "compiled", "compiled", NULL, NULL}},
    {"wgrad, to fp32 by a factor", CONV_WEIGHTS, 0,
     {"shipped", "shipped", "compiled", "compiled", "shipped, compiled", "shipped, compiled"}},
};

static void test_fusions(void) {
    for (size_t k = 0; k < ARRAY_LEN(fusions); k++)
        for (int p = 0; p < PRECISIONS; p++) {
            Asked q;
            char name[80];
            if (!fusions[k].found[p]) continue; /* cuDNN's sums come in fp32; or there is nothing to cast */
            ask(&q, device, &layers[1], &precisions[p], fusions[k].pass, WITH_ALL);
            snprintf(name, sizeof name, "%s, %s", fusions[k].what, precisions[p].name);
            is_str(support(&q, fusions[k].does), fusions[k].found[p], name);
        }
}

/* Of all engines: what must not be taken is not, and something is left. */
static void test_notes(const Precision *p, bool exact) {
    unsigned rounding = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    unsigned any_order = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    int refused = 0, taken = 0, wrong = 0, unordered = 0;
    for (int pass = 0; pass < 3; pass++) {
        Asked q;
        Conv v;
        Graph g;
        Engines list = {NULL};
        Err e;
        ask(&q, device, &layers[1], p, (ConvPass)pass, BARE);
        if (conv_read(&q.args, (ConvPass)pass, &v, &e) || conv_graph(device, &v, 0, &g, &e)) ok(0, "graph: %s", e.text);
        is_int(v.exact, exact, "fp32 is exact, and only fp32");
        for (int r = 0; r < ENGINE_RANKINGS; r++) engines_ask(device, &g, r, ENGINES_ALL, &list, &e);
        for (int k = 0; k < list.n; k++) {
            bool may = engine_may(&list.at[k], v.exact);
            taken += may;
            refused += !may;
            wrong += may && (list.at[k].notes & (exact ? rounding | any_order : any_order));
            unordered += (list.at[k].notes & any_order) != 0;
        }
        engines_free(&list);
        graph_free(&g);
    }
    printf("# %s: %d engines may be taken, %d not, %d of them because they add in any order\n", p->name, taken, refused,
           unordered);
    ok(taken > 0 && refused > 0 && unordered > 0, "%s: some may be taken, some not", p->name);
    is_int(wrong, 0, "none that rounds more or differs from run to run");
}

static void test_refusals(void) {
    Asked q;
    ConvState *s = NULL;
    size_t bytes = 0;
    Err e;
    ask(&q, device, &layers[1], &precisions[4], CONV_FORWARD, BARE);
    q.args.in[1] = view4(DT_BF16, 128, 48, 3, 3);
    is_int(prepare(&q, LIMIT, &s, &bytes, &e), ERR_UNSUPPORTED, "weights for other channels than there are");
    has_text(e.text, "cuDNN has no engine for conv2d x=64,64,30,30:bf16 w=128,48,3,3:bf16", "the op is named");
    has_text(e.text, "cuDNN: ", "with cuDNN's own words");
    q.args.in[1] = view4(DT_F16, 128, 64, 3, 3);
    is_int(prepare(&q, LIMIT, &s, &bytes, &e), ERR_UNSUPPORTED, "operands of two types");
    has_text(e.text, "expected operands of one type, found bf16 and f16", "are told");
    q.args.in[1] = view4(DT_BF16, 128, 64, 3, 3);
    q.args.in[1].channels_last = 0;
    is_int(prepare(&q, LIMIT, &s, &bytes, &e), ERR_UNSUPPORTED, "another layout");
}

/* Copies lie one after the other, the engine's own bytes last. */
static void test_places(void) {
    Asked q;
    Conv v;
    ConvState s;
    Err e;
    ask(&q, device, &layers[0], &precisions[2], CONV_FORWARD, WITH_ACT);
    is_int(conv_read(&q.args, CONV_FORWARD, &v, &e), OK, "3->64 with an fp32 bias");
    is_int((long long)conv_place(&v, WAY_ACT | WAY_CAST | WAY_PAD, 1000, LIMIT, &s),
           64 * 32 * 32 * 8 * 2 + 64 * 9 * 8 * 2 + 1000, "x and w with 8 channels, 1000 bytes");
    is_int((long long)s.workspace, 1048576 + 9216 + 256 + 1000, "and, beside the limit, 64 numbers in 256 bytes");
    ok(s.at[CONV_X] == 0 && s.at[CONV_W] == 1048576 && s.at[CONV_B] == 1048576 + 9216 &&
       s.library_at == s.at[CONV_B] + 256, "in this order");
    is_int((long long)conv_place(&v, 0, 7, LIMIT, &s), 7, "nothing but the engine's bytes");
}

static void test_odd(void) {
    static const size_t limits[] = {LIMIT, 0};
    for (size_t k = 0; k < ARRAY_LEN(odd); k++)
        for (int p = 0; p < PRECISIONS; p++)
            for (int pass = 0; pass < 3; pass++)
                for (size_t l = 0; l < ARRAY_LEN(limits); l++) {
                    Asked q;
                    ConvState *s;
                    size_t bytes = 0;
                    Err e = {.text = ""};
                    ask_odd(&q, device, &odd[k], &precisions[p], (ConvPass)pass);
                    int code = prepare(&q, limits[l], &s, &bytes, &e);
                    bool good = !code && (bytes <= limits[l] || s->does & WAY_CAST);
                    ok(good, "%s, %s, pass %d, limit %zu: %s, %zu bytes", odd[k].name, precisions[p].name, pass,
                       limits[l], code ? "none" : way_name(s->does), bytes);
                    if (code) printf("# %s\n", e.text);
                    conv_release(s);
                }
}

int main(void) {
    device = described(&h200);
    if (!device) return tap_done();
    if (cudnnGetVersion() == KNOWN) {
        test_workspaces();
        test_fusions();
    } else {
        char why[80];
        snprintf(why, sizeof why, "cuDNN is %zu, the figures are those of %d", cudnnGetVersion(), KNOWN);
        skip("workspaces", why);
        skip("fusions", why);
    }
    test_notes(&precisions[0], true);
    test_notes(&precisions[1], false);
    test_refusals();
    test_places();
    test_odd();
    cuda_release(device);
    remove_test_folder();
    return tap_done();
}
