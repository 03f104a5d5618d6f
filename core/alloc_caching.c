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
#include "mem.h"

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
} Chunk;

struct Segment {
    Segment *next; /* the next younger one */
    Chunk *chunks;
    char *data;
    size_t size;
    bool small;
};

typedef struct Caching {
    Allocator base;
    Segment *segments; /* the oldest first */
} Caching;

static size_t segment_size(size_t size) {
    if (size <= SMALL_SIZE) return SMALL_SEGMENT;
    return size < MIN_LARGE ? LARGE_SEGMENT : align_up(size, ROUND_LARGE);
}

/* The walk goes from old to young and from low to high, so the first of the smallest is the one that is wanted. */
static Chunk *best_fit(const Caching *c, size_t size) {
    Chunk *best = NULL;
    for (Segment *s = c->segments; s; s = s->next) {
        if (s->small != (size <= SMALL_SIZE)) continue;
        for (Chunk *k = s->chunks; k; k = k->next) {
            if (!k->free || k->size < size || (best && k->size >= best->size)) continue;
            if (k->size == size) return k;
            best = k;
        }
    }
    return best;
}

/* Gives back every segment that is one free chunk. */
static size_t caching_empty_cache(Allocator *a) {
    size_t released = 0;
    for (Segment **at = &((Caching *)a)->segments; *at;) {
        Segment *s = *at;
        if (!s->chunks->free || s->chunks->next) {
            at = &s->next;
            continue;
        }
        *at = s->next;
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
    *s = (Segment){NULL, k, data, bytes, size <= SMALL_SIZE};
    *k = (Chunk){NULL, NULL, s, 0, bytes, true};
    Segment **end = &c->segments;
    while (*end) end = &(*end)->next;
    *end = s;
    *out = k;
    return OK;
}

/* Cuts what `size` leaves over into a free chunk of its own, if it is worth it. */
static int split(Chunk *k, size_t size, Err *e) {
    size_t rest = k->size - size;
    if (k->segment->small ? rest < MIN_BLOCK : rest <= SMALL_SIZE) return OK;
    Chunk *tail = mem_new(sizeof *tail);
    if (!tail) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a block");
    *tail = (Chunk){k, k->next, k->segment, k->offset + size, rest, true};
    if (k->next) k->next->prev = tail;
    k->next = tail;
    k->size = size;
    return OK;
}

static void merge_with_next(Chunk *k) {
    Chunk *next = k->next;
    if (!next || !k->free || !next->free) return;
    k->size += next->size;
    k->next = next->next;
    if (k->next) k->next->prev = k;
    mem_free(next);
}

static int caching_get(Allocator *a, size_t offset, Block *b, Err *e) {
    (void)offset;
    Caching *c = (Caching *)a;
    size_t size = align_up(b->bytes, MIN_BLOCK);
    Chunk *k = best_fit(c, size);
    int code = k ? OK : add_segment(c, size, &k, e);
    if (!code) code = split(k, size, e);
    if (code) return code;
    k->free = false;
    b->data = k->segment->data + k->offset;
    b->owner = k;
    return OK;
}

static void caching_put(Allocator *a, Block *b) {
    (void)a;
    Chunk *k = b->owner;
    k->free = true;
    merge_with_next(k);
    if (k->prev) merge_with_next(k->prev);
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
    *out = &c->base;
    return OK;
}
