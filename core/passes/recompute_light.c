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
 * Nothing is done for a peak that falls by next to nothing. Choices are compared by the most bytes that are alive at a time;
 * only one that would be taken is planned. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "levels.h"

/* Of the step's time the second runs take at most one in SHARE parts. The peak must fall by one in WORTH parts at least. */
enum { SHARE = 25, WORTH = 100 };

/* An activation that may be made again. */
typedef struct Light {
    int op, buf;   /* the forward op, and its first output */
    double seconds_per_byte;
} Light;

typedef struct Again {
    const Chain *c;
    Program *p;                 /* c's */
    Compile *under;
    Light *light;               /* [n], the slowest for their bytes first */
    int n;
    int *dropped;               /* [forward_end]: the choice that drops all */
    bool *lost, *need, *again;  /* scratch of chain_again */
    int *depth;                 /* scratch of chain_lighten */
    double most_seconds;        /* that second runs may take */
    size_t enough;              /* bytes: an arena that is larger is not worth it */
    size_t least;               /* bytes of the smallest arena so far */
} Again;

/* The finished program in which all are dropped. */
typedef struct Low {
    Program *p;
    Life *life;
    size_t *live, most, alignment;
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

/* Fills a->dropped: rows of at most `deep` ops; and a->light with those of them that the backward pass reads. */
static void drop_all(Again *a, int deep) {
    const Chain *c = a->c;
    const Program *p = c->p;
    for (int i = 0; i < p->forward_end; i++) a->dropped[i] = STORED;
    chain_lighten(c, deep, p->forward_end, may_run_again, a->dropped, a->depth);
    chain_again(c, a->dropped, a->lost, a->need, a->again);
    a->n = 0;
    for (int i = 0; i < p->forward_end; i++) {
        const int b = p->ops[i].out[0];
        if (a->dropped[i] != ALONE) continue;
        if (a->lost[b] && p->bufs[b].bytes < a->under->settings->recompute_least) a->dropped[i] = STORED;
        else if (a->lost[b] && c->saved[b])
            a->light[a->n++] = (Light){i, b, op_seconds(&p->ops[i]) / (double)p->bufs[b].bytes};
    }
    qsort(a->light, (size_t)a->n, sizeof *a->light, compare_lights);
}

/* ---- which may stay */

static void low_fill(Low *low, Program *p, Compile *c) {
    const size_t bufs = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    low->p = p;
    low->alignment = c->device->table->alignment;
    low->life = scratch_new(s, bufs, sizeof *low->life);
    low->live = scratch_new(s, (size_t)p->n_ops, sizeof *low->live);
    low->made = scratch_new(s, bufs, sizeof *low->made);
    low->levels = levels_new(p->n_ops, s);
    if (s->failed) return;
    for (int b = 0; b < p->n_bufs; b++) low->made[b] = NO_OP;
    for (int i = p->n_ops - 1; i >= 0; i--)
        if (p->ops[i].out[0] != NO_BUF) low->made[p->ops[i].out[0]] = i;
    low->most = placement_live(p, low->alignment, low->life, low->live);
}

/* Does the activation stay, because no more than `limit` bytes are then alive? If so, it is added to the levels. */
static bool stays(const Low *low, const Light *l, size_t limit) {
    const int made = low->made[l->buf], twin = low->twin[l->buf], to = twin == NO_BUF ? NO_OP : low->made[twin];
    if (made == NO_OP || to == NO_OP) return false;
    const int from = levels_free_from(low->p, low->life, l->buf, made);
    const size_t bytes = align_up(low->p->bufs[l->buf].bytes, low->alignment);
    if (from < to && levels_most(&low->levels, from, to) + bytes > limit) return false;
    levels_raise(&low->levels, from, to, bytes);
    return true;
}

/* segment: the choice in which as many stay as `limit` bytes leave room for. Returns the seconds of the second runs. */
static double pick(const Again *a, const Low *low, size_t limit, int *segment) {
    memcpy(segment, a->dropped, (size_t)a->c->p->forward_end * sizeof *segment);
    levels_fill(&low->levels, low->live);
    for (int i = 0; i < a->n; i++)
        if (stays(low, &a->light[i], limit)) segment[a->light[i].op] = STORED;
    return chain_again(a->c, segment, a->lost, a->need, a->again);
}

/* The choice with the lowest peak, from low->most up, whose second runs take no more than a->most_seconds. */
static void pick_quick(const Again *a, const Low *low, int *segment) {
    enum { STEPS = 16 };
    size_t below = low->most, above = below;
    if (pick(a, low, below, segment) <= a->most_seconds) return;
    for (int i = 0; i < a->n; i++) above += align_up(low->p->bufs[a->light[i].buf].bytes, low->alignment); /* then all stay */
    for (int i = 0; i < STEPS && above - below > low->alignment; i++) {
        const size_t middle = below + (above - below) / 2;
        if (pick(a, low, middle, segment) <= a->most_seconds) above = middle;
        else below = middle;
    }
    pick(a, low, above, segment);
}

/* Makes the choice `segment` if the finished program p, in which it is made, has the smallest arena so far; the program keeps its
 * placement. */
static int take_smaller(Again *a, Program *p, const int *choice, int *segment) {
    size_t arena;
    int code = placement_arena(p, a->under->device->table->alignment, &arena, a->under->e);
    if (code || arena >= a->least || arena > a->enough) return code;
    a->least = arena;
    memcpy(segment, choice, (size_t)a->c->p->forward_end * sizeof *segment);
    placement_move(a->p, p);
    return OK;
}

/* Tries what low->p drops: a->dropped. What may stay by the bytes alive may leave gaps: then nothing stays. */
static int try_low(Again *a, const Low *low, int *tried, int *segment) {
    Program *p;
    pick_quick(a, low, tried);
    int code = whatif(a->c->p, chain_apply, &(ChainChoice){a->c, tried, NULL}, a->under, &p, NULL);
    if (code) return code;
    code = take_smaller(a, p, tried, segment);
    program_free(p);
    if (code || low->most >= a->least || chain_again(a->c, a->dropped, a->lost, a->need, a->again) > a->most_seconds) return code;
    return take_smaller(a, low->p, a->dropped, segment);
}

static int try_depth(Again *a, int *segment) {
    Low low = {.twin = scratch_new(&a->under->scratch, (size_t)a->c->p->n_bufs, sizeof(int))};
    int *tried = scratch_new(&a->under->scratch, (size_t)a->c->p->forward_end, sizeof *tried);
    Program *all;
    if (a->under->scratch.failed || !a->n) return OK;
    int code = whatif(a->c->p, chain_apply, &(ChainChoice){a->c, a->dropped, low.twin}, a->under, &all, NULL);
    if (code) return code;
    low_fill(&low, all, a->under);
    if (!a->under->scratch.failed && low.most < a->least && low.most <= a->enough) code = try_low(a, &low, tried, segment);
    program_free(all);
    return code;
}

/* Is one in WORTH parts of what is alive at the peak of the finished program p, in which all are kept, in a->light? If so, sets
 * a->least and a->enough. */
static bool is_worth(Again *a, const Program *p) {
    Scratch *s = &a->under->scratch;
    const size_t alignment = a->under->device->table->alignment;
    Life *life = scratch_new(s, (size_t)p->n_bufs, sizeof *life);
    size_t *live = scratch_new(s, (size_t)p->n_ops, sizeof *live), bytes = 0;
    if (s->failed) return false;
    const size_t most = placement_live(p, alignment, life, live);
    int peak = 0;
    while (live[peak] < most) peak++;
    for (int i = 0; i < a->n; i++) {
        const Life *l = &life[program_root(p, a->light[i].buf)];
        if (l->first <= peak && peak <= l->last) bytes += align_up(p->bufs[a->light[i].buf].bytes, alignment);
    }
    a->least = most;
    a->enough = most - most / WORTH;
    return bytes >= most / WORTH;
}

static int choose(Again *a, int *segment) {
    static const int depths[] = {USUAL, DEEPEST};
    const size_t bytes = (size_t)a->c->p->forward_end * sizeof *segment;
    int *before = scratch_new(&a->under->scratch, bytes, 1);
    Program *stored;
    drop_all(a, DEEPEST);
    if (a->under->scratch.failed || !a->n) return OK;
    int code = whatif(a->c->p, NULL, NULL, a->under, &stored, NULL);
    if (code) return code;
    const bool worth = is_worth(a, stored);
    program_free(stored);
    for (size_t i = 0; i < ARRAY_LEN(depths) && worth && !code && !a->under->scratch.failed; i++) {
        drop_all(a, depths[i]);
        if (i == 0 || memcmp(before, a->dropped, bytes)) code = try_depth(a, segment);
        memcpy(before, a->dropped, bytes);
    }
    return code;
}

int pass_recompute_light(Program *p, Compile *c) {
    const Settings *set = c->settings;
    if (set->eval || !set->recompute_light || set->checkpoint == CHECKPOINT_BUDGET || p->forward_end == p->n_ops) return OK;
    assert(p->body_end == p->n_ops && p->micro_batches == 1); /* before accumulate and update */
    const size_t ops = (size_t)p->forward_end, bufs = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    Chain chain;
    int *segment = scratch_new(s, ops, sizeof *segment);
    Again a = {&chain, p, c, scratch_new(s, ops, sizeof(Light)), 0, scratch_new(s, ops, sizeof(int)), scratch_new(s, bufs, sizeof(bool)),
               scratch_new(s, bufs, sizeof(bool)), scratch_new(s, ops, sizeof(bool)), scratch_new(s, bufs, sizeof(int)), 0, 0, 0};
    if (!chain_find(&chain, p, s)) return OK;
    for (int i = 0; i < p->n_ops; i++) a.most_seconds += op_seconds(&p->ops[i]) / SHARE;
    int code = choose(&a, segment);
    if (!code && !s->failed) chain_drop(&chain, p, segment, NULL, s);
    return code;
}
