/* grid.c: runs the threads of one grid on one host thread.
 *
 * Threads that never wait for each other are plain calls. Once thread 0 of a block has waited, the threads of this
 * block and of all later ones are fibers: each runs until it waits or ends; a wait ends when all threads that it waits
 * for have come. A warp runs as far ahead of the others as it can, so that a missing barrier is found. A wait that can
 * never end is a bug in the kernel and ends the program.
 *
 * Shared memory is junk when a block begins. */
#include "emulate.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* STACK_BYTES: no power of two, since the ends of all stacks would share a few lines of the processor's caches */
enum { STACK_BYTES = (64 << 10) + 5 * 64, JUNK_BYTE = 0xFF /* NaN in every floating type */ };

typedef enum Wait { UNBORN, RUNS, WAITS_BLOCK, WAITS_WARP, ENDED } Wait;

typedef void *Place[5]; /* what __builtin_setjmp leaves; the C library's setjmp and longjmp take several times as long */

typedef struct Fiber {
    Place place;          /* where it goes on */
    uint3 index;          /* its threadIdx */
    bool made;            /* it has a place; it keeps its stack as long as the process lives */
    Wait wait;
    unsigned mask;        /* WAITS_WARP: the lanes that it waits for */
    unsigned turn;        /* exchanges within the warp so far */
    uint64_t sent[2][EMULATE_WORDS]; /* by turn, since a lane may be one exchange ahead of a slower one */
} Fiber;

extern uint3 threadIdx, blockIdx, blockDim, gridDim;
uint3 threadIdx, blockIdx, blockDim, gridDim;

static struct {
    Fiber fiber[EMULATE_BLOCK_MAX];
    char *stacks;
    unsigned threads, now; /* of the block; the one that runs */
    bool plain;            /* the block's threads are plain calls */
    bool waits;            /* threads of the grid have waited */
    Place scheduler;
    EmulateCall *call;
    void *args;
} run;

static void die(const char *what) {
    fprintf(stderr, "emulated kernel, block (%u, %u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, run.now,
            what);
    abort();
}

bool emulate_flag(const char *name) {
    const char *value = getenv(name);
    return value && *value && *value != '0';
}

static void become(unsigned i) {
    run.now = i;
    threadIdx = run.fiber[i].index;
}

/* A function of its own: gcc wants no __builtin_longjmp beside a __builtin_setjmp. */
__attribute__((noinline, noreturn)) static void go_on(Place place) { __builtin_longjmp(place, 1); }

/* The fiber waits or has ended: the scheduler goes on. It jumps, since swapcontext would make two system calls. */
static void fiber_leave(Wait wait) {
    Fiber *f = &run.fiber[run.now];
    f->wait = wait;
    if (!__builtin_setjmp(f->place)) go_on(run.scheduler);
}

static void fiber_main(void) {
    for (;;) {
        run.call(run.args);
        fiber_leave(ENDED); /* it returns as a thread of another block */
    }
}

static void fiber_make(unsigned i) {
    static ucontext_t context; /* not on the scheduler's stack: this function never returns */
    getcontext(&context);
    context.uc_stack.ss_sp = run.stacks + (size_t)i * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, fiber_main, 0);
    run.fiber[i].made = true;
    setcontext(&context);
}

static void fiber_resume(unsigned i) {
    become(i);
    if (__builtin_setjmp(run.scheduler)) return;
    if (run.fiber[i].made) go_on(run.fiber[i].place);
    fiber_make(i);
}

static void fiber_start(unsigned i) {
    run.fiber[i].wait = RUNS;
    run.fiber[i].turn = 0;
    fiber_resume(i);
}

/* ---- waiting */

static void wait_for(Wait wait, unsigned mask) {
    Fiber *f = &run.fiber[run.now];
    if (run.plain) die("waits for the block's other threads, but its first one ended without waiting");
    f->mask = mask;
    fiber_leave(wait);
}

