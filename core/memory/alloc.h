/* alloc.h: three ways to give tensors device bytes, all through the ledger.
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
    size_t bytes;       /* exact size asked for */
    Category category;
    size_t size;        /* what the allocator took for it, rounding included */
    void *owner;        /* the allocator's own note */
} Block;

typedef struct Allocator Allocator;

typedef struct AllocatorTable {
    int (*get)(Allocator *, size_t offset, Block *, Err *); /* block->bytes, ->category set; offset: planned only */
    void (*put)(Allocator *, Block *);
    size_t (*empty_cache)(Allocator *);                     /* bytes given back to the device */
    uint64_t (*state)(const Allocator *);                   /* hash of all that later requests depend on */
    void (*close)(Allocator *);
} AllocatorTable;

struct Allocator { const AllocatorTable *table; Ledger *ledger; };

/* `arena`: bytes of the one arena (planned), ignored by the others. The ledger is borrowed. */
int allocator_open(AllocKind kind, Ledger *ledger, size_t arena, Allocator **out, Err *e);
void allocator_close(Allocator *a); /* all blocks must have been put; NULL is allowed */
/* A block of `bytes` (at least 1) in `category`. */
int allocator_get(Allocator *a, size_t bytes, Category category, size_t offset, Block *out, Err *e);
void allocator_put(Allocator *a, Block *b); /* b->data NULL is allowed; clears *b */
size_t allocator_empty_cache(Allocator *a);
/* Equal before two identical steps: their peaks are equal too. Lets prediction stop early. */
uint64_t allocator_state(const Allocator *a);

/* Each in its own file; that of the caching one has more to say: alloc_caching.h. */
int alloc_planned_open(Ledger *ledger, size_t arena, Allocator **out, Err *e);
int alloc_direct_open(Ledger *ledger, Allocator **out, Err *e);
const char *alloc_name(AllocKind kind);

#endif
