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
 * places. So rounds of attempts take turns between both kinds of blocks.
 *
 * Nearly all of the time goes to loops over the blocks that are not placed yet. What these look at lies in rows of 32-bit numbers, and
 * no branch depends on a block, so that the processor looks at several at once: sizes and offsets are counted in units. */
#include "plan_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of blocks in a plan, of rounds of attempts, and of the steps of one attempt (blocks and sections looked at): STEPS plus
 * STEPS_PER_PAIR for each pair of blocks. To place every block once takes about STEPS_OF_PAIR for each: 1 ms for 700 blocks.
 * ROUND: attempts of a round. */
enum { MOST_BLOCKS = 4000, MOST_ROUNDS = 16, ROUND = 16, STEPS = 20000, STEPS_PER_PAIR = 4, STEPS_OF_PAIR = 2 };
#define CHANCE 0.2 /* by what part of itself chance may change a key, times the number of the round */

/* MOST_UNITS: of a height, so that the sum of two fits in an int. PLACED: the row LOW of a placed block, above all others. */
enum { MOST_UNITS = (1 << 30) - 1, PLACED = 1 << 30 };

typedef struct Block {
    int size, low;      /* in units; low: its offset, once it is placed */
    int first, last;    /* the sections in which it is alive: [first, last] */
    int item;           /* the index of its lowest PlanItem */
    int pressure;       /* the units of the fullest section that it is alive in */
    long failures;      /* how often one of its sections had no room while it was unplaced */
    double key;         /* the block with the largest key has number 0 */
} Block;

enum { NO_ITEM = -1 };
typedef struct Blocks {
    Block *block;    /* [n] */
    int n;
    const int *next; /* by item: the one on it in the same block, or NO_ITEM */
} Blocks;

/* What every step looks at, by the blocks' numbers. LOW: the highest top of its sections, or PLACED; FIRST, LAST: its sections */
typedef enum Row { LOW, SIZE, FIRST, LAST, ROWS } Row;

/* A section is a time at which the set of living blocks is maximal. Two blocks are alive at once if and only if they share a section. */
typedef struct Search {
    Block *block;   /* [n] */
    int *row[ROWS]; /* [n] */
    int *top, *rest; /* by section: the highest end of its placed blocks; the units of its unplaced ones */
    int *lowest;    /* by section: the block that could start low enough the last time has_room looked */
    long *failures; /* by section: how often it had no room */
    int *covered;   /* a stack [depth]: the tops that the placed blocks' sections had before */
    size_t depth, unit;
    int height, n, sections, unplaced, from; /* from: none below is unplaced */
    long steps, most; /* taken so far; the bound of this attempt */
    uint32_t random;  /* the last one of a fixed sequence */
} Search;

static int greatest(const int *number, int n) {
    int most = 0;
    for (int i = 0; i < n; i++) most = number[i] > most ? number[i] : most;
    return most;
}

/* The highest top of the block's sections. */
static int lowest_offset(Search *s, int block) {
    const int first = s->row[FIRST][block], last = s->row[LAST][block];
    s->steps += last - first;
    return greatest(&s->top[first], last - first + 1);
}

static bool lives_in(const Search *s, int block, int section) {
    return (s->row[FIRST][block] <= section) & (section <= s->row[LAST][block]);
}

/* Counts a failure of the section, which has no room for its unplaced blocks, and of those blocks. */
static void blame(Search *s, int section) {
    s->failures[section]++;
    for (int k = 0; k < s->n; k++) s->block[k].failures += lives_in(s, k, section) & (s->row[LOW][k] != PLACED);
    s->steps += s->unplaced;
}

/* Those of the n that live in sections [first, last] lie at `top` or above. */
static void raise_low(int n, int *restrict low, const int *restrict begin, const int *restrict end, int first, int last, int top) {
    for (int k = 0; k < n; k++) {
        const int raised = (low[k] < top) & (begin[k] <= last) & (first <= end[k]);
        low[k] = raised ? top : low[k];
    }
}

