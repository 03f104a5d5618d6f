/* waiting.h: how long threads wait for each other awake.
 *
 * At the end of a parallel loop libgomp's threads look for the last one 300,000 times (some ms) before they sleep.
 * That is right while each has a processor of its own. Where more threads want to run than there are processors, the
 * waiting threads keep the last one from running. libgomp looks only 100 times if it knows: "when there are more
 * managed threads than available CPUs" (GOMP_SPINCOUNT in its manual); but it counts its own threads only. So while
 * other programs take processors from this one's threads, this file holds a team of sleeping threads, which lifts
 * libgomp's count above the number of processors. The team ends when the other programs have gone. Linux counts how long
 * each thread was ready to run and had no processor (/proc/self/task/N/schedstat); that tells how
 * crowded it is. Where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, the user has said how to wait, and nothing is done. */
#ifndef MT_CPU_WAITING_H
#define MT_CPU_WAITING_H

#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

typedef struct Waiting {
    DIR *tasks;        /* of this process; NULL: nothing is watched */
    int threads;       /* that compute */
    double looked;     /* when, seconds */
    double lacked;     /* of a processor until then, seconds of all threads */
    bool held;         /* the team sleeps, and `holder` runs */
    pthread_t holder;
    sem_t over;        /* tells the holder to end */
} Waiting;

/* Call it before the first parallel region. threads: that compute, at least 1. It cannot fail: where Linux does not
 * count or the semaphore is missing, nothing is watched. */
void waiting_open(Waiting *w, int threads);
/* Call it between two parallel regions, as often as you like: it looks ten times a second at most.
 * now: seconds of a clock that never goes back */
void waiting_look(Waiting *w, double now);
void waiting_close(Waiting *w);

#endif
