/* runtime_private.h: what runtime.c (memory), runtime_step.c (ops) and runtime_io.c (values) share. */
#ifndef MT_RUNTIME_PRIVATE_H
#define MT_RUNTIME_PRIVATE_H

#include "runtime.h"
#include "program/view.h"

/* A persistent buffer, shared by all programs that have one of that name. */
typedef struct Slot {
    const Buf *buf;   /* in the first program that has it */
    const Param *param; /* the parameter that it is, or is the master of; NULL: its first values are Buf.first or
                         * Buf.constant */
    int number;       /* of that parameter among those of all networks */
    int master;       /* of a weight: its master's slot, or -1 */
    size_t offset;    /* bytes from the start of the arena, or of the host's memory */
    Block block;      /* there: where it lies; of the allocator's only if it is not the host's */
} Slot;

/* A kept buffer, and where its bytes are in a room for what is kept of a step. */
typedef struct Kept { int buf; size_t at; } Kept;

/* Ops [from, to), which the device runs without waiting for the host. With one micro-batch, SECTION_FIRST is the whole
 * step; with several it is the body in the first one, SECTION_LATER the body in each later one, and SECTION_UPDATE what
 * runs once per step. A step in parts: FORWARD, BACKWARD where gradients are as new, BACKWARD_MORE where they sum up,
 * and UPDATE. */
enum {
    SECTION_FIRST, SECTION_LATER, SECTION_UPDATE, SECTION_FORWARD, SECTION_BACKWARD, SECTION_BACKWARD_MORE, SECTIONS
};
typedef struct Section {
    int from, to;
    bool warm;    /* it has run, so the device has loaded what it needs, and it may be recorded */
    void *graph;  /* its recording, or NULL */
} Section;

/* SMALL: bytes; what is no larger is written without waiting for the device, from a note. Of the device's slots for sending the
 * first ones are those of stages, the others those of notes. */
enum { STAGE_ALIGNMENT = 64, STAGES = 2, NOTES = SEND_SLOTS - STAGES, SMALL = 64 };

/* A program bound to the runtime's memory. */
typedef struct Loaded {
    const Program *p;
    const Network *net;
    const Placement *place; /* the program's */
    const Life *life;       /* its lives */
    int *slot;        /* by buffer: its Slot, or -1 */
    /* the roots whose life starts at op i are start[start_at[i] .. start_at[i + 1]); those whose life ends there
     * end[end_at[i] .. end_at[i + 1]) */
    int *start_at, *start, *end_at, *end;
    Block *block;     /* by root buffer: where a temporary is now; data NULL: it has no memory */
    KArgs *args;      /* by op */
    Kept *kept;
    int n_kept;
    char *room[UNDER_WAY]; /* what is kept of a step, in memory that the device writes: the buffers of `kept`, then the state
                            * of the loss scaler before the step and after it. The second one is there once it is needed. */
    size_t room_bytes, states_at; /* states_at: where these are */
    int read;         /* the room of the last step whose result was asked for */
    Section section[SECTIONS];
    void *values;     /* what a feed fills: the inputs, then the target, 4 bytes per element */
    char *stage[STAGES]; /* the input buffers' own bytes, on their way to the device */
    size_t stage_bytes;
    int next_stage;   /* the stage to fill next */
} Loaded;

/* A step that is under way. */
typedef struct Step {
    Loaded *l;
    void *begin, *end; /* the device's marks */
    void **mark;       /* [2 sections]: before and after the ops of each section that ran */
    int sections, cap;
    bool replayed;     /* all of them were */
    int room;          /* number of the room for what is kept of it, and its place in Runtime.step */
} Step;

struct Runtime {
    Device *device;
    Ledger ledger;
    Allocator *alloc;
    uint64_t seed;
    bool records;     /* sections may be recorded: their addresses are the same in every step */
    uint32_t updates; /* training steps made */
    Slot *slots;
    int n_slots;
    Names slot_names;
    size_t persistent; /* bytes of all slots on the device, aligned */
    void *host;        /* the host's memory: its slots, then what programs offload, one program at a time; NULL on the dry
                        * device */
    size_t host_persistent, host_bytes; /* of these slots, of all */
    Loaded *loaded;
    int n_loaded;
    Step step[UNDER_WAY];
    Step *now;         /* that whose ops are being enqueued */
    int under_way, first; /* how many of the steps are; the one that began first */
    void *op_mark[2];  /* marks before and after an op that is timed */
    double *op_seconds; /* by op of the program that runs: where a timed step adds its times; NULL: it is not timed */
    char *note[NOTES]; /* SMALL bytes each on their way to the device; NULL on the dry one */
    int next_note;
    Loaded *in_parts;  /* whose step runs in parts, and has memory from the parts before; NULL: none */
    bool forward_ran;  /* ... and its backward pass can run */
};

/* Where buffer `b` of program `l` lies at this moment; the device's address unless the buffer is on the host. */
static inline void *runtime_data(const Runtime *r, const Loaded *l, int b) {
    int root = program_root(l->p, b);
    char *storage = l->slot[root] >= 0 ? r->slots[l->slot[root]].block.data : l->block[root].data;
    if (l->slot[root] < 0 && l->p->bufs[root].host)
        storage = (char *)r->host + r->host_persistent + (l->place->offsets[root] - l->place->host_persistent);
    return storage ? storage + program_offset(l->p, b) : NULL;
}
/* Gives every slot its first values: parameters are drawn from the seed, the others get Buf.first or Buf.constant; and
 * sets the loss scale. */
int runtime_first_values(Runtime *r, Err *e);
/* Calls `feed` for what run number `run` of the body takes and packs that into the next stage. */
int runtime_stage(Runtime *r, Loaded *l, uint32_t step, uint32_t run, FeedFn *feed, void *arg, Err *e);
/* Sends that stage to the input buffers, which must have memory. */
int runtime_send(Runtime *r, Loaded *l, Err *e);
/* A step that runs in parts gives its memory back. */
void runtime_end_parts(Runtime *r);
/* Makes the room, unless it is there. */
int runtime_make_room(Runtime *r, Loaded *l, int room, Err *e);

#endif
