/* The checkpoint pass: where the chain is cut, what each mode drops and makes again, and that no value changes. */
#include <stdlib.h>

#include "checkpoint_nets.h"
#include "digest.h"
#include "nets.h"
#include "run/runtime.h"
#include "tap.h"

/* ---- the chain */

static void test_cuts(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_NONE);
    Program *p = before(residual, &s, &e);
    Chain c;
    Scratch memory = {0};
    if (!ok(p && chain_find(&c, p, &memory), "the residual network has a chain")) return;
    is_int(c.cut[0].root, NO_BUF, "nothing crosses the start");
    is_int(c.cut[c.n_cuts - 1].at, p->forward_end, "the last cut is the end of the forward pass");
    is_int(c.cut[c.n_cuts - 2].at, p->forward_end - 1, "the loss is after the cut before");
    bool inside = false;
    for (int i = 1; i + 1 < c.n_cuts; i++) inside |= strstr(p->bufs[c.cut[i].root].name, "body") != NULL;
    ok(!inside, "no cut lies inside a residual block");
    is_int(c.n_cuts, 9, "start, conv + relu, block, relu + pool, block, relu, average, product, end");
    int order = 0;
    for (int i = 1; i < c.n_cuts; i++) order += c.cut[i].at > c.cut[i - 1].at;
    is_int(order, c.n_cuts - 1, "cuts lie in order");
    scratch_release(&memory, NULL);
    program_free(p);
}

/* ---- the modes */

/* Is the storage of `buf` read, under whatever shape? */
static bool is_read(const Program *p, int buf, int from) {
    for (int i = from; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN; k++)
            if (p->ops[i].in[k] != NO_BUF && program_root(p, p->ops[i].in[k]) == program_root(p, buf)) return true;
    return false;
}

static int twin_of(const Program *p, int buf) {
    char name[BUF_NAME + 8];
    snprintf(name, sizeof name, "%s.again", p->bufs[buf].name);
    return find_buf(p, name);
}

/* The forward op of which op `again` is the second run. */
static const Op *first_run(const Program *p, const Op *again) {
    for (int i = 0; i < p->forward_end; i++)
        if (twin_of(p, p->ops[i].out[0]) == again->out[0]) return &p->ops[i];
    return NULL;
}

/* Second runs lie in the backward pass and are like the first, with outputs and workspace of their own; the backward
 * pass reads what was made first or what was made again, never both. */
static bool well_dropped(const Program *p) {
    for (int i = 0; i < p->n_ops; i++) {
        const Op *again = &p->ops[i], *first = first_run(p, again);
        if (!again->recomputed) continue;
        if (i < p->forward_end || !first || first->kind != again->kind || first->state != again->state) return false;
        if (memcmp(&first->attr, &again->attr, sizeof first->attr)) return false;
        if ((first->workspace == NO_BUF) != (again->workspace == NO_BUF)) return false;
        if (first->workspace != NO_BUF && first->workspace == again->workspace) return false;
        if (p->bufs[first->out[0]].category != p->bufs[again->out[0]].category) return false;
    }
    for (int b = 0; b < p->n_bufs; b++) {
        int twin = twin_of(p, b);
        if (twin != NO_BUF && is_read(p, b, p->forward_end) && is_read(p, twin, p->forward_end)) return false;
    }
    return true;
}

static void test_modes(void) {
    static const Checkpoint modes[] = {CHECKPOINT_MARKED, CHECKPOINT_ALL, CHECKPOINT_SQRT,
                                       CHECKPOINT_SELECTIVE};
    for (size_t n = 0; n < ARRAY_LEN(nets); n++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Err e = {0};
            bool good = true;
            int again = 0;
            for (size_t m = 0; m < ARRAY_LEN(modes); m++) {
                Settings s = settings_of(modes[m]);
                s.precision = (Precision)precision;
                s.accumulate = 1 + precision % 2;
                s.inplace = (Inplace)(precision % 3);
                Program *p = before(nets[n].text, &s, &e), *c = p ? after(p, &s, &e) : NULL;
                good = good && c && same_values(p, c) && well_dropped(c) && arena(c, &s, &e) > 0;
                again += c ? again_count(c, OP_KIND_COUNT) : 0;
                program_free(p);
                program_free(c);
            }
            const char *text = precision_info((Precision)precision)->text;
            if (!ok(good && again > 0, "%s %s: the values stay as they are", nets[n].name, text))
                printf("# %d second runs; %s\n", again, e.text);
        }
}

