/* Placing by groups and lifting by a tree do what a look at every pair of pieces does. Plans from the peak outwards are plans. */
#include <stdlib.h>

#include "each_failure.h"
#include "memory/plan_private.h"
#include "plan_check.h"

enum { MOST = 1500 };

static uint32_t seed = 1;

/* 0 ... n - 1 */
static int draw(int n) {
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 8) % (uint32_t)n);
}

static bool at_once(const Piece *a, const Piece *b) { return a->first <= b->last && b->first <= a->last; }

/* ---- the reference */

/* The lowest offset that is free during the piece's life; placed: by offset. */
static size_t lowest(const Piece *placed, int n, const Piece *piece) {
    size_t offset = 0;
    for (int i = 0; i < n && placed[i].offset < offset + piece->size; i++)
        if (at_once(&placed[i], piece)) offset = max_size(offset, placed[i].offset + placed[i].size);
    return offset;
}

static void insert(Piece *placed, int n, Piece piece) {
    for (; n > 0 && placed[n - 1].offset > piece.offset; n--) placed[n] = placed[n - 1];
    placed[n] = piece;
}

/* How many lie before the first that a search from the bottom to `end` does not pass. */
static long count_below(const Piece *placed, int n, size_t end) {
    long below = 0;
    for (int i = 0; i < n; i++) below += placed[i].offset < end;
    return below;
}

static void lift(PlanItem *items, int n, size_t height) {
    for (int i = 0; i < n; i++) {
        if (items[i].last > items[i].first) continue;
        size_t at = height - items[i].size;
        for (int k = 0; k < n; k++) {
            const PlanItem *b = &items[k];
            if (k == i || b->first > items[i].last || items[i].first > b->last) continue;
            if (b->offset >= at + items[i].size || at >= b->offset + b->size) continue;
            at = b->offset - items[i].size;
            k = -1;
        }
        items[i].offset = at;
    }
}

/* ---- pieces as programs have them */

/* kind 0: anything; 1: short lives; 2: what the backward pass reads, and short lives; 3: lives within one another */
static Piece any_piece(int i, int n, int kind, int sizes) {
    int times = 2 * n, first = kind > 1 ? i * times / (2 * n) : draw(times), last = times - 1 - first;
    if (kind == 0) last = first + draw(times - first);
    if (kind == 1 || (kind == 2 && draw(2))) last = first + draw(4);
    if (last >= times) last = times - 1;
    return (Piece){64 * (size_t)(1 + draw(sizes)), 0, first < last ? first : last, last, i};
}

/* Field by field: a structure's padding says nothing. */
static bool same_piece(const Piece *a, const Piece *b) {
    return a->size == b->size && a->offset == b->offset && a->first == b->first && a->last == b->last &&
           a->item == b->item;
}

static int by_offset(const void *left, const void *right) {
    const Piece *a = left, *b = right;
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1) : a->item - b->item;
}

/* ---- the pieces by their times */

static const Piece *sorted;
static int by_first_time(const void *left, const void *right) {
    const int a = *(const int *)left, b = *(const int *)right, order = sorted[a].first - sorted[b].first;
    return order ? order : a - b;
}
static int by_last_time(const void *left, const void *right) {
    const int a = *(const int *)left, b = *(const int *)right, order = sorted[a].last - sorted[b].last;
    return order ? order : a - b;
}

/* Until the next call */
static Lives lives_of(const Piece *piece, int n) {
    static int by_first[MOST], by_last[MOST];
    for (int i = 0; i < n; i++) by_first[i] = by_last[i] = i;
    sorted = piece;
    qsort(by_first, (size_t)n, sizeof *by_first, by_first_time);
    qsort(by_last, (size_t)n, sizeof *by_last, by_last_time);
    return (Lives){piece, by_first, by_last, n};
}

static void test_placed(int n, int kind, int sizes) {
    static Piece piece[MOST], one[MOST], placed[MOST];
    Placed p;
    Scratch s = {0};
    size_t height = 0;
    int wrong = 0, found = 0;
    long steps = 0, expected = 0;
    for (int i = 0; i < n; i++) piece[i] = any_piece(i, n, kind, sizes);
    if (!ok(placed_open(&p, piece, n, &s), "%d pieces of kind %d and %d sizes", n, kind, sizes)) return;
    placed_clear(&p);
    for (int i = 0; i < n; i++) {
        Piece q = piece[i];
        q.offset = lowest(one, i, &piece[i]);
        expected += 1 + count_below(one, i, q.offset + q.size);
        if (i % 7 == 3) {
            Piece again = piece[i];
            long ignored = 0;
            wrong += placed_put(&p, &again, q.offset + q.size - 1, &ignored);
        }
        wrong += !placed_put(&p, &piece[i], q.offset + q.size, &steps) || piece[i].offset != q.offset;
        height = max_size(height, q.offset + q.size);
        insert(one, i, q);
    }
    is_int(wrong, 0, "each at the lowest offset that is free, and none above the limit");
    is_int(steps, expected, "steps are the pieces below");
    for (int run = 0; run < p.count[0]; run++)
        for (int i = 0; i < p.level[0][run].n; i++) placed[found++] = placed_run(&p, run)[i];
    qsort(one, (size_t)n, sizeof *one, by_offset);
    for (int i = 1; i < found; i++) wrong += placed[i].offset < placed[i - 1].offset;
    qsort(placed, (size_t)found, sizeof *placed, by_offset);
    for (int i = 0; i < found && i < n; i++) wrong += !same_piece(&one[i], &placed[i]);
    ok(found == n && !wrong, "all of them are there, by offset");

    static PlanItem items[MOST], other[MOST];
    for (int i = 0; i < n; i++)
        items[one[i].item] = (PlanItem){one[i].size, one[i].first, one[i].last, one[i].offset};
    memcpy(other, items, (size_t)n * sizeof *items);
    for (int i = 0; i < n; i++) piece[i].item = i;
    lift(other, n, height + 128);
    const Lives lives = lives_of(piece, n);
    plan_lift_scratch(items, &lives, height + 128, &s);
    ok(!s.failed, "scratch is lifted");
    scratch_release(&s, NULL);
    wrong = 0;
    for (int i = 0; i < n; i++) wrong += items[i].offset != other[i].offset;
    is_int(wrong, 0, "as high as there is room");
}

