/* plan_private.h: what plan.c (orders, bound), plan_place.c (one placement) and plan_scratch.c share. */
#ifndef MT_PLAN_PRIVATE_H
#define MT_PLAN_PRIVATE_H

#include "plan.h"

/* An item that takes place. */
typedef struct Piece {
    size_t size, offset;
    int first, last, item;
} Piece;

/* ---- pieces that are placed, by offset, and at the same offset by time */

/* Pieces that follow each other, and what lets a search pass all of them at once. */
typedef struct Extent {
    size_t low, top;       /* the first piece's offset, and the last one's */
    size_t high, gap;      /* where the last of them ends; the most bytes that none of them has between two of them */
    int first[2], last[2]; /* least and most of their first times, and of their last ones */
    int n;                 /* pieces */
} Extent;

/* No piece of this size or more that lives at least from `first` to `last` fits below `offset`. */
typedef struct Hint { size_t size, offset; int first, last; } Hint;

enum { EXTENT_LEVELS = 4, HINTS = 64 };
typedef struct Placed {
    Piece *piece;
    int *block;            /* by run of pieces: where they lie: piece[block * room] and on */
    int room;              /* the most pieces of a run */
    Extent *level[EXTENT_LEVELS]; /* of each run; on each level above, of some that follow each other below */
    int count[EXTENT_LEVELS];
    Hint hint[HINTS];      /* of the last piece of about this life and this size */
    size_t *ended, *begun; /* by time: the lowest offset of a piece whose life ends or begins there */
    int times;
} Placed;

/* For these pieces; s lends it memory. false: there is none. */
bool placed_open(Placed *p, const Piece *piece, int n, Scratch *s);
void placed_clear(Placed *p);
/* Puts the piece at the lowest offset that is free during its life, below `limit`, and sets its offset. *steps grows by
 * the number of pieces that lie there up to the place, as if each was looked at. false: it does not fit. */
bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps);

/* The pieces of a run, by offset: there are p->count[0] runs, of p->level[0][run].n pieces. */
Piece *placed_run(const Placed *p, int run);

/* ---- scratch */

/* Pieces that one time alone uses go up as far as there is room below `height`, so that its scratch lies where the last
 * op's did, in the cache: the items' offsets, which are a plan, change; they do not where s has failed. */
void plan_lift_scratch(PlanItem *items, const Piece *piece, int n, size_t height, Scratch *s);

#endif
