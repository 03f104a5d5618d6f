/* Checkpointing that fits a number of bytes: the quickest choice of segments whose placed arena is within the budget.
 *
 * 1. Candidates. A choice stores each unit of the chain, WHOLE or LIGHT (without what light ops make of the rest, see
 *    checkpoint_selective.c) or LIGHT BUT_END (with what crosses its end), or drops a run of units. A dynamic program goes from the last
 *    unit back. At each cut it has a front of
 *    labels: ways to store and drop what follows, with the most bytes that are then alive (without what is stored before the cut) and the
 *    seconds of second runs. A step before a label with `peak` gives one with max(working, kept + peak), so of two labels the one with
 *    fewer bytes and fewer seconds is the better in all that may come before. What follows depends on what comes before in one thing: whether
 *    what crosses the cut is there in the backward pass, or how many light ops make it again. A cut has a front for each. Those of the first
 *    cut are the candidates; the choices of the other modes are more. Nothing here depends on the budget, so a larger budget never costs
 *    more time.
 * 2. Judgement. In order of time, each candidate is compiled and placed; the first that fits is taken. A candidate whose
 *    estimate is above the budget, on several ranks well above it, has its turn only if no other fits.
 *
 * The estimate: while the backward pass is in the run (i, j] of units, these bytes are alive:
 *     kept      what is stored of the units up to cut i             depends on the choice up to i
 *     working   the run's own activations that are still needed,    depends on i, j and what crosses cut i: follows from
 *               gradients and everything else                       lifetimes in programs that store all units
 *
 * Those lifetimes are read from finished programs: the one in which all units are WHOLE, and a few in which LIGHT ones come after each other
 * in all ways. So what the passes do with storage (gradients that take that of an activation, slices, early updates, gathered weights) is in
 * the estimate without a word about it here. What is left is what the second run of a dropped run adds. On one rank the estimates are the most
 * bytes alive, and nearly always the placed arena, to the byte. */
#include "checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of a unit: all that the backward pass reads of it is stored, or without what light ops make of the rest (see chain_lighten), or
 * the same but with what crosses its end; or it is dropped, with others. */
typedef enum Way { WHOLE, LIGHT, BUT_END, DROPPED, WAYS } Way;
enum { LABELS = 512, CANDIDATES = LABELS + CHECKPOINT_SELECTIVE };
enum { DOUBT = 64 /* on several ranks an estimate may be so much of itself too high */ };
/* The estimate looks at all runs between two cuts. If there are more than MOST_CUTS, it looks at so many of them. */
enum { MOST_CUTS = 256 };
enum { PROGRAMS = 8 /* at most, from which units are estimated that are LIGHT, or come after such */ };

/* A run of units that is dropped, or a unit that is stored. */
typedef struct Step {
    size_t working, kept; /* bytes: alive while the backward pass is in it, see above; of it that stay stored */
    double seconds;       /* of recomputation */
} Step;

/* A way to store and drop the units after a cut. */
typedef struct Label {
    size_t peak;         /* the most bytes alive, without what is stored of the units before the cut */
    double seconds;      /* of recomputation */
    int to, depth, slot; /* after a step to that state it goes on with item[slot] there */
    Way way;             /* of that step */
} Label;
/* The best labels of a state: `peak` rises, `seconds` falls. */
typedef struct Front { Label item[LABELS]; int n; } Front;

/* A cut, and the depth of what crosses it (see chain_depth), which light ops of the unit after it begin from. */
typedef struct State {
    bool comes;           /* a choice of what lies before the cut comes to it */
    int next[WAYS];       /* by way of the unit after it: the depth at the next cut. DROPPED: also of one that is stored as it is */
    Step step[DROPPED];   /* that unit, by way */
    bool known[DROPPED];  /* there is such a step */
    bool wanted[WAYS];    /* such a step is to be estimated by a program in which it comes about */
    int ahead;            /* the most that is wanted here and further on in one program; then the unit is stored in the `best` way */
    Way best;
    Front front;          /* of all ways to store and drop what follows */
} State;
enum { DEPTHS = DEEPEST + 1 };

typedef struct Candidate {
    const Label *label;    /* of the first cut; NULL: the choice of a mode */
    Checkpoint mode;
    size_t peak, arena;    /* the estimate, or 0 if there is none; placed, or 0 if it is not yet */
    double seconds;
} Candidate;

typedef struct Solver {
    const Chain *whole; /* with all cuts: for the other modes' choices */
    const Chain *c;     /* the same with the cuts that the estimate looks at */
    int n;            /* the last cut: the end of the forward pass */
    Step *step;       /* [from * (n + 1) + to], from < to: the run between these cuts when it is dropped */
    size_t *gathered; /* by cut: bytes of what crosses it, if that is gathered and the backward pass reads it */
    State *state;     /* by cut and depth, see state_at */
    Way *way;         /* by unit: of a program from which units are estimated. DROPPED: stored as it is */
    double *light;    /* by unit: there, seconds of second runs of single ops */
    int *user;        /* by root: the unit for which it is made again */
    Candidate *item;
    int count;
    int *segment;     /* the choice of one candidate */
    int *depth;       /* by buffer: scratch of chain_lighten */
    bool *lost, *need, *again; /* see chain_again */
} Solver;

