/* shard.h: how the elements of a tensor are divided among ranks: neighbouring ones, in the order of memory, in whole units
 * but for the last rank's, and sizes that differ by one unit at most. */
#ifndef MT_SHARD_H
#define MT_SHARD_H

#include "base/base.h"

enum { SHARD_UNIT = 256 }; /* elements: vectors of any device stay whole */

typedef struct Shard { int64_t first, count; } Shard; /* elements [first, first + count) */

/* Is a tensor of n elements divided? A smaller one, of which a rank would get nothing, stays whole on every rank. */
MT_FN bool shard_divides(int64_t n, int world) { return world > 1 && n >= (int64_t)world * SHARD_UNIT; }

/* The elements of a tensor, which is divided, that a rank has: at least one unit. */
MT_FN Shard shard_of(int64_t n, int world, int rank) {
    const int64_t units = n / SHARD_UNIT, each = units / world, more = units % world;
    Shard s;
    s.first = SHARD_UNIT * (rank * each + (rank < more ? rank : more));
    s.count = rank == world - 1 ? n - s.first : SHARD_UNIT * (each + (rank < more));
    return s;
}

/* Ranks, from 1 on, whose shard has another size than that of the rank before: at[2]. Returns how many they are. */
MT_FN int shard_changes(int64_t n, int world, int *at) {
    const int more = (int)(n / SHARD_UNIT % world);
    int found = 0;
    if (more) at[found++] = more;
    if (n % SHARD_UNIT && more != world - 1) at[found++] = world - 1; /* the last rank has what is no whole unit */
    return found;
}

/* The elements of n that rank r sums up for all, where a tensor is not divided: as equal as can be. */
MT_FN Shard shard_of_sum(int64_t n, int world, int r) {
    const int64_t each = n / world, more = n % world;
    Shard s;
    s.first = r * each + (r < more ? r : more);
    s.count = each + (r < more);
    return s;
}

/* Where the parts of all ranks lie in a tensor of n elements: `pieces` neighbours of `each`, which are divided each for itself
 * among the ranks, equally; or, pieces 0, shards. */
typedef struct Division { int64_t n, pieces, each; } Division;

/* Rank r's part of a piece, from the tensor's begin. A tensor of shards is one piece. */
MT_FN Shard division_part(Division d, int64_t piece, int world, int r) {
    Shard s;
    if (!d.pieces) return shard_of(d.n, world, r);
    s.count = d.each / world;
    s.first = piece * d.each + r * s.count;
    return s;
}
MT_FN int64_t division_pieces(Division d) { return d.pieces ? d.pieces : 1; }

#endif
