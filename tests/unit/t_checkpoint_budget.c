/* Checkpointing within a byte budget: a larger one never costs more, every one is held, and the choice is compared with
 * every choice that there is on short chains. */
#include "checkpoint_nets.h"
#include "tap.h"

enum { BUDGETS = 50 /* from the least to what no recomputation needs */, NETWORKS = 2000 /* random ones of images */, SEQUENCES = 100, CUTS = 6 /* at most, of those that are compared; of sequences one more */ };
enum { DEEP = 3, UNITS = 40 /* deep networks of so many convolutions */ };

static void test_budget(void) {
    for (size_t n = 0; n < ARRAY_LEN(nets); n++) {
        Err e = {0};
        Settings s = settings_of(CHECKPOINT_BUDGET);
        s.precision = n % 2 ? PREC_AMP_BF16 : PREC_FP32;
        Program *p = before(nets[n].text, &s, &e);
        size_t least = least_of(p, s, &e), most;
        has_text(e.text, "a budget of 1 bytes is too small", "a budget that nothing reaches is named");
        most = arena(p, &s, &e);
        ok(least > 1 && least <= most, "%s: from %zu to %zu bytes", nets[n].name, least, most);
        s.budget = least - 1;
        is_int(checkpoint(p, &s, &e), ERR_OOM, "a byte less than the least is too little");
        double last = INFINITY;
        int wrong = 0, steps = 0;
        for (int i = 0; i <= BUDGETS; i++) {
            s.budget = least + (most - least) * (size_t)i / BUDGETS;
            Program *c = after(p, &s, &e);
            double seconds = c ? again_seconds(c) : NAN;
            wrong += !(seconds <= last && arena(c, &s, &e) <= s.budget);
            steps += seconds < last;
            last = seconds;
            program_free(c);
        }
        is_int(wrong, 0, "a larger budget never costs more, and every budget is held");
        ok(last == 0 && steps > 1 - (least == most), "in %d steps down to no recomputation at all", steps);
        program_free(p);
    }
}

/* ---- against every choice there is */

typedef struct Choice { size_t arena; double seconds; } Choice;
typedef struct Choices {
    const Chain *c;
    const Settings *s;
    int *segment, *light, *depth; /* light: the choice with what it stores lightened */
    bool *lost, *need, *again;
    Choice *item;
    int n, cap;
} Choices;

static Choices choices_of(const Chain *c, const Settings *s, Scratch *memory) {
    const size_t bufs = (size_t)c->p->n_bufs, ops = (size_t)c->p->forward_end;
    return (Choices){.c = c, .s = s, .segment = scratch_new(memory, ops, sizeof(int)), .light = scratch_new(memory, ops, sizeof(int)),
                     .depth = scratch_new(memory, bufs, sizeof(int)), .lost = scratch_new(memory, bufs, sizeof(bool)),
                     .need = scratch_new(memory, bufs, sizeof(bool)), .again = scratch_new(memory, ops, sizeof(bool))};
}

static void add_choice(Choices *o, const int *segment) {
    Err e = {0};
    Compile c = {.settings = o->s, .device = &model, .e = &e};
    Choice one = {0, chain_again(o->c, segment, o->lost, o->need, o->again)};
    bool made = mem_grow(&o->item, &o->cap, o->n + 1, sizeof *o->item);
    if (made && !chain_arena(o->c, segment, &c, &one.arena)) o->item[o->n++] = one;
    else ok(false, "a choice: %s", e.text);
}

/* Can the op be made again for a later one, while nothing is stored for that? */
static bool is_free(const Chain *c, int op) {
    const int out = c->p->ops[op].out[0];
    return out != NO_BUF && !c->saved[program_root(c->p, out)] && op_is_light(&c->p->ops[op]);
}