void emulate_syncthreads(void) { wait_for(WAITS_BLOCK, 0); }

unsigned emulate_lane(void) { return run.now % EMULATE_WARP; }

static Fiber *lane_fiber(unsigned lane) {
    unsigned i = run.now - emulate_lane() + lane;
    return i < run.threads ? &run.fiber[i] : NULL;
}

/* Offers `words` to the lanes of mask, and waits for theirs. Returns the turn, by which they are read. */
static unsigned exchange(unsigned mask, const uint64_t *words, size_t count) {
    Fiber *f = &run.fiber[run.now];
    unsigned turn = f->turn++ & 1;
    if (!(mask >> emulate_lane() & 1)) die("calls a warp function whose mask leaves it out");
    memcpy(f->sent[turn], words, count * sizeof *words);
    wait_for(WAITS_WARP, mask);
    return turn;
}

uint64_t emulate_shuffle(unsigned mask, uint64_t value, unsigned lane) {
    unsigned turn = exchange(mask, &value, 1);
    const Fiber *from = lane_fiber(lane);
    if (!from || !(mask >> lane & 1)) die("reads a lane that takes no part");
    return from->sent[turn][0];
}

void emulate_exchange(const uint64_t words[EMULATE_WORDS]) {
    if (run.now - run.now % EMULATE_WARP + EMULATE_WARP > run.threads) die("takes part in what only a whole warp can do");
    exchange(0xffffffffu, words, EMULATE_WORDS);
}

void emulate_read(unsigned word, unsigned first, unsigned count, uint64_t *out) {
    const unsigned turn = (run.fiber[run.now].turn - 1) & 1;
    for (unsigned i = 0; i < count; i++) out[i] = lane_fiber(first + i)->sent[turn][word];
}

unsigned emulate_ballot(unsigned mask, int predicate) {
    const uint64_t vote = predicate != 0;
    unsigned turn = exchange(mask, &vote, 1), votes = 0;
    for (unsigned lane = 0; lane < EMULATE_WARP; lane++)
        if (lane_fiber(lane) && mask >> lane & 1 && lane_fiber(lane)->sent[turn][0]) votes |= 1u << lane;
    return votes;
}

/* Have all lanes of fiber i's mask come? Lanes after the block's end do not exist. */
static bool warp_came(unsigned i) {
    unsigned first = i - i % EMULATE_WARP, mask = run.fiber[i].mask;
    for (unsigned k = first; k < first + EMULATE_WARP && k < run.threads; k++)
        if (mask >> (k - first) & 1 && (run.fiber[k].wait != WAITS_WARP || run.fiber[k].mask != mask)) return false;
    return true;
}

/* Lanes go on if all lanes of their masks have come. */
static void warp_release(unsigned first, unsigned end) {
    bool over[EMULATE_WARP] = {false}, came = false;
    unsigned asked = 0; /* the mask of which `came` tells: most often all lanes have one mask */
    for (unsigned i = first; i < end; i++) {
        if (run.fiber[i].wait != WAITS_WARP) continue;
        if (run.fiber[i].mask != asked) came = warp_came(i), asked = run.fiber[i].mask;
        over[i - first] = came;
    }
    for (unsigned i = first; i < end; i++)
        if (over[i - first]) run.fiber[i].wait = RUNS;
}

/* The same for the block's barrier; threads that have ended need not come. Returns how many go on. */
static unsigned block_release(void) {
    unsigned waiting = 0, ended = 0;
    for (unsigned i = 0; i < run.threads; i++) {
        waiting += run.fiber[i].wait == WAITS_BLOCK;
        ended += run.fiber[i].wait == ENDED;
    }
    if (ended == run.threads) return 0;
    if (waiting + ended < run.threads) die("the block's threads wait for each other");
    for (unsigned i = 0; i < run.threads; i++)
        if (run.fiber[i].wait == WAITS_BLOCK) run.fiber[i].wait = RUNS;
    return waiting;
}

