/* nearest.h: which of the known names a wrong one was meant to be. A slip is a letter that is changed, left out, put in,
 * or swapped with its neighbour: one is allowed in a short name, two in a longer one, none in a single letter. Capitals
 * do not count. */
#ifndef MT_NEAREST_H
#define MT_NEAREST_H

#include "base.h"

typedef struct Nearest {
    const char *name; /* borrowed */
    int least;        /* slips that are too many for the next one */
} Nearest;

Nearest nearest_to(const char *name);
/* Is this name nearer than all that were tried before? */
bool nearest_try(Nearest *n, const char *known);

#endif
