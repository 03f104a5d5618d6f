/* names.h: finds a thing's number by its name, however many there are. Holds no names: whoever has the things gives
 * them. A thing may be renamed only after it was taken out, by giving its place another thing of the same name. */
#ifndef MT_NAMES_H
#define MT_NAMES_H

#include "base.h"

typedef const char *NameOf(const void *things, int number);

typedef struct Names {
    int *slot; /* 1 + number, 0: free */
    int cap, n;
} Names;

/* Adds a thing unless there is one of its name already. false: no host memory, nothing has changed. */
bool names_add(Names *names, int number, NameOf *name_of, const void *things);
/* Where in `slot` the thing of that name is, or -1. Stays true until something is added. */
int names_place(const Names *names, const char *name, NameOf *name_of, const void *things);
/* Its number, or -1. */
int names_find(const Names *names, const char *name, NameOf *name_of, const void *things);
void names_free(Names *names);

#endif
