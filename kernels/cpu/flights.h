/* flights.h: collective ops that go on while the device computes: a second thread runs them, one after the other in the order in
 * which they were begun, so that all ranks exchange in one order. Only it exchanges while one is under way. Functions that
 * return int return an ErrCode. */
#ifndef MT_CPU_FLIGHTS_H
#define MT_CPU_FLIGHTS_H

#include <pthread.h>

#include "program/kernel.h"

typedef struct Flights {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    KernelRun *const *run;  /* by OpKind */
    KArgs *list;            /* [begun], of which [0, over) have ended; guarded by lock, like all that follows */
    int begun, over, cap;
    bool open, stop;
    Err failed;             /* code != 0: an op has failed with it, and those after it were not run */
} Flights;

/* Begins the op, of which *args is copied; what it points to must last until the op is over. ERR_HOST_MEMORY. */
int flights_begin(Flights *f, KernelRun *const *run, const KArgs *args, Err *e);
/* Waits for the op whose first output is at y, if there is one; its error, or that of one before it. */
int flights_wait(Flights *f, const void *y, Err *e);
/* Waits for all. */
int flights_wait_all(Flights *f, Err *e);
static inline bool flights_any(const Flights *f) { return f->open && f->begun > 0; }
void flights_close(Flights *f); /* waits for all */

#endif
