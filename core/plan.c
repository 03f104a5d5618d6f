#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Bounds of the last resort, improve: placements, and comparisons of two pieces (some milliseconds). */
enum { MOST_TRIES = 6000, MOST_STEPS = 8000000 };

/* An item that takes place; while it is placed, the list of those is kept by offset. */
typedef struct Piece {
    size_t size, offset;
    int first, last, item;
} Piece;

typedef struct Planner {
    PlanItem *items;
    const Piece *piece;   /* [n] */
    int *order;           /* [n] the pieces, as they are to be placed */
    Piece *placed;        /* [n] by offset */
    int n;
    long steps;           /* how often two pieces were compared */
    Plan plan;
} Planner;

/* ---- one placement */

/* Puts the pieces in order, each at the lowest offset that is free during its life, below `limit`. Returns how many
 * fitted: n, or the place in the order of the first one that did not. */
static int place(Planner *p, size_t limit, size_t *height) {
    *height = 0;
    for (int n = 0; n < p->n; n++) {
        Piece piece = p->piece[p->order[n]];
        int at = 0;
        for (; at < n; at++) {
            const Piece *other = &p->placed[at];
            if (other->offset >= piece.offset + piece.size) break;
            size_t end = other->offset + other->size;
            if (other->first <= piece.last && piece.first <= other->last && end > piece.offset) piece.offset = end;
        }
        p->steps += at + 1;
        if (piece.offset + piece.size > limit) return n;
        while (at > 0 && p->placed[at - 1].offset > piece.offset) at--;
        memmove(&p->placed[at + 1], &p->placed[at], (size_t)(n - at) * sizeof piece);
        p->placed[at] = piece;
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
    for (int i = 0; i < p->n; i++) p->items[p->placed[i].item].offset = p->placed[i].offset;
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

typedef struct Wait {
    size_t around; /* bytes of the pieces that are alive at some time of this one's life */
    size_t count;  /* of them */
    bool waits;
} Wait;

static bool share_time(const Piece *a, const Piece *b) { return a->first <= b->last && b->first <= a->last; }

/* The largest number of bytes that every size is a multiple of. */
static size_t find_unit(const Planner *p) {
    size_t unit = 0;
    for (int i = 0; i < p->n; i++)
        for (size_t a = p->piece[i].size, rest; a; unit = a, a = rest) rest = unit % a;
    return unit;
}

/* Is there a place in `height` bytes, however the pieces around lie? Each of them is in the way at as many offsets as
 * both have bytes together, in units, less one. */
static bool always_fits(const Piece *piece, const Wait *w, size_t unit, size_t height) {
    if (piece->size > height || w->around > height - piece->size) return false;
    return piece->size == unit || w->count <= (height - piece->size - w->around) / (piece->size - unit);
}

/* Pieces that always fit can wait until the others are placed; without them others do, too. Fills the order: those
 * that cannot wait, then the others, the last to wait first. Returns how many cannot. */
static int order_by_need(Planner *p, Wait *wait, size_t height) {
    size_t unit = find_unit(p);
    int front = 0, back = p->n;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->n; k++) {
            bool around = k != i && share_time(&p->piece[i], &p->piece[k]);
            wait[i].around += around ? p->piece[k].size : 0;
            wait[i].count += around;
        }
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < p->n; i++) {
            if (wait[i].waits || !always_fits(&p->piece[i], &wait[i], unit, height)) continue;
            more = wait[i].waits = true;
            p->order[--back] = i;
            for (int k = 0; k < p->n; k++) {
                if (!share_time(&p->piece[i], &p->piece[k]) || k == i) continue;
                wait[k].around -= p->piece[i].size;
                wait[k].count--;
            }
        }
    }
    for (int i = 0; i < p->n; i++)
        if (!wait[i].waits) p->order[front++] = i;
    return front;
}

