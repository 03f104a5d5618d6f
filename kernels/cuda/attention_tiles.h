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
 * rows lie in different banks. CORES: the first compute capability whose tensor cores take bf16 and f16. FOURS, EIGHTS: a
 * thread's share of a tile, in pieces of so many features; IN_FLIGHT: of fours, loaded at once */
enum { TILE = 64, ATTENTION_THREADS = 128, QUADS = TILE / 4 + 1, WORDS = TILE / 2 + 4, CORES = 80 };
enum { FOURS = TILE * TILE / 4 / ATTENTION_THREADS, IN_FLIGHT = 4, EIGHTS = FOURS / 2 };
static_assert(FOURS % IN_FLIGHT == 0, "Plain::load stores whole rounds");

/* An operand: sample n's step s begins at element first + n of_sample + s of_step. of_keys: heads are those of k and v.
 * whole: heads and their rows begin where words of 16 bytes may, and consist of them */
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

/* What dropout multiplies the probabilities of query s for N keys from u on by, u a multiple of N: rows begin with a block of
 * four draws, of which these are N. */
template <int N> static __device__ inline void kept(const Attention &t, const Place &p, int64_t s, int64_t u, float *factor) {
    UNROLLED(N)
    for (int n = 0; n < N; n++) factor[n] = 1.0f;
    if (!t.calls) return;
    const uint64_t i = dropout_row(query_index(t, p, s), t.keys) + (uint64_t)u;
    const Philox drawn = philox(t.seed, RNG_DROPOUT, t.attr.id, *t.calls, i >> 2);
    UNROLLED(N)
    for (int n = 0; n < N; n++) {
        uint32_t x = drawn.x[n]; /* chosen from registers, not from an array at an index */
        UNROLLED(4 / N)
        for (int k = N; k < 4; k += N) x = (i & 3) == (uint64_t)k ? drawn.x[k + n] : x;
        factor[n] = dropout_keep(t.attr.p, x);
    }
}

/* ---- how threads share a tile of scores, of which s[i][j] is in row(i) and column(j), and what they do with tiles. The kernels'
 *      products are numbered: number 0 multiplies rows of one operand by columns of another, number 1 those of two more.
 *
 *        rows      the rows of both products, which stay until the next call
 *        columns   the columns of both
 *        products  s[i][j] += <step row(i) of x, step column(j) of y>, by number
 *        gather    acc[i][j] += sum over the tile's columns of their factors in row(i) times feature column(j) of the
 *                  column's step, in y of the product of that number
 *        scatter   the features from `first` on of the tile's rows become acc
 *        part      PIECE features of a step, from d on; zeros after the last one, or for a step that there is not
 *        kept_keys keep[i][c]: where rows are keys and columns queries, dropout's factor of row(i) and column(j + c), c < GROUP
 *
 *      Tiles<N>: of a kernel with N products. SAME: consecutive columns of a thread that begin with a multiple of their
 *      number. Neighbouring lanes share rows. */

