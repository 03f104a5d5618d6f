/* alloc_caching.c: PyTorch's CUDACachingAllocator with its default settings, on one stream.
 *
 *   segment: one allocation of the device; a small segment serves blocks up to 1 MiB, a large one the others
 *   +---------------+-------+--------------------------+------------+
 *   | chunk         | free  | chunk                    | free       |  two free neighbours become one
 *   +---------------+-------+--------------------------+------------+
 *
 * A request is rounded up to a multiple of 512 bytes and gets the smallest free chunk of its pool that is large enough.
 * Of several chunks of that size it gets the one in the oldest segment, at the lowest offset. PyTorch takes the one at
 * the lowest address, which cannot be predicted. */
#include "alloc.h"
#include "base/mem.h"

enum {
    MIN_BLOCK = 512,        /* kMinBlockSize: every chunk is a multiple of it */
    SMALL_SIZE = 1 << 20,   /* kSmallSize: the largest block of the small pool */
    SMALL_SEGMENT = 2 << 20,  /* kSmallBuffer: the size of the small pool's segments */
    MIN_LARGE = 10 << 20,   /* kMinLargeAlloc: the smallest block that gets a segment of its own size */
    LARGE_SEGMENT = 20 << 20, /* kLargeBuffer: the size of a segment for smaller blocks of the large pool */
    ROUND_LARGE = 2 << 20,  /* kRoundLarge: a segment of a block's own size is a multiple of it */
};

typedef struct Segment Segment;

typedef struct Chunk {
    struct Chunk *prev, *next; /* the neighbours in the segment, by offset */
    Segment *segment;
    size_t offset, size;
    bool free;
    struct Chunk *less, *more; /* the children in the tree of the pool's free chunks */
    uint32_t weight;           /* in that tree, no child has a larger one */
} Chunk;

struct Segment {
    Segment *next; /* the one made next */
    Chunk *chunks; /* the first; together they cover the segment */
    char *data;
    size_t size;
    uint64_t number; /* counts the segments in the order in which they were made */
    bool small;
};

typedef struct Caching {
    Allocator base;
    Segment *segments, **end; /* the oldest first; the pointer that the next one is put into */
    uint64_t made;            /* segments that were ever made */
    Chunk *free[2];           /* by `small`: the root of the tree of the pool's free chunks */
    uint32_t random;          /* the last weight */
} Caching;

/* ---- free chunks: a treap in the order in which they are taken; its weights are a fixed sequence */

static bool is_before(const Chunk *a, const Chunk *b) {
    if (a->size != b->size) return a->size < b->size;
    if (a->segment != b->segment) return a->segment->number < b->segment->number;
    return a->offset < b->offset;
}

/* Parts the tree into the chunks before `at` and the others. */
static void part(Chunk *tree, const Chunk *at, Chunk **before, Chunk **others) {
    if (!tree) {
        *before = *others = NULL;
    } else if (is_before(tree, at)) {
        part(tree->more, at, &tree->more, others);
        *before = tree;
    } else {
        part(tree->less, at, before, &tree->less);
        *others = tree;
    }
}

/* Joins two trees; all chunks of `before` come before those of `others`. */
static Chunk *join(Chunk *before, Chunk *others) {
    if (!before || !others) return before ? before : others;
    if (before->weight > others->weight) {
        before->more = join(before->more, others);
        return before;
    }
    others->less = join(before, others->less);
    return others;
}

static void add_free(Caching *c, Chunk *k) {
    assert(!k->free);
    Chunk **root = &c->free[k->segment->small], *before, *others;
    c->random = c->random * 1664525u + 1013904223u;
    k->weight = c->random;
    k->less = k->more = NULL;
    k->free = true;
    part(*root, k, &before, &others);
    *root = join(join(before, k), others);
}

static void take_free(Caching *c, Chunk *k) {
    assert(k->free);
    Chunk **at = &c->free[k->segment->small];
    while (*at != k) at = is_before(*at, k) ? &(*at)->more : &(*at)->less;
    *at = join(k->less, k->more);
    k->free = false;
}

/* The first of the smallest chunks that are large enough; NULL: there is none. */
static Chunk *best_fit(const Caching *c, size_t size) {
    Chunk *best = NULL;
    for (Chunk *k = c->free[size <= SMALL_SIZE]; k; k = k->size < size ? k->more : k->less)
        if (k->size >= size) best = k;
    return best;
}

/* ---- segments */

static size_t segment_size(size_t size) {
    if (size <= SMALL_SIZE) return SMALL_SEGMENT;
    return size < MIN_LARGE ? LARGE_SEGMENT : align_up(size, ROUND_LARGE);
}

