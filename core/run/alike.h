/* alike.h: which ranks of a training need not be predicted apart. All have the same ops; what differs is the sizes of shards, and
 * these are the same from one rank to the next but for a few ranks (math/shard.h). */
#ifndef MT_ALIKE_H
#define MT_ALIKE_H

#include "program/program.h"

/* Ranks that follow each other, from `rank` on, with shards of the same sizes. Those along the mesh's axis "tensor" have equal
 * parts. A sum that all get is made by all ranks in parts, of which the first ranks may have an element more: of those alike
 * none sends more than the first. */
typedef struct Alike { int rank, count; } Alike;

/* The classes of a training's ranks in their order, from its programs for any of them, at least one, which share a runtime: the
 * caller frees *out with mem_free. ERR_HOST_MEMORY. */
int ranks_alike(const Program *const *programs, int n_programs, Alike **out, int *n, Err *e);

#endif
