/* bench.h: how long an op takes on this device when it is run one way and another: several times, inside a graph, on
 * operands that have left the second-level cache, as in a step. */
#ifndef MT_BENCH_H
#define MT_BENCH_H

#include "memory/device.h"

enum { RACE_SETS = 16, RACE_SAMPLES = 7 };
#define RACE_GAIN 0.98 /* what a way's time is at most of the first choice's, to take its place */

typedef struct Bench {
    Device *device;
    KArgs set[RACE_SETS];  /* the op on one set of operands after the other */
    int n_sets;
    void *memory, *workspace;
    size_t bytes, workspace_bytes;
} Bench;

/* Operands for the op of `args`, whose views have no data, with random values in them; `cache`: bytes that all sets
 * together must exceed. The memory is the race's own and gone after bench_close. */
int bench_open(Bench *r, Device *device, const KArgs *args, size_t cache, Err *e);
/* The median time of one run with this state and `workspace` bytes. Gives up early, with the time found so far, on what
 * takes more than twice `best` (0: nothing is known to compare with). */
int bench_time(Bench *r, KernelRun *run, void *state, size_t workspace, double best, double *us, Err *e);
void bench_close(Bench *r);

#endif
