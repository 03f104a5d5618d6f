/* grid.c: runs the threads of one grid on one host thread.
 *
 * Threads that never wait for each other are plain calls. Once thread 0 of a block has waited, the threads of this
 * block and of all later ones are fibers: each runs until it waits or ends; a wait ends when all threads that it waits
 * for have come. A warp runs as far ahead of the others as it can, so that a missing barrier is found. A wait that can
 * never end is a bug in the kernel and ends the program.
 *
 * Blocks, warps and threads take their turns first to last; with EMULATE_REVERSE=1 last to first; with EMULATE_SEED=N in a
 * random order, another one in each launch. Shared memory is junk when a block begins. */
#include "shadow/shadow.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* STACK_BYTES: no power of two, since the ends of all stacks would share a few lines of the processor's caches */
enum { STACK_BYTES = (64 << 10) + 5 * 64, JUNK_BYTE = 0xFF /* NaN in every floating type */ };

typedef enum Wait { UNBORN, RUNS, WAITS_BLOCK, WAITS_WARP, ENDED } Wait;

typedef void *Place[5]; /* what __builtin_setjmp leaves; the C library's setjmp and longjmp take several times as long */

/* What is looked at most often comes first: the scheduler's time is the processor's caches. */
typedef struct Fiber {
    EmulatePlace at;      /* where it waits */
    unsigned mask;        /* WAITS_WARP: the lanes that it waits for */
    Wait wait;
    bool orders;          /* WAITS_WARP: memory, too: __syncwarp does, a shuffle does not */
    bool made;            /* it has a place; it keeps its stack as long as the process lives */
    uint3 index;          /* its threadIdx */
    Place place;          /* where it goes on */
} Fiber;

/* What a warp's lanes offer. Each lane has two places for it, in turn, since it may be one exchange ahead of a slower one. `next` has a bit for
 * each lane: the place of its next offer. It changes when the lane goes on, together with all with which it exchanges. */
typedef struct Sent {
    uint64_t words[2][EMULATE_WORDS][EMULATE_WARP];
    uint32_t next;
} Sent;

extern uint3 threadIdx, blockIdx, blockDim, gridDim;
uint3 threadIdx, blockIdx, blockDim, gridDim;

static struct {
    Fiber fiber[EMULATE_BLOCK_MAX];
    Sent sent[EMULATE_BLOCK_MAX / EMULATE_WARP];
    char *stacks;
    unsigned first, count, next; /* the warp that has its turn, its lanes, and how many of them had theirs */
    bool ran;                    /* one of them has run */
    unsigned threads, now; /* of the block; the one that runs */
    bool plain;            /* the block's threads are plain calls */
    bool waits;            /* threads of the grid have waited */
    bool reverse;
    uint64_t seed;         /* of a random order; 0: none */
    Place scheduler;
    EmulateCall *call;
    void *args;
} run;

static void die(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *what, ...) {
    char text[512];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    fprintf(stderr, "emulated kernel%s, block (%u, %u, %u), thread %u: %s\n", shadow_kernel(), blockIdx.x, blockIdx.y,
            blockIdx.z, run.now, text);
    abort();
}

bool emulate_flag(const char *name) {
    const char *value = getenv(name);
    return value && *value && *value != '0';
}

static void become(unsigned i) {
    run.now = i;
    threadIdx = run.fiber[i].index;
    shadow_thread(i);
}

/* A function of its own: gcc wants no __builtin_longjmp beside a __builtin_setjmp. */
__attribute__((noinline, noreturn)) static void go_on(Place place) { __builtin_longjmp(place, 1); }

static void fiber_main(void);

__attribute__((noreturn)) static void fiber_make(unsigned i) {
    static ucontext_t context; /* not on a stack: this function never returns */
    getcontext(&context);
    context.uc_stack.ss_sp = run.stacks + (size_t)i * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, fiber_main, 0);
    run.fiber[i].made = true;
    setcontext(&context);
    die("a thread cannot begin");
}

