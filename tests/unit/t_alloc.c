/* The allocators: PyTorch's rules by hand-computed scenarios, then all three under limits and failures. */
#include "memory/alloc.h"

#include "base/mem.h"
#include "tap.h"

enum { SLOTS = 8, STEPS = 16, KIB = 1 << 10, MIB = 1 << 20 };

/* ---- the caching allocator */

typedef enum Do { END, GET, PUT, EMPTY, REFUSED } Do;

/* GET: `slot` gets `bytes`; where `base` is given, at `base`'s last address + `offset`. REFUSED: a GET that runs out of
 * memory. After each step `reserved` bytes are held; used bytes are the sum of the live slots. */
typedef struct Step { Do what; int slot; size_t bytes, reserved; int base; size_t offset; } Step;
enum { ANY = -1 };

#define M(n) ((size_t)(n) * MIB)

static const struct { const char *what; size_t limit; Step step[STEPS]; } scenarios[] = {
    {"1 byte reserves 2 MiB; blocks are multiples of 512", 0,
     {{GET, 0, 1, M(2), ANY, 0}, {GET, 1, 513, M(2), 0, 512}, {GET, 2, 512, M(2), 0, 1536},
      {GET, 3, 1, M(2), 0, 2048}}},
    {"1 MiB is small, one byte more is large", 0,
     {{GET, 0, M(1), M(2), ANY, 0}, {GET, 1, M(1), M(2), 0, M(1)}, {GET, 2, M(1), M(4), ANY, 0},
      {GET, 3, M(1) + 1, M(24), ANY, 0}, {GET, 4, M(1) + 1, M(24), 3, M(1) + 512}}},
    {"below 10 MiB a large block shares 20 MiB", 0,
     {{GET, 0, M(10) - 512, M(20), ANY, 0}, {GET, 1, M(10) - 512, M(20), 0, M(10) - 512},
      {GET, 2, M(2), M(40), ANY, 0}}},
    {"from 10 MiB on (after rounding) it reserves its own size, to 2 MiB", 0,
     {{GET, 0, M(10) - 511, M(10), ANY, 0}, {GET, 1, M(10) - 1, M(20), ANY, 0}, {GET, 2, M(10), M(30), ANY, 0},
      {GET, 3, M(10) + 1, M(42), ANY, 0}}},
    {"a rest of exactly 1 MiB stays with a large block", 0,
     {{GET, 0, M(19), M(20), ANY, 0}, {GET, 1, M(1) + 512, M(40), ANY, 0}}},
    {"a rest of 512 bytes more is split off", 0,
     {{GET, 0, M(19) - 512, M(20), ANY, 0}, {GET, 1, M(1) + 512, M(20), 0, M(19) - 512}}},
    {"a rest of 512 bytes is split off a small block", 0,
     {{GET, 0, M(1), M(2), ANY, 0}, {GET, 1, M(1) - 512, M(2), 0, M(1)}, {GET, 2, 512, M(2), 0, M(2) - 512},
      {GET, 3, 1, M(4), ANY, 0}}},
    {"a freed block becomes one with both neighbours", 0,
     {{GET, 0, M(4), M(20), ANY, 0}, {GET, 1, M(4), M(20), 0, M(4)}, {GET, 2, M(4), M(20), 0, M(8)},
      {GET, 3, M(8), M(20), 0, M(12)}, {PUT, 0, 0, M(20), ANY, 0}, {PUT, 2, 0, M(20), ANY, 0},
      {PUT, 1, 0, M(20), ANY, 0}, {GET, 4, M(12), M(20), 0, 0}}},
    {"or with the one after it", 0,
     {{GET, 0, M(4), M(20), ANY, 0}, {GET, 1, M(4), M(20), 0, M(4)}, {GET, 2, M(9), M(20), 0, M(8)},
      {PUT, 1, 0, M(20), ANY, 0}, {PUT, 0, 0, M(20), ANY, 0}, {GET, 3, M(8), M(20), 0, 0}}},
    {"but not across a live one", 0,
     {{GET, 0, M(4), M(20), ANY, 0}, {GET, 1, M(4), M(20), 0, M(4)}, {GET, 2, M(4), M(20), 0, M(8)},
      {GET, 3, M(8), M(20), 0, M(12)}, {PUT, 0, 0, M(20), ANY, 0}, {PUT, 2, 0, M(20), ANY, 0},
      {GET, 4, M(8), M(40), ANY, 0}}},
    {"the smallest free block that is large enough is taken", 0,
     {{GET, 0, M(6), M(20), ANY, 0}, {GET, 1, M(2), M(20), 0, M(6)}, {GET, 2, M(4), M(20), 0, M(8)},
      {GET, 3, M(8), M(20), 0, M(12)}, {PUT, 0, 0, M(20), ANY, 0}, {PUT, 2, 0, M(20), ANY, 0},
      {GET, 4, M(3) + 512 * KIB, M(20), 2, 0}, {GET, 5, M(2), M(20), 0, 0}, {GET, 6, M(4), M(20), 0, M(2)}}},
    {"of equal ones that of the oldest segment, at the lowest offset", 0,
     {{GET, 0, M(12), M(12), ANY, 0}, {GET, 1, M(12), M(24), ANY, 0}, {PUT, 1, 0, M(24), ANY, 0},
      {PUT, 0, 0, M(24), ANY, 0}, {GET, 2, M(12), M(24), 0, 0}, {GET, 3, M(4), M(24), 1, 0},
      {GET, 4, M(4), M(24), 1, M(4)}, {GET, 5, M(4), M(24), 1, M(8)}, {PUT, 5, 0, M(24), ANY, 0},
      {PUT, 3, 0, M(24), ANY, 0}, {GET, 6, M(4), M(24), 1, 0}}},
    {"the pools do not mix", 0,
     {{GET, 0, M(5), M(20), ANY, 0}, {GET, 1, 1, M(22), ANY, 0}, {PUT, 0, 0, M(22), ANY, 0},
      {GET, 2, M(1), M(22), 1, 512}, {GET, 3, M(1), M(24), ANY, 0}}},
    {"a freed segment stays, and is cut for smaller blocks", 0,
     {{GET, 0, M(30), M(30), ANY, 0}, {PUT, 0, 0, M(30), ANY, 0}, {GET, 1, M(20), M(30), 0, 0},
      {GET, 2, M(10), M(30), 0, M(20)}}},
    {"empty_cache gives back segments without a live block", 0,
     {{GET, 0, M(30), M(30), ANY, 0}, {GET, 1, 1, M(32), ANY, 0}, {EMPTY, 0, 0, M(32), ANY, 0},
      {PUT, 0, 0, M(32), ANY, 0}, {EMPTY, 0, M(30), M(2), ANY, 0}, {PUT, 1, 0, M(2), ANY, 0},
      {EMPTY, 0, M(2), 0, ANY, 0}}},
    {"at the limit the free segments go back, and the request is made again", M(40),
     {{GET, 0, M(20), M(20), ANY, 0}, {GET, 1, 1, M(22), ANY, 0}, {PUT, 0, 0, M(22), ANY, 0},
      {GET, 2, M(38), M(40), ANY, 0}}},
    {"where that is not enough, they are gone all the same", M(40),
     {{GET, 0, M(20), M(20), ANY, 0}, {GET, 1, 1, M(22), ANY, 0}, {PUT, 0, 0, M(22), ANY, 0},
      {REFUSED, 2, M(40), M(2), ANY, 0}}},
    {"a live block keeps its segment, whatever else is free in it", M(30),
     {{GET, 0, M(5), M(20), ANY, 0}, {REFUSED, 1, M(16), M(20), ANY, 0}, {GET, 2, M(15), M(20), 0, M(5)}}},
    {"cuBLAS' workspace of 8,519,680 bytes pins 20 MiB", 0, {{GET, 0, 8519680, M(20), ANY, 0}}},
};

