/* Checkpointing that fits a number of bytes: the quickest choice of segments whose placed arena is within the budget.
 *
 * 1. Candidates. A choice "stores" a unit of the chain or "drops" a run of units. A dynamic program finds the choice
 *    with the least recomputation for a bound on the estimated peak. The bound starts at "no bound" and then moves to
 *    just below the peak of the choice that was found, so the candidates run along the front of time against memory.
 *    More candidates: the choices of the other modes; each of all these with what it stores lightened
 *    (checkpoint_selective.c); and no segments with only the first units lightened. Nothing here depends on the budget,
 *    so a larger budget never costs more time.
 * 2. Judgement. In order of time, each candidate is compiled and placed; the first that fits is taken.
 *
 * The estimate: while the backward pass is in the run (i, j] of units, these bytes are alive:
 *     kept      what is stored of the units up to cut i             depends on the choice up to i: a Label
 *     working   the run's own activations that are still needed,    depends on i and j only: follows from the lifetimes
 *               gradients and everything else                       of the program without checkpointing */
#include "checkpoint.h"

#include <assert.h>
#include <string.h>

enum { LABELS = 32, CHOICES = 64, PARTS = 8, CANDIDATES = 2 * CHOICES + PARTS };
/* The estimate looks at all runs between two cuts. If there are more than MOST_CUTS, it looks at FEW_CUTS of them. */
enum { MOST_CUTS = 512, FEW_CUTS = 128 };

/* A run of units that is dropped. */
typedef struct Step {
    size_t working, kept; /* bytes: alive while the backward pass is in it, see above; of it that stay stored */
    double seconds;       /* of recomputation */
} Step;

/* A way to store and drop the units up to a cut. */
typedef struct Label {
    size_t kept, peak; /* bytes that stay stored; the most bytes alive, see above */
    double seconds;
    int cut, slot; /* the label that it extends: at that cut, item[slot] */
    bool dropped;  /* whether the run from there is dropped or stored */
} Label;
/* The best labels of a cut: `kept` rises, `seconds` falls. */
typedef struct Front { Label item[LABELS]; int n; } Front;

typedef struct Solver {
    const Chain *whole; /* with all cuts: for the other modes' choices */
    const Chain *c;     /* the same with the cuts that the estimate looks at */
    int n;            /* the last cut: the end of the forward pass */
    Step *step;       /* [from * (n + 1) + to], from < to: the run between these cuts when it is dropped */
    size_t *stored, *working; /* by unit: bytes that stay and that are alive, as in Step, when it is stored */
    size_t least;     /* bytes that no choice can avoid */
    Front *front;     /* by cut */
    int *segment;     /* CANDIDATES choices, each [forward_end] */
    int *depth;       /* by buffer: scratch of chain_lighten */
    double *seconds;  /* by candidate */
    int count;        /* candidates so far */
    bool *lost, *need, *again; /* see chain_again */
} Solver;

static Step *step_at(const Solver *s, int from, int to) {
    assert(0 <= from && from < to && to <= s->n);
    return &s->step[from * (s->n + 1) + to];
}

/* ---- the estimate */

typedef struct Profile {
    const Program *p; /* finished, without checkpointing: its ops have other numbers than the chain's, see place */
    int *place;       /* by the chain's forward op, and for their end: its number in p */
    Life *life;
    int *unit;        /* by root: the unit that writes it, if the forward pass leaves it to the backward pass; else 0 */
    int *read, *back; /* by root: the last forward op and the first backward op that read it */
    int *end;         /* by root: the last op that reads it, after which a gradient may have its storage */
    size_t *other;    /* by op: bytes alive at it of buffers with unit 0, which no choice changes; not the persistent */
    size_t inputs;    /* bytes of the micro-batch, which `other` contains */
    size_t *stored;   /* by op and cut: bytes alive at it from units after the cut, when all is stored */
    size_t *passing;  /* by op and cut: the same without what only the backward pass reads */
    int *last;        /* by cut: the last op that uses what a unit after the cut writes */
} Profile;

/* Does the forward pass leave the storage to the backward pass? */
static bool is_left(const Chain *c, const Profile *f, int b) {
    const Buf *buf = &f->p->bufs[b];
    const Life *l = &f->life[b];
    int end = f->p->forward_end;
    return c->writer[b] != NO_OP && l->used && !buf->carried && !buf->keep && l->first < end && l->last >= end;
}

/* Fills f->unit and s->stored. */
static void find_units(const Solver *s, Profile *f) {
    for (int b = 0; b < s->c->p->n_bufs; b++) {
        if (!is_left(s->c, f, b)) continue;
        for (f->unit[b] = 1; s->c->cut[f->unit[b]].at <= s->c->writer[b];) f->unit[b]++;
        s->stored[f->unit[b]] += f->life[b].bytes;
    }
}

