#include <string.h>

#include "base/sort.h"
#include "plan_private.h"

/* Bounds of improve, the last resort: placements; comparisons of two pieces (some milliseconds). */
enum { MOST_TRIES = 6000, MOST_STEPS = 8000000 };
/* Steps (a few nanoseconds each) that searches may take, for each piece: so many, and so many times the part of the bound that they
 * can gain: those near the peak, and that for all that cannot wait. */
enum { STEPS_PER_PIECE = 1500, GAIN_NEAR_PEAK = 2500000, GAIN_OF_ALL = 30000000 };
/* The same from the peak outwards: before all others, and again after those that look near the peak; counted apart, so that each has
 * what it needs. */
enum { STEPS_FIRST = 700, STEPS_AGAIN = 2000, GAIN_AGAIN = 15000000, MOST_AGAIN = 40000000 };
/* The last ways, which cost most, are for plans that are above the bound by one part of it in so many at least. */
enum { WORTH = 10000 };
/* How often a piece that lacks room in a sorted order is placed first */
enum { MOST_FIRST = 5 };
/* How often a search is made again with a piece that lacked room beside what it found */
enum { MOST_JOINED = 32 };
/* Steps at most: of a search for what lives near the peak (a few milliseconds), and of all searches */
enum { STEPS_NEAR_PEAK = 2000000, STEPS_OF_ALL = 40000000 };

typedef struct Planner {
    PlanItem *items;
    const Piece *piece;   /* [n] */
    int *by_first, *by_last; /* [n] indices of pieces, by the times at which their lives begin, and end */
    int *begin;           /* [n] the times at which they begin, sorted */
    int *begun, *ended;   /* [n] by piece: how many pieces begin before it does, and before its end or with it */
    size_t *live;         /* [n] the bytes that are alive then, of the pieces up to that one */
    Window window;        /* where go_outward goes on */
    long outward;         /* steps that it has taken */
    int *order;           /* [n] indices of pieces, in the order in which they are placed */
    Placed placed;
    int n;
    long steps;           /* comparisons of two pieces so far */
    Plan plan;            /* the lowest so far; its offsets are in the items */
    Keyed *keyed, *spare; /* [n] to sort with */
    Scratch *scratch;
} Planner;

static Lives lives_of(const Planner *p) { return (Lives){p->piece, p->by_first, p->by_last, p->n}; }

static bool is_above(const Planner *p) { return p->plan.height > p->plan.lower_bound; }

/* The part of the bound by which the best plan is above it. */
static double gain(const Planner *p) {
    return is_above(p) ? (double)(p->plan.height - p->plan.lower_bound) / (double)p->plan.lower_bound : 0;
}

static bool is_worth(const Planner *p) { return gain(p) * WORTH >= 1; }

/* The steps that searches may take: in proportion to the pieces, and many only where there is something to gain. */
static long steps_worth(const Planner *p, int per_piece, int per_gain, long most) {
    const double steps = p->n * (per_piece + per_gain * gain(p));
    return steps < (double)most ? (long)steps : most;
}

