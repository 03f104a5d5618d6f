/* affinity.h: sets of processors, as the kernel has them, and where this process's threads may run. */
#ifndef MT_AFFINITY_H
#define MT_AFFINITY_H

#include "base.h"

enum { SET_NUMBERS = 8192, SET_WORD = 8 * sizeof(unsigned long) }; /* as many processors as Linux can have */

/* Numbers of processors or memory nodes, as system calls take them */
typedef struct NumberSet { unsigned long word[SET_NUMBERS / SET_WORD]; } NumberSet;

/* Reads the list at the start of `text`, "0-3,8-11". false: there is none, or a number beyond SET_NUMBERS; the set is empty then. */
bool set_read(NumberSet *set, const char *text);
int set_count(const NumberSet *set);
bool set_has(const NumberSet *set, int number); /* false for a number beyond SET_NUMBERS */
void set_add(NumberSet *set, int number);
bool set_meets(const NumberSet *a, const NumberSet *b); /* is a number in both? */

/* Where OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY say that threads stay on their places, OpenMP binds the thread that loads it
 * to the first place, and whatever that thread starts would inherit this: workers, and threads that are not of its teams. They
 * belong on all places. false: nothing is bound. */
bool affinity_places(NumberSet *processors);
/* The processors on which threads of this process may run; empty where the kernel does not tell. */
void affinity_processors(NumberSet *processors);
/* The calling thread may run on these. Only a system call: it may stand between fork and exec. Where the kernel refuses it, the
 * thread stays where it is. */
void affinity_take(const NumberSet *processors);
/* The calling thread, which is none of OpenMP's, is not bound to the place of the one that started it. */
void affinity_unbind(void);

#endif
