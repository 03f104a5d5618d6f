/* plan_private.h: what plan.c (orders, bound), plan_place.c (one placement) and plan_scratch.c share. */
#ifndef MT_PLAN_PRIVATE_H
#define MT_PLAN_PRIVATE_H

#include "plan.h"

/* An item that takes place. */
typedef struct Piece {
    size_t size, offset;
    int first, last, item;
} Piece;

/* ---- pieces that are placed, by offset */

/* A run of pieces that follow each other by offset, and what lets a search pass it as a whole. */
typedef struct Run {
    size_t low, high;  /* the first piece's offset; where the last of them ends */
    size_t gap;        /* the most bytes between what ends lower and the next piece, none of them free for longer */
    int first[2], last[2]; /* least and most of their first times, and of their last ones */
    int n, at;         /* pieces; where they lie: piece[at * room] and on */
} Run;

typedef struct Placed {
    Piece *piece;
    Run *run;
    int n_runs, room;  /* room: the most pieces of a run */
} Placed;

/* For n pieces; false: no host memory. Either way placed_close. */
bool placed_open(Placed *p, int n);
void placed_close(Placed *p);
void placed_clear(Placed *p);
/* Puts the piece at the lowest offset that is free during its life, below `limit`, and sets its offset. *steps grows by
 * the number of pieces that lie there up to the place, as if each was looked at. false: it does not fit. */
bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps);

/* ---- scratch */

/* Pieces that one time alone uses go up as far as there is room below `height`, so that its scratch lies where the last
 * op's did, in the cache: the items' offsets, which are a plan, change. false: no host memory. */
bool plan_lift_scratch(PlanItem *items, const Piece *piece, int n, size_t height);

#endif
