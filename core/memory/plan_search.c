/* plan_search.c: a depth-first search for a plan of a given height, after MiniMalloc (Moffitt, ASPLOS 2023).
 *
 * Blocks are placed from the bottom to the top, each directly on top of the placed blocks that share a time with it.
 * Every plan can be pushed down until it has that form, so a plan is an order of the blocks. Three rules cut off most
 * orders:
 *   - offsets never fall, and at equal offsets the blocks' numbers rise: of orders with the same result one is tried;
 *   - a block is not placed while another block would still fit below its offset;
 *   - in each section of time, the placed blocks, the gap above them and the unplaced blocks stay within the height.
 * Of the blocks that could be placed at the same offset, the one with the lowest number is tried first. Early choices
 * matter most: a good numbering gives a plan with hardly a step back; after a bad one even a long search finds none. So
 * each attempt is short and learns from those before: blocks that lacked room get lower numbers the next time.
 *
 * A block is a piece, or all pieces that are alive in the same sections of time: of 280 that live near the peak of a ResNet-50 these
 * are 82 blocks, so an attempt takes a tenth of the steps, and has fewer orders to try. But a few plans need such pieces in different
 * places. So rounds of attempts take turns between both kinds of blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "plan_private.h"

/* Bounds of blocks in a plan, of rounds of attempts, and of the steps of one attempt (blocks and sections looked at): STEPS plus
 * STEPS_PER_PAIR for each pair of blocks. To place every block once takes about STEPS_OF_PAIR for each: 1 ms for 700 blocks.
 * ROUND: attempts of a round. */
enum { MOST_BLOCKS = 4000, MOST_ROUNDS = 16, ROUND = 16, STEPS = 20000, STEPS_PER_PAIR = 4, STEPS_OF_PAIR = 2 };
#define CHANCE 0.2 /* by what part of itself chance may change a key, times the number of the round */

typedef struct Block {
    size_t size, low;   /* low: its offset, once it is placed */
    int first, last;    /* the sections in which it is alive: [first, last] */
    int item;           /* the index of its lowest PlanItem */
    size_t pressure;    /* the bytes of the fullest section that it is alive in */
    long failures;      /* how often one of its sections had no room while it was unplaced */
    double key;         /* the block with the largest key has number 0 */
} Block;

/* A time at which the set of living blocks is maximal. Two blocks are alive at once if and only if they share a
 * section. */
typedef struct Section {
    size_t top, rest; /* the highest end of its placed blocks; the bytes of its unplaced ones */
    int lowest;       /* the spot that gave it room the last time has_room looked */
    long failures;    /* how often it had no room */
} Section;

enum { NO_ITEM = -1 };
typedef struct Blocks {
    Block *block;    /* [n] */
    int n;
    const int *next; /* by item: the one on it in the same block, or NO_ITEM */
} Blocks;

/* What every step looks at, of an unplaced block. low: the highest top of its sections; block: its number. */
typedef struct Spot { size_t low, size; int first, last, block; } Spot;

typedef struct Search {
    Block *block;     /* [n] */
    Spot *spot;       /* [unplaced], by number */
    Section *section; /* [sections] */
    size_t *covered;  /* a stack [depth]: the tops that the placed blocks' sections had before */
    size_t depth, height;
    int n, sections, unplaced;
    size_t limit;     /* the lowest end that an unplaced block can have: from there on, another block would still fit below */
    int next;         /* the spot to try after the block that was placed last */
    long steps, most; /* taken so far; the bound of this attempt */
    uint32_t random;  /* the last one of a fixed sequence */
} Search;

/* The highest top of the block's sections. */
static size_t lowest_offset(Search *s, const Spot *b) {
    size_t low = 0;
    for (int i = b->first; i <= b->last; i++) low = max_size(low, s->section[i].top);
    s->steps += b->last - b->first;
    return low;
}

static bool lives_in(const Spot *at, int section) { return (at->first <= section) & (section <= at->last); }

/* Counts a failure of the section, which has no room for its unplaced blocks, and of those blocks. */
static void blame(Search *s, int section) {
    s->section[section].failures++;
    for (int k = 0; k < s->unplaced; k++) s->block[s->spot[k].block].failures += lives_in(&s->spot[k], section);
    s->steps += s->unplaced;
}

/* The loops over all spots have no branch that depends on a spot, for those follow no pattern. */