/* Which of `count` runs as the i-th. A random order permutes the numbers below a power of two, again and again until the
 * result is below `count`: each of the three steps gives every number once. */
static unsigned pick(unsigned i, unsigned count) {
    uint32_t bits = 0;
    if (run.reverse) return count - 1 - i;
    if (!run.seed || count < 2) return i;
    while (bits < 31 && 1u << bits < count) bits++;
    const uint32_t mask = (1u << bits) - 1, factor = (uint32_t)run.seed | 1, more = (uint32_t)(run.seed >> 32);
    do {
        i = (i * factor + more) & mask;
        i ^= i >> (bits + 1) / 2;
        i = (i * (factor * 5 + 4) + (more >> 7)) & mask;
    } while (i >= count);
    return i;
}

/* The next lane of the warp that need not wait goes on, and if there is none, the scheduler. It jumps, since swapcontext would
 * make two system calls. */
__attribute__((noinline, noreturn)) static void next_goes_on(void) {
    while (run.next < run.count) {
        const unsigned i = run.first + pick(run.next++, run.count);
        Fiber *f = &run.fiber[i];
        if (f->wait == UNBORN) f->wait = RUNS;
        else if (f->wait != RUNS) continue;
        run.ran = true;
        become(i);
        if (f->made) go_on(f->place);
        fiber_make(i);
    }
    go_on(run.scheduler);
}

/* The fiber waits or has ended. */
static void fiber_leave(Wait wait) {
    Fiber *f = &run.fiber[run.now];
    f->wait = wait;
    if (!__builtin_setjmp(f->place)) next_goes_on();
}

static void fiber_main(void) {
    for (;;) {
        run.call(run.args);
        fiber_leave(ENDED); /* it returns as a thread of another block */
    }
}

/* Each of these threads that need not wait runs until it waits or ends. Returns whether there was one. */
__attribute__((noinline)) static bool lanes_run(unsigned first, unsigned count) {
    run.first = first;
    run.count = count;
    run.next = 0;
    run.ran = false;
    if (!__builtin_setjmp(run.scheduler)) next_goes_on();
    return run.ran;
}

/* ---- waiting */

static void wait_for(Wait wait, unsigned mask, EmulatePlace at) {
    Fiber *f = &run.fiber[run.now];
    f->at = at;
    if (run.plain) die("waits at %s:%d, but the block's first thread ended without waiting", at.file, at.line);
    f->mask = mask;
    fiber_leave(wait);
}

void emulate_syncthreads(EmulatePlace at) { wait_for(WAITS_BLOCK, 0, at); }

unsigned emulate_lane(void) { return run.now % EMULATE_WARP; }

/* What that lane of this warp has sent as word `word` in the exchange that is over */
static uint64_t sent_by(unsigned lane, unsigned word) {
    const Sent *sent = &run.sent[run.now / EMULATE_WARP];
    return sent->words[~sent->next >> lane & 1][word][lane];
}

static bool is_lane(unsigned mask, unsigned lane) {
    return mask >> lane & 1 && run.now - emulate_lane() + lane < run.threads;
}

/* Offers `words` to the lanes of mask, and waits for theirs. */
static void exchange(unsigned mask, const uint64_t *words, size_t count, bool orders, EmulatePlace at) {
    Fiber *f = &run.fiber[run.now];
    Sent *sent = &run.sent[run.now / EMULATE_WARP];
    const unsigned lane = emulate_lane();
    if (!(mask >> lane & 1)) die("calls a warp function whose mask leaves it out");
    for (size_t k = 0; k < count; k++) sent->words[sent->next >> lane & 1][k][lane] = words[k];
    f->orders = orders;
    wait_for(WAITS_WARP, mask, at);
}

void emulate_syncwarp(unsigned mask, EmulatePlace at) { exchange(mask, &(uint64_t){0}, 1, true, at); }

uint64_t emulate_shuffle(unsigned mask, uint64_t value, unsigned lane, EmulatePlace at) {
    exchange(mask, &value, 1, false, at);
    if (!is_lane(mask, lane)) die("reads a lane that takes no part");
    return sent_by(lane, 0);
}