static void test_marked(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_MARKED);
    Program *p = before(marked, &s, &e), *c = p ? after(p, &s, &e) : NULL;
    if (!ok(c != NULL, "the marked network")) return;
    is_int(again_count(c, OP_conv2d), 2, "of each marked pair the first convolution runs again, the last one need not");
    is_int(again_count(c, OP_act), 1, "GELU runs again");
    is_int(again_count(c, OP_dropout), 1, "dropout runs again");
    is_int(again_count(c, OP_linear), 0, "a marked layer whose output leaves at once has nothing to run again");
    for (int i = 0; i < c->n_ops; i++)
        if (c->ops[i].kind == OP_dropout && c->ops[i].recomputed)
            is_int(c->ops[i].attr.drop.id, first_run(c, &c->ops[i])->attr.drop.id, "and draws the same numbers");
    ok(arena(c, &s, &e) < arena(p, &s, &e), "the step gets smaller");
    program_free(c);
    program_free(p);
}

static void test_view(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_MARKED);
    Program *p = before(views, &s, &e), *c = p ? after(p, &s, &e) : NULL;
    if (!ok(c != NULL, "the network with a view")) return;
    is_int(again_count(c, OP_view), 1, "a view of what is dropped is made again");
    for (int i = 0; i < c->n_ops; i++)
        if (c->ops[i].kind == OP_view && c->ops[i].recomputed)
            is_int(c->bufs[c->ops[i].out[0]].alias, c->ops[i].in[0], "and lies in the storage that was made again");
    program_free(c);
    program_free(p);
}

static void test_nothing(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_NONE);
    Program *p = before(plain, &s, &e), *c = p ? after(p, &s, &e) : NULL;
    ok(c && c->n_ops == p->n_ops && c->n_bufs == p->n_bufs, "none: nothing changes");
    program_free(c);
    s.checkpoint = CHECKPOINT_BUDGET;
    s.eval = true;
    c = p ? after(p, &s, &e) : NULL;
    ok(c && c->n_ops == p->n_ops && c->n_bufs == p->n_bufs, "eval: nothing to drop");
    program_free(c);
    program_free(p);
}

/* A chain of 16 equal units: sqrt keeps about 4 + 4 of them alive. */
static void test_sqrt(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_SQRT);
    char text[1024] = "Sequential{";
    for (int i = 0; i < 16; i++) strcat(text, i ? "Conv2d(8, 8, 1) Tanh " : "Conv2d(3, 8, 1) Tanh ");
    strcat(text, "Flatten Linear(2048, 10)}");
    Program *p = before(text, &s, &e), *c = p ? after(p, &s, &e) : NULL;
    if (!ok(c != NULL, "a chain of 16 units")) return;
    int stored = 0, twins = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        bool activation = p->bufs[b].category == CAT_ACTIVATIONS && shape_elements(&p->bufs[b].shape) == BATCH * 2048 &&
                          p->bufs[b].alias == NO_BUF;
        stored += activation && is_read(c, b, c->forward_end);
        twins += activation && twin_of(c, b) != NO_BUF;
    }
    is_int(stored + twins, 16, "every activation is stored or made again");
    ok(stored <= 8 && twins >= 8, "at most 2 sqrt(16) of 16 stay stored: %d", stored);
    program_free(c);
    program_free(p);
}

