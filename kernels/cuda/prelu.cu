/* prelu.cu: y = x < 0 ? w x : x with one slope per channel, which lies innermost, or one for all. */
#include "channels.h"
#include "sums.h"

struct Prelu {
    enum { INPUTS = 1, PARAMS = 1 };
    Elements w;
    __device__ void prepare(int64_t c, float *params) const { params[0] = element_at(w, c); }
    __device__ float at(const float *x, const float *params) const { return x[0] < 0.0f ? params[0] * x[0] : x[0]; }
};

struct PreluSlope {
    enum { INPUTS = 2, PARAMS = 1 };
    Elements w;
    __device__ void prepare(int64_t c, float *params) const { params[0] = element_at(w, c); }
    __device__ float at(const float *x, const float *params) const { return x[1] > 0.0f ? x[0] : params[0] * x[0]; }
};

/* `f` with one slope for all */
template <typename F> struct OneSlope {
    enum { INPUTS = F::INPUTS };
    F f;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        float slope;
        f.prepare(0, &slope);
        for (int i = 0; i < QUAD; i++) {
            float one[F::INPUTS];
            for (int k = 0; k < F::INPUTS; k++) one[k] = x[k][i];
            y[i] = f.at(one, &slope);
        }
    }
};

template <typename F> static int slopes_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x, int64_t channels) {
    return channels == 1 ? elements_run(a, e, OneSlope<F>{f}, x)
                         : by_channel_run(a, e, f, x, a->out[0].count / channels, channels);
}

int k_cuda_prelu(const KArgs *a, Err *e) {
    assert(a->prelu.x.count == a->prelu.y.count && a->prelu.x.count % a->prelu.w.count == 0);
    ElementsOf<1> x = {{elements_of(&a->prelu.x)}};
    return slopes_run(a, e, Prelu{elements_of(&a->prelu.w)}, x, a->prelu.w.count);
}

int k_cuda_prelu_dx(const KArgs *a, Err *e) {
    assert(a->prelu_dx.dy.count == a->prelu_dx.dx.count && a->prelu_dx.x.count == a->prelu_dx.dx.count);
    assert(a->prelu_dx.x.count % a->prelu_dx.w.count == 0);
    ElementsOf<2> x = {{elements_of(&a->prelu_dx.dy), elements_of(&a->prelu_dx.x)}};
    return slopes_run(a, e, PreluSlope{elements_of(&a->prelu_dx.w)}, x, a->prelu_dx.w.count);
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
