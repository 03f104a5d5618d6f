/* alloc_caching.c: PyTorch's CUDACachingAllocator.
 *
 *   segment: one allocation of the device; a small segment serves blocks up to 1 MiB, a large one the others
 *   +---------------+-------+--------------------------+------------+
 *   | chunk         | free  | chunk                    | free       |  two free neighbours become one
 *   +---------------+-------+--------------------------+------------+
 *
 * A request is rounded up to a multiple of 512 bytes and gets the smallest free chunk of its pool and stream that is
 * large enough. Of several chunks of that size it gets the one in the lowest segment, at the lowest offset. PyTorch
 * takes the one at the lowest address, which cannot be predicted: where no addresses are recorded, an older segment
 * counts as lower.
 *
 * An expandable segment has far more addresses than there is memory; pages of the device are mapped where they are
 * needed, and unmapped once all of a page is free:
 *   +---------------+-------+-----------+ - - - - - - - - - - - - - +
 *   | chunk         | free  | chunk     | not mapped                |
 *   +---------------+-------+-----------+ - - - - - - - - - - - - - + */
#include "alloc_caching.h"

#include "base/mem.h"

enum {
    MIN_BLOCK = 512,        /* kMinBlockSize: every chunk is a multiple of it */
    SMALL_SIZE = 1 << 20,   /* kSmallSize: the largest block of the small pool */
    SMALL_SEGMENT = 2 << 20,  /* kSmallBuffer: the size of the small pool's segments, or of their pages */
    MIN_LARGE = 10 << 20,   /* kMinLargeAlloc: the smallest block that gets a segment of its own size */
    LARGE_SEGMENT = 20 << 20, /* kLargeBuffer: the size of a segment for smaller blocks of the large pool, or of a page */
    ROUND_LARGE = 2 << 20,  /* kRoundLarge: a segment of a block's own size is a multiple of it */
};
#define YOUNGEST (UINT64_C(1) << 62)    /* above every address that a device has */
#define ADDRESSES ((size_t)1 << 44)     /* of an expandable segment where memory has no limit */

typedef struct Segment Segment;

typedef struct Chunk {
    struct Chunk *prev, *next; /* the neighbours in the segment, by offset */
    Segment *segment;
    size_t offset, size;
    uint64_t since;            /* searches of the large pool before it became free */
    bool free;                 /* it is in the tree of its pool's free chunks */
    bool unmapped;             /* addresses without memory, neither free nor in use */
    struct Chunk *less, *more; /* the children in that tree */
    uint32_t weight;           /* in that tree, no child has a larger one */
} Chunk;

struct Segment {
    Segment *next; /* the one made next */
    Chunk *chunks; /* the first; together they cover the segment */
    char *data;
    size_t size;
    uint64_t address; /* where it lies among the others */
    int stream;
    bool small, expandable;
};

typedef struct Caching {
    Allocator base;
    CachingSettings settings;
    Segment *segments, **end; /* the oldest first; the pointer that the next one is put into */
    uint64_t made;            /* segments that were ever made */
    uint64_t next_address;    /* of the next segment; 0: above all others */
    uint64_t searches;        /* of the large pool */
    int stream;               /* whose requests come now */
    size_t retries;
    Chunk *free[2];           /* by `small`: the root of the tree of the pool's free chunks */
    uint32_t random;          /* the last weight */
    CachingWatch *watch;      /* NULL: nobody */
    void *watch_arg;
} Caching;

/* ---- free chunks: a treap in the order in which they are taken, by stream; its weights are a fixed sequence */

