/* plan_search.c: a plan of a given height, looked for depth first, by the ideas of MiniMalloc (Moffitt, ASPLOS 2023).
 *
 * Blocks are placed from the bottom to the top, each on what lies below it: every plan can be pushed down until it has
 * that form. So a plan is an order of the blocks, and three rules cut most orders off:
 *   - the offsets only rise (equal ones: the blocks' numbers rise), so of orders with the same result one is tried;
 *   - a block that could start where another one would still fit below it is not placed yet;
 *   - in each section of time, what is placed, the gap above it and what is not placed yet stay within the height.
 * Of the blocks at the same offset the one with the lowest number is tried first. Early choices decide much, and no way
 * of numbering suits every program: several are tried, each for a bounded number of steps. */
#include "plan.h"

#include <limits.h>
#include <stdlib.h>

#include "mem.h"

/* Bounds: blocks in a plan; blocks and sections looked at in one search (1 to 2 ms at 100 blocks), which lets it place
 * every block several times. */
enum { MOST_BLOCKS = 1000, MOST_STEPS = 600000, STEPS_PER_PAIR = 8 };

typedef struct Block {
    size_t size, low;   /* low: the offset once it is placed; before, the top of what is placed in its sections */
    int first, last;    /* the sections in which it is alive */
    int next, previous; /* in the ring of those that are not placed; its head is block[n] */
    int item;
    size_t pressure;    /* the bytes of the fullest section that it lives in */
    double key;         /* the largest has number 0 */
} Block;

/* A time at which the set of living blocks is maximal: two blocks are alive at once where they share a section. */
typedef struct Section {
    size_t top, rest; /* of what is placed; bytes that are not placed */
    int time, lowest; /* lowest: a block that started low enough the last time */
} Section;

typedef struct Search {
    Block *block;     /* [n + 1] */
    Section *section; /* [sections] */
    size_t *covered;  /* a stack of the sections' tops that placed blocks lie on; its end is `depth` */
    size_t depth, height;
    int n, sections;
    long steps, most; /* taken, and how many there may be */
} Search;

static bool share_time(const Block *a, const Block *b) { return a->first <= b->last && b->first <= a->last; }

static size_t lowest_offset(Search *s, const Block *b) {
    size_t low = 0;
    for (int i = b->first; i <= b->last; i++) low = max_size(low, s->section[i].top);
    s->steps += b->last - b->first;
    return low;
}

/* Onto what is below it. false: something in its sections has no room any more. */
static bool place(Search *s, Block *b) {
    size_t top = b->low + b->size;
    bool fits = top <= s->height;
    for (int i = b->first; i <= b->last; i++) {
        Section *at = &s->section[i];
        s->covered[s->depth++] = at->top;
        at->top = top;
        at->rest -= b->size;
        fits = fits && at->rest <= s->height - top;
    }
    s->block[b->previous].next = b->next;
    s->block[b->next].previous = b->previous;
    for (int k = s->block[s->n].next; k < s->n; k = s->block[k].next, s->steps++)
        if (s->block[k].low < top && share_time(b, &s->block[k])) s->block[k].low = top;
    return fits;
}

static void take_back(Search *s, Block *b) {
    for (int i = b->last; i >= b->first; i--) {
        s->section[i].top = s->covered[--s->depth];
        s->section[i].rest += b->size;
    }
    for (int k = s->block[s->n].next; k < s->n; k = s->block[k].next, s->steps++) {
        Block *other = &s->block[k];
        if (other->low == b->low + b->size && share_time(b, other)) other->low = lowest_offset(s, other);
    }
    s->block[b->previous].next = s->block[b->next].previous = (int)(b - s->block);
}

static bool starts_low(const Block *b, int section, size_t most) {
    return b->low <= most && b->first <= section && section <= b->last;
}

/* A section has room if one of its blocks can start so low that all of them fit above. */
static bool has_room(Search *s, int section, size_t offset) {
    Section *at = &s->section[section];
    size_t most = s->height - at->rest;
    const Block *known = &s->block[at->lowest];
    if (at->rest == 0) return true;
    if (offset > most) return false;
    if (s->block[known->next].previous == at->lowest && starts_low(known, section, most)) return true;
    for (int k = s->block[s->n].next; k < s->n; k = s->block[k].next, s->steps++) {
        if (!starts_low(&s->block[k], section, most)) continue;
        at->lowest = k;
        return true;
    }
    return false;
}

/* The block to try after number `last` at `offset`: the lowest, below `limit`; n if there is none. */
static int next_block(Search *s, size_t offset, int last, size_t limit) {
    int found = s->n;
    for (int k = s->block[s->n].next; k < s->n; k = s->block[k].next, s->steps++) {
        size_t low = s->block[k].low;
        if (low >= limit || low < offset || (low == offset && k <= last)) continue;
        limit = low;
        found = k;
    }
    return found;
}

