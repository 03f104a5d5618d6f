/* The offload pass: activations wait in the host's memory between the forward and the backward pass; as few of them as
 * the peak, or a budget, makes necessary. */
#include "bare.h"
#include "base/mem.h"
#include "passes/passes.h"
#include "tap.h"

static const struct { const char *what, *text; } nets[] = {
    {"a chain", "Sequential{Conv2d(3, 8, 3, padding=1) ReLU Conv2d(8, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1)"
                " Tanh Conv2d(8, 8, 3, padding=1) Sigmoid MaxPool2d(2) Flatten Linear(512, 10)}"},
    {"blocks", "Sequential{Conv2d(3, 8, 3, padding=1) BatchNorm2d(8) ReLU Residual{Sequential{"
               "Conv2d(8, 8, 3, padding=1) BatchNorm2d(8) ReLU Conv2d(8, 8, 3, padding=1) BatchNorm2d(8)}} ReLU"
               " Residual{Sequential{Conv2d(8, 8, 1) GELU Dropout Conv2d(8, 8, 1)}} Flatten Linear(2048, 10)}"},
    {"views", "Sequential{Conv2d(3, 4, 3, padding=1) Flatten GELU Tanh GELU Sigmoid GELU Tanh GELU Linear(1024, 10)}"},
};
#define SHAPE shape4(4, 3, 16, 16)

typedef struct Found { size_t arena, bound, host, sent; int copies; } Found;

static Found found_of(Program *p) {
    Found f = {0, 0, 0, 0, 0};
    const Placement *place;
    Err e;
    if (!p || placement_of(p, 64, &place, &e)) return f;
    f.arena = place->arena;
    f.bound = place->persistent + place->plan.lower_bound;
    f.host = place->host.height;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_copy) continue;
        f.copies++;
        if (p->bufs[p->ops[i].out[0]].host) f.sent += p->bufs[p->ops[i].out[0]].bytes;
    }
    return f;
}

static Settings settings_of(Offload offload, size_t budget) {
    Settings s = settings_default();
    s.offload = offload;
    s.offload_budget = budget;
    s.offload_least = 256;
    return s;
}

static Found offloaded(const char *text, Offload offload, size_t budget) {
    Settings s = settings_of(offload, budget);
    Program *p = compiled(text, SHAPE, &s);
    Found f = found_of(p);
    program_free(p);
    return f;
}

/* Budgets from what is needed without offloading down to the least: each is kept to, and as it falls more is sent. */
static void test_budgets(void) {
    for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
        Found none = offloaded(nets[i].text, OFFLOAD_NONE, 0), all = offloaded(nets[i].text, OFFLOAD_ALL, 0);
        ok(none.copies == 0 && none.host == 0, "%s: nothing is copied unasked", nets[i].what);
        ok(all.copies > 0 && all.copies % 2 == 0, "%s: %d copies, there and back", nets[i].what, all.copies);
        ok(all.bound < none.bound, "%s: %zu bytes in place of %zu", nets[i].what, all.bound, none.bound);
        ok(all.sent >= all.host && all.host > 0, "%s: %zu bytes of the host", nets[i].what, all.host);
        is_int(offloaded(nets[i].text, OFFLOAD_BUDGET, none.arena).copies, 0, "copies without need");
        size_t sent = 0, step = (none.arena - all.arena) / 7 + 1;
        bool kept = true, more = true;
        for (size_t budget = none.arena; budget >= all.arena; budget -= step) {
            Found f = offloaded(nets[i].text, OFFLOAD_BUDGET, budget);
            kept = kept && f.arena > 0 && f.arena <= budget;
            more = more && f.sent <= all.sent;
            sent = max_size(sent, f.sent);
        }
        ok(kept, "%s: each budget is kept to", nets[i].what);
        ok(more && sent > 0, "%s: with at most as many bytes sent as without one", nets[i].what);
    }
}

static void test_refused(void) {
    Settings s = settings_of(OFFLOAD_ALL, 0);
    Device *cpu = NULL;
    Program *p = NULL;
    Err e = {0, ""};
    Network *net = net_new(nets[0].text, "CrossEntropyLoss", SHAPE, &e);
    if (!ok(net && !device_open("cpu", &cpu, &e), "a network")) return;
    is_int(compile(net, &s, cpu, NULL, NULL, &p, &e), OK, "all of it");
    size_t least = found_of(p).arena;
    program_free(p);
    s = settings_of(OFFLOAD_BUDGET, least / 2);
    is_int(compile(net, &s, cpu, NULL, NULL, &p, &e), ERR_OOM, "half of what is needed at least");
    ok(strstr(e.text, "offload: a budget of ") != NULL, "is told: %s", e.text);
    network_free(net);
    device_close(cpu);
}

