/* shadow.c: see shadow.h. */
#include "shadow.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SHARED_MAX = 48 << 10 /* static, in a block, on every GPU */ };

/* ---- marks: who touches memory, and when
 *
 * A mark stands for a thread between two waits. Marks rise with time: NEVER, BEFORE (by the host, or by a launch that is over),
 * then two for each such stretch of the launch that runs: an even one for plain accesses, an odd one for atomics. */

enum { NEVER = 0, BEFORE = 1, FIRST = 2 };
typedef uint32_t Mark;

/* barrier: barriers that the block has passed; sync: __syncwarps of the warp */
typedef struct When { uint32_t block, thread, barrier, sync; } When;

/* Of one byte: the last write, and the reads since then: the last one and, where there is one, a read by another lane of its
 * warp, by another warp of its block, and by another block, each not yet in order with the last one. */
typedef struct Cell { Mark written, read, lane, warp, block; } Cell;

typedef struct Region { uintptr_t begin, end; Cell *cell; } Region;
typedef struct Operands { ShadowOperand *at; int n; } Operands;

static struct {
    bool watching;              /* a kernel runs */
    const void *kernel;
    uintptr_t stacks, stack_bytes, stacks_end, args, args_end, frame;
    Region *region;             /* the device's memory */
    int regions, last_region;
    Region shared;              /* the block's */
    Operands *operands;         /* by number; 0: none were told */
    int n_operands;
    const Operands *may;        /* of the launch */
    int last_operand[2];        /* read, written */
    unsigned now;               /* the thread that runs */
    When *when;                 /* of the launch: of marks begin + 2 k and begin + 2 k + 1 */
    size_t whens, cap_whens;
    Mark begin, block_begin;    /* the first mark of the launch; of the block */
    uint32_t block, barrier, sync[EMULATE_BLOCK_MAX / EMULATE_WARP];
    Mark mark[EMULATE_BLOCK_MAX]; /* of each thread; 0: it has touched nothing since it last waited */
    const ShadowSymbol *last_array;
    bool *array_used;           /* by the launch */
    size_t shared_used;
} s = {.begin = FIRST};

static void *must(void *p) {
    if (p) return p;
    fputs("shadow memory: no host memory\n", stderr);
    abort();
}

/* Files that are instrumented call it before anything else. */
static bool instrumented;
void __tsan_init(void);
void __tsan_init(void) { instrumented = true; }

bool shadow_on(void) {
    static int on = -1;
    if (on < 0) on = emulate_flag("EMULATE_SHADOW");
    if (on && !instrumented) shadow_die("kernels are built without instrumentation");
    return on;
}

/* ---- faults */

const char *shadow_kernel(void) {
    static char name[640];
    if (!s.kernel) return "";
    const ShadowModule *m = shadow_module();
    const ShadowSymbol *f = shadow_find(m->function, m->functions, (uintptr_t)s.kernel - m->base);
    snprintf(name, sizeof name, " %s", f ? shadow_plain_name(f->name) : "without a name");
    return name;
}

void shadow_die(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "shadow memory:%s%s %s\n", shadow_kernel(), s.kernel ? ":" : "", text);
    abort();
}

