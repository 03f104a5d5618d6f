/* pool.c: the largest element of each window, over channels-last images (means are in resample.c). A run of pixels is
 * done at a time, one position in the window after the other.
 *
 * Both directions gather: a backward pass writes every dx once, from the windows that hold it. So overlapping windows
 * need neither zeroing nor atomics, 16-bit gradients are summed in fp32, and the order of the sum is fixed. */
#include <string.h>

#include "parallel.h"
#include "program/window.h"

enum { PART = 512 }; /* channels at a time */

/* The bits of a where all of `where` are set, those of b where none is */
INLINE uint32_t chosen(uint32_t where, uint32_t a, uint32_t b) { return (a & where) | (b & ~where); }

/* Where x is larger than best, or a NaN, it becomes best, and `position` becomes at; at < 0: there is no position yet.
 * For m pixels of n channels; those of x are `step` elements apart. Chosen by bits: of conditions the compiler would make stores under
 * a mask, after which each load waits. */
HOT static void max_run(float *best, int32_t *at, const float *x, int32_t position, int64_t m, int64_t step,
                        int64_t n) {
    if (step == n) n *= m, m = 1;
    for (; m > 0; m--, best += n, at += n, x += step) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const uint32_t wins = 0u - (uint32_t)((x[i] > best[i]) | (x[i] != x[i])), none = 0u - (uint32_t)(at[i] < 0);
            best[i] = f32_from_bits(chosen(wins, f32_bits(x[i]), f32_bits(best[i])));
            at[i] = (int32_t)chosen(wins | none, (uint32_t)position, (uint32_t)at[i]);
        }
    }
}

/* picked = dy where the window's maximum was at this position, else 0. The sum has a loop of its own: one loop over a
 * few channels, with elements of two sizes, would not be vectorised. */
HOT static void pick_part(float *picked, const float *dy, const uint8_t *idx, int32_t position, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) picked[i] = idx[i] == position ? dy[i] : 0.0f;
}

/* sum += x, for m pixels of n channels; those of sum are `step` elements apart */
HOT static void add_run(float *sum, const float *x, int64_t m, int64_t step, int64_t n) {
    if (step == n) n *= m, m = 1;
    for (; m > 0; m--, sum += step, x += n) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    }
}

/* Where position k of window o lies along an axis */
static int64_t place_of(const PoolAttr *p, int axis, int64_t o, int64_t k) {
    return o * p->stride[axis] - p->pad[axis] + k * p->dilation[axis];
}

/* Windows from `begin` up to `end` whose position k lies in [from, to) */
static Span windows_at(const PoolAttr *p, int axis, int64_t k, int64_t from, int64_t to, int64_t begin, int64_t end) {
    int64_t stride = p->stride[axis], least = from - place_of(p, axis, 0, k), most = to - place_of(p, axis, 0, k);
    return (Span){max_i64(div_up(max_i64(least, 0), stride), begin),
                  min_i64(div_up(max_i64(most, 0), stride), end), 0};
}

/* Columns [first, first + m) of a row of output, n channels from c on: m n is at most BLOCK */
typedef struct Run { int64_t row, first, m, c, n; } Run;
typedef void RunFn(const KArgs *a, const Run *r);

static void maxpool_pixels(const KArgs *a, const Run *r) {
    const PoolAttr *p = &a->attr->pool;
    const View *x = &a->maxpool.x, *y = &a->maxpool.y;
    int64_t H = x->shape.dim[2], W = x->shape.dim[3], OH = y->shape.dim[2], count = r->m * r->n;
    int64_t target = pixel_at(y, r->row, r->first, r->c);
    float scratch[BLOCK], from[BLOCK], *best = block_target(y, target, scratch);
    int32_t at[BLOCK];
    uint8_t *idx = a->maxpool.idx.data;
    for (int64_t i = 0; i < count; i++) {
        best[i] = p->fused.act == ACT_RELU ? 0 : -INFINITY; /* with a ReLU nothing is below 0 */
        at[i] = -1;
    }
    for (int32_t k = 0; k < p->kernel[0] * p->kernel[1]; k++) {
        int64_t h = place_of(p, 0, r->row % OH, k / p->kernel[1]);
        Span s = windows_at(p, 1, k % p->kernel[1], 0, W, r->first, r->first + r->m);
        if (h < 0 || h >= H || s.lo >= s.hi) continue;
        int64_t to = (s.lo - r->first) * r->n, w = place_of(p, 1, s.lo, k % p->kernel[1]);
        const float *in = block_load(x, pixel_at(x, r->row / OH * H + h, w, r->c),
                                     ((s.hi - s.lo - 1) * p->stride[1] + 1) * r->n, from);
        max_run(best + to, at + to, in, k, s.hi - s.lo, p->stride[1] * r->n, r->n);
    }
    block_store(y, target, count, best);
    for (int64_t i = 0; idx && i < count; i++) idx[target + i] = (uint8_t)at[i];
}

