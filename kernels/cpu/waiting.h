/* waiting.h: how long threads wait for each other awake.
 *
 * At the end of a parallel loop libgomp's threads look for the last one 300,000 times (some ms) before they sleep:
 * right while each has a processor of its own. Where more threads want to run than there are processors, those that
 * wait keep the one that is waited for from running. libgomp then looks 100 times only, if the threads are its own:
 * "when there are more managed threads than available CPUs" (GOMP_SPINCOUNT in its manual). So while other programs
 * use the processors, too, a team of threads that sleep is held, which makes its own more than that. It is let go when
 * the others are gone. Where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, the user has said how to wait. */
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
    int looks;         /* in a row that speak for a change */
    bool held;
    pthread_t holder;
    sem_t over;        /* the holder is to end */
} Waiting;

/* Before the first parallel region that it is to change; there is no error: what cannot be had is left out. */
void waiting_open(Waiting *w, int threads);
/* Between two parallel regions, as often as one likes: looks at the machine every few milliseconds. now: seconds */
void waiting_look(Waiting *w, double now);
void waiting_close(Waiting *w);

#endif
