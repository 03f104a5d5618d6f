/* attention.cu: y = dropout(softmax(q k^T / sqrt(D))) v for each sample and head, and its gradient. A block has TILE
 * rows of a head and walks along the other side by TILE at a time: scores are made of two tiles in shared memory, each
 * thread has ROWS by COLUMNS of them in registers, and what becomes of them meets a third tile at once, so that the
 * matrix of scores exists nowhere and nothing is added up by two blocks. The gradient has one kernel in which rows are
 * queries and one in which they are keys; both compute the scores again. Sums are in fp32. */
#include "attention.h"
#include "elements.h"

/* A block's threads are ACROSS by TILE / ROWS. QUADS: fours of a tile's row, and one more, so that neighbouring rows
 * lie in different banks. */
enum { TILE = 64, ROWS = 8, COLUMNS = 4, ACROSS = TILE / COLUMNS, QUADS = TILE / 4 + 1 };
enum { ATTENTION_THREADS = ACROSS * (TILE / ROWS), PIECES = TILE * TILE / 4 / ATTENTION_THREADS, IN_FLIGHT = 4 };

/* Steps of samples: sample n's step s begins at first + n of_sample + s of_step. whole: four features of a head lie in
 * one word */
typedef struct Steps {
    Elements at;
    int64_t count, first, of_sample, of_step;
    bool whole;
} Steps;

typedef struct Attention {
    AttentionAttr attr;
    Steps q, k, v, y, dq, dk, dv, dy;
    float *lse, *inner;     /* (N, heads, T); inner: <dy, y> of each row */
    const uint32_t *calls;  /* NULL: no dropout */
    int64_t samples, queries, keys, width; /* N, T, S, D */
    uint64_t seed;
    float scale;
} Attention;

/* v is (N, T, F) or (T, N, F), of which a part begins at `feature`; heads are `width` features wide. */
static Steps steps_of(const View *v, bool batch_first, int64_t feature, int64_t width) {
    const int64_t near = v->shape.dim[2], far = v->shape.dim[1] * near;
    Steps s = {elements_of(v), v->shape.dim[batch_first], feature, batch_first ? far : near, batch_first ? near : far,
               false};
    s.whole = lanes_fit<4>(v->data, v->dtype, near) && feature % 4 == 0 && width % 4 == 0;
    return s;
}

static Steps part_of(const View *qkv, int part, const Attention &t) {
    const AttentionPart p = attention_part(qkv, part, t.width * t.attr.heads);
    return steps_of(&qkv[p.operand], t.attr.batch_first, p.feature, t.width);
}

static Attention attention_of(const KArgs *a, const View *qkv, const View *y, const View *lse, const View *calls) {
    Attention t = {};
    t.attr = a->attr->attention;
    const int time = t.attr.batch_first ? 1 : 0;
    t.width = y->shape.dim[2] / t.attr.heads;
    t.q = part_of(qkv, 0, t);
    t.k = part_of(qkv, 1, t);
    t.v = part_of(qkv, 2, t);
    t.y = steps_of(y, time, 0, t.width);
    t.lse = (float *)lse->data;
    t.calls = (const uint32_t *)calls->data;
    t.samples = y->shape.dim[1 - time];
    t.queries = t.q.count;
    t.keys = t.k.count;
    t.seed = a->seed;
    t.scale = 1.0f / sqrtf((float)t.width);
    return t;
}

/* ---- where a thread is */

/* The block's sample and head, and which of its tiles of rows: late ones come first, or last. */
typedef struct Place { int64_t head, sample, of_sample, begin; } Place;

static __device__ inline Place place_here(const Attention &t, int64_t rows, bool late_first) {
    const int64_t heads = t.samples * t.attr.heads, tiles = (rows + TILE - 1) / TILE, tile = blockIdx.x / heads;
    Place p;
    p.head = blockIdx.x % heads;
    p.sample = p.head / t.attr.heads;
    p.of_sample = p.head % t.attr.heads;
    p.begin = (late_first ? tiles - 1 - tile : tile) * TILE;
    return p;
}

