/* First fit of n pieces without a comparison of every pair. The pieces are in runs, the runs in groups, the groups in
 * larger groups; a search passes a run or group as a whole if all of its pieces are in the way, or none of them is. A
 * search begins where the search for the last piece like this one ended, as far as the room below cannot have become
 * free since: in a network, similar layers follow each other. */
#include <string.h>

#include "plan_private.h"

/* LEAST_ROOM: pieces that a run has room for, at least; with more than MANY_RUNS runs it is more. FAN: extents of the
 * next lower level in a group; of runs a group has room for so many, so that most new ones move only those of their group. */
enum { LEAST_ROOM = 16, MANY_RUNS = 2048, FAN = 16 };
/* FAR: by how many times a hint's life may differ from a piece's. SPARSE: with more times than this per piece there are
 * no hints. */
enum { FAR = 256, SPARSE = 8 };

/* The number of times, counted from 0; 0: too many to have an entry for each. */
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
    const size_t runs = 2 * (size_t)(n / p->room) + 2; /* every run but the first is at least half full */
    size_t groups = 2 * (runs / FAN) + 2;              /* as every group of them is */
    p->most_runs = (int)runs;
    p->most_groups = (int)groups;
    p->piece = scratch_new(s, runs * (size_t)p->room, sizeof *p->piece);
    p->used = scratch_new(s, groups, sizeof *p->used);
    p->block = scratch_new(s, groups * FAN, sizeof *p->block);
    p->level[0] = scratch_new(s, groups * FAN, sizeof(Extent));
    for (int k = 1; k < EXTENT_LEVELS; k++, groups = groups / FAN + 1) p->level[k] = scratch_new(s, groups, sizeof(Extent));
    p->ended = scratch_new(s, (size_t)p->times, sizeof *p->ended);
    p->begun = scratch_new(s, (size_t)p->times, sizeof *p->begun);
    return !s->failed;
}

void placed_clear(Placed *p) {
    p->runs = 0;
    memset(p->count, 0, sizeof p->count);
    memset(p->hint, 0, sizeof p->hint);
    for (int t = 0; t < p->times; t++) p->ended[t] = p->begun[t] = SIZE_MAX;
}

Piece *placed_run(const Placed *p, int run) { return &p->piece[(size_t)p->block[run] * (size_t)p->room]; }

/* ---- extents */

/* The extent of one piece. */
static Extent extent_of(const Piece *q) {
    return (Extent){q->offset, q->offset, q->offset + q->size, 0, {q->first, q->first}, {q->last, q->last}, 1};
}

