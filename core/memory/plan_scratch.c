/* plan_scratch.c: walks over the times of a plan, with what is free below its height. */
#include "plan_private.h"

typedef struct Walk {
    PlanItem *items;
    const Lives *lives;
    Gaps gaps; /* at the present time */
} Walk;

/* The offset of a piece that has no place yet */
#define NOWHERE SIZE_MAX

static bool lives_once(const Piece *p) { return p->first == p->last; }

/* The bytes of the piece are taken from now on, or free. false: there are too many gaps. */
static bool set_taken(Walk *w, const Piece *p, bool taken) {
    const size_t low = w->items[p->item].offset;
    return low == NOWHERE || (taken ? gaps_cover : gaps_free)(&w->gaps, low, low + p->size);
}

/* Gives the piece the highest place. false: there is none; but its own place, if it has one, is free of all others, so it never
 * moves down. */
static bool lift(Walk *w, const Piece *p) {
    size_t *offset = &w->items[p->item].offset;
    if (!set_taken(w, p, false)) return false;
    int at = w->gaps.n - 1;
    while (at >= 0 && w->gaps.gap[at].high - w->gaps.gap[at].low < p->size) at--;
    if (at < 0) return false;
    const size_t highest = gaps_take(&w->gaps, at, p->size, true);
    assert(*offset == NOWHERE || highest >= *offset);
    *offset = highest;
    return true;
}

/* At one time, pieces that ended before it are gone, then all that begin have their places, then those that live at this time only are
 * lifted. Returns whether each of these has found a place. */
static bool walk(Walk *w, size_t height) {
    const Lives *l = w->lives;
    bool found = true;
    gaps_clear(&w->gaps, height);
    for (int i = 0, ended = 0, begun; i < l->n && found; i = begun) {
        const int time = l->piece[l->by_first[i]].first;
        for (; found && l->piece[l->by_last[ended]].last < time; ended++) found = set_taken(w, &l->piece[l->by_last[ended]], false);
        for (begun = i; found && begun < l->n && l->piece[l->by_first[begun]].first == time; begun++)
            found = set_taken(w, &l->piece[l->by_first[begun]], true);
        for (int k = i; found && k < begun; k++)
            if (lives_once(&l->piece[l->by_first[k]])) found = lift(w, &l->piece[l->by_first[k]]);
    }
    return found;
}

/* All pieces above the largest gap at that time move up by so many bytes. No two share a byte then that shared none. */
static bool widen(Walk *w, int time, size_t top, size_t bytes) {
    const Lives *l = w->lives;
    const Gap *gap = w->gaps.gap;
    bool few = true;
    gaps_clear(&w->gaps, top);
    for (int i = 0; i < l->n && few; i++)
        if (l->piece[i].first <= time && time <= l->piece[i].last) few = set_taken(w, &l->piece[i], true);
    int largest = w->gaps.n - 1;
    for (int i = largest - 1; i >= 0; i--)
        if (gap[i].high - gap[i].low > gap[largest].high - gap[largest].low) largest = i;
    for (int i = 0; i < l->n && largest >= 0 && few; i++) {
        size_t *offset = &w->items[l->piece[i].item].offset;
        if (*offset != NOWHERE && *offset >= gap[largest].high) *offset += bytes;
    }
    return few;
}

bool plan_keep(PlanItem *items, const Lives *l, const Plan *before, size_t height, int peak, Scratch *s) {
    Walk w = {.items = items, .lives = l};
    for (int i = 0; i < l->n; i++) {
        const Piece *p = &l->piece[i];
        if (lives_once(p)) items[p->item].offset = NOWHERE;
        else if (items[p->item].offset + p->size > height) return false;
    }
    if (!gaps_open(&w.gaps, l->n, s)) return false;
    return (height <= before->height || widen(&w, peak, before->height, height - before->height)) && walk(&w, height);
}

void plan_lift_scratch(PlanItem *items, const Lives *l, size_t height, Scratch *s) {
    Walk w = {.items = items, .lives = l};
    if (gaps_open(&w.gaps, l->n, s)) walk(&w, height);
}
