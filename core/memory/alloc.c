#include "alloc_caching.h"

const char *alloc_name(AllocKind kind) {
    static const char *const names[] = {
#define X(name, text) text,
        ALLOCATORS(X)
#undef X
    };
    assert((unsigned)kind < ALLOC_COUNT);
    return names[kind];
}

int allocator_open(AllocKind kind, Ledger *ledger, size_t arena, Allocator **out, Err *e) {
    switch (kind) {
    case ALLOC_PLANNED: return alloc_planned_open(ledger, arena, out, e);
    case ALLOC_CACHING: return alloc_caching_open(ledger, NULL, out, e);
    case ALLOC_DIRECT: return alloc_direct_open(ledger, out, e);
    case ALLOC_COUNT: break;
    }
    return err_set(e, ERR_INTERNAL, "expected an allocator below %d, found %d", (int)ALLOC_COUNT, (int)kind);
}

void allocator_close(Allocator *a) {
    if (a) a->table->close(a);
}

int allocator_get(Allocator *a, size_t bytes, Category category, size_t offset, Block *out, Err *e) {
    Block b = {NULL, bytes, category, bytes, NULL};
    *out = (Block){NULL, 0, category, 0, NULL};
    if (bytes == 0) return err_set(e, ERR_INTERNAL, "expected a block of at least 1 byte, found 0");
    int code = a->table->get(a, offset, &b, e);
    if (code) return code;
    ledger_use(a->ledger, category, bytes);
    *out = b;
    return OK;
}

void allocator_put(Allocator *a, Block *b) {
    if (!b->data) return;
    ledger_unuse(a->ledger, b->category, b->bytes);
    a->table->put(a, b);
    *b = (Block){NULL, 0, b->category, 0, NULL};
}

size_t allocator_empty_cache(Allocator *a) { return a->table->empty_cache ? a->table->empty_cache(a) : 0; }
uint64_t allocator_state(const Allocator *a) { return a->table->state ? a->table->state(a) : a->ledger->held; }
