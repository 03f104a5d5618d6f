/* The page pass: a paged optimizer's states lie in the host's memory and come to the device for their parameter's update. */
#include "bare.h"
#include "each_failure.h"
#include "passes/passes.h"
#include "run/runtime.h"
#include "tap.h"

/* Parameters of 32 x 20, 20, 10 x 20 and 10 numbers */
#define NET "Sequential{Linear(32, 20) Tanh Linear(20, 10)}"
#define SHAPE shape2(4, 32)
static const size_t numbers[] = {640, 20, 200, 10};

static Settings settings_of(OptimKind kind, int64_t least) {
    Settings s = settings_default();
    const char *name;
    Err e;
    if (optimizer_spec(kind, &name)) setting_set_text(&s, setting_find("optimizer"), name, &e);
    s.page_least = least;
    return s;
}

typedef struct Found { size_t arena, persistent, host; int in, out; } Found;

static Found found_of(Program *p) {
    Found f = {0, 0, 0, 0, 0};
    const Placement *place;
    Err e;
    if (!p || placement_of(p, 64, &place, &e)) return f;
    f.arena = place->arena;
    f.persistent = place->persistent;
    f.host = place->host_persistent + place->host.height;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_copy) continue;
        f.in += !p->bufs[p->ops[i].out[0]].host;
        f.out += p->bufs[p->ops[i].out[0]].host;
    }
    return f;
}

static Found paged(OptimKind kind, int64_t least, int accumulate) {
    Settings s = settings_of(kind, least);
    s.accumulate = accumulate;
    Program *p = compiled(NET, SHAPE, &s);
    Found f = found_of(p);
    program_free(p);
    return f;
}

/* What is the optimizer's own beside: Adam keeps 8 bytes for a number, Lion 4. */
static void test_bytes(void) {
    static const struct { OptimKind kind, base; size_t bytes; int states; } cases[] = {
        {OPTIM_PagedAdam, OPTIM_Adam, 8, 2}, {OPTIM_PagedAdamW, OPTIM_AdamW, 8, 2}, {OPTIM_PagedLion, OPTIM_Lion, 4, 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            const Found all = paged(cases[i].base, 1, accumulate), none = paged(cases[i].kind, 641, accumulate);
            ok(!all.in && !all.out && !all.host, "an optimizer that is not paged copies nothing");
            ok(none.arena == all.arena && !none.in && !none.host, "nor one whose states are all small");
            for (int64_t least = 1; least <= 640; least += 71) {
                const Found f = paged(cases[i].kind, least, accumulate);
                size_t states = 0, largest = 0;
                int moved = 0;
                for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
                    if ((int64_t)numbers[k] < least) continue;
                    const size_t each = align_up(numbers[k] * cases[i].bytes / (size_t)cases[i].states, 64);
                    states += each * (size_t)cases[i].states;
                    largest = max_size(largest, each * (size_t)cases[i].states);
                    moved += cases[i].states;
                }
                is_int(f.in, moved, "states of that many numbers come to the device");
                is_int(f.out, moved, "and go back");
                is_int((long long)f.host, (long long)states, "the host has them all");
                is_int((long long)(all.persistent - f.persistent), (long long)states, "the device none of them for good");
                ok(f.arena + states - largest <= all.arena, "%zu bytes instead of %zu: at most one parameter's", f.arena, all.arena);
            }
        }
}

static void test_who(void) {
    const Shape below = shape1(PAGE_LEAST - 1), at = shape2(PAGE_LEAST / 100, 100);
    for (int kind = 0; kind < OPTIM_COUNT; kind++) {
        const char *name = "", *base = "";
        Settings s = settings_default();
        optimizer_spec(kind, &name);
        optimizer_spec((int)optimizer_base((OptimKind)kind), &base);
        s.optimizer.kind = (OptimKind)kind;
        const bool is = !strncmp(name, "Paged", 5);
        is_int(optimizer_pages(&s, &at), is, name);
        ok(!optimizer_pages(&s, &below), "%s: below bitsandbytes' size they stay", name);
        is_str(base, is ? name + 5 : name, "whose rule it has");
    }
    Settings w = settings_of(OPTIM_PagedAdamW8bit, 1), lion = settings_of(OPTIM_PagedLion, 1);
    ok(w.optimizer.rule.decoupled && w.optimizer.rule.weight_decay == 0.01f && w.optimizer.rule.block_size == 256 &&
           w.optimizer.rule.lr == 0.001f, "PagedAdamW8bit has AdamW8bit's defaults");
    ok(lion.optimizer.rule.decoupled && lion.optimizer.rule.lr == 0.0001f && lion.optimizer.rule.beta2 == 0.99f, "PagedLion Lion's");
    Program *p = NULL;
    w.eval = true;
    is_int(found_of(p = compiled(NET, SHAPE, &w)).host, 0, "evaluation has no states");
    program_free(p);
}