/* Fills f->read, f->back, f->end. A backward op that writes into an activation's storage writes a gradient, in
 * place. */
static void find_reads(Profile *f) {
    for (int b = 0; b < f->p->n_bufs; b++) {
        f->read[b] = f->life[b].first;
        f->back[b] = f->p->n_ops;
        f->end[b] = f->life[b].last;
    }
    for (int i = f->p->n_ops - 1; i >= f->p->forward_end; i--)
        if (f->p->ops[i].kind != OP_view && f->p->ops[i].out[0] != NO_BUF)
            f->end[program_root(f->p, f->p->ops[i].out[0])] = i;
    for (int i = 0; i < f->p->n_ops; i++)
        EACH_IN(&f->p->ops[i], k) {
            int root = program_root(f->p, f->p->ops[i].in[k]);
            if (i < f->p->forward_end) f->read[root] = i;
            else if (i < f->back[root]) f->back[root] = i;
        }
}

static size_t *at_cut(const Solver *s, size_t *table, int op, int cut) { return &table[op * (s->n + 1) + cut]; }

/* Adds bytes to the ops [from, to] in a column of a table by op. Until sum_up, an entry is the difference to the op
 * before it. */
static void add_bytes(const Profile *f, size_t *column, size_t columns, int from, int to, size_t bytes) {
    if (from > to) return;
    column[(size_t)from * columns] += bytes;
    if (to + 1 < f->p->n_ops) column[(size_t)(to + 1) * columns] -= bytes;
}

static void sum_up(const Profile *f, size_t *table, size_t columns) {
    for (size_t i = columns; i < (size_t)f->p->n_ops * columns; i++) table[i] += table[i - columns];
}

static int earlier(int a, int b) { return a < b ? a : b; }

/* Fills f->other, f->inputs, f->stored, f->passing and s->least. */
static void find_alive(Solver *s, Profile *f) {
    const size_t cuts = (size_t)s->n + 1;
    for (int b = 0; b < f->p->n_bufs; b++) {
        const Life *l = &f->life[b];
        if (!l->used || f->p->bufs[b].kind == BUF_PERSISTENT) continue;
        if (f->p->bufs[b].kind == BUF_INPUT) f->inputs += l->bytes;
        int unit = f->unit[b], stored = unit ? earlier(f->end[b], l->last) : l->first - 1;
        add_bytes(f, f->other, 1, stored + 1, l->last, l->bytes);
        if (!unit) continue;
        add_bytes(f, f->stored + unit - 1, cuts, l->first, stored, l->bytes);
        add_bytes(f, f->passing + unit - 1, cuts, l->first, earlier(f->read[b], l->last), l->bytes);
    }
    sum_up(f, f->other, 1);
    sum_up(f, f->stored, cuts);
    sum_up(f, f->passing, cuts);
    for (int t = 0; t < f->p->n_ops; t++) {
        s->least = max_size(s->least, f->other[t]);
        for (int c = s->n - 1; c >= 0; c--) {
            *at_cut(s, f->stored, t, c) += *at_cut(s, f->stored, t, c + 1);
            *at_cut(s, f->passing, t, c) += *at_cut(s, f->passing, t, c + 1);
        }
    }
}

static void find_last(const Solver *s, Profile *f) {
    f->last[s->n] = f->p->forward_end - 1;
    for (int c = s->n - 1; c >= 0; c--) {
        f->last[c] = f->last[c + 1];
        for (int b = 0; b < f->p->n_bufs; b++)
            if (f->unit[b] == c + 1 && f->end[b] > f->last[c]) f->last[c] = f->end[b];
    }
}

static void at_least(size_t *most, size_t bytes) { *most = max_size(*most, bytes); }

/* s->working of a unit that is stored: the most in its forward pass and in its backward pass. */
static void work_stored(const Solver *s, Profile *f, int unit) {
    size_t *most = &s->working[unit];
    for (int t = f->place[s->c->cut[unit - 1].at]; t < f->place[s->c->cut[unit].at]; t++)
        at_least(most, f->other[t] + *at_cut(s, f->stored, t, unit - 1));
    for (int t = f->last[unit] + 1; t <= f->last[unit - 1]; t++)
        at_least(most, f->other[t] + *at_cut(s, f->stored, t, unit - 1));
}

