/* The files that outlive the process: picks, and compiled plans. */
#include "described.h"
#include "linear.h"
#include "tuning.h"
#include "plan_cache.h"

enum { LIMIT = 4 << 20 };

static char path[CACHE_PATH];

static Pick pick_of(const char *op, size_t limit, size_t workspace, double us) {
    Pick p = {.version = 91900, .limit = limit, .workspace = workspace, .us = us};
    snprintf(p.device, sizeof p.device, "NVIDIA H200");
    snprintf(p.op, sizeof p.op, "%s", op);
    snprintf(p.way, sizeof p.way, "act+sum");
    p.engine = (EngineId){.engine = 67, .n_knobs = 2, .knob = {{2, 4}, {13, 0}}};
    return p;
}

static void write_text(const char *text) {
    Err e;
    if (cache_write(path, text, strlen(text), &e)) ok(0, "%s", e.text);
}

static void test_engines(void) {
    EngineId id;
    char text[ENGINE_TEXT];
    static const char *const wrong[] = {"", "x", "-1", "7 ", "7 2", "7 2=", "7 2=x", "7 2=1,3=2", "7  2=1x"};
    ok(engine_read("67 2=4 13=0", &id), "an engine with two knobs");
    is_str(engine_text(&id, text), "67 2=4 13=0", "reads as it is written");
    ok(engine_read("0", &id) && id.n_knobs == 0, "one without knobs");
    for (size_t k = 0; k < ARRAY_LEN(wrong); k++) ok(!engine_read(wrong[k], &id), "\"%s\" is none", wrong[k]);
}

static void test_find(void) {
    Tuned p = {NULL};
    Err e;
    Pick small = pick_of("conv2d a", 1000, 10, 5.0), large = pick_of("conv2d a", 9000, 8000, 2.0);
    ok(!tuned_set(&p, &small, &e) && !tuned_set(&p, &large, &e), "two picks for one op");
    is_int((long long)tuned_find(&p, "NVIDIA H200", 91900, "conv2d a", 1000)->workspace, 10, "that of the limit");
    is_int((long long)tuned_find(&p, "NVIDIA H200", 91900, "conv2d a", 8500)->workspace, 8000, "the fastest");
    is_int((long long)tuned_find(&p, "NVIDIA H200", 91900, "conv2d a", 7999)->workspace, 10, "what fits");
    ok(!tuned_find(&p, "NVIDIA H200", 91900, "conv2d a", 9), "none fits");
    Pick cast = pick_of("conv2d c", 1000, 1256, 5.0);
    ok(!tuned_set(&p, &cast, &e), "a pick whose casts are beside its limit");
    ok(tuned_find(&p, "NVIDIA H200", 91900, "conv2d c", 1000) != NULL, "counts under its own limit");
    ok(tuned_find(&p, "NVIDIA H200", 91900, "conv2d c", 1100) != NULL, "and under a larger one");
    ok(!tuned_find(&p, "NVIDIA H200", 91900, "conv2d c", 999), "not under a smaller one");
    ok(!tuned_find(&p, "NVIDIA H100", 91900, "conv2d a", 9000), "another device");
    ok(!tuned_find(&p, "NVIDIA H200", 92000, "conv2d a", 9000), "another version");
    ok(!tuned_find(&p, "NVIDIA H200", 91900, "conv2d b", 9000), "another op");
    small.us = 1.0;
    ok(!tuned_set(&p, &small, &e) && p.n == 3, "a later pick takes the place of the earlier");
    tuned_free(&p);
}

