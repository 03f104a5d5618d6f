/* The allocators: PyTorch's rules by hand-computed scenarios, then all three under limits and failures. */
#include "memory/alloc_caching.h"

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

static const struct { const char *what, *conf; size_t limit; Step step[STEPS]; } with_settings[] = {
    {"four steps between powers of two, above 2,048 bytes",
     "roundup_power2_divisions:4", 0,
     {{GET, 0, 9000, M(2), ANY, 0}, {GET, 1, 8192, M(2), 0, 10240}, {GET, 2, 2048, M(2), 1, 8192},
      {GET, 3, 1100, M(2), 2, 2048}, {GET, 4, 1, M(2), 3, 1536}}},
    {"other steps in other intervals: 5 MiB by 1 to 5, 9 MiB by 4 to 10",
     "roundup_power2_divisions:[4:1,8:2,>:4]", 0,
     {{GET, 0, M(5), M(20), ANY, 0}, {GET, 1, M(9), M(20), 0, M(5)}, {GET, 2, M(3), M(20), 1, M(10)}}},
    {"pages of 2 and 20 MiB, where they are needed",
     "expandable_segments:True", 0,
     {{GET, 0, 1, M(2), ANY, 0}, {GET, 1, M(5), M(22), ANY, 0}, {GET, 2, M(16), M(42), 1, M(5)},
      {GET, 3, M(19) - 512, M(42), 2, M(16)}, {GET, 4, 512, M(42), 0, 512}, {PUT, 1, 0, M(42), ANY, 0},
      {EMPTY, 0, 0, M(42), ANY, 0}, {PUT, 2, 0, M(42), ANY, 0}, {EMPTY, 0, M(20), M(22), ANY, 0},
      {PUT, 3, 0, M(22), ANY, 0}, {EMPTY, 0, M(20), M(2), ANY, 0}}},
    {"whole pages that are free go back from the middle, and are mapped again",
     "expandable_segments:True", 0,
     {{GET, 0, M(30), M(40), ANY, 0}, {GET, 1, M(30), M(60), 0, M(30)}, {PUT, 0, 0, M(60), ANY, 0},
      {EMPTY, 0, M(20), M(40), ANY, 0}, {GET, 2, M(25), M(60), 0, 0}, {GET, 3, M(5), M(60), 2, M(25)}}},
    {"at the limit free pages go back, and the request is made again",
     "expandable_segments:True", M(60),
     {{GET, 0, M(40), M(40), ANY, 0}, {GET, 1, 1, M(42), ANY, 0}, {PUT, 0, 0, M(42), ANY, 0},
      {REFUSED, 2, M(60), M(2), ANY, 0}, {GET, 3, M(30), M(42), 0, 0}}},
    {"a page that is partly in use stays",
     "expandable_segments:True", M(50),
     {{GET, 0, M(30), M(40), ANY, 0}, {REFUSED, 1, M(15), M(40), ANY, 0}, {GET, 2, M(10), M(40), 0, M(30)}}},
    {"a block above max_split_size is for its own kind, and stays whole",
     "max_split_size_mb:32", 0,
     {{GET, 0, M(40), M(40), ANY, 0}, {PUT, 0, 0, M(40), ANY, 0}, {GET, 1, M(8), M(60), ANY, 0},
      {GET, 2, M(33), M(60), 0, 0}, {GET, 3, M(33), M(94), ANY, 0}}},
    {"... by at most 20 MiB above the request",
     "max_split_size_mb:32", 0,
     {{GET, 0, M(60), M(60), ANY, 0}, {PUT, 0, 0, M(60), ANY, 0}, {GET, 1, M(40), M(100), ANY, 0},
      {GET, 2, M(40) + 512, M(100), 0, 0}}},
    {"... or by what max_non_split_rounding_mb says",
     "max_split_size_mb:32, max_non_split_rounding_mb:30", 0,
     {{GET, 0, M(60), M(60), ANY, 0}, {PUT, 0, 0, M(60), ANY, 0}, {GET, 1, M(33), M(60), 0, 0}}},
    {"at the limit the one that is enough goes back, and no other",
     "max_split_size_mb:32", M(140),
     {{GET, 0, M(40), M(40), ANY, 0}, {GET, 1, M(50), M(90), ANY, 0}, {GET, 2, M(24), M(114), ANY, 0},
      {PUT, 0, 0, M(114), ANY, 0}, {PUT, 1, 0, M(114), ANY, 0}, {PUT, 2, 0, M(114), ANY, 0},
      {GET, 3, M(26), M(140), ANY, 0}, {GET, 4, M(34), M(140), 0, 0}, {PUT, 4, 0, M(140), ANY, 0},
      {GET, 5, M(28), M(128), ANY, 0}}},
    {"where all of them are not enough, the rest of the cache goes, too",
     "max_split_size_mb:32", M(110),
     {{GET, 0, M(40), M(40), ANY, 0}, {GET, 1, M(50), M(90), ANY, 0}, {PUT, 0, 0, M(90), ANY, 0},
      {GET, 2, M(60), M(110), ANY, 0}}},
    {"above the threshold cached segments of average age and more go",
     "garbage_collection_threshold:0.7", M(100),
     {{GET, 0, M(30), M(30), ANY, 0}, {GET, 1, M(30), M(60), ANY, 0}, {PUT, 0, 0, M(60), ANY, 0},
      {GET, 2, M(34), M(94), ANY, 0}, {PUT, 1, 0, M(94), ANY, 0}, {GET, 3, M(36), M(100), ANY, 0},
      {GET, 4, M(30), M(100), 1, 0}}},
    {"... those alone where that is enough",
     "garbage_collection_threshold:0.3", M(200),
     {{GET, 0, M(30), M(30), ANY, 0}, {GET, 1, M(30), M(60), ANY, 0}, {GET, 2, M(5), M(80), ANY, 0},
      {PUT, 0, 0, M(80), ANY, 0}, {GET, 3, M(5), M(80), 2, M(5)}, {PUT, 1, 0, M(80), ANY, 0},
      {GET, 4, M(40), M(90), ANY, 0}}},
    {"... and again until enough has gone",
     "garbage_collection_threshold:0.2", M(200),
     {{GET, 0, M(30), M(30), ANY, 0}, {GET, 1, M(30), M(60), ANY, 0}, {GET, 2, M(5), M(80), ANY, 0},
      {PUT, 0, 0, M(80), ANY, 0}, {GET, 3, M(5), M(80), 2, M(5)}, {PUT, 1, 0, M(80), ANY, 0},
      {GET, 4, M(40), M(60), ANY, 0}}},
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

static bool scenario(Device *device, const Step *steps, size_t limit, const char *conf) {
    World w = {.dry = device};
    CachingSettings settings;
    Err e = {0};
    bool good = true;
    ledger_open(&w.ledger, device, limit);
    if (caching_settings_parse(conf, &settings, &e)) return false;
    if (alloc_caching_open(&w.ledger, &settings, &w.alloc, &e)) return false;
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
        ok(scenario(dry, scenarios[i].step, scenarios[i].limit, ""), "caching: %s", scenarios[i].what);
    for (size_t i = 0; i < ARRAY_LEN(with_settings); i++)
        ok(scenario(dry, with_settings[i].step, with_settings[i].limit, with_settings[i].conf), "%s: %s",
           with_settings[i].conf, with_settings[i].what);
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

/* ---- its settings */

static void test_conf(void) {
    static const struct { const char *text, *wrong; } bad[] = {
        {"max_split_size_m:128",
         "unknown key \"max_split_size_m\" (did you mean \"max_split_size_mb\"?); known: expandable_"},
        {"max_split_size_mb:19", "max_split_size_mb: expected at least 20 MiB, found \"19\""},
        {"max_split_size_mb", "max_split_size_mb: expected \":\", found \"the end\""},
        {"max_split_size_mb:128 32", "after a value: expected \",\", found \"32\""},
        {"max_split_size_mb:99999999999999999999", "expected at least 20 MiB"},
        {"max_split_size_mb:32,", "after a comma: expected a key, found \"the end\""},
        {"max_non_split_rounding_mb:1", "max_non_split_rounding_mb: expected at least 20 MiB"},
        {"expandable_segments:true", "expandable_segments: expected True or False, found \"true\""},
        {"garbage_collection_threshold:1", "expected a number above 0 and below 1, found \"1\""},
        {"garbage_collection_threshold:", "expected a number above 0 and below 1, found \"the end\""},
        {"roundup_power2_divisions:3", "expected 0 or a power of two as the number of steps, found \"3\""},
        {"roundup_power2_divisions:[3:2]", "expected a power of two of MiB, or >, found \"3\""},
        {"roundup_power2_divisions:[4:2", "expected \",\" or \"]\", found \"the end\""},
        {"backend:cudaMallocAsync", "backend: expected native (cudaMallocAsync keeps"},
        {"pinned_num_register_threads:,", "expected a value, found \",\""}, {",", "unknown key \",\""},
    };
    CachingSettings s = {.max_split_size = 7};
    Err e;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ok(caching_settings_parse(bad[i].text, &s, &e) == ERR_SCRIPT && s.max_split_size == 7, "refused: %s",
           bad[i].text);
        has_text(e.text, bad[i].wrong, "... with its key");
    }
    is_int(caching_settings_parse("", &s, &e), OK, "no settings");
    ok(!s.max_split_size && !s.expandable_segments && s.garbage_collection_threshold == 0, "... are the defaults");
    is_int(caching_settings_parse(" max_split_size_mb : 128 , expandable_segments:True,backend:native,"
        "garbage_collection_threshold:0.8,max_non_split_rounding_mb:64,pinned_use_background_threads:True,"
        "roundup_power2_divisions:[2:1,8:2,>:16]", &s, &e), OK, "all of them");
    /* ">" is for the interval of 8 MiB, too */
    static const uint32_t steps[ROUNDUP_INTERVALS] = {1, 1, 0, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16};
    ok(s.max_split_size == M(128) && s.expandable_segments && s.garbage_collection_threshold == 0.8 &&
       s.max_non_split_rounding == M(64) && !memcmp(s.roundup_power2_divisions, steps, sizeof steps), "... are read");
    is_int((long long)caching_round(&s, M(16) + 1), M(17), "16 MiB and a byte, in steps of 1 MiB");
    is_int((long long)caching_round(&s, M(16)), M(16), "a power of two stays");
    is_int((long long)caching_round(&s, 1), 512, "a byte takes 512");
}

/* Blocks of one stream are not for another; at the end of memory all of them go. */
static void test_streams(Device *dry) {
    Ledger l;
    Allocator *a = NULL;
    Block b, c;
    ledger_open(&l, dry, M(44));
    alloc_caching_open(&l, NULL, &a, NULL);
    allocator_get(a, M(3), CAT_OTHER, 0, &b, NULL);
    void *first = b.data;
    alloc_caching_stream(a, 7);
    allocator_get(a, M(3), CAT_OTHER, 0, &c, NULL);
    is_int((long long)l.held, M(40), "each stream has segments of its own");
    allocator_put(a, &b);
    allocator_get(a, M(3), CAT_OTHER, 0, &b, NULL);
    ok((char *)b.data == (char *)c.data + M(3), "a free block of another stream is not taken");
    allocator_put(a, &b);
    alloc_caching_stream(a, 0);
    allocator_get(a, M(2), CAT_OTHER, 0, &b, NULL);
    ok(b.data == first, "but by its own");
    allocator_put(a, &b);
    alloc_caching_stream(a, 7);
    is_int(allocator_get(a, M(22), CAT_OTHER, 0, &b, NULL), OK, "it goes back where another stream needs memory");
    is_int((long long)alloc_caching_stats(a).retries, 1, "... which is a retry");
    allocator_put(a, &b);
    allocator_put(a, &c);
    allocator_close(a);
    is_int(ledger_check_zero(&l, NULL), OK, "all is given back");
}

/* A state that was recorded: two segments, three blocks, and the order of addresses from there on. */
static void test_restore(Device *dry) {
    enum { LOW = 1 << 30, HIGH = LOW + (64 << 20), MIDDLE = LOW + (32 << 20) };
    Ledger l;
    Allocator *a = NULL;
    Err e;
    Block b[3] = {{.bytes = 100, .size = 512}, {.bytes = M(4), .size = M(4) + 512}, {.bytes = M(12), .size = M(12)}}, c;
    const CachedSegment high = {HIGH, M(20), 0, false}, low = {LOW, M(20), 0, false};
    const CachedBlock in_high[] = {{M(1), &b[0]}, {M(6), &b[1]}}, in_low[] = {{M(8), &b[2]}};
    ledger_open(&l, dry, 0);
    alloc_caching_open(&l, NULL, &a, NULL);
    is_int(alloc_caching_restore(a, &high, in_high, 2, &e), OK, "a segment comes back");
    is_int(alloc_caching_restore(a, &low, in_low, 1, &e), OK, "and another");
    CachingStats stats = alloc_caching_stats(a);
    ok(l.held == M(40) && l.used == 100 + M(16) && stats.segments == 2 && stats.cached == 0 &&
       stats.split == M(40) - 512 - M(4) - 512 - M(12), "with what is used and free in them");
    ok(alloc_caching_address(&b[1]) == HIGH + M(6) && alloc_caching_address(&b[2]) == LOW + M(8),
       "each at its address");
    allocator_get(a, M(8), CAT_OTHER, 0, &c, &e);
    is_int((long long)alloc_caching_address(&c), LOW, "of two free blocks the smaller, though the segment is younger");
    allocator_put(a, &c);
    ok(!alloc_caching_release(a, LOW), "a segment with a block stays");
    allocator_put(a, &b[2]);
    ok(alloc_caching_stats(a).cached == M(20) && !alloc_caching_release(a, MIDDLE), "one that is not there, too");
    alloc_caching_next_address(a, MIDDLE);
    allocator_get(a, M(24), CAT_OTHER, 0, &b[2], &e);
    is_int((long long)alloc_caching_address(&b[2]), MIDDLE, "a new segment stands where it is said to");
    allocator_put(a, &b[2]);
    ok(alloc_caching_release(a, LOW) && l.held == M(44), "a cached one goes back");
    for (int i = 0; i < 3; i++) allocator_put(a, &b[i]);
    allocator_close(a);
    is_int(ledger_check_zero(&l, &e), OK, "all is given back");
}

/* Expandable segments, where each host allocation fails once: the request fails, nothing is lost. */
static void test_expandable_failures(Device *dry) {
    const CachingSettings settings = {.expandable_segments = true};
    long before = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    for (long k = 1; code == ERR_HOST_MEMORY && k < 100; k++) {
        Ledger l;
        Allocator *a = NULL;
        Block b[6] = {{.data = NULL}};
        Err e;
        ledger_open(&l, dry, M(100));
        mem_fail_after(k);
        code = alloc_caching_open(&l, &settings, &a, &e);
        for (int i = 0; i < 6 && !code; i++) code = allocator_get(a, M(1 + 7 * i), CAT_OTHER, 0, &b[i], &e);
        for (int i = 0; i < 6 && a; i += 2) allocator_put(a, &b[i]);
        if (a) allocator_empty_cache(a);
        mem_fail_after(0);
        for (int i = 0; i < 6 && a; i++) allocator_put(a, &b[i]);
        allocator_close(a);
        failures += code == ERR_HOST_MEMORY;
        if (ledger_check_zero(&l, &e) || mem_live() != before) code = ERR_INTERNAL;
    }
    ok(code == ERR_OOM && failures > 5, "each of %ld host allocations fails once, nothing stays", failures);
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
    Block block[BLOCKS] = {{.data = NULL}};
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
    test_conf();
    test_streams(dry);
    test_restore(dry);
    test_expandable_failures(dry);
    for (int kind = 0; kind < ALLOC_COUNT; kind++) {
        test_walk((AllocKind)kind, cpu, dry);
        test_failures((AllocKind)kind, dry);
    }
    test_misuse(dry);
    device_close(dry);
    device_close(cpu);
    return tap_done();
}
