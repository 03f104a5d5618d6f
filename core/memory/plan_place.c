/* First fit of n pieces without a look at every pair of them: the pieces lie in runs, runs in groups, groups in larger
 * ones, and a search passes one of these as a whole where all of its pieces are in the way, or none of them is. And it
 * begins where the search for the last piece like this one ended, if no more has become free below since: layers that
 * are alike follow each other. */
#include <string.h>

#include "plan_private.h"

/* Pieces in a run at least; runs below which runs stay that small; what a group has of the next lower level. */
enum { LEAST_ROOM = 32, MANY_RUNS = 2048, FAN = 16 };
/* Times that a hint is carried over; times for each piece above which there are no hints. */
enum { FAR = 256, SPARSE = 8 };

/* How many times there are, from 0 on; 0: too many to keep something of each. */
static int count_times(const Piece *piece, int n) {
    int times = 0;
    for (int i = 0; i < n; i++) {
        if (piece[i].first < 0 || piece[i].last / SPARSE > n) return 0;
        if (piece[i].last >= times) times = piece[i].last + 1;
    }
    return times;
}

bool placed_open(Placed *p, const Piece *piece, int n, Scratch *s) {
    *p = (Placed){.room = LEAST_ROOM, .times = count_times(piece, n)};
    while (p->room < n / MANY_RUNS) p->room *= 2;
    size_t runs = 2 * (size_t)(n / p->room) + 2; /* all but the first are at least half full */
    p->piece = scratch_new(s, runs * (size_t)p->room, sizeof *p->piece);
    p->block = scratch_new(s, runs, sizeof *p->block);
    for (int k = 0; k < EXTENT_LEVELS; k++, runs = runs / FAN + 1) p->level[k] = scratch_new(s, runs, sizeof(Extent));
    p->ended = scratch_new(s, (size_t)p->times, sizeof *p->ended);
    p->begun = scratch_new(s, (size_t)p->times, sizeof *p->begun);
    return !s->failed;
}

void placed_clear(Placed *p) {
    memset(p->count, 0, sizeof p->count);
    memset(p->hint, 0, sizeof p->hint);
    for (int t = 0; t < p->times; t++) p->ended[t] = p->begun[t] = SIZE_MAX;
}

Piece *placed_run(const Placed *p, int run) { return &p->piece[(size_t)p->block[run] * (size_t)p->room]; }

static bool at_once(const Piece *a, const Piece *b) { return a->first <= b->last && b->first <= a->last; }

/* ---- extents */

static Extent extent_of(const Piece *q) {
    return (Extent){q->offset, q->offset, q->offset + q->size, 0, {q->first, q->first}, {q->last, q->last}, 1};
}

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

static void append(Extent *e, const Extent *next) {
    e->gap = max_size(e->gap, max_size(next->gap, next->low > e->high ? next->low - e->high : 0));
    e->top = next->top;
    e->high = max_size(e->high, next->high);
    e->first[0] = least(e->first[0], next->first[0]);
    e->first[1] = most(e->first[1], next->first[1]);
    e->last[0] = least(e->last[0], next->last[0]);
    e->last[1] = most(e->last[1], next->last[1]);
    e->n += next->n;
}

static void sum_up_run(Placed *p, int run) {
    const Piece *piece = placed_run(p, run);
    Extent *e = &p->level[0][run], all = extent_of(piece);
    for (int i = 1; i < e->n; i++) {
        Extent next = extent_of(&piece[i]);
        append(&all, &next);
    }
    *e = all;
}

/* The groups above the runs from this one on; only its own: no run has moved. */
static void sum_up_groups(Placed *p, int run, bool only) {
    for (int k = 1; k < EXTENT_LEVELS; k++) {
        const Extent *below = p->level[k - 1];
        int n = p->count[k - 1], end = (n + FAN - 1) / FAN;
        run /= FAN;
        p->count[k] = end;
        for (int i = run; i < (only ? run + 1 : end); i++) {
            p->level[k][i] = below[i * FAN];
            for (int j = i * FAN + 1; j < least(n, (i + 1) * FAN); j++) append(&p->level[k][i], &below[j]);
        }
    }
}

/* ---- the search */

/* Passes all of it, if the search does not end in it and nothing in it must be looked at. */
static bool pass(const Extent *e, Piece *piece) {
    if (e->high <= piece->offset) return true;
    if (e->first[1] <= piece->last && piece->first <= e->last[0]) { /* all of it is in the way */
        if (e->gap >= piece->size || e->low >= piece->offset + piece->size) return false;
        piece->offset = max_size(piece->offset, e->high);
        return true;
    }
    bool none = e->first[0] > piece->last || e->last[1] < piece->first;
    return none && e->top < piece->offset + piece->size;
}

