/* attention_tiles.h: what a block of attention's kernels does with tiles: TILE rows of a head are multiplied by TILE
 * columns of the other side. Where operands have 16 bits and lie in whole words, tensor cores multiply (Cores), and
 * the factor of the third tile is rounded to 16 bits first; else nothing is rounded on the way (Plain). For
 * attention_kernels.h. */
#ifndef MT_ATTENTION_TILES_H
#define MT_ATTENTION_TILES_H

#include "program/attention.h"

#include "elements.h"
#include "cores.h"

/* A block's threads have 32 scores of a tile each. QUADS, WORDS: of a tile's row, with some more, so that neighbouring
 * rows lie in different banks. CORES: the first compute capability whose tensor cores take bf16 and f16. PIECES: of
 * four features, a thread's share of a tile; IN_FLIGHT: of them, loaded at once */
enum { TILE = 64, ATTENTION_THREADS = 128, QUADS = TILE / 4 + 1, WORDS = TILE / 2 + 4, CORES = 80 };
enum { PIECES = TILE * TILE / 4 / ATTENTION_THREADS, IN_FLIGHT = 4 };
static_assert(PIECES % IN_FLIGHT == 0, "tile_load stores whole rounds");

/* An operand: sample n's step s begins at element first + n of_sample + s of_step. of_keys: heads are those of k and v.
 * whole: fours of features begin where words may */
typedef struct Steps {
    Elements at;
    int64_t count, first, of_sample, of_step;
    bool of_keys, whole;
} Steps;

typedef struct Attention {
    AttentionAttr attr;
    Steps q, k, v, y, dq, dk, dv, dy;
    float *lse, *inner;     /* (N, heads, T); inner: <dy, y> of each row */
    View bias, dbias, positions; /* count 0: none */
    const uint32_t *calls;  /* NULL: no dropout */
    int64_t samples, queries, keys, width; /* N, T, S, D */
    uint64_t seed;
} Attention;

/* ---- where a thread is */

/* head: of q, among all samples'; of_sample: its number in the sample; of_keys: the number of its keys' head there;
 * begin: the block's first row */
typedef struct Place { int64_t head, sample, of_sample, of_keys, begin; } Place;

/* Heads of q that share one of k and v */
static __host__ __device__ inline int group_of(const Attention &t) { return t.attr.heads / t.attr.kv_heads; }

/* The block's tile of `rows` rows. It serves `heads` neighbouring heads of q, of which this is the first. late_first:
 * blocks with late rows, which have the most work, start first. */
static __device__ inline Place place_here(const Attention &t, int heads, int64_t rows, bool late_first) {
    const int64_t all = t.samples * t.attr.heads / heads, tiles = (rows + TILE - 1) / TILE, tile = blockIdx.x / all;
    Place p;
    p.head = blockIdx.x % all * heads;
    p.sample = p.head / t.attr.heads;
    p.of_sample = p.head % t.attr.heads;
    p.of_keys = p.of_sample / group_of(t);
    p.begin = (late_first ? tiles - 1 - tile : tile) * TILE;
    return p;
}

/* Where the head's features of a step begin */
static __device__ inline int64_t head_at(const Attention &t, const Steps &x, const Place &p, int64_t step) {
    return x.first + p.sample * x.of_sample + step * x.of_step + (x.of_keys ? p.of_keys : p.of_sample) * t.width;
}

/* The number of a head's query s among all samples' and heads' */
static __device__ inline int64_t query_index(const Attention &t, const Place &p, int64_t s) {
    return p.head * t.queries + s;
}

/* Query s sees the keys from `begins` on, up to `seen` */
static __device__ inline int64_t seen(const Attention &t, int64_t s) { return attention_end(&t.attr, s, t.keys); }
static __device__ inline int64_t begins(const Attention &t, const Place &p, int64_t s) {
    return attention_first(&t.attr, attention_positions(&t.positions, p.sample), s);
}

/* The tile of keys with the first one that query s sees */
static __device__ inline int64_t first_tile(const Attention &t, const Place &p, int64_t s) {
    return begins(t, p, s) / TILE * TILE;
}

