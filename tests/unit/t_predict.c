/* Prediction: bytes of networks that are small enough to count by hand, with every allocator; limits to the byte; turns
 * of several programs; errors. The device here aligns to 4 bytes and wants no workspace, so that nothing is rounded. */
#include "bare.h"
#include "base/mem.h"
#include "run/runtime.h"
#include "tap.h"

static const DeviceTable table = {.kind = "none", .alignment = 4, .prepare = bare_prepare};
static Device device = {.table = &table};
static const Call STEP = {0, PART_WHOLE};

static Prediction predicted(const Case *c, AllocKind kind, size_t limit) {
    Prediction out = {.host = 1};
    Err e = {0, ""};
    ok(predict(&(Job){c->net, c->p}, 1, kind, &device, limit, &STEP, 1, 3, &out, &e) == OK, "it is predicted: %s", e.text);
    return out;
}

/* (4, 3) -> (4, 2): w 24 and b 8 bytes stay; x 48; y 32. */
static void test_evaluation(void) {
    Settings s = settings_default();
    s.eval = s.no_loss = true;
    Case c = case_open(&device, "Linear(3, 2)", NULL, shape2(4, 3), &s);
    for (int kind = 0; c.p && kind < ALLOC_COUNT; kind++) {
        if (kind == ALLOC_CACHING) continue;
        const Prediction need = predicted(&c, (AllocKind)kind, 0);
        ok(need.fits, "without a limit it fits");
        is_int(need.peak.held, 24 + 8 + 48 + 32, "parameters, input and output");
        is_int(need.peak.category[CAT_WEIGHTS], 24 + 8, "of which parameters");
        is_int(need.peak.category[CAT_INPUT], 48, "input");
        is_int(need.peak.category[CAT_ACTIVATIONS], 32, "activations");
        is_int(need.peak.mark, 0, "at the only op");
        is_int(need.lower_bound, need.peak.held, "which is as low as it can be");
        is_int(need.allocated, 24 + 8, "parameters are left after the step");
        is_int(need.reserved, kind == ALLOC_PLANNED ? 112 : 32, "and what the allocator keeps");
        is_int(need.host, 0, "nothing lies with the host");
    }
    case_close(&c);
}

/* PyTorch's caching: blocks in multiples of 512 bytes out of one segment of 2 MiB. */
static void test_caching(void) {
    Settings s = settings_default();
    s.eval = s.no_loss = true;
    Case c = case_open(&device, "Linear(3, 2)", NULL, shape2(4, 3), &s);
    if (c.p) {
        const Prediction need = predicted(&c, ALLOC_CACHING, 0);
        is_int(need.peak.held, 2 << 20, "a segment");
        is_int(need.peak.used, 112, "of which tensors use the same bytes");
        is_int(need.reserved, 2 << 20, "it is kept");
        ok(!predicted(&c, ALLOC_CACHING, (2 << 20) - 1).fits, "and cannot be smaller");
    }
    case_close(&c);
}

/* Plain SGD: 32 bytes of parameters stay; before the loss, x 48, target 32, y 32 and the loss 4 are there; after it
 * dL/dy takes y's place, the target goes, and 32 bytes of gradients come. */
static void test_training(void) {
    Settings s = settings_default();
    s.optimizer.kind = OPTIM_SGD;
    Case c = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    for (int kind = 0; c.p && kind < ALLOC_COUNT; kind++) {
        if (kind == ALLOC_CACHING) continue;
        const Prediction need = predicted(&c, (AllocKind)kind, 0);
        is_int(need.peak.held, 32 + 48 + 32 + 32 + 4, "at the loss");
        is_int(need.peak.mark, 1, "the first of the ops where it is as much");
        is_int(need.peak.category[CAT_GRADIENTS], 0, "no gradient is there yet");
    }
    case_close(&c);
    s.inplace = INPLACE_OFF; /* now dL/dy stands beside y */
    c = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    if (c.p) {
        const Prediction need = predicted(&c, ALLOC_DIRECT, 0);
        is_int(need.peak.held, 32 + 48 + 32 + 32 + 4 + 32, "y, its gradient and the target");
        is_int(need.peak.mark, 2, "at the loss's gradient");
        is_int(need.peak.category[CAT_ACTIVATION_GRADIENTS], 32, "of which the gradient");
    }
    case_close(&c);
}

