/* columns.h: how threads share work that runs down the rows of a (rows, C) operand. A block is x by y threads,
 * COLUMN_THREADS in all: x neighbouring groups of channels, y rows at a time. A thread stays with its channels and
 * strides down the rows of the block's part. All sizes follow from the shape alone, so that the order of a sum and the
 * workspace for its parts are the same on every GPU. For .cu files. */
#ifndef MT_COLUMNS_H
#define MT_COLUMNS_H

#include "launch.h"

/* COLUMN_BLOCKS: two for each multiprocessor of the largest GPUs. IN_FLIGHT: rows that a thread loads at once. */
enum { COLUMN_THREADS = 256, COLUMN_BLOCKS = 264, COLUMN_LANES = 8, IN_FLIGHT = 4 };

/* x for threads that have `lanes` channels each: a power of two, so that blocks are full */
static inline unsigned columns_across(int64_t channels, int lanes) {
    unsigned x = 1;
    while (x < WARP && x * (unsigned)lanes < channels) x *= 2;
    return x;
}

/* x of sums. Tensors that do not lie in 16-byte words have the same one: so the order of the sums is the same, too, and it is
 * known before a tensor's place is. */
static inline unsigned columns_width(int64_t channels) { return columns_across(channels, COLUMN_LANES); }

/* How many parts the rows are cut into: at least 1, at most COLUMN_BLOCKS */
static inline int64_t columns_parts(int64_t rows, int64_t channels) {
    assert(rows > 0 && channels > 0);
    const int64_t x = columns_width(channels), each = COLUMN_LANES * x, y = COLUMN_THREADS / x * IN_FLIGHT;
    return min_i64(max_i64(COLUMN_BLOCKS / ((channels + each - 1) / each), 1), (rows + y - 1) / y);
}

/* Blocks where a thread has `lanes` channels, and their threads */
static inline dim3 columns_grid(int64_t channels, int lanes, int64_t parts) {
    const int64_t across = (int64_t)columns_width(channels) * lanes;
    return dim3((unsigned)((channels + across - 1) / across), (unsigned)parts);
}

static inline dim3 columns_block(int64_t channels) {
    const unsigned x = columns_width(channels);
    return dim3(x, COLUMN_THREADS / x);
}

#endif