static Step *step_at(const Solver *s, int from, int to) {
    assert(0 <= from && from < to && to <= s->n);
    return &s->step[from * (s->n + 1) + to];
}

static State *state_at(const Solver *s, int cut, int depth) {
    assert(0 <= depth && depth < DEPTHS);
    return &s->state[cut * DEPTHS + depth];
}

/* ---- the states */

/* Makes a choice in which all is stored store or drop the units between two cuts. What the backward pass does not read costs nothing in any
 * way: it is made again where light ops of a later unit need it. What is gathered is ALONE before and stays so. */
static void put_way(const Solver *s, int from, int to, Way way, int *segment) {
    for (int i = s->c->cut[from].at; i < s->c->cut[to].at; i++) {
        const int out = s->c->p->ops[i].out[0];
        if (way == DROPPED) segment[i] = to;
        else if (segment[i] == STORED && (way != WHOLE || (out != NO_BUF && !s->c->saved[program_root(s->c->p, out)]))) segment[i] = LIGHTEN;
    }
    if (way == BUT_END) segment[s->c->writer[s->c->cut[to].root]] = STORED;
}

/* Is what crosses the cut made again, if it is as deep as that? */
static bool is_again(const Chain *c, int cut, int depth) { return depth > 0 && c->cut[cut].root != NO_BUF && c->saved[c->cut[cut].root]; }

/* Fills comes, next and wanted of all states. */
static void find_states(const Solver *s, int *segment) {
    const Chain *c = s->c;
    state_at(s, 0, 0)->comes = true;
    for (int unit = 1; unit <= s->n; unit++)
        for (int depth = 0; depth < DEPTHS; depth++) {
            State *at = state_at(s, unit - 1, depth);
            const int in = c->cut[unit - 1].root, out = c->cut[unit].root;
            if (!at->comes) continue;
            at->wanted[WHOLE] = is_again(c, unit - 1, depth);
            for (Way way = WHOLE; way < WAYS; way++) {
                if (way == BUT_END) {
                    at->next[way] = at->next[LIGHT];
                    if (!is_again(c, unit, at->next[LIGHT]) || c->gathers[c->writer[out]]) continue; /* it is LIGHT; or what is gathered, which is not stored */
                }
                chain_store(c, STORED, segment);
                if (in != NO_BUF) { /* as a choice that comes to the state has it */
                    segment[c->writer[in]] = depth > 0 ? ALONE : STORED;
                    s->depth[in] = c->gathers[c->writer[in]] ? 0 : depth; /* chain_lighten does not count what is gathered in any case */
                }
                if (way != DROPPED) put_way(s, unit - 1, unit, way, segment);
                chain_lighten(c, USUAL, op_is_light, c->cut[unit - 1].at, c->cut[unit].at, segment, s->depth);
                at->next[way] = out == NO_BUF ? 0 : c->gathers[c->writer[out]] ? 1 : chain_depth(c, segment, s->depth, out, 0);
                state_at(s, unit, at->next[way])->comes = true;
                for (int i = c->cut[unit - 1].at; (way == LIGHT || way == BUT_END) && i < c->cut[unit].at; i++)
                    at->wanted[way] |= segment[i] == ALONE && c->saved[program_root(c->p, c->p->ops[i].out[0])];
            }
        }
}

/* Fills s->way: units are stored in as many ways that are wanted as one program can have. False: nothing is wanted. */
static bool next_program(const Solver *s) {
    for (int unit = s->n; unit > 0; unit--)
        for (int depth = 0; depth < DEPTHS; depth++) {
            State *at = state_at(s, unit - 1, depth);
            at->ahead = 0;
            for (Way way = WHOLE; at->comes && way < WAYS; way++) {
                const int ahead = at->wanted[way] + state_at(s, unit, at->next[way])->ahead;
                if (way != WHOLE && ahead <= at->ahead) continue;
                at->ahead = ahead;
                at->best = way;
            }
        }
    for (int unit = 1, depth = 0; unit <= s->n; unit++) {
        const State *at = state_at(s, unit - 1, depth);
        s->way[unit] = at->best;
        depth = at->next[at->best];
    }
    return state_at(s, 0, 0)->ahead > 0;
}

/* ---- the estimate */