/* Small updates stand side by side, which a device can run together; paged ones come after them, and pages before their turn. */
static void test_order(void) {
    Settings s = settings_of(OPTIM_PagedAdam, 100);
    s.accumulate = 2;
    Program *p = compiled(NET, SHAPE, &s);
    char text[64] = "";
    for (int i = p ? p->body_end : 0; p && i < p->n_ops; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s",
                 p->ops[i].kind == OP_copy ? "c" : op_is_update(p->ops[i].kind) ? "U" : "");
    is_str(text, "cUUcUccccUcc", "updates and copies");
    program_free(p);
    s.page_least = 20 * 32; /* of the first weight alone, among many small updates, between which the room for its pages begins */
    p = compiled("Sequential{Linear(32, 20) Linear(20, 20) Linear(20, 20) Linear(20, 20) Linear(20, 10)}", SHAPE, &s);
    int parted = 0;
    for (int i = 1; p && i + 1 < p->n_ops; i++) {
        const Op *before = &p->ops[i - 1], *after = &p->ops[i + 1];
        parted += (p->ops[i].kind == OP_wait || p->ops[i].kind == OP_copy) && op_is_update(before->kind) && op_is_update(after->kind) &&
                  strcmp(before->path, "0.weight") && strcmp(after->path, "0.weight");
    }
    ok(p && parted == 0, "no copy parts two small updates (%d do)", parted);
    program_free(p);
}

/* ---- the verifier */

static int first_of(const Program *p, OpKind kind, bool from_host) {
    int i = 0;
    while (i < p->n_ops - 1 && (p->ops[i].kind != kind || (kind == OP_copy && p->bufs[p->ops[i].in[0]].host != from_host))) i++;
    return i;
}

static void not_fetched(Program *p) { p->ops[first_of(p, OP_copy, true)].kind = OP_cast; }
static void on_the_host(Program *p) { p->ops[first_of(p, OP_adam, true)].out[1] = find_buf(p, "0.weight.exp_avg"); }
static void onto_a_constant(Program *p) {
    Buf *to = &p->bufs[p->ops[first_of(p, OP_copy, false)].out[0]];
    to->constant = mem_new(to->bytes);
}
static void onto_the_device(Program *p) {
    Op *op = &p->ops[first_of(p, OP_copy, false)];
    op->out[0] = find_buf(p, "0.weight");
}
static void of_the_gradient(Program *p) { /* which is no page */
    Op *op = &p->ops[first_of(p, OP_adam, true)];
    op->out[1] = op->in[0];
}

static void test_verifier(void) {
    static const struct { void (*make)(Program *); const char *message; } mistakes[] = {
        {not_fetched, "works on host memory"},
        {on_the_host, "works on host memory"},
        {onto_a_constant, "writes over a buffer that lasts"},
        {onto_the_device, "copies within one memory"},
        {of_the_gradient, "updates a buffer that does not last"},
    };
    Settings s = settings_of(OPTIM_PagedAdam, 1);
    Program *valid = compiled(NET, SHAPE, &s);
    Err e = {0, ""};
    if (!ok(valid && !program_check(valid, "test", &e), "a valid program: %s", e.text)) return;
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        Program *p = program_copy(valid);
        mistakes[i].make(p);
        is_int(program_check(p, "test", &e), ERR_INTERNAL, "a mistake is found");
        has_text(e.text, mistakes[i].message, mistakes[i].message);
        program_free(p);
    }
    program_free(valid);
}

/* ---- runs */

/* Two programs share a parameter's states where both have them in one memory. */
static void test_together(Device *cpu) {
    static const struct { OptimKind kind[2]; int code; } cases[] = {
        {{OPTIM_PagedAdam, OPTIM_PagedAdam}, OK}, {{OPTIM_PagedAdam, OPTIM_PagedAdamW}, OK}, {{OPTIM_PagedAdam, OPTIM_Adam}, ERR_SCRIPT}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Case c[2];
        Job jobs[2];
        Runtime *r = NULL;
        Err e = {0, ""};
        for (int k = 0; k < 2; k++) {
            Settings s = settings_of(cases[i].kind[k], 1);
            c[k] = case_open(cpu, NET, "CrossEntropyLoss", SHAPE, &s);
            jobs[k] = (Job){c[k].net, c[k].p};
        }
        is_int(runtime_open(cpu, ALLOC_PLANNED, 0, jobs, 2, 1, 0, &r, &e), cases[i].code, "opened");
        if (cases[i].code) has_text(e.text, "only one has it in the host's memory", "a state in two memories is refused");
        if (r) is_int((long long)runtime_host_bytes(r), (long long)found_of(c[0].p).host, "both have the same states");
        runtime_close(r);
        for (int k = 0; k < 2; k++) case_close(&c[k]);
    }
}

typedef struct Failing { Device *cpu; Settings s; } Failing;

static int attempt(void *arg, Err *e) {
    Failing *f = arg;
    Program *p = NULL;
    Runtime *r = NULL;
    Network *net = net_new(NET, "CrossEntropyLoss", SHAPE, e);
    int code = net ? compile(net, &f->s, f->cpu, NULL, NULL, &p, e) : e->code;
    if (!code) code = runtime_open(f->cpu, ALLOC_PLANNED, 0, &(Job){net, p}, 1, 1, 0, &r, e);
    runtime_close(r);
    program_free(p);
    network_free(net);
    f->cpu->table->trim(f->cpu, true);
    return code;
}

int main(void) {
    Device *cpu = NULL;
    Err e = {0, ""};
    test_bytes();
    test_who();
    test_order();
    test_verifier();
    if (ok(device_open("cpu", &cpu, &e) == OK, "the CPU: %s", e.text)) {
        test_together(cpu);
        cpu->table->trim(cpu, true);
        each_failure(attempt, &(Failing){cpu, settings_of(OPTIM_PagedAdam, 1)}, 50, "a program with paged states, and its runtime");
        device_close(cpu);
    }
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