static void test_file(void) {
    Tuned p = {NULL}, q = {NULL};
    Err e;
    char *text;
    size_t bytes;
    Pick one = pick_of("conv2d x=64,3,32,32:bf16", 4194304, 131, 12.5), two = pick_of("conv2d_dx", 0, 0, 0.25);
    ok(!tuned_set(&p, &one, &e) && !tuned_set(&p, &two, &e) && !tuned_save(&p, path, &e), "picks are written");
    ok(!tuned_load(&q, path, &e) && q.n == 2 && q.damaged == 0, "and read");
    ok(!memcmp(p.at, q.at, 2 * sizeof *p.at), "the same");
    ok(!cache_read(path, &text, &bytes, &e), "the file");
    is_str(text, "NVIDIA H200\t91900\t4194304\tconv2d x=64,3,32,32:bf16\tact+sum\t67 2=4 13=0\t131\t12.500\n"
                 "NVIDIA H200\t91900\t0\tconv2d_dx\tact+sum\t67 2=4 13=0\t0\t0.250\n", "a line each");
    mem_free(text);
    tuned_free(&p);
    tuned_free(&q);
    is_int(tuned_load(&p, "/tmp/no/such/file", &e), ERR_FILE, "a missing file");
    is_int(cache_write("/dev/null/x", "x", 1, &e), ERR_FILE, "a folder that is none");
    has_text(e.text, "/dev/null/x", "is named");
}

#define LINE "NVIDIA H200\t91900\t5\tconv2d\tplain\t7\t131\t12.5"

static void test_damage(void) {
    static const char *const damaged[] = {
        "", "word", LINE "\t1", "\t91900\t5\tconv2d\tplain\t7\t131\t12.5", "H200\tx\t5\tconv2d\tplain\t7\t131\t12.5",
        "H200\t91900\t-5\tconv2d\tplain\t7\t131\t12.5", "H200\t91900\t5\t\tplain\t7\t131\t12.5",
        "H200\t91900\t5\tconv2d\tplain\tseven\t131\t12.5", "H200\t91900\t5\tconv2d\tplain\t7\t131\tfast",
        "H200\t91900\t5\tconv2d\tplain\t7\t131\t", "H200\t91900\t5\tconv2d\ta name that is longer than any\t7\t131\t1",
    };
    char text[4096], expected[CACHE_PATH + 32];
    Err e;
    for (size_t k = 0; k < ARRAY_LEN(damaged); k++) {
        Tuned p = {NULL};
        snprintf(text, sizeof text, LINE "\n%s\n" LINE "\n", damaged[k]);
        write_text(text);
        snprintf(expected, sizeof expected, "%s:2: ", path);
        ok(!tuned_load(&p, path, &e) && p.n == 1 && p.damaged == 1, "\"%s\" is ignored", damaged[k]);
        has_text(p.problem.text, expected, "and told with its line");
        tuned_free(&p);
    }
    Tuned p = {NULL};
    write_text(LINE "\n" LINE); /* without its end a line may have lost digits */
    ok(!tuned_load(&p, path, &e) && p.damaged == 1, "a line that is cut off");
    tuned_free(&p);
}

static int keep(CudaDevice *device, const char *op, const EngineId *engine, size_t workspace, Err *e) {
    Pick p = pick_of(op, LIMIT, workspace, 1.0);
    p.version = cudnnGetVersion();
    p.engine = *engine;
    snprintf(p.way, sizeof p.way, "plain");
    return tuning_keep(device, &p, e);
}

/* The bias is rounded to bf16 in a copy, which is beside the limit: a pick whose other bytes fill its limit counts. */
static void test_casts(CudaDevice *device) {
    static const Case layer = {64, 3, 64, 3, 32, 0};
    static const Precision amp = {"amp_bf16", DT_BF16, DT_F32, 0};
    const Way *way = &conv_ways[6];
    Asked q;
    Conv v;
    ConvState *s = NULL, place;
    Graph g;
    Engines list = {NULL};
    size_t bytes = 0, limit = 0;
    Err e;
    ask(&q, device, &layer, &amp, CONV_FORWARD, WITH_ACT);
    if (conv_read(&q.args, CONV_FORWARD, &v, &e) || conv_graph(device, &v, way->does, &g, &e) ||
        engines_ask(device, &g, 0, ENGINES_ALL, &list, &e))
        ok(0, "engines: %s", e.text);
    const Engine *other = NULL;
    for (int k = 0; k < list.n && !other; k++) {
        limit = conv_place(&v, way->does, list.at[k].workspace, 0, &place);
        if (!engine_may(&list.at[k], false) || prepare(&q, limit, &s, &bytes, &e)) continue;
        if (s->does != way->does) other = &list.at[k];
        conv_release(s);
    }
    if (ok(other != NULL, "another way than \"%s\" is the first choice within %zu bytes", way->name, limit)) {
        Pick p = pick_of(v.op, limit, place.workspace, 1.0);
        p.version = cudnnGetVersion();
        p.engine = other->id;
        snprintf(p.way, sizeof p.way, "%s", way->name);
        ok(p.workspace > limit && !tuning_keep(device, &p, &e), "a pick of \"%s\", %zu bytes in all", way->name,
           p.workspace);
        ok(!prepare(&q, limit, &s, &bytes, &e) && s->does == way->does && bytes == p.workspace, "is taken");
        conv_release(s);
        ok(!prepare(&q, limit - 1, &s, &bytes, &e) && s->does != way->does, "not within a byte less");
        conv_release(s);
    }
    engines_free(&list);
    graph_free(&g);
}

