/* prelu.cu: y = x < 0 ? w x : x with one slope per channel, which lies innermost, or one for all. */
#include "channels.h"

enum { ONE_COLUMNS = 512, FINISH_THREADS = 128 }; /* one for all: its gradient is summed over rows of these */

struct Prelu {
    enum { INPUTS = 1 };
    Elements w;
    int64_t count;
    __device__ void eight(float *y, const float (*x)[LANES], int64_t begin) const {
        for (int i = 0; i < LANES; i++)
            y[i] = x[0][i] < 0.0f ? element_at(w, (begin + i) % count) * x[0][i] : x[0][i];
    }
};

struct PreluSlope {
    enum { INPUTS = 2 };
    Elements w;
    int64_t count;
    __device__ void eight(float *dx, const float (*x)[LANES], int64_t begin) const {
        for (int i = 0; i < LANES; i++)
            dx[i] = x[1][i] > 0.0f ? x[0][i] : element_at(w, (begin + i) % count) * x[0][i];
    }
};

int k_cuda_prelu(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->in[0])}};
    return elements_run(a, e, Prelu{elements_of(&a->in[1]), a->in[1].count}, x);
}

int k_cuda_prelu_dx(const KArgs *a, Err *e) {
    ElementsOf<2> x = {{elements_of(&a->in[0]), elements_of(&a->in[1])}};
    return elements_run(a, e, PreluSlope{elements_of(&a->in[2]), a->in[2].count}, x);
}

/* ---- the slopes' gradient */

struct SlopeSums {
    Elements dy, x;
    int64_t columns, count;
    __device__ void add(int64_t row, int64_t c, double *sum) const {
        int64_t i = row * columns + c;
        if (i < count && !(element_at(x, i) > 0.0f)) sum[0] += (double)(element_at(dy, i) * element_at(x, i));
    }
};

static __global__ void slopes_finish(const double *parts, int n, int64_t columns, Elements dw) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c < columns) dtype_store(dw.type, dw.data, (size_t)c, (float)channel_sum(parts, n, 0, columns, c));
}

static __global__ void slope_finish(const double *parts, int n, int64_t columns, Elements dw) {
    double all = 0;
    for (int64_t c = 0; c < columns; c++) all += channel_sum(parts, n, 0, columns, c);
    dtype_store(dw.type, dw.data, 0, (float)all);
}

static int64_t columns_of(const KArgs *a) {
    return a->out[0].count > 1 ? a->out[0].count : min_i64(ONE_COLUMNS, a->in[1].count);
}

static int64_t rows_of(const KArgs *a) { return (a->in[1].count + columns_of(a) - 1) / columns_of(a); }

int k_cuda_prelu_dw_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = channel_workspace(rows_of(a), columns_of(a));
    return OK;
}

int k_cuda_prelu_dw(const KArgs *a, Err *e) {
    int64_t columns = columns_of(a), rows = rows_of(a);
    const double *parts = (const double *)a->workspace;
    Elements dw = elements_of(&a->out[0]);
    int code =
        channels_run(a, e, SlopeSums{elements_of(&a->in[0]), elements_of(&a->in[1]), columns, a->in[1].count}, rows,
                            columns);
    if (code) return code;
    if (a->out[0].count == 1) return launch_op(a, e, slope_finish, 1, 1, parts, channel_parts(rows), columns, dw);
    return launch_op(a, e, slopes_finish, (unsigned)((columns + FINISH_THREADS - 1) / FINISH_THREADS), FINISH_THREADS,
                     parts, channel_parts(rows), columns, dw);
}
