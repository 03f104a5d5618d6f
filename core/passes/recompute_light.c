/* The setting "recompute_light": an activation that a light op makes of what the backward pass keeps anyway is not kept;
 * that op runs again right before the backward pass first reads its output. It is checkpointing (checkpoint_chain.c), of
 * single ops, that costs next to no time: no product runs twice, and an activation stays if the peak is no lower
 * without it.
 *
 *     y = linear(x, w)                        kept: the gradient of GELU reads it
 *     z = gelu(y)                             z's life without: ---------------------
 *     ...                                                 with: -                   -
 *     z.again = gelu(y)
 *     dw = linear_dw(z.again, dz2)
 *
 * All of them are dropped first, in rows of at most USUAL or DEEPEST ops that hang on each other; of the two choices the
 * one with the smaller arena is the better. Then those stay that raise its peak no more, the slowest for their bytes
 * first. If the second runs would still take more than a share of the step's time, the peak rises until they do not.
 * Nothing is done for a peak that falls by next to nothing. Choices are compared by the most bytes that are alive at a time, and
 * planned from the lowest on, until none that is left can be lower. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "levels.h"

/* Of the step's time the second runs take at most one in SHARE parts. An arena is not planned for one in NOTICED parts of the
 * best one. */
enum { SHARE = 25, NOTICED = 10000 };

/* An activation that may be made again. */
typedef struct Light {
    int op, buf;   /* the forward op, and its first output */
    double seconds_per_byte;
} Light;

typedef struct Again {
    const Chain *c;
    Program *p;                 /* c's */
    Compile *under;
    bool *lost, *need, *again;  /* scratch of chain_again */
    int *depth;                 /* scratch of chain_lighten */
    double most_seconds;        /* that second runs may take */
    size_t enough;              /* bytes: an arena that is larger is not worth it */
    size_t least;               /* bytes of the smallest arena so far */
    bool chosen;                /* it is that of a choice */
} Again;

/* All are dropped: rows of at most so many ops. */
typedef struct Low {
    int *dropped;   /* [forward_end]: the choice */
    Light *light;   /* [n]: those of them that the backward pass reads, the slowest for their bytes first */
    int n;
    Program *p;     /* finished */
    Alive alive;
    size_t alignment;
    int *twin;      /* by buffer: what the second run makes in its place, or NO_BUF */
    int *made;      /* by buffer: the op that makes it, or NO_OP */
    Levels levels;
} Low;

/* ---- which may be dropped */

static bool may_run_again(const Op *op) {
    return op_is_light(op) && op_info(op->kind)->autocast != AUTOCAST_LOW && !op_exchanges(op->kind) && !attr_exchanges(op->kind, &op->attr);
}

static int compare_lights(const void *left, const void *right) {
    const Light *a = left, *b = right;
    if (a->seconds_per_byte != b->seconds_per_byte) return a->seconds_per_byte > b->seconds_per_byte ? -1 : 1;
    return a->op - b->op;
}

/* Fills in dropped, rows of at most `deep` ops, and light. */
static void drop_all(const Again *a, int deep, Low *low) {
    const Chain *c = a->c;
    const Program *p = c->p;
    Scratch *s = &a->under->scratch;
    low->dropped = scratch_new(s, (size_t)p->forward_end, sizeof *low->dropped);
    low->light = scratch_new(s, (size_t)p->forward_end, sizeof *low->light);
    if (s->failed) return;
    for (int i = 0; i < p->forward_end; i++) low->dropped[i] = LIGHTEN;
    chain_lighten(c, deep, may_run_again, 0, p->forward_end, low->dropped, a->depth);
    chain_again(c, low->dropped, a->lost, a->need, a->again);
    for (int i = 0; i < p->forward_end; i++) {
        const int b = p->ops[i].out[0];
        if (low->dropped[i] != ALONE) continue;
        if (a->lost[b] && p->bufs[b].bytes < a->under->settings->recompute_least) low->dropped[i] = STORED;
        else if (a->lost[b] && c->saved[b])
            low->light[low->n++] = (Light){i, b, op_seconds(&p->ops[i]) / (double)p->bufs[b].bytes};
    }
    qsort(low->light, (size_t)low->n, sizeof *low->light, compare_lights);
}