/* Stores the next unit in one of four ways or drops a run of the next ones, and so on to the last cut. */
static void choose_from(Choices *o, int from) {
    enum { ALL, BUT_FREE, BUT_LIGHT, BUT_LIGHT_INSIDE, NONE };
    const Chain *c = o->c;
    if (from == c->n_cuts - 1) {
        memcpy(o->light, o->segment, (size_t)c->p->forward_end * sizeof *o->light);
        chain_lighten(c, USUAL, op_is_light, 0, c->p->forward_end, o->light, o->depth);
        add_choice(o, o->light);
        return;
    }
    for (int to = from + 1; to < c->n_cuts; to++)
        for (int way = to > from + 1 ? NONE : ALL; way < NONE + (to < c->n_cuts - 1); way++) {
            const int root = c->cut[to].root, end = way == BUT_LIGHT_INSIDE && root != NO_BUF ? c->writer[root] : NO_OP;
            bool any = way == ALL || way == BUT_LIGHT || way == NONE; /* else it is as ALL, or as BUT_LIGHT */
            for (int i = c->cut[from].at; i < c->cut[to].at; i++) {
                const bool light = i != end && (way == BUT_LIGHT || way == BUT_LIGHT_INSIDE || (way == BUT_FREE && is_free(c, i)));
                o->segment[i] = way == NONE ? to : c->gathers[i] ? ALONE : light ? LIGHTEN : STORED;
                any |= way == BUT_FREE ? light : i == end && !c->gathers[i] && op_is_light(&c->p->ops[i]);
            }
            if (any) choose_from(o, to);
        }
}