/* Products are kept; what is light is made again, also after another light op, and whoever reads it. */
static void test_selective(void) {
    static const char text[] = "Sequential{Conv2d(3, 8, 3) GELU Conv2d(8, 8, 1) BatchNorm2d(8) Tanh "
                               "Conv2d(8, 8, 1) GELU Flatten Linear(1568, 10)}";
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_SELECTIVE);
    s.inplace = INPLACE_OFF; /* gradients have room of their own: the peak falls further with the second in a row */
    Program *p = before(text, &s, &e), *c = p ? after(p, &s, &e) : NULL;
    if (!ok(c != NULL, "a network with light ops")) return;
    is_int(again_count(c, OP_conv2d) + again_count(c, OP_linear), 0, "no product runs again");
    is_int(again_count(c, OP_act), 3, "activations do, which the next product reads");
    is_int(again_count(c, OP_batchnorm_again), 1, "and the normalisation that one of them stands on");
    ok(arena(c, &s, &e) < arena(p, &s, &e), "the step gets smaller");
    int beside = 0;
    for (int i = c->forward_end; i < c->n_ops; i++)
        beside += c->ops[i].kind == OP_batchnorm_again && c->ops[i].recomputed && c->ops[i + 1].in[0] == c->ops[i].out[0];
    is_int(beside, 1, "right before it");
    program_free(c);
    program_free(p);
}

/* Light ops that stand on each other: made again from the first, they would be as many as were dropped. */
static void test_depth(void) {
    Err e = {0};
    Settings s = settings_of(CHECKPOINT_NONE);
    char text[1024] = "Sequential{Conv2d(3, 8, 1)";
    for (int i = 0; i < 12; i++) strcat(text, " Sigmoid");
    strcat(text, " Flatten Linear(2048, 10)}");
    Program *p = before(text, &s, &e);
    Chain c;
    Scratch memory = {0};
    if (!ok(p && chain_find(&c, p, &memory), "a chain of light ops")) return;
    int *segment = calloc((size_t)p->forward_end, sizeof *segment), *depth = calloc((size_t)p->n_bufs, sizeof *depth);
    for (int deep = 0; deep <= DEEPEST && segment && depth; deep++) {
        int alone = 0, run = 0, longest = 0;
        chain_store(&c, LIGHTEN, segment);
        chain_lighten(&c, deep, op_is_light, 0, c.p->forward_end, segment, depth);
        for (int i = 0; i < p->forward_end; i++) {
            run = segment[i] == ALONE ? run + 1 : 0;
            alone += segment[i] == ALONE;
            if (run > longest) longest = run;
        }
        ok(longest == deep && (deep == 0) == (alone == 0), "depth %d: %d in a row, %d in all", deep, longest, alone);
    }
    free(segment);
    free(depth);
    scratch_release(&memory, NULL);
    program_free(p);
}

/* ---- host memory */

static void test_host_memory(void) {
    for (int mode = CHECKPOINT_MARKED; mode <= CHECKPOINT_BUDGET; mode++) {
        Err e = {0};
        Settings s = settings_of((Checkpoint)mode);
        Program *p = before(marked, &s, &e);
        s.budget = least_of(p, s, &e);
        long n = 0, live = mem_live(), leaks = 0, others = 0;
        int code;
        do {
            Program *c = program_copy(p);
            mem_fail_after(++n);
            code = checkpoint(c, &s, &e);
            mem_fail_after(0);
            others += code != OK && code != ERR_HOST_MEMORY;
            program_free(c);
            leaks += mem_live() != live;
        } while (code && n < 100000);
        ok(n > 8 && !leaks && !others && !code, "mode %d: each of %ld allocations fails cleanly", mode, n - 1);
        program_free(p);
    }
    is_int(mem_live(), 0, "nothing is left");
}

/* ---- on a device */

enum { STEPS = 3 };