/* A line that was changed: a linear layer's pick of more bytes than its own limit. */
static void test_changed_line(CudaDevice *device) {
    const View square = {.shape = shape2(64, 64), .dtype = DT_F32, .count = 64 * 64};
    const Attr attr = {.linear = {.fused = {.act = ACT_NONE}}};
    KArgs a = {.kind = OP_linear, .attr = &attr, .device = &device->base, .in = {square, square}, .out = {square}};
    Pick p = pick_of("", 100, 5000, 1.0);
    void *state = NULL;
    size_t bytes = 0;
    Err e;
    p.version = gemm_version();
    linear_text(&a, p.op);
    snprintf(p.way, sizeof p.way, "%s", linear_ways[LINEAR_PLAIN]);
    is_int(tuning_keep(device, &p, &e), OK, "a pick of a linear layer");
    ok(!k_cuda_linear_prepare(&a, 100, &state, &bytes, &e) && bytes <= 100, "is not taken");
    if (state) ((CudaState *)state)->release(state);
}

/* A pick decides, as long as it fits. */
static void test_choice(CudaDevice *device) {
    static const Case layer = {64, 64, 128, 3, 30, 0};
    static const Precision bf16 = {"bf16", DT_BF16, DT_BF16, 0};
    Asked q;
    Conv v;
    ConvState *s = NULL;
    Tuning *p;
    Graph g;
    Engines list = {NULL};
    size_t bytes = 0;
    Err e;
    ask(&q, device, &layer, &bf16, CONV_WEIGHTS, BARE);
    is_int(conv_read(&q.args, CONV_WEIGHTS, &v, &e), OK, "wgrad");
    is_int(tuning_of(device, &p, &e), OK, "no picks yet");
    if (conv_graph(device, &v, 0, &g, &e) || engines_ask(device, &g, 0, ENGINES_ALL, &list, &e))
        ok(0, "engines: %s", e.text);
    const Engine *other = NULL; /* another than the first, and of another workspace */
    for (int k = 1; k < list.n && !other; k++)
        if (engine_may(&list.at[k], false) && list.at[k].workspace != list.at[0].workspace) other = &list.at[k];
    if (ok(other != NULL, "there is a choice")) {
        is_int(keep(device, v.op, &other->id, other->workspace, &e), OK, "a pick");
        ok(!prepare(&q, LIMIT, &s, &bytes, &e) && bytes == other->workspace, "it is taken");
        conv_release(s);
        size_t less = other->workspace ? other->workspace - 1 : 0;
        ok(prepare(&q, less, &s, &bytes, &e) || bytes <= less, "under a limit that it does not fit into it is not");
        conv_release(s);
        EngineId gone = {.engine = 9999};
        is_int(keep(device, v.op, &gone, 0, &e), OK, "a pick of an unknown engine");
        ok(!prepare(&q, LIMIT, &s, &bytes, &e) && bytes == list.at[0].workspace, "is as none: the first in rank");
        conv_release(s);
        tuning_free(device->tuning);
        device->tuning = NULL;
        ok(!tuning_of(device, &p, &e) && p->picks.n == 1 && strstr(p->path, "/memtide/picks-NVIDIA-H200.txt"),
           "picks are there for the next process");
    }
    engines_free(&list);
    graph_free(&g);
}

