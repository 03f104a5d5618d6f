/* A hash table with open addressing: a name is in the slot of its hash, or in the first slot after it that was free. */
#include "names.h"

#include <string.h>

#include "mem.h"

enum { LEAST = 16 }; /* slots of the first table, a power of two */

/* Eight bytes at a time: what else a name costs is little. */
static uint64_t hash_name(const char *name) {
    size_t left = strlen(name);
    uint64_t hash = HASH_START;
    while (left > 0) {
        const size_t n = left < sizeof hash ? left : sizeof hash;
        uint64_t bytes = 0;
        memcpy(&bytes, name, n);
        hash = (hash ^ bytes) * HASH_PRIME;
        hash ^= hash >> 32; /* else low bits would follow from low bits alone */
        name += n;
        left -= n;
    }
    return hash;
}

/* The slot of the name, or the free slot where it belongs. At most half of the slots are taken, so the loop ends. */
static int probe(const Names *names, const char *name, NameOf *name_of, const void *things) {
    assert(names->cap > 0 && (names->cap & (names->cap - 1)) == 0 && names->n <= names->cap / 2);
    uint64_t mask = (uint64_t)names->cap - 1, at = hash_name(name) & mask;
    while (names->slot[at] && strcmp(name_of(things, names->slot[at] - 1), name) != 0) at = (at + 1) & mask;
    return (int)at;
}

static bool grow(Names *names, NameOf *name_of, const void *things) {
    if (names->cap > 1 << 29) return false;
    Names wider = {NULL, names->cap ? 2 * names->cap : LEAST, names->n};
    if (!(wider.slot = mem_new((size_t)wider.cap * sizeof *wider.slot))) return false;
    for (int i = 0; i < names->cap; i++)
        if (names->slot[i])
            wider.slot[probe(&wider, name_of(things, names->slot[i] - 1), name_of, things)] = names->slot[i];
    mem_free(names->slot);
    *names = wider;
    return true;
}

int names_add(Names *names, int number, NameOf *name_of, const void *things) {
    assert(number >= 0);
    if (2 * (names->n + 1) > names->cap && !grow(names, name_of, things)) return -1;
    int *slot = &names->slot[probe(names, name_of(things, number), name_of, things)];
    if (!*slot) {
        *slot = number + 1;
        names->n++;
    }
    return *slot - 1;
}

int names_place(const Names *names, const char *name, NameOf *name_of, const void *things) {
    int at = names->cap ? probe(names, name, name_of, things) : -1;
    return at >= 0 && names->slot[at] ? at : -1;
}

int names_find(const Names *names, const char *name, NameOf *name_of, const void *things) {
    int at = names_place(names, name, name_of, things);
    return at < 0 ? -1 : names->slot[at] - 1;
}

void names_free(Names *names) {
    mem_free(names->slot);
    *names = (Names){0};
}