/* The score of query s for key u, which it sees, by their product; *slope: its derivative by the product */
static __device__ inline float score_of(const Attention &t, const Place &p, int64_t s, int64_t u, float product,
                                        float *slope) {
    const float capped = attention_cap(&t.attr, t.attr.scale * product);
    *slope = t.attr.scale * attention_cap_slope(&t.attr, capped);
    if (!t.bias.count) return capped;
    const int64_t at = attention_bias_at(&t.bias, p.sample, p.of_sample) + s * t.keys + u;
    return capped + dtype_load(t.bias.dtype, t.bias.data, (size_t)at);
}

/* What dropout multiplies the probability of query s for key u by; rows begin at multiples of four draws. */
static __device__ inline float kept(const Attention &t, const Place &p, int64_t s, int64_t u) {
    if (!t.calls) return 1.0f;
    const uint64_t row = dropout_row(query_index(t, p, s), t.keys);
    return dropout_factor(t.attr.p, t.seed, t.attr.id, *t.calls, row + (uint64_t)u);
}

/* ---- tiles */

/* Features d to d + 3 of a step as they lie; zeros after the last feature or step. type: x's */
static __device__ inline Piece<4> four_load(const Attention &t, const Steps &x, DType type, const Place &p,
                                            int64_t step, int64_t d) {
    const int64_t at = head_at(t, x, p, step) + d;
    Piece<4> v = {};
    if (step >= x.count || d >= t.width) return v;
    if (x.whole) return piece_load<4>(type, x.at.data, at);
    UNROLLED(4)
    for (int k = 0; k < 4; k++) {
        const uint32_t bits = d + k < t.width ? piece_load<1>(type, x.at.data, at + k).word[0] : 0;
        if (type == DT_F32) v.word[k] = bits;
        else v.word[k / 2] |= bits << k % 2 * 16;
    }
    return v;
}

/* TILE features from `first` on of TILE steps from `begin` on: tile[step][feature]; TRANSPOSED: tile[feature][step],
 * for which a warp's lanes are 16 steps by 2 fours of features, so that neither its loads nor its stores collide. A
 * thread loads IN_FLIGHT pieces before it stores the first of them. */
template <typename L, bool TRANSPOSED>
static __device__ inline void tile_load(typename L::Tile tile, const Attention &t, const Steps &x, const Place &p,
                                        int64_t begin, int64_t first) {
    for (int round = 0; round < PIECES; round += IN_FLIGHT) {
        Piece<4> piece[IN_FLIGHT];
        int step[IN_FLIGHT], d[IN_FLIGHT];
        UNROLLED(IN_FLIGHT)
        for (int n = 0; n < IN_FLIGHT; n++) {
            const int c = (round + n) * ATTENTION_THREADS + (int)threadIdx.x;
            step[n] = TRANSPOSED ? c % 16 + c / 256 * 16 : c / 16;
            d[n] = (TRANSPOSED ? c / 16 % 16 : c % 16) * 4;
            piece[n] = four_load(t, x, L::type(x), p, begin + step[n], first + d[n]);
        }
        UNROLLED(IN_FLIGHT)
        for (int n = 0; n < IN_FLIGHT; n++) {
            if (TRANSPOSED) L::put_transposed(tile, x.at.type, step[n], d[n], piece[n]);
            else L::put(tile, x.at.type, step[n], d[n], piece[n]);
        }
    }
}

/* ---- how threads share a tile of scores, of which s[i][j] is in row(i) and column(j), and what they do with tiles:
 *        products  s[i][j] += <step row(i) of x, step column(j) of y>
 *        gather    acc[i][j] += sum over the tile's columns of their factors in row(i) times feature column(j) of x's step
 *        store     features column(j) of a step */

struct Plain {
    enum { ROWS = 8, COLUMNS = 4, NEIGHBOURS = TILE / COLUMNS }; /* neighbouring lanes share rows */
    typedef float4 (*Tile)[QUADS];
    typedef struct Tiles { float4 a[TILE][QUADS], b[TILE][QUADS]; } Tiles;

