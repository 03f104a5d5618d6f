/* alloc_caching.c: PyTorch's CUDACachingAllocator with its default settings, on one stream.
 *
 *   segment   what is taken from the device; small: for blocks up to 1 MiB
 *   +---------------+-------+--------------------------+------------+
 *   | chunk         | free  | chunk                    | free       |  two free neighbours become one
 *   +---------------+-------+--------------------------+------------+
 *
 * A request is rounded up to 512 bytes and gets the smallest free chunk of its pool that is large enough; among equal
 * ones that of the oldest segment, at the lowest offset. PyTorch takes the lowest address, which is unpredictable. */
#include "alloc.h"
#include "base/mem.h"

enum {
    MIN_BLOCK = 512,        /* kMinBlockSize: every chunk is a multiple of it */
    SMALL_SIZE = 1 << 20,   /* kSmallSize: up to this a block is of the small pool */
    SMALL_SEGMENT = 2 << 20,  /* kSmallBuffer */
    MIN_LARGE = 10 << 20,   /* kMinLargeAlloc: from here on a segment is made for its block */
    LARGE_SEGMENT = 20 << 20, /* kLargeBuffer: below it */
    ROUND_LARGE = 2 << 20,  /* kRoundLarge */
};

typedef struct Segment Segment;

typedef struct Chunk {
    struct Chunk *prev, *next; /* in the segment, by offset */
    Segment *segment;
    size_t offset, size;
    bool free;
    struct Chunk *less, *more; /* in the tree of its pool's free chunks */
    uint32_t weight;
} Chunk;

struct Segment {
    Segment *next; /* the next younger one */
    Chunk *chunks;
    char *data;
    size_t size;
    uint64_t number; /* the larger, the younger */
    bool small;
};

typedef struct Caching {
    Allocator base;
    Segment *segments, **end; /* the oldest first; where the next one goes */
    uint64_t made;            /* segments, so far */
    Chunk *free[2];           /* of the large pool and of the small one: the roots of their trees */
    uint32_t random;
} Caching;

/* ---- free chunks: a treap in the order in which they are to be taken, weights from a fixed sequence */

static bool is_before(const Chunk *a, const Chunk *b) {
    if (a->size != b->size) return a->size < b->size;
    if (a->segment != b->segment) return a->segment->number < b->segment->number;
    return a->offset < b->offset;
}

/* Into the chunks before `at` and the others. */
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
    Chunk **root = &c->free[k->segment->small], *before, *others;
    c->random = c->random * 1664525u + 1013904223u;
    k->weight = c->random;
    k->less = k->more = NULL;
    k->free = true;
    part(*root, k, &before, &others);
    *root = join(join(before, k), others);
}

static void take_free(Caching *c, Chunk *k) {
    Chunk **at = &c->free[k->segment->small];
    while (*at != k) at = is_before(*at, k) ? &(*at)->more : &(*at)->less;
    *at = join(k->less, k->more);
    k->free = false;
}

/* The smallest that is large enough; the first of these in the order. */
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

static int take_segment(Caching *c, size_t size, void **data, Err *e) {
    int code = ledger_take(c->base.ledger, size, data, e);
    if (code == ERR_OOM && caching_empty_cache(&c->base)) code = ledger_take(c->base.ledger, size, data, e);
    return code;
}

/* A young segment for a block of `size`, one free chunk. */
static int add_segment(Caching *c, size_t size, Chunk **out, Err *e) {
    Segment *s = mem_new(sizeof *s);
    Chunk *k = mem_new(sizeof *k);
    void *data = NULL;
    size_t bytes = segment_size(size);
    int code = s && k ? take_segment(c, bytes, &data, e)
                      : err_set(e, ERR_HOST_MEMORY, "out of host memory for a segment");
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

/* Takes a free chunk; what `size` leaves over becomes a free chunk of its own, if it is worth it. */
static int take(Caching *c, Chunk *k, size_t size, Err *e) {
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

/* Makes one chunk of two that are not in the tree. */
static Chunk *merge(Chunk *k, Chunk *next) {
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
    b->size = k->size;
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
