/* prelu.cu: y = x < 0 ? w x : x with one slope per channel, which lies innermost, or one for all. */
#include "channels.h"
#include "sums.h"

struct Prelu {
    enum { INPUTS = 1 };
    Repeated w;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t begin) const {
        float slope[QUAD];
        repeated_load(w, begin, slope);
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i] < 0.0f ? slope[i] * x[0][i] : x[0][i];
    }
};

struct PreluSlope {
    enum { INPUTS = 2 };
    Repeated w;
    __device__ void four(float *dx, const float (*x)[QUAD], int64_t begin) const {
        float slope[QUAD];
        repeated_load(w, begin, slope);
        for (int i = 0; i < QUAD; i++) dx[i] = x[1][i] > 0.0f ? x[0][i] : slope[i] * x[0][i];
    }
};

int k_cuda_prelu(const KArgs *a, Err *e) {
    assert(a->prelu.x.count == a->prelu.y.count && a->prelu.x.count % a->prelu.w.count == 0);
    ElementsOf<1> x = {{elements_of(&a->prelu.x)}};
    return elements_run(a, e, Prelu{repeated_of(&a->prelu.w, a->prelu.w.count, 0)}, x);
}

int k_cuda_prelu_dx(const KArgs *a, Err *e) {
    assert(a->prelu_dx.dy.count == a->prelu_dx.dx.count && a->prelu_dx.x.count == a->prelu_dx.dx.count);
    assert(a->prelu_dx.x.count % a->prelu_dx.w.count == 0);
    ElementsOf<2> x = {{elements_of(&a->prelu_dx.dy), elements_of(&a->prelu_dx.x)}};
    return elements_run(a, e, PreluSlope{repeated_of(&a->prelu_dx.w, a->prelu_dx.w.count, 0)}, x);
}

/* ---- the slopes' gradient */

static __device__ double slope_term(float dy, float x) { return x > 0.0f ? 0 : (double)(dy * x); }

struct SlopeSums : PlainSums {
    enum { INPUTS = 2 };
    __device__ void add(const float *x, const float *, const float *, double *sum) const { sum[0] += slope_term(x[0], x[1]); }
};

struct OneSlopeSum {
    enum { INPUTS = 2 };
    Elements dw;
    __device__ double term(const float (*x)[QUAD], int i) const { return slope_term(x[0][i], x[1][i]); }
    __device__ void store(double sum) const { dtype_store(dw.type, dw.data, 0, (float)sum); }
};

static __global__ void slopes_finish(const double *parts, int n, int64_t channels, Elements dw) {
    const double sum = channel_sum(parts, n, 0, channels);
    if (threadIdx.y == 0 && channel_here() < channels)
        dtype_store(dw.type, dw.data, (size_t)channel_here(), (float)sum);
}

int k_cuda_prelu_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *) {
    int64_t channels = a->prelu_dw.dw.count, count = a->prelu_dw.x.count;
    *state = NULL;
    *workspace = channels > 1 ? channel_workspace(count / channels, channels)
                              : sum_workspace(count, sizeof(double), limit);
    return OK;
}

int k_cuda_prelu_dw(const KArgs *a, Err *e) {
    int64_t channels = a->prelu_dw.dw.count, rows = a->prelu_dw.x.count / channels;
    assert(a->prelu_dw.dy.count == a->prelu_dw.x.count && a->prelu_dw.x.count % channels == 0);
    const Elements dw = elements_of(&a->prelu_dw.dw);
    const ElementsOf<2> both = {{elements_of(&a->prelu_dw.dy), elements_of(&a->prelu_dw.x)}};
    if (channels == 1) return sum_run(a, e, OneSlopeSum{dw}, both, a->prelu_dw.x.count);
    int code = channels_run(a, e, SlopeSums{}, both, rows, channels, true);
    if (code) return code;
    return launch_op(a, e, slopes_finish, channel_blocks(channels), channel_threads(), (const double *)a->workspace,
                     channel_parts(rows, channels), channels, dw);
}