typedef struct Profile {
    const Program *p; /* finished, with units stored by s->way: its ops have other numbers than the chain's, see place */
    int *place;       /* by the chain's forward op, and for their end: its number in p */
    int *within;      /* by forward op of p: the unit in which it is */
    int *cut;         /* by cut: the storage that crosses it, in p */
    size_t *kept;     /* by cut: its bytes, if the backward pass reads it */
    Life *life;       /* with the bytes that a plan takes */
    int *unit;        /* by root: the unit that writes it last, if the backward pass reads it; else 0. It lives as long as gradients in its place */
    int *read, *back; /* by root: the last forward op and the first backward op that read it */
    size_t *other;    /* by op: bytes alive at it of buffers with unit 0, which no choice changes */
    size_t *across;   /* by op: of these, bytes that are alive at the op before it, too */
    size_t *stored;   /* by op and cut: bytes alive at it from units after the cut, when all is stored */
    size_t *passing;  /* by op and cut: the same without what only the backward pass reads */
    bool *alive;      /* by root, and own, by forward op: see find_own */
    size_t *own;
    int *made;        /* by buffer: the last backward op whose first output it is, or 0 */
    int *last;        /* by cut: the last op that reads what a unit after the cut writes */
    int *update;      /* by root: the first op that updates it, a weight, or the number of ops */
    size_t *gradient; /* by root: bytes that are free after its updates: the weight's gradient */
} Profile;

/* Fills f->within, f->unit, f->cut and f->kept. */
static void find_units(const Solver *s, Profile *f) {
    const Program *chain = s->c->p;
    for (int t = 0, unit = 1; t < f->p->forward_end; t++) {
        const Op *op = &f->p->ops[t];
        while (f->place[s->c->cut[unit].at] <= t) unit++;
        f->within[t] = unit;
        EACH_OUT(op, k) {
            const int out = op->out[k], root = program_root(f->p, out);
            if (op->kind == OP_view || out >= chain->n_bufs || !s->c->saved[program_root(chain, out)]) continue;
            const Buf *buf = &f->p->bufs[root];
            if (buf->kind == BUF_TEMP && !buf->keep && f->life[root].last >= f->p->forward_end) f->unit[root] = unit;
        }
    }
    for (int c = 1; c < s->n; c++) {
        f->cut[c] = program_root(f->p, s->c->cut[c].root);
        if (s->c->saved[s->c->cut[c].root] && f->unit[f->cut[c]]) f->kept[c] = f->life[f->cut[c]].bytes;
    }
}

/* Fills f->read, f->back. A gather that a pass has put far before its reader follows the second run that makes what it
 * sends. */
static void find_reads(Profile *f) {
    for (int b = 0; b < f->p->n_bufs; b++) {
        f->read[b] = f->life[b].first;
        f->back[b] = f->p->n_ops;
    }
    for (int i = f->p->n_ops - 1; i >= 0; i--) {
        const Op *op = &f->p->ops[i];
        const bool forward = i < f->p->forward_end, ahead = op->kind == OP_all_gather;
        EACH_IN(op, k) {
            int root = program_root(f->p, op->in[k]);
            if (!forward && !ahead) f->back[root] = i;
            if (forward && i > f->read[root]) f->read[root] = i;
        }
    }
}

static size_t *at_cut(const Solver *s, size_t *table, int op, int cut) { return &table[op * (s->n + 1) + cut]; }

/* Adds bytes to the ops [from, to] in a column of a table by op. Until sum_up, an entry is the difference to the op
 * before it, and of one unit. */
static void add_bytes(const Profile *f, size_t *column, size_t columns, int from, int to, size_t bytes) {
    if (from > to) return;
    column[(size_t)from * columns] += bytes;
    if (to + 1 < f->p->n_ops) column[(size_t)(to + 1) * columns] -= bytes;
}

static void sum_up(const Profile *f, size_t *table, size_t columns) {
    size_t entries = (size_t)f->p->n_ops * columns;
    for (size_t i = columns; i < entries; i++) table[i] += table[i - columns];
    for (size_t i = entries - 1; i > 0; i--)
        if (i % columns) table[i - 1] += table[i];
}

/* Fills f->other, f->across, f->stored and f->passing. */
static void find_alive(const Solver *s, Profile *f) {
    const size_t cuts = (size_t)s->n + 1;
    for (int b = 0; b < f->p->n_bufs; b++) {
        const Life *l = &f->life[b];
        if (!l->used || l->host) continue;
        const int unit = f->unit[b];
        if (unit) {
            add_bytes(f, f->stored + unit - 1, cuts, l->first, l->last, l->bytes);
            add_bytes(f, f->passing + unit - 1, cuts, l->first, min_int(f->read[b], l->last), l->bytes);
            continue;
        }
        add_bytes(f, f->other, 1, l->first, l->last, l->bytes);
        add_bytes(f, f->across, 1, l->first + 1, l->last, l->bytes);
    }
    sum_up(f, f->other, 1);
    sum_up(f, f->across, 1);
    sum_up(f, f->stored, cuts);
    sum_up(f, f->passing, cuts);
}

