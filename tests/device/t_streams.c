/* What goes on beside the device's computing changes no number, and needs the memory that is predicted, on the CPU and on an
 * emulated GPU, there also with all work as late as CUDA allows:
 *
 * - steps of which the next one begins before the result of the last one is asked for: each has its own loss, and is left out by
 *   the loss scaler as it would be;
 * - copies of activations and paged states to the host and back, which wait for each other; where a wait is missing, numbers are
 *   wrong or the recording fails;
 * - micro-batches that are copied to the device ahead. */
#include "base/mem.h"
#include "each_device.h"
#include "run/runtime.h"
#include "unit/nets.h"

enum { STEPS = 6, ROOM = 1 << 16 };

typedef struct Run { int code; Err e; StepResult step[STEPS]; float output[STEPS]; char *state; size_t bytes, peak; int updates; } Run;

static int take_result(Runtime *r, const Program *p, Run *out, int i) {
    int code = runtime_result(r, &out->step[i], &out->e);
    if (!code && p->bufs[p->output].keep) { /* the first number of what the network gave in that step */
        float y[ROOM];
        code = runtime_read(r, 0, p->bufs[p->output].name, y, &out->e);
        out->output[i] = y[0];
    }
    return code;
}

/* All persistent buffers, one after the other; and how many updates were made. */
static int read_state(Runtime *r, Run *out) {
    int code = OK;
    for (int i = 0; runtime_persistent(r, i); i++) out->bytes += runtime_persistent(r, i)->bytes;
    out->state = mem_new(out->bytes);
    char *at = out->state;
    for (int i = 0; runtime_persistent(r, i) && !code; at += runtime_persistent(r, i++)->bytes)
        if ((code = runtime_read_bytes(r, i, at, &out->e)) == OK && !strcmp(runtime_persistent(r, i)->name, "state")) {
            StepState state;
            memcpy(&state, at, sizeof state);
            out->updates = (int)state.step;
        }
    return code;
}

/* STEPS steps; late: each result is asked for after the next step has begun. The learning rate is another one in each. */
static Run run(Device *device, const Network *net, Program *p, AllocKind kind, bool late) {
    Run out = {0};
    Runtime *r = NULL;
    out.code = runtime_open(device, kind, 0, &(Job){net, p}, 1, 7, 0, &r, &out.e);
    for (int i = 0; i < STEPS && !out.code; i++) {
        const float lr = 0.01f / (float)(i + 1);
        if (p->lr != NO_BUF) out.code = runtime_write(r, "lr", &lr, &out.e);
        if (!out.code) out.code = runtime_begin(r, 0, net_feed, (void *)p, &out.e);
        if (!out.code && (!late || i > 0)) out.code = take_result(r, p, &out, i - late);
    }
    if (!out.code && late) out.code = take_result(r, p, &out, STEPS - 1);
    if (!out.code) out.code = read_state(r, &out);
    if (r) out.peak = runtime_ledger(r)->peak.held;
    device->table->sync(device, NULL); /* a fault that was planted may have left work */
    if (r && runtime_close_checked(r, &out.e)) out.code = ERR_INTERNAL;
    return out;
}

#define SMALL "Sequential{Conv2d(3, 4, 3, padding=1) Tanh Residual{Conv2d(4, 4, 3, padding=1)} GELU MaxPool2d(2) Flatten Linear(36, 10)}"
#define SCALE 1e6f /* gradients fit in 16 bits after a few halvings */

static const struct Case { const char *what, *net; Shape input; Precision precision; int accumulate; Offload offload; OptimKind optimizer;
                           float scale; bool keep, ahead; } cases[] = {
    {"a loss scale that overflows", SMALL, {4, {2, 3, 6, 6}}, PREC_AMP_FP16, 1, OFFLOAD_NONE, OPTIM_Adam, SCALE, false, false},
    {"outputs that are kept, fed ahead", SMALL, {4, {2, 3, 6, 6}}, PREC_FP32, 1, OFFLOAD_NONE, OPTIM_SGD, 0, true, true},
    {"three micro-batches, offloading, fed ahead", SMALL, {4, {2, 3, 6, 6}}, PREC_AMP_FP16, 3, OFFLOAD_ALL, OPTIM_Adam, SCALE, false, true},
    {"offloading, paged states", SMALL, {4, {2, 3, 6, 6}}, PREC_FP32, 1, OFFLOAD_ALL, OPTIM_PagedAdam, 0, false, false},
};

