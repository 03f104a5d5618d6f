/* columns.h: how threads share work that runs down the rows of a (rows, C) operand. A block is x by y threads,
 * COLUMN_THREADS in all: x neighbouring groups of channels, y rows at a time. A thread stays with its channels and
 * strides down the rows of the block's part. All sizes follow from the shape alone, so that the order of a sum and the
 * workspace for its parts are the same on every GPU. For .cu files. */
#ifndef MT_COLUMNS_H
#define MT_COLUMNS_H

#include "launch.h"

/* COLUMN_BLOCKS: two for each multiprocessor of the largest GPUs. IN_FLIGHT: rows that a thread loads at once.
 * COLUMN_ACROSS: threads that a block of sums has across. They read 128 bytes of 16 bits, whole lines of the cache; a wider block would
 * have fewer rows, and there would be more sums of parts to write and to read. COLUMN_TURNS: times IN_FLIGHT, rows of a thread */
enum { COLUMN_THREADS = 256, COLUMN_BLOCKS = 264, COLUMN_LANES = 8, IN_FLIGHT = 4, COLUMN_ACROSS = 8, COLUMN_TURNS = 2 };

/* x for threads that have `lanes` channels each: a power of two, at most `most`, so that blocks are full */
static inline unsigned columns_across(int64_t channels, int lanes, unsigned most) {
    unsigned x = 1;
    while (x < most && x * (unsigned)lanes < channels) x *= 2;
    return x;
}

/* x of sums. Tensors that do not lie in 16-byte words have the same one: so the order of the sums is the same, too, and it is
 * known before a tensor's place is. */
static inline unsigned columns_width(int64_t channels) { return columns_across(channels, COLUMN_LANES, COLUMN_ACROSS); }

/* How many parts the rows are cut into, where a block has `each` channels: at least 1, at most COLUMN_BLOCKS, of `least` rows or
 * more */
static inline int64_t columns_cut(int64_t rows, int64_t channels, int64_t each, int64_t least) {
    assert(rows > 0 && channels > 0);
    return min_i64(max_i64(COLUMN_BLOCKS / ((channels + each - 1) / each), 1), (rows + least - 1) / least);
}

/* Of sums */
static inline int64_t columns_parts(int64_t rows, int64_t channels) {
    const int64_t x = columns_width(channels);
    return columns_cut(rows, channels, COLUMN_LANES * x, COLUMN_THREADS / x * IN_FLIGHT * COLUMN_TURNS);
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