/* ---- from the peak outwards */

/* The most bytes that are alive at a time, and when */
static size_t bound_of(const Piece *piece, int n, int *peak) {
    size_t most = 0;
    for (int i = 0; i < n; i++) { /* when a life begins */
        size_t live = 0;
        for (int k = 0; k < n; k++)
            if (piece[k].first <= piece[i].first && piece[i].first <= piece[k].last) live += piece[k].size;
        if (live > most) *peak = piece[i].first;
        most = max_size(most, live);
    }
    return most;
}

typedef struct Outcome { bool found, sound; Window window; long steps; } Outcome;

/* Looks for a plan of the pieces at their bound, from the peak. sound: what is found is one; else the items are as they were. */
static Outcome outward(const Piece *piece, int n, long most_steps) {
    static PlanItem items[MOST];
    Scratch s = {0};
    int peak = 0;
    const size_t height = bound_of(piece, n, &peak);
    Outcome out = {.sound = true, .window = {peak, peak}};
    for (int i = 0; i < n; i++) items[i] = (PlanItem){piece[i].size, piece[i].first, piece[i].last, 7};
    const Lives lives = lives_of(piece, n);
    out.found = plan_outward(items, &lives, height, &out.window, most_steps, &out.steps, &s);
    out.sound = !s.failed && out.window.first <= peak && peak <= out.window.last;
    if (out.found) out.sound &= plan_check(items, n, &(Plan){.height = height}, NULL) == OK;
    for (int i = 0; i < n && !out.found; i++) out.sound &= items[i].offset == 7;
    scratch_release(&s, NULL);
    return out;
}

static void test_outward(void) {
    static Piece piece[MOST];
    int bad = 0, first = 0, later = 0, longer = 0;
    long quick_steps = 0, slow_steps = 0;
    for (int round = 0; round < 200; round++) {
        const int n = 20 + draw(60), kind = round % 4;
        for (int i = 0; i < n; i++) piece[i] = any_piece(i, n, kind, 40);
        const Outcome quick = outward(piece, n, 0), slow = outward(piece, n, 20000000);
        bad += !quick.sound || !slow.sound || quick.found > slow.found || quick.steps > 20 * n;
        first += quick.found;
        later += slow.found && !quick.found;
        longer += slow.found && !quick.found && slow.window.first < slow.window.last;
        quick_steps += quick.steps;
        slow_steps += slow.steps;
    }
    is_int(bad, 0, "200 sets of pieces from the peak outwards: plans at the bound, or nothing is changed");
    /* What is tried first, and how far a window grows at a time, shows in how many are found and in how many steps alone. */
    ok(first == 181 && later == 19, "%d without a search, %d by one", first, later);
    is_int(longer, later, "... of what lives in a window that has grown");
    ok(quick_steps == 20352 && slow_steps == 56854, "in %ld and %ld steps", quick_steps, slow_steps);
    /* Every other one of very many short pieces at the peak is gone after it: no number of gaps is too much. */
    for (int i = 0; i < MOST; i++) piece[i] = (Piece){64, 0, 0, i % 2 ? 9 : 4, i};
    for (int i = 0; i < 100; i++) piece[i] = (Piece){i < 50 ? 64 : 128, 0, i < 50 ? 0 : 5, i < 50 ? 4 : 9, i};
    const Outcome many = outward(piece, MOST, 1000000);
    ok(many.sound, "as many gaps as pieces: %s", many.found ? "a plan" : "no plan");
}

/* Times that are few and far between: no hints are kept. */
static void test_far_times(void) {
    Piece piece[] = {{64, 0, 0, 1000000, 0}, {64, 0, 5, 6, 1}, {64, 0, 2000000, 2000001, 2}, {64, 0, -3, 4, 3}};
    Placed p;
    Scratch s = {0};
    long steps = 0;
    for (int n = 3; n <= 4; n++) {
        if (!ok(placed_open(&p, piece, n, &s), "far times")) return;
        placed_clear(&p);
        is_int(p.times, 0, "nothing is kept of each of them");
        for (int i = 0; i < n; i++) {
            piece[i].offset = 0;
            placed_put(&p, &piece[i], SIZE_MAX, &steps);
        }
        ok(piece[0].offset == 0 && piece[1].offset == 64 && piece[2].offset == 0, "and the pieces are placed");
        scratch_release(&s, NULL);
    }
}

static int build(void *arg, Err *e) {
    PlanItem *items = arg;
    Plan plan;
    return plan_build(items, 40, NULL, &plan, e);
}

int main(void) {
    for (int kind = 0; kind < 4; kind++) {
        test_placed(60, kind, 3);
        test_placed(700, kind, 40);
        test_placed(MOST, kind, 1);
    }
    test_placed(1, 0, 1);
    test_far_times();
    test_outward();
    static PlanItem items[40];
    for (int i = 0; i < 40; i++) {
        Piece p = any_piece(i, 40, 0, 30);
        items[i] = (PlanItem){p.size, p.first, p.last, 0};
    }
    each_failure(build, items, 9, "a plan");
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
