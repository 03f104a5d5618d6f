#include <string.h>

#include "base/sort.h"
#include "plan_private.h"

/* Bounds of improve, the last resort: placements; comparisons of two pieces (some milliseconds). */
enum { MOST_TRIES = 6000, MOST_STEPS = 8000000 };
/* Steps (a few nanoseconds each) that searches may take, for each piece: so many, and so many times the part of the bound that they
 * can gain: those near the peak, and that for all that cannot wait. */
enum { STEPS_PER_PIECE = 1500, GAIN_OF_ALL = 30000000 };
/* The last ways, which cost most, are for plans that are above the bound by one part of it in so many at least. */
enum { WORTH = 10000 };
/* How often a piece that lacks room in a sorted order is placed first */
enum { MOST_FIRST = 5 };
/* Steps of all searches at most */
enum { STEPS_OF_ALL = 100000000 };

typedef struct Planner {
    PlanItem *items;
    const Piece *piece;   /* [n] */
    int *by_first, *by_last; /* [n] indices of pieces, by the times at which their lives begin, and end */
    Window window;        /* the last one that go_outward has tried */
    int *order;           /* [n] indices of pieces, in the order in which they are placed */
    Placed placed;
    int n;
    long steps;           /* comparisons of two pieces so far */
    Plan plan;            /* the lowest so far; its offsets are in the items */
    Keyed *keyed, *spare; /* [n] to sort with */
    Scratch *scratch;
} Planner;

static bool is_above(const Planner *p) { return p->plan.height > p->plan.lower_bound; }

/* The part of the bound by which the best plan is above it. */
static double gain(const Planner *p) {
    return is_above(p) ? (double)(p->plan.height - p->plan.lower_bound) / (double)p->plan.lower_bound : 0;
}

static bool is_worth(const Planner *p) { return gain(p) * WORTH >= 1; }

/* The steps that searches may still take: in proportion to the pieces, and many only where there is something to gain. */
static long steps_left(const Planner *p, int per_gain) {
    const double most = p->n * (STEPS_PER_PIECE + per_gain * gain(p));
    return (long)(most < STEPS_OF_ALL ? most : STEPS_OF_ALL) - p->plan.searched;
}

/* ---- one placement */

/* Places the pieces in order, each at the lowest offset that is free during its life, none above `limit`. Returns how
 * many fitted: n, or the index in the order of the first piece that did not. */
static int place(Planner *p, size_t limit, size_t *height) {
    *height = 0;
    placed_clear(&p->placed);
    for (int n = 0; n < p->n; n++) {
        Piece piece = p->piece[p->order[n]];
        if (!placed_put(&p->placed, &piece, limit, &p->steps)) return n;
        *height = max_size(*height, piece.offset + piece.size);
    }
    return p->n;
}

/* Places the pieces in the order, and keeps the placement if it is lower than the best one. Returns what place does. */
static int try_order(Planner *p) {
    size_t height;
    assert(p->plan.height > 0);
    int fitted = place(p, p->plan.height - 1, &height);
    if (fitted < p->n) return fitted;
    p->plan.height = height;
    const Placed *placed = &p->placed;
    for (int run = 0; run < placed->count[0]; run++)
        for (int i = 0; i < placed->level[0][run].n; i++) {
            const Piece *piece = &placed_run(placed, run)[i];
            p->items[piece->item].offset = piece->offset;
        }
    return fitted;
}

/* ---- orders */

typedef double OrderKey(const Piece *);
static double by_size(const Piece *p) { return (double)p->size; }
static double by_life(const Piece *p) { return (double)p->last - p->first; }
static double by_area(const Piece *p) { return (double)p->size * (by_life(p) + 1); }

/* Sorts the n places of the order from `from` on, the largest key first. */
static void sort_part(Planner *p, int from, int n, OrderKey *key) {
    int *order = &p->order[from];
    for (int i = 0; i < n; i++) p->keyed[i] = (Keyed){key_falling(key(&p->piece[order[i]])), order[i]};
    sort_keyed(p->keyed, p->spare, n);
    for (int i = 0; i < n; i++) order[i] = p->keyed[i].value;
}