/* ---- which may stay */

/* Makes the finished program in which all are dropped, and fills in what is known of it. */
static int finish(const Again *a, Low *low) {
    Compile *c = a->under;
    Scratch *s = &c->scratch;
    low->twin = scratch_new(s, (size_t)a->p->n_bufs, sizeof *low->twin);
    if (s->failed) return OK;
    const int code = whatif(a->p, chain_apply, &(ChainChoice){a->c, low->dropped, low->twin}, c, &low->p, NULL);
    if (code) return code;
    const Program *p = low->p;
    low->alignment = c->device->table->alignment;
    low->alive = placement_alive(p, low->alignment, s);
    low->made = scratch_new(s, (size_t)p->n_bufs, sizeof *low->made);
    low->levels = levels_new(p->n_ops, s);
    if (s->failed) return OK;
    for (int b = 0; b < p->n_bufs; b++) low->made[b] = NO_OP;
    for (int i = p->n_ops - 1; i >= 0; i--)
        if (p->ops[i].out[0] != NO_BUF) low->made[p->ops[i].out[0]] = i;
    return OK;
}

/* Does the activation stay, because no more than `limit` bytes are then alive? If so, it is added to the levels. */
static bool stays(const Low *low, const Light *l, size_t limit) {
    const int made = low->made[l->buf], twin = low->twin[l->buf], to = twin == NO_BUF ? NO_OP : low->made[twin];
    if (made == NO_OP || to == NO_OP) return false;
    const int from = levels_free_from(low->p, low->alive.life, l->buf, made);
    const size_t bytes = align_up(low->p->bufs[l->buf].bytes, low->alignment);
    if (levels_most(&low->levels, from, to) + bytes > limit) return false;
    levels_raise(&low->levels, from, to, bytes);
    return true;
}

/* segment: the choice in which as many stay as `limit` bytes leave room for. Returns the seconds of the second runs. */
static double pick(const Again *a, const Low *low, size_t limit, int *segment) {
    memcpy(segment, low->dropped, (size_t)a->c->p->forward_end * sizeof *segment);
    levels_fill(&low->levels, low->alive.live);
    for (int i = 0; i < low->n; i++)
        if (stays(low, &low->light[i], limit)) segment[low->light[i].op] = STORED;
    return chain_again(a->c, segment, a->lost, a->need, a->again);
}

/* The choice with the lowest peak, from low->alive.most up, whose second runs take no more than a->most_seconds. Returns that peak. */
static size_t pick_quick(const Again *a, const Low *low, int *segment) {
    enum { STEPS = 16 };
    size_t below = low->alive.most, above = below;
    if (pick(a, low, below, segment) <= a->most_seconds) return low->alive.most;
    for (int i = 0; i < low->n; i++) above += align_up(low->p->bufs[low->light[i].buf].bytes, low->alignment); /* then all stay */
    for (int i = 0; i < STEPS && above - below > low->alignment; i++) {
        const size_t middle = below + (above - below) / 2;
        if (pick(a, low, middle, segment) <= a->most_seconds) above = middle;
        else below = middle;
    }
    pick(a, low, above, segment);
    return levels_most(&low->levels, 0, low->p->n_ops);
}

/* Makes the choice `segment` if the finished program p, in which it is made, has the smallest arena so far; the program keeps its
 * placement. */
static int take_smaller(Again *a, Program *p, const int *choice, int *segment) {
    size_t arena;
    int code = placement_arena(p, a->under->device->table->alignment, &arena, a->under->e);
    if (code || arena >= a->least || arena > a->enough) return code;
    a->least = arena;
    a->chosen = true;
    memcpy(segment, choice, (size_t)a->c->p->forward_end * sizeof *segment);
    placement_move(a->p, p);
    return OK;
}

/* Might an arena of no less than `most` bytes be worth a plan? */
static bool may_be_smaller(const Again *a, size_t most) { return most <= a->enough && most < a->least - a->least / NOTICED; }

static int try_choice(Again *a, const int *choice, int *segment) {
    Program *p;
    int code = whatif(a->p, chain_apply, &(ChainChoice){a->c, choice, NULL}, a->under, &p, NULL);
    if (code) return code;
    code = take_smaller(a, p, choice, segment);
    program_free(p);
    return code;
}

