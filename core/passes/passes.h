/* passes.h: program -> program, one technique each. A pass sees ops and buffers, never layers; the file of a pass
 * explains it. Each leaves a valid program: it ends in program_check. */
#ifndef MT_PASSES_H
#define MT_PASSES_H

#include "memory/plan.h"
#include "settings.h"

/* ---- in the order in which compile calls them */
int pass_precision(Program *p, const Settings *s, Err *e);   /* dtypes, casts */
int pass_fuse(Program *p, const Settings *s, Err *e);        /* conv2d, linear and maxpool take activations over */
int pass_backward(Program *p, const Settings *s, Err *e);    /* the gradient of every forward op, as ops */
int pass_fuse_gradient(Program *p, const Settings *s, Err *e); /* conv2d_dx and linear_dx take over the act_dx after */
int pass_fuse_cast(Program *p, const Settings *s, Err *e);   /* what reads or writes a cast's other type makes it */
int pass_workspace(Program *p, const Settings *s, Device *device, Err *e); /* what the device needs, as buffers */
int pass_checkpoint(Program *p, const Settings *s, Device *device, Err *e); /* drop activations, run their ops again */
int pass_offload(Program *p, const Settings *s, Device *device, Err *e); /* activations wait in the host's memory */
int pass_accumulate(Program *p, const Settings *s, Err *e);  /* several micro-batches for one update */
int pass_update(Program *p, const Settings *s, Err *e);      /* the optimizer, the loss scale, master copies */
int pass_update_early(Program *p, const Settings *s, Err *e); /* a parameter as soon as its gradient is there */
int pass_inplace(Program *p, const Settings *s, Err *e);     /* an output takes over the storage of a dying input */
/* then pass_workspace once more, for the ops of the update */
int pass_workspace_spare(Program *p, const Settings *s, Device *device, Err *e); /* more of it where that is free */

/* Called after lowering and after each pass, for dumps and golden tests. May be NULL. */
typedef void PassWatch(void *arg, const char *pass, const Program *p);

/* The passes behind checkpointing and offloading: what these judge a choice by. */
int compile_finish(Program *p, const Settings *s, Device *device, PassWatch *watch, void *arg, Err *e);

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
/* By op, the bytes of the device that are alive while it runs, each buffer aligned: live[n_ops]; life[n_bufs] is filled
 * in, too. Returns the most of them: the lower bound of a placement. */
size_t placement_live(const Program *p, size_t alignment, Life *life, size_t *live);
/* A line per buffer: offset, bytes, the ops between which it lives; then the arena's sum. */
int placement_dump(const Program *p, const Placement *pl, TextSink *sink, void *arg, Err *e);

#endif
