/* waiting.h: how long threads wait for each other awake.
 *
 * At the end of a parallel loop libgomp's threads look for the last one 300,000 times (some ms) before they sleep.
 * That is right while each has a processor of its own. Where more threads want to run than there are processors, the
 * waiting threads keep the last one from running. libgomp looks only 100 times if it knows: "when there are more
 * managed threads than available CPUs" (GOMP_SPINCOUNT in its manual); but it counts its own threads only. So while
 * other programs use the processors, this file holds a team of sleeping threads, which lifts libgomp's count above the
 * number of processors. The team ends when the other programs have gone. Where OMP_WAIT_POLICY or GOMP_SPINCOUNT is
 * set, the user has said how to wait, and nothing is done. */
#ifndef MT_CPU_WAITING_H
#define MT_CPU_WAITING_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

typedef struct Waiting {
    int file;          /* /proc/loadavg; below 0: nothing is watched */
    int threads;       /* that compute */
    int processors;    /* of the machine, as the file counts what runs */
    double next;       /* when to look again, seconds */
    int looks;         /* in a row that called for a change */
    bool held;         /* the team sleeps, and `holder` runs */
    pthread_t holder;
    sem_t over;        /* tells the holder to end */
} Waiting;

/* Call it before the first parallel region. threads: that compute, at least 1. It cannot fail: where the file or the
 * semaphore is missing, nothing is watched. */
void waiting_open(Waiting *w, int threads);
/* Call it between two parallel regions, as often as you like: it looks at the machine every few milliseconds.
 * now: seconds of a clock that never goes back */
void waiting_look(Waiting *w, double now);
void waiting_close(Waiting *w);

#endif