static Settings settings_of(const struct Case *c) {
    Settings s = settings_default();
    s.precision = c->precision;
    s.accumulate = c->accumulate;
    s.offload = c->offload;
    s.offload_least = 0;
    s.page_least = 1;
    s.scheduled = true;
    s.keep_output = c->keep;
    s.feed_ahead = c->ahead;
    s.optimizer.kind = c->optimizer;
    if (c->scale > 0) s.scaler.init_scale = c->scale, s.scaler.attr.interval = 1; /* it grows at once, so that steps are skipped later, too */
    return s;
}

/* The same in every bit. */
static void compare(const Run *a, const Run *b, const char *what, const char *how) {
    int losses = 0, skipped = 0, outputs = 0, times = 0;
    for (int i = 0; i < STEPS; i++) {
        losses += memcmp(&a->step[i].loss, &b->step[i].loss, sizeof a->step[i].loss) != 0;
        outputs += memcmp(&a->output[i], &b->output[i], sizeof a->output[i]) != 0;
        skipped += a->step[i].skipped != b->step[i].skipped;
        times += !(b->step[i].seconds > 0 && b->step[i].ops > 0 && b->step[i].ops <= b->step[i].seconds);
    }
    ok(losses + outputs + skipped == 0, "%s, %s: each step has its loss (%d have not), output (%d) and skip (%d)", what, how, losses, outputs, skipped);
    ok(a->bytes == b->bytes && !memcmp(a->state, b->state, a->bytes), "%s, %s: the same parameters and states", what, how);
    ok(a->peak == b->peak, "%s, %s: the same peak", what, how);
    is_int(times, 0, "and each step a time, of which a part is that of its ops");
}

/* The same training with everything in line and in the device's memory. */
static void check_plain(Device *device, const Network *net, Settings s, const struct Case *c, const Run *found) {
    Program *p = NULL;
    Err e = {0, ""};
    int wrong = 0;
    s.offload = OFFLOAD_NONE;
    s.feed_ahead = false;
    s.optimizer.kind = optimizer_base(s.optimizer.kind);
    if (!ok(compile(net, &s, device, NULL, NULL, &p, &e) == OK, "in line: %s", e.text)) return;
    Run plain = run(device, net, p, ALLOC_PLANNED, false);
    for (int i = 0; i < STEPS; i++)
        wrong += memcmp(&plain.step[i].loss, &found->step[i].loss, sizeof plain.step[i].loss) || plain.step[i].skipped != found->step[i].skipped;
    ok(plain.code == OK && wrong == 0, "%s: the losses of everything in line", c->what);
    if (c->ahead && c->offload == OFFLOAD_NONE) {
        size_t more = 0;
        const int fed[] = {p->inputs[0], p->target};
        for (size_t i = 0; i < ARRAY_LEN(fed); i++) more += align_up(p->bufs[fed[i]].bytes, device->table->alignment);
        ok(found->peak == plain.peak + more, "%s: %zu bytes more for second buffers", c->what, more);
    }
    mem_free(plain.state);
    program_free(p);
}

/* The emulated GPU, whose work is as late as is told: on a real one a missing wait may do no harm today. */
static bool is_emulated(Device *device) {
    DeviceInfo info;
    Err e;
    return device->table->info(device, &info, &e) == OK && strstr(info.name, "emulated");
}

/* Each wait is left out once. */
static void check_missing_waits(Device *device, const Network *net, Program *p, const Run *right, const char *what) {
    int to_device = 0, to_host = 0, found_device = 0, found_host = 0;
    setenv("EMULATE_LATE", "1", 1);
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_wait) continue;
        const bool back = !p->bufs[p->ops[i].wait.y].host;
        p->ops[i].kind = OP_view; /* which is not run; the memory is the same */
        Run wrong = run(device, net, p, ALLOC_PLANNED, false);
        p->ops[i].kind = OP_wait;
        bool differs = wrong.code != OK;
        for (int k = 0; k < STEPS && !differs; k++) differs = memcmp(&wrong.step[k].loss, &right->step[k].loss, sizeof wrong.step[k].loss) != 0;
        to_device += back;
        to_host += !back;
        found_device += back && differs;
        found_host += !back && differs;
        mem_free(wrong.state);
    }
    unsetenv("EMULATE_LATE");
    ok(to_device > 0 && to_host > 0, "%s: %d copies come beside computing, %d go", what, to_device, to_host);
    /* a wait for one of two copies that follow each other is one for the first, too */
    ok(2 * found_device >= to_device && found_host > 0, "%s: without the wait it is found for %d that come and %d that go", what, found_device, found_host);
}