/* Fills f->update and f->gradient. */
static void find_updates(Profile *f) {
    for (int b = 0; b < f->p->n_bufs; b++) f->update[b] = f->p->n_ops;
    for (int i = f->p->n_ops - 1; i >= f->p->forward_end; i--) {
        const Op *op = &f->p->ops[i];
        const int w = op->out[0];
        if (w == NO_BUF || !op_info(op->kind)->out[0].updated || f->p->bufs[w].kind != BUF_PERSISTENT) continue;
        f->update[w] = i;
        EACH_IN(op, k) {
            const int root = program_root(f->p, op->in[k]);
            if (f->p->bufs[root].kind == BUF_TEMP && f->life[root].last == i) f->gradient[w] += f->life[root].bytes;
        }
    }
}

/* Bytes of gradients that wait for the second run of a forward op right before op `need`: it reads weights (to cast them) that would
 * be updated by then. */
static size_t gradients_wait(const Profile *f, const Op *op, int need) {
    size_t bytes = 0;
    EACH_IN(op, k) {
        const int root = program_root(f->p, op->in[k]);
        if (f->update[root] < need) bytes += f->gradient[root];
    }
    return bytes;
}

static void at_least_op(int *last, int op) {
    if (op > *last) *last = op;
}

/* The first of the forward ops of a layer that lie in a row, the last of them at `from` or before; NO_OP: there is none. */
static int first_of_layer(const Program *p, const char *path, int from) {
    int i = from;
    while (i >= 0 && strcmp(p->ops[i].path, path)) i--;
    while (i > 0 && !strcmp(p->ops[i - 1].path, path)) i--;
    return i < 0 ? NO_OP : i;
}

/* Fills f->last, from the layers of the chain's backward ops and from what these read: they are the same in all programs, whatever is
 * gathered or made again before them. Each op after the forward pass so belongs to one unit, the last ones to the first. */
static void find_last(const Solver *s, Profile *f) {
    const Chain *c = s->c;
    const Program *p = c->p;
    int layer = p->forward_end - 1;
    for (int cut = 0; cut <= s->n; cut++) f->last[cut] = f->p->forward_end - 1;
    for (int t = f->p->forward_end; t < f->p->n_ops; t++)
        if (f->p->ops[t].out[0] != NO_BUF) f->made[f->p->ops[t].out[0]] = t;
    for (int i = p->forward_end; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (op->out[0] == NO_BUF) continue;
        const int made = f->made[op->out[0]], first = first_of_layer(p, op->path, layer);
        EACH_IN(op, k) {
            const int w = c->writer[program_root(p, op->in[k])];
            if (w != NO_OP) at_least_op(&f->last[f->within[f->place[w]] - 1], made);
        }
        if (first == NO_OP) continue;
        at_least_op(&f->last[f->within[f->place[first]] - 1], made);
        while (layer > first && strcmp(p->ops[layer].path, op->path)) layer--;
    }
    f->last[0] = f->p->n_ops - 1;
    for (int cut = s->n - 1; cut > 0; cut--) at_least_op(&f->last[cut], f->last[cut + 1]);
}

static void at_least(size_t *most, size_t bytes) { *most = max_size(*most, bytes); }

static void at_least_without(size_t *most, size_t bytes, size_t without) { at_least(most, bytes > without ? bytes - without : 0); }

/* Bytes of what crosses the cut and is kept, but is not alive any more at a backward op. */
static size_t gone_at(const Profile *f, int cut, int op) { return f->life[f->cut[cut]].last < op ? f->kept[cut] : 0; }

/* A unit that is stored. working: the most in its forward pass and in its backward pass. */
static void work_stored(const Solver *s, Profile *f, int unit, Step *store) {
    for (int t = f->place[s->c->cut[unit - 1].at]; t < f->place[s->c->cut[unit].at]; t++)
        at_least(&store->working, f->other[t] + *at_cut(s, f->stored, t, unit - 1));
    for (int t = f->last[unit] + 1; t <= f->last[unit - 1]; t++)
        at_least_without(&store->working, f->other[t] + *at_cut(s, f->stored, t, unit - 1), gone_at(f, unit - 1, t));
}

/* Seconds of second runs of single ops, for the unit whose backward pass needs them: what it does not read itself is made for another op's
 * second run. */
static void time_stored(const Solver *s) {
    const Program *p = s->c->p;
    memset(s->light, 0, ((size_t)s->n + 1) * sizeof *s->light);
    for (int i = p->forward_end - 1, unit = s->n; i >= 0; i--) {
        const Op *op = &p->ops[i];
        while (s->c->cut[unit - 1].at > i) unit--;
        if (!s->again[i]) continue;
        const int root = program_root(p, op->out[0]), of = s->c->saved[root] ? unit : s->user[root];
        EACH_IN(op, k) s->user[program_root(p, op->in[k])] = of;
        s->light[of] += op_seconds(op);
    }
}