/* Features d to d + 3 of a step as they lie; zeros after the last feature or step */
static __device__ inline Piece<4> four_load(const Attention &t, const Steps &x, const Place &p, int64_t step, int64_t d) {
    const int64_t at = head_at(t, x, p, step) + d;
    const DType type = x.at.type;
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

/* Two tiles at a time: each product loads its own. */
struct Plain {
    enum { ROWS = 8, COLUMNS = 4, NEIGHBOURS = TILE / COLUMNS, PIECE = 4, SAME = 4, GROUP = 1 };
    typedef float4 (*Tile)[QUADS];
    template <int N> struct Tiles { float4 a[TILE][QUADS], b[TILE][QUADS]; };

    static __device__ inline int row(int i) { return (int)threadIdx.x / NEIGHBOURS * ROWS + i; }
    static __device__ inline int column(int j) { return (int)threadIdx.x % NEIGHBOURS * COLUMNS + j; }

    static __device__ inline void part(const Attention &t, const Steps &x, const Place &p, int64_t step, int64_t d, float *v) {
        piece_unpack(x.at.type, four_load(t, x, p, step, d), v);
    }

    static __device__ inline void kept_keys(const Attention &t, const Place &p, int64_t query, int j, float (*keep)[GROUP]) {
        UNROLLED(ROWS / 4)
        for (int i = 0; i < ROWS; i += 4) {
            float four[4];
            kept<4>(t, p, query + column(j), p.begin + row(i), four);
            for (int k = 0; k < 4; k++) keep[i + k][0] = four[k];
        }
    }

    /* TILE features from `first` on of TILE steps from `begin` on: tile[step][feature]; TRANSPOSED: tile[feature][step],
     * for which a warp's lanes are 16 steps by 2 fours of features, so that neither its loads nor its stores collide. A
     * thread loads IN_FLIGHT pieces before it stores the first of them. */
    template <bool TRANSPOSED>
    static __device__ inline void load(Tile tile, const Attention &t, const Steps &x, const Place &p, int64_t begin,
                                       int64_t first) {
        for (int round = 0; round < FOURS; round += IN_FLIGHT) {
            Piece<4> piece[IN_FLIGHT];
            int step[IN_FLIGHT], d[IN_FLIGHT];
            UNROLLED(IN_FLIGHT)
            for (int n = 0; n < IN_FLIGHT; n++) {
                const int c = (round + n) * ATTENTION_THREADS + (int)threadIdx.x;
                step[n] = TRANSPOSED ? c % 16 + c / 256 * 16 : c / 16;
                d[n] = (TRANSPOSED ? c / 16 % 16 : c % 16) * 4;
                piece[n] = four_load(t, x, p, begin + step[n], first + d[n]);
            }
            UNROLLED(IN_FLIGHT)
            for (int n = 0; n < IN_FLIGHT; n++) {
                float v[4];
                piece_unpack(x.at.type, piece[n], v);
                if (!TRANSPOSED) tile[step[n]][d[n] / 4] = make_float4(v[0], v[1], v[2], v[3]);
                else for (int k = 0; k < 4; k++) ((float *)tile[d[n] + k])[step[n]] = v[k];
            }
        }
    }

    template <int N>
    static __device__ inline void rows(Tiles<N> &, const Attention &, const Place &, const Steps &, const Steps &, int64_t) {}
    template <int N>
    static __device__ inline void columns(Tiles<N> &, const Attention &, const Place &, const Steps &, const Steps &, int64_t) {}

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

    template <int NUMBER, int N>
    static __device__ inline void products(float (*s)[COLUMNS], Tiles<N> &tiles, const Attention &t, const Place &p, const Steps &x,
                                           int64_t first_row, const Steps &y, int64_t first_column) {
        for (int64_t d = 0; d < t.width; d += TILE) {
            __syncthreads(); /* the tiles before are done with */
            load<true>(tiles.a, t, x, p, first_row, d);
            load<true>(tiles.b, t, y, p, first_column, d);
            __syncthreads();
            multiply(s, tiles.a, tiles.b, (int)min_i64(t.width - d, TILE));
        }
    }

    template <int NUMBER, int N>
    static __device__ inline void gather(float (*acc)[COLUMNS], Tiles<N> &tiles, const float (*factors)[COLUMNS],
                                         const Attention &t, const Place &p, const Steps &y, int64_t begin, int64_t first) {
        __syncthreads();
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < ROWS; i += 4)
                tiles.a[column(j)][row(i) / 4] =
                    make_float4(factors[i][j], factors[i + 1][j], factors[i + 2][j], factors[i + 3][j]);
        load<false>(tiles.b, t, y, p, begin, first);
        __syncthreads();
        multiply(acc, tiles.a, tiles.b, TILE);
    }

    template <int N>
    static __device__ inline void scatter(Tiles<N> &, const Attention &t, const Place &p, const Steps &x, int64_t first,
                                          const float (*acc)[COLUMNS]) {
        const int64_t room = t.width - first - column(0);
        UNROLLED(ROWS)
        for (int i = 0; i < ROWS; i++) {
            const int64_t step = p.begin + row(i), at = head_at(t, x, p, step) + first + column(0);
            if (step >= x.count) continue;
            if (room > 0 && x.whole) lanes_store<4>(x.at.type, x.at.data, at, acc[i]);
            else for (int j = 0; j < COLUMNS && j < room; j++) dtype_store(x.at.type, x.at.data, (size_t)(at + j), acc[i][j]);
        }
    }
};

/* A warp has 16 rows; eight fragments of 16 by 8 (cores.h) are its columns. Tiles hold T as it lies, two in a word. Where heads
 * are no wider than a tile, each tile is loaded once: rows by `rows`, columns by `columns`, which gather reads, too. Wider heads
 * are multiplied a tile of features at a time, in the first of the tiles. */
