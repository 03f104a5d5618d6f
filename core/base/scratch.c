#include "scratch.h"

#include "mem.h"

/* What stands before the items, aligned as they must be. Each take is an allocation of its own, so a sanitizer sees
 * what is read or written past its end. */
typedef union Block {
    void *before;
    max_align_t align;
} Block;

void *scratch_new(Scratch *s, size_t count, size_t item) {
    size_t bytes;
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
        Block *block = (Block *)s->last - 1;
        s->last = block->before;
        mem_free(block);
    }
}
