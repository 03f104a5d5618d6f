#include "trace_align.h"

#include <string.h>

/* Numbers that are left out in one direction, at most; what comes after them has no partner. Memory grows with its
 * square: 16 MB. */
enum { MAX_LEFT_OUT = 2000 };

typedef struct Run { int a, b, length; } Run;

/* ---- the longest run that both have: by hashes of all runs of a length, which is found by bisection */

static const uint64_t BASE = 0x9E3779B97F4A7C15u;

static uint64_t *prefix_hashes(const size_t *values, int n, Scratch *s) {
    uint64_t *hash = scratch_new(s, (size_t)n + 1, sizeof *hash);
    for (int i = 0; i < n && hash; i++) {
        uint64_t mixed = ((uint64_t)values[i] + 1) * BASE;
        hash[i + 1] = hash[i] * BASE + (mixed ^ mixed >> 29);
    }
    return hash;
}

typedef struct Search {
    const size_t *a, *b;
    int n_a, n_b;
    const uint64_t *hash_a, *hash_b;
    int *slot; /* [cap] 1 + the start of a run in a */
    uint32_t cap;
} Search;

static uint64_t run_hash(const uint64_t *hash, int from, int length, uint64_t power) {
    return hash[from + length] - hash[from] * power;
}

/* The slot of a run with that hash: the first free one if there is none. */
static uint32_t slot_of(const Search *f, uint64_t hash, int length, uint64_t power) {
    uint32_t i = (uint32_t)(hash >> 32) & (f->cap - 1);
    while (f->slot[i] && run_hash(f->hash_a, f->slot[i] - 1, length, power) != hash) i = (i + 1) & (f->cap - 1);
    return i;
}

static bool find_run(Search *f, int length, Run *out) {
    uint64_t power = 1;
    for (int i = 0; i < length; i++) power *= BASE;
    memset(f->slot, 0, f->cap * sizeof *f->slot);
    for (int i = 0; i + length <= f->n_a; i++) {
        int *slot = &f->slot[slot_of(f, run_hash(f->hash_a, i, length, power), length, power)];
        if (!*slot) *slot = i + 1;
    }
    for (int i = 0; i + length <= f->n_b; i++) {
        int start = f->slot[slot_of(f, run_hash(f->hash_b, i, length, power), length, power)] - 1;
        if (start < 0 || memcmp(f->a + start, f->b + i, (size_t)length * sizeof *f->a)) continue;
        *out = (Run){start, i, length};
        return true;
    }
    return false;
}

static Run longest_run(Search *f) {
    Run best = {0};
    int low = 0, high = f->n_a < f->n_b ? f->n_a : f->n_b;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (find_run(f, middle, &best)) low = middle;
        else high = middle - 1;
    }
    return best;
}

/* ---- from there on: Myers' greedy search. After d numbers were left out, reach[d][d + k] is the furthest place in a
 * whose partner is k places before it in b; -1: there is none. */

typedef struct Side {
    const size_t *a, *b;
    int from_a, from_b; /* the next numbers; later ones stand `step` after them, each */
    int n_a, n_b, step; /* how many there are; 1 or -1 */
} Side;

/* The furthest place on diagonal k with one number more left out than in `before`, the row of d - 1; *from: the
 * diagonal that it comes from. */
static int arrive(const Side *w, const int *before, int d, int k, int *from) {
    int skip_a = -1, skip_b = -1;
    if (k - 1 >= -(d - 1) && before[d - 1 + k - 1] >= 0 && before[d - 1 + k - 1] < w->n_a) skip_a = before[d - 1 + k - 1] + 1;
    if (k + 1 <= d - 1 && before[d - 1 + k + 1] >= 0 && before[d - 1 + k + 1] - k <= w->n_b) skip_b = before[d - 1 + k + 1];
    *from = skip_a > skip_b ? k - 1 : k + 1;
    return skip_a > skip_b ? skip_a : skip_b;
}

static int slide(const Side *w, int x, int k) {
    while (x < w->n_a && x - k < w->n_b && w->a[w->from_a + x * w->step] == w->b[w->from_b + (x - k) * w->step]) x++;
    return x;
}

/* Writes pairs of places in this direction into pair[x], the partner's place in b. */
static void trace_back(const Side *w, int **reach, int d, int k, int *pair) {
    for (int x = reach[d][d + k]; d >= 0; d--) {
        int from = 0, start = d ? arrive(w, reach[d - 1], d, k, &from) : 0;
        for (; x > start; x--) pair[x - 1] = x - 1 - k;
        if (d) x = reach[d - 1][d - 1 + from];
        k = from;
    }
}

static void extend(const Side *w, int *pair, Scratch *s) {
    for (int i = 0; i < w->n_a; i++) pair[i] = -1;
    int **reach = scratch_new(s, MAX_LEFT_OUT + 1, sizeof *reach), best = 0, best_d = 0;
    for (int d = 0; d <= MAX_LEFT_OUT && reach; d++) {
        if (!(reach[d] = scratch_new(s, 2 * (size_t)d + 1, sizeof **reach))) return;
        best_d = d;
        best = -d;
        for (int k = -d, from; k <= d; k++) {
            int x = (k + d) % 2 ? -1 : d ? arrive(w, reach[d - 1], d, k, &from) : 0;
            reach[d][d + k] = x < 0 ? -1 : slide(w, x, k);
            if (reach[d][d + k] > reach[d][d + best]) best = k;
        }
        if (reach[d][d + best] == w->n_a) break;
    }
    if (reach) trace_back(w, reach, best_d, best, pair);
}

bool trace_align(const size_t *a, int n_a, const size_t *b, int n_b, int *pair, Scratch *s) {
    Search f = {a, b, n_a, n_b, prefix_hashes(a, n_a, s), prefix_hashes(b, n_b, s), NULL, 16};
    while (f.cap < 2 * (uint32_t)n_a) f.cap *= 2;
    f.slot = scratch_new(s, f.cap, sizeof *f.slot);
    int *found = scratch_new(s, (size_t)n_a + 1, sizeof *found);
    if (s->failed) return false;
    Run r = longest_run(&f);
    for (int i = 0; i < n_a; i++) pair[i] = i >= r.a && i < r.a + r.length ? r.b + i - r.a : -1;
    if (!r.length) return true;
    int after_a = r.a + r.length, after_b = r.b + r.length;
    extend(&(Side){a, b, after_a, after_b, n_a - after_a, n_b - after_b, 1}, found, s);
    for (int i = after_a; i < n_a; i++) pair[i] = found[i - after_a] < 0 ? -1 : after_b + found[i - after_a];
    extend(&(Side){a, b, r.a - 1, r.b - 1, r.a, r.b, -1}, found, s);
    for (int i = 0; i < r.a; i++) pair[r.a - 1 - i] = found[i] < 0 ? -1 : r.b - 1 - found[i];
    return !s->failed;
}