static bool is_before(const Chunk *a, const Chunk *b) {
    if (a->segment->stream != b->segment->stream) return a->segment->stream < b->segment->stream;
    if (a->size != b->size) return a->size < b->size;
    if (a->segment->address != b->segment->address) return a->segment->address < b->segment->address;
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
    assert(!k->free && !k->unmapped);
    Chunk **root = &c->free[k->segment->small], *before, *others;
    c->random = c->random * 1664525u + 1013904223u;
    k->weight = c->random;
    k->since = c->searches;
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

/* The first chunk of the current stream that has at least `size` bytes, or NULL. */
static Chunk *first_of(const Caching *c, bool small, size_t size) {
    Chunk *best = NULL;
    for (Chunk *k = c->free[small]; k;) {
        int stream = k->segment->stream;
        bool before = stream != c->stream ? stream < c->stream : k->size < size;
        if (!before) best = k;
        k = before ? k->more : k->less;
    }
    return best && best->segment->stream == c->stream ? best : NULL;
}

/* The free chunk of the same stream that comes next after `at` in the order, or last before it; or NULL. */
static Chunk *neighbour(const Caching *c, const Chunk *at, bool after) {
    Chunk *best = NULL;
    for (Chunk *k = c->free[at->segment->small]; k;) {
        bool beyond = after ? is_before(at, k) : is_before(k, at);
        if (beyond) best = k;
        k = beyond == after ? k->less : k->more;
    }
    return best && best->segment->stream == at->segment->stream ? best : NULL;
}

static size_t max_split(const Caching *c) {
    return c->settings.max_split_size ? c->settings.max_split_size : SIZE_MAX;
}

/* What the chunk could grow to: with the addresses after it, of which there are plenty. */
static size_t room_of(const Chunk *k) { return k->size + (k->next && k->next->unmapped ? k->next->size : 0); }

/* The first that is large enough, unless a larger one cannot grow as far; NULL also where that one is too large to be
 * given away. */
static Chunk *best_fit(Caching *c, size_t size) {
    size_t rounding = c->settings.max_non_split_rounding ? c->settings.max_non_split_rounding : LARGE_SEGMENT;
    Chunk *k = first_of(c, size <= SMALL_SIZE, size), *next;
    if (size > SMALL_SIZE) c->searches++;
    while (k && k->segment->expandable && (next = neighbour(c, k, true)) && room_of(next) < room_of(k)) k = next;
    if (!k || (size < max_split(c) && k->size >= max_split(c))) return NULL;
    return size >= max_split(c) && k->size >= size + rounding ? NULL : k;
}

/* ---- segments */

static size_t segment_size(size_t size) {
    if (size <= SMALL_SIZE) return SMALL_SEGMENT;
    return size < MIN_LARGE ? LARGE_SEGMENT : align_up(size, ROUND_LARGE);
}

static bool is_whole(const Chunk *k) { return k->free && !k->prev && !k->next && !k->segment->expandable; }

/* The segment is one chunk, which is in no tree. */
static void drop(Caching *c, Segment *s) {
    assert(!s->chunks->free && !s->chunks->next);
    Segment **at = &c->segments;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    if (c->end == &s->next) c->end = at;
    mem_free(s->chunks);
    mem_free(s);
}

static void tell(const Caching *c, const Segment *s, size_t offset, size_t size, bool taken) {
    const CachedRange range = {(uintptr_t)s->data + offset, size, s->stream, s->small, s->expandable};
    if (c->watch) c->watch(c->watch_arg, &range, taken);
}

/* Gives back the segment of a chunk that is whole. */
static size_t release(Caching *c, Chunk *k) {
    Segment *s = k->segment;
    size_t bytes = s->size;
    assert(is_whole(k));
    take_free(c, k);
    ledger_give(c->base.ledger, s->data, bytes);
    tell(c, s, 0, bytes, false);
    drop(c, s);
    return bytes;
}

/* A segment of one chunk, which is in no tree. NULL: out of host memory. */
static Chunk *new_segment(Caching *c, size_t size, bool small, int stream) {
    Segment *s = mem_new(sizeof *s);
    Chunk *k = mem_new(sizeof *k);
    if (!s || !k) {
        mem_free(s);
        mem_free(k);
        return NULL;
    }
    uint64_t address = c->next_address ? c->next_address : YOUNGEST + c->made++;
    c->next_address = 0;
    *s = (Segment){.chunks = k, .size = size, .address = address, .stream = stream, .small = small};
    *k = (Chunk){.segment = s, .size = size};
    *c->end = s;
    c->end = &s->next;
    return k;
}

static int no_memory(Err *e) { return err_set(e, ERR_HOST_MEMORY, "out of host memory in the caching allocator"); }

/* Makes one chunk of k and its neighbour `next`, neither of which is in the tree. */
static Chunk *merge(Chunk *k, Chunk *next) {
    assert(k->next == next && k->offset + k->size == next->offset && !k->free && !next->free &&
           k->unmapped == next->unmapped);
    k->size += next->size;
    k->next = next->next;
    if (k->next) k->next->prev = k;
    mem_free(next);
    return k;
}

/* Cuts the chunk, which is not in the tree, after `size` bytes: *rest is what follows. false: out of host memory. */
static bool cut(Chunk *k, size_t size, Chunk **rest) {
    assert(!k->free && size > 0 && size < k->size);
    Chunk *tail = mem_new(sizeof *tail);
    if (!tail) return false;
    *tail = (Chunk){.prev = k, .next = k->next, .segment = k->segment, .offset = k->offset + size,
        .size = k->size - size, .unmapped = k->unmapped};
    if (k->next) k->next->prev = tail;
    k->next = tail;
    k->size = size;
    *rest = tail;
    return true;
}

/* A chunk that is not in the tree becomes free, and one with its free neighbours. */
static Chunk *set_free(Caching *c, Chunk *k) {
    Chunk *prev = k->prev, *next = k->next;
    if (next && next->free) {
        take_free(c, next);
        k = merge(k, next);
    }
    if (prev && prev->free) {
        take_free(c, prev);
        k = merge(prev, k);
    }
    add_free(c, k);
    return k;
}

/* ---- expandable segments */

/* `page` is no power of two. */
static size_t to_pages(size_t n, size_t page) { return (n + page - 1) / page * page; }

static size_t page_of(const Segment *s) { return s->small ? SMALL_SEGMENT : LARGE_SEGMENT; }

/* Gives memory to the first `size` bytes of an unmapped chunk, rounded up to pages; *out: the free chunk that they are
 * in. */
static int map(Caching *c, Chunk *k, size_t size, Chunk **out, Err *e) {
    assert(k->unmapped && size > 0 && size <= k->size);
    void *data;
    Chunk *rest = NULL;
    size_t bytes = to_pages(size, page_of(k->segment));
    if (bytes < k->size && !cut(k, bytes, &rest)) return no_memory(e);
    int code = ledger_take(c->base.ledger, bytes, &data, e);
    if (code) {
        if (rest) merge(k, rest);
        return code;
    }
    k->unmapped = false;
    tell(c, k->segment, k->offset, bytes, true);
    *out = set_free(c, k);
    return OK;
}

/* Takes the memory from all whole pages of a free chunk. Without host memory to cut it, it keeps them. */
static size_t unmap(Caching *c, Chunk *k) {
    size_t page = page_of(k->segment), begin = to_pages(k->offset, page), end = (k->offset + k->size) / page * page;
    Chunk *middle = k, *rest = NULL;
    if (begin >= end) return 0;
    take_free(c, k);
    bool good = begin == k->offset || cut(k, begin - k->offset, &middle);
    if (good && end < middle->offset + middle->size) good = cut(middle, end - middle->offset, &rest);
    if (!good) {
        add_free(c, middle == k ? k : merge(k, middle));
        return 0;
    }
    if (middle != k) add_free(c, k);
    if (rest) add_free(c, rest);
    middle->unmapped = true;
    ledger_give(c->base.ledger, NULL, end - begin);
    tell(c, middle->segment, begin, end - begin, false);
    if (middle->next && middle->next->unmapped) merge(middle, middle->next);
    if (middle->prev && middle->prev->unmapped) merge(middle->prev, middle);
    return end - begin;
}

/* Of an expandable segment; it goes, too, where nothing of it is mapped any more. */
static size_t unmap_all(Caching *c, Segment *s) {
    size_t released = 0;
    for (Chunk *k = s->chunks; k; k = k->next) {
        if (!k->free) continue;
        Chunk *prev = k->prev;
        size_t bytes = unmap(c, k);
        released += bytes;
        if (bytes) k = prev ? prev : s->chunks; /* k may have become a part of its neighbour */
    }
    if (s->chunks->unmapped && !s->chunks->next) drop(c, s);
    return released;
}

/* Are there so many bytes from the chunk on that no block is in? */
static bool has_room(const Chunk *k, size_t size) {
    size_t room = 0;
    for (; k && room < size && (k->free || k->unmapped); k = k->next) room += k->size;
    return room >= size;
}

/* Where `size` bytes can be had by mapping: a free chunk with addresses after it, or these alone; NULL: nowhere. */
static Chunk *find_addresses(const Caching *c, bool small, size_t size) {
    for (Segment *s = c->segments; s; s = s->next) {
        if (!s->expandable || s->small != small || s->stream != c->stream) continue;
        for (Chunk *k = s->chunks; k; k = k->next) {
            if (!k->unmapped) continue;
            Chunk *from = k->prev && k->prev->free ? k->prev : k;
            if (has_room(from, size)) return from;
        }
    }
    return NULL;
}

static bool is_data(const Caching *c, const char *data) {
    const Segment *s = c->segments;
    while (s && s->data != data) s = s->next;
    return s != NULL;
}

/* The lowest addresses that no expandable segment has; on a dry device nobody ever goes there. */
static char *new_addresses(const Caching *c) {
    uintptr_t at = ADDRESSES;
    while (is_data(c, (char *)at)) at += ADDRESSES;
    return (char *)at;
}

/* With addresses for `size` bytes, and 9/8 of what there may be: above that the device refuses them. */
static Chunk *new_expandable(Caching *c, bool small, size_t size) {
    size_t limit = c->base.ledger->limit, page = small ? SMALL_SEGMENT : LARGE_SEGMENT;
    Chunk *k = new_segment(c, to_pages(!limit ? max_size(ADDRESSES, size) : limit < page ? page : limit / 8 * 9, page), small, c->stream);
    if (!k) return NULL;
    k->unmapped = k->segment->expandable = true;
    k->segment->data = new_addresses(c);
    return k;
}

static int expand(Caching *c, size_t size, Chunk **out, Err *e) {
    bool small = size <= SMALL_SIZE;
    Chunk *k = find_addresses(c, small, size);
    if (!k && !(k = new_expandable(c, small, size))) return no_memory(e);
    Segment *s = k->segment;
    int code = OK;
    if (k->unmapped) code = map(c, k, size < k->size ? size : k->size, &k, e);
    while (!code && k->size < size) {
        size_t rest = size - k->size, room = k->next->size;
        code = map(c, k->next, rest < room ? rest : room, &k, e);
    }
    if (code && s->chunks->unmapped && !s->chunks->next) drop(c, s);
    *out = k;
    return code;
}

/* ---- what goes back to the device */

/* Gives back every segment that is one free chunk, and every page of the others that is free. */
static size_t caching_empty_cache(Allocator *a) {
    size_t released = 0;
    Caching *c = (Caching *)a;
    for (Segment *s = c->segments, *next; s; s = next) {
        next = s->next;
        if (s->expandable) released += unmap_all(c, s);
        else if (is_whole(s->chunks)) released += release(c, s->chunks);
    }
    return released;
}

/* The smallest cached block that max_split_size has kept whole and that is enough, or as many of them as are, the
 * largest first; *released: their bytes. false: they are not enough. */
static bool release_oversize(Caching *c, size_t size, size_t *released) {
    if (!c->settings.max_split_size) return false;
    size_t wanted = max_size(size, max_split(c));
    bool small = size <= SMALL_SIZE;
    Chunk *k = first_of(c, small, wanted), *next;
    if (k) *released = is_whole(k) ? release(c, k) : 0;
    if (k) return *released > 0;
    for (Chunk *one = first_of(c, small, 0); one; one = neighbour(c, one, true)) k = one;
    for (; k && *released < wanted && k->size >= max_split(c); k = next) {
        next = neighbour(c, k, false);
        if (is_whole(k)) *released += release(c, k);
    }
    return *released >= wanted;
}

/* Above the threshold the cached segments of the large pool go whose age, in searches of the pool, is the average or
 * more; again with what is left until enough has gone. */
static void collect_garbage(Caching *c) {
    const Ledger *l = c->base.ledger;
    size_t threshold = (size_t)(c->settings.garbage_collection_threshold * (double)l->limit);
    if (!threshold || l->held <= threshold) return;
    uint64_t total = 0, count = 0;
    size_t wanted = l->held - threshold, released = 0;
    for (Segment *s = c->segments; s; s = s->next)
        if (!s->small && is_whole(s->chunks)) {
            total += c->searches - s->chunks->since;
            count++;
        }
    for (bool more = true; more && count && released < wanted;) {
        double average = (double)total / (double)count;
        more = false;
        for (Segment *s = c->segments, *next; s; s = next) {
            next = s->next;
            if (s->small || !is_whole(s->chunks)) continue;
            uint64_t age = c->searches - s->chunks->since;
            if ((double)age < average) continue;
            total -= age;
            count--;
            released += release(c, s->chunks);
            more = true;
        }
    }
}

/* A segment for a block of `size`, one free chunk. */
static int add_segment(Caching *c, size_t size, Chunk **out, Err *e) {
    void *data = NULL;
    size_t bytes = segment_size(size);
    Chunk *k = new_segment(c, bytes, size <= SMALL_SIZE, c->stream);
    if (!k) return no_memory(e);
    int code = ledger_take(c->base.ledger, bytes, &data, e);
    if (code) {
        drop(c, k->segment);
        return code;
    }
    k->segment->data = data;
    tell(c, k->segment, 0, bytes, true);
    add_free(c, k);
    *out = k;
    return OK;
}

static int take_memory(Caching *c, size_t size, Chunk **out, Err *e) {
    return (c->settings.expandable_segments ? expand : add_segment)(c, size, out, e);
}

/* Where there is none at first, cached segments go back. */
static int more_memory(Caching *c, size_t size, Chunk **out, Err *e) {
    collect_garbage(c);
    size_t released = 0;
    int code = take_memory(c, size, out, e);
    if (code == ERR_OOM && release_oversize(c, size, &released)) code = take_memory(c, size, out, e);
    if (code == ERR_OOM && (released += caching_empty_cache(&c->base))) {
        c->retries++;
        code = take_memory(c, size, out, e);
    }
    return code;
}

/* ---- blocks */

/* Is what the request leaves of the chunk worth being a chunk of its own? */
static bool should_cut(const Caching *c, const Chunk *k, size_t size) {
    size_t rest = k->size - size;
    if (k->segment->small || c->settings.expandable_segments) return rest >= MIN_BLOCK;
    return size < max_split(c) && rest > SMALL_SIZE;
}

/* Takes a free chunk, and cuts off what is not needed. */
static int take(Caching *c, Chunk *k, size_t size, Err *e) {
    assert(k->free && k->size >= size && size % MIN_BLOCK == 0);
    Chunk *rest = NULL;
    take_free(c, k);
    if (!should_cut(c, k, size)) return OK;
    if (!cut(k, size, &rest)) {
        add_free(c, k);
        return no_memory(e);
    }
    add_free(c, rest);
    return OK;
}

static void fill_block(Block *b, Chunk *k) {
    b->data = k->segment->data + k->offset;
    b->size = k->size;
    b->owner = k;
}

static int caching_get(Allocator *a, size_t offset, Block *b, Err *e) {
    (void)offset;
    Caching *c = (Caching *)a;
    size_t size = caching_round(&c->settings, b->bytes);
    Chunk *k = best_fit(c, size);
    int code = k ? OK : more_memory(c, size, &k, e);
    if (!code) code = take(c, k, size, e);
    if (!code) fill_block(b, k);
    return code;
}

static void caching_put(Allocator *a, Block *b) { set_free((Caching *)a, b->owner); }

static uint64_t hash(uint64_t h, uint64_t value) { return hash_bytes(h, &value, sizeof value); }

static uint64_t caching_state(const Allocator *a) {
    uint64_t h = HASH_START;
    const Caching *c = (const Caching *)a;
    bool ages = c->settings.garbage_collection_threshold > 0;
    for (const Segment *s = c->segments; s; s = s->next) {
        h = hash(h, s->size << 1 | s->small);
        for (const Chunk *k = s->chunks; k; k = k->next) {
            h = hash(h, k->size << 2 | (unsigned)k->unmapped << 1 | k->free);
            if (ages && k->free) h = hash(h, c->searches - k->since);
        }
    }
    return h;
}

static void caching_close(Allocator *a) {
    caching_empty_cache(a);
    assert(!((Caching *)a)->segments); /* else a block was not put */
    mem_free(a);
}

int alloc_caching_open(Ledger *ledger, const CachingSettings *settings, Allocator **out, Err *e) {
    static const AllocatorTable table = {caching_get, caching_put, caching_empty_cache, caching_state, caching_close};
    if (settings && settings->expandable_segments && !ledger->device->table->dry)
        return err_set(e, ERR_UNSUPPORTED, "expandable segments can be predicted, not run");
    Caching *c = mem_new(sizeof *c);
    if (!c) return no_memory(e);
    c->base = (Allocator){&table, ledger};
    if (settings) c->settings = *settings;
    c->end = &c->segments;
    *out = &c->base;
    return OK;
}

/* ---- replays of recordings */

void alloc_caching_stream(Allocator *a, int stream) { ((Caching *)a)->stream = stream; }

void alloc_caching_next_address(Allocator *a, uint64_t address) { ((Caching *)a)->next_address = address; }

void alloc_caching_watch(Allocator *a, CachingWatch *watch, void *arg) {
    ((Caching *)a)->watch = watch;
    ((Caching *)a)->watch_arg = arg;
}

uint64_t alloc_caching_address(const Block *b) {
    const Chunk *k = b->owner;
    return k->segment->address + k->offset;
}

/* Cuts the chunk, all that is left of the segment, where block b begins and ends; *k: what follows it, or NULL. */
static bool restore_block(Caching *c, Chunk **k, const CachedBlock *b) {
    Chunk *own = *k, *rest = NULL;
    assert(own && b->offset >= own->offset && b->block->size <= own->offset + own->size - b->offset);
    if (b->offset > own->offset) {
        if (!cut(*k, b->offset - own->offset, &own)) return false;
        add_free(c, *k);
    }
    if (b->block->size < own->size && !cut(own, b->block->size, &rest)) {
        set_free(c, own);
        *k = NULL;
        return false;
    }
    fill_block(b->block, own);
    ledger_use(c->base.ledger, b->block->category, b->block->bytes);
    *k = rest;
    return true;
}

int alloc_caching_restore(Allocator *a, const CachedSegment *s, const CachedBlock *blocks, int n, Err *e) {
    Caching *c = (Caching *)a;
    void *data = NULL;
    bool good = true;
    c->next_address = s->address;
    Chunk *k = new_segment(c, s->size, s->small, s->stream);
    if (!k) return no_memory(e);
    int code = ledger_take(a->ledger, s->size, &data, e);
    if (code) {
        drop(c, k->segment);
        return code;
    }
    k->segment->data = data;
    for (int i = 0; i < n && good; i++) good = restore_block(c, &k, &blocks[i]);
    if (k) set_free(c, k);
    return good ? OK : no_memory(e);
}

bool alloc_caching_release(Allocator *a, uint64_t address) {
    Caching *c = (Caching *)a;
    for (Segment *s = c->segments; s; s = s->next)
        if (s->address == address) return is_whole(s->chunks) && release(c, s->chunks);
    return false;
}

CachingStats alloc_caching_stats(const Allocator *a) {
    const Caching *c = (const Caching *)a;
    CachingStats stats = {.retries = c->retries};
    for (const Segment *s = c->segments; s; s = s->next, stats.segments++)
        for (const Chunk *k = s->chunks; k; k = k->next)
            if (k->free) *(is_whole(k) ? &stats.cached : &stats.split) += k->size;
    return stats;
}