/* Sorts all pieces by the key; of equal keys the earlier first use is first. */
static void sort_order(Planner *p, OrderKey *key) {
    memcpy(p->order, p->by_first, (size_t)p->n * sizeof *p->order);
    sort_part(p, 0, p->n, key);
}

/* Place `from` of the order gets the place `to` before it. */
static void move_up(Planner *p, int from, int to) {
    const int moved = p->order[from];
    memmove(&p->order[to + 1], &p->order[to], (size_t)(from - to) * sizeof(int));
    p->order[to] = moved;
}

/* Tries the order of a key. */
static void try_key(Planner *p, OrderKey *key) {
    if (!is_above(p)) return;
    sort_order(p, key);
    try_order(p);
}

/* A few pieces of another size than most, which live long, may be all that lacks room in an order: placed first, they move all
 * others by their size. */
static void try_key_first(Planner *p, OrderKey *key) {
    if (!is_worth(p)) return;
    sort_order(p, key);
    for (int tries = 0; tries <= MOST_FIRST && is_worth(p); tries++) {
        const int from = try_order(p);
        if (from < p->n) move_up(p, from, 0);
    }
}

/* Tries orders: a piece that did not fit below the best height is placed earlier the next time; a fixed sequence of
 * random numbers says how much earlier. */
static void improve(Planner *p) {
    uint32_t random = 1;
    for (int tries = 0; tries < MOST_TRIES && p->steps < MOST_STEPS && is_worth(p); tries++) {
        int from = try_order(p);
        if (from == p->n) continue;
        random = random * 1664525u + 1013904223u;
        move_up(p, from, from ? (int)((random >> 8) % (uint32_t)from) : 0);
    }
}

/* From the peak outwards, with as many steps as they may take. */
static void go_outward(Planner *p, int per_gain) {
    const Lives lives = {p->piece, p->by_first, p->by_last, p->n};
    if (!is_above(p)) return;
    if (plan_outward(p->items, &lives, p->plan.lower_bound, &p->window, steps_left(p, per_gain), &p->plan.searched, p->scratch))
        p->plan.height = p->plan.lower_bound;
}

/* Each way does something only where those before it have not reached the lower bound, and costs more than they do. In nearly all
 * programs the first one does. */
static void find_plan(Planner *p) {
    static OrderKey *const keys[] = {by_size, by_life, by_area};
    go_outward(p, 0);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) try_key(p, keys[i]);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) try_key_first(p, keys[i]);
    if (!is_worth(p)) return;
    go_outward(p, GAIN_OF_ALL);
    if (!p->scratch->failed) improve(p);
}

/* ---- the bound */

static int first_of(const Piece *p) { return p->first; }
static int last_of(const Piece *p) { return p->last; }

/* by[n]: the pieces by a time of theirs */
static void sort_by_time(Planner *p, int (*time)(const Piece *), int *by) {
    for (int i = 0; i < p->n; i++) p->keyed[i] = (Keyed){key_of_int(time(&p->piece[i])), i};
    sort_keyed(p->keyed, p->spare, p->n);
    for (int i = 0; i < p->n; i++) by[i] = p->keyed[i].value;
}

/* Fills in by_first, by_last and the lower bound. The most bytes are alive at a time when a piece's life begins. */
static void find_bound(Planner *p) {
    Plan *plan = &p->plan;
    size_t live = 0;
    sort_by_time(p, first_of, p->by_first);
    sort_by_time(p, last_of, p->by_last);
    for (int i = 0, ended = 0; i < p->n; i++) {
        const Piece *begins = &p->piece[p->by_first[i]];
        for (; p->piece[p->by_last[ended]].last < begins->first; ended++) live -= p->piece[p->by_last[ended]].size;
        live += begins->size;
        if (live <= plan->lower_bound) continue;
        plan->lower_bound = live;
        plan->peak_time = begins->first;
    }
    p->window = (Window){plan->peak_time, plan->peak_time};
}

