/* The pass round_weights: which copies of weights in 16 bits go, where a device can round the weight itself. */
#include "bare.h"
#include "passes/passes.h"
#include "tap.h"

/* Which ops the device does it for */
static enum { NONE, FORWARD, BACKWARD, ALL } can;
static int asked;

static bool rounds(Device *d, const KArgs *args) {
    ok(args->device == d && args->in[0].dtype == DT_BF16 && args->in[1].dtype == DT_F32 && args->in[1].count,
       "asked about a weight in fp32");
    asked++;
    return can == ALL || can == (args->kind == OP_linear ? FORWARD : BACKWARD);
}

/* A product with a weight that it rounds wants another workspace. */
enum { USUAL = 64, ROUNDING = 192 };
static char usual, rounding;

static int prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d, (void)limit, (void)e;
    const bool product = args->kind == OP_linear || args->kind == OP_linear_dx;
    const bool differs = product && args->in[0].dtype != args->in[1].dtype;
    *state = !product ? NULL : differs ? &rounding : &usual;
    *workspace = !product ? 0 : differs ? ROUNDING : USUAL;
    return OK;
}

static const DeviceTable able = {.kind = "none", .alignment = 64, .prepare = prepare, .rounds = rounds};
static const DeviceTable unable = {.kind = "none", .alignment = 64, .prepare = prepare};

/* Copies of weights; products that read a weight in fp32, and those of them that are prepared for it; second runs; the
 * height of the plan */
typedef struct Found { int copies, direct, ready, again; size_t arena; } Found;

static Found find(const DeviceTable *table, const char *net, Shape shape, const Settings *s) {
    Device device = {.table = table};
    Found f = {0};
    Err e = {0, ""};
    Case c = case_open(&device, net, "CrossEntropyLoss", shape, s);
    for (int i = 0; c.p && i < c.p->n_ops; i++) {
        const Op *op = &c.p->ops[i];
        f.copies += op->kind == OP_cast && c.p->bufs[op->cast.x].category == CAT_WEIGHTS;
        f.again += op->recomputed;
        if (op->kind != OP_linear && op->kind != OP_linear_dx) continue;
        const bool direct = c.p->bufs[op->in[1]].dtype == DT_F32;
        f.direct += direct;
        f.ready += direct && op->state == &rounding && c.p->bufs[op->workspace].bytes == ROUNDING;
        ok(direct || (op->state == &usual && c.p->bufs[op->workspace].bytes == USUAL), "as before");
    }
    ok(c.p && !placement_arena(c.p, 64, &f.arena, &e), "placed");
    case_close(&c);
    return f;
}

static Settings amp(void) {
    Settings s = settings_default();
    s.precision = PREC_AMP_BF16;
    return s;
}

/* The weights are most of what there is: the copy that is at the peak goes, and others stay. */
static void test_large(void) {
    const char *net = "Sequential{Linear(100, 64) ReLU Linear(64, 4096) ReLU Linear(4096, 10)}";
    const Shape shape = shape2(4, 100);
    const Settings s = amp();
    can = ALL, asked = 0;
    const Found none = find(&unable, net, shape, &s);
    is_int(asked, 0, "a device that says nothing is not asked");
    const Found f = find(&able, net, shape, &s);
    ok(asked > 0 && f.arena < none.arena && f.copies < none.copies, "a large weight: %zu bytes, not %zu", f.arena, none.arena);
    ok(f.direct > 0 && f.direct == f.ready && none.direct == 0, "%d of %d products that read it are prepared for it", f.ready, f.direct);
    ok(f.copies > 0, "copies that are not at the peak stay: %d", f.copies);
    Settings shared = s;
    shared.recompute_light = false;
    const Found without = find(&unable, net, shape, &shared);
    for (can = FORWARD; can < ALL; can++) {
        const Found half = find(&able, net, shape, &shared);
        ok(half.copies == without.copies && half.arena == without.arena, "a copy that any op needs stays");
    }
    can = NONE;
    const Found not = find(&able, net, shape, &s);
    ok(not.copies == none.copies && not.arena == none.arena, "all stay where the device cannot");
}

/* Activations are most of what there is. */
static void test_small(void) {
    const Settings s = amp();
    can = ALL;
    const char *net = "Sequential{Linear(64, 64) ReLU Linear(64, 64) ReLU Linear(64, 10)}";
    const Found f = find(&able, net, shape2(4096, 64), &s), none = find(&unable, net, shape2(4096, 64), &s);
    ok(!f.direct && f.copies == none.copies && f.arena == none.arena, "a peak that would not fall: no copy goes");
}

/* Precisions without copies */
static void test_precisions(void) {
    static const Precision precisions[] = {PREC_FP32, PREC_BF16};
    can = ALL;
    for (size_t i = 0; i < ARRAY_LEN(precisions); i++) {
        Settings s = settings_default();
        s.precision = precisions[i];
        asked = 0;
        find(&able, "Sequential{Linear(100, 4096) ReLU Linear(4096, 10)}", shape2(4, 100), &s);
        is_int(asked, 0, "nothing to ask about");
    }
}

/* Ranks that keep shards of weights send those of the copies. */
static void test_shards(void) {
    can = ALL;
    for (int zero = 2; zero <= 3; zero++) {
        Settings s = amp();
        s.world = 2;
        s.zero = zero;
        asked = 0;
        find(&able, "Sequential{Linear(100, 64) ReLU Linear(64, 4096) ReLU Linear(4096, 10)}", shape2(4, 100), &s);
        ok(!asked == (zero == 3), "zero = %d: %d asked", zero, asked);
    }
}

/* A budget that the step meets without the copies: nothing is made again for it. With one that it meets with them, they go as without a
 * budget. */
static void test_budget(void) {
    const char *net = "Sequential{Linear(100, 512) ReLU Linear(512, 512) ReLU Linear(512, 512) ReLU Linear(512, 10)}";
    const Shape shape = shape2(512, 100);
    Settings s = amp();
    s.recompute_light = s.sliced_updates = false;
    can = ALL;
    const Found without = find(&able, net, shape, &s), with = find(&unable, net, shape, &s);
    ok(without.arena < with.arena && without.copies < with.copies, "without copies it is smaller");
    s.checkpoint = CHECKPOINT_BUDGET;
    s.budget = without.arena;
    const Found met = find(&able, net, shape, &s), other = find(&unable, net, shape, &s);
    ok(met.arena && met.arena <= without.arena && met.direct > 0 && !met.again, "a budget that is met without copies: none is left");
    ok(other.again > 0, "... and ops run again where the device cannot round");
    s.budget = with.arena;
    const Found loose = find(&able, net, shape, &s);
    ok(loose.arena == without.arena && loose.copies == without.copies && !loose.again, "one with room for them changes nothing");
}

int main(void) {
    test_large();
    test_budget();
    test_small();
    test_precisions();
    test_shards();
    return tap_done();
}