    static __device__ inline DType type(const Steps &x) { return x.at.type; }
    static __device__ inline int row(int i) { return (int)threadIdx.x / NEIGHBOURS * ROWS + i; }
    static __device__ inline int column(int j) { return (int)threadIdx.x % NEIGHBOURS * COLUMNS + j; }

    static __device__ inline void put(Tile tile, DType type, int step, int d, const Piece<4> &piece) {
        float v[4];
        piece_unpack(type, piece, v);
        tile[step][d / 4] = make_float4(v[0], v[1], v[2], v[3]);
    }
    static __device__ inline void put_transposed(Tile tile, DType type, int step, int d, const Piece<4> &piece) {
        float v[4];
        piece_unpack(type, piece, v);
        for (int k = 0; k < 4; k++) ((float *)tile[d + k])[step] = v[k];
    }

    /* acc[i][j] += sum over k < n of a[k][row(i)] b[k][column(j)] */
    static __device__ inline void multiply(float (*acc)[COLUMNS], Tile a, Tile b, int n) {
        const int up = row(0) / 4, left = column(0) / 4;
        UNROLLED(4)
        for (int k = 0; k < n; k++) {
            const float4 low = a[k][up], high = a[k][up + 1], y = b[k][left];
            const float x[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            for (int i = 0; i < ROWS; i++) {
                acc[i][0] = fmaf(x[i], y.x, acc[i][0]);
                acc[i][1] = fmaf(x[i], y.y, acc[i][1]);
                acc[i][2] = fmaf(x[i], y.z, acc[i][2]);
                acc[i][3] = fmaf(x[i], y.w, acc[i][3]);
            }
        }
    }

    static __device__ inline void products(float (*s)[COLUMNS], Tiles &tiles, const Attention &t, const Place &p,
                                           const Steps &x, int64_t first_row, const Steps &y, int64_t first_column) {
        for (int64_t d = 0; d < t.width; d += TILE) {
            __syncthreads(); /* the tiles before are done with */
            tile_load<Plain, true>(tiles.a, t, x, p, first_row, d);
            tile_load<Plain, true>(tiles.b, t, y, p, first_column, d);
            __syncthreads();
            multiply(s, tiles.a, tiles.b, (int)min_i64(t.width - d, TILE));
        }
    }

    static __device__ inline void gather(float (*acc)[COLUMNS], Tiles &tiles, const float (*factors)[COLUMNS],
                                         const Attention &t, const Place &p, const Steps &x, int64_t begin,
                                         int64_t first) {
        __syncthreads();
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < ROWS; i += 4)
                tiles.a[column(j)][row(i) / 4] =
                    make_float4(factors[i][j], factors[i + 1][j], factors[i + 2][j], factors[i + 3][j]);
        tile_load<Plain, false>(tiles.b, t, x, p, begin, first);
        __syncthreads();
        multiply(acc, tiles.a, tiles.b, TILE);
    }

    static __device__ inline void store(const Steps &x, int64_t at, int64_t room, const float *v) {
        if (room > 0 && x.whole) lanes_store<4>(x.at.type, x.at.data, at + column(0), v);
        else for (int j = 0; j < COLUMNS && j < room; j++)
            dtype_store(x.at.type, x.at.data, (size_t)(at + column(j)), v[j]);
    }
};

