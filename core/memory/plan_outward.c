/* plan_outward.c: plans of a given height, from the peak outwards in time.
 *
 *   offset ^    +---------+       What lives at the peak is stacked first. Then time goes on: a piece that begins needs a gap between
 *          |  +-+---------+-+     those alive at that moment, for whatever else has a place has ended by then. So only gaps are looked
 *          |  |  +-------+  |     at, and of these there are few. What ends before the peak gets its place in the same way, going back
 *          +--+--+-------+--+     in time.
 *          +--------|------> time
 *                  peak
 *
 * This takes no choice back, and needs some room to spare, of which there is least near the peak. Where a piece finds no gap, the
 * window of time in which that is so grows from the peak to there; all that lives in the window is searched for as a whole
 * (plan_search.c), and the rest goes outwards from it. A window that has grown before grows by half of itself at once, if a short search
 * finds places for all in it: so there are few searches, of which the last one costs most. */
#include <string.h>

#include "plan_private.h"

/* A search may take so many times the steps of placing each piece once: one that has not found anything by then seldom does. One of a
 * window that is wider than need be may take FEW_TURNS. */
enum { MOST_TURNS = 70, FEW_TURNS = 4 };
/* Which gap a piece gets: the smallest one with room for it, or the highest one; and which end of it. */
typedef struct Fit { bool smallest, high; } Fit;
/* They are tried in this order. */
static const Fit fits[] = {{true, true}, {false, true}, {true, false}};

typedef struct Outward {
    const Piece *piece; /* [n] */
    const int *by_first, *by_last; /* [n] */
    int n;
    size_t height, *offset; /* offset[n]: by piece */
    int *core, n_core;      /* the pieces that live in the window */
    Gaps gaps;              /* below the height; a plan that leaves too many is given up */
    long *steps;            /* grows by the pieces that are looked at */
} Outward;

/* ---- pieces as they come in time, or, going back, against it: a piece then begins with its last time. ~ turns times around. */

static int begin_of(const Outward *o, bool back, int piece) { return back ? ~o->piece[piece].last : o->piece[piece].first; }
static int end_of(const Outward *o, bool back, int piece) { return back ? ~o->piece[piece].first : o->piece[piece].last; }
static int by_begin(const Outward *o, bool back, int i) { return back ? o->by_last[o->n - 1 - i] : o->by_first[i]; }
static int by_end(const Outward *o, bool back, int i) { return back ? o->by_first[o->n - 1 - i] : o->by_last[i]; }