/* The first backward op that reads what is lost when the run (from, to] is dropped. */
static int first_need(const Solver *s, const Profile *f, int from, int to) {
    int first = f->last[from], out = f->cut[to];
    for (int b = 0; b < s->c->p->n_bufs; b++)
        if (f->unit[b] > from && f->unit[b] <= to && b != out && f->back[b] < first) first = f->back[b];
    return first;
}

/* Bytes alive in a run that is dropped: the most in its forward pass, when it runs again (the ops in s->again), and in
 * its backward pass. */
static size_t work_dropped(const Solver *s, const Profile *f, int from, int to, size_t input) {
    int start = s->c->cut[from].at, end = s->c->cut[to].at, out = f->cut[to], need = first_need(s, f, from, to);
    size_t most = 0, cut = f->kept[to];
    size_t waiting = f->across[need] + *at_cut(s, f->stored, need, to) + (f->life[out].last >= need ? cut : 0);
    for (int t = f->place[start]; t < f->place[end]; t++)
        at_least(&most, f->other[t] + *at_cut(s, f->passing, t, from) + input);
    for (int i = end - 1; i >= start; i--) {
        const int t = f->place[i];
        if (!s->again[i]) continue;
        waiting += gradients_wait(f, &s->c->p->ops[i], need);
        at_least_without(&most, waiting + f->own[t] + *at_cut(s, f->stored, t, from), gone_at(f, from, need));
    }
    for (int t = min_int(f->last[to] + 1, need); t <= f->last[from]; t++)
        at_least_without(&most, f->other[t] + (t >= need ? *at_cut(s, f->stored, t, from) : *at_cut(s, f->stored, t, to) + (f->life[out].last >= t ? cut : 0) + input),
                         gone_at(f, from, t));
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

/* Adds the bytes of a storage that forward ops alone read to *bytes, unless it is counted. */
static void count_alive(const Profile *f, int buf, size_t *bytes) {
    const int b = program_root(f->p, buf);
    const Life *l = &f->life[b];
    if (f->alive[b] || f->unit[b] || !l->used || l->host || l->persistent || l->last >= f->p->forward_end) return;
    f->alive[b] = true;
    *bytes += l->bytes;
}

/* What the op is the first to touch is not alive before it. */
static void end_alive(const Profile *f, int buf, int op, size_t *bytes) {
    const int b = program_root(f->p, buf);
    if (!f->alive[b] || f->life[b].first < op) return;
    f->alive[b] = false;
    *bytes -= f->life[b].bytes;
}

/* Fills f->own: bytes of what forward ops alone read, alive in the second run up to cut `to` (s->again) at each of its ops. */
static void find_own(const Solver *s, const Profile *f, int to) {
    size_t bytes = 0;
    memset(f->alive, 0, (size_t)f->p->n_bufs);
    for (int t = f->place[s->c->cut[to].at] - 1, i = s->c->cut[to].at - 1; t >= 0; t--) {
        const Op *op = &f->p->ops[t];
        const bool known = i >= 0 && f->place[i] == t, runs = !known || s->again[i];
        if (known) i--;
        if (!runs) continue;
        EACH_IN(op, k) count_alive(f, op->in[k], &bytes);
        EACH_OUT(op, k) count_alive(f, op->out[k], &bytes);
        if (op->workspace != NO_BUF) count_alive(f, op->workspace, &bytes);
        f->own[t] = bytes;
        EACH_OUT(op, k) end_alive(f, op->out[k], t, &bytes);
        if (op->workspace != NO_BUF) end_alive(f, op->workspace, t, &bytes);
    }
}

/* The steps of all runs that end at cut `to`. Dropping a run keeps what crosses its end, and its input, even if the
 * backward pass itself does not read that (counted twice where the forward pass still reads it). */
static void fill_steps(const Solver *s, Profile *f, int to) {
    double seconds = 0;
    const Program *p = s->c->p;
    size_t batch = 0; /* bytes of inputs that only the second run still needs */
    find_again(s, to);
    find_own(s, f, to);
    memset(s->lost, 0, (size_t)p->n_bufs); /* here: inputs that are in `batch` */
    for (int from = to - 1; from >= 0; from--) {
        for (int i = s->c->cut[from].at; i < s->c->cut[from + 1].at; i++) {
            if (!s->again[i]) continue;
            seconds += op_seconds(&p->ops[i]);
            EACH_IN(&p->ops[i], k) {
                int b = p->ops[i].in[k];
                if (p->bufs[b].kind != BUF_INPUT || s->c->saved[b] || s->lost[b]) continue;
                s->lost[b] = true;
                batch += f->life[b].bytes;
            }
        }
        const int in = s->c->cut[from].root;
        const size_t input = batch + (in != NO_BUF && s->need[in] && !s->c->saved[in] ? f->life[f->cut[from]].bytes : 0);
        *step_at(s, from, to) = (Step){work_dropped(s, f, from, to, input), input + f->kept[to], seconds};
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

static size_t kept_of(const Profile *f, int unit) {
    size_t bytes = 0;
    for (int b = 0; b < f->p->n_bufs; b++)
        if (f->unit[b] == unit) bytes += f->life[b].bytes;
    return bytes;
}

/* From the program in which all units are WHOLE: the steps of such units, but for those that are wanted of another, and s->step. */
static void take_whole(const Solver *s, Profile *f) {
    for (int unit = 1; unit <= s->n; unit++) {
        Step step = {.kept = kept_of(f, unit)};
        work_stored(s, f, unit, &step);
        if (unit < s->n && is_again(s->c, unit, 1) && s->c->gathers[s->c->writer[s->c->cut[unit].root]]) s->gathered[unit] = f->life[f->cut[unit]].bytes;
        for (int depth = 0; depth < DEPTHS; depth++) {
            State *at = state_at(s, unit - 1, depth);
            at->step[WHOLE] = step;
            at->known[WHOLE] = !at->wanted[WHOLE];
        }
    }
    for (int to = 1; to < s->n; to++) fill_steps(s, f, to);
}

/* What is wanted, from the program in which units are stored by s->way. */
static void take_wanted(const Solver *s, Profile *f) {
    time_stored(s);
    for (int unit = 1, depth = 0; unit <= s->n; depth = state_at(s, unit - 1, depth)->next[s->way[unit]], unit++) {
        State *at = state_at(s, unit - 1, depth);
        const Way way = s->way[unit];
        if (!at->wanted[way]) continue;
        at->step[way] = (Step){.kept = kept_of(f, unit), .seconds = s->light[unit]};
        work_stored(s, f, unit, &at->step[way]);
        at->wanted[way] = false;
        at->known[way] = true;
    }
}

typedef void TakeFn(const Solver *s, Profile *f);

/* Makes the program in which units are stored by s->way, for `take`. */
static int estimate(const Solver *s, TakeFn *take, int *segment, Compile *under) {
    Program *p;
    chain_store(s->c, STORED, segment);
    for (int unit = 1; unit <= s->n; unit++)
        if (s->way[unit] != DROPPED) put_way(s, unit - 1, unit, s->way[unit], segment);
    chain_lighten(s->c, USUAL, op_is_light, 0, s->c->p->forward_end, segment, s->depth);
    int code = whatif(s->c->p, chain_apply, &(ChainChoice){s->c, segment, NULL}, under, &p, NULL);
    if (code) return code;
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops, cuts = (size_t)s->n + 1;
    Scratch *m = &under->scratch;
    void *before = m->last;
    Profile f = {.p = p, .made = scratch_new(m, bufs, sizeof(int)),
                 .place = scratch_new(m, (size_t)s->c->p->forward_end + 1, sizeof(int)), .within = scratch_new(m, ops, sizeof(int)),
                 .cut = scratch_new(m, cuts, sizeof(int)), .kept = scratch_new(m, cuts, sizeof(size_t)),
                 .life = scratch_new(m, bufs, sizeof(Life)), .unit = scratch_new(m, bufs, sizeof(int)),
                 .read = scratch_new(m, bufs, sizeof(int)),
                 .back = scratch_new(m, bufs, sizeof(int)),
                 .other = scratch_new(m, ops, sizeof(size_t)), .across = scratch_new(m, ops, sizeof(size_t)),
                 .stored = scratch_new(m, ops * cuts, sizeof(size_t)), .passing = scratch_new(m, ops * cuts, sizeof(size_t)),
                 .alive = scratch_new(m, bufs, sizeof(bool)),
                 .own = scratch_new(m, ops, sizeof(size_t)), .last = scratch_new(m, cuts, sizeof(int)),
                 .update = scratch_new(m, bufs, sizeof(int)), .gradient = scratch_new(m, bufs, sizeof(size_t))};
    if (!m->failed) {
        program_lives(p, f.life);
        for (size_t b = 0; b < bufs; b++) f.life[b].bytes = align_up(f.life[b].bytes, under->device->table->alignment);
        find_places(s, &f);
        find_units(s, &f);
        find_reads(&f);
        find_alive(s, &f);
        find_last(s, &f);
        find_updates(&f);
        chain_again(s->c, segment, s->lost, s->need, s->again);
        take(s, &f);
    }
    program_free(p);
    scratch_release(m, before);
    return OK;
}

/* ---- the dynamic program */

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Makes room in a full front. Without a label, budgets up to the next one have the time of the one before: bytes times seconds are lost.
 * The half with the smaller losses goes, but no two in a row; the first, which needs the least, and the last, which is the quickest, stay. */
static void thin_out(Front *f) {
    double loss[LABELS], sorted[LABELS];
    assert(f->n == LABELS);
    for (int i = 1; i < LABELS - 1; i++) loss[i] = sorted[i] = (double)(f->item[i + 1].peak - f->item[i].peak) * (f->item[i - 1].seconds - f->item[i].seconds);
    qsort(sorted + 1, LABELS - 2, sizeof *sorted, compare_doubles);
    const double most = sorted[LABELS / 2];
    int n = 1;
    bool went = false;
    for (int i = 1; i < LABELS; i++) {
        went = !went && i < LABELS - 1 && loss[i] <= most;
        if (!went) f->item[n++] = f->item[i];
    }
    f->n = n;
}

/* Adds a label unless another needs no more and is no slower; takes out those that it makes useless in the same way. */
static void add_label(Front *f, const Label *l) {
    int at = 0, end = f->n;
    assert(f->n < LABELS);
    while (at < end) { /* to the first label that needs more */
        int middle = (at + end) / 2;
        if (f->item[middle].peak <= l->peak) at = middle + 1;
        else end = middle;
    }
    if (at > 0 && f->item[at - 1].seconds <= l->seconds) return;
    if (at > 0 && f->item[at - 1].peak == l->peak) at--;
    for (end = at; end < f->n && f->item[end].seconds >= l->seconds;) end++;
    memmove(&f->item[at + 1], &f->item[end], (size_t)(f->n - end) * sizeof *f->item);
    f->item[at] = *l;
    f->n += 1 - (end - at);
    if (f->n == LABELS) thin_out(f);
}

/* Puts a step before the labels at cut `to`. */
static void extend(const Solver *s, int from, int depth, int to, Way way) {
    assert(way == DROPPED || to == from + 1);
    State *at = state_at(s, from, depth);
    if (way != DROPPED && !at->known[way]) return;
    const bool keeps = way == DROPPED && is_again(s->c, from, depth);
    if (keeps && !s->gathered[from]) return; /* its second run reads what crosses the cut, which BUT_END has stored in this case */
    const Step *step = way == DROPPED ? step_at(s, from, to) : &at->step[way];
    const int next = way != DROPPED ? at->next[way] : s->c->saved[s->c->cut[to].root] ? 0 : DEEPEST;
    const size_t input = keeps ? s->gathered[from] : 0, working = step->working + input, kept = step->kept + input;
    const double seconds = step->seconds - (keeps ? op_seconds(&s->c->p->ops[s->c->writer[s->c->cut[from].root]]) : 0);
    const Front *after = &state_at(s, to, next)->front;
    for (int i = 0; i < after->n; i++) {
        const Label *l = &after->item[i];
        add_label(&at->front, &(Label){max_size(working, kept + l->peak), l->seconds + seconds, to, next, i, way});
    }
}

/* Fills the front of each cut, from the last one to the first. */
static void find_fronts(const Solver *s) {
    state_at(s, s->n, 0)->front = (Front){.n = 1};
    for (int from = s->n - 1; from >= 0; from--)
        for (int depth = 0; depth < DEPTHS; depth++) {
            if (!state_at(s, from, depth)->comes) continue;
            for (Way way = WHOLE; way < DROPPED; way++) extend(s, from, depth, from + 1, way);
            for (int to = from + 1; to < s->n; to++) extend(s, from, depth, to, DROPPED);
        }
}

/* The choice that a label of the first cut stands for. */
static void trace(const Solver *s, const Label *l, int *segment) {
    chain_store(s->c, STORED, segment);
    for (int from = 0; from < s->n; from = l->to, l = &state_at(s, l->to, l->depth)->front.item[l->slot])
        put_way(s, from, l->to, l->way, segment);
    chain_lighten(s->c, USUAL, op_is_light, 0, s->c->p->forward_end, segment, s->depth);
}

/* ---- candidates and their judgement */

/* What a candidate stands for, made in s->segment. */
static int *candidate(const Solver *s, const Candidate *c) {
    if (c->label) trace(s, c->label, s->segment);
    else chain_choose(s->whole, c->mode, s->segment);
    return s->segment;
}

static void add_candidate(Solver *s, Candidate c) {
    c.seconds = chain_again(s->c, candidate(s, &c), s->lost, s->need, s->again);
    s->item[s->count++] = c;
}

static int quicker(const void *left, const void *right) {
    const Candidate *a = left, *b = right;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    return a->peak != b->peak ? (a->peak < b->peak ? -1 : 1) : 0;
}

static int smaller(const void *left, const void *right) {
    const Candidate *a = left, *b = right;
    return a->peak != b->peak ? (a->peak < b->peak ? -1 : 1) : quicker(left, right);
}

static void find_candidates(Solver *s) {
    find_fronts(s);
    for (int mode = CHECKPOINT_NONE; mode < CHECKPOINT_SELECTIVE; mode++) add_candidate(s, (Candidate){.mode = (Checkpoint)mode});
    const Front *f = &state_at(s, 0, 0)->front;
    for (int i = 0; i < f->n; i++) add_candidate(s, (Candidate){.label = &f->item[i], .peak = f->item[i].peak});
}

/* May the candidate's arena be no more than that? On one rank no estimate is too high. */
static bool may_fit(const Solver *s, const Candidate *c, size_t bytes) {
    const bool alone = s->c->p->world == 1 && s->c->p->tensor == 1;
    return c->peak - (alone ? 0 : c->peak / DOUBT) <= bytes;
}

static int try_candidate(const Solver *s, Compile *under, Candidate *c) { return c->arena ? OK : chain_arena(s->c, candidate(s, c), under, &c->arena); }

/* The first candidate that fits, in order of time; of equally quick ones, the one with the smallest arena. Where none fits that should, the
 * one with the least arena. */
static int judge(const Solver *s, Compile *under, int *best) {
    const size_t budget = under->settings->budget;
    *best = -1;
    qsort(s->item, (size_t)s->count, sizeof *s->item, quicker);
    for (int i = 0; i < s->count && (*best < 0 || s->item[i].seconds <= s->item[*best].seconds); i++) {
        Candidate *c = &s->item[i];
        if (!may_fit(s, c, budget)) continue;
        int code = try_candidate(s, under, c);
        if (code) return code;
        if (c->arena <= budget && (*best < 0 || c->arena < s->item[*best].arena)) *best = i;
    }
    if (*best >= 0) return OK;
    qsort(s->item, (size_t)s->count, sizeof *s->item, smaller);
    for (int i = 0; i < s->count && (*best < 0 || may_fit(s, &s->item[i], s->item[*best].arena)); i++) {
        int code = try_candidate(s, under, &s->item[i]);
        if (code) return code;
        if (*best < 0 || s->item[i].arena < s->item[*best].arena) *best = i;
    }
    if (s->item[*best].arena <= budget) return OK;
    return err_set(under->e, ERR_OOM, "checkpoint: a budget of %zu bytes is too small: the least that recomputation "
                   "reaches is %zu bytes", budget, s->item[*best].arena);
}

static int fit(const Chain *whole, const Chain *c, Compile *under, int *segment, size_t *estimated) {
    size_t cuts = (size_t)c->n_cuts, ops = (size_t)c->p->forward_end, bufs = (size_t)c->p->n_bufs;
    Scratch *m = &under->scratch;
    Solver s = {.whole = whole, .c = c, .n = c->n_cuts - 1, .step = scratch_new(m, cuts * cuts, sizeof(Step)),
                .gathered = scratch_new(m, cuts, sizeof(size_t)),
                .state = scratch_new(m, DEPTHS * cuts, sizeof(State)), .way = scratch_new(m, cuts, sizeof(Way)),
                .light = scratch_new(m, cuts, sizeof(double)), .user = scratch_new(m, bufs, sizeof(int)), .item = scratch_new(m, CANDIDATES, sizeof(Candidate)), .segment = segment,
                .depth = scratch_new(m, bufs, sizeof(int)), .lost = scratch_new(m, bufs, sizeof(bool)),
                .need = scratch_new(m, bufs, sizeof(bool)), .again = scratch_new(m, ops, sizeof(bool))};
    if (m->failed) return OK;
    int best;
    find_states(&s, segment);
    for (int unit = 1; unit <= s.n; unit++) s.way[unit] = WHOLE;
    int code = estimate(&s, take_whole, segment, under);
    for (int i = 0; i < PROGRAMS && !code && !m->failed && next_program(&s); i++) code = estimate(&s, take_wanted, segment, under);
    if (code || m->failed) return code;
    find_candidates(&s);
    code = judge(&s, under, &best);
    if (code) return code;
    candidate(&s, &s.item[best]);
    if (estimated) *estimated = s.item[best].peak;
    return OK;
}

int chain_fit(const Chain *c, Compile *under, int *segment, size_t *estimated) {
    Cut cut[MOST_CUTS];
    Chain thinned = *c;
    assert(c->n_cuts >= 2);
    if (c->n_cuts > MOST_CUTS) { /* units of about as many of the chain's each; the last one, the loss, by itself */
        const int units = MOST_CUTS - 2, all = c->n_cuts - 2;
        for (int i = 0; i <= units; i++) cut[i] = c->cut[(int)((int64_t)i * all / units)];
        cut[units + 1] = c->cut[c->n_cuts - 1];
        thinned.cut = cut;
        thinned.n_cuts = MOST_CUTS;
    }
    return fit(c, &thinned, under, segment, estimated);
}