static int compare_offsets(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

/* A plan at the bound, where the search finds one for the pieces that cannot wait. */
static int search(Planner *p, Ranked *ranked, Err *e) {
    Wait *wait = mem_new((size_t)p->n * sizeof *wait);
    PlanItem *hard = mem_new((size_t)p->n * sizeof *hard);
    int code = OK;
    bool found = false;
    if (wait && hard) {
        int n = order_by_need(p, wait, p->plan.lower_bound);
        for (int i = 0; i < n; i++) {
            const Piece *piece = &p->piece[p->order[i]];
            hard[i] = (PlanItem){piece->size, piece->first, piece->last, 0};
        }
        code = plan_search(hard, n, p->plan.lower_bound, &found, e);
        for (int i = 0; i < n; i++) ranked[i] = (Ranked){(double)hard[i].offset, 0, p->order[i]};
        qsort(ranked, (size_t)n, sizeof *ranked, compare_offsets);
        for (int i = 0; i < n; i++) p->order[i] = ranked[i].piece;
        if (found) try_order(p);
    } else {
        code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a plan of %d items", p->n);
    }
    mem_free(wait);
    mem_free(hard);
    return code;
}

/* An order reaches the bound in most programs; the search that follows does in nearly all of the others. What is left
 * gets as near as improving an order does. */
static int find_plan(Planner *p, Ranked *ranked, Err *e) {
    static OrderKey *const keys[] = {by_size, by_life, by_area};
    for (size_t i = 0; i < ARRAY_LEN(keys) && p->plan.height > p->plan.lower_bound; i++) {
        sort_order(p, ranked, keys[i]);
        try_order(p);
    }
    int code = p->plan.height > p->plan.lower_bound ? search(p, ranked, e) : OK;
    if (!code) improve(p);
    return code;
}

/* ---- the bound */

/* The most bytes alive are reached when some piece's life begins. */
static void find_bound(const Piece *piece, int n, Plan *plan) {
    for (int i = 0; i < n; i++) {
        size_t live = 0;
        int time = piece[i].first;
        for (int k = 0; k < n; k++) live += piece[k].first <= time && time <= piece[k].last ? piece[k].size : 0;
        if (live < plan->lower_bound || (live == plan->lower_bound && time >= plan->peak_time)) continue;
        plan->lower_bound = live;
        plan->peak_time = time;
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

/* ---- scratch */

/* Pieces that one op alone uses go up as far as there is room, so that its scratch lies where the last op's did, in the
 * cache. A placement in order of lives puts them on top of whatever lives then: each on memory of its own. */
static void lift_scratch(PlanItem *items, const Piece *piece, int n, size_t height) {
    for (int i = 0; i < n; i++) {
        PlanItem *a = &items[piece[i].item];
        if (a->last > a->first) continue;
        size_t at = height - a->size;
        for (int k = 0; k < n; k++) {
            const PlanItem *b = &items[piece[k].item];
            if (k == i || b->first > a->last || a->first > b->last) continue;
            if (b->offset >= at + a->size || at >= b->offset + b->size) continue;
            at = b->offset - a->size; /* never below where the piece lies, which is clear of all others */
            k = -1;
        }
        a->offset = at;
    }
}

int plan_build(PlanItem *items, int n, Plan *plan, Err *e) {
    size_t count = (size_t)n, sum = 0;
    Piece *piece = mem_new(count * sizeof *piece), *placed = mem_new(count * sizeof *placed);
    int *order = mem_new(count * sizeof *order), m = 0, code = OK;
    Ranked *ranked = mem_new(count * sizeof *ranked);
    if (!piece || !placed || !order || !ranked)
        code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a plan of %d items", n);
    if (!code && ((m = collect(items, n, piece, &sum)) < 0 || sum == SIZE_MAX))
        code = err_set(e, ERR_SCRIPT, "the bytes of %d tensors do not fit in size_t", n);
    if (!code) {
        Planner p = {items, piece, order, placed, m, 0, {m ? sum + 1 : 0, 0, 0}};
        find_bound(piece, m, &p.plan);
        code = find_plan(&p, ranked, e);
        if (!code) lift_scratch(items, piece, m, p.plan.height);
        *plan = p.plan;
    }
    void *const all[] = {piece, placed, order, ranked};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) mem_free(all[i]);
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