/* Nothing is sent that the step's end reads, that is small, or that evaluation makes. */
static void test_stays(void) {
    Settings s = settings_of(OFFLOAD_ALL, 0);
    s.keep_output = true;
    Program *p = compiled("Sequential{Conv2d(3, 8, 3, padding=1) Sigmoid}", SHAPE, &s);
    is_int(found_of(p).copies, 0, "an output that is kept stays");
    program_free(p);
    s = settings_of(OFFLOAD_ALL, 0);
    s.offload_least = 1 << 20;
    p = compiled(nets[0].text, SHAPE, &s);
    is_int(found_of(p).copies, 0, "small ones stay");
    program_free(p);
    s.offload_least = 0;
    s.eval = true;
    p = compiled(nets[0].text, SHAPE, &s);
    is_int(found_of(p).copies, 0, "evaluation sends nothing");
    program_free(p);
}

/* The most bytes that are alive while an activation is on the device that only waits there for the backward pass, and could have been sent; the most
 * at any time */
static size_t waiting_of(const Program *p, size_t *most) {
    Scratch scratch = {0};
    const Alive alive = placement_alive(p, 64, &scratch);
    size_t bytes = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        int from = 0, to = p->n_ops;
        if (p->bufs[b].host || p->bufs[b].category != CAT_ACTIVATIONS || p->bufs[b].bytes < 256 || program_root(p, b) != b) continue;
        for (int i = 0; i < p->n_ops; i++) {
            bool reads = false, writes = false;
            EACH_IN(&p->ops[i], k) reads |= program_root(p, p->ops[i].in[k]) == b;
            EACH_OUT(&p->ops[i], k) writes |= p->ops[i].out[k] != NO_BUF && program_root(p, p->ops[i].out[k]) == b;
            if (i < p->forward_end && (reads || writes)) from = i + 1;
            if (i >= p->forward_end && reads && to == p->n_ops) to = i;
        }
        for (int i = from; from && to < p->n_ops && i < to; i++) bytes = max_size(bytes, alive.live[i]);
    }
    *most = alive.most;
    scratch_release(&scratch, NULL);
    return bytes;
}

/* Those that stay leave a 64th of the peak free, of which later passes take half at most. */
static void test_room(void) {
    for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
        Settings s = settings_of(OFFLOAD_ALL, 0);
        size_t most = 0, waiting;
        Program *p = compiled(nets[i].text, SHAPE, &s);
        if (!ok(p != NULL, "%s", nets[i].what)) continue;
        waiting = waiting_of(p, &most);
        ok(waiting > 0 && waiting <= most - most / 128, "%s: %zu bytes at most while something waits, of %zu", nets[i].what, waiting, most);
        program_free(p);
    }
}

/* Of two activations, of 4 and of 3 channels, for one of which there is room, the larger stays. */
static void test_largest(void) {
    const char *text = "Sequential{BatchNorm2d(3) MaxPool2d(2) Conv2d(3, 4, 1) BatchNorm2d(4) Tanh Dropout(0.5) Flatten Linear(256, 10)}";
    const Found f = offloaded(text, OFFLOAD_ALL, 0);
    ok(f.copies == 2 && f.sent == 4 * 3 * 8 * 8 * sizeof(float), "the smaller one goes: %zu bytes in %d copies", f.sent, f.copies);
}

/* ---- copies beside computing */

typedef struct Line { size_t live, arena; int ops; } Line; /* in line: the most bytes alive, the arena, how many ops */

static void note_line(void *arg, const char *pass, const Program *p) {
    Line *l = arg;
    if (strcmp(pass, "workspace_threads")) return; /* the last pass before overlap_copies */
    Scratch scratch = {0};
    Program *copy = program_copy(p);
    Err e;
    l->live = placement_alive(p, 64, &scratch).most;
    placement_arena(copy, 64, &l->arena, &e);
    l->ops = p->n_ops;
    program_free(copy);
    scratch_release(&scratch, NULL);
}

/* Ops that compute between the op and its wait; below 0: there is none. */
static int computed_beside(const Program *p, int op) {
    int n = 0;
    for (int i = op + 1; i < p->n_ops; i++) {
        const Op *o = &p->ops[i];
        if (o->kind == OP_wait && o->wait.y == p->ops[op].out[0]) return n;
        n += o->kind != OP_wait && o->kind != OP_copy && o->kind != OP_view;
    }
    return -1;
}

