#include "mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long live, countdown;

/* Must this allocation fail for a test? Exactly one thread sees the count reach its end. */
static bool refused(void) {
    return atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1;
}

void mem_fail_after(long n) { atomic_store(&countdown, n); }
long mem_live(void) { return atomic_load(&live); }

void *mem_new(size_t bytes) {
    void *p = refused() ? NULL : calloc(1, bytes ? bytes : 1);
    if (p) atomic_fetch_add(&live, 1);
    return p;
}

void *mem_copy(const void *from, size_t bytes) {
    void *p = mem_new(bytes);
    if (p && bytes) memcpy(p, from, bytes);
    return p;
}

bool mem_grow(void *array_pointer, int *cap, int want, size_t item) {
    void *old, *fresh;
    assert(want >= 0 && *cap >= 0 && item > 0);
    if (want <= *cap) return true;
    int next = *cap < 8 ? 8 : *cap;
    while (next < want) {
        if (next > (1 << 28)) return false;
        next *= 2;
    }
    size_t bytes;
    if (!size_mul((size_t)next, item, &bytes)) return false;
    memcpy(&old, array_pointer, sizeof old);
    fresh = mem_new(bytes);
    if (!fresh) return false;
    if (old) memcpy(fresh, old, (size_t)*cap * item);
    mem_free(old);
    memcpy(array_pointer, &fresh, sizeof fresh);
    *cap = next;
    return true;
}

void mem_free(void *p) {
    if (!p) return;
    atomic_fetch_sub(&live, 1);
    free(p);
}
