/* plan_private.h: what plan.c (orders, bound), plan_place.c (one placement), plan_search.c and plan_scratch.c share. */
#ifndef MT_PLAN_PRIVATE_H
#define MT_PLAN_PRIVATE_H

#include "plan.h"

/* An item with a size, and where it is put. */
typedef struct Piece {
    size_t size, offset;
    int first, last, item; /* item: its index among the PlanItems */
} Piece;

/* How many of the sorted times are below `time`. */
static inline int count_before(const int *sorted, int n, int time) {
    int low = 0, high = n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (sorted[middle] < time) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ---- pieces that are placed, sorted by offset, and at the same offset by first time */

/* Consecutive pieces, and what lets a search pass all of them at once. */
typedef struct Extent {
    size_t low, top;       /* the offsets of the first piece and of the last one */
    size_t high, gap;      /* the highest end of a piece; the largest gap between them that none of them covers */
    int first[2], last[2]; /* the least and the greatest of their first times, and of their last times */
    int n;                 /* pieces */
} Extent;

/* Below `offset` there is no room for a piece of `size` bytes or more that lives at least from `first` to `last`. */
typedef struct Hint { size_t size, offset; int first, last; } Hint;

enum { EXTENT_LEVELS = 4, HINTS = 64 };
typedef struct Placed {
    Piece *piece;
    int *block;            /* by place of a run of pieces: they are stored from piece[block * room] on */
    int *used;             /* by group of runs: how many of its places have a run, from its first on */
    int room;              /* the most pieces of a run */
    Extent *level[EXTENT_LEVELS]; /* level 0: one per place of a run, n = 0 without one; above: one per group of the level below */
    int count[EXTENT_LEVELS];     /* extents of each level */
    int runs, most_runs, most_groups; /* runs so far; the most runs, and groups of them, that there is memory for */
    Hint hint[HINTS];      /* by a hash of life and size: from the last piece like that */
    size_t *ended, *begun; /* [times] the lowest offset of a piece whose life ends, or begins, at that time */
    int times;             /* 0: there are no hints */
} Placed;

/* Prepares for the n pieces, with memory from s. false: out of host memory. */
bool placed_open(Placed *p, const Piece *piece, int n, Scratch *s);
/* Takes all pieces out again; before the first placed_put, too. */
void placed_clear(Placed *p);
/* Puts the piece at the lowest offset that is free during its life, and sets its offset. false: there it would end
 * above `limit`, so it is not put. *steps grows by the number of pieces up to that place, as if each had been looked
 * at. */
bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps);

/* The pieces of a run, by offset. There are p->count[0] places, each with a run of p->level[0][run].n pieces. */
Piece *placed_run(const Placed *p, int run);

/* ---- gaps */

typedef struct Gap { size_t low, high; } Gap; /* free bytes */
typedef struct Gaps { Gap *gap; int n, most; } Gaps; /* by offset, no two of them side by side; so many at most */

/* For so many pieces, with memory from s. false: out of host memory. */
bool gaps_open(Gaps *g, int pieces, Scratch *s);
/* All below the height is free. */
void gaps_clear(Gaps *g, size_t height);
/* Takes `size` bytes from an end of the gap, which has them. Returns their offset. */
size_t gaps_take(Gaps *g, int at, size_t size, bool high);
/* The bytes are no longer free, or free again. They are in one gap, or in none. false: there are too many gaps. */
bool gaps_cover(Gaps *g, size_t low, size_t high);
bool gaps_free(Gaps *g, size_t low, size_t high);

/* ---- from the peak outwards */

/* Pieces, and their numbers by the times at which their lives begin, and end. */
typedef struct Lives { const Piece *piece; const int *by_first, *by_last; int n; } Lives;
typedef struct Window { int first, last; } Window; /* times, both in it */

/* Searches for offsets of all pieces within `height` bytes, from what lives in the window outwards: first the time at which the most
 * bytes are alive; it grows as far as need be. Ends where most_steps, of a search too, do not take it farther; from there it may go on
 * later. true: the offsets are filled in. false: it has found none or s has failed; the items are as they were. */
bool plan_outward(PlanItem *items, const Lives *l, size_t height, Window *window, long most_steps, long *steps, Scratch *s);

/* ---- scratch */

/* Moves the items that live at one time only up as far as there is room below `height`, so that an op's scratch is
 * where the scratch of the op before was, which is still in the cache. l: of the items with a size; items: a plan of that height, and
 * still one afterwards. Where s has failed, or there are too many gaps, nothing more is moved. */
void plan_lift_scratch(PlanItem *items, const Lives *l, size_t height, Scratch *s);
/* Gives those items such places, wherever they were; the others stay, or move up where `height` leaves room above before->height,
 * so that there is more at the time `peak`. false: one finds no room, or another one lies above `height`, and the items are no plan; or
 * s has failed. */
bool plan_keep(PlanItem *items, const Lives *l, const Plan *before, size_t height, int peak, Scratch *s);

#endif
