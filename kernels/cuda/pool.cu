/* pool.cu: pooling over channels-last images: a thread per pixel of the output and N neighbouring channels.
 *
 * Both directions gather, as on the CPU: a backward pass writes every dx once, from the windows that hold it. So
 * nothing must be zeroed, no atomics are needed, 16-bit gradients are summed in fp32, and the order of the sum is
 * fixed. */
#include "cuda.h"
#include "lanes.h"
#include "launch.h"
#include "program/window.h"

enum { THREADS = 128 };

/* image (H, W): x or dx; windows (OH, OW): y or dy, and idx */
typedef struct Pool {
    PoolAttr attr;
    int adaptive;
    void *image, *windows;
    uint8_t *idx; /* NULL: not wanted */
    DType image_type, windows_type;
    int C, H, W, OH, OW;
} Pool;

/* First element of channel c of a pixel; row counts the rows of all samples. */
static __device__ inline int64_t pixel(const Pool &p, int64_t row, int width, int w, int c) {
    return (row * width + w) * p.C + c;
}

static __device__ inline const PoolAttr *window_attr(const Pool &p) { return p.adaptive ? NULL : &p.attr; }

/* v[N] <-> N window positions, a byte each: one word, or two for N = 8 */
template <int N> static __device__ inline void bytes_load(const uint8_t *p, int *v) {
    uint32_t word[2] = {0, 0};
    if (N == 8) {
        uint2 both = *(const uint2 *)p;
        word[0] = both.x, word[1] = both.y;
    } else {
        word[0] = N == 4 ? *(const uint32_t *)p : *p;
    }
    for (int n = 0; n < N; n++) v[n] = (int)(word[n / 4] >> n % 4 * 8 & 0xffu);
}

template <int N> static __device__ inline void bytes_store(uint8_t *p, const int *v) {
    uint32_t word[2] = {0, 0};
    for (int n = 0; n < N; n++) word[n / 4] |= (uint32_t)v[n] << n % 4 * 8;
    if (N == 8) *(uint2 *)p = make_uint2(word[0], word[1]);
    else if (N == 4) *(uint32_t *)p = word[0];
    else *p = (uint8_t)word[0];
}

/* The first window that begins at `reached` or later; both are counted from the padded image's edge. */
static __device__ inline int first_window(int reached, int stride) {
    return reached <= 0 ? 0 : (reached + stride - 1) / stride;
}

/* ---- the largest of a window; a NaN wins, and of equal values the first */

template <int N> static __device__ void maxpool_at(const Pool &p, int row, int ow, int c) {
    const int image = row / p.OH, oh = row % p.OH;
    const float least = p.attr.fused.act == ACT_RELU ? 0.0f : -INFINITY; /* with a ReLU nothing is below 0 */
    float best[N], x[N];
    int at[N];
    bool first = true;
    for (int n = 0; n < N; n++) best[n] = least, at[n] = 0;
    for (int k = 0; k < p.attr.kernel[0] * p.attr.kernel[1]; k++) {
        const int h = oh * p.attr.stride[0] - p.attr.pad[0] + k / p.attr.kernel[1] * p.attr.dilation[0];
        const int w = ow * p.attr.stride[1] - p.attr.pad[1] + k % p.attr.kernel[1] * p.attr.dilation[1];
        if (h < 0 || h >= p.H || w < 0 || w >= p.W) continue;
        lanes_load<N>(p.image_type, p.image, pixel(p, (int64_t)image * p.H + h, p.W, w, c), x);
        for (int n = 0; n < N; n++) {
            const bool wins = x[n] > best[n] || x[n] != x[n];
            best[n] = wins ? x[n] : best[n];
            at[n] = first || wins ? k : at[n]; /* the first position, even if x is not above `least` */
        }
        first = false;
    }
    const int64_t to = pixel(p, row, p.OW, ow, c);
    lanes_store<N>(p.windows_type, p.windows, to, best);
    if (p.idx) bytes_store<N>(p.idx + to, at);
}

/* Which position along a side of a window has the pixel that lies `reached` after the window's begin? -1: none */
static __device__ inline int position_of(int reached, int kernel, int dilation) {
    return reached < 0 || reached % dilation || reached / dilation >= kernel ? -1 : reached / dilation;
}

/* CELL x CELL neighbouring pixels, which have most of their windows in common: each of these is read once for all of them. */
enum { CELL = 2 };
static int cells(int64_t pixels) { return (int)((pixels + CELL - 1) / CELL); }

