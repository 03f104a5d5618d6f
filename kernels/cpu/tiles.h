/* tiles.h: operands whose channels lie innermost, (rows, C), in tiles: some rows of at most TILE_COLS channels.
 *
 *   channels 0 ..   first .. first + cols   .. C
 *   row begin       +-------------+
 *   ...             |    tile     |   fp32 where it lies (stride C), or converted into a scratch array (stride cols)
 *   row begin+rows  +-------------+
 *
 * Sums over rows are made slab by slab: a fixed number of runs of rows, each on one thread into doubles of its own in
 * the workspace, then added in order, so that the number of threads changes no bit. */
#ifndef MT_CPU_TILES_H
#define MT_CPU_TILES_H

#include "parallel.h"

enum { TILE_COLS = 512, SLABS = 32, SLAB_ROWS = 64 /* at least */, SUMS = 2 /* at most, per channel */ };

typedef struct Tile { int64_t row, first, rows, cols, channels; } Tile;

/* The first tile of rows [begin, end), of channels from `first` on, and the one after it; false: there is none. */
bool tile_start(Tile *t, int64_t channels, int64_t begin, int64_t end);
bool tile_start_at(Tile *t, int64_t channels, int64_t first, int64_t begin, int64_t end);
bool tile_next(Tile *t, int64_t begin, int64_t end);
/* Its elements of `v`, *stride apart from row to row; scratch[BLOCK]. */
const float *tile_load(const View *v, const Tile *t, float *scratch, int64_t *stride);
/* Where to compute it, and what brings it there. */
float *tile_target(const View *v, const Tile *t, float *scratch, int64_t *stride);
void tile_store(const View *v, const Tile *t, const float *values);

/* Rows for one piece of work, so that a piece has some BLOCKs of elements. */
int64_t channel_grain(int64_t channels);

/* One slab: adds terms of rows [begin, end) to sums[SUMS][C]. */
typedef void SlabFn(const KArgs *a, int64_t begin, int64_t end, double *sums);
size_t slabs_workspace(int64_t rows, int64_t channels);
/* sums[SUMS][C] of `rows` rows, in the workspace. */
const double *slabs_run(const KArgs *a, int64_t rows, int64_t channels, SlabFn *slab);

#endif