/* Places the block. false: one of its sections has no room any more for its unplaced blocks. */
static bool place(Search *s, int block) {
    const int first = s->row[FIRST][block], last = s->row[LAST][block], n = last - first + 1, size = s->row[SIZE][block];
    const int low = s->row[LOW][block], top = low + size;
    int *tops = &s->top[first], *rest = &s->rest[first];
    memcpy(&s->covered[s->depth], tops, (size_t)n * sizeof *tops);
    s->depth += (size_t)n;
    for (int i = 0; i < n; i++) tops[i] = top;
    for (int i = 0; i < n; i++) rest[i] -= size;
    s->block[block].low = low;
    s->row[LOW][block] = PLACED;
    while (s->from < s->n && s->row[LOW][s->from] == PLACED) s->from++;
    s->steps += --s->unplaced;
    raise_low(s->n, s->row[LOW], s->row[FIRST], s->row[LAST], first, last, top);
    if (greatest(rest, n) + top <= s->height) return true;
    int full = last;
    while (s->rest[full] + top <= s->height) full--;
    blame(s, full);
    return false;
}

/* Undoes place for the block that was placed last. */
static void take_back(Search *s, int block) {
    const int first = s->row[FIRST][block], last = s->row[LAST][block], n = last - first + 1, size = s->row[SIZE][block];
    const int top = s->block[block].low + size, *begin = s->row[FIRST], *end = s->row[LAST];
    int *low = s->row[LOW], *rest = &s->rest[first];
    s->depth -= (size_t)n;
    memcpy(&s->top[first], &s->covered[s->depth], (size_t)n * sizeof *s->top);
    for (int i = 0; i < n; i++) rest[i] += size;
    for (int k = 0; k < s->n; k++)
        if (low[k] == top && begin[k] <= last && first <= end[k]) low[k] = lowest_offset(s, k);
    low[block] = s->block[block].low;
    s->from = min_int(s->from, block);
    s->steps += s->unplaced++;
}

/* A section has room if one of its unplaced blocks can start so low that all of them fit from there on. */
static bool has_room(Search *s, int section, int offset) {
    const int *low = s->row[LOW], most = s->height - s->rest[section];
    if (s->rest[section] == 0) return true;
    if (offset > most) return false;
    const int known = s->lowest[section];
    if (low[known] <= most && lives_in(s, known, section)) return true;
    for (int k = s->from; k < s->n; k++, s->steps++) {
        if (low[k] > most || !lives_in(s, k, section)) continue;
        s->lowest[section] = k;
        return true;
    }
    return false;
}

/* The least of these numbers that is `from` or more, and below PLACED; else PLACED. */
static int least_from(const int *number, int n, int from) {
    int least = PLACED;
    for (int k = 0; k < n; k++) {
        const int of = number[k] >= from ? number[k] : PLACED;
        least = of < least ? of : least;
    }
    return least;
}

/* The block to try after block `last` at `offset`: the one that can start lowest, below `limit`, and of those the first; s->n: there
 * is none. */
static int next_block(Search *s, int offset, int last, int limit) {
    const int *low = s->row[LOW], after = last + 1; /* from there on at `offset`, too */
    const int there = least_from(low + after, s->n - after, offset), above = least_from(low, after, offset + 1);
    const int least = min_int(there, above);
    int found = there == offset ? after : 0;
    s->steps += s->unplaced;
    if (least >= limit || least == PLACED) return s->n;
    while (low[found] != least) found++;
    return found;
}

/* The lowest end that an unplaced block can have. */
static int lowest_end(const Search *s) {
    const int *low = s->row[LOW], *size = s->row[SIZE];
    int end = INT_MAX;
    for (int k = 0; k < s->n; k++) end = low[k] + size[k] < end ? low[k] + size[k] : end;
    return end;
}

