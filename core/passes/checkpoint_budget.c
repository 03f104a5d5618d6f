/* Checkpointing that fits a number of bytes: the quickest choice of segments whose placed arena is within the budget.
 *
 * 1. Candidates. Over the chain's units, "store" one unit or "drop" a run of them; a dynamic program finds the least
 *    recomputation for a bound on the estimated peak. The bound is moved down from "no bound", each time below the peak
 *    of the choice just found, so the candidates run along the front of time against memory. The other modes join
 *    them. Nothing here looks at the budget: hence a larger budget never costs more time.
 * 2. Judgement. In order of time, each candidate is compiled and placed; the first that fits is taken.
 *
 * The estimate: while the backward pass is in the run (i, j] of units, these are alive:
 *     kept      what is stored of the units up to cut i             by the choice before i: a label of the program
 *     working   the run's own activations that are still needed,    by i and j only: from the lifetimes of the
 *               gradients and everything else                       program without checkpointing */
#include "checkpoint.h"

#include <string.h>

#include "mem.h"

enum { LABELS = 32, CANDIDATES = 64 };

typedef struct Step {
    size_t working; /* bytes, see above */
    size_t kept;    /* bytes that dropping the run leaves stored for the units behind it */
    double seconds; /* of recomputation, when the run is dropped */
} Step;

/* The best ways to store and drop up to a cut: by rising `kept` and falling `seconds`. */
typedef struct Label {
    size_t kept, peak;
    double seconds;
    int cut, slot; /* the label that it goes on from */
    bool dropped;  /* how it does so */
} Label;
typedef struct Front { Label item[LABELS + 1]; int n; } Front;

typedef struct Solver {
    const Chain *c;
    int n;            /* the last cut: the end of the forward pass */
    Step *step;       /* [from * (n + 1) + to], from < to */
    size_t *stored;   /* by unit: bytes when it is stored */
    size_t least;     /* bytes that no choice can avoid */
    Front *front;     /* by cut */
    int *segment;     /* CANDIDATES choices, each [forward_end] */
    double *seconds;  /* by candidate */
    int count;
    bool *lost, *need, *again;
} Solver;

static Step *step_at(const Solver *s, int from, int to) { return &s->step[from * (s->n + 1) + to]; }

static int no_memory(Err *e) { return err_set(e, ERR_HOST_MEMORY, "out of host memory in checkpoint"); }

/* ---- the estimate */

typedef struct Profile {
    const Program *p; /* finished, without checkpointing */
    Life *life;
    int *unit;        /* by root: the unit that writes it, if the backward pass gets it from the forward pass; else 0 */
    size_t *other;    /* by op: bytes alive at it that have unit 0, which no choice changes; persistent buffers apart */
    size_t *upto;     /* by cut: bytes alive at one op that a unit before the cut writes */
    int *last;        /* by cut: the last op that uses what a unit behind the cut writes */
} Profile;

static bool is_left(const Chain *c, const Profile *f, int b) {
    const Buf *buf = &f->p->bufs[b];
    const Life *l = &f->life[b];
    int end = f->p->forward_end;
    return c->writer[b] != NO_OP && l->used && !buf->carried && !buf->keep && l->first < end && l->last >= end;
}

static void find_units(const Solver *s, Profile *f) {
    for (int b = 0; b < s->c->p->n_bufs; b++) {
        if (!is_left(s->c, f, b)) continue;
        for (f->unit[b] = 1; s->c->cut[f->unit[b]].at <= s->c->writer[b];) f->unit[b]++;
        s->stored[f->unit[b]] += f->life[b].bytes;
    }
}

static void find_other(Solver *s, Profile *f) {
    for (int b = 0; b < f->p->n_bufs; b++) {
        if (!f->life[b].used || f->p->bufs[b].kind == BUF_PERSISTENT || f->unit[b]) continue;
        for (int t = f->life[b].first; t <= f->life[b].last; t++) f->other[t] += f->life[b].bytes;
    }
    for (int t = 0; t < f->p->n_ops; t++) s->least = max_size(s->least, f->other[t]);
}

static void find_last(const Solver *s, Profile *f) {
    f->last[s->n] = f->p->forward_end - 1;
    for (int c = s->n - 1; c >= 0; c--) {
        f->last[c] = f->last[c + 1];
        for (int b = 0; b < f->p->n_bufs; b++)
            if (f->unit[b] == c + 1 && f->life[b].last > f->last[c]) f->last[c] = f->life[b].last;
    }
}

static void at_least(Step *step, size_t bytes) { step->working = max_size(step->working, bytes); }

/* Op t lies in the backward pass of `unit`, the last one of a run; every start of the run is tried. */
static void work_at(const Solver *s, Profile *f, int t, int unit) {
    memset(f->upto, 0, (size_t)(s->n + 1) * sizeof *f->upto);
    for (int b = 0; b < f->p->n_bufs; b++)
        if (f->unit[b] && f->life[b].last >= t) f->upto[f->unit[b]] += f->life[b].bytes;
    for (int c = 1; c <= unit; c++) f->upto[c] += f->upto[c - 1];
    for (int c = 0; c < unit; c++) at_least(step_at(s, c, unit), f->other[t] + f->upto[unit] - f->upto[c]);
}