static void fault(const void *pc, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void fault(const void *pc, const char *format, ...) {
    extern uint3 blockIdx;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    shadow_die("block (%u, %u, %u), thread %u: %s%s", blockIdx.x, blockIdx.y, blockIdx.z, s.now, text,
               pc ? shadow_code_place(pc) : "");
}

void shadow_refused(const void *kernel, const char *why) {
    if (!shadow_on()) return;
    s.kernel = kernel;
    shadow_die("launch: %s", why);
}

/* ---- memory */

static Cell *cells_new(size_t n) {
    void *p = mmap(NULL, n * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return must(p == MAP_FAILED ? NULL : p);
}

static void cells_free(Region *r) { munmap(r->cell, (r->end - r->begin) * sizeof(Cell)); }

static Region *region_of(uintptr_t at) {
    if (s.last_region < s.regions && at - s.region[s.last_region].begin < s.region[s.last_region].end - s.region[s.last_region].begin)
        return &s.region[s.last_region];
    for (int i = 0; i < s.regions; i++)
        if (at >= s.region[i].begin && at < s.region[i].end) return &s.region[s.last_region = i];
    return NULL;
}

void shadow_allocated(const void *p, size_t bytes) {
    if (!shadow_on()) return;
    if (!(s.regions & (s.regions - 1)))
        s.region = must(realloc(s.region, (size_t)(s.regions ? 2 * s.regions : 1) * sizeof *s.region));
    s.region[s.regions++] = (Region){(uintptr_t)p, (uintptr_t)p + bytes, cells_new(bytes)};
}

void shadow_freed(const void *p) {
    Region *r = shadow_on() ? region_of((uintptr_t)p) : NULL;
    if (!r) return;
    cells_free(r);
    *r = s.region[--s.regions];
}

/* The cells of bytes in one allocation, or NULL */
static Cell *cells_of(const void *p, size_t bytes) {
    const uintptr_t at = (uintptr_t)p;
    const Region *r = shadow_on() && bytes ? region_of(at) : NULL;
    return r && bytes <= r->end - at ? &r->cell[at - r->begin] : NULL;
}

void shadow_wrote(const void *p, size_t bytes) {
    Cell *c = cells_of(p, bytes);
    for (size_t i = 0; c && i < bytes; i++) c[i].written = BEFORE;
}

void shadow_junk(const void *p, size_t bytes) {
    Cell *c = cells_of(p, bytes);
    for (size_t i = 0; c && i < bytes; i++) c[i].written = NEVER;
}

size_t shadow_written(const void *p, size_t bytes) {
    const Cell *c = cells_of(p, bytes);
    size_t i = 0;
    while (c && i < bytes && c[i].written != NEVER) i++;
    return c ? i : bytes;
}

void shadow_copied(const void *to, const void *from, size_t bytes) {
    Cell *c = cells_of(to, bytes);
    const Cell *of = cells_of(from, bytes);
    for (size_t i = 0; c && i < bytes; i++) c[i].written = of && of[i].written == NEVER ? NEVER : BEFORE;
}

void shadow_stacks(const char *at, unsigned threads, size_t each) {
    s.stacks = (uintptr_t)at;
    s.stack_bytes = each;
    s.stacks_end = s.stacks + threads * each;
}

/* ---- operands */

void shadow_allow(const ShadowOperand *operand, int n) {
    if (!shadow_on()) return;
    if (!s.n_operands) s.n_operands = 1, s.operands = must(calloc(1, sizeof *s.operands));
    if (!n && !s.operands[s.n_operands - 1].n) return;
    if (!(s.n_operands & (s.n_operands - 1)))
        s.operands = must(realloc(s.operands, 2 * (size_t)s.n_operands * sizeof *s.operands));
    Operands *o = &s.operands[s.n_operands++];
    *o = (Operands){n ? must(malloc((size_t)n * sizeof *operand)) : NULL, n};
    if (n) memcpy(o->at, operand, (size_t)n * sizeof *operand);
}

unsigned shadow_operands(void) { return s.n_operands ? (unsigned)s.n_operands - 1 : 0; }

static bool lies_in(const ShadowOperand *o, uintptr_t at, size_t bytes, bool write) {
    return at >= o->begin && at < o->end && bytes <= o->end - at && (o->writable || !write);
}

/* Dies unless one of the operands has all of these bytes. */
static void check_operand(uintptr_t at, size_t bytes, bool write, const void *pc) {
    const Operands *m = s.may;
    int *last = &s.last_operand[write];
    if (!m || !m->n || (*last < m->n && lies_in(&m->at[*last], at, bytes, write))) return;
    for (int i = 0; i < m->n; i++)
        if (lies_in(&m->at[i], at, bytes, write)) {
            *last = i;
            return;
        }
    const ShadowOperand *near = NULL;
    for (int i = 0; i < m->n; i++) {
        const ShadowOperand *o = &m->at[i];
        if (at >= o->begin && at < o->end && bytes <= o->end - at)
            fault(pc, "writes what it may only read: %s, byte %zu of %zu", o->name, (size_t)(at - o->begin), (size_t)(o->end - o->begin));
        if (at >= o->begin && (!near || o->begin > near->begin)) near = o;
    }
    if (!near) fault(pc, "out of bounds: %s %zu bytes before every operand", write ? "writes" : "reads", bytes);
    fault(pc, "out of bounds: %s %zu bytes at byte %zu of %s, which has %zu", write ? "writes" : "reads", bytes,
          (size_t)(at - near->begin), near->name, (size_t)(near->end - near->begin));
}

/* ---- order */

static const When *when_of(Mark m) { return &s.when[(m - s.begin) / 2]; }

/* The mark of the thread that runs */
static Mark mark_now(bool atomic) {
    Mark *m = &s.mark[s.now];
    if (!*m) {
        if (s.whens == s.cap_whens) {
            s.cap_whens = s.cap_whens ? 2 * s.cap_whens : 1024;
            s.when = must(realloc(s.when, s.cap_whens * sizeof *s.when));
        }
        if (s.whens >= (UINT32_MAX - s.begin) / 2 - 1) shadow_die("more than 2^31 marks");
        *m = s.begin + (Mark)(2 * s.whens);
        s.when[s.whens++] = (When){s.block, s.now, s.barrier, s.sync[s.now / EMULATE_WARP]};
    }
    return *m + atomic;
}

typedef enum Order { ORDERED, LANES, WARPS, BLOCKS } Order;

/* What an earlier access lacks to come before the one of `now`. since: marks below it are of the past. */
static Order order_of(Mark m, Mark now, Mark since) {
    if (m < since || (m & now & 1)) return ORDERED;
    const When *a = when_of(m), *b = when_of(now);
    if (a->block != b->block) return BLOCKS;
    if (a->thread == b->thread || a->barrier != b->barrier) return ORDERED;
    if (a->thread / EMULATE_WARP != b->thread / EMULATE_WARP) return WARPS;
    return a->sync != b->sync ? ORDERED : LANES;
}

/* Where an address is, for messages */
static const char *place_name(uintptr_t at) {
    static char out[700];
    const ShadowModule *m = shadow_module();
    if (at >= s.shared.begin && at < s.shared.end) {
        const ShadowSymbol *a = shadow_find(m->array, m->arrays, at - s.shared.begin);
        snprintf(out, sizeof out, "byte %zu of shared %s", (size_t)(at - s.shared.begin - a->at), shadow_plain_name(a->name));
        return out;
    }
    for (int i = 0; s.may && i < s.may->n; i++)
        if (at >= s.may->at[i].begin && at < s.may->at[i].end) {
            snprintf(out, sizeof out, "byte %zu of %s", (size_t)(at - s.may->at[i].begin), s.may->at[i].name);
            return out;
        }
    const Region *r = region_of(at);
    snprintf(out, sizeof out, "byte %zu of an allocation of %zu", (size_t)(at - r->begin), (size_t)(r->end - r->begin));
    return out;
}

static void die_race(Order order, Mark before, bool wrote, bool writes, uintptr_t at, const void *pc) {
    static const char *const lacks[] = {"", "race within a warp, no __syncwarp between", "race of warps, no __syncthreads between",
                                        "two blocks touch one place"};
    const When w = *when_of(before);
    char other[64] = "";
    if (order == BLOCKS) snprintf(other, sizeof other, " of block %u", w.block);
    fault(pc, "%s: %s %s, which thread %u%s has %s", lacks[order], writes ? "writes" : "reads", place_name(at), w.thread, other,
          wrote ? "written" : "read");
}

/* The same, by the functions of order: a read keeps what later writes must come after. */
static void cell_read(Cell *c, Mark now, Mark since, uintptr_t at, const void *pc) {
    const Order order = order_of(c->written, now, since);
    if (order) die_race(order, c->written, true, false, at, pc);
    if (c->read == now) return;
    if (c->read >= since) {
        const When *a = when_of(c->read), *b = when_of(now);
        if (a->block != b->block) c->block = c->read;
        else if (a->barrier != b->barrier) c->warp = c->lane = NEVER;
        else if (a->thread / EMULATE_WARP != b->thread / EMULATE_WARP) c->warp = c->read;
        else if (a->sync != b->sync) c->lane = NEVER;
        else if (a->thread != b->thread) c->lane = c->read;
    } else {
        c->lane = c->warp = c->block = NEVER;
    }
    c->read = now;
}

static void cell_write(Cell *c, Mark now, Mark since, uintptr_t at, const void *pc) {
    if (c->written == now && !c->read) return;
    const Mark before[] = {c->written, c->read, c->block, c->warp, c->lane};
    for (int i = 0; i < 5; i++) {
        const Order order = before[i] < since ? ORDERED : order_of(before[i], now, since);
        if (order) die_race(order, before[i], i == 0, true, at, pc);
    }
    *c = (Cell){.written = now};
}

/* ---- accesses */

typedef enum Access { READ, WRITE, ATOMIC } Access;

static inline bool is_local(uintptr_t at, const void *pc) {
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    const bool plain = here < s.stacks || here >= s.stacks_end; /* threads are plain calls */
    if (at >= s.stacks && at < s.stacks_end) {
        if (plain || (at - s.stacks) / s.stack_bytes != s.now) fault(pc, "touches another thread's local variables");
        return true;
    }
    return plain && at >= here && at < s.frame;
}

/* false: it is not the kernel's */
static bool touch_shared(uintptr_t at, size_t bytes, const void *pc) {
    const ShadowModule *m = shadow_module();
    const ShadowSymbol *a = s.last_array;
    if (!a || at - s.shared.begin - a->at >= a->bytes) a = s.last_array = shadow_find(m->array, m->arrays, at - s.shared.begin);
    if (!a || a->kind == SHADOW_ROOM) fault(pc, "out of bounds: touches shared memory that belongs to no array");
    if (a->kind == SHADOW_GUARD) return false;
    if (bytes > a->at + a->bytes - (at - s.shared.begin))
        fault(pc, "out of bounds: touches %zu bytes at %s, which has %zu", bytes, place_name(at), a->bytes);
    if (s.array_used[a - m->array]) return true;
    s.array_used[a - m->array] = true;
    s.shared_used += (a->bytes + 15) / 16 * 16;
    if (s.shared_used > SHARED_MAX) fault(pc, "launch: more than %d bytes of shared memory: %zu", SHARED_MAX, s.shared_used);
    return true;
}

static void touch(const void *p, size_t bytes, Access how, bool aligned, const void *pc) {
    const uintptr_t at = (uintptr_t)p;
    if (is_local(at, pc)) return;
    const bool shared = at - s.shared.begin < s.shared.end - s.shared.begin;
    const Region *r = shared ? &s.shared : region_of(at);
    if (!r) {
        const ShadowModule *m = shadow_module();
        const bool constant = (at >= m->begin && at < m->end) || (at >= s.args && at < s.args_end);
        if (constant && how == READ) return;
        fault(pc, "out of bounds: %s %zu bytes that are no memory of the device", how ? "writes" : "reads", bytes);
    }
    if (aligned && at % bytes) fault(pc, "misaligned: %s %zu bytes at %s", how ? "writes" : "reads", bytes, place_name(at));
    if (bytes > r->end - at) fault(pc, "out of bounds: %zu bytes at %s", bytes, place_name(at));
    if (!shared) check_operand(at, bytes, how != READ, pc);
    else if (!touch_shared(at, bytes, pc)) return;
    shadow_count(pc, s.now, at, bytes, how != READ, shared);
    const Mark now = mark_now(how == ATOMIC), since = shared ? s.block_begin : s.begin, least = shared ? s.block_begin : BEFORE;
    Cell *c = &r->cell[at - r->begin];
    for (size_t i = 0; i < bytes; i++) {
        if (how != WRITE && c[i].written < least)
            fault(pc, "uninitialised %s memory: reads %s, which nobody has written", shared ? "shared" : "global", place_name(at + i));
        if (how == READ) cell_read(&c[i], now, since, at + i, pc);
        else cell_write(&c[i], now, since, at + i, pc);
    }
}

/* ---- launches, blocks, threads */

void shadow_begin(const void *kernel, unsigned operands, const void *args, size_t bytes, const void *frame) {
    if (!shadow_on() || !kernel) return;
    const ShadowModule *m = shadow_module();
    if (!s.shared.cell && m->shared) {
        s.shared = (Region){(uintptr_t)m->shared, (uintptr_t)m->shared + m->shared_bytes, cells_new(m->shared_bytes)};
        s.array_used = must(calloc((size_t)m->arrays + 1, sizeof *s.array_used));
    }
    s.kernel = kernel;
    s.may = operands ? &s.operands[operands] : NULL;
    s.last_operand[0] = s.last_operand[1] = 0;
    s.args = (uintptr_t)args;
    s.args_end = s.args + bytes;
    s.frame = (uintptr_t)frame;
    s.block = 0;
    s.shared_used = 0;
    if (s.array_used) memset(s.array_used, 0, (size_t)m->arrays * sizeof *s.array_used);
    s.watching = true;
    shadow_count_launch();
}

/* Marks of a launch that is over are below the next one's. Before they run out, all begins anew. */
void shadow_end(void) {
    if (!s.watching) return;
    s.watching = false;
    s.kernel = NULL;
    shadow_count_block();
    s.begin += (Mark)(2 * s.whens);
    s.whens = 0;
    if (s.begin < UINT32_MAX / 2) return;
    for (int i = 0; i < s.regions; i++)
        for (uintptr_t k = 0; k < s.region[i].end - s.region[i].begin; k++)
            s.region[i].cell[k] = (Cell){.written = s.region[i].cell[k].written ? BEFORE : NEVER};
    memset(s.shared.cell, 0, (s.shared.end - s.shared.begin) * sizeof(Cell));
    s.begin = FIRST;
}

void shadow_block(unsigned threads) {
    if (!s.watching) return;
    shadow_count_block();
    memset(s.mark, 0, threads * sizeof *s.mark);
    memset(s.sync, 0, sizeof s.sync);
    s.barrier = 0;
    s.block_begin = s.begin + (Mark)(2 * s.whens);
    extern uint3 blockIdx, gridDim;
    s.block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

void shadow_thread(unsigned i) { s.now = i; }

void shadow_ordered_block(void) {
    s.barrier++;
    memset(s.mark, 0, sizeof s.mark);
}

void shadow_ordered_warp(unsigned warp) {
    s.sync[warp]++;
    memset(&s.mark[warp * EMULATE_WARP], 0, EMULATE_WARP * sizeof *s.mark);
}

/* ---- what the compiler calls */

#define PC __builtin_return_address(0)

void emulate_copy(void *to, const void *from, size_t bytes, const void *pc) {
    if (s.watching) touch(from, bytes, READ, true, pc), touch(to, bytes, WRITE, true, pc);
    memcpy(to, from, bytes);
}

void emulate_atomic(void *p, size_t bytes, const void *pc) {
    if (s.watching) touch(p, bytes, ATOMIC, true, pc);
}

#define EACH_SIZE(X) X(1) X(2) X(4) X(8) X(16)
#define X(n)                                                                                       \
    void __tsan_read##n(void *p);                                                                  \
    void __tsan_write##n(void *p);                                                                 \
    void __tsan_unaligned_read##n(void *p);                                                        \
    void __tsan_unaligned_write##n(void *p);                                                       \
    void __tsan_read##n(void *p) { if (s.watching) touch(p, n, READ, true, PC); }                  \
    void __tsan_write##n(void *p) { if (s.watching) touch(p, n, WRITE, true, PC); }                \
    void __tsan_unaligned_read##n(void *p) { if (s.watching) touch(p, n, READ, false, PC); }       \
    void __tsan_unaligned_write##n(void *p) { if (s.watching) touch(p, n, WRITE, false, PC); }
EACH_SIZE(X)
#undef X

void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes) { if (s.watching) touch(p, bytes, READ, false, PC); }
void __tsan_write_range(void *p, size_t bytes) { if (s.watching) touch(p, bytes, WRITE, false, PC); }

/* -fsanitize=bounds: an index beyond its array, of shared memory or of a thread's own */
typedef struct BoundsFault { const char *file; uint32_t line, column; } BoundsFault;
void __ubsan_handle_out_of_bounds(const BoundsFault *at, const void *index);
void __ubsan_handle_out_of_bounds(const BoundsFault *at, const void *index) {
    if (s.watching)
        fault(NULL, "out of bounds: index %ld of an array at %s:%u", (long)(intptr_t)index, at->file, at->line);
}