/* Does every section have room? */
static bool have_room(Search *s, int offset) {
    for (int i = 0; i < s->sections; i++, s->steps++) {
        if (has_room(s, i, offset)) continue;
        blame(s, i);
        return false;
    }
    return true;
}

/* Places all unplaced blocks, after block `last` was placed at `offset`. false: that is impossible, or the steps are
 * used up; the placed blocks are as they were. */
static bool place_rest(Search *s, int offset, int last) {
    if (!s->unplaced) return true;
    const int limit = lowest_end(s); /* from there on, another block would still fit below */
    s->steps += s->unplaced;
    if (!have_room(s, offset)) return false;
    while (s->steps < s->most && (last = next_block(s, offset, last, limit)) < s->n) {
        offset = s->row[LOW][last];
        if (place(s, last) && place_rest(s, offset, last)) return true;
        take_back(s, last);
    }
    return false;
}

/* ---- sections */

static int compare_ints(const void *left, const void *right) {
    const int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

/* The set of living blocks is maximal at the last time when one begins before another one ends. Fills `time` [n] with the
 * sections' times, sorted; returns their number. begin: [n] for its use */
static int find_sections(const PlanItem *items, const Block *block, int n, int *time, int *begin) {
    int m = 0;
    for (int i = 0; i < n; i++) begin[i] = items[block[i].item].first;
    qsort(begin, (size_t)n, sizeof *begin, compare_ints);
    for (int i = 0; i < n; i++) time[i] = begin[count_before(begin, n, items[block[i].item].last + 1) - 1]; /* its own begin is one */
    qsort(time, (size_t)n, sizeof *time, compare_ints);
    for (int i = 0; i < n; i++)
        if (m == 0 || time[i] != time[m - 1]) time[m++] = time[i];
    return m;
}

/* Fills in the sections of every block, their units and its pressure. Returns the sum of the blocks' numbers of
 * sections: the most entries that `covered` can have. */
static size_t find_lives(Search *s, const PlanItem *items, const int *time) {
    size_t sum = 0;
    for (Block *b = s->block; b < s->block + s->n; b++) {
        const PlanItem *item = &items[b->item];
        b->first = count_before(time, s->sections, item->first);
        b->last = count_before(time, s->sections, item->last + 1) - 1;
        sum += (size_t)(b->last - b->first + 1);
        for (int i = b->first; i <= b->last; i++) s->rest[i] += b->size;
    }
    for (Block *b = s->block; b < s->block + s->n; b++)
        for (int i = b->first; i <= b->last; i++) b->pressure = max_int(b->pressure, s->rest[i]);
    return sum;
}

/* ---- numbers */

typedef double BlockKey(const Search *, const Block *);
static double by_life(const Search *s, const Block *b) { return (void)s, b->last - b->first + 1; }
static double by_end(const Search *s, const Block *b) { return (void)s, b->last + 1; }
static double by_size(const Search *s, const Block *b) { return (void)s, b->size; }
static double by_begin(const Search *s, const Block *b) { return s->sections - b->first; }
static double own_failures(const Search *s, const Block *b) { return (void)s, (double)b->failures; }
static double section_failures(const Search *s, const Block *b) {
    double sum = 0;
    for (int i = b->first; i <= b->last; i++) sum += (double)s->failures[i];
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
    for (int k = 0; k < s->n; k++) {
        const Block *b = &s->block[k];
        const int of[ROWS] = {[LOW] = 0, [SIZE] = b->size, [FIRST] = b->first, [LAST] = b->last};
        for (int row = 0; row < ROWS; row++) s->row[row][k] = of[row];
    }
    s->unplaced = s->n;
    s->from = 0;
}

/* ---- rounds of attempts */

/* NONE: every order has been tried */
typedef enum Answer { FOUND, NONE, UNKNOWN } Answer;

/* An attempt that fails with steps left has tried every order. */
static Answer make_round(Search *s, const Blocks *blocks, int round, long most_steps) {
    s->block = blocks->block;
    s->n = blocks->n;
    for (int k = 0; k < s->n; k++) s->block[k].failures = 0;
    for (int k = 0; k < s->sections; k++) s->failures[k] = 0;
    for (int i = 0; i < ROUND && s->steps < most_steps; i++) {
        number_blocks(s, round, i);
        s->most = s->steps + STEPS + (long)s->n * s->n * STEPS_PER_PAIR;
        if (place_rest(s, 0, -1)) return FOUND;
        if (s->steps < s->most) return NONE;
    }
    return UNKNOWN;
}

/* The items of each block, one on another. */
static void fill_in(const Search *s, const Blocks *blocks, PlanItem *items) {
    for (const Block *b = blocks->block; b < blocks->block + blocks->n; b++) {
        size_t offset = (size_t)b->low * s->unit;
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
            fill_in(s, blocks, items);
            return true;
        }
    return false;
}

/* ---- blocks */

/* Bytes of which all sizes are multiples; more, where the height has too many of them, and what is found has some bytes to spare. */
static size_t find_unit(const PlanItem *items, int n, size_t height) {
    size_t all = 0;
    for (int i = 0; i < n; i++) all |= items[i].size;
    size_t unit = all ? all & (0 - all) : 1;
    while (height / unit > MOST_UNITS) unit *= 2;
    return unit;
}

/* A block for each item with a size. next: [n] */
static Blocks separate(const PlanItem *items, int n, size_t unit, Block *block, int *next) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        next[i] = NO_ITEM;
        if (items[i].size) block[m++] = (Block){.size = (int)((items[i].size + unit - 1) / unit), .item = i};
    }
    return (Blocks){block, m, next};
}