/* The thread's first row and column of a tile */
static __device__ inline int my_row() { return (int)threadIdx.x / ACROSS * ROWS; }
static __device__ inline int my_column() { return (int)threadIdx.x % ACROSS * COLUMNS; }

/* Over the threads that have a row: neighbouring lanes */
static __device__ inline float row_sum(float x) {
    for (int bit = ACROSS / 2; bit; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
    return x;
}
static __device__ inline float row_max(float x) {
    for (int bit = ACROSS / 2; bit; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, bit));
    return x;
}

/* The number of a head's query among all */
static __device__ inline int64_t query_index(const Attention &t, const Place &p, int64_t s) {
    return p.head * t.queries + s;
}

/* Keys that query s sees. */
static __device__ inline int64_t seen(const Attention &t, int64_t s) {
    return t.attr.causal && s < t.keys ? s + 1 : t.keys;
}

/* What dropout multiplies the probabilities of query s for keys u, ... u + 3 by; u is a multiple of four, rows begin at
 * multiples of four draws. */
static __device__ inline void kept(const Attention &t, const Place &p, int64_t s, int64_t u, float *keep) {
    if (!t.calls) {
        for (int k = 0; k < 4; k++) keep[k] = 1.0f;
        return;
    }
    const uint64_t first = dropout_row(query_index(t, p, s), t.keys) + (uint64_t)u;
    const Philox r = philox(t.seed, RNG_DROPOUT, t.attr.id, *t.calls, first / 4);
    for (int k = 0; k < 4; k++) keep[k] = dropout_keep(t.attr.p, r.x[k]);
}

/* ---- tiles */

/* Features d, ... d + 3 of a step as they lie; zero where there is none. */
static __device__ inline Piece<4> four_load(const Attention &t, const Steps &x, const Place &p, int64_t step,
                                            int64_t d) {
    const int64_t at = x.first + p.sample * x.of_sample + step * x.of_step + p.of_sample * t.width + d;
    Piece<4> v = {};
    if (step >= x.count || d >= t.width) return v;
    if (x.whole) return piece_load<4>(x.at.type, x.at.data, at);
    UNROLLED(4)
    for (int k = 0; k < 4; k++) {
        const uint32_t bits = d + k < t.width ? piece_load<1>(x.at.type, x.at.data, at + k).word[0] : 0;
        if (x.at.type == DT_F32) v.word[k] = bits;
        else v.word[k / 2] |= bits << k % 2 * 16;
    }
    return v;
}

static __device__ inline void four_store(const Attention &t, const Steps &x, const Place &p, int64_t step, int64_t d,
                                         const float *v) {
    const int64_t at = x.first + p.sample * x.of_sample + step * x.of_step + p.of_sample * t.width + d;
    if (step >= x.count || d >= t.width) return;
    if (x.whole) lanes_store<4>(x.at.type, x.at.data, at, v);
    else for (int k = 0; k < 4 && d + k < t.width; k++) dtype_store(x.at.type, x.at.data, (size_t)(at + k), v[k]);
}

/* TILE features from `first` on of TILE steps from `begin` on: tile[step][feature], or TURNED: tile[feature][step],
 * where lanes are 16 steps by 2 fours, so that neither their loads nor their stores get in each other's way. Of a
 * thread's share IN_FLIGHT pieces are under way before the first of them is stored. */
template <bool TURNED>
static __device__ inline void tile_load(float4 (*tile)[QUADS], const Attention &t, const Steps &x, const Place &p,
                                        int64_t begin, int64_t first) {
    for (int round = 0; round < PIECES; round += IN_FLIGHT) {
        Piece<4> piece[IN_FLIGHT];
        int step[IN_FLIGHT], d[IN_FLIGHT];
        UNROLLED(IN_FLIGHT)
        for (int n = 0; n < IN_FLIGHT; n++) {
            const int c = (round + n) * ATTENTION_THREADS + (int)threadIdx.x;
            step[n] = TURNED ? c % 16 + c / 256 * 16 : c / 16;
            d[n] = (TURNED ? c / 16 % 16 : c % 16) * 4;
            piece[n] = four_load(t, x, p, begin + step[n], first + d[n]);
        }
        UNROLLED(IN_FLIGHT)
        for (int n = 0; n < IN_FLIGHT; n++) {
            float v[4];
            piece_unpack(x.at.type, piece[n], v);
            if (!TURNED) tile[step[n]][d[n] / 4] = make_float4(v[0], v[1], v[2], v[3]);
            else for (int k = 0; k < 4; k++) ((float *)tile[d[n] + k])[step[n]] = v[k];
        }
    }
}