typedef struct World { Device *dry; Ledger ledger; Allocator *alloc; Block block[SLOTS]; char *last[SLOTS]; } World;

static int step_code(World *w, const Step *s, Err *e) {
    Block *b = &w->block[s->slot];
    switch (s->what) {
    case PUT: allocator_put(w->alloc, b); return OK;
    case EMPTY: return allocator_empty_cache(w->alloc) == s->bytes ? OK : ERR_INTERNAL;
    default: break;
    }
    int code = allocator_get(w->alloc, s->bytes, CAT_ACTIVATIONS, 0, b, e);
    if (code) return code == ERR_OOM && s->what == REFUSED && !b->data ? OK : code;
    w->last[s->slot] = b->data;
    if (s->base != ANY && w->last[s->slot] != w->last[s->base] + s->offset)
        return err_set(e, ERR_INTERNAL, "at %td from slot %d", w->last[s->slot] - w->last[s->base], s->base);
    return s->what == GET ? OK : ERR_INTERNAL;
}

static bool scenario(Device *device, const Step *steps, size_t limit) {
    World w = {.dry = device};
    Err e = {0};
    bool good = true;
    ledger_open(&w.ledger, device, limit);
    if (allocator_open(ALLOC_CACHING, &w.ledger, 0, &w.alloc, &e)) return false;
    for (int i = 0; i < STEPS && steps[i].what != END && good; i++) {
        size_t used = 0;
        good = step_code(&w, &steps[i], &e) == OK;
        for (int k = 0; k < SLOTS; k++) used += w.block[k].bytes;
        good = good && w.ledger.held == steps[i].reserved && w.ledger.used == used;
        if (!good)
            printf("# step %d: reserved %zu, expected %zu; %s\n", i + 1, w.ledger.held, steps[i].reserved, e.text);
    }
    for (int k = 0; k < SLOTS; k++) allocator_put(w.alloc, &w.block[k]);
    allocator_close(w.alloc);
    return ledger_check_zero(&w.ledger, &e) == OK && good;
}

