/* passes.h: program -> program, one technique each; passes.def has their order. A pass sees ops and buffers, never
 * layers; its file explains it. Each leaves a valid program: pass_run checks that. */
#ifndef MT_PASSES_H
#define MT_PASSES_H

#include "base/scratch.h"
#include "memory/plan.h"
#include "settings.h"

/* What every pass is given beside the program. */
typedef struct Compile {
    const Settings *settings;
    Device *device;  /* with one thread, so that more threads change no choice */
    Err *e;          /* where a pass says what is wrong */
    Scratch scratch; /* a pass takes from it and gives nothing back: pass_run does, and reports a failure */
    Device *threads; /* the device with all its threads, on which the program will run */
} Compile;

/* What a pass returns that has nothing to do and has not touched the program: it needs no verifier. */
enum { UNCHANGED = -1 };
/* Changes p. Returns OK, or UNCHANGED, also where p->failed or c->scratch.failed is set: pass_run reports that. */
typedef int PassFn(Program *p, Compile *c);
#define PASS(name, stage, function, technique) PassFn function;
#include "passes.def"
#undef PASS

typedef struct Pass { const char *name; PassFn *run; } Pass;
/* Runs a pass. Returns its error, or ERR_HOST_MEMORY; OK also where p->failed is set: program_check reports that. */
int pass_apply(const Pass *pass, Program *p, Compile *c);
/* The same, and the verifier after it unless it says UNCHANGED: ERR_INTERNAL, too. */
int pass_run(const Pass *pass, Program *p, Compile *c);

/* Can the device's way to compute the op, whose workspace is laid out, have output 0 in the storage of the input that
 * ops.def names? *more: bytes of workspace that it needs after that. */
bool inplace_device_can(const Program *p, const Op *op, Device *device, size_t *more);
/* Has the device prepare op i within so many bytes of workspace, of which the op keeps state and limit. *bytes: what it takes. */
int workspace_ask(Program *p, int i, Device *device, size_t limit, size_t *bytes, Err *e);
/* Gives op i more bytes of workspace, from a multiple of the alignment on. On failure sets p->failed. */
void workspace_add(Program *p, int i, size_t bytes, size_t alignment);

/* Called after lowering and after each pass, for dumps and golden tests. May be NULL. */
typedef void PassWatch(void *arg, const char *pass, const Program *p);

/* Where a whole program's buffers lie. alignment: bytes, a power of two. */
typedef struct Placement {
    size_t alignment;
    int n_bufs;
    const Life *life;         /* [n_bufs]: with these, all that it follows from */
    size_t *offsets;          /* [n_bufs], by root buffer: bytes from the start of the arena; of a buffer in the host's
                               * memory, from the start of the arena there */
    size_t persistent, arena; /* bytes: of the persistent buffers, which come first, in buffer order; of all */
    Plan plan;                /* of the temporaries, which follow */
    size_t host_persistent;   /* the same of what lies in the host's memory */
    Plan host;
} Placement;
/* *out: where the buffers lie. It is kept in p->placed and made once, unless lives or sizes change; it is valid until p has
 * another one. ERR_SCRIPT: the sizes do not fit in size_t; ERR_HOST_MEMORY. */
int placement_of(Program *p, size_t alignment, const Placement **out, Err *e);
/* Only the bytes of the placed arena. Errors as placement_of. */
int placement_arena(Program *p, size_t alignment, size_t *arena, Err *e);
/* `to` keeps the placement of `from`, which is as `to` will be once it is finished. */
void placement_move(Program *to, Program *from);
/* life: by buffer; live: the bytes of the device that are alive while an op runs, each buffer aligned; most: of live, so that no
 * arena can be smaller */
typedef struct Alive { Life *life; size_t *live, most; } Alive;
/* Memory comes from s; on failure s->failed is set. */
Alive placement_alive(const Program *p, size_t alignment, Scratch *s);
/* A line per buffer: offset, bytes, the ops between which it lives; then the arena's sum. */
void placement_dump(const Program *p, const Placement *pl, TextSink *sink, void *arg);

#endif