/* Fills `piece` with the items that have a size. *sum grows by their bytes. Returns their number; -1: *sum
 * overflowed. */
static int collect(PlanItem *items, int n, Piece *piece, size_t *sum) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        assert(items[i].first <= items[i].last);
        if (items[i].size == 0) {
            items[i].offset = 0;
            continue;
        }
        if (!size_add(*sum, items[i].size, sum)) return -1;
        piece[m++] = (Piece){items[i].size, 0, items[i].first, items[i].last, i};
    }
    return m;
}

/* Begins from an earlier plan. What has grown needs as much more as the bound does; how far the plan was above it counts only where
 * a search would end as well. false: that is not enough, and the offsets are no plan. */
static bool keep(Planner *p, const Plan *before) {
    Plan *plan = &p->plan;
    const size_t above = before->height - before->lower_bound, height = plan->lower_bound + above;
    if (above * WORTH >= before->lower_bound || !plan_keep(p->items, p->piece, p->n, before, height, plan->peak_time, p->scratch)) return false;
    plan->height = 0;
    for (int i = 0; i < p->n; i++) plan->height = max_size(plan->height, p->items[p->piece[i].item].offset + p->piece[i].size);
    return true;
}

static int build(Planner *p, int n, const Plan *before, Scratch *s, Err *e) {
    size_t count = (size_t)n, sum = 0;
    Piece *piece = scratch_new(s, count, sizeof *piece);
    p->keyed = scratch_new(s, count, sizeof *p->keyed);
    p->spare = scratch_new(s, count, sizeof *p->spare);
    p->by_first = scratch_new(s, count, sizeof *p->by_first);
    p->by_last = scratch_new(s, count, sizeof *p->by_last);
    p->order = scratch_new(s, count, sizeof *p->order);
    if (s->failed) return OK;
    p->n = collect(p->items, n, piece, &sum);
    if (p->n < 0 || sum == SIZE_MAX)
        return err_set(e, ERR_SCRIPT, "the bytes of %d tensors do not fit in size_t", n);
    if (!placed_open(&p->placed, piece, p->n, s)) return OK;
    p->piece = piece;
    p->plan.height = p->n ? sum + 1 : 0; /* one more than without any sharing: the first order is always lower */
    find_bound(p);
    if (before && keep(p, before)) return OK;
    find_plan(p);
    if (!s->failed) plan_lift_scratch(p->items, piece, p->n, p->plan.height, s);
    return OK;
}

int plan_build(PlanItem *items, int n, const Plan *before, Plan *plan, Err *e) {
    Scratch s = {0};
    Planner p = {.items = items, .scratch = &s};
    int code = build(&p, n, before, &s, e);
    if (s.failed) code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a plan of %d items", n);
    scratch_release(&s, NULL);
    if (!code) *plan = p.plan;
    return code;
}

int plan_check(const PlanItem *items, int n, const Plan *plan, Err *e) {
    for (int i = 0; i < n; i++) {
        const PlanItem *a = &items[i];
        if (a->size > plan->height || a->offset > plan->height - a->size)
            return err_set(e, ERR_INTERNAL, "plan: expected item %d inside %zu bytes, found %zu bytes at %zu", i,
                           plan->height, a->size, a->offset);
        for (int k = 0; k < i; k++) {
            const PlanItem *b = &items[k];
            bool at_once = a->first <= b->last && b->first <= a->last;
            if (at_once && a->offset < b->offset + b->size && b->offset < a->offset + a->size)
                return err_set(e, ERR_INTERNAL,
                               "plan: items %d and %d overlap: %zu bytes at %zu in [%d, %d], %zu at %zu in [%d, %d]", k,
                               i, b->size, b->offset, b->first, b->last, a->size, a->offset, a->first, a->last);
        }
    }
    return OK;
}