/* acc[i][j] += sum over k < n of a[k][row + i] b[k][column + j] */
static __device__ inline void multiply(float (*acc)[COLUMNS], const float4 (*a)[QUADS], const float4 (*b)[QUADS],
                                       int n) {
    const int row = my_row() / 4, column = my_column() / 4;
    UNROLLED(4)
    for (int k = 0; k < n; k++) {
        const float4 low = a[k][row], high = a[k][row + 1], y = b[k][column];
        const float x[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        for (int i = 0; i < ROWS; i++) {
            acc[i][0] = fmaf(x[i], y.x, acc[i][0]);
            acc[i][1] = fmaf(x[i], y.y, acc[i][1]);
            acc[i][2] = fmaf(x[i], y.z, acc[i][2]);
            acc[i][3] = fmaf(x[i], y.w, acc[i][3]);
        }
    }
}

typedef struct Tiles { float4 a[TILE][QUADS], b[TILE][QUADS]; } Tiles;

/* s[i][j] = <step row + i of x, step column + j of y> */
static __device__ inline void products(float (*s)[COLUMNS], Tiles &tiles, const Attention &t, const Place &p,
                                       const Steps &x, int64_t row, const Steps &y, int64_t column) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) s[i][j] = 0.0f;
    for (int64_t d = 0; d < t.width; d += TILE) {
        __syncthreads(); /* the tiles before are done with */
        tile_load<true>(tiles.a, t, x, p, row, d);
        tile_load<true>(tiles.b, t, y, p, column, d);
        __syncthreads();
        multiply(s, tiles.a, tiles.b, t.width - d < TILE ? (int)(t.width - d) : (int)TILE);
    }
}

/* acc[i][j] += sum over the tile's columns of their factors in row i times feature first + column + j of x's step */
static __device__ inline void gather(float (*acc)[COLUMNS], Tiles &tiles, const float (*factors)[COLUMNS],
                                     const Attention &t, const Place &p, const Steps &x, int64_t begin, int64_t first) {
    __syncthreads();
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < ROWS; i += 4)
            tiles.a[my_column() + j][(my_row() + i) / 4] =
                make_float4(factors[i][j], factors[i + 1][j], factors[i + 2][j], factors[i + 3][j]);
    tile_load<false>(tiles.b, t, x, p, begin, first);
    __syncthreads();
    multiply(acc, tiles.a, tiles.b, TILE);
}

static __device__ inline void scatter(const Attention &t, const Place &p, const Steps &x, int64_t first,
                                      const float (*acc)[COLUMNS]) {
    for (int i = 0; i < ROWS; i++) four_store(t, x, p, p.begin + my_row() + i, first + my_column(), acc[i]);
}

/* ---- forward */

/* What a row has seen: its largest score, and the sum of exp(score - top) */
typedef struct Sum { float top, sum; } Sum;

/* Scores s of query `step` for four keys from u on become probabilities, but for the division by the sum; what was
 * added up before is to shrink by the factor that it returns. */
static __device__ inline float soften(const Attention &t, const Place &p, int64_t step, int64_t u, Sum *row, float *s) {
    const int64_t end = seen(t, step);
    const float before = row->top;
    float most = -INFINITY, sum = 0.0f, keep[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        s[j] = u + j < end ? t.scale * s[j] : -INFINITY;
        most = fmaxf(most, s[j]);
    }
    row->top = fmaxf(before, row_max(most));
    for (int j = 0; j < COLUMNS; j++) sum += s[j] = expf(s[j] - row->top);
    const float shrink = expf(before - row->top);
    row->sum = fmaf(row->sum, shrink, row_sum(sum));
    kept(t, p, step, u, keep);
    for (int j = 0; j < COLUMNS; j++) s[j] *= keep[j];
    return shrink;
}