/* Gives back every segment that is one free chunk. */
static size_t caching_empty_cache(Allocator *a) {
    size_t released = 0;
    Caching *c = (Caching *)a;
    c->end = &c->segments;
    while (*c->end) {
        Segment *s = *c->end;
        if (!s->chunks->free || s->chunks->next) {
            c->end = &s->next;
            continue;
        }
        *c->end = s->next;
        take_free(c, s->chunks);
        released += s->size;
        ledger_give(a->ledger, s->data, s->size);
        mem_free(s->chunks);
        mem_free(s);
    }
    return released;
}

/* A new segment for a block of `size` bytes: one free chunk. As in PyTorch, the cache is given back to the device only
 * when the device has no room left. */
static int add_segment(Caching *c, size_t size, Chunk **out, Err *e) {
    Segment *s = mem_new(sizeof *s);
    Chunk *k = mem_new(sizeof *k);
    void *data = NULL;
    size_t bytes = segment_size(size);
    int code = s && k ? ledger_take(c->base.ledger, bytes, &data, e)
                      : err_set(e, ERR_HOST_MEMORY, "out of host memory for a segment");
    if (code == ERR_OOM && caching_empty_cache(&c->base)) code = ledger_take(c->base.ledger, bytes, &data, e);
    if (code) {
        mem_free(s);
        mem_free(k);
        return code;
    }
    *s = (Segment){NULL, k, data, bytes, c->made++, size <= SMALL_SIZE};
    *k = (Chunk){.segment = s, .size = bytes};
    *c->end = s;
    c->end = &s->next;
    add_free(c, k);
    *out = k;
    return OK;
}

/* ---- blocks */

/* Takes a free chunk. What it has beyond `size` bytes becomes a free chunk of its own if it is large enough (PyTorch's
 * should_split). */
static int take(Caching *c, Chunk *k, size_t size, Err *e) {
    assert(k->free && k->size >= size && size % MIN_BLOCK == 0);
    size_t rest = k->size - size;
    if (k->segment->small ? rest < MIN_BLOCK : rest <= SMALL_SIZE) {
        take_free(c, k);
        return OK;
    }
    Chunk *tail = mem_new(sizeof *tail);
    if (!tail) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a block");
    take_free(c, k);
    *tail = (Chunk){.prev = k, .next = k->next, .segment = k->segment, .offset = k->offset + size, .size = rest};
    if (k->next) k->next->prev = tail;
    k->next = tail;
    k->size = size;
    add_free(c, tail);
    return OK;
}

/* Makes one chunk of k and its neighbour `next`, neither of which is in the tree. */
static Chunk *merge(Chunk *k, Chunk *next) {
    assert(k->next == next && k->offset + k->size == next->offset && !k->free && !next->free);
    k->size += next->size;
    k->next = next->next;
    if (k->next) k->next->prev = k;
    mem_free(next);
    return k;
}

static int caching_get(Allocator *a, size_t offset, Block *b, Err *e) {
    (void)offset;
    Caching *c = (Caching *)a;
    size_t size = align_up(b->bytes, MIN_BLOCK);
    Chunk *k = best_fit(c, size);
    int code = k ? OK : add_segment(c, size, &k, e);
    if (!code) code = take(c, k, size, e);
    if (code) return code;
    b->data = k->segment->data + k->offset;
    b->owner = k;
    return OK;
}

static void caching_put(Allocator *a, Block *b) {
    Caching *c = (Caching *)a;
    Chunk *k = b->owner, *prev = k->prev, *next = k->next;
    if (next && next->free) {
        take_free(c, next);
        k = merge(k, next);
    }
    if (prev && prev->free) {
        take_free(c, prev);
        k = merge(prev, k);
    }
    add_free(c, k);
}

static uint64_t hash(uint64_t h, uint64_t value) { return hash_bytes(h, &value, sizeof value); }

static uint64_t caching_state(const Allocator *a) {
    uint64_t h = HASH_START;
    for (const Segment *s = ((const Caching *)a)->segments; s; s = s->next) {
        h = hash(h, s->size << 1 | s->small);
        for (const Chunk *k = s->chunks; k; k = k->next) h = hash(h, k->size << 1 | k->free);
    }
    return h;
}

static void caching_close(Allocator *a) {
    caching_empty_cache(a);
    assert(!((Caching *)a)->segments); /* else a block was not put */
    mem_free(a);
}

int alloc_caching_open(Ledger *ledger, Allocator **out, Err *e) {
    static const AllocatorTable table = {caching_get, caching_put, caching_empty_cache, caching_state, caching_close};
    Caching *c = mem_new(sizeof *c);
    if (!c) return err_set(e, ERR_HOST_MEMORY, "out of host memory in the caching allocator");
    c->base = (Allocator){&table, ledger};
    c->end = &c->segments;
    *out = &c->base;
    return OK;
}
