/* tiles.h: operands whose channels lie innermost, (rows, C), in tiles: some rows of at most TILE_COLS channels.
 *
 *   channels 0 ..   first .. first + cols   .. C
 *   row begin       +-------------+
 *   ...             |    tile     |   fp32 where it lies (stride C), or converted into a scratch array (stride cols)
 *   row begin+rows  +-------------+
 *
 * Sums over rows are made slab by slab. The rows are cut into slabs by their number alone; one thread sums up a slab
 * into doubles of its own in the workspace, and the slabs' sums are added in order. So the number of threads changes
 * no bit. */
#ifndef MT_CPU_TILES_H
#define MT_CPU_TILES_H

#include "parallel.h"

/* TILE_COLS: 4 KB of fp32, since a processor asks ahead within a page: of shorter parts of long rows it would see few in order. */
enum { TILE_COLS = 1024, SLABS = 32, SLAB_ROWS = 64 /* at least */, SUMS = 2 /* at most, per channel */ };

/* Rows [row, row + rows), channels [first, first + cols) of `channels`; rows * cols is at most BLOCK. */
typedef struct Tile { int64_t row, first, rows, cols, channels; } Tile;

/* The first tile of rows [begin, end), and the one after it; tile_start_at: of channels from `first` on. The rows go by
 * first, then the channels. false: there is no such tile. */
bool tile_start(Tile *t, int64_t channels, int64_t begin, int64_t end);
bool tile_start_at(Tile *t, int64_t channels, int64_t first, int64_t begin, int64_t end);
bool tile_next(Tile *t, int64_t begin, int64_t end);
/* A tile's elements of `v`; rows are *stride elements apart. scratch[BLOCK] */
const float *tile_load(const View *v, const Tile *t, float *scratch, int64_t *stride);
/* Where a tile of `v` is computed, and what then rounds it into `v`. */
float *tile_target(const View *v, const Tile *t, float *scratch, int64_t *stride);
void tile_store(const View *v, const Tile *t, const float *values);

/* Rows for one piece of work, so that a piece has about eight BLOCKs of elements. */
int64_t channel_grain(int64_t channels);

/* One slab: adds terms of rows [begin, end) to sums[SUMS][C]. */
typedef void SlabFn(const KArgs *a, int64_t begin, int64_t end, double *sums);
size_t slabs_workspace(int64_t rows, int64_t channels); /* bytes that slabs_run needs */
/* sums[SUMS][C] of `rows` rows, in the workspace. */
const double *slabs_run(const KArgs *a, int64_t rows, int64_t channels, SlabFn *slab);

#endif