static __global__ void __launch_bounds__(ATTENTION_THREADS, 3) forward_kernel(const __grid_constant__ Attention t) {
    __shared__ Tiles tiles;
    const Place p = place_here(t, t.queries, true);
    const int64_t mine = p.begin + my_row(), end = seen(t, min_i64(p.begin + TILE, t.queries) - 1);
    for (int64_t first = 0; first < t.width; first += TILE) {
        float acc[ROWS][COLUMNS] = {}, s[ROWS][COLUMNS];
        Sum rows[ROWS];
        for (int i = 0; i < ROWS; i++) rows[i].top = -INFINITY, rows[i].sum = 0.0f;
        for (int64_t u = 0; u < end; u += TILE) {
            products(s, tiles, t, p, t.q, p.begin, t.k, u);
            UNROLLED(ROWS) /* so that arrays are registers */
            for (int i = 0; i < ROWS; i++) {
                const float shrink = soften(t, p, mine + i, u + my_column(), &rows[i], s[i]);
                for (int j = 0; j < COLUMNS; j++) acc[i][j] *= shrink;
            }
            gather(acc, tiles, s, t, p, t.v, u, first);
        }
        UNROLLED(ROWS)
        for (int i = 0; i < ROWS; i++) {
            for (int j = 0; j < COLUMNS; j++) acc[i][j] /= rows[i].sum;
            if (t.lse && my_column() == 0 && mine + i < t.queries)
                t.lse[query_index(t, p, mine + i)] = rows[i].top + logf(rows[i].sum);
        }
        scatter(t, p, t.y, first, acc);
    }
}

/* ---- gradient */

/* Of a query that there is: what its scores' gradients need of it. */
typedef struct Query { float lse, inner; } Query;

/* From the score of query s and key u and the gradient dp of its probability: *ds is the gradient of the score; returns
 * the probability that dropout left. */
static __device__ inline float slope(const Attention &t, const Query &q, int64_t s, int64_t u, float score, float dp,
                                     float keep, float *ds) {
    const float prob = s < t.queries && u < seen(t, s) ? expf(t.scale * score - q.lse) : 0.0f;
    *ds = t.scale * prob * (keep * dp - q.inner);
    return prob * keep;
}

static __device__ inline Query query_of(const Attention &t, const Place &p, int64_t s) {
    Query q = {0.0f, 0.0f};
    if (s < t.queries) q.lse = t.lse[query_index(t, p, s)], q.inner = t.inner[query_index(t, p, s)];
    return q;
}

/* A warp per query of all heads */
static __global__ void __launch_bounds__(ATTENTION_THREADS) inner_kernel(const __grid_constant__ Attention t) {
    const int64_t i = (int64_t)blockIdx.x * (ATTENTION_THREADS / WARP) + threadIdx.x / WARP, head = i / t.queries;
    const int64_t sample = head / t.attr.heads, feature = head % t.attr.heads * t.width, step = i % t.queries;
    const int64_t dy = t.dy.first + sample * t.dy.of_sample + step * t.dy.of_step + feature;
    const int64_t y = t.y.first + sample * t.y.of_sample + step * t.y.of_step + feature;
    float sum = 0.0f;
    if (sample >= t.samples) return;
    for (int64_t d = threadIdx.x % WARP; d < t.width; d += WARP)
        sum = fmaf(element_at(t.dy.at, dy + d), element_at(t.y.at, y + d), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) t.inner[i] = sum;
}

