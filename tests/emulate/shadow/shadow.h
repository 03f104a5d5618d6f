/* shadow.h: shadow memory of the emulated GPU. With EMULATE_SHADOW=1 the emulator knows of every byte of device and shared
 * memory who wrote and read it last, and ends the program at the first access that no GPU promises anything for:
 *
 *   a race of threads that no __syncthreads, within a warp no __syncwarp, has put in order (a shuffle orders no memory); two
 *   blocks that touch one place, of which one writes; a vector that is not aligned; a place outside of the op's operands or of
 *   the shared array, or an operand that the op must not write; a byte that nobody has written, in shared memory since the
 *   block began, in an output or the workspace since the op did; a launch that CUDA refuses; an output that is not written.
 *
 * Atomics do not race with each other. The kernels tell of their accesses because they are compiled with -fsanitize=thread, of
 * which only the instrumentation is used: shadow.c has its functions. */
#ifndef EMULATE_SHADOW_H
#define EMULATE_SHADOW_H

#include "../emulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- module.c: the program or library that kernels and emulator are in */

/* ROOM: between two arrays; GUARD: C++'s own, which says whether an array is initialised */
typedef enum ShadowKind { SHADOW_ARRAY, SHADOW_ROOM, SHADOW_GUARD } ShadowKind;
typedef struct ShadowSymbol { uintptr_t at; size_t bytes; const char *name; ShadowKind kind; } ShadowSymbol; /* of shared memory: at in it */

typedef struct ShadowModule {
    uintptr_t base, begin, end; /* where it was loaded; all of its variables and code */
    char *shared;               /* the kernels' shared memory, all of it, or NULL: thread-local variables */
    size_t shared_bytes;
    ShadowSymbol *function, *array; /* sorted by address; array: of shared memory */
    int functions, arrays;
} ShadowModule;

/* Functions and arrays have names if it was not stripped. */
const ShadowModule *shadow_module(void);
/* The symbol that has address `at`, or NULL */
const ShadowSymbol *shadow_find(const ShadowSymbol *sorted, int n, uintptr_t at);
/* A name of C++ as a reader wants it, without types of arguments. Ends with the next call. */
const char *shadow_plain_name(const char *name);
/* " at FILE:LINE" of code, or where it lies in the module */
const char *shadow_code_place(const void *pc);

/* ---- shadow.c, called by the emulator. All of it does nothing unless EMULATE_SHADOW is set. */

bool shadow_on(void);
void shadow_stacks(const char *at, unsigned threads, size_t each);
void shadow_allocated(const void *p, size_t bytes);
void shadow_freed(const void *p);
/* The host, a copy or a library's stand-in has written these bytes; a copy: as far as the other ones were written. */
void shadow_wrote(const void *p, size_t bytes);
void shadow_copied(const void *to, const void *from, size_t bytes);

/* A launch. frame: below it lie local variables of threads that are plain calls. */
void shadow_begin(const void *kernel, unsigned operands, const void *args, size_t bytes, const void *frame);
void shadow_end(void);
void shadow_refused(const void *kernel, const char *why);
/* " NAME" of the kernel that runs, or "" */
const char *shadow_kernel(void);
void shadow_block(unsigned threads);    /* a block begins */
void shadow_thread(unsigned i);         /* thread i of it goes on */
void shadow_ordered_block(void);        /* all threads go on after a barrier */
void shadow_ordered_warp(unsigned warp); /* all lanes go on after a __syncwarp */

/* ---- what kernels may touch: shadow_ops.c tells it of each op */

typedef struct ShadowOperand { const char *name; uintptr_t begin, end; bool writable; } ShadowOperand;

/* From now on launches may touch these places only; n = 0: every allocation. Later launches keep their own. */
void shadow_allow(const ShadowOperand *operand, int n);
/* The number by which a launch keeps them */
unsigned shadow_operands(void);
/* Nobody has written these bytes yet. */
void shadow_junk(const void *p, size_t bytes);
/* How many of these bytes come before the first one that nobody has written */
size_t shadow_written(const void *p, size_t bytes);
/* Ends the program as an access does. */
void shadow_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- count.c */

/* read, written: bytes of device memory, in whole sectors; turns of shared memory, and the fewest for its requests */
typedef struct ShadowCounts { uint64_t launches, requests, read, written, turns, least_turns; } ShadowCounts;

void shadow_count_from_here(void); /* from now on all launches are counted */
ShadowCounts shadow_counted(void);
void shadow_count_launch(void);
void shadow_count(const void *pc, unsigned thread, uintptr_t at, size_t bytes, bool write, bool shared);
void shadow_count_block(void);     /* a block is over */

/* ---- called by kernels (emulate_kernel.h) */

void emulate_copy(void *to, const void *from, size_t bytes, const void *pc); /* of a vector; pc: for messages */
void emulate_atomic(void *p, size_t bytes, const void *pc);

#ifdef __cplusplus
}
#endif

#endif