static void find_working(const Solver *s, Profile *f) {
    for (int t = f->p->forward_end, unit = s->n; t < f->p->n_ops; t++) {
        while (unit > 0 && t > f->last[unit - 1]) unit--;
        if (unit == 0) break;
        work_at(s, f, t, unit);
    }
    for (int from = 0; from < s->n; from++)
        for (int to = from + 2; to <= s->n; to++)
            at_least(step_at(s, from, to), step_at(s, from, to - 1)->working);
}

/* Dropping a run keeps what crosses its end, and its input even where the backward pass has no use for that. */
static void find_kept(const Solver *s) {
    for (int from = 0; from < s->n; from++)
        for (int to = from + 1; to < s->n; to++) {
            int in = s->c->cut[from].root, out = s->c->cut[to].root;
            size_t kept = s->c->saved[out] ? s->c->p->bufs[out].bytes : 0;
            if (in != NO_BUF && !s->c->saved[in]) kept += s->c->p->bufs[in].bytes;
            step_at(s, from, to)->kept = kept;
        }
}

/* What must run again when all from some cut up to `to` is dropped; as chain_again, for all starts in one walk back. */
static void find_seconds(const Solver *s, int to) {
    const Program *p = s->c->p;
    double seconds = 0;
    int kept = s->c->cut[to].root, from = to - 1;
    memcpy(s->need, s->c->saved, (size_t)p->n_bufs);
    for (int i = s->c->cut[to].at - 1; i >= 0; i--) {
        const Op *op = &p->ops[i];
        bool again = false;
        for (int k = 0; k < OP_OUT; k++) {
            int root = op->out[k] == NO_BUF ? kept : program_root(p, op->out[k]);
            again |= root != kept && s->need[root];
        }
        if (again) seconds += op_seconds(op);
        for (int k = 0; again && k < OP_IN; k++)
            if (op->in[k] != NO_BUF) s->need[program_root(p, op->in[k])] = true;
        if (i == s->c->cut[from].at) step_at(s, from--, to)->seconds = seconds;
    }
}

static int estimate(Solver *s, const Settings *settings, Err *e) {
    Program *p = program_copy(s->c->p);
    int code = p ? compile_finish(p, settings, NULL, NULL, e) : no_memory(e);
    if (code) {
        program_free(p);
        return code;
    }
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops, cuts = (size_t)s->n + 1;
    Profile f = {p, mem_new(bufs * sizeof(Life)), mem_new(bufs * sizeof(int)), mem_new(ops * sizeof(size_t)),
                 mem_new(cuts * sizeof(size_t)), mem_new(cuts * sizeof(int))};
    if (f.life && f.unit && f.other && f.upto && f.last) {
        program_lives(p, f.life);
        find_units(s, &f);
        find_other(s, &f);
        find_last(s, &f);
        find_working(s, &f);
        find_kept(s);
        for (int to = 1; to < s->n; to++) find_seconds(s, to);
    } else {
        code = no_memory(e);
    }
    mem_free(f.life);
    mem_free(f.unit);
    mem_free(f.other);
    mem_free(f.upto);
    mem_free(f.last);
    program_free(p);
    return code;
}

/* ---- the dynamic program */

/* Too many: the one that differs least from the one before it goes; the first and the last always stay. */
static void thin_out(Front *f) {
    int least = 1;
    for (int i = 2; i < f->n - 1; i++)
        if (f->item[i].kept - f->item[i - 1].kept < f->item[least].kept - f->item[least - 1].kept) least = i;
    memmove(&f->item[least], &f->item[least + 1], (size_t)(--f->n - least) * sizeof *f->item);
}

static void add_label(Front *f, const Label *l) {
    int at = 0, end;
    while (at < f->n && f->item[at].kept <= l->kept) at++;
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
    if (f->n > LABELS) thin_out(f);
}

static void extend(const Solver *s, int from, int to, bool dropped, size_t bound) {
    const Step *step = step_at(s, from, to);
    for (int i = 0; i < s->front[from].n; i++) {
        const Label *l = &s->front[from].item[i];
        size_t peak = l->kept + step->working;
        if (peak > bound) return; /* the labels behind keep more */
        Label next = {l->kept, max_size(l->peak, peak), l->seconds, from, i, dropped};
        next.kept += dropped ? step->kept : s->stored[to];
        next.seconds += dropped ? step->seconds : 0;
        add_label(&s->front[to], &next);
    }
}

/* The quickest choice whose estimated peak is within the bound, or NULL. */
static const Label *quickest(const Solver *s, size_t bound) {
    s->front[0].n = 1;
    s->front[0].item[0] = (Label){0, s->least, 0, 0, 0, false};
    for (int to = 1; to <= s->n; to++) {
        s->front[to].n = 0;
        extend(s, to - 1, to, false, bound);
        for (int from = to - 1; from >= 0 && to < s->n; from--) extend(s, from, to, true, bound);
    }
    const Front *end = &s->front[s->n];
    return end->n ? &end->item[end->n - 1] : NULL;
}