/* Tries what low drops. What may stay by the bytes alive may leave gaps: then nothing stays. */
static int try_low(Again *a, const Low *low, int *segment) {
    int *picked = scratch_new(&a->under->scratch, (size_t)a->p->forward_end, sizeof *picked);
    if (a->under->scratch.failed || !may_be_smaller(a, low->alive.most)) return OK;
    const int code = may_be_smaller(a, pick_quick(a, low, picked)) ? try_choice(a, picked, segment) : OK;
    if (code || !may_be_smaller(a, low->alive.most) || chain_again(a->c, low->dropped, a->lost, a->need, a->again) > a->most_seconds) return code;
    return take_smaller(a, low->p, low->dropped, segment);
}

/* Is one in WORTH parts of what is alive at the peak of the finished program p, in which all are kept, among what `low` drops? Sets
 * a->least and a->enough. */
static bool may_be_worth(Again *a, const Program *p, const Low *low) {
    const size_t alignment = a->under->device->table->alignment;
    const Alive alive = placement_alive(p, alignment, &a->under->scratch);
    const size_t most = alive.most;
    size_t bytes = 0;
    int peak = 0;
    if (a->under->scratch.failed) return false;
    while (alive.live[peak] < most) peak++;
    for (int i = 0; i < low->n; i++) {
        const Life *l = &alive.life[program_root(p, low->light[i].buf)];
        if (l->first <= peak && peak <= l->last) bytes += align_up(p->bufs[low->light[i].buf].bytes, alignment);
    }
    a->least = most;
    a->enough = most - most / WORTH;
    return bytes >= most / WORTH;
}

/* Tries both, the one with fewer bytes alive first, and the usual one if they are as many. */
static int try_both(Again *a, const Low *usual, const Low *deepest, int *segment) {
    const bool usual_first = usual->alive.most <= deepest->alive.most;
    const int code = try_low(a, usual_first ? usual : deepest, segment);
    return code ? code : try_low(a, usual_first ? deepest : usual, segment);
}

static int choose(Again *a, int *segment) {
    Low usual = {0}, deepest = {0};
    Program *stored;
    drop_all(a, DEEPEST, &deepest);
    if (!deepest.n) return OK;
    int code = whatif(a->p, NULL, NULL, a->under, &stored, NULL);
    if (code) return code;
    const bool worth = may_be_worth(a, stored, &deepest);
    program_free(stored);
    if (!worth) return OK;
    drop_all(a, USUAL, &usual);
    if (a->under->scratch.failed) return OK;
    const bool one = !memcmp(usual.dropped, deepest.dropped, (size_t)a->p->forward_end * sizeof *segment);
    code = finish(a, &deepest);
    if (!code && !one && usual.n) code = finish(a, &usual);
    if (!code && !a->under->scratch.failed) code = usual.p ? try_both(a, &usual, &deepest, segment) : try_low(a, &deepest, segment);
    program_free(usual.p);
    program_free(deepest.p);
    return code;
}

int pass_recompute_light(Program *p, Compile *c) {
    const Settings *set = c->settings;
    if (set->eval || !set->recompute_light || set->checkpoint == CHECKPOINT_BUDGET || !chain_has_choice(p)) return UNCHANGED;
    assert(p->body_end == p->n_ops && p->micro_batches == 1); /* before accumulate and update */
    const size_t ops = (size_t)p->forward_end, bufs = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    Chain chain;
    int *segment = scratch_new(s, ops, sizeof *segment);
    Again a = {&chain, p, c, scratch_new(s, bufs, sizeof(bool)), scratch_new(s, bufs, sizeof(bool)), scratch_new(s, ops, sizeof(bool)),
               scratch_new(s, bufs, sizeof(int)), 0, 0, 0, false};
    if (!chain_find(&chain, p, s)) return OK;
    for (int i = 0; i < p->n_ops; i++) a.most_seconds += op_seconds(&p->ops[i]) / SHARE;
    const int code = choose(&a, segment);
    if (code || s->failed) return code;
    if (!a.chosen) return UNCHANGED;
    chain_drop(&chain, p, segment, NULL, s);
    return OK;
}