/* row: of cells of all samples. A window holds the pixel at position k, where k dilation = pixel - the window's start. */
template <int N> static __device__ void maxpool_dx_at(const Pool &p, int row, int cell, int c) {
    const PoolAttr &a = p.attr;
    const int down = (p.H + CELL - 1) / CELL, image = row / down, h = row % down * CELL, w = cell * CELL;
    const int reach[2] = {(a.kernel[0] - 1) * a.dilation[0], (a.kernel[1] - 1) * a.dilation[1]};
    float sum[CELL][CELL][N] = {}, dy[N];
    int idx[N];
    for (int oh = first_window(h + a.pad[0] - reach[0], a.stride[0]); oh < p.OH; oh++) {
        const int top = h + a.pad[0] - oh * a.stride[0]; /* of the cell, from the window's begin */
        if (top + CELL <= 0) break;
        for (int ow = first_window(w + a.pad[1] - reach[1], a.stride[1]); ow < p.OW; ow++) {
            const int left = w + a.pad[1] - ow * a.stride[1];
            if (left + CELL <= 0) break;
            const int64_t at = pixel(p, (int64_t)image * p.OH + oh, p.OW, ow, c);
            lanes_load<N>(p.windows_type, p.windows, at, dy);
            bytes_load<N>(p.idx + at, idx);
            UNROLLED(CELL)
            for (int i = 0; i < CELL; i++) {
                const int kh = position_of(top + i, a.kernel[0], a.dilation[0]);
                UNROLLED(CELL)
                for (int j = 0; j < CELL; j++) {
                    const int kw = position_of(left + j, a.kernel[1], a.dilation[1]);
                    const int k = kh < 0 || kw < 0 ? -1 : kh * a.kernel[1] + kw;
                    for (int n = 0; n < N; n++) sum[i][j][n] += idx[n] == k ? dy[n] : 0.0f;
                }
            }
        }
    }
    UNROLLED(CELL)
    for (int i = 0; i < CELL; i++)
        UNROLLED(CELL)
        for (int j = 0; j < CELL; j++)
            if (h + i < p.H && w + j < p.W)
                lanes_store<N>(p.image_type, p.image, pixel(p, (int64_t)image * p.H + h + i, p.W, w + j, c), sum[i][j]);
}

/* ---- the mean of a window */

template <int N> static __device__ void mean_at(const Pool &p, int row, int ow, int c) {
    const int image = row / p.OH, oh = row % p.OH;
    const Span h = span_of(window_attr(p), 0, oh, p.H, p.OH), w = span_of(window_attr(p), 1, ow, p.W, p.OW);
    float sum[N], x[N];
    for (int n = 0; n < N; n++) sum[n] = 0.0f;
    for (int i = (int)h.lo; i < h.hi; i++)
        for (int j = (int)w.lo; j < w.hi; j++) {
            lanes_load<N>(p.image_type, p.image, pixel(p, (int64_t)image * p.H + i, p.W, j, c), x);
            for (int n = 0; n < N; n++) sum[n] += x[n];
        }
    if (h.lo < h.hi && w.lo < w.hi) {
        const float divisor = divisor_of(window_attr(p), h, w);
        for (int n = 0; n < N; n++) sum[n] /= divisor;
    }
    lanes_store<N>(p.windows_type, p.windows, pixel(p, row, p.OW, ow, c), sum);
}

template <int N> static __device__ void mean_dx_at(const Pool &p, int row, int w, int c) {
    const PoolAttr *a = window_attr(p);
    const int image = row / p.H, h = row % p.H;
    const Span in_h = windows_of(a, 0, h, p.H, p.OH), in_w = windows_of(a, 1, w, p.W, p.OW);
    float sum[N], dy[N];
    for (int n = 0; n < N; n++) sum[n] = 0.0f;
    for (int i = (int)in_h.lo; i < in_h.hi; i++)
        for (int j = (int)in_w.lo; j < in_w.hi; j++) {
            const float divisor = divisor_of(a, span_of(a, 0, i, p.H, p.OH), span_of(a, 1, j, p.W, p.OW));
            lanes_load<N>(p.windows_type, p.windows, pixel(p, (int64_t)image * p.OH + i, p.OW, j, c), dy);
            for (int n = 0; n < N; n++) sum[n] += dy[n] / divisor;
        }
    lanes_store<N>(p.image_type, p.image, pixel(p, row, p.W, w, c), sum);
}

/* ---- launches: a row of pixels, or of cells, per blockIdx.x, its pixels and channels over the threads */

typedef void AtFn(const Pool &p, int row, int w, int c);