static int compare_lives(const void *left, const void *right) {
    const Block *a = left, *b = right;
    if (a->first != b->first) return a->first - b->first;
    return a->last != b->last ? a->last - b->last : a->item - b->item;
}

/* Blocks that are alive in the same sections become one. */
static Blocks join(const Blocks *apart, Block *block, int *next) {
    int m = 0;
    memcpy(block, apart->block, (size_t)apart->n * sizeof *block);
    qsort(block, (size_t)apart->n, sizeof *block, compare_lives);
    for (int i = 0; i < apart->n; i++) {
        const Block b = block[i];
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
    const size_t unit = find_unit(items, n, height);
    Search s = {.block = scratch_new(m, count, sizeof(Block)), .top = scratch_new(m, count, sizeof(int)), .rest = scratch_new(m, count, sizeof(int)),
                .lowest = scratch_new(m, count, sizeof(int)), .failures = scratch_new(m, count, sizeof(long)), .unit = unit, .height = (int)(height / unit)};
    Block *block = scratch_new(m, count, sizeof *block);
    for (int row = 0; row < ROWS; row++) s.row[row] = scratch_new(m, count, sizeof(int));
    int *time = scratch_new(m, count, sizeof *time), *begin = scratch_new(m, count, sizeof *begin);
    int *next = scratch_new(m, all, sizeof *next), *next_joined = scratch_new(m, all, sizeof *next_joined);
    if (m->failed) return false;
    const Blocks apart = separate(items, n, unit, s.block, next);
    s.n = apart.n;
    s.sections = find_sections(items, s.block, s.n, time, begin);
    const size_t lives = find_lives(&s, items, time);
    s.covered = scratch_new(m, lives + 1, sizeof *s.covered);
    s.steps = (long)lives;
    if (m->failed) return false;
    bool found = true; /* all that live at once are within the height, also as whole units */
    for (int i = 0; i < s.sections; i++) found &= s.rest[i] <= s.height;
    const Blocks joined = join(&apart, block, next_joined);
    found = found && plan_search_steps(joined.n) <= most_steps && search(&s, &joined, &apart, items, most_steps);
    *steps += s.steps;
    return found;
}
