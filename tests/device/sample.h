/* sample.h: with SAMPLE=N in the environment a test runs at most N of each kind of case. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdbool.h>
#include <stdlib.h>

static int sample_most(void) {
    const char *most = getenv("SAMPLE");
    return most ? atoi(most) : 0;
}

/* Is number n of `of` cases of a kind run? N of them, evenly spread, the last one among them */
static bool sampled(size_t n, size_t of) {
    const size_t most = (size_t)sample_most();
    return !most || n * most / of != (n + 1) * most / of;
}

#endif