/* Adam has two numbers more for each of 8, and a count of steps. */
static void test_states(void) {
    Settings s = settings_default();
    Case adam = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    s.optimizer.kind = OPTIM_SGD;
    Case sgd = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    if (adam.p && sgd.p) {
        const size_t more = predicted(&adam, ALLOC_DIRECT, 0).allocated - predicted(&sgd, ALLOC_DIRECT, 0).allocated;
        is_int((long long)more, 64 + (long long)sizeof(StepState), "that stay between steps");
        is_int((long long)predicted(&adam, ALLOC_DIRECT, 0).peak.category[CAT_OPTIMIZER], (long long)more,
               "the optimizer's");
    }
    case_close(&adam);
    case_close(&sgd);
}

static void test_limit(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Sequential{Linear(3, 5) ReLU Linear(5, 2)}", "MSELoss", shape2(4, 3), &s);
    for (int kind = 0; c.p && kind < ALLOC_COUNT; kind++) {
        const size_t need = predicted(&c, (AllocKind)kind, 0).peak.held;
        const Prediction at = predicted(&c, (AllocKind)kind, need), below = predicted(&c, (AllocKind)kind, need - 1);
        ok(at.fits && at.peak.held == need, "%s: its own peak is enough", alloc_name((AllocKind)kind));
        ok(!below.fits && below.reason.code == ERR_OOM, "one byte less is not: %s", below.reason.text);
        is_int(below.peak.held <= need - 1, 1, "and the limit was held to");
        const Prediction none = predicted(&c, (AllocKind)kind, 1);
        ok(!none.fits && none.lower_bound == 0, "where not even the parameters fit, there is nothing to say");
    }
    case_close(&c);
}

/* Two programs of one network: the parameters are there once, and the larger step counts. */
static void test_round(void) {
    Settings s = settings_default();
    Case train = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    s.eval = true;
    Case eval = case_open(&device, "Linear(3, 2)", "MSELoss", shape2(4, 3), &s);
    const Job both[] = {{train.net, train.p}, {eval.net, eval.p}};
    const Call round[] = {{1, PART_WHOLE}, {0, PART_WHOLE}};
    Prediction out, first;
    Err e = {0, ""};
    if (train.p && eval.p) {
        const size_t alone = predicted(&train, ALLOC_DIRECT, 0).peak.held;
        is_int(predict(both, 2, ALLOC_DIRECT, &device, 0, &round[1], 1, 2, &first, &e), OK, "steps of the first");
        is_int(predict(both, 2, ALLOC_DIRECT, &device, 0, round, 2, 2, &out, &e), OK, "steps in turns");
        ok(out.fits && out.peak.held == alone && first.peak.held == alone, "an evaluation between needs no more");
        ok(out.peak.mark == first.peak.mark && out.peak.mark >= 0 && out.peak.program == 0,
           "the peak of several is at an op of the one that needs the most");
        is_int(out.lower_bound, first.lower_bound, "as is the bound");
        is_int(predict(both, 2, ALLOC_DIRECT, &device, 0, round, 1, 2, &out, &e), OK, "evaluations alone");
        ok(out.peak.held < alone && out.peak.program == 1 && out.lower_bound < first.lower_bound, "need less");
    }
    case_close(&train);
    case_close(&eval);
}

/* Where buffers lie is found once, and found anew where anything that it follows from has changed. */
static void test_placement(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Sequential{Linear(3, 5) ReLU Linear(5, 2)}", "MSELoss", shape2(4, 3), &s);
    if (!c.p) return;
    const Placement *pl;
    Err e;
    int b = 0, code = placement_of(c.p, 64, &pl, &e);
    const Placement *const first = pl;
    const size_t before = pl->arena;
    ok(!code && !placement_of(c.p, 64, &pl, &e) && pl == first, "asked again, a program has the placement that it had");
    while (!pl->life[b].used || pl->life[b].persistent) b++;
    c.p->bufs[b].bytes += before;
    ok(!placement_of(c.p, 64, &pl, &e) && pl->arena >= 2 * before, "a buffer that has grown has more room");
    c.p->bufs[b].host = true;
    ok(!placement_of(c.p, 64, &pl, &e) && pl->arena <= before && pl->host.height > before, "one in the host's memory has it there");
    c.p->bufs[b].kind = BUF_PERSISTENT;
    ok(!placement_of(c.p, 64, &pl, &e) && !pl->host.height && pl->host_persistent > before, "... for good, if it lasts");
    const size_t fine = pl->arena;
    ok(!placement_of(c.p, 4096, &pl, &e) && pl->arena % 4096 == 0 && pl->arena > fine, "another alignment makes another placement");
    case_close(&c);
}

