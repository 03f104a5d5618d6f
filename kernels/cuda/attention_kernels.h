/* attention_kernels.h: attention's kernels that walk along tiles: see attention.cu. L: how a tile's products are made (attention_tiles.h).
 * Each has a .cu file of its own, so that a build takes them at the same time: nvcc takes as long for one as for ten other files. */
#ifndef MT_ATTENTION_KERNELS_H
#define MT_ATTENTION_KERNELS_H

#include "attention_tiles.h"

typedef void AttentionKernel(Attention);
typedef struct AttentionKernels { AttentionKernel *forward, *of_queries, *of_keys, *of_bias; } AttentionKernels;

extern const AttentionKernels attention_plain, attention_bf16, attention_f16;

/* ---- forward */

/* Over the columns so far, a row's largest score, and the sum of exp(score - top) */
typedef struct Sum { float top, sum; } Sum;

/* Turns the scores s of query `step` for a tile's keys, from u on, into probabilities that are not yet divided by their
 * sum. Returns the factor by which the sums so far must shrink. */
template <typename L>
static __device__ inline float soften(const Attention &t, const Place &p, int64_t step, int64_t u, Sum *row, float *s) {
    const float before = row->top;
    const int64_t begin = step < t.queries ? begins(t, p, step) : t.keys, end = seen(t, step);
    float most = -INFINITY, sum = 0.0f, slope;
    UNROLLED(L::COLUMNS)
    for (int j = 0; j < L::COLUMNS; j++) {
        const int64_t key = u + L::column(j);
        s[j] = key >= begin && key < end ? score_of(t, p, step, key, s[j], &slope) : -INFINITY;
        most = fmaxf(most, s[j]);
    }
    row->top = fmaxf(before, row_max<L>(most));
    const float top = row->top == -INFINITY ? 0.0f : row->top; /* none was seen so far */
    UNROLLED(L::COLUMNS / L::SAME)
    for (int j = 0; j < L::COLUMNS; j += L::SAME) {
        float keep[L::SAME];
        kept<L::SAME>(t, p, step, u + L::column(j), keep);
        UNROLLED(L::SAME)
        for (int k = 0; k < L::SAME; k++) {
            const float prob = expf(s[j + k] - top);
            sum += prob;
            s[j + k] = prob * keep[k];
        }
    }
    const float shrink = expf(before - top);
    row->sum = fmaf(row->sum, shrink, row_sum<L>(sum));
    return shrink;
}

template <typename L>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 3) forward_kernel(const __grid_constant__ Attention t) {
    __shared__ typename L::template Tiles<1> tiles;
    const Place p = place_here(t, 1, t.queries, true);
    const int64_t end = seen(t, min_i64(p.begin + TILE, t.queries) - 1);
    L::rows(tiles, t, p, t.q, t.q, p.begin);
    for (int64_t first = 0; first < t.width; first += TILE) {
        float acc[L::ROWS][L::COLUMNS] = {};
        Sum rows[L::ROWS];
        for (int i = 0; i < L::ROWS; i++) rows[i].top = -INFINITY, rows[i].sum = 0.0f;
        for (int64_t u = first_tile(t, p, p.begin); u < end; u += TILE) {
            float s[L::ROWS][L::COLUMNS] = {};
            L::columns(tiles, t, p, t.k, t.v, u);
            L::template products<0>(s, tiles, t, p, t.q, p.begin, t.k, u);
            UNROLLED(L::ROWS) /* so that arrays are registers */
            for (int i = 0; i < L::ROWS; i++) {
                const float shrink = soften<L>(t, p, p.begin + L::row(i), u, &rows[i], s[i]);
                for (int j = 0; j < L::COLUMNS; j++) acc[i][j] *= shrink;
            }
            L::template gather<1>(acc, tiles, s, t, p, t.v, u, first);
        }
        UNROLLED(L::ROWS)
        for (int i = 0; i < L::ROWS; i++) {
            const int64_t step = p.begin + L::row(i);
            for (int j = 0; j < L::COLUMNS; j++) acc[i][j] /= rows[i].sum;
            if (t.lse && L::column(0) == 0 && step < t.queries)
                t.lse[query_index(t, p, step)] = rows[i].top + logf(rows[i].sum);
        }
        L::scatter(tiles, t, p, t.y, first, acc);
    }
}

/* ---- gradient */

/* What the gradients of a query's scores need; first: the first key that it sees, none after the last query */
typedef struct Query { float lse, inner; int64_t first; } Query;

/* product: of query s and key u; dp: the gradient of its probability; keep: dropout's factor. *ds becomes the gradient
 * of the score, and that of the product with `by_product`; returns the probability after dropout. */
