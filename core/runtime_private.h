/* runtime_private.h: what runtime.c (memory and ops) and runtime_io.c (values) share. */
#ifndef MT_RUNTIME_PRIVATE_H
#define MT_RUNTIME_PRIVATE_H

#include "runtime.h"
#include "view.h"

/* A persistent buffer: one for all programs that name it. */
typedef struct Slot {
    const Buf *buf;   /* in the first program that has it */
    size_t offset;
    Block block;
} Slot;

/* A kept buffer's bytes after the last step, on the host. */
typedef struct Kept { int buf; void *bytes; } Kept;

/* A program bound to the runtime's memory. */
typedef struct Loaded {
    const Program *p;
    Placement place;
    Life *life;
    int *slot;        /* by buffer: its Slot, or -1 */
    /* roots whose life starts at op i: start[start_at[i] .. start_at[i + 1]); ends alike */
    int *start_at, *start, *end_at, *end;
    Block *block;     /* by root buffer: where a temporary is now */
    KArgs *args;      /* by op */
    Kept *kept;
    int n_kept;
    void *values, *packed; /* staging for feeding: fp32 values, and the buffer's own bytes */
} Loaded;

struct Runtime {
    Device *device;
    Ledger ledger;
    Allocator *alloc;
    const Network *net;
    uint64_t seed;
    uint32_t updates; /* training steps made */
    Slot *slots;
    int n_slots;
    size_t persistent; /* bytes of all slots, aligned */
    Loaded *loaded;
    int n_loaded;
};

/* Storage of buffer `b` of program `l` at this moment. */
void *runtime_data(const Runtime *r, const Loaded *l, int b);
/* First values of every slot: parameters drawn from the seed, the rest zero, the loss scale. */
int runtime_first_values(Runtime *r, Err *e);
/* Calls `feed` and puts what it gave into the input buffers. */
int runtime_feed(Runtime *r, Loaded *l, uint32_t micro, FeedFn *feed, void *arg, Err *e);
/* Copies the kept buffers to the host. */
int runtime_save_kept(Runtime *r, Loaded *l, Err *e);

#endif