void emulate_exchange(const uint64_t words[EMULATE_WORDS], EmulatePlace at) {
    if (run.now - run.now % EMULATE_WARP + EMULATE_WARP > run.threads) die("takes part in what only a whole warp can do");
    exchange(0xffffffffu, words, EMULATE_WORDS, false, at);
}

void emulate_read(unsigned word, unsigned first, unsigned count, uint64_t *out) {
    for (unsigned i = 0; i < count; i++) out[i] = sent_by(first + i, word);
}

unsigned emulate_ballot(unsigned mask, int predicate, EmulatePlace at) {
    const uint64_t vote = predicate != 0;
    unsigned votes = 0;
    exchange(mask, &vote, 1, false, at);
    for (unsigned lane = 0; lane < EMULATE_WARP; lane++)
        if (is_lane(mask, lane) && sent_by(lane, 0)) votes |= 1u << lane;
    return votes;
}

static bool same_place(unsigned a, unsigned b) {
    const EmulatePlace x = run.fiber[a].at, y = run.fiber[b].at;
    return x.line == y.line && (x.file == y.file || !strcmp(x.file, y.file));
}

static void die_apart(const char *who, unsigned a, unsigned b) {
    const EmulatePlace x = run.fiber[a].at, y = run.fiber[b].at;
    become(a);
    die("divergent: %s wait at two places: thread %u at %s:%d, thread %u at %s:%d", who, a, x.file, x.line, b, y.file, y.line);
}

/* Have all lanes of fiber i's mask come? Lanes after the block's end do not exist. */
static bool warp_came(unsigned i) {
    unsigned first = i - i % EMULATE_WARP, mask = run.fiber[i].mask;
    for (unsigned k = first; k < first + EMULATE_WARP && k < run.threads; k++)
        if (mask >> (k - first) & 1 && (run.fiber[k].wait != WAITS_WARP || run.fiber[k].mask != mask)) return false;
    for (unsigned k = first; k < first + EMULATE_WARP && k < run.threads; k++)
        if (mask >> (k - first) & 1 && !same_place(i, k)) die_apart("lanes of one mask", i, k);
    return true;
}

/* Most often all lanes of the warp have come, with one mask, in which each lane is, and to one place: no mask is asked for then. */
static bool warp_came_whole(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++)
        if (run.fiber[i].wait != WAITS_WARP || run.fiber[i].mask != run.fiber[first].mask || !same_place(first, i)) return false;
    return true;
}

/* Lanes go on if all lanes of their masks have come. */
static void warp_release(unsigned first, unsigned end) {
    const bool whole = warp_came_whole(first, end);
    uint32_t over = 0; /* by lane */
    for (unsigned i = first; i < end; i++) over |= (uint32_t)(whole || (run.fiber[i].wait == WAITS_WARP && warp_came(i))) << (i - first);
    bool all = true, orders = true;
    for (unsigned i = first; i < end; i++) {
        const bool goes_on = over >> (i - first) & 1;
        all &= goes_on;
        orders &= run.fiber[i].orders;
        if (goes_on) run.fiber[i].wait = RUNS;
    }
    run.sent[first / EMULATE_WARP].next ^= over;
    if (all && orders) shadow_ordered_warp(first / EMULATE_WARP);
}

/* Threads wait, and nothing can end it: says of the first one why. */
static void die_waiting(void) {
    unsigned i = 0, barrier = run.threads;
    for (unsigned k = 0; k < run.threads; k++)
        if (run.fiber[k].wait == WAITS_BLOCK) barrier = k;
    while (i + 1 < run.threads && run.fiber[i].wait != WAITS_WARP) i++;
    become(run.fiber[i].wait == WAITS_WARP ? i : barrier);
    const Fiber *f = &run.fiber[run.now];
    if (f->wait == WAITS_WARP && barrier < run.threads)
        die("the block's threads wait for each other: thread %u at %s:%d for lanes %#x, thread %u at the barrier at %s:%d",
            run.now, f->at.file, f->at.line, f->mask, barrier, run.fiber[barrier].at.file, run.fiber[barrier].at.line);
    die("the block's threads wait for each other: lanes %#x at %s:%d, of which some never come", f->mask, f->at.file, f->at.line);
}

