/* Checkpointing within a byte budget: a larger one never costs more, every one is held, and the choice is compared with
 * every choice that there is on short chains. */
#include "checkpoint_nets.h"
#include "tap.h"

enum { BUDGETS = 50 /* from the least to what no recomputation needs */, NETWORKS = 120 /* random ones */, EACH = 40 /* of their budgets */ };

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

static void add_choice(Choices *o, const int *segment) {
    Err e = {0};
    Compile c = {.settings = o->s, .device = &model, .e = &e};
    Choice one = {0, chain_again(o->c, segment, o->lost, o->need, o->again)};
    bool made = mem_grow(&o->item, &o->cap, o->n + 1, sizeof *o->item);
    if (made && !chain_arena(o->c, segment, &c, &one.arena)) o->item[o->n++] = one;
    else ok(false, "a choice: %s", e.text);
}

/* Stores the next unit or drops a run of the next ones, and so on to the last cut. */
static void choose_from(Choices *o, int from) {
    if (from == o->c->n_cuts - 2) {
        for (int light = 0; light < 2; light++) {
            for (int i = o->c->cut[from].at; i < o->c->p->forward_end; i++) o->segment[i] = light ? LIGHTEN : STORED;
            memcpy(o->light, o->segment, (size_t)o->c->p->forward_end * sizeof *o->light);
            chain_lighten(o->c, USUAL, op_is_light, o->light, o->depth);
            add_choice(o, o->light);
        }
        return;
    }
    for (int to = from + 1; to < o->c->n_cuts - 1; to++)
        for (int way = to > from + 1 ? 2 : 0; way < 3; way++) {
            for (int i = o->c->cut[from].at; i < o->c->cut[to].at; i++) o->segment[i] = way == 0 ? STORED : way == 1 ? LIGHTEN : to;
            choose_from(o, to);
        }
}

static double quickest_choice(const Choices *o, size_t budget) {
    double best = INFINITY;
    for (int i = 0; i < o->n; i++)
        if (o->item[i].arena <= budget && o->item[i].seconds < best) best = o->item[i].seconds;
    return best;
}

typedef struct Tally { int budgets, equal, quicker, nets, estimates, exact; double least; } Tally;

/* At some of the budgets at which some choice begins to fit. */
static void compare(const Choices *o, const Program *p, Tally *t) {
    Err e = {0};
    Settings s = *o->s;
    size_t least = least_of(p, s, &e), best = SIZE_MAX;
    for (int i = 0; i < o->n; i++)
        if (o->item[i].arena < best) best = o->item[i].arena;
    t->least = fmax(t->least, (double)least / (double)best);
    t->nets++;
    for (int i = 0; i < o->n; i += EACH) {
        if (o->item[i].arena < least) continue;
        s.budget = o->item[i].arena;
        Compile under = {.settings = &s, .device = &model, .e = &e};
        size_t estimated = 0, bytes = 0;
        double found = INFINITY, wanted = quickest_choice(o, s.budget);
        if (!chain_fit(o->c, &under, o->light, &estimated) && !chain_arena(o->c, o->light, &under, &bytes))
            found = chain_again(o->c, o->light, o->lost, o->need, o->again);
        scratch_release(&under.scratch, NULL);
        t->budgets++;
        t->equal += found <= wanted * (1 + 1e-9);
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

/* Convolutions, residual blocks, pooling and dropout of random sizes: tensors of very unequal bytes and costs. */
static void random_net(char *text, int units) {
    static const char *const acts[] = {"ReLU", "ReLU", "GELU", "Tanh", "ReLU(inplace=true)"};
    unsigned channels = 3, size = 16;
    int n = sprintf(text, "Sequential{");
    for (int i = 0; i < units; i++) {
        unsigned kind = below(6), next = 2 + below(40);
        const char *act = acts[below(ARRAY_LEN(acts))];
        if (kind == 0 && size > 2) {
            n += sprintf(text + n, "MaxPool2d(2) ");
            size /= 2;
        } else if (kind == 1) {
            n += sprintf(text + n, "Dropout(0.5) ");
        } else if (kind == 2) {
            n += sprintf(text + n, "Residual{Sequential{Conv2d(%u, %u, 3, padding=same) ReLU Conv2d(%u, %u, 1)}} %s ",
                         channels, next, next, channels, act);
        } else {
            n += sprintf(text + n, "Conv2d(%u, %u, %u, padding=same) %s ", channels, next, 1 + 2 * below(2), act);
            channels = next;
        }
    }
    sprintf(text + n, "Flatten Linear(%u, 10)}", channels * size * size);
}

/* Half of them on two ranks with ZeRO-3, which gathers weights between the forward ops. */
static void test_exhaustive(void) {
    Tally tally[2] = {{.least = 1}, {.least = 1}};
    for (int i = 0; i < NETWORKS; i++) {
        char text[1024];
        Err e = {0};
        Chain c = {0};
        Scratch memory = {0};
        Settings s = settings_of(CHECKPOINT_BUDGET);
        if (i % 3 == 0) s.precision = PREC_AMP_BF16;
        if (i % 2) s.world = 2, s.zero = 3;
        random_net(text, 3 + (int)below(4));
        Program *p = before(text, &s, &e);
        if (!p || !chain_find(&c, p, &memory)) ok(false, "%s: %s", text, e.text);
        if (p && c.n_cuts <= 8) {
            size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->forward_end;
            Choices o = {&c, &s, mem_new(ops * sizeof(int)), mem_new(ops * sizeof(int)), mem_new(bufs * sizeof(int)),
                         mem_new(bufs), mem_new(bufs), mem_new(ops), NULL, 0, 0};
            choose_from(&o, 0);
            compare(&o, p, &tally[i % 2]);
            mem_free(o.segment);
            mem_free(o.light);
            mem_free(o.depth);
            mem_free(o.lost);
            mem_free(o.need);
            mem_free(o.again);
            mem_free(o.item);
        }
        scratch_release(&memory, NULL);
        program_free(p);
    }
    for (int k = 0; k < 2; k++) {
        const Tally *t = &tally[k];
        printf("# %s: %d networks of up to 8 units, %d budgets, %d as quick as the quickest of all choices, least x%.3f, %d of %d estimates exact\n",
               k ? "ZeRO-3" : "one rank", t->nets, t->budgets, t->equal, t->least, t->exact, t->estimates);
        is_int(t->quicker, 0, "no choice is quicker than the quickest of all choices that fit");
        const double most = k ? 0.97 : 0.99, exact = k ? 0.8 : 1; /* what is gathered for a second run is not where the forward pass has it */
        ok(t->nets > 12 && t->equal >= most * t->budgets, "in %.0f %% of the cases it is as quick as that", 100 * most);
        ok(t->estimates > t->budgets / 4 && t->exact >= exact * t->estimates, "%.0f %% of the estimates are the arena to the byte", 100 * exact);
        ok(t->least <= 1, "the least memory is the least of all choices");
    }
}

int main(void) {
    test_budget();
    test_exhaustive();
    return tap_done();
}
