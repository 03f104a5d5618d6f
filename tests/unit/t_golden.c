/* Program texts against tests/unit/golden/: what lowering and each pass make of known networks. After an intended change:
 * UPDATE=1 build/tests/unit/t_golden, and read the diff. The device here wants no workspace, so that the texts hold on every
 * machine, and every way that it has can overwrite. */
#include <stdlib.h>

#include "nets.h"
#include "tap.h"

static int no_workspace(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d, (void)args, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}

static bool overwrites(Device *d, const KArgs *args, size_t *more) { return (void)d, (void)args, *more = 0, true; }

typedef struct Text { char *data; size_t n, cap; const char *only; } Text;

static void put(void *arg, const char *line) {
    Text *t = arg;
    size_t n = strlen(line);
    if (t->n + n + 2 > t->cap) {
        char *more = realloc(t->data, t->cap = (t->n + n + 2) * 2);
        if (!more) return;
        t->data = more;
    }
    memcpy(t->data + t->n, line, n);
    t->n += n;
    t->data[t->n++] = '\n';
    t->data[t->n] = 0;
}

static void watch(void *arg, const char *pass, const Program *p) {
    Text *t = arg;
    char line[64];
    if (t->only && strcmp(t->only, pass)) return;
    snprintf(line, sizeof line, "== after %s", pass);
    put(t, line);
    program_dump(p, put, t);
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = calloc(1, 1 << 20);
    if (text && fread(text, 1, (1 << 20) - 1, f) == 0) *text = 0;
    fclose(f);
    return text;
}

static void first_difference(const char *a, const char *b) {
    int line = 1;
    for (; *a && *a == *b; a++, b++) line += *a == '\n';
    while (a[-1] != '\n' && line > 1) a--, b--;
    printf("# line %d\n# found    %.*s\n# expected %.*s\n", line, (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
}

static void compare(const char *name, const Text *t) {
    char path[128];
    snprintf(path, sizeof path, "tests/unit/golden/%s.txt", name);
    if (getenv("UPDATE")) {
        FILE *f = fopen(path, "wb");
        ok(f && fwrite(t->data, 1, t->n, f) == t->n && !fclose(f), "%s written", path);
        return;
    }
    char *expected = read_file(path);
    if (!ok(expected && !strcmp(expected, t->data), "%s", name)) first_difference(t->data, expected ? expected : "");
    free(expected);
}

static void golden(const char *name, const char *text, Shape input, const Settings *s, const char *only) {
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = no_workspace, .overwrites = overwrites};
    static Device device = {.table = &table};
    Err e = {0, ""};
    Program *p = NULL;
    Text t = {NULL, 0, 0, only};
    Network *net = net_new(text, "CrossEntropyLoss", input, &e);
    int code = net ? OK : e.code;
    if (!code) code = compile(net, s, &device, watch, &t, &p, &e);
    if (ok(code == OK, "%s compiles", name)) compare(name, &t);
    else printf("# %s\n", e.text);
    free(t.data);
    program_free(p);
    network_free(net);
}

/* Every stage of three with four micro-batches, and the second one in the other order: which ops run when, and what is sent. */
static void pipelines(void) {
    static const char net[] = "Sequential{Linear(8, 8) Dropout(0.5) Residual{Linear(8, 8)} Linear(8, 4)}";
    char name[64];
    for (int rank = 0; rank < 4; rank++) {
        Settings s = settings_default();
        setting_set_text(&s, setting_find("optimizer"), "SGD", NULL);
        s.world = s.mesh.pipeline = 3;
        s.rank = rank % 3;
        s.accumulate = 4;
        s.pipeline_schedule = rank < 3 ? PIPELINE_1F1B : PIPELINE_GPIPE;
        snprintf(name, sizeof name, rank < 3 ? "pipeline_1f1b_stage_%d" : "pipeline_gpipe_stage_%d", s.rank);
        golden(name, net, shape2(2, 8), &s, "inplace");
    }
}

int main(void) {
    const Shape image = shape4(2, 3, 32, 32), small = shape4(2, 3, 12, 12);
    Settings s = settings_default();
    golden("article_every_pass", NET_ARTICLE, image, &s, NULL);
    golden("mixed_fp32", NET_MIXED, small, &s, "inplace");
    s.precision = PREC_AMP_FP16;
    golden("article_amp_fp16", NET_ARTICLE, image, &s, "inplace");
    s.precision = PREC_MASTER_BF16;
    s.accumulate = 4;
    golden("article_master_bf16_accumulate", NET_ARTICLE, image, &s, "inplace");
    s = settings_default();
    s.checkpoint = CHECKPOINT_MARKED;
    golden("mixed_marked", NET_MIXED, small, &s, "inplace");
    s.checkpoint = CHECKPOINT_SQRT;
    golden("mixed_sqrt", NET_MIXED, small, &s, "inplace");
    s.checkpoint = CHECKPOINT_ALL;
    s.inplace = INPLACE_ON;
    golden("mixed_all_inplace", NET_MIXED, small, &s, "inplace");
    s = settings_default();
    s.world = 3;
    s.rank = 1;
    s.bucket_bytes = 4000;
    golden("article_three_ranks", NET_ARTICLE, image, &s, "inplace");
    s.zero = 3;
    s.precision = PREC_AMP_BF16;
    s.accumulate = 2;
    golden("article_three_ranks_zero_3", NET_ARTICLE, image, &s, "inplace");
    s.zero = 1;
    golden("article_three_ranks_zero_1", NET_ARTICLE, image, &s, "inplace");
    pipelines();
    s = settings_default();
    s.eval = true;
    golden("mixed_eval", NET_MIXED, small, &s, "inplace");
    s.no_loss = true;
    golden("article_eval_output", NET_ARTICLE, image, &s, "inplace");
    return tap_done();
}