static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) query_kernel(const __grid_constant__ Attention t) {
    __shared__ Tiles tiles;
    const Place p = place_here(t, t.queries, true);
    const int64_t mine = p.begin + my_row(), end = seen(t, min_i64(p.begin + TILE, t.queries) - 1);
    for (int64_t first = 0; first < t.width; first += TILE) {
        float acc[ROWS][COLUMNS] = {}, s[ROWS][COLUMNS], dp[ROWS][COLUMNS], keep[COLUMNS];
        for (int64_t u = 0; u < end; u += TILE) {
            products(s, tiles, t, p, t.q, p.begin, t.k, u);
            products(dp, tiles, t, p, t.dy, p.begin, t.v, u);
            for (int i = 0; i < ROWS; i++) {
                const Query q = query_of(t, p, mine + i);
                kept(t, p, mine + i, u + my_column(), keep);
                for (int j = 0; j < COLUMNS; j++)
                    slope(t, q, mine + i, u + my_column() + j, s[i][j], dp[i][j], keep[j], &s[i][j]);
            }
            gather(acc, tiles, s, t, p, t.k, u, first);
        }
        scatter(t, p, t.dq, first, acc);
    }
}

static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) key_kernel(const __grid_constant__ Attention t) {
    __shared__ Tiles tiles;
    const Place p = place_here(t, t.keys, false);
    const int64_t mine = p.begin + my_row();
    for (int64_t first = 0; first < t.width; first += TILE) {
        float dk[ROWS][COLUMNS] = {}, dv[ROWS][COLUMNS] = {}, s[ROWS][COLUMNS], dp[ROWS][COLUMNS], keep[ROWS];
        for (int64_t begin = t.attr.causal ? p.begin : 0; begin < t.queries; begin += TILE) {
            products(s, tiles, t, p, t.k, p.begin, t.q, begin);
            products(dp, tiles, t, p, t.v, p.begin, t.dy, begin);
            UNROLLED(COLUMNS)
            for (int j = 0; j < COLUMNS; j++) {
                const int64_t step = begin + my_column() + j;
                const Query q = query_of(t, p, step);
                for (int i = 0; i < ROWS; i += 4) kept(t, p, step, mine + i, keep + i);
                UNROLLED(ROWS)
                for (int i = 0; i < ROWS; i++)
                    dp[i][j] = slope(t, q, step, mine + i, s[i][j], dp[i][j], keep[i], &s[i][j]);
            }
            gather(dv, tiles, dp, t, p, t.dy, begin, first);
            gather(dk, tiles, s, t, p, t.q, begin, first);
        }
        scatter(t, p, t.dk, first, dk);
        scatter(t, p, t.dv, first, dv);
    }
}

/* ---- ops */

static int run(const KArgs *a, Err *e, void (*kernel)(Attention), const Attention &t, int64_t rows, int64_t of_block) {
    const int64_t blocks = t.samples * t.attr.heads * ((rows + of_block - 1) / of_block);
    if (blocks <= INT32_MAX) return launch_op(a, e, kernel, (unsigned)blocks, ATTENTION_THREADS, t);
    return err_set(e, ERR_UNSUPPORTED, "%s: expected at most 2^31 blocks, found %lld", op_info(a->kind)->name,
                   (long long)blocks);
}

int k_cuda_attention_prepare(const KArgs *, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cuda_attention(const KArgs *a, Err *e) {
    const Attention t = attention_of(a, &a->in[0], &a->out[0], &a->out[1], &a->in[3]);
    return run(a, e, forward_kernel, t, t.queries, TILE);
}

/* lse has a number for each row, as `inner` has. */
int k_cuda_attention_dx_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = (size_t)a->in[5].count * sizeof(float);
    return OK;
}

int k_cuda_attention_dx(const KArgs *a, Err *e) {
    const size_t bytes = (size_t)a->in[5].count * sizeof(float);
    if (a->workspace_bytes < bytes)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", bytes, a->workspace_bytes);
    Attention t = attention_of(a, &a->in[1], &a->in[4], &a->in[5], &a->in[6]);
    t.dy = steps_of(&a->in[0], t.attr.batch_first, 0, t.width);
    t.dq = part_of(a->out, 0, t);
    t.dk = part_of(a->out, 1, t);
    t.dv = part_of(a->out, 2, t);
    t.inner = (float *)a->workspace;
    int code = run(a, e, inner_kernel, t, t.queries, ATTENTION_THREADS / WARP);
    if (!code) code = run(a, e, query_kernel, t, t.queries, TILE);
    return code ? code : run(a, e, key_kernel, t, t.keys, TILE);
}