/* Another process keeps picks in the same file; lines of it are damaged; there is no place for it. */
static void test_shared(CudaDevice *device) {
    static const EngineId engine = {.engine = 7};
    Tuned other = {NULL};
    Pick pick = {.version = 1, .us = 1};
    Tuning *p;
    char warning[512], home[CACHE_PATH];
    Err e;
    tuning_of(device, &p, &e);
    const int before = p->picks.n;
    strcpy(pick.device, "NVIDIA H200"), strcpy(pick.op, "theirs"), strcpy(pick.way, "plain");
    ok(!tuned_load(&other, p->path, &e) && !tuned_set(&other, &pick, &e) && !tuned_save(&other, p->path, &e),
       "another process keeps a pick");
    is_int(keep(device, "ours", &engine, 0, &e), OK, "this one keeps another");
    tuned_free(&other);
    ok(!tuned_load(&other, p->path, &e) && other.n == before + 2, "both are in the file");
    tuned_free(&other);
    tuning_warning(device, warning, sizeof warning);
    is_str(warning, "", "nothing is wrong with it");

    FILE *f = fopen(p->path, "a");
    if (f) fputs("cut off\nand again\n", f);
    ok(f && !fclose(f), "two damaged lines");
    tuning_free(device->tuning);
    device->tuning = NULL;
    tuning_warning(device, warning, sizeof warning);
    has_text(warning, "picks-NVIDIA-H200.txt:", "are told with the file");
    has_text(warning, "2 lines are ignored in all", "and their number");

    snprintf(home, sizeof home, "%s", getenv("HOME") ? getenv("HOME") : "");
    unsetenv("HOME"), unsetenv("XDG_CACHE_HOME");
    tuning_free(device->tuning);
    device->tuning = NULL;
    ok(!tuning_of(device, &p, &e) && p->picks.n == 0, "without a home there are plans, and no picks");
    is_int(cuda_tune(&device->base, NULL, NULL, &e), ERR_FILE, "but no tuning");
    has_text(e.text, "HOME is not set", "which says why");
    setenv("HOME", home, 1), setenv("XDG_CACHE_HOME", "/dev/null", 1);
    is_int(keep(device, "ours", &engine, 0, &e), ERR_FILE, "nor without a folder");
    setenv("XDG_CACHE_HOME", test_folder, 1);
    tuning_free(device->tuning);
    device->tuning = NULL;
}

/* A shipped engine can be made ready for a GPU that is not here. */
static void test_plans(CudaDevice *device) {
    static const Case layer = {64, 64, 128, 3, 30, 0};
    static const Precision bf16 = {"bf16", DT_BF16, DT_BF16, 0};
    Asked q;
    Conv v;
    Graph g;
    Engines list = {NULL};
    Node plan = NULL, again = NULL;
    size_t bytes;
    char *text;
    Err e;
    ask(&q, device, &layer, &bf16, CONV_FORWARD, BARE);
    if (conv_read(&q.args, CONV_FORWARD, &v, &e) || conv_graph(device, &v, 0, &g, &e) ||
        engines_ask(device, &g, 0, 1, &list, &e) || plan_open(device, v.op, "plain", &list.at[0], &plan, &e)) {
        ok(0, "a plan: %s", e.text);
        return;
    }
    ok(!list.at[0].compiled, "a shipped engine");
    is_int(plan_write(plan, path, "this op", &e), OK, "its plan is written");
    if (!ok(!plan_read(device, path, "this op", &again, &e), "and read")) printf("# %s\n", e.text);
    node_free(&again);
    is_int(plan_read(device, path, "another op", &again, &e), ERR_FORMAT, "not for another op");
    if (!cache_read(path, &text, &bytes, &e)) {
        text[bytes - 10] ^= 1;
        const struct { const char *what; size_t bytes; } cuts[] = {
            {"a changed byte", bytes}, {"a byte less", bytes - 1}, {"5 bytes", 5}, {"an empty file", 0}};
        for (size_t k = 0; k < ARRAY_LEN(cuts); k++) {
            is_int(cache_write(path, text, cuts[k].bytes, &e), OK, cuts[k].what);
            is_int(plan_read(device, path, "this op", &again, &e), ERR_FORMAT, "is no plan");
            if (k == 0) text[bytes - 10] ^= 1;
        }
        mem_free(text);
    }
    if (!plan_write(plan, path, "this op", &e) && !cache_read(path, &text, &bytes, &e)) {
        static const char now[] = "memtide plan 2 ", before[] = "memtide plan ";
        char *old = text + strlen(now) - strlen(before);
        ok(!strncmp(text, now, strlen(now)), "a plan's file tells its format");
        memcpy(old, before, strlen(before));
        is_int(cache_write(path, old, bytes - (size_t)(old - text), &e), OK, "a whole plan of the format before that");
        is_int(plan_read(device, path, "this op", &again, &e), ERR_FORMAT, "is not read: it does not name its way");
        mem_free(text);
    }
    node_free(&plan);
    engines_free(&list);
    graph_free(&g);
}