static __device__ inline float slope(const Attention &t, const Place &p, const Query &q, int64_t s, int64_t u,
                                     float product, float dp, float keep, float *ds, bool by_product = true) {
    *ds = 0.0f;
    if (u < q.first || u >= seen(t, s)) return 0.0f;
    float of_score;
    const float prob = expf(score_of(t, p, s, u, product, &of_score) - q.lse);
    *ds = (by_product ? of_score : 1.0f) * prob * (keep * dp - q.inner);
    return prob * keep;
}

/* inner: <dy, y> of the query */
static __device__ inline Query query_of(const Attention &t, const Place &p, int64_t s, float inner) {
    Query q = {0.0f, inner, t.keys};
    if (s >= t.queries) return q;
    q.lse = t.lse[query_index(t, p, s)];
    q.first = begins(t, p, s);
    return q;
}
static __device__ inline Query query_of(const Attention &t, const Place &p, int64_t s) {
    return query_of(t, p, s, s < t.queries ? t.inner[query_index(t, p, s)] : 0.0f);
}

/* The queries of the block's rows, to be read after the next barrier; `inner` of each is kept for the kernels that follow. */
template <typename L> static __device__ inline void queries_here(const Attention &t, const Place &p, Query *queries) {
    UNROLLED(L::ROWS)
    for (int i = 0; i < L::ROWS; i++) {
        const int64_t step = p.begin + L::row(i);
        float sum = 0.0f;
        for (int64_t d = (int)threadIdx.x % L::NEIGHBOURS * L::PIECE; d < t.width; d += L::NEIGHBOURS * L::PIECE) {
            float dy[L::PIECE], y[L::PIECE];
            L::part(t, t.dy, p, step, d, dy);
            L::part(t, t.y, p, step, d, y);
            for (int k = 0; k < L::PIECE; k++) sum = fmaf(dy[k], y[k], sum);
        }
        sum = row_sum<L>(sum);
        if (threadIdx.x % L::NEIGHBOURS) continue;
        if (step < t.queries) t.inner[query_index(t, p, step)] = sum;
        const Query q = query_of(t, p, step, sum);
        queries[L::row(i)] = q;
    }
}

template <typename L>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) query_kernel(const __grid_constant__ Attention t) {
    __shared__ typename L::template Tiles<2> tiles;
    __shared__ Query queries[TILE];
    const Place p = place_here(t, 1, t.queries, true);
    const int64_t end = seen(t, min_i64(p.begin + TILE, t.queries) - 1);
    queries_here<L>(t, p, queries);
    L::rows(tiles, t, p, t.q, t.dy, p.begin);
    for (int64_t first = 0; first < t.width; first += TILE) {
        float acc[L::ROWS][L::COLUMNS] = {};
        for (int64_t tile = first_tile(t, p, p.begin); tile < end; tile += TILE) {
            float s[L::ROWS][L::COLUMNS] = {}, dp[L::ROWS][L::COLUMNS] = {};
            L::columns(tiles, t, p, t.k, t.v, tile);
            L::template products<0>(s, tiles, t, p, t.q, p.begin, t.k, tile);
            L::template products<1>(dp, tiles, t, p, t.dy, p.begin, t.v, tile);
            UNROLLED(L::ROWS)
            for (int i = 0; i < L::ROWS; i++) {
                const int64_t step = p.begin + L::row(i);
                const Query q = queries[L::row(i)];
                UNROLLED(L::COLUMNS / L::SAME)
                for (int j = 0; j < L::COLUMNS; j += L::SAME) {
                    const int64_t u = tile + L::column(j);
                    float keep[L::SAME];
                    kept<L::SAME>(t, p, step, u, keep);
                    UNROLLED(L::SAME)
                    for (int k = 0; k < L::SAME; k++) slope(t, p, q, step, u + k, s[i][j + k], dp[i][j + k], keep[k], &s[i][j + k]);
                }
            }
            L::template gather<0>(acc, tiles, s, t, p, t.k, tile, first);
        }
        L::scatter(tiles, t, p, t.dq, first, acc);
    }
}

