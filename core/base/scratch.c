#include "scratch.h"

#include "mem.h"

/* The header before the items; its size keeps the items aligned for any type. Each call has an allocation of its own,
 * so that a sanitizer sees accesses past its end. */
typedef union Block {
    void *before;
    max_align_t align;
} Block;

void *scratch_new(Scratch *s, size_t count, size_t item) {
    size_t bytes;
    assert(item > 0);
    bool fits = size_mul(count, item, &bytes) && size_add(bytes, sizeof(Block), &bytes);
    Block *block = fits && !s->failed ? mem_new(bytes) : NULL;
    if (!block) {
        s->failed = true;
        return NULL;
    }
    block->before = s->last;
    return s->last = block + 1;
}

void scratch_release(Scratch *s, void *mark) {
    while (s->last != mark) {
        assert(s->last); /* else `mark` was never taken, or was given back before */
        Block *block = (Block *)s->last - 1;
        s->last = block->before;
        mem_free(block);
    }
}