/* The plan that `way` gets of an engine, as text, to be freed with mem_free(); NULL: there is none. kept: the engine is
 * taken for a compiled one, whose plans are kept. */
static char *plan_text(CudaDevice *device, const Conv *v, const Way *way, const EngineId *id, bool kept) {
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    Graph g;
    Engine engine = {.config = NULL};
    Node plan = NULL;
    int64_t n = 0;
    char *text = NULL;
    Err e;
    int code = conv_graph(device, v, way->does, &g, &e);
    if (!code) code = engine_open(device, &g, id, &engine, &e);
    engine.compiled = kept;
    if (!code) code = plan_open(device, v->op, way->name, &engine, &plan, &e);
    if (!code) code = node_get(plan, name, CUDNN_TYPE_CHAR, 0, &n, NULL) || !(text = mem_new((size_t)n + 1)) ||
                      node_get(plan, name, CUDNN_TYPE_CHAR, n, &n, text);
    node_free(&plan);
    engine_close(&engine);
    graph_free(&g);
    if (!code) return text;
    mem_free(text);
    return NULL;
}

/* One op, one engine, two ways: each is given its own plan. */
static void test_ways_apart(CudaDevice *device) {
    static const Case layer = {64, 100, 100, 3, 16, 1};
    static const Precision bf16 = {"bf16", DT_BF16, DT_BF16, 0};
    const Way *const ways[] = {&conv_ways[4], &conv_ways[7]};
    Asked q;
    Conv v;
    Graph g;
    Engines list = {NULL};
    Err e;
    int shared = 0;
    ask(&q, device, &layer, &bf16, CONV_WEIGHTS, BARE);
    if (conv_read(&q.args, CONV_WEIGHTS, &v, &e) || conv_graph(device, &v, ways[1]->does, &g, &e) ||
        engines_ask(device, &g, 0, ENGINES_ALL, &list, &e))
        ok(0, "engines: %s", e.text);
    ok(conv_can(&v, ways[0]->does) && conv_can(&v, ways[1]->does) && strcmp(ways[0]->name, ways[1]->name), "two ways");
    for (int k = 0; k < list.n; k++) {
        char *right[2], *kept[2];
        for (int w = 0; w < 2; w++) right[w] = plan_text(device, &v, ways[w], &list.at[k].id, false);
        for (int w = 0; w < 2; w++) kept[w] = plan_text(device, &v, ways[w], &list.at[k].id, true);
        if (right[0] && right[1] && strcmp(right[0], right[1])) {
            char text[ENGINE_TEXT];
            shared++;
            engine_text(&list.at[k].id, text);
            for (int w = 0; w < 2; w++)
                ok(kept[w] && !strcmp(kept[w], right[w]), "engine %s: the plan of \"%s\" is its own", text,
                   ways[w]->name);
        }
        for (int w = 0; w < 2; w++) mem_free(right[w]), mem_free(kept[w]);
    }
    ok(shared > 0, "%d engines of one name in two ways", shared);
    engines_free(&list);
    graph_free(&g);
}

int main(void) {
    CudaDevice *device = described(&h200);
    if (!device) return tap_done();
    snprintf(path, sizeof path, "%s/a/b/file", test_folder);
    test_engines();
    test_find();
    test_file();
    test_damage();
    test_choice(device);
    test_shared(device);
    test_plans(device);
    test_ways_apart(device);
    test_casts(device);
    test_changed_line(device);
    cuda_release(device);
    remove_test_folder();
    return tap_done();
}
