/* sample.h: which cases of a test run. With SAMPLE=N in the environment it is at most N of each kind; with SAMPLE_TYPES=all every
 * case runs in every type on an emulated GPU, too; with OPS="norm softmax" those of these ops alone (t_kernels). */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "memory/device.h"

static int sample_most(void) {
    const char *most = getenv("SAMPLE");
    return most ? atoi(most) : 0;
}

/* Is number n of `of` cases of a kind run? N of them, evenly spread, the last one among them */
static bool sampled(size_t n, size_t of) {
    const size_t most = (size_t)sample_most();
    return !most || n * most / of != (n + 1) * most / of;
}

/* Does an op of that name run? */
static inline bool op_sampled(const char *name) {
    const char *names = getenv("OPS");
    const size_t n = strlen(name);
    for (const char *at = names; at && (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return !names;
}

/* Does case number n run in that type? An emulated GPU compiles the two 16-bit types of a kernel from one template, and is slow:
 * cases run in one of them, turn by turn. */
static inline bool type_sampled(const Device *d, size_t n, DType t) {
    const char *plugin = getenv("MEMTIDE_CUDA"), *types = getenv("SAMPLE_TYPES");
    const bool emulated = strcmp(d->table->kind, "cpu") && plugin && strstr(plugin, "/emulate/");
    return t == DT_F32 || !emulated || (types && !strcmp(types, "all")) || (t == DT_BF16) == (n % 2 == 0);
}

#endif
