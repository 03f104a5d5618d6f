/* spread.h: how large blocks lie over the nodes of a machine's memory (NUMA).
 *
 * A page comes to lie on the node of the thread that touches it first. But one arena's bytes are those of many tensors in turn, which
 * ops divide among threads in different ways, and what touches them first is often one thread. So whole arenas would lie on one node,
 * for whose memory all threads then wait. If all threads touched the arena first, each its share, only ops that divide it in the
 * same way would gain, and only while threads stay where they are. So pages go round the nodes, which Linux calls to interleave:
 * every op has the rate of all memories, whichever thread runs where, and a step takes the same time in each run. The kernel's own
 * balancing leaves such pages where they are. */
#ifndef MT_CPU_SPREAD_H
#define MT_CPU_SPREAD_H

#include <stddef.h>

#include "machine.h"

typedef enum Spread {
    SPREAD_NOT_NEEDED, /* there is one node, or one thread, to which its own node is the nearest */
    SPREAD_CHOSEN,     /* the user has said where memory lies (numactl) */
    SPREAD_REFUSED,    /* the kernel takes no wishes: old containers, those without CAP_SYS_NICE */
    SPREAD_ROUND,      /* pages go round the nodes */
    SPREADS
} Spread;

/* How memory of the calling thread is to lie, where so many threads compute */
Spread spread_find(const Machine *m, int threads);
const char *spread_text(Spread s); /* "interleaved"; "": nothing is to be said */

/* The whole pages among p's bytes, of which none was touched, go round the nodes until spread_end, which must be called before other
 * use. A wish: where the kernel refuses, they lie where it puts them. p: a multiple of the page's size. */
void spread_begin(const NumberSet *nodes, void *p, size_t bytes);
void spread_end(void *p, size_t bytes);

#endif