static long steps_left(const Planner *p, int per_gain) {
    return steps_worth(p, STEPS_PER_PIECE, per_gain, STEPS_OF_ALL) - p->plan.searched;
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

/* ---- the search */

/* Sums of the first pieces in some order, while pieces leave and join: a Fenwick tree. */
typedef struct Sum { size_t bytes, count; } Sum;

static void sum_change(Sum *tree, int n, int at, size_t bytes, size_t count) {
    for (int i = at + 1; i <= n; i += i & -i) {
        tree[i - 1].bytes += bytes;
        tree[i - 1].count += count;
    }
}

/* The sum of the first `n` in the order. */
static Sum sum_first(const Sum *tree, int n) {
    Sum sum = {0, 0};
    for (int i = n; i > 0; i -= i & -i) {
        sum.bytes += tree[i - 1].bytes;
        sum.count += tree[i - 1].count;
    }
    return sum;
}

/* Of all pieces, how many begin before this one begins (first), end before it ends (last), end before it begins
 * (ended), and begin before or when it ends (begun). first and last are its places in the two Fenwick trees. */
typedef struct Wait {
    int first, last, ended, begun;
    bool waits;
} Wait;

/* What order_by_need works with; arrays of n. */
typedef struct Need {
    Wait *wait;               /* by piece */
    int *last;                /* the pieces' last times, sorted */
    Sum *by_first, *by_last;  /* over the pieces that do not wait, in the order of first and of last times */
} Need;

/* The piece begins to wait, or to be needed. */
static void change_need(const Planner *p, const Need *need, int i, bool waits) {
    size_t bytes = waits ? 0 - p->piece[i].size : p->piece[i].size, count = waits ? (size_t)-1 : 1;
    need->wait[i].waits = waits;
    sum_change(need->by_first, p->n, need->wait[i].first, bytes, count);
    sum_change(need->by_last, p->n, need->wait[i].last, bytes, count);
}

static void find_need(const Planner *p, const Need *need) {
    for (int i = 0; i < p->n; i++) need->last[i] = p->piece[p->by_last[i]].last;
    for (int i = 0; i < p->n; i++) {
        const Piece *piece = &p->piece[i];
        need->wait[i] = (Wait){p->begun[i], count_before(need->last, p->n, piece->last),
                               count_before(need->last, p->n, piece->first), p->ended[i], false};
        change_need(p, need, i, false);
    }
}

/* The sum over the pieces that do not wait and share a time with this one, itself left out. */
static Sum find_around(const Planner *p, const Need *need, int i) {
    Sum begun = sum_first(need->by_first, need->wait[i].begun), ended = sum_first(need->by_last, need->wait[i].ended);
    return (Sum){begun.bytes - ended.bytes - p->piece[i].size, begun.count - ended.count - 1};
}

/* The greatest common divisor of all sizes. */
static size_t find_unit(const Planner *p) {
    size_t unit = 0;
    for (int i = 0; i < p->n; i++)
        for (size_t a = p->piece[i].size, rest; a; unit = a, a = rest) rest = unit % a;
    return unit;
}

/* Is there room for the piece in `height` bytes, wherever the pieces around it are put? Counted in units, one of them
 * excludes (its size + the piece's size - 1) offsets of the piece. */
static bool always_fits(const Piece *piece, Sum around, size_t unit, size_t height) {
    assert(unit > 0 && piece->size > 0 && piece->size % unit == 0);
    if (piece->size > height || around.bytes > height - piece->size) return false;
    return piece->size == unit || around.count <= (height - piece->size - around.bytes) / (piece->size - unit);
}

/* A piece that always fits can wait until the others are placed; once it waits, more of the others may always fit.
 * Fills the order with the pieces that cannot wait, by index, then those that wait, the last one that began to wait
 * first. Returns the number of those that cannot wait. */
static int order_by_need(Planner *p, const Need *need, size_t height) {
    size_t unit = find_unit(p);
    int front = 0, back = p->n;
    find_need(p, need);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < p->n; i++) {
            if (need->wait[i].waits || !always_fits(&p->piece[i], find_around(p, need, i), unit, height)) continue;
            more = true;
            p->order[--back] = i;
            change_need(p, need, i, true);
        }
    }
    for (int i = 0; i < p->n; i++)
        if (!need->wait[i].waits) p->order[front++] = i;
    assert(front == back);
    return front;
}

/* What a search may take: see steps_left, and steps of its own at most. */
typedef struct Effort { int per_gain; long most_steps; } Effort;

/* Searches for a plan at the lower bound of the first n pieces of the order alone, and gives them the order of its offsets: placed
 * in it, each gets a place at that offset or below. false: none is found. */
static bool search_first(Planner *p, int n, Effort effort) {
    const long left = steps_left(p, effort.per_gain);
    if (left <= 0) return false;
    PlanItem *first = scratch_new(p->scratch, (size_t)n, sizeof *first);
    if (p->scratch->failed) return false;
    for (int i = 0; i < n; i++) {
        const Piece *piece = &p->piece[p->order[i]];
        first[i] = (PlanItem){piece->size, piece->first, piece->last, 0};
    }
    const long most = effort.most_steps < left ? effort.most_steps : left;
    const bool found = plan_search(first, n, p->plan.lower_bound, most, &p->plan.searched, p->scratch);
    for (int i = 0; i < n; i++) p->keyed[i] = (Keyed){first[i].offset, p->order[i]};
    if (found) sort_keyed(p->keyed, p->spare, n);
    for (int i = 0; i < n; i++) p->order[i] = p->keyed[i].value;
    return found;
}

/* Places the first n pieces of the order as a search finds them, and the others after them. One that lacks room then is searched
 * for with the first ones the next time. */
static void place_found(Planner *p, int n, Effort effort) {
    for (int tries = 0; tries < MOST_JOINED && is_above(p) && search_first(p, n, effort); tries++) {
        const int from = try_order(p);
        if (from < p->n) move_up(p, from, n++);
    }
}

static void search_all(Planner *p) {
    if (!is_worth(p)) return;
    size_t count = (size_t)p->n;
    Scratch *s = p->scratch;
    Need need = {scratch_new(s, count, sizeof(Wait)), scratch_new(s, count, sizeof(int)),
                 scratch_new(s, count, sizeof(Sum)), scratch_new(s, count, sizeof(Sum))};
    if (s->failed) return;
    place_found(p, order_by_need(p, &need, p->plan.lower_bound), (Effort){GAIN_OF_ALL, STEPS_OF_ALL});
}

/* ---- near the peak */

/* The first places of the order get the pieces that live at a time at which more than `most` bytes do, the others follow; both
 * with the largest first. above: [n + 1] for its use. Returns how many those are. */
static int order_by_crowd(Planner *p, size_t most, int *above) {
    int n = 0, crowd = 0;
    for (int i = 0; i < p->n; i++) above[i + 1] = above[i] + (p->live[i] > most);
    for (int crowded = 1; crowded >= 0; crowded--) {
        for (int i = 0; i < p->n; i++) {
            const int piece = p->by_first[i];
            if ((above[p->ended[piece]] > above[p->begun[piece]]) == crowded) p->order[n++] = piece;
        }
        if (crowded) crowd = n;
    }
    sort_part(p, 0, crowd, by_size);
    sort_part(p, crowd, p->n - crowd, by_size);
    return crowd;
}

