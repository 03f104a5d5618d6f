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

static Found found_of(const Program *p) {
    Found f = {0, 0, 0, 0, 0};
    Placement place;
    Err e;
    if (!p || placement_build(p, 64, &place, &e)) return f;
    f.arena = place.arena;
    f.bound = place.persistent + place.plan.lower_bound;
    f.host = place.host.height;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_copy) continue;
        f.copies++;
        if (p->bufs[p->ops[i].out[0]].host) f.sent += p->bufs[p->ops[i].out[0]].bytes;
    }
    placement_free(&place);
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
    test_verifier();
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
