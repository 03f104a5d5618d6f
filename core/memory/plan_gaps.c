/* plan_gaps.c: what is free at one time, as time goes on. Of gaps there are few, so they are looked at one by one. */
#include <string.h>

#include "plan_private.h"

/* More gaps than this are not looked at. */
enum { MOST_GAPS = 1000 };

bool gaps_open(Gaps *g, int pieces, Scratch *s) {
    *g = (Gaps){.most = min_int(pieces, MOST_GAPS - 1) + 1};
    g->gap = scratch_new(s, (size_t)g->most, sizeof *g->gap);
    return !s->failed;
}

void gaps_clear(Gaps *g, size_t height) {
    g->n = height > 0;
    g->gap[0] = (Gap){0, height};
}

static void remove_gap(Gaps *g, int at) {
    g->n--;
    memmove(&g->gap[at], &g->gap[at + 1], (size_t)(g->n - at) * sizeof *g->gap);
}

/* false: there are too many */
static bool insert_gap(Gaps *g, int at, Gap gap) {
    if (g->n == g->most) return false;
    memmove(&g->gap[at + 1], &g->gap[at], (size_t)(g->n++ - at) * sizeof *g->gap);
    g->gap[at] = gap;
    return true;
}

/* How many gaps begin below the offset */
static int count_below(const Gaps *g, size_t offset) {
    int low = 0, high = g->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (g->gap[middle].low < offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

size_t gaps_take(Gaps *g, int at, size_t size, bool high) {
    Gap *gap = &g->gap[at];
    assert(gap->high - gap->low >= size);
    const size_t offset = high ? gap->high - size : gap->low;
    if (high) gap->high -= size;
    else gap->low += size;
    if (gap->low == gap->high) remove_gap(g, at);
    return offset;
}

bool gaps_cover(Gaps *g, size_t low, size_t high) {
    const int at = count_below(g, low + 1) - 1;
    assert(at >= 0 && high <= g->gap[at].high);
    const Gap above = {high, g->gap[at].high};
    g->gap[at].high = low;
    if (g->gap[at].low == low) remove_gap(g, at);
    return above.low == above.high || insert_gap(g, count_below(g, low), above);
}

bool gaps_free(Gaps *g, size_t low, size_t high) {
    const int at = count_below(g, low); /* the gap above it */
    Gap *above = &g->gap[at];
    const bool joins_below = at > 0 && above[-1].high == low, joins_above = at < g->n && above->low == high;
    if (!joins_below && !joins_above) return insert_gap(g, at, (Gap){low, high});
    if (!joins_below) above->low = low;
    else above[-1].high = joins_above ? above->high : high;
    if (joins_below && joins_above) remove_gap(g, at);
    return true;
}