/* The first backward op that reads what is lost when the run (from, to] is dropped. */
static int first_need(const Solver *s, const Profile *f, int from, int to) {
    int first = f->last[from];
    for (int b = 0; b < s->c->p->n_bufs; b++)
        if (f->unit[b] > from && f->unit[b] <= to && b != s->c->cut[to].root && f->back[b] < first) first = f->back[b];
    return first;
}

/* Bytes alive in a run that is dropped: the most in its forward pass, when it runs again (the ops in s->again), and in
 * its backward pass. */
static size_t work_dropped(const Solver *s, Profile *f, int from, int to) {
    int start = s->c->cut[from].at, end = s->c->cut[to].at, out = s->c->cut[to].root, need = first_need(s, f, from, to);
    size_t most = 0, cut = f->unit[out] ? f->life[out].bytes : 0;
    size_t waiting = f->other[need] < f->other[need - 1] ? f->other[need] : f->other[need - 1];
    if (f->end[out] >= need) waiting += cut;
    for (int t = f->place[start]; t < f->place[end]; t++) at_least(&most, f->other[t] + *at_cut(s, f->passing, t, from));
    for (int i = start; i < end; i++) {
        const int t = f->place[i];
        if (s->again[i]) at_least(&most, waiting + f->other[t] - f->inputs + *at_cut(s, f->stored, t, from));
    }
    for (int t = f->last[to] + 1; t <= f->last[from]; t++)
        at_least(&most, f->other[t] + (t >= need ? *at_cut(s, f->stored, t, from) : f->end[out] >= t ? cut : 0));
    return most;
}

/* Fills s->again: the ops that run again when the run from some cut up to `to` is dropped. As chain_again, but for all
 * starts of the run in one walk back. */
static void find_again(const Solver *s, int to) {
    const Program *p = s->c->p;
    int kept = s->c->cut[to].root;
    memcpy(s->need, s->c->saved, (size_t)p->n_bufs);
    for (int i = s->c->cut[to].at - 1; i >= 0; i--) {
        const Op *op = &p->ops[i];
        s->again[i] = false;
        EACH_OUT(op, k) {
            int root = program_root(p, op->out[k]);
            s->again[i] |= root != kept && s->need[root];
        }
        if (!s->again[i]) continue;
        EACH_IN(op, k) s->need[program_root(p, op->in[k])] = true;
    }
}

/* The steps of all runs that end at cut `to`. Dropping a run keeps what crosses its end, and its input, even if the
 * backward pass itself does not read that. */
static void fill_steps(const Solver *s, Profile *f, int to) {
    double seconds = 0;
    int out = s->c->cut[to].root;
    find_again(s, to);
    for (int from = to - 1; from >= 0; from--) {
        int in = s->c->cut[from].root;
        size_t input = in == NO_BUF || s->c->saved[in] ? 0 : s->c->p->bufs[in].bytes;
        for (int i = s->c->cut[from].at; i < s->c->cut[from + 1].at; i++)
            if (s->again[i]) seconds += op_seconds(&s->c->p->ops[i]);
        *step_at(s, from, to) = (Step){work_dropped(s, f, from, to) + input,
                                       input + (s->c->saved[out] ? s->c->p->bufs[out].bytes : 0), seconds};
    }
}

/* Fills f->place. The passes that finish a program put others between its forward ops (what gathers weights, and sums up losses),
 * but leave these in their order, with the buffers that they make. */
static void find_places(const Solver *s, Profile *f) {
    const Program *chain = s->c->p;
    int i = 0;
    for (int t = 0; t < f->p->forward_end && i < chain->forward_end; t++) {
        const Op *op = &f->p->ops[t];
        if (op->kind == chain->ops[i].kind && op->out[0] == chain->ops[i].out[0]) f->place[i++] = t;
    }
    assert(i == chain->forward_end);
    f->place[i] = f->p->forward_end;
}

static int estimate(Solver *s, Compile *under) {
    Program *p;
    int code = whatif(s->c->p, NULL, NULL, under, &p, NULL);
    if (code) return code;
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops, cuts = (size_t)s->n + 1;
    Scratch *m = &under->scratch;
    Profile f = {p, scratch_new(m, (size_t)s->c->p->forward_end + 1, sizeof(int)), scratch_new(m, bufs, sizeof(Life)), scratch_new(m, bufs, sizeof(int)),
                 scratch_new(m, bufs, sizeof(int)), scratch_new(m, bufs, sizeof(int)),
                 scratch_new(m, bufs, sizeof(int)), scratch_new(m, ops, sizeof(size_t)), 0,
                 scratch_new(m, ops * cuts, sizeof(size_t)), scratch_new(m, ops * cuts, sizeof(size_t)),
                 scratch_new(m, cuts, sizeof(int))};
    if (!m->failed) {
        program_lives(p, f.life);
        find_places(s, &f);
        find_units(s, &f);
        find_reads(&f);
        find_alive(s, &f);
        find_last(s, &f);
        for (int unit = 1; unit <= s->n; unit++) work_stored(s, &f, unit);
        for (int to = 1; to < s->n; to++) fill_steps(s, &f, to);
    }
    program_free(p);
    return OK;
}

