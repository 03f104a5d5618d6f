/* trace_align.h: where a short sequence of numbers stands in a long one, differences allowed. */
#ifndef MT_TRACE_ALIGN_H
#define MT_TRACE_ALIGN_H

#include "base/scratch.h"

/* Looks for a[n_a] in b[n_b]. The longest run of equal numbers that both have (in b the first such run) is where they
 * are laid side by side; from there on, in both directions, the fewest numbers are left out on either side that bring
 * all of `a` beside some of `b`. pair[n_a]: the index in b, ascending, or -1: left out. false: no host memory. */
bool trace_align(const size_t *a, int n_a, const size_t *b, int n_b, int *pair, Scratch *s);

#endif