static void maxpool_dx_pixels(const KArgs *a, const Run *r) {
    const PoolAttr *p = &a->attr->pool;
    const View *dy = &a->maxpool_dx.dy, *dx = &a->maxpool_dx.dx;
    int64_t OH = dy->shape.dim[2], OW = dy->shape.dim[3], H = dx->shape.dim[2], h = r->row % H;
    int64_t target = pixel_at(dx, r->row, r->first, r->c);
    float scratch[BLOCK], from[BLOCK], picked[BLOCK], *sum = block_target(dx, target, scratch);
    memset(sum, 0, (size_t)(r->m * r->n) * sizeof *sum);
    for (int32_t k = 0; k < p->kernel[0] * p->kernel[1]; k++) {
        Span down = windows_at(p, 0, k / p->kernel[1], h, h + 1, 0, OH);
        Span s = windows_at(p, 1, k % p->kernel[1], r->first, r->first + r->m, 0, OW);
        if (down.lo >= down.hi || s.lo >= s.hi) continue;
        int64_t at = pixel_at(dy, r->row / H * OH + down.lo, s.lo, r->c);
        int64_t to = (place_of(p, 1, s.lo, k % p->kernel[1]) - r->first) * r->n, count = (s.hi - s.lo) * r->n;
        pick_part(picked, block_load(dy, at, count, from), (const uint8_t *)a->maxpool_dx.idx.data + at, k, count);
        add_run(sum + to, picked, s.hi - s.lo, p->stride[1] * r->n, r->n);
    }
    block_store(dx, target, r->m * r->n, sum);
}

/* Rows [begin, end) of output in runs: all channels of as many pixels as fit, with the pixels that they are made of,
 * into a BLOCK; or some channels of one pixel. */
static void each_run(const KArgs *a, int64_t begin, int64_t end, RunFn *run) {
    int64_t W = a->out[0].shape.dim[3], C = a->out[0].shape.dim[1], n = min_i64(PART, C);
    int64_t most = n < C ? 1 : (BLOCK / n - 1) / a->attr->pool.stride[1] + 1;
    for (int64_t row = begin; row < end; row++)
        for (int64_t w = 0; w < W; w += most)
            for (int64_t c = 0; c < C; c += PART)
                run(a, &(Run){row, w, min_i64(most, W - w), c, min_i64(n, C - c)});
}

static void maxpool_rows(const KArgs *a, int64_t begin, int64_t end) { each_run(a, begin, end, maxpool_pixels); }
static void maxpool_dx_rows(const KArgs *a, int64_t begin, int64_t end) { each_run(a, begin, end, maxpool_dx_pixels); }

/* Pieces are the output's rows of pixels, counted over all samples. */
static int rows_run(const KArgs *a, RangeFn *piece, Err *e) {
    if (!a->in[0].channels_last || !a->out[0].channels_last || a->in[0].shape.rank != 4)
        return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)",
                       op_info(a->kind)->name);
    const PoolAttr *p = &a->attr->pool;
    (void)p;
    assert(p->stride[0] > 0 && p->stride[1] > 0 && p->kernel[0] > 0 && p->kernel[1] > 0 && p->pad[0] >= 0);
    assert(p->pad[1] >= 0 && p->dilation[0] > 0 && p->dilation[1] > 0);
    assert(a->in[0].shape.dim[1] == a->out[0].shape.dim[1] && a->in[0].shape.dim[0] == a->out[0].shape.dim[0]);
    range_run(a, a->out[0].shape.dim[0] * a->out[0].shape.dim[2], 1, piece);
    return OK;
}

int k_cpu_maxpool(const KArgs *a, Err *e) {
    const int32_t *kernel = a->attr->pool.kernel;
    assert(!a->maxpool.idx.count || (a->maxpool.idx.count == a->maxpool.y.count && a->maxpool.idx.dtype == DT_U8));
    if (a->maxpool.idx.data && (int64_t)kernel[0] * kernel[1] > 256)
        return err_set(e, ERR_UNSUPPORTED,
                       "maxpool: a window of %d x %d has positions that do not fit in a byte; at most 256 do",
                       (int)kernel[0], (int)kernel[1]);
    return rows_run(a, maxpool_rows, e);
}

int k_cpu_maxpool_dx(const KArgs *a, Err *e) {
    assert(a->maxpool_dx.idx.count == a->maxpool_dx.dy.count && a->maxpool_dx.idx.dtype == DT_U8);
    return rows_run(a, maxpool_dx_rows, e);
}
