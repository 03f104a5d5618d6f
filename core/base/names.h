/* names.h: a hash table that finds the number of a thing by its name. It holds numbers only: the owner of the things
 * says by a NameOf what thing `number` is called, and gives the same NameOf and `things` to every call. The name of a
 * thing that is in the table must not change; to take a thing out, give its slot another thing of the same name. */
#ifndef MT_NAMES_H
#define MT_NAMES_H

#include "base.h"

typedef const char *NameOf(const void *things, int number);

typedef struct Names {
    int *slot; /* [cap] 1 + the thing's number; 0: free */
    int cap, n; /* slots, a power of two or 0; slots that are taken, at most half of them */
} Names;

/* Adds thing `number` (0 or more), unless the table has a thing of its name already. Returns the number of the one that it then has; -1:
 * out of host memory, and the table is as it was. */
int names_add(Names *names, int number, NameOf *name_of, const void *things);
/* The index in `slot` of the thing of that name, or -1. It holds until something is added. */
int names_place(const Names *names, const char *name, NameOf *name_of, const void *things);
/* The number of the thing of that name, or -1. */
int names_find(const Names *names, const char *name, NameOf *name_of, const void *things);
/* Frees the table and leaves an empty one. */
void names_free(Names *names);

#endif