/* How many pieces begin, or end, before that time */
static int count(const Outward *o, bool back, int (*time_of)(const Outward *, bool, int), int (*by)(const Outward *, bool, int), int time) {
    int low = 0, high = o->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (time_of(o, back, by(o, back, middle)) < time) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ---- gaps */

/* Puts the piece into a gap. false: none has room for it. */
static bool put(Outward *o, int piece, Fit fit) {
    const Gap *gap = o->gaps.gap;
    const size_t size = o->piece[piece].size;
    int found = -1;
    for (int i = o->gaps.n - 1; i >= 0 && (fit.smallest || found < 0); i--) {
        const size_t room = gap[i].high - gap[i].low;
        if (room >= size && (found < 0 || room <= gap[found].high - gap[found].low)) found = i;
    }
    if (found >= 0) o->offset[piece] = gaps_take(&o->gaps, found, size, fit.high);
    return found >= 0;
}

/* The piece has ended. false: there are too many gaps. */
static bool release(Outward *o, int piece) {
    return gaps_free(&o->gaps, o->offset[piece], o->offset[piece] + o->piece[piece].size);
}

/* The gaps between the pieces of the core that live until `edge` or longer. false: there are too many. */
static bool open_gaps(Outward *o, bool back, int edge) {
    bool few = true;
    gaps_clear(&o->gaps, o->height);
    for (int k = 0; k < o->n_core && few; k++) {
        const int piece = o->core[k];
        if (end_of(o, back, piece) >= edge) few = gaps_cover(&o->gaps, o->offset[piece], o->offset[piece] + o->piece[piece].size);
    }
    return few;
}

/* ---- from the window outwards */

/* Places what begins after the window, or, going back, ends before it. false: not all; the window then grows to the time of the first
 * piece that found no gap. */
static bool go(Outward *o, bool back, Fit fit, const Window *from, Window *grown) {
    const int edge = back ? ~from->first : from->last;
    const int next = count(o, back, begin_of, by_begin, edge + 1);
    int ended = count(o, back, end_of, by_end, edge), i = next;
    bool found = open_gaps(o, back, edge);
    for (; i < o->n && found; i++) {
        const int piece = by_begin(o, back, i), begin = begin_of(o, back, piece);
        while (found && end_of(o, back, by_end(o, back, ended)) < begin) found = release(o, by_end(o, back, ended++));
        found = found && put(o, piece, fit);
        if (found) continue;
        if (back) grown->first = o->piece[piece].last;
        else grown->last = o->piece[piece].first;
    }
    *o->steps += i - next;
    return found;
}

/* The pieces that live in the window become the core, the one that begins first before others, or, going back, that ends last. */
static void find_core(Outward *o, bool back, const Window *w) {
    o->n_core = 0;
    for (int i = 0; i < o->n; i++) {
        const int piece = by_begin(o, back, i);
        if (o->piece[piece].first <= w->last && w->first <= o->piece[piece].last) o->core[o->n_core++] = piece;
    }
    *o->steps += o->n;
}

/* The pieces of the core all live at once. */
static void stack_core(Outward *o) {
    size_t end = 0;
    for (int k = 0; k < o->n_core; k++) {
        o->offset[o->core[k]] = end;
        end += o->piece[o->core[k]].size;
    }
}

/* Searches for all that lives in the window. */
static bool search_core(Outward *o, const Window *w, int turns, long most_steps, Scratch *s) {
    find_core(o, true, w);
    void *before = s->last;
    const long wanted = plan_search_steps(o->n_core) * turns, most = wanted < most_steps ? wanted : most_steps;
    PlanItem *items = scratch_new(s, (size_t)o->n_core, sizeof *items);
    for (int k = 0; items && k < o->n_core; k++) {
        const Piece *p = &o->piece[o->core[k]];
        items[k] = (PlanItem){p->size, p->first, p->last, 0};
    }
    const bool found = items && plan_search(items, o->n_core, o->height, most, o->steps, s);
    for (int k = 0; found && k < o->n_core; k++) o->offset[o->core[k]] = items[k].offset;
    scratch_release(s, before);
    return found;
}

/* Places what lives outside the window, from the core, by the first fit by which all find places. false: there is none, and the window
 * grows up to where the very first fit ended. */
static bool go_both_ways(Outward *o, Window *window) {
    const Window from = *window;
    for (size_t k = 0; k < ARRAY_LEN(fits); k++) {
        Window grown = from;
        if (go(o, false, fits[k], &from, &grown) && go(o, true, fits[k], &from, &grown)) return true;
        if (k == 0) *window = grown;
    }
    return false;
}

/* The window is the peak alone. What lives there lies in two orders. */
static bool find_from_stacks(Outward *o, Window *window) {
    const Window peak = *window;
    for (int back = 1; back >= 0; back--) {
        Window grown = peak;
        find_core(o, back, &peak);
        stack_core(o);
        if (go_both_ways(o, &grown)) return true;
        if (back) *window = grown;
    }
    return false;
}

/* On the sides on which the window has grown, it grows by half of what it was at least. */
static Window widen(const Window *before, const Window *now) {
    const int half = (before->last - before->first) / 2;
    Window w = *now;
    if (w.first < before->first) w.first = min_int(w.first, before->first - half);
    if (w.last > before->last) w.last = max_int(w.last, before->last + half);
    return w;
}

static bool find_by_search(Outward *o, Window *window, long most, Scratch *s) {
    Window before = *window;
    for (bool grown = true; grown;) {
        const Window wide = widen(&before, window);
        const bool wider = wide.first < window->first || wide.last > window->last;
        if (wider && search_core(o, &wide, FEW_TURNS, most - *o->steps, s)) *window = wide;
        else if (!search_core(o, window, MOST_TURNS, most - *o->steps, s)) return false;
        before = *window;
        if (go_both_ways(o, window)) return true;
        grown = window->first < before.first || window->last > before.last;
    }
    return false;
}

bool plan_outward(PlanItem *items, const Lives *l, size_t height, Window *window, long most_steps, long *steps, Scratch *s) {
    const size_t n = (size_t)l->n;
    const long most = *steps + most_steps;
    Outward o = {.piece = l->piece, .by_first = l->by_first, .by_last = l->by_last, .n = l->n, .height = height, .steps = steps,
                 .offset = scratch_new(s, n, sizeof *o.offset), .core = scratch_new(s, n, sizeof *o.core)};
    if (!gaps_open(&o.gaps, l->n, s)) return false;
    const bool found = (window->first == window->last && find_from_stacks(&o, window)) || find_by_search(&o, window, most, s);
    for (int i = 0; found && i < l->n; i++) items[l->piece[i].item].offset = o.offset[i];
    return found;
}
