#include <stdlib.h>
#include <string.h>

#include "plan_private.h"

/* Bounds of the last resort, improve: placements, and comparisons of two pieces (some milliseconds). */
enum { MOST_TRIES = 6000, MOST_STEPS = 8000000 };

typedef struct Planner {
    PlanItem *items;
    const Piece *piece;   /* [n] */
    int *order;           /* [n] the pieces, as they are to be placed */
    Placed placed;
    int n;
    long steps;           /* how often two pieces were compared */
    Plan plan;
    Scratch *scratch;
} Planner;

/* ---- one placement */

/* Puts the pieces in order, each at the lowest offset that is free during its life, below `limit`. Returns how many
 * fitted: n, or the place in the order of the first one that did not. */
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

/* Keeps the placement in the order if it is lower than what there is. Returns what place returns. */
static int try_order(Planner *p) {
    size_t height;
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

typedef struct Ranked { double key; int first, piece; } Ranked;

/* The largest key first; ties by first use. */
static int compare_ranked(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->piece - b->piece;
}

static void sort_order(Planner *p, Ranked *ranked, OrderKey *key) {
    for (int i = 0; i < p->n; i++) ranked[i] = (Ranked){key(&p->piece[i]), p->piece[i].first, i};
    qsort(ranked, (size_t)p->n, sizeof *ranked, compare_ranked);
    for (int i = 0; i < p->n; i++) p->order[i] = ranked[i].piece;
}

/* A piece that does not fit below the best height is placed earlier the next time: how much, a fixed sequence says. */
static void improve(Planner *p) {
    uint32_t random = 1;
    for (int tries = 0; tries < MOST_TRIES && p->steps < MOST_STEPS && p->plan.height > p->plan.lower_bound; tries++) {
        int from = try_order(p);
        if (from == p->n) continue;
        random = random * 1664525u + 1013904223u;
        int to = from ? (int)((random >> 8) % (uint32_t)from) : 0, moved = p->order[from];
        memmove(&p->order[to + 1], &p->order[to], (size_t)(from - to) * sizeof(int));
        p->order[to] = moved;
    }
}

/* ---- the search */

/* Sums over pieces in some order, as pieces leave it: Fenwick's tree. */
typedef struct Sum { size_t bytes, count; } Sum;

static void sum_change(Sum *tree, int n, int at, size_t bytes, size_t count) {
    for (int i = at + 1; i <= n; i += i & -i) {
        tree[i - 1].bytes += bytes;
        tree[i - 1].count += count;
    }
}

/* Of the first `n` in the order. */
static Sum sum_first(const Sum *tree, int n) {
    Sum sum = {0, 0};
    for (int i = n; i > 0; i -= i & -i) {
        sum.bytes += tree[i - 1].bytes;
        sum.count += tree[i - 1].count;
    }
    return sum;
}

/* A piece's place among all by their first times and by their last ones: how many are before it there (of equal ones
 * the first is meant), how many end before it begins, and how many begin before it ends. */
typedef struct Wait {
    int first, last, ended, begun;
    bool waits;
} Wait;

/* What order_by_need works with: the times in order, and the sums over the pieces that do not wait. */
typedef struct Need {
    Wait *wait;
    int *first, *last;
    Sum *by_first, *by_last;
} Need;

static int compare_ints(const void *left, const void *right) {
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

/* How many of the sorted times are below `time`. */
static int count_below(const int *sorted, int n, int time) {
    int low = 0, high = n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (sorted[middle] < time) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void change_need(const Planner *p, const Need *need, int i, bool waits) {
    size_t bytes = waits ? 0 - p->piece[i].size : p->piece[i].size, count = waits ? (size_t)-1 : 1;
    need->wait[i].waits = waits;
    sum_change(need->by_first, p->n, need->wait[i].first, bytes, count);
    sum_change(need->by_last, p->n, need->wait[i].last, bytes, count);
}

static void find_need(const Planner *p, const Need *need) {
    for (int i = 0; i < p->n; i++) {
        need->first[i] = p->piece[i].first;
        need->last[i] = p->piece[i].last;
    }
    qsort(need->first, (size_t)p->n, sizeof *need->first, compare_ints);
    qsort(need->last, (size_t)p->n, sizeof *need->last, compare_ints);
    for (int i = 0; i < p->n; i++) {
        const Piece *piece = &p->piece[i];
        need->wait[i] = (Wait){count_below(need->first, p->n, piece->first), count_below(need->last, p->n, piece->last),
                               count_below(need->last, p->n, piece->first),
                               count_below(need->first, p->n, piece->last + 1), false};
        change_need(p, need, i, false);
    }
}

/* The pieces that do not wait and are alive at some time of this one's life. */
static Sum find_around(const Planner *p, const Need *need, int i) {
    Sum begun = sum_first(need->by_first, need->wait[i].begun), ended = sum_first(need->by_last, need->wait[i].ended);
    return (Sum){begun.bytes - ended.bytes - p->piece[i].size, begun.count - ended.count - 1};
}

/* The largest number of bytes that every size is a multiple of. */
static size_t find_unit(const Planner *p) {
    size_t unit = 0;
    for (int i = 0; i < p->n; i++)
        for (size_t a = p->piece[i].size, rest; a; unit = a, a = rest) rest = unit % a;
    return unit;
}

/* Is there a place in `height` bytes, however the pieces around lie? Each of them is in the way at as many offsets as
 * both have bytes together, in units, less one. */
static bool always_fits(const Piece *piece, Sum around, size_t unit, size_t height) {
    if (piece->size > height || around.bytes > height - piece->size) return false;
    return piece->size == unit || around.count <= (height - piece->size - around.bytes) / (piece->size - unit);
}

/* Pieces that always fit can wait until the others are placed; without them others do, too. Fills the order: those
 * that cannot wait, then the others, the last to wait first. Returns how many cannot. */
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
    return front;
}

static int compare_offsets(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

/* A plan at the bound, where the search finds one for the pieces that cannot wait. */
static void search(Planner *p, Ranked *ranked) {
    size_t count = (size_t)p->n;
    Scratch *s = p->scratch;
    Need need = {scratch_new(s, count, sizeof(Wait)), scratch_new(s, count, sizeof(int)),
                 scratch_new(s, count, sizeof(int)), scratch_new(s, count, sizeof(Sum)),
                 scratch_new(s, count, sizeof(Sum))};
    PlanItem *hard = scratch_new(s, count, sizeof *hard);
    if (s->failed) return;
    int n = order_by_need(p, &need, p->plan.lower_bound);
    for (int i = 0; i < n; i++) {
        const Piece *piece = &p->piece[p->order[i]];
        hard[i] = (PlanItem){piece->size, piece->first, piece->last, 0};
    }
    bool found = plan_search(hard, n, p->plan.lower_bound, s);
    for (int i = 0; i < n; i++) ranked[i] = (Ranked){(double)hard[i].offset, 0, p->order[i]};
    qsort(ranked, (size_t)n, sizeof *ranked, compare_offsets);
    for (int i = 0; i < n; i++) p->order[i] = ranked[i].piece;
    if (found) try_order(p);
}

/* An order reaches the bound in most programs; the search that follows does in nearly all of the others. What is left
 * gets as near as improving an order does. */
static void find_plan(Planner *p, Ranked *ranked) {
    static OrderKey *const keys[] = {by_size, by_life, by_area};
    for (size_t i = 0; i < ARRAY_LEN(keys) && p->plan.height > p->plan.lower_bound; i++) {
        sort_order(p, ranked, keys[i]);
        try_order(p);
    }
    if (p->plan.height > p->plan.lower_bound) search(p, ranked);
    if (!p->scratch->failed) improve(p);
}

/* ---- the bound */

static int compare_first(const void *left, const void *right) {
    const Piece *a = left, *b = right;
    return (a->first > b->first) - (a->first < b->first);
}

static int compare_last(const void *left, const void *right) {
    const Piece *a = left, *b = right;
    return (a->last > b->last) - (a->last < b->last);
}

/* The most bytes alive are reached when some piece's life begins. begin, end: scratch, [n] each. */
static void find_bound(const Piece *piece, int n, Piece *begin, Piece *end, Plan *plan) {
    size_t live = 0, bytes = (size_t)n * sizeof *piece;
    if (n == 0) return;
    memcpy(begin, piece, bytes);
    memcpy(end, piece, bytes);
    qsort(begin, (size_t)n, sizeof *piece, compare_first);
    qsort(end, (size_t)n, sizeof *piece, compare_last);
    for (int i = 0, ended = 0; i < n; i++) {
        for (; end[ended].last < begin[i].first; ended++) live -= end[ended].size;
        live += begin[i].size;
        if (live <= plan->lower_bound) continue;
        plan->lower_bound = live;
        plan->peak_time = begin[i].first;
    }
}

/* The items that take place into piece; their bytes in a row are the height that there is without any sharing. */
static int collect(PlanItem *items, int n, Piece *piece, size_t *sum) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        items[i].offset = 0;
        if (items[i].size == 0) continue;
        if (!size_add(*sum, items[i].size, sum)) return -1;
        piece[m++] = (Piece){items[i].size, 0, items[i].first, items[i].last, i};
    }
    return m;
}

static int build(Planner *p, int n, Scratch *s, Err *e) {
    size_t count = (size_t)n, sum = 0;
    Piece *piece = scratch_new(s, count, sizeof *piece), *times = scratch_new(s, 2 * count, sizeof *times);
    Ranked *ranked = scratch_new(s, count, sizeof *ranked);
    p->order = scratch_new(s, count, sizeof *p->order);
    if (s->failed) return OK;
    p->n = collect(p->items, n, piece, &sum);
    if (p->n < 0 || sum == SIZE_MAX)
        return err_set(e, ERR_SCRIPT, "the bytes of %d tensors do not fit in size_t", n);
    if (!placed_open(&p->placed, piece, p->n, s)) return OK;
    p->piece = piece;
    p->plan.height = p->n ? sum + 1 : 0;
    find_bound(piece, p->n, times, times + p->n, &p->plan);
    find_plan(p, ranked);
    if (!s->failed) plan_lift_scratch(p->items, piece, p->n, p->plan.height, s);
    return OK;
}

int plan_build(PlanItem *items, int n, Plan *plan, Err *e) {
    Scratch s = {0};
    Planner p = {.items = items, .scratch = &s};
    int code = build(&p, n, &s, e);
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
