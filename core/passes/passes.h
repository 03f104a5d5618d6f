/* passes.h: program -> program, one technique each; passes.def is their order. A pass sees ops and buffers, never
 * layers; the file of a pass explains it. Each leaves a valid program: pass_run checks that. */
#ifndef MT_PASSES_H
#define MT_PASSES_H

#include "base/scratch.h"
#include "memory/plan.h"
#include "settings.h"

/* What every pass is told beside the program, and where it says what is wrong. */
typedef struct Compile {
    const Settings *settings;
    Device *device;
    Err *e;
    Scratch scratch; /* a pass takes from it and gives nothing back: pass_run does, and says what has failed */
} Compile;

typedef int PassFn(Program *p, Compile *c);
#define PASS(name, stage, function, technique) PassFn function;
#include "passes.def"
#undef PASS

typedef struct Pass { const char *name; PassFn *run; } Pass;
/* Runs a pass, and the verifier after it. */
int pass_run(const Pass *pass, Program *p, Compile *c);

/* Called after lowering and after each pass, for dumps and golden tests. May be NULL. */
typedef void PassWatch(void *arg, const char *pass, const Program *p);

/* The plan of a whole program: temporaries placed, persistent buffers below them. offsets[n_bufs] by root buffer, from
 * the arena's start; the persistent ones come first, in buffer order. */
typedef struct Placement {
    size_t *offsets;
    size_t persistent, arena; /* bytes: persistent buffers; all */
    Plan plan;                /* of the temporaries */
    Plan host;                /* of what lies in the host's memory: offsets from the start of an arena there */
} Placement;
int placement_build(const Program *p, size_t alignment, Placement *out, Err *e);
void placement_free(Placement *pl);
/* Bytes of the placed arena alone. */
int placement_arena(const Program *p, size_t alignment, size_t *arena, Err *e);
/* By op, the bytes of the device that are alive while it runs, each buffer aligned: live[n_ops]; life[n_bufs] is filled
 * in, too. Returns the most of them: the lower bound of a placement. */
size_t placement_live(const Program *p, size_t alignment, Life *life, size_t *live);
/* A line per buffer: offset, bytes, the ops between which it lives; then the arena's sum. */
int placement_dump(const Program *p, const Placement *pl, TextSink *sink, void *arg, Err *e);

#endif