/* Adds the extent of the pieces that follow. */
static void append(Extent *e, const Extent *next) {
    e->gap = max_size(e->gap, max_size(next->gap, next->low > e->high ? next->low - e->high : 0));
    e->top = next->top;
    e->high = max_size(e->high, next->high);
    e->first[0] = min_int(e->first[0], next->first[0]);
    e->first[1] = max_int(e->first[1], next->first[1]);
    e->last[0] = min_int(e->last[0], next->last[0]);
    e->last[1] = max_int(e->last[1], next->last[1]);
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

/* The end of the extents of the level below that are in group i. */
static int end_of_group(const Placed *p, int level, int i) {
    return level == 1 ? i * FAN + p->used[i] : min_int(p->count[level - 1], (i + 1) * FAN);
}

/* Sums up the groups that contain this run or a later one; only: no group has moved, so only those that contain this
 * one. */
static void sum_up_groups(Placed *p, int run, bool only) {
    for (int k = 1; k < EXTENT_LEVELS; k++) {
        const Extent *below = p->level[k - 1];
        if (k > 1) p->count[k] = (p->count[k - 1] + FAN - 1) / FAN;
        run /= FAN;
        for (int i = run; i < (only ? run + 1 : p->count[k]); i++) {
            p->level[k][i] = below[i * FAN];
            for (int j = i * FAN + 1; j < end_of_group(p, k, i); j++) append(&p->level[k][i], &below[j]);
        }
    }
}

/* ---- the search */

/* Passes the whole extent, if the search cannot end in it and its pieces need not be looked at one by one: raises the
 * piece's offset above it if all of its pieces are in the way. */
static bool pass(const Extent *e, Piece *piece) {
    if (e->high <= piece->offset) return true;
    if (e->first[1] <= piece->last && piece->first <= e->last[0]) { /* every piece of it shares a time with `piece` */
        if (e->gap >= piece->size || e->low >= piece->offset + piece->size) return false;
        piece->offset = max_size(piece->offset, e->high);
        return true;
    }
    bool none = e->first[0] > piece->last || e->last[1] < piece->first;
    return none && e->top < piece->offset + piece->size;
}

/* Looks at the pieces of a run one by one, and raises the piece's offset above those that are in the way. Returns how
 * many come before the end of the search: fewer than all, if it ends in this run. */
static int look(const Placed *p, int run, Piece *piece) {
    const Piece *other = placed_run(p, run);
    const int n = p->level[0][run].n, first = piece->first, last = piece->last;
    const size_t size = piece->size;
    size_t offset = piece->offset;
    int i = 0;
    for (; i < n && other->offset < offset + size; i++, other++) { /* who is in the way follows no pattern: no branch depends on it */
        const size_t end = other->offset + other->size, taken = 0 - (size_t)((other->first <= last) & (first <= other->last));
        offset = max_size(offset, end & taken);
    }
    piece->offset = offset;
    return i;
}

/* Searches extent `i` of the level. true: the search ends in it. *before grows by the number of its pieces before the
 * end; *run: the last run that was searched. */
static bool search(const Placed *p, int level, int i, Piece *piece, int *before, int *run) {
    const Extent *e = &p->level[level][i];
    bool passed = pass(e, piece), ended = false;
    if (passed || level == 0) {
        int n = passed ? e->n : look(p, i, piece);
        *before += n;
        *run = i;
        return n < e->n;
    }
    for (int k = i * FAN; k < end_of_group(p, level, i) && !ended; k++)
        ended = search(p, level - 1, k, piece, before, run);
    return ended;
}

/* ---- where a search begins */

static Hint *hint_of(Placed *p, const Piece *piece) {
    unsigned life = (unsigned)piece->last - (unsigned)piece->first, size = (unsigned)(piece->size >> 6), kind = size;
    for (; life; life /= 2) kind += 7;
    return &p->hint[kind % HINTS];
}

/* An offset below which the piece fits nowhere. The hint says so for its own life. Pieces that were in the way then,
 * but whose life ends before the piece's or begins after it, are not in the way now: room can be free from the lowest
 * of them on, and less than the piece's size below it. */
static size_t find_start(const Placed *p, const Hint *h, const Piece *piece) {
    if (!p->times || !h->size || h->size > piece->size) return 0;
    if (piece->first - h->first > FAR || h->last - piece->last > FAR) return 0;
    size_t low = SIZE_MAX;
    for (int t = h->first; t < piece->first; t++) low = p->ended[t] < low ? p->ended[t] : low;
    for (int t = piece->last + 1; t <= h->last; t++) low = p->begun[t] < low ? p->begun[t] : low;
    if (low >= h->offset) return h->offset;
    return low > piece->size ? low - piece->size : 0;
}

/* The piece is put: `h` is now its hint. */
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

/* The places of n runs from `from` on become those from `to` on. */
static void move_runs(Placed *p, int from, int to, int n) {
    memmove(&p->level[0][to], &p->level[0][from], (size_t)n * sizeof(Extent));
    memmove(&p->block[to], &p->block[from], (size_t)n * sizeof *p->block);
}

/* Takes in a group after group - 1, without a run. */
static void add_group(Placed *p, int group) {
    const int after = p->count[1] - group;
    assert(p->count[1] < p->most_groups);
    move_runs(p, group * FAN, (group + 1) * FAN, after * FAN);
    memmove(&p->used[group + 1], &p->used[group], (size_t)after * sizeof *p->used);
    memset(&p->level[0][group * FAN], 0, FAN * sizeof(Extent));
    p->used[group] = 0;
    p->count[1]++;
    p->count[0] += FAN;
}

/* Makes two groups of a full one. */
static void split_group(Placed *p, int group) {
    enum { STAY = FAN / 2, GO = FAN - STAY };
    add_group(p, group + 1);
    move_runs(p, group * FAN + STAY, (group + 1) * FAN, GO);
    memset(&p->level[0][group * FAN + STAY], 0, GO * sizeof(Extent));
    p->used[group] = STAY;
    p->used[group + 1] = GO;
}

/* Makes two runs of a full one, which has room after it in its group. */
static void split(Placed *p, int run) {
    const int group = run / FAN;
    assert(p->runs < p->most_runs && p->used[group] < FAN);
    move_runs(p, run + 1, run + 2, group * FAN + p->used[group]++ - run - 1);
    Extent *e = &p->level[0][run];
    p->block[run + 1] = p->runs++;
    e[1].n = e->n - e->n / 2;
    e->n /= 2;
    memcpy(placed_run(p, run + 1), placed_run(p, run) + e->n, (size_t)e[1].n * sizeof(Piece));
    sum_up_run(p, run);
    sum_up_run(p, run + 1);
}

static int last_run(const Placed *p, int group) { return group * FAN + p->used[group] - 1; }

/* Inserts the piece into `run` or one before it: the last one that begins before the piece. */
static void insert(Placed *p, int run, const Piece *piece) {
    while (run > 0 && !is_before(placed_run(p, run), piece)) run = run % FAN ? run - 1 : last_run(p, run / FAN - 1);
    const bool full = p->level[0][run].n == p->room, crowded = full && p->used[run / FAN] == FAN;
    const int group = run / FAN;
    if (crowded) {
        split_group(p, group);
        if (run > last_run(p, group)) run += FAN - p->used[group];
    }
    if (full) split(p, run);
    int at = run + (full && is_before(placed_run(p, run + 1), piece)), k = p->level[0][at].n++;
    Piece *list = placed_run(p, at);
    for (; k > 0 && is_before(piece, &list[k - 1]); k--) list[k] = list[k - 1];
    list[k] = *piece;
    sum_up_run(p, at);
    sum_up_groups(p, group * FAN, !crowded);
}

bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps) {
    enum { TOP = EXTENT_LEVELS - 1 };
    int before = 0, run = 0;
    bool ended = false;
    Hint *hint = hint_of(p, piece);
    assert(piece->size > 0 && piece->first <= piece->last);
    piece->offset = find_start(p, hint, piece);
    for (int i = 0; i < p->count[TOP] && !ended; i++) ended = search(p, TOP, i, piece, &before, &run);
    *steps += before + 1;
    assert(piece->offset <= SIZE_MAX - piece->size); /* an end is at most the sum of all sizes */
    if (piece->offset + piece->size > limit) return false;
    if (p->runs == 0) { /* the first of all */
        add_group(p, 0);
        p->used[0] = 1;
        p->block[0] = p->runs++;
    } else if (!ended) {
        run = last_run(p, p->count[1] - 1);
    }
    insert(p, run, piece);
    keep_hint(p, hint, piece);
    return true;
}
