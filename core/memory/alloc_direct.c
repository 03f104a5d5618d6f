/* alloc_direct.c: one allocation of the device per block, so that a memory checker sees accesses past a tensor's
 * end. */
#include "alloc.h"
#include "base/mem.h"

static size_t taken(const Allocator *a, const Block *b) {
    return align_up(b->bytes, a->ledger->device->table->alignment);
}

static int direct_get(Allocator *a, size_t offset, Block *b, Err *e) {
    (void)offset;
    return ledger_take(a->ledger, taken(a, b), &b->data, e);
}

static void direct_put(Allocator *a, Block *b) { ledger_give(a->ledger, b->data, taken(a, b)); }

static void direct_close(Allocator *a) { mem_free(a); }

int alloc_direct_open(Ledger *ledger, Allocator **out, Err *e) {
    static const AllocatorTable table = {direct_get, direct_put, NULL, NULL, direct_close};
    Allocator *a = mem_new(sizeof *a);
    if (!a) return err_set(e, ERR_HOST_MEMORY, "out of host memory in the direct allocator");
    *a = (Allocator){&table, ledger};
    *out = a;
    return OK;
}