/* The same for the block's barrier, to which all threads must come, at one place. Returns how many go on. */
static unsigned block_release(void) {
    unsigned waiting = 0, ended = 0, first = run.threads, gone = 0;
    for (unsigned i = 0; i < run.threads; i++) {
        const Wait w = run.fiber[i].wait;
        waiting += w == WAITS_BLOCK;
        ended += w == ENDED;
        if (w == WAITS_BLOCK && first == run.threads) first = i;
        if (w == ENDED) gone = i;
    }
    if (ended == run.threads) return 0;
    if (waiting + ended < run.threads) die_waiting();
    become(first);
    if (ended)
        die("divergent: waits at %s:%d, but thread %u of the block has ended", run.fiber[first].at.file, run.fiber[first].at.line,
            gone);
    for (unsigned i = 0; i < run.threads; i++) {
        if (!same_place(first, i)) die_apart("the block's threads", first, i);
        run.fiber[i].wait = RUNS;
    }
    shadow_ordered_block();
    return waiting;
}

/* ---- blocks */

/* Runs threads [first, end) until all of them have ended or wait for other warps. */
static void warp_run(unsigned first, unsigned end) {
    while (lanes_run(first, end - first)) warp_release(first, end);
}

static void block_as_fibers(void) {
    unsigned warps = (run.threads + EMULATE_WARP - 1) / EMULATE_WARP;
    do {
        for (unsigned i = 0; i < warps; i++) {
            unsigned first = pick(i, warps) * EMULATE_WARP, end = first + EMULATE_WARP;
            warp_run(first, end < run.threads ? end : run.threads);
        }
    } while (block_release());
}

static void block_run(void) {
    run.plain = false;
    for (unsigned i = 0; i < run.threads; i++) run.fiber[i].wait = UNBORN;
    lanes_run(0, 1);
    run.waits |= run.fiber[0].wait != ENDED;
    if (run.waits) {
        block_as_fibers();
        return;
    }
    run.plain = true;
    for (unsigned i = 0; i + 1 < run.threads; i++) {
        become(1 + pick(i, run.threads - 1));
        run.call(run.args);
    }
}

void emulate_grid(dim3 grid, dim3 block, EmulateCall *call, void *args) {
    static uint64_t launches;
    const char *seed = getenv("EMULATE_SEED");
    const ShadowModule *module = shadow_module();
    unsigned blocks = grid.x * grid.y * grid.z;
    if (!run.stacks) {
        run.stacks = mmap(NULL, (size_t)EMULATE_BLOCK_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (run.stacks == MAP_FAILED) die("no host memory for stacks");
        shadow_stacks(run.stacks, EMULATE_BLOCK_MAX, STACK_BYTES);
    }
    gridDim = (uint3){grid.x, grid.y, grid.z};
    blockDim = (uint3){block.x, block.y, block.z};
    run.threads = block.x * block.y * block.z;
    for (unsigned i = 0; i < run.threads; i++)
        run.fiber[i].index = (uint3){i % block.x, i / block.x % block.y, i / block.x / block.y};
    run.call = call;
    run.args = args;
    run.waits = false;
    run.reverse = emulate_flag("EMULATE_REVERSE");
    run.seed = seed ? (strtoull(seed, NULL, 10) << 32 | ++launches) * 0x9E3779B97F4A7C15u : 0;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned k = pick(i, blocks);
        blockIdx = (uint3){k % grid.x, k / grid.x % grid.y, k / grid.x / grid.y};
        if (module->shared) memset(module->shared, JUNK_BYTE, module->shared_bytes);
        shadow_block(run.threads);
        block_run();
    }
}
