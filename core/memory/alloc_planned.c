/* alloc_planned.c: one arena, taken from the device when the allocator opens. A block is the place in it that the plan
 * says. */
#include "alloc.h"
#include "base/mem.h"

typedef struct Planned {
    Allocator base;
    char *arena;
    size_t bytes; /* of the arena */
} Planned;

static int planned_get(Allocator *a, size_t offset, Block *b, Err *e) {
    Planned *p = (Planned *)a;
    if (offset > p->bytes || b->bytes > p->bytes - offset)
        return err_set(e, ERR_INTERNAL, "expected a block inside the arena of %zu bytes, found %zu bytes at %zu",
                       p->bytes, b->bytes, offset);
    b->data = p->arena + offset;
    return OK;
}

static void planned_put(Allocator *a, Block *b) { (void)a, (void)b; }

static void planned_close(Allocator *a) {
    Planned *p = (Planned *)a;
    if (p->arena) ledger_give(a->ledger, p->arena, p->bytes);
    mem_free(p);
}

int alloc_planned_open(Ledger *ledger, size_t arena, Allocator **out, Err *e) {
    static const AllocatorTable table = {planned_get, planned_put, NULL, NULL, planned_close};
    Planned *p = mem_new(sizeof *p);
    if (!p) return err_set(e, ERR_HOST_MEMORY, "out of host memory in the planned allocator");
    p->base = (Allocator){&table, ledger};
    p->bytes = align_up(arena, ledger->device->table->alignment);
    void *data = NULL;
    int code = arena ? ledger_take(ledger, p->bytes, &data, e) : OK;
    p->arena = data;
    if (code) mem_free(p);
    else *out = &p->base;
    return code;
}