template <DType T> struct Cores {
    enum { ROWS = 2, COLUMNS = 16, NEIGHBOURS = 4, PAIRS = TILE / 16, PIECE = 8, SAME = 2, GROUP = 4 };
    typedef uint32_t (*Tile)[WORDS];
    template <int N> struct Tiles { alignas(16) uint32_t row[N][TILE][WORDS], column[2][TILE][WORDS]; };

    static __device__ inline int lane() { return (int)threadIdx.x % WARP; }
    static __device__ inline int first_row() { return (int)threadIdx.x / WARP * 16; }
    static __device__ inline int row(int i) { return first_row() + lane() / 4 + 8 * i; }
    static __device__ inline int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }
    static __device__ inline bool is_narrow(const Attention &t) { return t.width <= TILE; }

    static __device__ inline Piece<8> eight_load(const Attention &t, const Steps &x, const Place &p, int64_t step, int64_t d) {
        Piece<8> v = {};
        if (step < x.count && d < t.width) v = piece_load<8>(T, x.at.data, head_at(t, x, p, step) + d);
        return v;
    }
    static __device__ inline void part(const Attention &t, const Steps &x, const Place &p, int64_t step, int64_t d, float *v) {
        piece_unpack(T, eight_load(t, x, p, step, d), v);
    }

    /* A block of four draws is for keys that four lanes have, each of which needs one of them for each of four queries. So each
     * lane draws for one query, and then they exchange: a matrix of 4 by 4, whose rows are lanes, is transposed. */
    static __device__ inline void kept_keys(const Attention &t, const Place &p, int64_t query, int j, float (*keep)[GROUP]) {
        const int own = lane() / 4 % 4;
        UNROLLED(ROWS)
        for (int i = 0; i < ROWS; i++) {
            kept<4>(t, p, query + column(j + own), p.begin + row(i) - own, keep[i]);
            if (!t.calls) continue;
            UNROLLED(2)
            for (int bit = 1; bit < 4; bit *= 2) {
                UNROLLED(2)
                for (int n = 0; n < 2; n++) {
                    const int low = bit == 1 ? 2 * n : n, high = low + bit;
                    const float sent = own & bit ? keep[i][low] : keep[i][high];
                    const float came = __shfl_xor_sync(0xffffffffu, sent, 4 * bit);
                    if (own & bit) keep[i][low] = came;
                    else keep[i][high] = came;
                }
            }
        }
    }

    /* A thread's share of a tile: TILE features from `first` on of TILE steps from `begin` on */
    typedef struct Share { Piece<8> piece[EIGHTS]; } Share;
    static __device__ inline int share(int n) { return n * ATTENTION_THREADS + (int)threadIdx.x; }
    static __device__ inline void fetch(Share &v, const Attention &t, const Steps &x, const Place &p, int64_t begin,
                                        int64_t first) {
        UNROLLED(EIGHTS)
        for (int n = 0; n < EIGHTS; n++) v.piece[n] = eight_load(t, x, p, begin + share(n) / 8, first + share(n) % 8 * 8);
    }
    static __device__ inline void put(Tile tile, const Share &v) {
        UNROLLED(EIGHTS)
        for (int n = 0; n < EIGHTS; n++) words_store((uint4 *)&tile[share(n) / 8][share(n) % 8 * 4], v.piece[n].word);
    }

    /* Both are loaded before the first is stored, and before the block is done with the tiles before. */
    static __device__ inline void load(Tile one, Tile two, const Attention &t, const Place &p, const Steps &x, int64_t x_begin,
                                       const Steps &y, int64_t y_begin, int64_t first) {
        Share a, b;
        fetch(a, t, x, p, x_begin, first);
        fetch(b, t, y, p, y_begin, first);
        __syncthreads();
        put(one, a);
        put(two, b);
        __syncthreads();
    }

    static __device__ inline void load(Tile one, const Attention &t, const Place &p, const Steps &x, int64_t begin, int64_t first) {
        Share a;
        fetch(a, t, x, p, begin, first);
        __syncthreads();
        put(one, a);
        __syncthreads();
    }

    template <int N>
    static __device__ inline void rows(Tiles<N> &tiles, const Attention &t, const Place &p, const Steps &x0, const Steps &x1,
                                       int64_t begin) {
        if (!is_narrow(t)) return;
        if (N == 1) load(tiles.row[0], t, p, x0, begin, 0);
        else load(tiles.row[0], tiles.row[N - 1], t, p, x0, begin, x1, begin, 0);
    }
    template <int N>
    static __device__ inline void columns(Tiles<N> &tiles, const Attention &t, const Place &p, const Steps &y0, const Steps &y1,
                                          int64_t begin) {
        if (is_narrow(t)) load(tiles.column[0], tiles.column[1], t, p, y0, begin, y1, begin, 0);
    }

    /* s += a b^T over `words` words of the rows of a and b */
    static __device__ inline void multiply(float (*s)[COLUMNS], Tile a, Tile b, int words) {
        for (int word = 0; word < words; word += 8) {
            uint32_t of_a[4];
            matrices_load<false>(of_a, a[first_row() + lane() % 16] + word + lane() / 16 * 4);
            UNROLLED(PAIRS)
            for (int n = 0; n < PAIRS; n++) {
                uint32_t of_b[4];
                matrices_load<false>(of_b, b[n * 16 + lane() / 16 * 8 + lane() % 8] + word + lane() / 8 % 2 * 4);
                mma<T>(s[0] + 4 * n, s[1] + 4 * n, of_a, of_b);
                mma<T>(s[0] + 4 * n + 2, s[1] + 4 * n + 2, of_a, of_b + 2);
            }
        }
    }

    template <int NUMBER, int N>
    static __device__ inline void products(float (*s)[COLUMNS], Tiles<N> &tiles, const Attention &t, const Place &p, const Steps &x,
                                           int64_t x_begin, const Steps &y, int64_t y_begin) {
        if (is_narrow(t)) multiply(s, tiles.row[NUMBER], tiles.column[NUMBER], (int)t.width / 2);
        else for (int64_t d = 0; d < t.width; d += TILE) {
            load(tiles.row[0], tiles.column[0], t, p, x, x_begin, y, y_begin, d);
            multiply(s, tiles.row[0], tiles.column[0], (int)min_i64(t.width - d, TILE) / 2);
        }
    }

    static __device__ inline uint32_t pair(const float *x) { return piece_pack<2>(T, x).word[0]; }

    /* The registers of a product's result are those of the next product's factor: fragments 2 k and 2 k + 1 are 16 of
     * its columns. */
    template <int NUMBER, int N>
    static __device__ inline void gather(float (*acc)[COLUMNS], Tiles<N> &tiles, const float (*factors)[COLUMNS],
                                         const Attention &t, const Place &p, const Steps &y, int64_t begin, int64_t first) {
        Tile tile = tiles.column[is_narrow(t) ? NUMBER : 0];
        if (!is_narrow(t)) load(tile, t, p, y, begin, first);
        UNROLLED(TILE / 16)
        for (int k = 0; k < TILE / 16; k++) {
            const uint32_t a[4] = {pair(factors[0] + 4 * k), pair(factors[1] + 4 * k), pair(factors[0] + 4 * k + 2),
                                   pair(factors[1] + 4 * k + 2)};
            UNROLLED(PAIRS)
            for (int n = 0; n < PAIRS; n++) {
                uint32_t b[4];
                matrices_load<true>(b, tile[k * 16 + lane() % 16] + n * 8 + lane() / 16 * 4);
                mma<T>(acc[0] + 4 * n, acc[1] + 4 * n, a, b);
                mma<T>(acc[0] + 4 * n + 2, acc[1] + 4 * n + 2, a, b + 2);
            }
        }
    }

    /* By way of the warp's own rows of the first tile, which no other warp reads: so rows are stored in whole words. */
    template <int N>
    static __device__ inline void scatter(Tiles<N> &tiles, const Attention &t, const Place &p, const Steps &x, int64_t first,
                                          const float (*acc)[COLUMNS]) {
        Tile tile = tiles.row[0];
        __syncwarp();
        UNROLLED(ROWS)
        for (int i = 0; i < ROWS; i++) {
            UNROLLED(COLUMNS / 2)
            for (int j = 0; j < COLUMNS; j += 2) tile[row(i)][column(j) / 2] = pair(acc[i] + j);
        }
        __syncwarp();
        UNROLLED(EIGHTS)
        for (int n = 0; n < EIGHTS; n++) {
            const int at = n * WARP + lane(), d = at % 8 * 8;
            const int64_t step = p.begin + first_row() + at / 8;
            Piece<8> v;
            words_load((const uint4 *)&tile[first_row() + at / 8][d / 2], v.word);
            if (step < x.count && first + d < t.width) piece_store<8>(T, x.at.data, head_at(t, x, p, step) + first + d, v);
        }
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

#endif
