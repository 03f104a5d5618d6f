/* count.c: what the kernels that run ask of memory, counted by warps as a GPU does it: the threads of a warp make one request when
 * they come to an instruction for the same time. Of device memory a request moves whole sectors of 32 bytes, each once; caches
 * are not counted. Of shared memory it takes a turn for each 128 bytes at best, and more where threads want different words of
 * one of the 32 banks; threads with 8 or 16 bytes take their turns by halves and quarters of the warp. */
#include "shadow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECTOR = 32, BANKS = 32, WORD = 4, CODES = 1 << 14 };

/* An access of a thread */
typedef struct Access { const void *pc; uintptr_t at; uint32_t turn; uint16_t thread; uint8_t bytes, write, shared; } Access;

static struct {
    bool on;
    Access *access;               /* of the block */
    size_t n, cap;
    const void *code[CODES];      /* an instruction, in a table of hashes */
    uint32_t (*times)[EMULATE_BLOCK_MAX]; /* that a thread has come to it, by place in the table */
    uint16_t used[CODES];
    int n_used;
    ShadowCounts sum;
} count;

void shadow_count_from_here(void) {
    count.on = true;
    memset(&count.sum, 0, sizeof count.sum);
}

ShadowCounts shadow_counted(void) { return count.sum; }

void shadow_count_launch(void) { count.sum.launches += count.on; }

static uint32_t *times_of(const void *pc, unsigned thread) {
    uintptr_t k = (uintptr_t)pc * 0x9E3779B97F4A7C15u >> 50;
    while (count.code[k] && count.code[k] != pc) k = (k + 1) % CODES;
    if (!count.code[k]) {
        if (count.n_used == CODES / 2) shadow_die("more than %d instructions", CODES / 2);
        count.code[k] = pc;
        count.used[count.n_used++] = (uint16_t)k;
        memset(count.times[k], 0, sizeof count.times[k]);
    }
    return &count.times[k][thread];
}

void shadow_count(const void *pc, unsigned thread, uintptr_t at, size_t bytes, bool write, bool shared) {
    if (!count.on) return;
    if (count.n == count.cap) {
        count.cap = count.cap ? 2 * count.cap : 1 << 16;
        count.access = realloc(count.access, count.cap * sizeof *count.access);
    }
    if (!count.times) count.times = malloc(CODES * sizeof *count.times);
    if (!count.access || !count.times) shadow_die("no host memory to count with");
    count.access[count.n++] = (Access){pc, at, (*times_of(pc, thread))++, (uint16_t)thread, (uint8_t)(bytes > 255 ? 255 : bytes), write, shared};
}

static int by_request(const void *a, const void *b) {
    const Access *x = a, *y = b;
    if (x->pc != y->pc) return x->pc < y->pc ? -1 : 1;
    if (x->thread / EMULATE_WARP != y->thread / EMULATE_WARP) return x->thread / EMULATE_WARP < y->thread / EMULATE_WARP ? -1 : 1;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    return x->thread < y->thread ? -1 : x->thread > y->thread;
}

static bool same_request(const Access *a, const Access *b) {
    return a->pc == b->pc && a->turn == b->turn && a->thread / EMULATE_WARP == b->thread / EMULATE_WARP;
}

static int by_number(const void *a, const void *b) {
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts unit[n] and drops what is there twice. */
static size_t distinct(uintptr_t *unit, size_t n) {
    size_t kept = 0;
    qsort(unit, n, sizeof *unit, by_number);
    for (size_t i = 0; i < n; i++)
        if (!i || unit[i] != unit[i - 1]) unit[kept++] = unit[i];
    return kept;
}

/* The units of `size` bytes that the accesses touch */
static size_t units(const Access *a, size_t n, size_t size, uintptr_t *unit) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (uintptr_t u = a[i].at / size; u <= (a[i].at + a[i].bytes - 1) / size; u++) unit[k++] = u;
    return distinct(unit, k);
}

static void count_shared(const Access *a, size_t n) {
    const unsigned phase = a->bytes > 8 ? EMULATE_WARP / 4 : a->bytes > 4 ? EMULATE_WARP / 2 : EMULATE_WARP;
    uintptr_t word[EMULATE_WARP * 64];
    for (size_t from = 0, to; from < n; from = to) {
        size_t bank[BANKS] = {0}, most = 0;
        for (to = from; to < n && a[to].thread / phase == a[from].thread / phase;) to++;
        const size_t words = units(a + from, to - from, WORD, word);
        for (size_t i = 0; i < words; i++) {
            size_t *b = &bank[word[i] % BANKS];
            if (++*b > most) most = *b;
        }
        count.sum.turns += most;
        count.sum.least_turns += (words + BANKS - 1) / BANKS;
    }
}

void shadow_count_block(void) {
    uintptr_t unit[EMULATE_WARP * 64];
    qsort(count.access, count.n, sizeof *count.access, by_request);
    for (size_t from = 0, to; from < count.n; from = to) {
        const Access *a = &count.access[from];
        for (to = from; to < count.n && same_request(a, &count.access[to]);) to++;
        if (a->shared) {
            count_shared(a, to - from);
            continue;
        }
        const size_t sectors = units(a, to - from, SECTOR, unit);
        count.sum.requests++;
        *(a->write ? &count.sum.written : &count.sum.read) += sectors * SECTOR;
    }
    for (int i = 0; i < count.n_used; i++) count.code[count.used[i]] = NULL;
    count.n_used = 0;
    count.n = 0;
}