/* Most times of a long program are far from the peak: whatever lives then finds room. What lives near the peak is placed before
 * it: the largest first, then as a search finds it, which is quick because it is a small part. */
static void place_crowd_first(Planner *p) {
    static const size_t shares[] = {32, 8, 3}; /* near: within the bound's 32nd, eighth, third part */
    int *above = is_above(p) ? scratch_new(p->scratch, (size_t)p->n + 1, sizeof *above) : NULL;
    if (!above) return;
    for (size_t i = 0; i < ARRAY_LEN(shares) && is_above(p); i++) {
        const int crowd = order_by_crowd(p, p->plan.lower_bound - p->plan.lower_bound / shares[i], above);
        try_order(p);
        place_found(p, crowd, (Effort){GAIN_NEAR_PEAK, STEPS_NEAR_PEAK});
    }
}

/* ---- from the peak outwards */

static void go_outward(Planner *p, long most_steps) {
    const Lives lives = lives_of(p);
    if (is_above(p) && plan_outward(p->items, &lives, p->plan.lower_bound, &p->window, most_steps, &p->outward, p->scratch))
        p->plan.height = p->plan.lower_bound;
}

/* ---- all ways */

/* Fills in what orders need: begin, begun, ended, live, and memory for them. false: out of host memory. */
static bool open_orders(Planner *p) {
    const size_t count = (size_t)p->n;
    Scratch *s = p->scratch;
    p->begin = scratch_new(s, count, sizeof *p->begin);
    p->begun = scratch_new(s, count, sizeof *p->begun);
    p->ended = scratch_new(s, count, sizeof *p->ended);
    p->live = scratch_new(s, count, sizeof *p->live);
    p->order = scratch_new(s, count, sizeof *p->order);
    if (s->failed || !placed_open(&p->placed, p->piece, p->n, s)) return false;
    size_t live = 0;
    for (int i = 0, ended = 0; i < p->n; i++) {
        const int piece = p->by_first[i];
        p->begin[i] = p->piece[piece].first;
        p->begun[piece] = i > 0 && p->begin[i - 1] == p->begin[i] ? p->begun[p->by_first[i - 1]] : i;
        for (; p->piece[p->by_last[ended]].last < p->begin[i]; ended++) live -= p->piece[p->by_last[ended]].size;
        p->live[i] = live += p->piece[piece].size;
    }
    for (int i = 0, n = 0; i < p->n; i++) {
        const int piece = p->by_last[i];
        while (n < p->n && p->begin[n] <= p->piece[piece].last) n++;
        p->ended[piece] = n;
    }
    return true;
}

/* Each way does something only where those before it have not reached the lower bound, and costs more than they do. In nearly all
 * programs the first one does, which takes a tenth of the time of a placement in any order. */
static void find_plan(Planner *p) {
    static OrderKey *const keys[] = {by_size, by_life, by_area};
    go_outward(p, steps_worth(p, STEPS_FIRST, 0, MOST_AGAIN));
    if (!is_above(p) || !open_orders(p)) return;
    try_key(p, by_size);
    place_crowd_first(p);
    go_outward(p, steps_worth(p, STEPS_AGAIN, GAIN_AGAIN, MOST_AGAIN));
    if (!is_worth(p)) return;
    try_key(p, by_life);
    try_key(p, by_area);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) try_key_first(p, keys[i]);
    search_all(p);
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

/* Begins from an earlier plan. Where scratch has grown at the peak, as much more is needed as the bound says; how far the plan was above it counts only where
 * a search would end as well. false: that is not enough, and the offsets are no plan. */
static bool keep(Planner *p, const Plan *before) {
    Plan *plan = &p->plan;
    const size_t above = before->height - before->lower_bound, height = plan->lower_bound + above;
    const Lives lives = lives_of(p);
    if (above * WORTH >= before->lower_bound || !plan_keep(p->items, &lives, before, height, plan->peak_time, p->scratch)) return false;
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
    if (s->failed) return OK;
    p->n = collect(p->items, n, piece, &sum);
    if (p->n < 0 || sum == SIZE_MAX)
        return err_set(e, ERR_SCRIPT, "the bytes of %d tensors do not fit in size_t", n);
    if (!p->n) return OK;
    p->piece = piece;
    p->plan.height = sum + 1; /* one more than without any sharing: the first order is always lower */
    find_bound(p);
    if (before && keep(p, before)) return OK;
    find_plan(p);
    const Lives lives = lives_of(p);
    if (!s->failed) plan_lift_scratch(p->items, &lives, p->plan.height, s);
    return OK;
}

int plan_build(PlanItem *items, int n, const Plan *before, Plan *plan, Err *e) {
    Scratch s = {0};
    Planner p = {.items = items, .scratch = &s};
    int code = build(&p, n, before, &s, e);
    if (s.failed) code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a plan of %d items", n);
    scratch_release(&s, NULL);
    p.plan.searched += p.outward;
    if (!code) *plan = p.plan;
    return code;
}
