/* The pass inplace where ops.def says ASK: whether a product's dx takes the place of the activation by whose slope it
 * multiplies depends on what else reads that, and on the device, but on no setting. */
#include "bare.h"
#include "passes/passes.h"
#include "tap.h"

static bool can;
static int asked;
static bool overwrites(Device *d, const KArgs *args, size_t *more) {
    ok(d && args->device == d && (args->kind == OP_conv2d_dx || args->kind == OP_linear_dx), "asked about a product");
    asked++;
    *more = 0;
    return can;
}

static const DeviceTable able = {.kind = "none", .alignment = 64, .prepare = bare_prepare, .overwrites = overwrites};
static const DeviceTable unable = {.kind = "none", .alignment = 64, .prepare = bare_prepare};

/* Products that multiply by a slope, those of them that overwrite what they take it from, and the height of the plan. */
typedef struct Found { int fused, over; size_t arena; } Found;

static Found find(const DeviceTable *table, const char *net, const Settings *s) {
    Device device = {.table = table};
    Found f = {0, 0, 0};
    Err e = {0, ""};
    Case c = case_open(&device, net, "CrossEntropyLoss", shape4(2, 3, 12, 12), s);
    for (int i = 0; c.p && i < c.p->n_ops; i++) {
        const Op *op = &c.p->ops[i];
        const bool fused = (op->kind == OP_conv2d_dx || op->kind == OP_linear_dx) && op->in[2] != NO_BUF;
        f.fused += fused;
        f.over += fused && program_root(c.p, op->out[0]) == program_root(c.p, op->in[2]);
    }
    ok(c.p && !placement_arena(c.p, 64, &f.arena, &e), "placed");
    case_close(&c);
    return f;
}

static const struct { const char *what, *net; int fused, over; } cases[] = {
    {"convolutions", "Sequential{Conv2d(3, 4, 3) ReLU Conv2d(4, 5, 3) ReLU Flatten Linear(320, 10)}", 2, 2},
    {"what the input is saved for", "Sequential{Flatten Linear(432, 20) GELU Linear(20, 10)}", 1, 1},
    {"what another layer reads first, going back",
     "Sequential{Flatten Linear(432, 20) Add{Sequential{GELU Linear(20, 9)} Linear(20, 9)} Linear(9, 10)}", 1, 1},
    {"what another layer reads later, going back",
     "Sequential{Flatten Linear(432, 20) Add{Linear(20, 9) Sequential{GELU Linear(20, 9)}} Linear(9, 10)}", 1, 0},
    {"recomputed", "Sequential{Flatten Checkpoint{Sequential{Linear(432, 20) ReLU Linear(20, 20)}} Linear(20, 10)}", 1, 1},
};

static void test_cases(void) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int mode = 0; mode < 4; mode++) {
            Settings s = settings_default();
            s.precision = mode & 1 ? PREC_AMP_BF16 : PREC_FP32;
            s.checkpoint = CHECKPOINT_MARKED;
            s.accumulate = 1 + mode / 2;
            s.inplace = mode == 2 ? INPLACE_OFF : INPLACE_MARKED;
            can = true, asked = 0;
            const Found f = find(&able, cases[i].net, &s);
            ok(f.fused == cases[i].fused && f.over == cases[i].over, "%s: %d of %d products overwrite, %d asked for", cases[i].what,
               f.over, f.fused, asked);
            can = false;
            const Found not = find(&able, cases[i].net, &s), none = find(&unable, cases[i].net, &s);
            ok(!not.over && !none.over && not.fused == f.fused, "%s: none where the device cannot, or does not say", cases[i].what);
            ok(f.arena <= none.arena && not.arena == none.arena, "%s: %zu bytes, at most %zu", cases[i].what, f.arena, none.arena);
        }
}

/* Where the peak is at such a product, it goes. */
static void test_peak(void) {
    Settings s = settings_default();
    can = true;
    const char *net = "Sequential{Conv2d(3, 4, 3) ReLU Conv2d(4, 8, 3) ReLU Flatten Linear(512, 10)}";
    const Found f = find(&able, net, &s), none = find(&unable, net, &s);
    ok(f.arena < none.arena, "the last activation in the article's network: %zu bytes, not %zu", f.arena, none.arena);
}

/* A library with two ways for the gradients of a convolution: one has little workspace and can overwrite, with a few bytes
 * more; the other is only there with much, and cannot, or needs more than there is. */
enum { LITTLE = 1000, MUCH = 2048, BITS = 100, MANY_BITS = 1 << 20 };
static char first, second;
static bool second_can;

static int library_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d, (void)e;
    const bool library = args->kind == OP_conv2d_dx || args->kind == OP_conv2d_dw;
    *state = !library ? NULL : limit >= MUCH ? &second : &first;
    *workspace = !library ? 0 : limit >= MUCH ? MUCH : LITTLE;
    return OK;
}

static bool library_overwrites(Device *d, const KArgs *args, size_t *more) {
    (void)d;
    *more = args->state == &second && second_can ? MANY_BITS : BITS;
    ok(!args->state || args->workspace_bytes == (args->state == &second ? MUCH : LITTLE), "asked with what it gave");
    return args->state != &second || second_can;
}

/* The plan has room for more workspace than the library takes at first. What it would then take must not spoil s. */
static void test_workspace(void) {
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = library_prepare, .overwrites = library_overwrites};
    Device device = {.table = &table};
    Settings s = settings_default();
    for (int k = 0; k < 4; k++) {
        s.workspace_limit = k & 1 ? 0 : LITTLE;
        second_can = k & 2;
        Case c = case_open(&device, "Sequential{Conv2d(3, 4, 3) ReLU Conv2d(4, 4, 3) Flatten Linear(256, 1000) ReLU Linear(1000, 10)}",
                           "CrossEntropyLoss", shape4(2, 3, 12, 12), &s);
        for (int i = 0; c.p && i < c.p->n_ops; i++) {
            const Op *op = &c.p->ops[i];
            if (op->kind == OP_conv2d_dw) ok(op->state == (k & 1 ? &second : &first), "others get what is free");
            const size_t bytes = op->workspace == NO_BUF ? 0 : c.p->bufs[op->workspace].bytes;
            if (op->kind != OP_conv2d_dx && (op->kind != OP_linear_dx || op->in[2] == NO_BUF)) continue;
            is_int(program_root(c.p, op->out[0]), program_root(c.p, op->in[2]), "overwrites s");
            if (op->kind == OP_linear_dx) is_int((long long)bytes, BITS, "a product without workspace gets some");
            else ok(op->state == &first && bytes == 1024 + BITS, "one with workspace gets more, and keeps its way: %zu bytes", bytes);
        }
        case_close(&c);
    }
}

int main(void) {
    test_cases();
    test_peak();
    test_workspace();
    return tap_done();
}