/* ---- shared memory: the thread-local variables of the module that the kernels and this file are in */

typedef struct Shared { char *at; size_t bytes; } Shared;

static int find_shared(struct dl_phdr_info *module, size_t size, void *out) {
    const uintptr_t here = (uintptr_t)&run;
    const ElfW(Phdr) *tls = NULL;
    bool mine = false;
    (void)size;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &module->dlpi_phdr[i];
        const uintptr_t begin = module->dlpi_addr + p->p_vaddr;
        mine |= p->p_type == PT_LOAD && here >= begin && here - begin < p->p_memsz;
        if (p->p_type == PT_TLS) tls = p;
    }
    if (mine && tls) *(Shared *)out = (Shared){module->dlpi_tls_data, tls->p_memsz};
    return mine;
}

static Shared shared_memory(void) {
    static _Thread_local volatile char there;
    Shared s = {NULL, 0};
    (void)there; /* a thread gets a module's variables when it first reads one of them */
    dl_iterate_phdr(find_shared, &s);
    return s;
}

/* ---- blocks */

/* Which of `count` runs as the i-th */
static unsigned pick(unsigned i, unsigned count, bool reverse) { return reverse ? count - 1 - i : i; }

/* Runs threads [first, end) until all of them have ended or wait for other warps. */
static void warp_run(unsigned first, unsigned end, bool reverse) {
    for (bool ran = true; ran; warp_release(first, end)) {
        ran = false;
        for (unsigned i = 0; i < end - first; i++) {
            unsigned k = first + pick(i, end - first, reverse);
            if (run.fiber[k].wait == UNBORN) fiber_start(k);
            else if (run.fiber[k].wait == RUNS) fiber_resume(k);
            else continue;
            ran = true;
        }
    }
}

static void block_as_fibers(bool reverse) {
    unsigned warps = (run.threads + EMULATE_WARP - 1) / EMULATE_WARP;
    do {
        for (unsigned i = 0; i < warps; i++) {
            unsigned first = pick(i, warps, reverse) * EMULATE_WARP, end = first + EMULATE_WARP;
            warp_run(first, end < run.threads ? end : run.threads, reverse);
        }
    } while (block_release());
}

static void block_run(bool reverse) {
    run.plain = false;
    for (unsigned i = 0; i < run.threads; i++) run.fiber[i].wait = UNBORN;
    fiber_start(0);
    run.waits |= run.fiber[0].wait != ENDED;
    if (run.waits) {
        block_as_fibers(reverse);
        return;
    }
    run.plain = true;
    for (unsigned i = 0; i + 1 < run.threads; i++) {
        become(1 + pick(i, run.threads - 1, reverse));
        run.call(run.args);
    }
}

void emulate_grid(dim3 grid, dim3 block, EmulateCall *call, void *args) {
    bool reverse = emulate_flag("EMULATE_REVERSE");
    Shared shared = shared_memory();
    unsigned blocks = grid.x * grid.y * grid.z;
    if (!run.stacks) {
        run.stacks = mmap(NULL, (size_t)EMULATE_BLOCK_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (run.stacks == MAP_FAILED) die("no host memory for stacks");
    }
    gridDim = (uint3){grid.x, grid.y, grid.z};
    blockDim = (uint3){block.x, block.y, block.z};
    run.threads = block.x * block.y * block.z;
    for (unsigned i = 0; i < run.threads; i++)
        run.fiber[i].index = (uint3){i % block.x, i / block.x % block.y, i / block.x / block.y};
    run.call = call;
    run.args = args;
    run.waits = false;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned k = pick(i, blocks, reverse);
        blockIdx = (uint3){k % grid.x, k / grid.x % grid.y, k / grid.x / grid.y};
        if (shared.at) memset(shared.at, JUNK_BYTE, shared.bytes);
        block_run(reverse);
    }
}
