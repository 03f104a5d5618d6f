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
    const Piece *piece;
    Span *tree;            /* [2 leaves]: the root is 1, the children of i are 2 i and 2 i + 1 */
    int leaves, *leaf;     /* leaves: a power of two; leaf[n]: by piece, its place by offset */
    int *lifted, n_lifted; /* the pieces that were lifted at the present time; they are not in the tree */
    size_t height;         /* bytes of the plan */
} Walk;

static const Span NOTHING = {SIZE_MAX, 0, 0};

static Span join(Span a, Span b) {
    if (a.low > a.high) return b;
    if (b.low > b.high) return a;
    return (Span){a.low, b.high, max_size(b.low - a.high, max_size(a.gap, b.gap))};
}

/* The piece is alive from now on, or not. */
static void set_leaf(Walk *w, int piece, bool lives) {
    const PlanItem *item = &w->items[w->piece[piece].item];
    int i = w->leaves + w->leaf[piece];
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

/* Moves the piece up. Its own place is free of all others, so it never moves down. */
static void lift(Walk *w, int piece) {
    PlanItem *item = &w->items[w->piece[piece].item];
    size_t end = w->height;
    set_leaf(w, piece, false);
    do find_room(w, 1, item->size, &end);
    while (is_taken(w, end - item->size, item->size, &end));
    assert(end <= w->height && end - item->size >= item->offset && end >= item->size);
    item->offset = end - item->size;
    w->lifted[w->n_lifted++] = piece;
}

static uint64_t event_key(int time, EventKind kind) { return key_of_int(time) * EVENT_KINDS + kind; }

/* event, spare: [2 n] for its use */
static void walk(Walk *w, Keyed *event, Keyed *spare, int n) {
    for (int i = 0; i < n; i++) {
        const Piece *p = &w->piece[i];
        event[2 * i] = (Keyed){event_key(p->first, BEGINS), i};
        event[2 * i + 1] = (Keyed){event_key(p->last, p->first == p->last ? LIFTED : ENDS), i};
    }
    sort_keyed(event, spare, 2 * n);
    for (int i = 0; i < 2 * n; i++) {
        const EventKind kind = (EventKind)(event[i].key % EVENT_KINDS);
        if (i == 0 || event[i].key / EVENT_KINDS != event[i - 1].key / EVENT_KINDS) w->n_lifted = 0; /* another time */
        if (kind == LIFTED) lift(w, event[i].value);
        else set_leaf(w, event[i].value, kind == BEGINS);
    }
}

void plan_lift_scratch(PlanItem *items, const Piece *piece, int n, size_t height, Scratch *s) {
    size_t count = (size_t)n, leaves = 1;
    while (leaves < count) leaves *= 2;
    Walk w = {items, piece, scratch_new(s, 2 * leaves, sizeof(Span)), (int)leaves, scratch_new(s, count, sizeof(int)),
              scratch_new(s, count, sizeof(int)), 0, height};
    Keyed *keyed = scratch_new(s, 2 * count, sizeof *keyed), *spare = scratch_new(s, 2 * count, sizeof *spare);
    if (s->failed) return;
    for (int i = 0; i < n; i++) keyed[i] = (Keyed){items[piece[i].item].offset, i};
    sort_keyed(keyed, spare, n);
    for (int i = 0; i < n; i++) w.leaf[keyed[i].value] = i;
    for (int i = 0; i < 2 * w.leaves; i++) w.tree[i] = NOTHING;
    walk(&w, keyed, spare, n);
}