/* Looks at the run's pieces one by one; returns how many lie before the end of the search: fewer than all, if it ends
 * here. */
static int look(const Placed *p, int run, Piece *piece) {
    const Piece *other = placed_run(p, run);
    int i = 0;
    for (; i < p->level[0][run].n; i++, other++) {
        size_t end = other->offset + other->size;
        if (other->offset >= piece->offset + piece->size) break;
        if (end > piece->offset && at_once(other, piece)) piece->offset = end;
    }
    return i;
}

/* true: the search ends in extent `i` of the level. *before: how many pieces lie before the end; *run: it ends there */
static bool search(const Placed *p, int level, int i, Piece *piece, int *before, int *run) {
    const Extent *e = &p->level[level][i];
    bool passed = pass(e, piece), ended = false;
    if (passed || level == 0) {
        int n = passed ? e->n : look(p, i, piece);
        *before += n;
        *run = i;
        return n < e->n;
    }
    for (int k = i * FAN; k < least(p->count[level - 1], (i + 1) * FAN) && !ended; k++)
        ended = search(p, level - 1, k, piece, before, run);
    return ended;
}

/* ---- where a search begins */

static Hint *hint_of(Placed *p, const Piece *piece) {
    unsigned life = (unsigned)piece->last - (unsigned)piece->first, size = (unsigned)(piece->size >> 6), kind = size;
    for (; life; life /= 2) kind += 7;
    return &p->hint[kind % HINTS];
}

/* Below this the piece fits nowhere. What was in the hint's way and is not in the piece's, its life having ended before
 * or begun after, leaves its room free, and with it less than the piece's size below it. */
static size_t find_start(const Placed *p, const Hint *h, const Piece *piece) {
    if (!p->times || !h->size || h->size > piece->size) return 0;
    if (piece->first - h->first > FAR || h->last - piece->last > FAR) return 0;
    size_t low = SIZE_MAX;
    for (int t = h->first; t < piece->first; t++) low = p->ended[t] < low ? p->ended[t] : low;
    for (int t = piece->last + 1; t <= h->last; t++) low = p->begun[t] < low ? p->begun[t] : low;
    if (low >= h->offset) return h->offset;
    return low > piece->size ? low - piece->size : 0;
}

static void keep_hint(Placed *p, Hint *h, const Piece *piece) {
    if (!p->times) return;
    *h = (Hint){piece->size, piece->offset, piece->first, piece->last};
    size_t *ended = &p->ended[piece->last], *begun = &p->begun[piece->first];
    if (piece->offset < *ended) *ended = piece->offset;
    if (piece->offset < *begun) *begun = piece->offset;
}

/* ---- putting it there */

static bool is_before(const Piece *a, const Piece *b) {
    return a->offset != b->offset ? a->offset < b->offset : a->first < b->first;
}

/* Makes two runs of a full one. */
static void split(Placed *p, int run) {
    Extent *e = &p->level[0][run];
    size_t after = (size_t)(p->count[0] - run - 1);
    memmove(e + 2, e + 1, after * sizeof *e);
    memmove(&p->block[run + 2], &p->block[run + 1], after * sizeof *p->block);
    p->block[run + 1] = p->count[0]++;
    e[1].n = e->n - e->n / 2;
    e->n /= 2;
    memcpy(placed_run(p, run + 1), placed_run(p, run) + e->n, (size_t)e[1].n * sizeof(Piece));
    sum_up_run(p, run);
    sum_up_run(p, run + 1);
}

/* `run`: one after that into which it goes, or that one. */
static void insert(Placed *p, int run, const Piece *piece) {
    while (run > 0 && !is_before(placed_run(p, run), piece)) run--;
    bool full = p->level[0][run].n == p->room;
    if (full) split(p, run);
    int at = run + (full && is_before(placed_run(p, run + 1), piece)), k = p->level[0][at].n++;
    Piece *list = placed_run(p, at);
    for (; k > 0 && is_before(piece, &list[k - 1]); k--) list[k] = list[k - 1];
    list[k] = *piece;
    sum_up_run(p, at);
    sum_up_groups(p, run, !full);
}

bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps) {
    enum { TOP = EXTENT_LEVELS - 1 };
    int before = 0, run = 0;
    bool ended = false;
    Hint *hint = hint_of(p, piece);
    piece->offset = find_start(p, hint, piece);
    for (int i = 0; i < p->count[TOP] && !ended; i++) ended = search(p, TOP, i, piece, &before, &run);
    *steps += before + 1;
    if (piece->offset + piece->size > limit) return false;
    if (p->count[0] == 0) { /* the first of all */
        p->count[0] = 1;
        p->block[0] = p->level[0][0].n = 0;
    } else if (!ended) {
        run = p->count[0] - 1;
    }
    insert(p, run, piece);
    keep_hint(p, hint, piece);
    return true;
}