/* ---- the dynamic program */

/* Makes room in a full front: of labels that keep about the same number of bytes, one stays. The first, which keeps the
 * least, and the last, which is the quickest, always stay. */
static void thin_out(Front *f) {
    int n = 1;
    size_t gap = (f->item[f->n - 1].kept - f->item[0].kept) / (LABELS / 2) + 1;
    for (int i = 1; i < f->n; i++)
        if (i == f->n - 1 || f->item[i].kept - f->item[n - 1].kept >= gap) f->item[n++] = f->item[i];
    f->n = n;
}

/* Adds a label unless another keeps no more and is no slower; takes out those that it makes useless in the same way. */
static void add_label(Front *f, const Label *l) {
    int at = 0, end = f->n;
    assert(f->n < LABELS);
    while (at < end) { /* to the first label that keeps more */
        int middle = (at + end) / 2;
        if (f->item[middle].kept <= l->kept) at = middle + 1;
        else end = middle;
    }
    if (at > 0 && f->item[at - 1].seconds <= l->seconds) {
        Label *best = &f->item[at - 1];
        if (best->kept == l->kept && best->seconds == l->seconds && l->peak < best->peak) *best = *l;
        return;
    }
    if (at > 0 && f->item[at - 1].kept == l->kept) at--;
    for (end = at; end < f->n && f->item[end].seconds >= l->seconds;) end++;
    memmove(&f->item[at + 1], &f->item[end], (size_t)(f->n - end) * sizeof *f->item);
    f->item[at] = *l;
    f->n += 1 - (end - at);
    if (f->n == LABELS) thin_out(f);
}

/* Extends the labels at cut `from` by the run up to cut `to`, dropped or (a single unit) stored. */
static void extend(const Solver *s, int from, int to, bool dropped, size_t bound) {
    assert(dropped || to == from + 1);
    const Step *step = step_at(s, from, to), store = {s->working[to], s->stored[to], 0};
    if (!dropped) step = &store;
    for (int i = 0; i < s->front[from].n; i++) {
        const Label *l = &s->front[from].item[i];
        size_t peak = l->kept + step->working;
        if (peak > bound) return; /* the next labels keep more */
        Label next = {l->kept, max_size(l->peak, peak), l->seconds, from, i, dropped};
        next.kept += step->kept;
        next.seconds += step->seconds;
        add_label(&s->front[to], &next);
    }
}

/* The quickest choice whose estimated peak is within the bound, or NULL. */
static const Label *quickest(const Solver *s, size_t bound) {
    s->front[0].n = 1;
    s->front[0].item[0] = (Label){0};
    for (int to = 1; to <= s->n; to++) {
        s->front[to].n = 0;
        extend(s, to - 1, to, false, bound);
        for (int from = to - 1; from >= 0 && to < s->n; from--) extend(s, from, to, true, bound);
    }
    const Front *end = &s->front[s->n];
    return end->n ? &end->item[end->n - 1] : NULL;
}

/* The choice that a label of the last cut stands for. */
static void trace(const Solver *s, const Label *end, int *segment) {
    chain_store(s->c, segment);
    for (int to = s->n; to > 0;) {
        for (int i = s->c->cut[end->cut].at; end->dropped && i < s->c->cut[to].at; i++) segment[i] = to;
        to = end->cut;
        end = &s->front[to].item[end->slot];
    }
}

/* ---- candidates and their judgement */

static int *candidate(const Solver *s, int i) {
    assert(i >= 0 && i < CANDIDATES);
    return s->segment + (size_t)i * (size_t)s->c->p->forward_end;
}

/* Takes candidate(s->count), which the caller has filled, into the list, unless it is there already. */
static void add_candidate(Solver *s) {
    size_t bytes = (size_t)s->c->p->forward_end * sizeof(int);
    for (int i = 0; i < s->count; i++)
        if (!memcmp(candidate(s, i), candidate(s, s->count), bytes)) return;
    s->seconds[s->count] = chain_again(s->c, candidate(s, s->count), s->lost, s->need, s->again);
    s->count++;
}