/* A warp has 16 rows; eight fragments of 16 by 8 (cores.h) are its columns. Tiles hold T as it lies, two in a word. */
template <DType T> struct Cores {
    enum { ROWS = 2, COLUMNS = 16, NEIGHBOURS = 4, FRAGMENTS = TILE / 8 };
    typedef uint32_t (*Tile)[WORDS];
    typedef struct Tiles { alignas(8) uint32_t a[TILE][WORDS], b[TILE][WORDS]; } Tiles;

    static __device__ inline DType type(const Steps &) { return T; }
    static __device__ inline int lane() { return (int)threadIdx.x % WARP; }
    static __device__ inline int row(int i) { return (int)threadIdx.x / WARP * 16 + lane() / 4 + 8 * i; }
    static __device__ inline int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }

    static __device__ inline void put(Tile tile, DType, int step, int d, const Piece<4> &piece) {
        *(uint2 *)&tile[step][d / 2] = make_uint2(piece.word[0], piece.word[1]);
    }
    static __device__ inline void put_transposed(Tile tile, DType, int step, int d, const Piece<4> &piece) {
        UNROLLED(4)
        for (int k = 0; k < 4; k++) ((uint16_t *)tile[d + k])[step] = (uint16_t)(piece.word[k / 2] >> k % 2 * 16);
    }

    /* acc += a times the 16 by TILE part of b, [TILE][...] as it lies, that begins at its word `word` */
    static __device__ inline void multiply(float (*acc)[COLUMNS], const uint32_t *a, Tile b, int word) {
        UNROLLED(FRAGMENTS)
        for (int n = 0; n < FRAGMENTS; n++) {
            const uint32_t *at = b[n * 8 + lane() / 4] + word + lane() % 4, of_b[2] = {at[0], at[4]};
            mma<T>(acc[0] + 2 * n, acc[1] + 2 * n, a, of_b);
        }
    }

    static __device__ inline void products(float (*s)[COLUMNS], Tiles &tiles, const Attention &t, const Place &p,
                                           const Steps &x, int64_t first_row, const Steps &y, int64_t first_column) {
        for (int64_t d = 0; d < t.width; d += TILE) {
            __syncthreads(); /* the tiles before are done with */
            tile_load<Cores, false>(tiles.a, t, x, p, first_row, d);
            tile_load<Cores, false>(tiles.b, t, y, p, first_column, d);
            __syncthreads();
            const int words = (int)min_i64(t.width - d, TILE) / 2;
            for (int word = 0; word < words; word += 8) {
                const uint32_t *up = tiles.a[row(0)] + word + lane() % 4, *down = tiles.a[row(1)] + word + lane() % 4;
                const uint32_t a[4] = {up[0], down[0], up[4], down[4]};
                multiply(s, a, tiles.b, word);
            }
        }
    }

    static __device__ inline uint32_t pair(const float *x) { return piece_pack<2>(T, x).word[0]; }

    /* The registers of a product's result are those of the next product's factor: fragments 2 k and 2 k + 1 are 16 of
     * its columns. */
    static __device__ inline void gather(float (*acc)[COLUMNS], Tiles &tiles, const float (*factors)[COLUMNS],
                                         const Attention &t, const Place &p, const Steps &x, int64_t begin,
                                         int64_t first) {
        __syncthreads();
        tile_load<Cores, true>(tiles.b, t, x, p, begin, first);
        __syncthreads();
        UNROLLED(TILE / 16)
        for (int k = 0; k < TILE / 16; k++) {
            const uint32_t a[4] = {pair(factors[0] + 4 * k), pair(factors[1] + 4 * k), pair(factors[0] + 4 * k + 2),
                                   pair(factors[1] + 4 * k + 2)};
            multiply(acc, a, tiles.b, 8 * k);
        }
    }

    static __device__ inline void store(const Steps &x, int64_t at, int64_t room, const float *v) {
        for (int j = 0; j < COLUMNS; j += 2)
            if (column(j) - column(0) < room) *(uint32_t *)((uint16_t *)x.at.data + at + column(j)) = pair(v + j);
    }
};

/* The sum and the largest over the threads that have a row: neighbouring lanes */
template <typename L> static __device__ inline float row_sum(float x) {
    for (int bit = L::NEIGHBOURS / 2; bit; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
    return x;
}
template <typename L> static __device__ inline float row_max(float x) {
    for (int bit = L::NEIGHBOURS / 2; bit; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, bit));
    return x;
}

template <typename L>
static __device__ inline void scatter(const Attention &t, const Place &p, const Steps &x, int64_t first,
                                      const float (*acc)[L::COLUMNS]) {
    UNROLLED(L::ROWS)
    for (int i = 0; i < L::ROWS; i++) {
        const int64_t step = p.begin + L::row(i);
        const int64_t at = head_at(t, x, p, step) + first;
        if (step < x.count) L::store(x, at, t.width - first - L::column(0), acc[i]);
    }
}

#endif