static int compare_choices(const void *left, const void *right) {
    const Choice *a = left, *b = right;
    if (a->arena != b->arena) return a->arena < b->arena ? -1 : 1;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

typedef struct Tally { int budgets, equal, quicker, nets, estimates, exact; double least, slower /* at most, as a share of the step */; } Tally;

/* At each budget at which a choice begins to fit that is quicker than all that need less. */
static void compare(const Choices *o, const Program *p, Tally *t) {
    Err e = {0};
    Settings s = *o->s;
    const size_t least = least_of(p, s, &e);
    double step = 0, wanted = INFINITY;
    for (int i = 0; i < p->n_ops; i++) step += op_seconds(&p->ops[i]);
    qsort(o->item, (size_t)o->n, sizeof *o->item, compare_choices);
    t->least = fmax(t->least, (double)least / (double)o->item[0].arena);
    t->nets++;
    for (int i = 0; i < o->n; i++) {
        if (o->item[i].arena < least || o->item[i].seconds >= wanted) continue;
        wanted = o->item[i].seconds;
        s.budget = o->item[i].arena;
        Compile under = {.settings = &s, .device = &model, .e = &e};
        size_t estimated = 0, bytes = 0;
        double found = INFINITY;
        if (!chain_fit(o->c, &under, o->light, &estimated) && !chain_arena(o->c, o->light, &under, &bytes))
            found = chain_again(o->c, o->light, o->lost, o->need, o->again);
        scratch_release(&under.scratch, NULL);
        t->budgets++;
        t->equal += found <= wanted * (1 + 1e-9);
        t->slower = fmax(t->slower, (found - wanted) / step);
        t->quicker += found < wanted * (1 - 1e-9);
        t->estimates += estimated > 0;
        t->exact += estimated == bytes;
    }
}

static uint32_t below(uint32_t n) {
    static uint64_t state = 88172645463325252u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* What random networks are made of: tensors of very unequal bytes and costs. $i: channels that come in, $o: that go out, $a: an activation. */
static const struct { const char *text; bool widens /* to $o channels */, halves /* height and width */; } pieces[] = {
    {"Conv2d($i, $o, 1) $a", true, false},
    {"Conv2d($i, $o, 3, padding=same) $a", true, false},
    {"Conv2d($i, $o, 1) BatchNorm2d($o) $a", true, false},
    {"Conv2d($i, $o, 3, padding=same) BatchNorm2d($o) $a", true, false},
    {"Residual{Sequential{Conv2d($i, $o, 3, padding=same) BatchNorm2d($o)} Sequential{Conv2d($i, $o, 1) BatchNorm2d($o)}} $a", true, false},
    {"Residual{Sequential{Conv2d($i, $o, 3, padding=same) ReLU Conv2d($o, $i, 1)}} $a", false, false},
    {"Residual{Sequential{BatchNorm2d($i) Conv2d($i, $o, 3, padding=same) GELU Conv2d($o, $i, 1)}}", false, false},
    {"Residual{Sequential{Conv2d($i, $o, 1) GELU Conv2d($o, $i, 1) Tanh}} $a", false, false}, /* of light ops of one unit, one saves bytes, another nothing */
    {"BatchNorm2d($i)", false, false},
    {"Dropout(0.5)", false, false},
    {"$a", false, false},
    {"MaxPool2d(2)", false, true},
};

static void random_net(char *text, int count) {
    static const char *const acts[] = {"ReLU", "ReLU", "GELU", "Tanh", "ReLU(inplace=true)"};
    unsigned channels = 3, size = 16;
    int n = sprintf(text, "Sequential{");
    for (int i = 0; i < count; i++) {
        const unsigned piece = below(ARRAY_LEN(pieces)), next = 2 + below(40);
        for (const char *c = pieces[piece].text; *c; c++)
            if (*c != '$') text[n++] = *c;
            else if (*++c == 'a') n += sprintf(text + n, "%s", acts[below(ARRAY_LEN(acts))]);
            else n += sprintf(text + n, "%u", *c == 'i' ? channels : next);
        text[n++] = ' ';
        if (pieces[piece].widens) channels = next;
        if (pieces[piece].halves) size /= 2;
    }
    const char *end = below(2) ? "Flatten Linear(%u, 10)}" : "Flatten Linear(%u, 64) ReLU Linear(64, 10)}"; /* a large weight is updated in slices */
    sprintf(text + n, end, channels * size * size);
}

/* ---- deep networks, whose fronts have more labels than there is room for */

/* Adds the choices that store `stored` units, drop `dropped`, and so on, to the last cut; and those with what is stored lightened. */
static void choose_rhythm(Choices *o, int stored, int dropped) {
    const Chain *c = o->c;
    for (int light = 0; light < 2; light++) {
        for (int unit = 1; unit < c->n_cuts; unit++) {
            const int in = (unit - 1) % (stored + dropped), cut = unit - 1 - in + stored + dropped, end = cut < c->n_cuts - 2 ? cut : c->n_cuts - 2;
            for (int i = c->cut[unit - 1].at; i < c->cut[unit].at; i++)
                o->segment[i] = in >= stored && unit < c->n_cuts - 1 ? end : light ? LIGHTEN : STORED;
        }
        chain_lighten(c, USUAL, op_is_light, 0, c->p->forward_end, o->segment, o->depth);
        add_choice(o, o->segment);
    }
}

/* Adds the choices that drop one unit, or lighten it, and store all others. */
static void choose_one(Choices *o, int unit) {
    const Chain *c = o->c;
    for (int light = 0; light < 2; light++) {
        chain_store(c, STORED, o->segment);
        for (int i = c->cut[unit - 1].at; i < c->cut[unit].at; i++) o->segment[i] = light ? LIGHTEN : unit;
        chain_lighten(c, USUAL, op_is_light, 0, c->p->forward_end, o->segment, o->depth);
        add_choice(o, o->segment);
    }
}

/* All of them have a unit of which the best choice depends on what light ops do before it. */
static const char *const hard[] = {
    /* A chain of light ops: what the backward pass does not read of a unit that is stored whole is made again for the one after it, at that one's cost. */
    "Sequential{Conv2d(3, 30, 3, padding=same) BatchNorm2d(30) Tanh BatchNorm2d(30) Flatten Linear(7680, 10)}",
    /* A run that is dropped, or a unit that is stored whole, begins with what a light op makes again. */
    "Sequential{BatchNorm2d(3) Residual{Sequential{BatchNorm2d(3) Conv2d(3, 36, 3, padding=same) GELU Conv2d(36, 3, 1)}} Flatten Linear(768, 64) ReLU Linear(64, 10)}",
    /* After a run that is dropped light ops have nothing to begin from: the backward pass does not read the sum. */
    "Sequential{Conv2d(3, 41, 1) Tanh Residual{Sequential{Conv2d(41, 23, 3, padding=same) BatchNorm2d(23)} Sequential{Conv2d(41, 23, 1) BatchNorm2d(23)}} ReLU MaxPool2d(2)"
    " Flatten Linear(1472, 64) ReLU Linear(64, 10)}",
    /* The sum is kept for a run that is dropped after it, and so is not made again. */
    "Sequential{MaxPool2d(2) Residual{Sequential{Conv2d(3, 21, 1) GELU Conv2d(21, 3, 1) Tanh}} GELU MaxPool2d(2) Flatten Linear(48, 10)}",
    /* A normalised sum, which GELU's gradient reads, after two light units in a row. */
    "Sequential{BatchNorm2d(3) BatchNorm2d(3) Residual{Sequential{Conv2d(3, 37, 3, padding=same) BatchNorm2d(37)} Sequential{Conv2d(3, 37, 1) BatchNorm2d(37)}} GELU"
    " Flatten Linear(9472, 10)}",
    /* The sum is kept for GELU, which is dropped after it, while the rest of its unit is made again: then the normalisation is so only at the end. */
    "Sequential{BatchNorm2d(3) Residual{Sequential{Conv2d(3, 7, 1) GELU Conv2d(7, 3, 1) Tanh}} GELU Flatten Linear(768, 10)}",
    /* The gradient of a product's input reads nothing that its unit has made. */
    "Sequential{BatchNorm2d(3) GELU Flatten Linear(768, 10)}",
    "Sequential{Conv2d(3, 2, 1) BatchNorm2d(2) GELU Flatten Linear(512, 10)}",
};

static const Shape images = {4, {BATCH, 3, 16, 16}};

static void compare_all(const char *text, Shape batch, const Settings *s, int cuts, Tally *t) {
    Err e = {0};
    Chain c = {0};
    Scratch memory = {0};
    Program *p = before_of(text, batch, s, &e);
    if (!p || !chain_find(&c, p, &memory)) ok(false, "%s: %s", text, e.text);
    if (p && c.n_cuts <= cuts) {
        Choices o = choices_of(&c, s, &memory);
        choose_from(&o, 0);
        compare(&o, p, t);
        mem_free(o.item);
    }
    scratch_release(&memory, NULL);
    program_free(p);
}

static void test_hard(void) {
    for (size_t i = 0; i < ARRAY_LEN(hard); i++) {
        Tally t = {.least = 1};
        const Settings s = settings_of(CHECKPOINT_BUDGET);
        compare_all(hard[i], images, &s, CUTS + 1, &t);
        ok(t.budgets > 1 && t.equal == t.budgets && !t.quicker && t.least <= 1, "%s: as quick as the quickest of all choices at each of %d budgets", hard[i], t.budgets);
    }
}

#define BLOCK " Residual{Sequential{LayerNorm(32) CausalSelfAttention(32, 4)}} Residual{Sequential{LayerNorm(32) Linear(32, 128) GELU Linear(128, 32)}}"

/* Ranks that keep slices of a sequence gather what products read once more, from what a normalisation makes again: it is not kept, and the
 * estimate knows. */
static void test_sequence(void) {
    Err e = {0};
    Chain c = {0};
    Scratch memory = {0};
    Settings s = settings_of(CHECKPOINT_BUDGET);
    s.world = s.mesh.tensor = 2;
    s.sequence_parallel = true;
    Program *p = before_of("Sequential{Embedding(160, 32)" BLOCK BLOCK BLOCK " LayerNorm(32) Linear(32, 160, bias=false) Flatten(0, 1)}", shape2(4, 32), &s, &e);
    if (!ok(p && chain_find(&c, p, &memory), "three blocks on two ranks")) return;
    int *segment = scratch_new(&memory, (size_t)p->forward_end, sizeof *segment), close = 0;
    const size_t least = least_of(p, s, &e), most = arena(p, &s, &e);
    for (int i = 0; i < BUDGETS; i++) {
        s.budget = least + (most - least) * (size_t)i / BUDGETS;
        Compile under = {.settings = &s, .device = &model, .e = &e};
        size_t estimated = 0, bytes = 0;
        if (!chain_fit(&c, &under, segment, &estimated)) chain_arena(&c, segment, &under, &bytes);
        close += bytes && bytes <= s.budget && fabs((double)estimated / (double)bytes - 1) < 0.02;
        scratch_release(&under.scratch, NULL);
    }
    ok(least < most && close > 0.7 * BUDGETS, "%d of %d estimates are within two percent of the arena", close, BUDGETS);
    scratch_release(&memory, NULL);
    program_free(p);
}

/* Networks of ranks that keep slices of a sequence and shards of weights, and at how many budgets at least the choice is as quick as the quickest. */
static const struct { const char *text; int equal; } gathered[] = {
    /* What is gathered for two products is gathered once more after any choice: it is not there where the next unit begins. */
    {"Sequential{Embedding(160, 32) Residual{Sequential{Linear(32, 64) Linear(64, 32)} Linear(32, 32)} LayerNorm(32) Linear(32, 160, bias=false) Flatten(0, 1)}", 8},
    /* A light unit has what is gathered ALONE, too. */
    {"Sequential{Embedding(160, 32) RMSNorm(32) Residual{Sequential{LayerNorm(32) Linear(32, 128) GELU Linear(128, 32)}} Linear(32, 160, bias=false) Flatten(0, 1)}", 3},
};

static void test_gathered(void) {
    for (size_t i = 0; i < ARRAY_LEN(gathered); i++) {
        Tally t = {.least = 1};
        Settings s = settings_of(CHECKPOINT_BUDGET);
        s.world = 4;
        s.mesh.tensor = 2;
        s.sequence_parallel = true;
        s.zero = 3;
        compare_all(gathered[i].text, shape2(4, 32), &s, CUTS + 2, &t);
        ok(t.equal >= gathered[i].equal && !t.quicker, "%s: as quick as the quickest of all choices at %d of %d budgets", gathered[i].text, t.equal, t.budgets);
    }
}

/* What holds for random networks, of the seed above; on one rank of any seed that was tried. */
typedef struct Bounds { const char *what; int least_nets, slower; double exact, least; } Bounds;

static void hold(const Bounds *b, const Tally *t) {
    printf("# %s: %d networks, %d budgets, %d as quick as the quickest of all choices, least x%.4f, %d of %d estimates exact\n",
           b->what, t->nets, t->budgets, t->equal, t->least, t->exact, t->estimates);
    is_int(t->quicker, 0, "no choice is quicker than the quickest of all choices that fit");
    ok(t->nets >= b->least_nets && t->equal >= t->budgets - b->slower, "at all budgets but %d it is as quick as that", b->slower);
    ok(t->estimates > t->budgets / 6 && t->exact >= b->exact * t->estimates, "%.0f %% of the estimates are the arena to the byte", 100 * b->exact);
    ok(t->least <= b->least, "the least memory is that of all choices, times %.4f at most", b->least);
}

/* Half of them on two ranks with ZeRO-3, which gathers weights between the forward ops: what is gathered for a second run is not where the
 * forward pass has it. */
static void test_exhaustive(void) {
    static const Bounds bounds[] = {{"one rank", 200, 0, 1, 1}, {"ZeRO-3", 200, 2, 0.9, 1.0002}};
    Tally tally[] = {{.least = 1}, {.least = 1}};
    for (int i = 0; i < NETWORKS; i++) {
        char text[1024];
        Settings s = settings_of(CHECKPOINT_BUDGET);
        if (i % 3 == 1) s.precision = PREC_AMP_BF16;
        if (i % 2) s.world = 2, s.zero = 3;
        random_net(text, 1 + (int)below(4));
        compare_all(text, images, &s, CUTS, &tally[i % 2]);
    }
    for (size_t k = 0; k < ARRAY_LEN(tally); k++) hold(&bounds[k], &tally[k]);
}

/* Random layers of a transformer whose ranks keep slices of a sequence. */
static void test_sequences(void) {
    static const char *const layers[] = {"LayerNorm(32)", "Linear(32, 32)", "GELU", "Dropout(0.5)", "ReLU", "Residual{Linear(32, 32)}",
        "Residual{Sequential{LayerNorm(32) CausalSelfAttention(32, 4)}}", "Residual{Sequential{LayerNorm(32) Linear(32, 128) GELU Linear(128, 32)}}"};
    Tally t = {.least = 1};
    for (int i = 0; i < SEQUENCES; i++) {
        char text[1024];
        Settings s = settings_of(CHECKPOINT_BUDGET);
        s.world = s.mesh.tensor = 2;
        s.sequence_parallel = true;
        int n = sprintf(text, "Sequential{Embedding(160, 32) ");
        for (int k = 1 + (int)below(3); k > 0; k--) n += sprintf(text + n, "%s ", layers[below(ARRAY_LEN(layers))]);
        sprintf(text + n, "LayerNorm(32) Linear(32, 160, bias=false) Flatten(0, 1)}");
        compare_all(text, shape2(4, 32), &s, CUTS + 1, &t);
    }
    hold(&(Bounds){"slices of a sequence", 10, 0, 1, 1}, &t);
}

/* Convolutions of random sizes on images of one size, and activations between them. */
static void deep_net(char *text, int units) {
    unsigned channels = 3;
    int n = sprintf(text, "Sequential{");
    for (int i = 0; i < units; i++) {
        unsigned next = 8 + below(24);
        n += sprintf(text + n, "Conv2d(%u, %u, %u, padding=same) %s ", channels, next, 1 + 2 * below(2), below(2) ? "GELU" : "ReLU");
        channels = next;
    }
    sprintf(text + n, "AdaptiveAvgPool2d(1) Flatten Linear(%u, 10)}", channels);
}

static void test_deep(void) {
    double lowest = 1;
    for (int n = 0; n < DEEP; n++) {
        char text[8192];
        Err e = {0};
        Chain c = {0};
        Scratch memory = {0};
        Tally t = {.least = 0};
        const Settings s = settings_of(CHECKPOINT_BUDGET);
        deep_net(text, UNITS);
        Program *p = before(text, &s, &e);
        if (!ok(p && chain_find(&c, p, &memory), "a network of %d units in a row", c.n_cuts - 1)) break;
        Choices o = choices_of(&c, &s, &memory);
        for (int stored = 0; stored < 4; stored++)
            for (int dropped = 1; dropped < 16; dropped++) choose_rhythm(&o, stored, dropped);
        for (int unit = 1; unit < c.n_cuts - 1; unit++) choose_one(&o, unit);
        compare(&o, p, &t);
        printf("# %d units, %d budgets, %d as quick as the quickest of %d choices, %d quicker, least x%.3f, %d of %d estimates exact, %.6f of a step slower\n",
               c.n_cuts - 1, t.budgets, t.equal, o.n, t.quicker, t.least, t.exact, t.estimates, t.slower);
        ok(t.budgets > 20 && t.quicker > t.budgets / 3, "often quicker than all choices with a rhythm, and all of one unit");
        ok(t.slower < 0.0002, "slower than these by no more than a step's five-thousandth");
        ok(t.least < 0.95, "the least memory is less than that of all these choices");
        lowest = fmin(lowest, t.least);
        ok(t.estimates > t.budgets / 3 && t.exact == t.estimates, "all estimates are the arena to the byte");
        mem_free(o.item);
        scratch_release(&memory, NULL);
        program_free(p);
    }
    ok(lowest < 0.92, "which takes runs that begin and end at any unit: x%.3f", lowest);
}

int main(void) {
    test_budget();
    test_hard();
    test_sequence();
    test_gathered();
    test_exhaustive();
    test_deep();
    test_sequences();
    return tap_done();
}