/* Places what is left, after block `last` at `offset`. false: there is no such plan, or the steps are used up. */
static bool place_rest(Search *s, size_t offset, int last) {
    size_t limit = SIZE_MAX;
    if (s->block[s->n].next == s->n) return true;
    for (int k = s->block[s->n].next; k < s->n; k = s->block[k].next, s->steps++)
        if (s->block[k].low + s->block[k].size < limit) limit = s->block[k].low + s->block[k].size;
    for (int i = 0; i < s->sections; i++, s->steps++)
        if (!has_room(s, i, offset)) return false;
    while (s->steps < s->most && (last = next_block(s, offset, last, limit)) < s->n) {
        Block *b = &s->block[last];
        offset = b->low;
        if (place(s, b) && place_rest(s, offset, last)) return true;
        take_back(s, b);
    }
    return false;
}

/* ---- sections */

static int compare_sections(const void *left, const void *right) {
    const Section *a = left, *b = right;
    return (a->time > b->time) - (a->time < b->time);
}

/* The set is maximal at the last beginning before an end. */
static int find_sections(const PlanItem *items, const Block *block, int n, Section *section) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        int end = items[block[i].item].last;
        section[i] = (Section){0, 0, INT_MIN, 0};
        for (int k = 0; k < n; k++) {
            int begin = items[block[k].item].first;
            if (begin <= end && begin > section[i].time) section[i].time = begin;
        }
    }
    qsort(section, (size_t)n, sizeof *section, compare_sections);
    for (int i = 0; i < n; i++)
        if (m == 0 || section[i].time != section[m - 1].time) section[m++] = section[i];
    return m;
}

/* Returns the sum of the blocks' numbers of sections. */
static size_t find_lives(Search *s, const PlanItem *items) {
    size_t sum = 0;
    for (Block *b = s->block; b < s->block + s->n; b++) {
        const PlanItem *item = &items[b->item];
        b->last = -1;
        for (int i = 0; i < s->sections; i++) {
            b->first += s->section[i].time < item->first;
            b->last += s->section[i].time <= item->last;
        }
        sum += (size_t)(b->last - b->first + 1);
        for (int i = b->first; i <= b->last; i++) s->section[i].rest += b->size;
    }
    for (Block *b = s->block; b < s->block + s->n; b++)
        for (int i = b->first; i <= b->last; i++) b->pressure = max_size(b->pressure, s->section[i].rest);
    return sum;
}

/* ---- numbers */

typedef double BlockKey(const Block *);
static double by_life(const Block *b) { return b->last - b->first + 1; }
static double by_area(const Block *b) { return (double)b->size * by_life(b); }
static double by_begin(const Block *b) { return -b->first; }
static double by_end(const Block *b) { return b->last; }

static int compare_blocks(const void *left, const void *right) {
    const Block *a = left, *b = right;
    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    if (a->pressure != b->pressure) return a->pressure > b->pressure ? -1 : 1;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    return a->item - b->item;
}

static bool search_by(Search *s, BlockKey *key) {
    for (Block *b = s->block; b < s->block + s->n; b++) b->key = key(b);
    qsort(s->block, (size_t)s->n, sizeof *s->block, compare_blocks);
    for (int k = 0; k <= s->n; k++) {
        s->block[k].low = 0;
        s->block[k].next = k < s->n ? k + 1 : 0;
        s->block[k].previous = k > 0 ? k - 1 : s->n;
    }
    s->most = s->steps + MOST_STEPS + (long)s->n * s->n * STEPS_PER_PAIR;
    return place_rest(s, 0, -1);
}

static bool search(Search *s, PlanItem *items) {
    static BlockKey *const keys[] = {by_life, by_area, by_end, by_begin};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!search_by(s, keys[i])) continue;
        for (int k = 0; k < s->n; k++) items[s->block[k].item].offset = s->block[k].low;
        return true;
    }
    return false;
}

int plan_search(PlanItem *items, int n, size_t height, bool *found, Err *e) {
    size_t count = 1;
    *found = false;
    for (int i = 0; i < n; i++) count += items[i].size > 0;
    if (count > MOST_BLOCKS) return OK;
    Search s = {.block = mem_new(count * sizeof(Block)), .section = mem_new(count * sizeof(Section)), .height = height};
    if (s.block && s.section) {
        for (int i = 0; i < n; i++)
            if (items[i].size) s.block[s.n++] = (Block){.size = items[i].size, .item = i};
        s.sections = find_sections(items, s.block, s.n, s.section);
        s.covered = mem_new((find_lives(&s, items) + 1) * sizeof *s.covered);
        *found = s.covered && search(&s, items);
    }
    bool made = s.covered;
    mem_free(s.block);
    mem_free(s.section);
    mem_free(s.covered);
    return made ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory for the search of a plan of %d items", n);
}
