/* dropout.c: ops that draw: y = x keep / (1 - p), and normal numbers. An element's place in memory numbers its draw
 * within a call, and all of a micro-batch's ops read one count of calls. So the backward pass and a recomputation draw
 * the same numbers again. */
#include "dropout.h"

#include "math/rng_fill.h"
#include "parallel.h"

enum { ROWS = 8 }; /* at most so many rows of pixels make a piece and share the factors of its channels */

/* DRAWN: numbers at a time */
#if defined __AVX2__
#include "math/philox_lanes.h"

enum { NUMBERS = 4 * PHILOX_LANES, DRAWN = 4 * PHILOX_BLOCKS };
typedef float Floats __attribute__((vector_size(8 * PHILOX_LANES), aligned(4), may_alias));

/* Lane by lane dropout_keep (pointwise.h), of NUMBERS / 2 numbers, of which each lane of `drawn` has two */
INLINE void store_factors(float *to, Wide drawn, float p) {
    const Floats kept = (Floats){0} + 1.0f / (1.0f - p);
    const Floats uniform = __builtin_convertvector((WideInts)(drawn >> 8 & 0x00ffffff00ffffff), Floats) * (1.0f / 16777216.0f);
    *(Floats *)to = (Floats)((WideInts)kept & ~(uniform < p));
}

/* The factors of blocks [block, block + DRAWN / 4) */
INLINE void draw(float *to, float p, uint64_t seed, uint32_t id, uint32_t call, uint64_t block) {
#if defined __AVX512BW__
    const Wide first = {0, 8, 1, 9, 2, 10, 3, 11};
#else
    const Wide first = {0, 4, 1, 5};
#endif
    Wide x[PHILOX_CHAINS][4];
    philox_lanes(x, seed, RNG_DROPOUT, id, call, block);
#pragma GCC unroll 2
    for (int c = 0; c < PHILOX_CHAINS; c++, to += NUMBERS) {
        const Wide a = (x[c][0] & 0xffffffff) | x[c][1] << 32, b = (x[c][2] & 0xffffffff) | x[c][3] << 32;
        store_factors(to, __builtin_shuffle(a, b, first), p);
        store_factors(to + NUMBERS / 2, __builtin_shuffle(a, b, first + PHILOX_LANES / 2), p);
    }
}
#else
enum { DRAWN = 4 };

INLINE void draw(float *to, float p, uint64_t seed, uint32_t id, uint32_t call, uint64_t block) {
    const Philox r = philox(seed, RNG_DROPOUT, id, call, block);
    for (int k = 0; k < DRAWN; k++) to[k] = dropout_keep(p, r.x[k]);
}
#endif

HOT void dropout_factors(float *factors, float p, uint64_t seed, uint32_t id, uint32_t call, uint64_t begin,
                         int64_t n) {
    assert(begin % 4 == 0 && n % 4 == 0 && 0 <= p && p <= 1);
    int64_t i = 0;
    for (; i + DRAWN <= n; i += DRAWN) draw(factors + i, p, seed, id, call, (begin + (uint64_t)i) / 4);
    if (i == n) return;
    float last[DRAWN];
    draw(last, p, seed, id, call, (begin + (uint64_t)i) / 4);
    memcpy(factors + i, last, (size_t)(n - i) * sizeof *last);
}

/* Of the elements from `begin` on, which lie within a larger tensor in runs of neighbours. */
static void factors_within(const KArgs *a, float *factors, uint32_t call, int64_t begin, int64_t n) {
    const DropAttr *drop = &a->attr->drop;
    float drawn[BLOCK + 8];
    for (int64_t i = 0, run; i < n; i += run) {
        const int64_t at = within_place(drop->within, begin + i), skip = at % 4;
        run = min_i64(n - i, drop->within.piece - (begin + i) % drop->within.piece);
        dropout_factors(drawn, drop->p, a->seed, drop->id, call, (uint64_t)(at - skip), (skip + run + 3) & ~(int64_t)3);
        memcpy(factors + i, drawn + skip, (size_t)run * sizeof *factors);
    }
}

static void dropout_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK], factors[BLOCK];
    const DropAttr *drop = &a->attr->drop;
    uint32_t call = *(const uint32_t *)a->dropout.calls.data;
    int64_t n = end - begin;
    if (drop->within.piece) factors_within(a, factors, call, begin, n);
    else dropout_factors(factors, drop->p, a->seed, drop->id, call, (uint64_t)begin, (n + 3) & ~(int64_t)3);
    float *y = block_target(&a->out[0], begin, to);
    block_multiply(y, block_load(&a->in[0], begin, n, from), factors, n);
    block_store(&a->out[0], begin, n, y);
}

/* factors[count] of whole channels, for which number n C + c is drawn for channel c of image n: the n numbers from
 * `first` on, over and over. */
static void channel_factors(const KArgs *a, uint64_t first, int64_t n, float *factors, int64_t count) {
    const DropAttr *drop = &a->attr->drop;
    uint32_t call = *(const uint32_t *)a->dropout.calls.data;
    for (int64_t i = 0; i < count; i++)
        factors[i] = i < n ? dropout_factor(drop->p, a->seed, drop->id, call, first + (uint64_t)i) : factors[i - n];
}

/* Items are rows of pixels, counted over all images. They are taken as many pixels at a time as a BLOCK holds, or some
 * channels of one pixel. */
static void channels_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK], factors[BLOCK];
    const int64_t *d = a->out[0].shape.dim, channels = d[1], height = d[2], width = d[3];
    for (int64_t c = 0, n; c < channels; c += n) {
        n = min_i64(BLOCK, channels - c);
        int64_t pixels = n == channels ? BLOCK / n : 1;
        for (int64_t row = begin; row < end; row++) {
            if (row == begin || row % height == 0)
                channel_factors(a, (uint64_t)(row / height * channels + c), n, factors, pixels * n);
            for (int64_t w = 0; w < width; w += pixels) {
                int64_t at = (row * width + w) * channels + c, count = min_i64(pixels, width - w) * n;
                float *y = block_target(&a->out[0], at, to);
                block_multiply(y, block_load(&a->in[0], at, count, from), factors, count);
                block_store(&a->out[0], at, count, y);
            }
        }
    }
}

int k_cpu_dropout(const KArgs *a, Err *e) {
    const View *y = &a->out[0];
    const int64_t *d = y->shape.dim;
    assert(a->in[0].count == y->count);
    if (!a->attr->drop.channels) blocks_run(a, y->count, dropout_piece);
    else if (y->channels_last) range_run(a, d[0] * d[2], min_i64(ROWS, d[2]), channels_piece);
    else return err_set(e, ERR_INTERNAL, "dropout of channels: the operand must be a channels-last image");
    return OK;
}

int k_cpu_dropout_dx(const KArgs *a, Err *e) { return k_cpu_dropout(a, e); }

static void randn_piece(const KArgs *a, int64_t begin, int64_t end) {
    float drawn[BLOCK];
    uint32_t call = *(const uint32_t *)a->randn.calls.data;
    const RngPlace from = {a->seed, RNG_NOISE, a->attr->drop.id, call, (uint64_t)begin / 4};
    rng_fill(&from, true, drawn, end - begin);
    block_store(&a->randn.y, begin, end - begin, drawn);
}

int k_cpu_randn(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->randn.y.count, randn_piece);
    return OK;
}

int k_cpu_count_call(const KArgs *a, Err *e) {
    (void)e;
    *(uint32_t *)a->count_call.calls.data += (uint32_t)a->attr->count.by;
    return OK;
}