static void test_scenarios(Device *dry) {
    for (size_t i = 0; i < ARRAY_LEN(scenarios); i++)
        ok(scenario(dry, scenarios[i].step, scenarios[i].limit), "caching: %s", scenarios[i].what);
}

static void test_state(Device *dry) {
    Ledger l;
    Allocator *a = NULL;
    Block b, c;
    ledger_open(&l, dry, 0);
    allocator_open(ALLOC_CACHING, &l, 0, &a, NULL);
    uint64_t fresh = allocator_state(a);
    allocator_get(a, M(3), CAT_INPUT, 0, &b, NULL);
    uint64_t one = allocator_state(a);
    allocator_get(a, M(4), CAT_INPUT, 0, &c, NULL);
    uint64_t two = allocator_state(a);
    allocator_put(a, &c);
    ok(allocator_state(a) == one && one != two && one != fresh, "caching: the state comes back with the blocks");
    allocator_put(a, &b);
    uint64_t cached = allocator_state(a);
    ok(cached != fresh && cached != one, "a cached segment is part of it");
    allocator_empty_cache(a);
    ok(allocator_state(a) == fresh, "until it is given back");
    allocator_close(a);
}

/* ---- all of them */

enum { BLOCKS = 60, ALIVE = 9 };

static size_t size_of(int i) {
    return 1 + (size_t)i * 7919 % 13 * 1000 + (i % 4 == 3 ? (size_t)(i % 5 + 1) * 900 * KIB : 0);
}

/* What a walk saw: equal on every device. */
typedef struct Seen { size_t requests, held_sum; LedgerPeak peak; bool overlap; } Seen;

