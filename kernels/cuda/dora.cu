/* dora.cu: the magnitudes of DoRA (math/dora.h): the norms of the rows of w + scaling b a, which never exist as a whole; and
 * features times their magnitude, with its gradient. */
#include "math/dora.h"
#include "math/quantized.h"
#include "channels.h"
#include "sums.h"

/* ---- norms: a block for each row */

struct DoraRows { Elements w, a, b; Quantized codes; bool quantized; int64_t rank, columns; float scaling; float *norm; };

static __global__ void __launch_bounds__(ELEMENT_THREADS) dora_norm_kernel(const __grid_constant__ DoraRows d) {
    const int64_t o = blockIdx.x;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < d.columns; i += blockDim.x) {
        float w = d.quantized ? quantized_weight(&d.codes, o * d.columns + i) : element_at(d.w, o * d.columns + i);
        for (int64_t k = 0; k < d.rank; k++)
            w = dora_weight(w, d.scaling * element_at(d.b, o * d.rank + k), element_at(d.a, k * d.columns + i));
        sum += w * w;
    }
    const double all = block_sum(sum);
    if (threadIdx.x == 0) d.norm[o] = (float)sqrt(all);
}

int k_cuda_dora_norm(const KArgs *a, Err *e) {
    const View *of_a = &a->dora_norm.a;
    assert(a->dora_norm.b.shape.dim[1] == of_a->shape.dim[0] && a->dora_norm.norm.count <= GRID_MAX_X);
    DoraRows d = {};
    d.w = elements_of(&a->dora_norm.w), d.a = elements_of(of_a), d.b = elements_of(&a->dora_norm.b);
    d.codes.codes = (const uint8_t *)a->dora_norm.w.data, d.codes.absmax = a->dora_norm.absmax.data;
    d.codes.map = (const float *)a->dora_norm.quant_map.data;
    d.codes.nested_absmax = (const float *)a->dora_norm.nested_absmax.data;
    d.codes.nested_map = (const float *)a->dora_norm.nested_quant_map.data;
    d.codes.nested_offset = (const float *)a->dora_norm.nested_offset.data;
    d.codes.columns = d.columns = of_a->shape.dim[1];
    d.quantized = a->dora_norm.absmax.count > 0;
    d.rank = of_a->shape.dim[0];
    d.scaling = a->attr->dora.scaling;
    d.norm = (float *)a->dora_norm.norm.data;
    return launch_op(a, e, dora_norm_kernel, (unsigned)a->dora_norm.norm.count, ELEMENT_THREADS, d);
}

/* ---- features */

struct DoraFeatures {
    enum { INPUTS = 1, PARAMS = 2 };
    Elements magnitude, norm, bias; /* bias: data NULL where there is none */
    __device__ void prepare(int64_t c, float *params) const {
        params[0] = bias.data ? element_at(bias, c) : 0.0f;
        params[1] = dora_factor(element_at(magnitude, c), element_at(norm, c));
    }
    __device__ float at(const float *x, const float *params) const { return dora_feature(x[0], params[0], params[1]); }
};

int k_cuda_dora(const KArgs *a, Err *e) {
    assert(a->dora.x.count == a->dora.y.count && a->dora.x.count % a->dora.norm.count == 0);
    const ElementsOf<1> x = {{elements_of(&a->dora.x)}};
    const DoraFeatures f = {elements_of(&a->dora.magnitude), elements_of(&a->dora.norm), elements_of(&a->dora.b)};
    return by_channel_run(a, e, f, x, a->dora.x.count / a->dora.norm.count, a->dora.norm.count);
}

/* ---- the magnitudes' gradient */

struct DoraTerms : PlainSums {
    enum { INPUTS = 2, PARAMS = 1 };
    Elements bias; /* data NULL where there is none */
    __device__ void prepare(int64_t c, float *params) const { params[0] = bias.data ? element_at(bias, c) : 0.0f; }
    __device__ void add(const float *x, const float *params, const float *, double *sum) const {
        sum[0] += (double)dora_term(x[0], x[1], params[0]);
    }
};

static __global__ void dora_finish(const double *parts, int n, int64_t channels, const float *norm, Elements dm) {
    const double sum = channel_sum(parts, n, 0, channels);
    const int64_t c = channel_here();
    if (threadIdx.y == 0 && c < channels) dtype_store(dm.type, dm.data, (size_t)c, (float)(sum / (double)norm[c]));
}

int k_cuda_dora_dm_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = channel_workspace(a->dora_dm.x.count / a->dora_dm.norm.count, a->dora_dm.norm.count);
    return OK;
}

int k_cuda_dora_dm(const KArgs *a, Err *e) {
    const int64_t channels = a->dora_dm.norm.count, rows = a->dora_dm.x.count / channels;
    assert(a->dora_dm.dy.count == a->dora_dm.x.count && a->dora_dm.x.count % channels == 0);
    const ElementsOf<2> both = {{elements_of(&a->dora_dm.dy), elements_of(&a->dora_dm.x)}};
    const int code = channels_run(a, e, DoraTerms{{}, elements_of(&a->dora_dm.b)}, both, rows, channels, true);
    if (code) return code;
    return launch_op(a, e, dora_finish, channel_blocks(channels), channel_threads(), (const double *)a->workspace,
                     channel_parts(rows, channels), channels, (const float *)a->dora_dm.norm.data, elements_of(&a->dora_dm.dm));
}
