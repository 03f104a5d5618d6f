/* machine.h: what this process may use of the machine: processors, their time, memory nodes.
 *
 * It is read from the kernel's files below a root: "" is this machine, and a test has folders that describe others. What a file does
 * not say is no limit. */
#ifndef MT_CPU_MACHINE_H
#define MT_CPU_MACHINE_H

#include "base/affinity.h"

typedef struct Machine {
    int processors;  /* on which its threads may run, at least 1 */
    double time;     /* seconds of processors per second that its control groups (cgroups) leave it; INFINITY: no limit */
    NumberSet nodes; /* memory nodes of these processors, from which it may take memory; empty: the kernel knows of none */
} Machine;

/* processors: on which its threads may run (affinity_processors) */
void machine_look(const char *root, const NumberSet *processors, Machine *m);
/* `wanted`, or as many as its control groups leave time for, if that is fewer: of 1.5 processors' time two threads can use all,
 * and one cannot. More would stand still for the rest of each period, all of them at once. */
int machine_threads(const Machine *m, int wanted);

/* The text after "name :" in a file below the root, or "" */
void machine_text(const char *root, const char *path, const char *name, char *value, size_t size);
/* The list of numbers in a file below the root; false: there is none. */
bool machine_list(const char *root, const char *path, NumberSet *set);

#endif