/* The block is full of its own mark until it is put: another block in its place would have overwritten it. */
static bool intact(const Block *b, int mark) {
    const unsigned char *p = b->data;
    for (size_t i = 0; i < b->bytes; i++)
        if (p[i] != mark) return false;
    return true;
}

static int walk_blocks(Ledger *l, Allocator *a, const size_t *offset, Seen *seen, Err *e) {
    Block block[BLOCKS] = {{NULL, 0, CAT_OTHER, NULL}};
    bool dry = l->device->table->dry;
    int code = OK;
    for (int i = 0; i < BLOCKS + ALIVE; i++) {
        int dead = i - ALIVE + (i % 2 ? 1 : -1); /* two by two, the younger one first */
        l->mark = i;
        if (i < BLOCKS && !code)
            code = allocator_get(a, size_of(i), (Category)(i % CAT_COUNT), offset[i], &block[i], e);
        if (i < BLOCKS && !code && !dry) memset(block[i].data, i + 1, block[i].bytes);
        seen->held_sum += l->held * (size_t)(i + 1);
        if (dead < 0 || dead >= BLOCKS) continue;
        if (block[dead].data && !dry && !intact(&block[dead], dead + 1)) seen->overlap = true;
        allocator_put(a, &block[dead]);
    }
    for (int i = 0; i < BLOCKS; i++) allocator_put(a, &block[i]);
    return code;
}

/* A life of an allocator, with all of its bytes given back whatever happens. */
static int walk(AllocKind kind, Device *device, size_t limit, size_t fail_at, Seen *seen, Err *e) {
    size_t offset[BLOCKS], arena = 0;
    Ledger l;
    Allocator *a = NULL;
    for (int i = 0; i < BLOCKS; i++) {
        offset[i] = arena;
        arena += align_up(size_of(i), device->table->alignment);
    }
    ledger_open(&l, device, limit);
    l.fail_at = fail_at;
    memset(seen, 0, sizeof *seen);
    int code = allocator_open(kind, &l, arena, &a, e);
    if (!code) code = walk_blocks(&l, a, offset, seen, e);
    allocator_close(a);
    seen->requests = l.requests;
    seen->peak = l.peak;
    return ledger_check_zero(&l, e) ? ERR_INTERNAL : code;
}

static bool sums(const LedgerPeak *p) {
    size_t sum = 0;
    for (int c = 0; c < CAT_COUNT; c++) sum += p->category[c];
    return sum == p->held && p->used <= p->held && p->used > 0;
}

static void test_walk(AllocKind kind, Device *cpu, Device *dry) {
    const char *name = alloc_name(kind);
    Seen on_cpu, on_dry, seen;
    Err e = {0};
    is_int(walk(kind, cpu, 0, 0, &on_cpu, &e), OK, name);
    ok(!on_cpu.overlap, "%s: no block is in another's place", name);
    ok(sums(&on_cpu.peak), "%s: the categories sum to the peak", name);
    is_int(walk(kind, dry, 0, 0, &on_dry, &e), OK, "the same on the dry device");
    const LedgerPeak *a = &on_dry.peak, *b = &on_cpu.peak;
    ok(on_dry.requests == on_cpu.requests && on_dry.held_sum == on_cpu.held_sum && a->held == b->held &&
       a->mark == b->mark && !memcmp(a->category, b->category, sizeof b->category),
       "%s: the dry device sees the same bytes at the same times", name);
    is_int(walk(kind, dry, on_cpu.peak.held, 0, &seen, &e), OK, "the peak is a limit that is enough");
    int code = walk(kind, dry, on_cpu.peak.held - 1, 0, &seen, &e);
    if (kind == ALLOC_CACHING)
        ok(code == OK || code == ERR_OOM, "caching: one byte less may do, once the cache is emptied");
    else is_int(code, ERR_OOM, "one byte less is not");
}