/* Losses of some steps of the whole compiled program, and its peak in *held. */
static int train(const Network *net, const Settings *s, Device *cpu, float *loss, size_t *held, Err *e) {
    Program *p = NULL;
    Runtime *r = NULL;
    StepResult step = {0};
    int code = compile(net, s, cpu, NULL, NULL, &p, e);
    if (code) return code;
    code = runtime_open(cpu, ALLOC_PLANNED, 0, &(Job){net, p}, 1, 7, 0, &r, e);
    for (int i = 0; i < STEPS && !code; i++) {
        code = runtime_step(r, 0, net_feed, p, &step, e);
        loss[i] = step.loss;
    }
    if (!code) *held = runtime_ledger(r)->peak.held;
    runtime_close(r);
    program_free(p);
    return code;
}

/* Every mode; the budget, the last one, is what the best of the others takes. */
static void train_all(const Network *net, Settings s, Device *cpu, const char *name) {
    Err e = {0};
    float stored[STEPS] = {0}, loss[STEPS];
    size_t held = 0;
    int code = train(net, &s, cpu, stored, &s.budget, &e), differ = 0;
    bool over = false;
    for (int mode = CHECKPOINT_MARKED; mode <= CHECKPOINT_BUDGET && !code; mode++) {
        s.checkpoint = (Checkpoint)mode;
        code = train(net, &s, cpu, loss, &held, &e);
        differ += memcmp(loss, stored, sizeof loss) != 0;
        over = held > s.budget;
        if (!over) s.budget = held;
    }
    bool good = !code && !differ && !over && isfinite(stored[STEPS - 1]);
    if (!ok(good, "%s %s: trains to the same bits, within the budget", name, precision_info(s.precision)->text))
        printf("# code %d, %d differ, %zu bytes held of %zu: %s\n", code, differ, held, s.budget, e.text);
}

static void test_training(void) {
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16};
    Err e = {0};
    Device *cpu = NULL;
    if (!ok(device_open("cpu", &cpu, &e) == OK, "the CPU opens")) return;
    for (size_t n = 0; n < ARRAY_LEN(nets); n++)
        for (size_t k = 0; k < ARRAY_LEN(precisions); k++) {
            Network *net = net_new(nets[n].text, "CrossEntropyLoss", shape4(BATCH, 3, 16, 16), &e);
            Settings s = settings_of(CHECKPOINT_NONE);
            s.precision = precisions[k];
            if (net) train_all(net, s, cpu, nets[n].name);
            else ok(false, "%s: %s", nets[n].name, e.text);
            network_free(net);
        }
    device_close(cpu);
}

/* A choice, or a pass, that makes a mistake: the verifier finds it before anything is judged by it. */
static void mistake(Program *p, const void *choice, Scratch *s) {
    (void)choice;
    (void)s;
    p->bufs[p->output].bytes += 4;
}

static int mistaken_pass(Program *p, Compile *c) {
    mistake(p, NULL, &c->scratch);
    return OK;
}

static void test_mistakes(void) {
    Err e = {0};
    const Settings s = settings_of(CHECKPOINT_NONE);
    Program *p = before(plain, &s, &e), *finished = NULL;
    if (!ok(p != NULL, "a program to make mistakes in")) return;
    Compile c = {.settings = &s, .device = &model, .e = &e};
    size_t bytes = 0;
    is_int(whatif(p, mistake, NULL, &c, &finished, &bytes), ERR_INTERNAL, "a choice that breaks the program is an error");
    has_text(e.text, "after the passes of a choice: ", "... that says where");
    ok(!finished && !bytes, "... and judges nothing");
    is_int(pass_run(&(Pass){"mistaken", mistaken_pass}, p, &c), ERR_INTERNAL, "so is a pass that does");
    has_text(e.text, "after mistaken: ", "... which is named");
    program_free(p);
}

int main(void) {
    test_cuts();
    test_mistakes();
    test_modes();
    test_marked();
    test_view();
    test_nothing();
    test_sqrt();
    test_selective();
    test_depth();
    test_host_memory();
    test_training();
    return tap_done();
}
