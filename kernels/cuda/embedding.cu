/* embedding.cu: rows of a table w (V, D), and their gradient. For the gradient a block per row and part of D walks all
 * positions in ascending order, so that the order of a sum is fixed. add_rows: rows of a table from `start` on, added
 * to each sample. first_place: which rows of (N T, D) the places of a token are, a thread per sample. */
#include "elements.h"

/* EACH: elements of a row that a thread has. WORDS: of 32 positions each, that a round looks at */
enum { TABLE_THREADS = 256, EACH = 4, TABLE_COLUMNS = EACH * TABLE_THREADS, WORDS = 32 };

template <typename T>
static __global__ void gather(T *y, const T *w, const int32_t *idx, int64_t first, int64_t rows, int64_t dim, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = idx[i / dim] - first;
        y[i] = row >= 0 && row < rows ? w[row * dim + i % dim] : (T)0;
    }
}

template <typename T> static int gather_run(const KArgs *a, Err *e) {
    const View *y = &a->embedding.y, *w = &a->embedding.w, *idx = &a->embedding.idx;
    return launch_op(a, e, gather<T>, blocks_for(a, y->count, TABLE_THREADS), TABLE_THREADS, (T *)y->data,
                     (const T *)w->data, (const int32_t *)idx->data, a->attr->embedding.first, w->shape.dim[0], w->shape.dim[1],
                     y->count);
}

int k_cuda_embedding(const KArgs *a, Err *e) {
    assert(a->embedding.idx.dtype == DT_I32 && a->embedding.w.dtype == a->embedding.y.dtype);
    assert(a->embedding.y.count == a->embedding.idx.count * a->embedding.w.shape.dim[1]);
    return (dtype_size(a->embedding.y.dtype) == 2 ? gather_run<uint16_t> : gather_run<uint32_t>)(a, e);
}

/* blockIdx.x: the row; blockIdx.y: which TABLE_COLUMNS of its elements. A round finds the row's positions among WORDS
 * times 32, then adds up their elements. */
static __global__ void __launch_bounds__(TABLE_THREADS)
    scatter(Elements dw, Elements dy, const int32_t *idx, int64_t positions, int64_t dim, EmbeddingAttr attr) {
    __shared__ uint32_t mine[WORDS];
    const int64_t row = blockIdx.x, of_table = attr.first + row, first = (int64_t)blockIdx.y * TABLE_COLUMNS + threadIdx.x;
    const int lane = (int)threadIdx.x % WARP;
    float sum[EACH] = {};
    for (int64_t begin = 0; begin < positions && of_table != attr.padding; begin += WORDS * WARP) {
        UNROLLED(WORDS * WARP / TABLE_THREADS)
        for (int w = (int)threadIdx.x / WARP; w < WORDS; w += TABLE_THREADS / WARP) {
            const int64_t i = begin + w * WARP + lane;
            const uint32_t found = __ballot_sync(0xffffffffu, i < positions && idx[i] == of_table);
            if (lane == 0) mine[w] = found;
        }
        __syncthreads();
        for (int w = 0; w < WORDS; w++)
            for (uint32_t left = mine[w]; left; left &= left - 1) {
                const int64_t at = (begin + w * WARP + __ffs((int)left) - 1) * dim;
                for (int k = 0; k < EACH; k++)
                    if (first + k * TABLE_THREADS < dim) sum[k] += element_at(dy, at + first + k * TABLE_THREADS);
            }
        __syncthreads();
    }
    for (int k = 0; k < EACH; k++)
        if (first + k * TABLE_THREADS < dim)
            dtype_store(dw.type, dw.data, (size_t)(row * dim + first + k * TABLE_THREADS), sum[k]);
}

int k_cuda_embedding_dw_prepare(const KArgs *, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cuda_embedding_dw(const KArgs *a, Err *e) {
    const View *dw = &a->embedding_dw.dw, *dy = &a->embedding_dw.dy, *idx = &a->embedding_dw.idx;
    int64_t rows = dw->shape.dim[0], dim = dw->shape.dim[1];
    assert(idx->dtype == DT_I32 && dy->count == idx->count * dim);
    const dim3 grid((unsigned)rows, (unsigned)((dim + TABLE_COLUMNS - 1) / TABLE_COLUMNS));
    return launch_op(a, e, scatter, grid, TABLE_THREADS, elements_of(dw), elements_of(dy), (const int32_t *)idx->data,
                     idx->count, dim, a->attr->embedding);
}

/* ---- add_rows: a sample's elements are those of w from an offset on */

static int64_t sample_size(const View *y) {
    return y->shape.dim[y->shape.rank - 1] * y->shape.dim[y->shape.rank - 2];
}

static int64_t offset_of(const KArgs *a, const View *w) { return a->attr->axis.start * w->shape.dim[1]; }

struct AddRows {
    enum { INPUTS = 1 };
    Repeated w;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t begin) const {
        float row[QUAD];
        repeated_load(w, begin, row);
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i] + row[i];
    }
};

int k_cuda_add_rows(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->add_rows.x)}};
    assert(a->add_rows.x.count == a->add_rows.y.count && a->add_rows.w.count >= sample_size(&a->add_rows.y));
    const View *w = &a->add_rows.w;
    return elements_run(a, e, AddRows{repeated_of(w, sample_size(&a->add_rows.y), offset_of(a, w))}, x);
}

static __global__ void sum_samples(Elements dw, Elements dy, int64_t count, int64_t first, int64_t sample,
                                   int64_t samples) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        float sum = 0.0f;
        for (int64_t n = 0; n < samples && i >= first && i < first + sample; n++)
            sum += dtype_load(dy.type, dy.data, (size_t)(n * sample + i - first));
        dtype_store(dw.type, dw.data, (size_t)i, sum);
    }
}

int k_cuda_add_rows_dw(const KArgs *a, Err *e) {
    const View *dw = &a->add_rows_dw.dw, *dy = &a->add_rows_dw.dy;
    int64_t sample = sample_size(dy);
    assert(dy->count % sample == 0);
    return launch_op(a, e, sum_samples, blocks_for(a, dw->count, TABLE_THREADS), TABLE_THREADS, elements_of(dw),
                     elements_of(dy), dw->count, offset_of(a, dw), sample, dy->count / sample);
}

static __global__ void first_place_kernel(int32_t *y, const int32_t *idx, int64_t samples, int64_t steps, int64_t token) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < samples; n += stride) {
        const int32_t *row = idx + n * steps;
        int64_t first = 0;
        for (int64_t t = 1; t < steps; t++)
            if (token < 0 ? row[t] > row[first] : row[t] == token && row[first] != token) first = t;
        y[n] = (int32_t)(n * steps + first);
    }
}

int k_cuda_first_place(const KArgs *a, Err *e) {
    const View *idx = &a->first_place.idx, *y = &a->first_place.y;
    if (idx->count > INT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "first_place: at most %d places, found %lld", INT32_MAX, (long long)idx->count);
    return launch_op(a, e, first_place_kernel, blocks_for(a, y->count, TABLE_THREADS), TABLE_THREADS, (int32_t *)y->data,
                     (const int32_t *)idx->data, idx->shape.dim[0], idx->shape.dim[1], a->attr->place.token);
}
