/* softmax.cu: softmax and its logarithm along lines of n elements, which lie `stride` apart; a warp per line. */
#include "elements.h"

enum { SOFTMAX_THREADS = 256, SOFTMAX_WARPS = SOFTMAX_THREADS / WARP };

typedef struct Lines {
    Elements x, y, z; /* x, y; or dy, y, dx */
    int64_t count, n, stride;
    bool log;
} Lines;

static __device__ inline int lane_index() { return (int)(threadIdx.x % WARP); }
static __device__ inline int64_t line_index() { return (int64_t)blockIdx.x * SOFTMAX_WARPS + threadIdx.x / WARP; }

/* The first element of line k */
static __device__ inline int64_t start_of(const Lines &l, int64_t k) {
    return k / l.stride * l.n * l.stride + k % l.stride;
}

static __global__ void softmax_kernel(const __grid_constant__ Lines l) {
    for (int64_t k = line_index(); k < l.count; k += (int64_t)gridDim.x * SOFTMAX_WARPS) {
        const int64_t start = start_of(l, k);
        float most = -INFINITY, sum = 0.0f;
        for (int64_t i = lane_index(); i < l.n; i += WARP) most = fmaxf(most, element_at(l.x, start + i * l.stride));
        most = warp_max(most);
        for (int64_t i = lane_index(); i < l.n; i += WARP) sum += expf(element_at(l.x, start + i * l.stride) - most);
        sum = warp_sum(sum);
        const float factor = 1 / sum, log_sum = logf(sum);
        for (int64_t i = lane_index(); i < l.n; i += WARP) {
            float x = element_at(l.x, start + i * l.stride) - most;
            dtype_store(l.y.type, l.y.data, (size_t)(start + i * l.stride), l.log ? x - log_sum : expf(x) * factor);
        }
    }
}

static __global__ void softmax_dx_kernel(const __grid_constant__ Lines l) {
    for (int64_t k = line_index(); k < l.count; k += (int64_t)gridDim.x * SOFTMAX_WARPS) {
        const int64_t start = start_of(l, k);
        float sum = 0.0f;
        for (int64_t i = lane_index(); i < l.n; i += WARP) {
            float dy = element_at(l.x, start + i * l.stride);
            sum += l.log ? dy : dy * element_at(l.y, start + i * l.stride);
        }
        sum = warp_sum(sum);
        for (int64_t i = lane_index(); i < l.n; i += WARP) {
            int64_t at = start + i * l.stride;
            float dy = element_at(l.x, at), y = element_at(l.y, at);
            dtype_store(l.z.type, l.z.data, (size_t)at, l.log ? dy - expf(y) * sum : y * (dy - sum));
        }
    }
}

static int lines_run(const KArgs *a, Err *e, void (*kernel)(Lines), Lines l) {
    int64_t outer;
    assert(0 <= a->attr->softmax.axis && a->attr->softmax.axis < a->in[0].shape.rank);
    assert(a->in[0].count == a->out[0].count && (a->kind == OP_softmax || a->softmax_dx.y.count == a->out[0].count));
    l.n = a->in[0].shape.dim[a->attr->softmax.axis];
    view_split(&a->in[0], a->attr->softmax.axis, &outer, &l.stride);
    l.count = a->in[0].count / l.n;
    l.log = a->attr->softmax.log;
    return launch_op(a, e, kernel, blocks_for(a, l.count * WARP, SOFTMAX_THREADS), SOFTMAX_THREADS, l);
}

int k_cuda_softmax(const KArgs *a, Err *e) {
    Lines l = {};
    l.x = elements_of(&a->softmax.x);
    l.y = elements_of(&a->softmax.y);
    return lines_run(a, e, softmax_kernel, l);
}

int k_cuda_softmax_dx(const KArgs *a, Err *e) {
    Lines l = {};
    l.x = elements_of(&a->softmax_dx.dy);
    l.y = elements_of(&a->softmax_dx.y);
    l.z = elements_of(&a->softmax_dx.dx);
    return lines_run(a, e, softmax_dx_kernel, l);
}