/* Unplaced blocks that live with b lie on it, at `top` or above. In the same loop the limit is found, and, as in next_spot, what comes after b. */
static void raise_spots(Search *s, Spot b, int spot, size_t top) {
    size_t limit = SIZE_MAX, lowest = SIZE_MAX;
    int next = s->unplaced;
    for (int k = 0; k < s->unplaced; k++) {
        Spot *at = &s->spot[k];
        const bool raised = (at->low < top) & (at->first <= b.last) & (b.first <= at->last);
        const size_t low = raised ? top : at->low;
        const bool better = (low < lowest) & (low >= b.low + (k < spot));
        at->low = low;
        limit = min_size(limit, low + at->size);
        lowest = better ? low : lowest;
        next = better ? k : next;
    }
    s->limit = limit;
    s->next = lowest < limit ? next : s->unplaced;
}

/* Places the block of a spot, which is no longer one. false: one of its sections has no room any more for its unplaced blocks. */
static bool place(Search *s, int spot) {
    const Spot b = s->spot[spot];
    const size_t top = b.low + b.size;
    int full = -1;
    s->block[b.block].low = b.low;
    for (int i = b.first; i <= b.last; i++) {
        Section *at = &s->section[i];
        s->covered[s->depth++] = at->top;
        at->top = top;
        at->rest -= b.size;
        if (at->rest + top > s->height) full = i;
    }
    s->steps += --s->unplaced;
    memmove(&s->spot[spot], &s->spot[spot + 1], (size_t)(s->unplaced - spot) * sizeof b);
    raise_spots(s, b, spot, top);
    if (full >= 0) blame(s, full);
    return full < 0;
}

/* Undoes place for the block that was placed last, which was `b` at that spot. */
static void take_back(Search *s, int spot, Spot b) {
    for (int i = b.last; i >= b.first; i--) {
        s->section[i].top = s->covered[--s->depth];
        s->section[i].rest += b.size;
    }
    for (Spot *at = s->spot; at < s->spot + s->unplaced; at++)
        if (at->low == b.low + b.size && at->first <= b.last && b.first <= at->last) at->low = lowest_offset(s, at);
    memmove(&s->spot[spot + 1], &s->spot[spot], (size_t)(s->unplaced - spot) * sizeof b);
    s->spot[spot] = b;
    s->steps += s->unplaced++;
}

/* Can the block of a spot start so low that all unplaced blocks of the section fit from there on? */
static bool gives_room(const Search *s, int spot, int section) {
    return spot >= 0 && spot < s->unplaced && s->spot[spot].low <= s->height - s->section[section].rest && lives_in(&s->spot[spot], section);
}

/* A section has room if one of its unplaced blocks gives it: mostly the one that did so the last time, whose spot is one lower where another
 * block was placed since, or the one that does so for the section before. */
static bool has_room(Search *s, int section, size_t offset) {
    Section *at = &s->section[section];
    if (at->rest == 0) return true;
    if (offset > s->height - at->rest) return false;
    const int likely[] = {at->lowest, at->lowest - 1, section > 0 ? at[-1].lowest : 0};
    for (size_t i = 0; i < ARRAY_LEN(likely); i++) {
        at->lowest = likely[i];
        if (gives_room(s, at->lowest, section)) return true;
    }
    for (at->lowest = 0; at->lowest < s->unplaced; at->lowest++, s->steps++)
        if (gives_room(s, at->lowest, section)) return true;
    return false;
}

/* The spot to try after a block at `offset`: the one that can start lowest, below `limit`, and of those the first; from spot `from` on
 * one may start at `offset`, too. s->unplaced: there is none. */
static int next_spot(const Search *s, size_t offset, int from, size_t limit) {
    int found = s->unplaced;
    for (int k = 0; k < s->unplaced; k++) {
        const size_t low = s->spot[k].low;
        const bool better = (low < limit) & (low >= offset + (k < from));
        limit = better ? low : limit;
        found = better ? k : found;
    }
    return found;
}

/* Does every section have room? */
static bool have_room(Search *s, size_t offset) {
    for (int i = 0; i < s->sections; i++, s->steps++) {
        if (has_room(s, i, offset)) continue;
        blame(s, i);
        return false;
    }
    return true;
}

/* Places all unplaced blocks, after one was placed at `offset`. false: that is impossible, or the steps are used up; the placed blocks
 * are as they were. */
static bool place_rest(Search *s, size_t offset) {
    const size_t limit = s->limit;
    int spot = s->next;
    if (!s->unplaced) return true;
    s->steps += s->unplaced;
    if (!have_room(s, offset)) return false;
    while (s->steps < s->most) {
        s->steps += s->unplaced;
        if (spot == s->unplaced) break;
        const Spot tried = s->spot[spot];
        if (place(s, spot) && place_rest(s, tried.low)) return true;
        take_back(s, spot, tried);
        spot = next_spot(s, tried.low, spot + 1, limit); /* spots are in the order of blocks */
    }
    return false;
}