template <int N, AtFn *at> static __global__ void each_pixel(const __grid_constant__ Pool p, int width) {
    const int vectors = p.C / N, step = (int)(gridDim.y * blockDim.x);
    for (int i = (int)(blockIdx.y * blockDim.x + threadIdx.x); i < width * vectors; i += step)
        at(p, (int)blockIdx.x, i / vectors, i % vectors * N);
}

/* A thread takes 16 bytes of channels at a time: four in fp32, eight in 16-bit types. */
template <AtFn *at1, AtFn *at4, AtFn *at8>
static int pool_run(const KArgs *a, const View *image, const View *windows, const View *idx, Err *e) {
    const View *out = &a->out[0];
    if (!image->channels_last || !windows->channels_last || image->shape.rank != 4 || windows->shape.rank != 4)
        return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)",
                       op_info(a->kind)->name);
    const int64_t *in = image->shape.dim, *win = windows->shape.dim;
    const bool by_cells = a->kind == OP_maxpool_dx;
    const int64_t down = out->shape.dim[2], width = by_cells ? cells(out->shape.dim[3]) : out->shape.dim[3], C = in[1];
    const int64_t rows = out->shape.dim[0] * (by_cells ? cells(down) : down);
    const bool adaptive = a->kind == OP_adaptive_avgpool || a->kind == OP_adaptive_avgpool_dx;
    if (rows > INT32_MAX || width * C > INT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s: %lld rows of %lld numbers are more than 2^31", op_info(a->kind)->name,
                       (long long)rows, (long long)(width * C));
    assert(in[0] == win[0] && in[1] == win[1] && (!idx || !idx->count || idx->count == windows->count));
    assert(adaptive || (a->attr->pool.stride[0] > 0 && a->attr->pool.stride[1] > 0));
    assert(!idx || !idx->count || (a->attr->pool.dilation[0] > 0 && a->attr->pool.dilation[1] > 0));
    Pool p = {a->attr->pool, adaptive, image->data, windows->data, idx ? (uint8_t *)idx->data : NULL, image->dtype,
              windows->dtype, (int)C, (int)in[2], (int)in[3], (int)win[2], (int)win[3]};
    const bool fit4 = lanes_fit<4>(p.image, p.image_type, C) && lanes_fit<4>(p.windows, p.windows_type, C) &&
                      (uintptr_t)p.idx % 8 == 0;
    const bool fit8 = lanes_fit<8>(p.image, p.image_type, C) && lanes_fit<8>(p.windows, p.windows_type, C);
    const int N = !fit4 ? 1 : fit8 && out->dtype != DT_F32 ? 8 : 4;
    const int64_t parts = (width * (C / N) + THREADS - 1) / THREADS;
    const dim3 grid((unsigned)rows, (unsigned)min_i64(parts, GRID_MAX_YZ));
    void (*kernel)(Pool, int) = N == 8 ? each_pixel<8, at8> : N == 4 ? each_pixel<4, at4> : each_pixel<1, at1>;
    return launch_op(a, e, kernel, grid, dim3(THREADS), p, (int)width);
}

#define LANES(at) at<1>, at<4>, at<8>

extern "C" int k_cuda_maxpool(const KArgs *a, Err *e) {
    const int32_t *kernel = a->attr->pool.kernel;
    if (a->maxpool.idx.data && (int64_t)kernel[0] * kernel[1] > 256)
        return err_set(e, ERR_UNSUPPORTED,
                       "maxpool: a window of %d x %d has positions that do not fit in a byte; at most 256 do",
                       (int)kernel[0], (int)kernel[1]);
    return pool_run<LANES(maxpool_at)>(a, &a->maxpool.x, &a->maxpool.y, &a->maxpool.idx, e);
}

extern "C" int k_cuda_maxpool_dx(const KArgs *a, Err *e) {
    return pool_run<LANES(maxpool_dx_at)>(a, &a->maxpool_dx.dx, &a->maxpool_dx.dy, &a->maxpool_dx.idx, e);
}

extern "C" int k_cuda_avgpool(const KArgs *a, Err *e) {
    return pool_run<LANES(mean_at)>(a, &a->avgpool.x, &a->avgpool.y, NULL, e);
}

extern "C" int k_cuda_avgpool_dx(const KArgs *a, Err *e) {
    return pool_run<LANES(mean_dx_at)>(a, &a->avgpool_dx.dx, &a->avgpool_dx.dy, NULL, e);
}

extern "C" int k_cuda_adaptive_avgpool(const KArgs *a, Err *e) { return k_cuda_avgpool(a, e); }
extern "C" int k_cuda_adaptive_avgpool_dx(const KArgs *a, Err *e) { return k_cuda_avgpool_dx(a, e); }
