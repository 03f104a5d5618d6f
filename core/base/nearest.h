/* nearest.h: finds the known name that a misspelt one was probably meant to be. A slip is a letter that was changed,
 * left out, added, or swapped with its neighbour; capital and small letters are the same. A name of one letter may have
 * no slip, one of up to five letters one, a longer one two. */
#ifndef MT_NEAREST_H
#define MT_NEAREST_H

#include "base.h"

typedef struct Nearest {
    const char *name; /* borrowed */
    int least;        /* the next known name must have fewer slips than this */
} Nearest;

Nearest nearest_to(const char *name);
/* true: `known` is nearer to the name than all that were tried before, and near enough. */
bool nearest_try(Nearest *n, const char *known);

#endif