/* ---- sections */

/* The set of living blocks is maximal at the last time when one begins before another one ends. Fills in the sections of every block,
 * their bytes, and the blocks' pressures. Returns the sum of the blocks' numbers of sections: the most entries that `covered` can have.
 * keyed, spare, time, before: [n + 1] for its use, before of zeros */
static size_t find_sections(Search *s, const PlanItem *items, Keyed *keyed, Keyed *spare, int *time, int *before) {
    int times = 0;
    size_t sum = 0, live = 0;
    for (int i = 0; i < s->n; i++) keyed[i] = (Keyed){key_of_int(items[s->block[i].item].first), i};
    sort_keyed(keyed, spare, s->n);
    for (int i = 0; i < s->n; i++) { /* the times at which blocks begin, each once */
        Block *b = &s->block[keyed[i].value];
        const int first = items[b->item].first;
        if (times == 0 || time[times - 1] < first) time[times++] = first;
        b->first = times - 1;
    }
    for (int i = 0; i < s->n; i++) { /* the last one before a block's end is a section */
        Block *b = &s->block[i];
        b->last = count_before(time, times, items[b->item].last + 1) - 1;
        before[b->last] = 1;
    }
    for (int i = 0; i < times; i++) { /* how many sections come before it */
        const int is_section = before[i];
        before[i] = s->sections;
        s->sections += is_section;
    }
    for (Block *b = s->block; b < s->block + s->n; b++) {
        b->first = before[b->first];
        b->last = before[b->last];
        sum += (size_t)(b->last - b->first + 1);
        s->section[b->first].rest += b->size; /* first the differences to the section before */
        if (b->last + 1 < s->sections) s->section[b->last + 1].rest -= b->size;
    }
    for (int i = 0; i < s->sections; i++) s->section[i].rest = live += s->section[i].rest;
    for (Block *b = s->block; b < s->block + s->n; b++)
        for (int i = b->first; i <= b->last; i++) b->pressure = max_size(b->pressure, s->section[i].rest);
    return sum;
}

/* ---- numbers */

typedef double BlockKey(const Search *, const Block *);
static double by_life(const Search *s, const Block *b) { return (void)s, b->last - b->first + 1; }
static double by_end(const Search *s, const Block *b) { return (void)s, b->last + 1; }
static double by_size(const Search *s, const Block *b) { return (void)s, (double)b->size; }
static double by_begin(const Search *s, const Block *b) { return s->sections - b->first; }
static double own_failures(const Search *s, const Block *b) { return (void)s, (double)b->failures; }
static double section_failures(const Search *s, const Block *b) {
    double sum = 0;
    for (int i = b->first; i <= b->last; i++) sum += (double)s->section[i].failures;
    return sum;
}

static int compare_blocks(const void *left, const void *right) {
    const Block *a = left, *b = right;
    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    if (a->pressure != b->pressure) return a->pressure > b->pressure ? -1 : 1;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    return a->item - b->item;
}

/* Numbers the blocks by keys. Rounds take turns between two counts of failures, which begin at zero, and each round has
 * more chance than the one before: what one round does not find in its few attempts, another one may. */
static void number_blocks(Search *s, int round, int attempt) {
    static BlockKey *const keys[] = {by_life, by_end, by_size, by_begin}, *const failures[] = {own_failures,
                                                                                              section_failures};
    BlockKey *key = keys[attempt % 4], *failed = failures[round % 2];
    for (Block *b = s->block; b < s->block + s->n; b++) {
        s->random = s->random * 1664525u + 1013904223u;
        double chance = (s->random >> 8) / 16777216.0; /* 0 to 1 */
        b->key = key(s, b) * (1 + failed(s, b)) * (1 + CHANCE * round * chance);
    }
    qsort(s->block, (size_t)s->n, sizeof *s->block, compare_blocks);
    s->limit = SIZE_MAX;
    for (int k = 0; k < s->n; k++) {
        const Block *b = &s->block[k];
        s->spot[k] = (Spot){0, b->size, b->first, b->last, k};
        s->limit = min_size(s->limit, b->size);
    }
    s->unplaced = s->n;
    s->next = 0;
}

/* ---- rounds of attempts */

/* NONE: every order has been tried */
typedef enum Answer { FOUND, NONE, UNKNOWN } Answer;