/* Adds candidate `i` with its units up to a cut lightened. */
static void add_lightened(Solver *s, int i, int cut) {
    memcpy(candidate(s, s->count), candidate(s, i), (size_t)s->c->p->forward_end * sizeof(int));
    chain_lighten(s->c, USUAL, s->c->cut[cut].at, op_is_light, candidate(s, s->count), s->depth);
    add_candidate(s);
}

/* The bound first falls to just below each peak that was reached. After half of the tries it falls in even steps over
 * the rest of the way to s->least; a step that finds nothing is halved. */
static void find_candidates(Solver *s) {
    for (int mode = CHECKPOINT_NONE; mode < CHECKPOINT_SELECTIVE; mode++) {
        chain_choose(s->whole, (Checkpoint)mode, candidate(s, s->count));
        add_candidate(s);
    }
    size_t peak = quickest(s, SIZE_MAX)->peak, step = 1;
    for (int tries = 1; step > 0 && peak > step && tries < CHOICES - CHECKPOINT_BUDGET; tries++) {
        if (tries == CHOICES / 2 && peak > s->least) step = (peak - s->least) / (CHOICES / 2) + 1;
        const Label *l = quickest(s, peak - step);
        if (!l) {
            step /= 2;
            continue;
        }
        peak = l->peak;
        trace(s, l, candidate(s, s->count));
        add_candidate(s);
    }
    for (int i = 0, n = s->count; i < n; i++) add_lightened(s, i, s->n);
    for (int part = 1; part < PARTS; part++) add_lightened(s, 0, s->n * part / PARTS);
}

/* The quickest candidate that was not looked at before, or -1. */
static int take_quickest(const Solver *s, bool *seen) {
    int best = -1;
    for (int i = 0; i < s->count; i++)
        if (!seen[i] && (best < 0 || s->seconds[i] < s->seconds[best])) best = i;
    if (best >= 0) seen[best] = true;
    return best;
}

/* Of equally quick candidates that fit, the one with the smallest arena is the best. */
static int judge(const Solver *s, Compile *under, int *best) {
    bool seen[CANDIDATES] = {false};
    size_t arena = 0, least = SIZE_MAX, best_arena = 0;
    *best = -1;
    for (int i; (i = take_quickest(s, seen)) >= 0;) {
        if (*best >= 0 && s->seconds[i] > s->seconds[*best]) break;
        int code = chain_arena(s->c, candidate(s, i), under, &arena);
        if (code) return code;
        if (arena < least) least = arena;
        if (arena > under->settings->budget || (*best >= 0 && arena >= best_arena)) continue;
        *best = i;
        best_arena = arena;
    }
    if (*best >= 0) return OK;
    return err_set(under->e, ERR_OOM, "checkpoint: a budget of %zu bytes is too small: the least that recomputation "
                   "reaches is %zu bytes", under->settings->budget, least);
}

static int fit(const Chain *whole, const Chain *c, Compile *under, int *segment) {
    size_t cuts = (size_t)c->n_cuts, ops = (size_t)c->p->forward_end, bufs = (size_t)c->p->n_bufs;
    Scratch *m = &under->scratch;
    Solver s = {whole, c, c->n_cuts - 1, scratch_new(m, cuts * cuts, sizeof(Step)),
                scratch_new(m, cuts, sizeof(size_t)), scratch_new(m, cuts, sizeof(size_t)), 0,
                scratch_new(m, cuts, sizeof(Front)), scratch_new(m, CANDIDATES * ops, sizeof(int)),
                scratch_new(m, bufs, sizeof(int)), scratch_new(m, CANDIDATES, sizeof(double)), 0,
                scratch_new(m, bufs, sizeof(bool)), scratch_new(m, bufs, sizeof(bool)),
                scratch_new(m, ops, sizeof(bool))};
    if (m->failed) return OK;
    int best, code = estimate(&s, under);
    if (code || m->failed) return code;
    find_candidates(&s);
    code = judge(&s, under, &best);
    if (!code) memcpy(segment, candidate(&s, best), ops * sizeof *segment);
    return code;
}

int chain_fit(const Chain *c, Compile *under, int *segment) {
    Cut cut[FEW_CUTS];
    Chain thinned = *c;
    assert(c->n_cuts >= 2);
    if (c->n_cuts > MOST_CUTS) { /* units of about as many of the chain's each; the last one, the loss, by itself */
        const int units = FEW_CUTS - 2, all = c->n_cuts - 2;
        for (int i = 0; i <= units; i++) cut[i] = c->cut[(int)((int64_t)i * all / units)];
        cut[units + 1] = c->cut[c->n_cuts - 1];
        thinned.cut = cut;
        thinned.n_cuts = FEW_CUTS;
    }
    return fit(c, &thinned, under, segment);
}
