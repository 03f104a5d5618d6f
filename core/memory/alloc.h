/* alloc.h: three allocators that give tensors bytes of the device, all through the ledger.
 *   planned  one arena, offsets fixed before the run
 *   caching  PyTorch's CUDACachingAllocator: 512-byte blocks, small and large pools, 2 and 20 MiB segments,
 *            splitting, merging
 *   direct   one device allocation per tensor */
#ifndef MT_ALLOC_H
#define MT_ALLOC_H

#include "ledger.h"

#define ALLOCATORS(X) X(PLANNED, "planned") X(CACHING, "caching") X(DIRECT, "direct")

typedef enum AllocKind {
#define X(name, text) ALLOC_##name,
    ALLOCATORS(X)
#undef X
    ALLOC_COUNT
} AllocKind;

typedef struct Block {
    void *data;
    size_t bytes;       /* the size that was asked for, not rounded */
    Category category;
    size_t size;        /* what the allocator took for it, rounding included */
    void *owner;        /* for the allocator's own use */
} Block;

typedef struct Allocator Allocator;

typedef struct AllocatorTable {
    int (*get)(Allocator *, size_t offset, Block *, Err *); /* ->bytes, ->category are set; offset: planned only */
    void (*put)(Allocator *, Block *);
    size_t (*empty_cache)(Allocator *); /* bytes given back to the device; NULL: keeps no free bytes */
    uint64_t (*state)(const Allocator *); /* hash of all that later requests depend on; NULL: the ledger's `held` */
    void (*close)(Allocator *);
} AllocatorTable;

struct Allocator { const AllocatorTable *table; Ledger *ledger; };

/* arena: bytes of the planned allocator's arena; the others ignore it. The ledger is borrowed. ERR_HOST_MEMORY; ERR_OOM
 * where there is no room for the arena. */
int allocator_open(AllocKind kind, Ledger *ledger, size_t arena, Allocator **out, Err *e);
void allocator_close(Allocator *a); /* after all blocks were put; NULL is allowed */
/* A block of `bytes` (at least 1), counted in `category`. offset: its place in the arena of the planned allocator; the
 * others ignore it. Errors: ERR_OOM, ERR_HOST_MEMORY, the device's; then out->data is NULL. */
int allocator_get(Allocator *a, size_t bytes, Category category, size_t offset, Block *out, Err *e);
void allocator_put(Allocator *a, Block *b); /* b->data NULL is allowed; clears *b */
/* Gives free memory that the allocator keeps back to the device; returns its bytes. */
size_t allocator_empty_cache(Allocator *a);
/* Where it is equal before two identical steps, their peaks are equal, too. Lets prediction stop early. */
uint64_t allocator_state(const Allocator *a);

/* Each is defined in its own file, and called by allocator_open; the caching one has more to say: alloc_caching.h. */
int alloc_planned_open(Ledger *ledger, size_t arena, Allocator **out, Err *e);
int alloc_direct_open(Ledger *ledger, Allocator **out, Err *e);
const char *alloc_name(AllocKind kind); /* "planned" */

#endif