/* An attempt that fails with steps left has tried every order. */
static Answer make_round(Search *s, const Blocks *blocks, int round, long most_steps) {
    s->block = blocks->block;
    s->n = blocks->n;
    for (int k = 0; k < s->n; k++) s->block[k].failures = 0;
    for (int k = 0; k < s->sections; k++) s->section[k].failures = 0;
    for (int i = 0; i < ROUND && s->steps < most_steps; i++) {
        number_blocks(s, round, i);
        s->most = s->steps + STEPS + (long)s->n * s->n * STEPS_PER_PAIR;
        if (place_rest(s, 0)) return FOUND;
        if (s->steps < s->most) return NONE;
    }
    return UNKNOWN;
}

/* The items of each block, one on another. */
static void fill_in(const Blocks *blocks, PlanItem *items) {
    for (const Block *b = blocks->block; b < blocks->block + blocks->n; b++) {
        size_t offset = b->low;
        for (int i = b->item; i != NO_ITEM; i = blocks->next[i]) {
            items[i].offset = offset;
            offset += items[i].size;
        }
    }
}

/* Rounds take turns between the two kinds of blocks. There is no plan where every order of the items has been tried. */
static bool search(Search *s, const Blocks *joined, const Blocks *apart, PlanItem *items, long most_steps) {
    Answer answer[] = {joined->n < apart->n ? UNKNOWN : NONE, UNKNOWN};
    for (int round = 0; round < MOST_ROUNDS && answer[1] == UNKNOWN && s->steps < most_steps; round++)
        for (int kind = 0; kind < 2; kind++) {
            const Blocks *blocks = kind ? apart : joined;
            if (answer[kind] == UNKNOWN) answer[kind] = make_round(s, blocks, round, most_steps);
            if (answer[kind] != FOUND) continue;
            fill_in(blocks, items);
            return true;
        }
    return false;
}

/* ---- blocks */

/* A block for each item with a size. next: [n] */
static Blocks separate(const PlanItem *items, int n, Block *block, int *next) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        next[i] = NO_ITEM;
        if (items[i].size) block[m++] = (Block){.size = items[i].size, .item = i};
    }
    return (Blocks){block, m, next};
}

/* Blocks that are alive in the same sections become one. keyed, spare: [n] for its use */
static Blocks join(const Blocks *apart, Block *block, int *next, Keyed *keyed, Keyed *spare) {
    int m = 0;
    for (int i = 0; i < apart->n; i++) keyed[i] = (Keyed){(uint64_t)apart->block[i].first << 32 | (uint64_t)apart->block[i].last, i};
    sort_keyed(keyed, spare, apart->n);
    for (int i = 0; i < apart->n; i++) {
        const Block b = apart->block[keyed[i].value];
        Block *to = m ? &block[m - 1] : NULL;
        const bool same = to && to->first == b.first && to->last == b.last;
        next[b.item] = same ? to->item : NO_ITEM;
        if (same) {
            to->item = b.item;
            to->size += b.size;
        } else {
            block[m++] = b;
        }
    }
    return (Blocks){block, m, next};
}

long plan_search_steps(int n) { return (long)n * n * STEPS_OF_PAIR; }

bool plan_search(PlanItem *items, int n, size_t height, long most_steps, long *steps, Scratch *m) {
    const size_t all = (size_t)n;
    size_t count = 1;
    for (int i = 0; i < n; i++) count += items[i].size > 0;
    if (count > MOST_BLOCKS) return false;
    Search s = {.block = scratch_new(m, count, sizeof(Block)), .spot = scratch_new(m, count, sizeof(Spot)),
                .section = scratch_new(m, count, sizeof(Section)), .height = height};
    Block *block = scratch_new(m, count, sizeof *block);
    Keyed *keyed = scratch_new(m, count, sizeof *keyed), *spare = scratch_new(m, count, sizeof *spare);
    int *time = scratch_new(m, count, sizeof *time), *before = scratch_new(m, count, sizeof *before);
    int *next = scratch_new(m, all, sizeof *next), *next_joined = scratch_new(m, all, sizeof *next_joined);
    if (m->failed) return false;
    const Blocks apart = separate(items, n, s.block, next);
    s.n = apart.n;
    const size_t lives = find_sections(&s, items, keyed, spare, time, before);
    s.covered = scratch_new(m, lives + 1, sizeof *s.covered);
    s.steps = (long)lives;
    if (m->failed) return false;
    for (int i = 0; i < s.sections; i++) assert(s.section[i].rest <= height);
    const Blocks joined = join(&apart, block, next_joined, keyed, spare);
    const bool found = plan_search_steps(joined.n) <= most_steps && search(&s, &joined, &apart, items, most_steps);
    *steps += s.steps;
    return found;
}