/* A placement begins from the one before it where only scratch is new: nothing is searched, and what lasts longer stays. */
static void test_placed_again(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Sequential{Linear(3, 5) ReLU Linear(5, 2)}", "MSELoss", shape2(4, 3), &s);
    if (!c.p) return;
    const Placement *pl;
    Err e;
    if (placement_of(c.p, 64, &pl, &e)) {
        ok(false, "placed: %s", e.text);
        return;
    }
    const int n = pl->n_bufs;
    const long searched = pl->plan.searched;
    const size_t height = pl->plan.height;
    size_t *was = mem_new((size_t)n * sizeof *was);
    if (!ok(was != NULL, "room for %d offsets", n)) return;
    memcpy(was, pl->offsets, (size_t)n * sizeof *was);
    int op = 0, moved = 0;
    while (c.p->ops[op].workspace != NO_BUF) op++;
    workspace_add(c.p, op, 64, 64);
    ok(searched > 0 && !placement_of(c.p, 64, &pl, &e) && pl->n_bufs == n + 1 && pl->plan.searched == 0,
       "an op gets scratch: no search, after %ld steps of one", searched);
    for (int b = 0; b < n; b++) moved += pl->life[b].used && pl->life[b].first < pl->life[b].last && pl->offsets[b] > was[b] + pl->plan.height - height;
    is_int(moved, 0, "... and all that lasts longer stays, or moves up by what the plan has grown");
    mem_free(was);
    case_close(&c);
}

/* What was placed to judge light ops that run again is not placed a second time. */
static void test_judged(void) {
    Settings s = settings_default();
    s.recompute_least = 64;
    Case c = case_open(&device, "Sequential{Conv2d(3, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1) GELU"
                       " Flatten Linear(2048, 10)}", "CrossEntropyLoss", shape4(4, 3, 16, 16), &s);
    if (!c.p) return;
    const Placement *const judged = c.p->placed, *pl = NULL;
    Err e;
    int again = 0;
    for (int i = 0; i < c.p->n_ops; i++) again += c.p->ops[i].recomputed;
    ok(again > 0 && judged && !placement_of(c.p, device.table->alignment, &pl, &e) && pl == judged,
       "%d ops run again, and the step is as it was judged", again);
    case_close(&c);
}

/* The program forgets its placement. */
static void forget(Program *p) {
    mem_free(p->placed);
    p->placed = NULL;
}

/* A program without ops is an error and no prediction; so is a host without memory. */
static void test_errors(void) {
    Settings s = settings_default();
    Case c = case_open(&device, "Sequential{Linear(3, 5) ReLU Linear(5, 2)}", "MSELoss", shape2(4, 3), &s);
    Program *empty = program_new();
    Prediction out = {.host = 7};
    Err e = {0, ""};
    if (!c.p || !empty) return;
    is_int(predict(&(Job){c.net, empty}, 1, ALLOC_DIRECT, &device, 0, &STEP, 1, 2, &out, &e), ERR_SCRIPT, "a program without ops");
    has_text(e.text, "the network has nothing to compute", "is told");
    is_int(out.host, 7, "and nothing is predicted");
    is_int(predict(&(Job){c.net, empty}, 1, ALLOC_DIRECT, &device, 0, &STEP, 1, 2, &out, NULL), ERR_SCRIPT, "nobody has to listen");
    program_free(empty);
    for (int kind = 0; kind < ALLOC_COUNT; kind++) {
        forget(c.p);
        const long before = mem_live();
        int failures = 0, wrong = 0, code = ERR_HOST_MEMORY;
        while (code && failures < 1000) {
            e.code = OK;
            out.host = 7;
            mem_fail_after(failures + 1);
            code = predict(&(Job){c.net, c.p}, 1, (AllocKind)kind, &device, 0, &STEP, 1, 2, &out, &e);
            mem_fail_after(0);
            forget(c.p);
            failures += code != OK;
            wrong += code && (code != ERR_HOST_MEMORY || e.code != code || out.host != 7);
            wrong += mem_live() != before;
        }
        ok(!code && failures > 10, "%s: %d allocations, each made to fail", alloc_name((AllocKind)kind), failures);
        is_int(wrong, 0, "each is an error of its kind, predicts nothing and leaves nothing");
    }
    case_close(&c);
}

int main(void) {
    test_evaluation();
    test_placement();
    test_placed_again();
    test_judged();
    test_caching();
    test_training();
    test_states();
    test_limit();
    test_round();
    test_errors();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
