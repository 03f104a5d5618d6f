/* bench.h: how long each way of running an op takes on this device. Each is run several times, inside a graph, on
 * operands that have left the second-level cache, as in a step. */
#ifndef MT_BENCH_H
#define MT_BENCH_H

#include "memory/device.h"

enum { RACE_SETS = 16, RACE_SAMPLES = 7 };
#define RACE_GAIN 0.98 /* to replace the first choice, a way takes at most this share of its time */

typedef struct Bench {
    Device *device;
    KArgs set[RACE_SETS];  /* the op on one set of operands after the other */
    int n_sets;
    void *memory, *workspace;
    size_t bytes, workspace_bytes;
    void *mark[2];         /* before and after what is timed */
} Bench;

/* Makes sets of operands with random values for the op of `args`, whose views have no data; all sets together have more
 * than `cache` bytes, or there are RACE_SETS. bench_close frees their memory. */
int bench_open(Bench *r, Device *device, const KArgs *args, size_t cache, Err *e);
/* The median time of one run with this state and `workspace` bytes. Gives up early, with the time so far, if that is
 * more than twice `best` (0: there is nothing to compare with). */
int bench_time(Bench *r, KernelRun *run, void *state, size_t workspace, double best, double *us, Err *e);
void bench_close(Bench *r);

#endif