static void check_case(Device *device, const struct Case *c) {
    Settings s = settings_of(c);
    Program *p = NULL;
    Err e = {0, ""};
    const bool gpu = device->table->record != NULL;
    Network *net = net_new(c->net, "CrossEntropyLoss", c->input, &e);
    if (!ok(net && compile(net, &s, device, NULL, NULL, &p, &e) == OK, "%s: %s", c->what, e.text)) return;
    Run base = run(device, net, p, ALLOC_PLANNED, false);
    if (!ok(base.code == OK, "%s: %s", c->what, base.e.text)) return;
    Prediction guess;
    ok(predict(&(Job){net, p}, 1, ALLOC_PLANNED, device, 0, &(Call){0, PART_WHOLE}, 1, STEPS, &guess, &e) == OK && guess.peak.held == base.peak,
       "%s: %zu bytes, as predicted", c->what, base.peak);
    check_plain(device, net, s, c, &base);
    if (gpu && is_emulated(device) && c->offload != OFFLOAD_NONE) check_missing_waits(device, net, p, &base, c->what);
    int skipped = 0, distinct = 0, replayed = 0;
    for (int i = 0; i < STEPS; i++) {
        skipped += base.step[i].skipped;
        replayed += base.step[i].replayed;
        distinct += i > 0 && base.step[i].loss != base.step[i - 1].loss;
    }
    ok(distinct == STEPS - 1, "%s: no two steps have the same loss, so that none can be taken for another", c->what);
    if (c->scale > 0) is_int(base.updates, STEPS - skipped, "as many updates as steps that were not skipped");
    ok(c->scale > 0 ? skipped > 0 && skipped < STEPS : skipped == 0, "%s: %d of %d steps are skipped", c->what, skipped, STEPS);
    ok(gpu ? replayed >= STEPS - 2 && replayed < STEPS : replayed == 0, "%s: %d steps are replayed", c->what, replayed);
    for (int late = 0; late < (gpu ? 2 : 1); late++) {
        if (late) setenv("EMULATE_LATE", "1", 1);
        for (int kind = 0; kind < (late || c != cases ? 1 : ALLOC_COUNT); kind++) {
            Run apart = run(device, net, p, (AllocKind)kind, false), ahead = run(device, net, p, (AllocKind)kind, true);
            if (ok(apart.code == OK && ahead.code == OK, "%s: %s %s", c->what, apart.e.text, ahead.e.text)) {
                apart.peak = kind == ALLOC_PLANNED ? base.peak : apart.peak;
                compare(&apart, &ahead, c->what, alloc_name((AllocKind)kind));
                apart.peak = base.peak;
                compare(&base, &apart, c->what, "as with a plan");
            }
            mem_free(apart.state);
            mem_free(ahead.state);
        }
        unsetenv("EMULATE_LATE");
    }
    mem_free(base.state);
    program_free(p);
    network_free(net);
}

/* What asks for a result that is not there, or begins too much, is told so. */
static void check_order(Device *device) {
    Settings s = settings_default();
    Err e = {0, ""};
    Program *p = NULL;
    Runtime *r = NULL;
    StepResult first, second;
    Network *net = net_new(NET_MIXED, "CrossEntropyLoss", shape4(3, 3, 12, 12), &e);
    if (!ok(net && !compile(net, &s, device, NULL, NULL, &p, &e) && !runtime_open(device, ALLOC_PLANNED, 0, &(Job){net, p}, 1, 7, 0, &r, &e),
            "a runtime %s", e.text)) return;
    is_int(runtime_result(r, &first, &e), ERR_SCRIPT, "no step, no result");
    ok(!runtime_begin(r, 0, net_feed, p, &e) && !runtime_begin(r, 0, net_feed, p, &e), "two steps begin");
    is_int(runtime_begin(r, 0, net_feed, p, &e), ERR_SCRIPT, "a third one is refused");
    has_text(e.text, "2 steps are under way", "as one too many");
    is_int(runtime_step(r, 0, net_feed, p, &first, &e), ERR_SCRIPT, "and so is one whose result is wanted at once");
    ok(!runtime_result(r, &first, &e) && !runtime_result(r, &second, &e) && first.loss != second.loss, "each has its result");
    is_int(runtime_result(r, &first, &e), ERR_SCRIPT, "once");
    ok(!runtime_begin(r, 0, net_feed, p, &e), "a step that nobody asks for");
    is_int(runtime_close_checked(r, &e), OK, "is no harm");
    program_free(p);
    network_free(net);
}

static void check_device(Device *device) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) check_case(device, &cases[i]);
    check_order(device);
}

int main(void) {
    each_device(check_device);
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
