/* tune.h: ops that can be run in several ways, and how one of them is chosen: the pick of a tuning, if it still applies;
 * else the first one that can be had, best guess first; in a race, the fastest of all. Only a race times anything: so a
 * plan is the same with and without the GPU.
 *
 * An op becomes tunable by a Tunable beside its ways, and TUNED(op, its Tunable). */
#ifndef MT_TUNE_H
#define MT_TUNE_H

#include "cuda.h"
#include "tuned.h"

/* A way of running an op, as it is offered or as a pick has it. */
typedef struct Candidate {
    const char *way;     /* its name in picks */
    EngineId engine;     /* what the library calls it; all zero where the way has none */
    bool any;            /* any engine will do: `open` takes the library's first one, and names it in `engine` */
    size_t limit;        /* the workspace_limit that it is laid out under, bytes */
    size_t workspace;    /* bytes of the whole op, for ways that take what they are given; of a pick, what it needs */
    const void *handle;  /* what the Tunable has of the engine while it offers it; NULL: the engine is known by name alone */
} Candidate;

/* What candidates are offered to. true: no more are wanted. Else *why may say why this one could not be had. */
typedef bool Offer(void *arg, Candidate *c, Err *why);

/* What tune.c has to know of an op. The state that `open` makes begins with a KernelState, which releases it. */
typedef struct Tunable {
    /* of the library that the names of engines are from: a pick counts for one version */
    size_t (*version)(void);
    /* The op's name in picks, which has all that the choice depends on. */
    int (*text)(const KArgs *a, char text[PICK_OP], Err *e);
    /* Offers what may be chosen without a race, best guess first, until no more are wanted. An error: why none was taken. */
    int (*first)(const KArgs *a, size_t limit, Offer *offer, void *arg, Err *e);
    /* Offers all that is worth a race against the first choice. */
    int (*candidates)(const KArgs *a, size_t limit, const Candidate *first, Offer *offer, void *arg, Err *e);
    /* *state: the candidate, ready to run if the device is here; *workspace: bytes that it needs. ERR_UNSUPPORTED: it does not
     * apply to the op, or not within its bytes, or the library has no such engine. */
    int (*open)(const KArgs *a, Candidate *c, void **state, size_t *workspace, Err *e);
    KernelRun *run;
} Tunable;

/* A KernelPrepare of the op that `t` describes. */
int tune_prepare(const Tunable *t, const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e);

#define TUNED(op, tunable)                                                                                   \
    int k_cuda_##op##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {       \
        return tune_prepare(&(tunable), a, limit, state, workspace, e);                                      \
    }

#endif