static void test_failures(AllocKind kind, Device *dry) {
    const char *name = alloc_name(kind);
    Seen all, seen;
    Err e = {0};
    walk(kind, dry, 0, 0, &all, &e);
    int refused = 0, recovered = 0, n = (int)all.requests;
    for (int k = 1; k <= n; k++) {
        int code = walk(kind, dry, 0, (size_t)k, &seen, &e);
        refused += code == ERR_OOM;
        recovered += code == OK;
    }
    ok(n > 0 && refused + recovered == n && refused > 0, "%s: each of %d requests fails once, nothing stays", name, n);
    ok(recovered == 0 || kind == ALLOC_CACHING,
       "%s: %d of them were made again after the cache was emptied", name, recovered);
    long before = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    for (long k = 1; code == ERR_HOST_MEMORY && k < 1000; k++) {
        mem_fail_after(k);
        code = walk(kind, dry, 0, 0, &seen, &e);
        mem_fail_after(0);
        failures += code == ERR_HOST_MEMORY && mem_live() == before;
        if (failures < k && code != OK) break;
    }
    ok(code == OK && failures > 0, "%s: each of %ld host allocations fails once, nothing stays", name, failures);
}

static void test_misuse(Device *dry) {
    Ledger l;
    Allocator *a = NULL;
    Block b;
    Err e = {0};
    ledger_open(&l, dry, 0);
    is_int(allocator_open(ALLOC_COUNT, &l, 0, &a, &e), ERR_INTERNAL, "there is no fourth allocator");
    is_int(allocator_open(ALLOC_PLANNED, &l, 0, &a, &e), OK, "an arena may be empty");
    ok(l.requests == 0 && l.held == 0, "and asks for nothing");
    is_int(allocator_get(a, 1, CAT_INPUT, 0, &b, &e), ERR_INTERNAL, "but there is no block in it");
    ok(b.data == NULL, "and none is handed out");
    allocator_close(a);
    size_t step = dry->table->alignment;
    allocator_open(ALLOC_PLANNED, &l, 2 * step + 1, &a, &e);
    is_int((long long)l.held, (long long)(3 * step), "an arena is rounded up to the alignment");
    is_int((long long)l.requests, 1, "and is one request");
    is_int(allocator_get(a, step, CAT_INPUT, 2 * step, &b, &e), OK, "a block at its end");
    allocator_put(a, &b);
    ok(b.data == NULL && l.used == 0 && l.held == 3 * step, "putting it back gives the device nothing");
    allocator_put(a, &b);
    is_int((long long)l.used, 0, "a second time is none");
    is_int(allocator_get(a, step + 1, CAT_INPUT, 2 * step, &b, &e), ERR_INTERNAL, "a block over its end");
    has_text(e.text, "inside the arena", "is named");
    is_int(allocator_get(a, 1, CAT_INPUT, SIZE_MAX, &b, &e), ERR_INTERNAL, "one far after it");
    is_int(allocator_get(a, 0, CAT_INPUT, 0, &b, &e), ERR_INTERNAL, "one without bytes");
    is_int((long long)allocator_empty_cache(a), 0, "it has no cache");
    allocator_close(a);
    allocator_close(NULL);
    is_int(ledger_check_zero(&l, &e), OK, "all is given back");
}

int main(void) {
    Device *cpu = NULL, *dry = NULL;
    Err e = {0};
    if (device_open("cpu", &cpu, &e) || device_dry_open(cpu, &dry, &e)) {
        ok(0, "the devices open: %s", e.text);
        device_close(cpu);
        return tap_done();
    }
    test_scenarios(dry);
    test_state(dry);
    for (int kind = 0; kind < ALLOC_COUNT; kind++) {
        test_walk((AllocKind)kind, cpu, dry);
        test_failures((AllocKind)kind, dry);
    }
    test_misuse(dry);
    device_close(dry);
    device_close(cpu);
    return tap_done();
}