static int all_come; /* programs in which copies come beside computing */

static void check_beside(const char *what, const char *text, Settings s) {
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = bare_prepare};
    static Device device = {.table = &table};
    Line line = {0, 0, 0}, after = {0, 0, 0};
    Err e = {0, ""};
    Program *p = NULL;
    Network *net = net_new(text, "CrossEntropyLoss", SHAPE, &e);
    if (!ok(net && compile(net, &s, &device, note_line, &line, &p, &e) == OK, "%s: %s", what, e.text)) return;
    note_line(&after, "workspace_threads", p);
    int waits = 0, least = 0, gone = 0, come = 0, copies = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        waits += op->kind == OP_wait;
        copies += op->kind == OP_copy;
        if (!op->begun) continue;
        const int n = computed_beside(p, i);
        least = min_int(least, n);
        if (n > 0) *(p->bufs[op->out[0]].host ? &gone : &come) += 1;
    }
    ok(gone > 0 && least >= 0, "%s: %d of %d copies go beside computing, %d come", what, gone, copies, come);
    all_come += come > 0;
    ok(after.live == line.live && after.arena <= line.arena && after.ops == line.ops + waits,
       "%s: %zu bytes alive at most as in line (%zu), an arena of %zu (%zu)", what, after.live, line.live, after.arena, line.arena);
    const Placement *judged = p->placed, *now = NULL;
    ok(judged && placement_of(p, 64, &now, &e) == OK && now == judged, "%s: the placement by which copies were judged is the program's", what);
    /* each wait left out, each op moved before the wait that it needs */
    int missed = 0;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_wait) continue;
        Program *broken = program_copy(p);
        memmove(&broken->ops[i], &broken->ops[i + 1], (size_t)(broken->n_ops - i - 1) * sizeof *broken->ops);
        broken->n_ops--;
        broken->body_end -= i < broken->body_end;
        broken->forward_end -= i < broken->forward_end;
        missed += program_check(broken, "a mistake", &e) != ERR_INTERNAL;
        program_free(broken);
    }
    is_int(missed, 0, "the verifier finds each wait that is missing");
    int last = -1; /* wait of the forward pass, of a step that may end there */
    for (int i = 0; i < p->forward_end && s.parts; i++)
        if (p->ops[i].kind == OP_wait) last = i;
    if (last >= 0) {
        const Op wait = p->ops[last];
        memmove(&p->ops[last], &p->ops[last + 1], (size_t)(p->forward_end - last) * sizeof wait);
        p->ops[p->forward_end--] = wait;
        is_int(program_check(p, "a mistake", &e), ERR_INTERNAL, "and one that comes after the part of the step");
        has_text(e.text, "is begun, and none waits for it", "as such");
    }
    program_free(p);
    network_free(net);
}

static void test_beside(void) {
    for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
        Settings s = settings_of(OFFLOAD_ALL, 0);
        check_beside(nets[i].what, nets[i].text, s);
        s.accumulate = 2;
        check_beside("... with two micro-batches", nets[i].text, s);
        s.accumulate = 1;
        s.optimizer.kind = OPTIM_PagedAdam;
        s.page_least = 1;
        check_beside("... with paged states", nets[i].text, s);
        s.parts = true;
        check_beside("... in parts", nets[i].text, s);
    }
    ok(all_come > 6, "there is room for those that come in %d of the 12", all_come);
}

/* The verifier lets nothing but copies touch host memory. */
static void test_verifier(void) {
    Settings s = settings_of(OFFLOAD_ALL, 0);
    Err e = {0, ""};
    Program *p = compiled(nets[0].text, SHAPE, &s);
    int sent = 0;
    if (!ok(p != NULL, "a program that offloads")) return;
    while (p->ops[sent].kind != OP_copy) sent++;
    p->bufs[p->ops[sent].out[0]].host = false;
    is_int(program_check(p, "a mistake", &e), ERR_INTERNAL, "a copy within the device is refused");
    ok(strstr(e.text, "copies within one memory") != NULL, "%s", e.text);
    p->bufs[p->ops[sent].out[0]].host = true;
    p->bufs[p->ops[0].out[0]].host = true;
    is_int(program_check(p, "a mistake", &e), ERR_INTERNAL, "an op that writes host memory is refused");
    ok(strstr(e.text, "works on host memory") != NULL, "%s", e.text);
    program_free(p);
}

int main(void) {
    test_budgets();
    test_refused();
    test_stays();
    test_room();
    test_largest();
    test_beside();
    test_verifier();
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
