/* Walks over the times of a plan, with the pieces that are alive in a tree sorted by offset. In it the highest room
 * below a height is found in steps logarithmic in the number of pieces. */
#include "base/sort.h"
#include "plan_private.h"

/* The living ones of some consecutive pieces; none is alive: low > high. */
typedef struct Span {
    size_t low, high, gap; /* their lowest offset, their highest end, the largest gap between two of them */
} Span;

/* At one time, first pieces begin, then those that live at this time only are lifted, then the others end. */
typedef enum EventKind { BEGINS, LIFTED, ENDS, EVENT_KINDS } EventKind;

typedef struct Walk {
    PlanItem *items;
    const Piece *piece;    /* [n] */
    int n;
    size_t height;         /* bytes of the plan */
    Span *tree;            /* [2 leaves]: the root is 1, the children of i are 2 i and 2 i + 1 */
    int leaves, *leaf;     /* leaves: a power of two; leaf[n]: by piece, its place by offset */
    int *lifted, n_lifted; /* the pieces that were lifted at the present time; they are not in the tree */
    Keyed *event, *spare;  /* [2 n] what happens, in the order of time */
} Walk;

static const Span NOTHING = {SIZE_MAX, 0, 0};

/* The offset of a piece that has no place yet */
#define NOWHERE SIZE_MAX

static bool lives_once(const Piece *p) { return p->first == p->last; }

static Span join(Span a, Span b) {
    if (a.low > a.high) return b;
    if (b.low > b.high) return a;
    return (Span){a.low, b.high, max_size(b.low - a.high, max_size(a.gap, b.gap))};
}

/* The piece is alive from now on, or not. */
static void set_leaf(Walk *w, int piece, bool lives) {
    const PlanItem *item = &w->items[w->piece[piece].item];
    int i = w->leaves + w->leaf[piece];
    if (item->offset == NOWHERE) return;
    w->tree[i] = lives ? (Span){item->offset, item->offset + item->size, 0} : NOTHING;
    while (i /= 2) w->tree[i] = join(w->tree[2 * i], w->tree[2 * i + 1]);
}

/* Is there room for `size` bytes between the living pieces of this node, or between them and *end? true: *end becomes
 * the end of the highest such room. false: it becomes the lowest offset of the pieces, if that is below it. */
static bool find_room(const Walk *w, int node, size_t size, size_t *end) {
    const Span *span = &w->tree[node];
    if (span->low > span->high || span->low >= *end) return false;
    if (span->high <= *end && *end - span->high >= size) return true;
    if (node < w->leaves && span->gap >= size)
        return find_room(w, 2 * node + 1, size, end) || find_room(w, 2 * node, size, end);
    *end = span->low;
    return false;
}

/* true: a piece that was lifted before is in these bytes; *low: its offset. */
static bool is_taken(const Walk *w, size_t from, size_t size, size_t *low) {
    for (int i = 0; i < w->n_lifted; i++) {
        const PlanItem *b = &w->items[w->piece[w->lifted[i]].item];
        if (b->offset >= from + size || from >= b->offset + b->size) continue;
        *low = b->offset;
        return true;
    }
    return false;
}

/* Gives the piece the highest place. false: there is none; but its own place, if it has one, is free of all others, so it never
 * moves down. */
static bool lift(Walk *w, int piece) {
    PlanItem *item = &w->items[w->piece[piece].item];
    size_t end = w->height;
    set_leaf(w, piece, false);
    do find_room(w, 1, item->size, &end);
    while (end >= item->size && is_taken(w, end - item->size, item->size, &end));
    if (end < item->size) return false;
    assert(end <= w->height && (item->offset == NOWHERE || end - item->size >= item->offset));
    item->offset = end - item->size;
    w->lifted[w->n_lifted++] = piece;
    return true;
}

static uint64_t event_key(int time, EventKind kind) { return key_of_int(time) * EVENT_KINDS + kind; }

/* With memory from s, and each piece's place by offset, in w->event, too. false: out of host memory. */
static bool open_walk(Walk *w, Scratch *s) {
    const size_t count = (size_t)w->n;
    w->leaves = 1;
    while (w->leaves < w->n) w->leaves *= 2;
    w->tree = scratch_new(s, 2 * (size_t)w->leaves, sizeof *w->tree);
    w->leaf = scratch_new(s, count, sizeof *w->leaf);
    w->lifted = scratch_new(s, count, sizeof *w->lifted);
    w->event = scratch_new(s, 2 * count, sizeof *w->event);
    w->spare = scratch_new(s, 2 * count, sizeof *w->spare);
    if (s->failed) return false;
    for (int i = 0; i < w->n; i++) w->event[i] = (Keyed){w->items[w->piece[i].item].offset, i};
    sort_keyed(w->event, w->spare, w->n);
    for (int i = 0; i < w->n; i++) w->leaf[w->event[i].value] = i;
    for (int i = 0; i < 2 * w->leaves; i++) w->tree[i] = NOTHING;
    return true;
}

/* Returns whether each piece that lives at one time has found a place. */
static bool walk(Walk *w) {
    bool found = true;
    for (int i = 0; i < w->n; i++) {
        const Piece *p = &w->piece[i];
        w->event[2 * i] = (Keyed){event_key(p->first, BEGINS), i};
        w->event[2 * i + 1] = (Keyed){event_key(p->last, lives_once(p) ? LIFTED : ENDS), i};
    }
    sort_keyed(w->event, w->spare, 2 * w->n);
    for (int i = 0; i < 2 * w->n && found; i++) {
        const Keyed *event = &w->event[i];
        const EventKind kind = (EventKind)(event->key % EVENT_KINDS);
        if (i == 0 || event->key / EVENT_KINDS != event[-1].key / EVENT_KINDS) w->n_lifted = 0; /* another time */
        if (kind == LIFTED) found = lift(w, event->value);
        else set_leaf(w, event->value, kind == BEGINS);
    }
    return found;
}

/* All pieces above the largest gap at that time move up by so many bytes. No two share a byte then that shared none. */
static void widen(Walk *w, int time, size_t top, size_t bytes) {
    size_t end = 0, gap = 0, from = 0;
    for (int i = 0; i < w->n; i++) {
        const Piece *p = &w->piece[w->event[i].value];
        const size_t offset = w->items[p->item].offset;
        if (offset == NOWHERE || time < p->first || p->last < time) continue;
        if (offset > end && offset - end > gap) gap = offset - end, from = offset;
        end = max_size(end, offset + p->size);
    }
    for (int i = 0; i < w->n && top - end < gap; i++) {
        size_t *offset = &w->items[w->piece[i].item].offset;
        if (*offset != NOWHERE && *offset >= from) *offset += bytes;
    }
}

bool plan_keep(PlanItem *items, const Piece *piece, int n, const Plan *before, size_t height, int peak, Scratch *s) {
    Walk w = {.items = items, .piece = piece, .n = n, .height = height};
    for (int i = 0; i < n; i++) {
        size_t *offset = &items[piece[i].item].offset;
        if (lives_once(&piece[i])) *offset = NOWHERE;
        else if (*offset + piece[i].size > height) return false;
    }
    if (!open_walk(&w, s)) return false;
    if (height > before->height) widen(&w, peak, before->height, height - before->height);
    return walk(&w);
}

void plan_lift_scratch(PlanItem *items, const Piece *piece, int n, size_t height, Scratch *s) {
    Walk w = {.items = items, .piece = piece, .n = n, .height = height};
    if (open_walk(&w, s)) walk(&w);
}