/* Queries of two tiles: those of one are read while the other's are written. */
template <typename L>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) key_kernel(const __grid_constant__ Attention t) {
    __shared__ typename L::template Tiles<2> tiles;
    __shared__ Query queries[2][TILE];
    const int group = group_of(t);
    const Place keys = place_here(t, group, t.keys, false);
    int turn = 0;
    L::rows(tiles, t, keys, t.k, t.v, keys.begin);
    for (int64_t first = 0; first < t.width; first += TILE) {
        float dk[L::ROWS][L::COLUMNS] = {}, dv[L::ROWS][L::COLUMNS] = {};
        Place p = keys;
        for (int head = 0; head < group; head++, p.head++, p.of_sample++)
            for (int64_t tile = t.attr.causal ? p.begin : 0; tile < t.queries; tile += TILE) {
                if (begins(t, p, tile) >= p.begin + TILE) break; /* nor does any query after it see these keys */
                float s[L::ROWS][L::COLUMNS] = {}, dp[L::ROWS][L::COLUMNS] = {};
                turn = !turn;
                if (threadIdx.x < TILE) {
                    const Query q = query_of(t, p, tile + threadIdx.x);
                    queries[turn][threadIdx.x] = q;
                }
                L::columns(tiles, t, p, t.q, t.dy, tile);
                L::template products<0>(s, tiles, t, p, t.k, p.begin, t.q, tile);
                L::template products<1>(dp, tiles, t, p, t.v, p.begin, t.dy, tile);
                UNROLLED(L::COLUMNS / L::GROUP)
                for (int j = 0; j < L::COLUMNS; j += L::GROUP) {
                    float keep[L::ROWS][L::GROUP];
                    L::kept_keys(t, p, tile, j, keep);
                    UNROLLED(L::GROUP)
                    for (int c = 0; c < L::GROUP; c++) {
                        const int64_t step = tile + L::column(j + c);
                        const Query q = queries[turn][L::column(j + c)];
                        UNROLLED(L::ROWS)
                        for (int i = 0; i < L::ROWS; i++)
                            dp[i][j + c] = slope(t, p, q, step, p.begin + L::row(i), s[i][j + c], dp[i][j + c], keep[i][c],
                                                 &s[i][j + c]);
                    }
                }
                L::template gather<1>(dv, tiles, dp, t, p, t.dy, tile, first);
                L::template gather<0>(dk, tiles, s, t, p, t.q, tile, first);
            }
        L::scatter(tiles, t, keys, t.dk, first, dk);
        L::scatter(tiles, t, keys, t.dv, first, dv);
    }
}

/* A block has one tile of dbias, and walks along the samples and heads of q whose gradients it is the sum of. */
template <typename L>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) bias_kernel(const __grid_constant__ Attention t) {
    __shared__ typename L::template Tiles<2> tiles;
    const int64_t *d = t.dbias.shape.dim, down = (t.queries + TILE - 1) / TILE, across = (t.keys + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across % down * TILE, column = blockIdx.x % across * TILE;
    const int64_t slice = blockIdx.x / (across * down), sample = slice / d[1], head = slice % d[1];
    const int64_t samples = d[0] > 1 ? 1 : t.samples, heads = d[1] > 1 ? 1 : t.attr.heads;
    float acc[L::ROWS][L::COLUMNS] = {};
    for (int64_t k = 0; k < samples * heads; k++) {
        Place p;
        p.sample = sample + k / heads;
        p.of_sample = head + k % heads;
        p.head = p.sample * t.attr.heads + p.of_sample;
        p.of_keys = p.of_sample / group_of(t);
        p.begin = row;
        float s[L::ROWS][L::COLUMNS] = {}, dp[L::ROWS][L::COLUMNS] = {};
        L::rows(tiles, t, p, t.q, t.dy, row);
        L::columns(tiles, t, p, t.k, t.v, column);
        L::template products<0>(s, tiles, t, p, t.q, row, t.k, column);
        L::template products<1>(dp, tiles, t, p, t.dy, row, t.v, column);
        UNROLLED(L::ROWS)
        for (int i = 0; i < L::ROWS; i++) {
            const int64_t step = row + L::row(i);
            const Query q = query_of(t, p, step);
            UNROLLED(L::COLUMNS / L::SAME)
            for (int j = 0; j < L::COLUMNS; j += L::SAME) {
                const int64_t u = column + L::column(j);
                float keep[L::SAME], ds;
                kept<L::SAME>(t, p, step, u, keep);
                UNROLLED(L::SAME)
                for (int n = 0; n < L::SAME; n++) {
                    slope(t, p, q, step, u + n, s[i][j + n], dp[i][j + n], keep[n], &ds, false);
                    acc[i][j + n] += ds;
                }
            }
        }
    }
    UNROLLED(L::ROWS)
    for (int i = 0; i < L::ROWS; i++) {
        UNROLLED(L::COLUMNS)
        for (int j = 0; j < L::COLUMNS; j++) {
            const int64_t step = row + L::row(i), u = column + L::column(j);
            if (step < t.queries && u < t.keys)
                lanes_store<1>(t.dbias.dtype, t.dbias.data, (slice * t.queries + step) * t.keys + u, &acc[i][j]);
        }
    }
}

#define ATTENTION_KERNELS(L) {forward_kernel<L>, query_kernel<L>, key_kernel<L>, bias_kernel<L>}

#endif