static void trace(const Solver *s, const Label *end, int *segment) {
    memset(segment, 0, (size_t)s->c->p->forward_end * sizeof *segment);
    for (int to = s->n; to > 0;) {
        for (int i = s->c->cut[end->cut].at; end->dropped && i < s->c->cut[to].at; i++) segment[i] = to;
        to = end->cut;
        end = &s->front[to].item[end->slot];
    }
}

/* ---- candidates and their judgement */

static int *candidate(const Solver *s, int i) { return s->segment + (size_t)i * (size_t)s->c->p->forward_end; }

/* Takes the choice at the end of the list into it, unless it is there already. */
static void add_candidate(Solver *s) {
    size_t bytes = (size_t)s->c->p->forward_end * sizeof(int);
    for (int i = 0; i < s->count; i++)
        if (!memcmp(candidate(s, i), candidate(s, s->count), bytes)) return;
    s->seconds[s->count] = chain_again(s->c, candidate(s, s->count), s->lost, s->need, s->again);
    s->count++;
}

/* The bound falls in steps of at least 1/CANDIDATES of the way that there is; near the end the steps are halved. */
static void find_candidates(Solver *s) {
    for (int mode = CHECKPOINT_NONE; mode < CHECKPOINT_BUDGET; mode++) {
        chain_choose(s->c, (Checkpoint)mode, candidate(s, s->count));
        add_candidate(s);
    }
    const Label *l = quickest(s, SIZE_MAX);
    size_t peak = l->peak, step = (peak - s->least) / CANDIDATES + 1;
    for (int tries = 0; tries < CANDIDATES && s->count < CANDIDATES && step > 0 && peak > step; tries++) {
        l = quickest(s, peak - step);
        if (!l) {
            step /= 2;
            continue;
        }
        peak = l->peak;
        trace(s, l, candidate(s, s->count));
        add_candidate(s);
    }
}

static int placed_arena(const Solver *s, int i, const Settings *settings, size_t alignment, size_t *arena, Err *e) {
    Placement placed;
    Program *p = program_copy(s->c->p);
    if (!p) return no_memory(e);
    chain_drop(s->c, p, candidate(s, i));
    int code = compile_finish(p, settings, NULL, NULL, e);
    if (!code) code = placement_build(p, alignment, &placed, e);
    program_free(p);
    if (code) return code;
    *arena = placed.arena;
    placement_free(&placed);
    return OK;
}

/* The quickest candidate that was not looked at before, or -1. */
static int take_quickest(const Solver *s, bool *seen) {
    int best = -1;
    for (int i = 0; i < s->count; i++)
        if (!seen[i] && (best < 0 || s->seconds[i] < s->seconds[best])) best = i;
    if (best >= 0) seen[best] = true;
    return best;
}

/* Equally quick candidates are all looked at: the smallest arena wins. */
static int judge(const Solver *s, const Settings *settings, size_t alignment, int *best, Err *e) {
    bool seen[CANDIDATES] = {false};
    size_t arena = 0, least = SIZE_MAX, best_arena = 0;
    *best = -1;
    for (int i; (i = take_quickest(s, seen)) >= 0;) {
        if (*best >= 0 && s->seconds[i] > s->seconds[*best]) break;
        int code = placed_arena(s, i, settings, alignment, &arena, e);
        if (code) return code;
        if (arena < least) least = arena;
        if (arena > settings->budget || (*best >= 0 && arena >= best_arena)) continue;
        *best = i;
        best_arena = arena;
    }
    if (*best >= 0) return OK;
    return err_set(e, ERR_OOM, "checkpoint: a budget of %zu bytes is too small: the least that recomputation reaches is %zu",
                   settings->budget, least);
}

int chain_fit(const Chain *c, const Settings *settings, Device *device, int *segment, Err *e) {
    size_t cuts = (size_t)c->n_cuts, ops = (size_t)c->p->forward_end, bufs = (size_t)c->p->n_bufs;
    Solver s = {c, c->n_cuts - 1, mem_new(cuts * cuts * sizeof(Step)), mem_new(cuts * sizeof(size_t)), 0,
                mem_new(cuts * sizeof(Front)), mem_new(CANDIDATES * ops * sizeof(int)),
                mem_new(CANDIDATES * sizeof(double)), 0, mem_new(bufs), mem_new(bufs), mem_new(ops)};
    bool made = s.step && s.stored && s.front && s.segment && s.seconds && s.lost && s.need && s.again;
    int best, code = made ? estimate(&s, settings, e) : no_memory(e);
    if (!code) {
        find_candidates(&s);
        code = judge(&s, settings, device->table->alignment, &best, e);
    }
    if (!code) memcpy(segment, candidate(&s, best), ops * sizeof *segment);
    mem_free(s.step);
    mem_free(s.stored);
    mem_free(s.front);
    mem_free(s.segment);
    mem_free(s.seconds);
    mem_free(s.lost);
    mem_free(s.need);
    mem_free(s.again);
    return code;
}
