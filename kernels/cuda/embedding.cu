/* embedding.cu: rows of a table w (V, D), and their gradient. For the gradient a block per row and part of D adds up the
 * positions that have this row in ascending order, so that the order of a sum is fixed. add_rows: rows of a table from `start` on,
 * added to each sample. first_place: which rows of (N T, D) the places of a token are, a thread per sample. */
#include "elements.h"
#include "words.h"

/* WORDS: of 32 positions each, that a round looks at; PLACES: whose elements are loaded together */
enum { TABLE_THREADS = 256, TABLE_COLUMNS = QUAD * TABLE_THREADS, WORDS = 32, PLACES = 4 };

/* dim: words of a row */
template <typename T>
static __global__ void gather(void *y, const void *w, const int32_t *idx, int64_t first, int64_t rows, int64_t dim, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = idx[i / dim] - first;
        T word = {};
        if (row >= 0 && row < rows) word = ((const T *)w)[row * dim + i % dim];
        ((T *)y)[i] = word;
    }
}

int k_cuda_embedding(const KArgs *a, Err *e) {
    const View *y = &a->embedding.y, *w = &a->embedding.w, *idx = &a->embedding.idx;
    const int64_t row = w->shape.dim[1] * (int64_t)dtype_size(w->dtype);
    assert(idx->dtype == DT_I32 && w->dtype == y->dtype && y->count == idx->count * w->shape.dim[1]);
    const int bytes = word_bytes((uint64_t)row | (uintptr_t)w->data | (uintptr_t)y->data);
    const int64_t count = idx->count * (row / bytes);
    return launch_op(a, e, FOR_WORDS(gather, bytes), blocks_for(a, count, TABLE_THREADS), TABLE_THREADS, y->data,
                     (const void *)w->data, (const int32_t *)idx->data, a->attr->embedding.first, w->shape.dim[0], row / bytes,
                     count);
}

/* ---- the gradient. Most rows of a large table have no position, and most others one. So the first and the last position of
 *      each row are found before, and a row's block looks only between them. */

/* first > last: none */
typedef struct Ends { int32_t first, last; } Ends;

/* A small table's blocks look at all positions sooner than the ends are found. */
enum { FEW_PAIRS = 1 << 16 };
static size_t ends_bytes(int64_t rows, int64_t positions) {
    return positions <= INT32_MAX && rows > FEW_PAIRS / positions ? (size_t)rows * sizeof(Ends) : 0;
}

static __global__ void ends_clear(Ends *ends, int64_t rows) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += stride) {
        ends[i].first = INT32_MAX;
        ends[i].last = -1;
    }
}

static __global__ void ends_find(Ends *ends, const int32_t *idx, int64_t positions, int64_t first, int64_t rows) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < positions; i += stride) {
        const int64_t row = idx[i] - first;
        if (row < 0 || row >= rows) continue;
        atomicMin(&ends[row].first, (int32_t)i);
        atomicMax(&ends[row].last, (int32_t)i);
    }
}

/* ends: NULL: not known. whole: quads of a row lie in words */
typedef struct Scatter {
    Elements dw, dy;
    const int32_t *idx;
    const Ends *ends;
    int64_t positions, dim;
    EmbeddingAttr attr;
    bool whole;
} Scatter;

/* The positions of a round that have the row, in ascending order, in bits */
typedef struct Found { const uint32_t *bits; uint32_t left; int word; } Found;

/* -1: no more */
static __device__ inline int found_next(Found *f) {
    while (!f->left) {
        if (++f->word == WORDS) return f->word = WORDS - 1, -1;
        f->left = f->bits[f->word];
    }
    const int bit = __ffs((int)f->left) - 1;
    f->left &= f->left - 1;
    return f->word * WARP + bit;
}

/* blockIdx.x: the row; blockIdx.y: which TABLE_COLUMNS of its elements, of which a thread has a quad */
static __global__ void __launch_bounds__(TABLE_THREADS) scatter(const __grid_constant__ Scatter s) {
    __shared__ uint32_t mine[WORDS];
    __shared__ Ends ends;
    const int64_t row = blockIdx.x, of_table = s.attr.first + row;
    const int64_t column = (int64_t)blockIdx.y * TABLE_COLUMNS + (int64_t)threadIdx.x * QUAD;
    const int lane = (int)threadIdx.x % WARP;
    int64_t begin = 0, end = s.positions;
    float sum[QUAD] = {};
    if (s.ends) {
        if (threadIdx.x == 0) ends.first = s.ends[row].first, ends.last = s.ends[row].last;
        __syncthreads();
        begin = ends.first, end = (int64_t)ends.last + 1;
    }
    for (; begin < end && of_table != s.attr.padding; begin += WORDS * WARP) {
        UNROLLED(WORDS * WARP / TABLE_THREADS)
        for (int w = (int)threadIdx.x / WARP; w < WORDS; w += TABLE_THREADS / WARP) {
            const int64_t i = begin + w * WARP + lane;
            const uint32_t found = __ballot_sync(0xffffffffu, i < end && s.idx[i] == of_table);
            if (lane == 0) mine[w] = found;
        }
        __syncthreads();
        Found f = {mine, mine[0], 0};
        for (int last = 0; last >= 0;) {
            float values[PLACES][QUAD];
            UNROLLED(PLACES)
            for (int k = 0; k < PLACES; k++) {
                if (last >= 0) last = found_next(&f);
                const bool any = last >= 0 && column < s.dim; /* else zeros */
                const int64_t from = any ? (begin + last) * s.dim : 0;
                some_load<QUAD>(s.dy, any ? from + column : 0, any ? from + s.dim : 0, s.whole, values[k]);
            }
            UNROLLED(PLACES)
            for (int k = 0; k < PLACES; k++)
                for (int i = 0; i < QUAD; i++) sum[i] += values[k][i];
        }
        __syncthreads();
    }
    if (column < s.dim) some_store<QUAD>(s.dw, row * s.dim + column, (row + 1) * s.dim, s.whole, sum);
}

int k_cuda_embedding_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *) {
    const size_t bytes = ends_bytes(a->embedding_dw.dw.shape.dim[0], a->embedding_dw.idx.count);
    *state = NULL;
    *workspace = bytes <= limit ? bytes : 0;
    return OK;
}

int k_cuda_embedding_dw(const KArgs *a, Err *e) {
    const View *dw = &a->embedding_dw.dw, *dy = &a->embedding_dw.dy, *idx = &a->embedding_dw.idx;
    const int64_t rows = dw->shape.dim[0], dim = dw->shape.dim[1];
    assert(idx->dtype == DT_I32 && dy->count == idx->count * dim);
    const size_t bytes = ends_bytes(rows, idx->count);
    Ends *ends = bytes && a->workspace_bytes >= bytes ? (Ends *)a->workspace : NULL;
    const Scatter s = {elements_of(dw), elements_of(dy), (const int32_t *)idx->data, ends, idx->count, dim, a->attr->embedding,
                       lanes_fit<QUAD>(dw->data, dw->dtype, dim) && lanes_fit<QUAD>(dy->data, dy->dtype, dim)};
    int code = OK;
    if (ends) code = launch_op(a, e, ends_clear, blocks_for(a, rows, TABLE_THREADS), TABLE_THREADS, ends, rows);
    if (ends && !code)
        code = launch_op(a, e, ends_find, blocks_for(a, idx->count, TABLE_THREADS), TABLE_THREADS, ends, s.idx, idx->count,
                         a->attr->embedding.first, rows);
    const dim3 grid((unsigned)rows, (unsigned)((dim + TABLE_COLUMNS - 1) / TABLE_COLUMNS));
    return code ? code : launch_op(a, e, scatter, grid, TABLE_THREADS, s);
}

/* ---- add_rows: a sample's elements are those of w from an offset on */

static int64_t sample_size(const View *y) {
    return y->shape.dim[y->shape.rank - 1] * y->shape.dim[y->shape.rank - 2];
}

static int64_t offset_of(const KArgs *a, const View *w) { return a->attr->axis.start * w->shape.dim[1]; }

/* each: samples that a block does one after the other. A thread has a quad of w for all of them. */
typedef struct AddRows { Elements x, w, y; int64_t sample, samples, each; bool whole; } AddRows;

enum { SAMPLES = 2 /* whose loads are under way together */ };

static __global__ void add_rows_kernel(const __grid_constant__ AddRows a) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x * QUAD, first = blockIdx.y * a.each;
    const int64_t end = first + a.each < a.samples ? first + a.each : a.samples;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * QUAD; i < a.sample; i += stride) {
        float w[QUAD];
        some_load<QUAD>(a.w, i, a.sample, a.whole, w);
        for (int64_t n = first; n < end; n += SAMPLES) {
            float x[SAMPLES][QUAD];
            UNROLLED(SAMPLES)
            for (int k = 0; k < SAMPLES; k++)
                some_load<QUAD>(a.x, (n + k) * a.sample + i, n + k < end ? (n + k + 1) * a.sample : 0, a.whole, x[k]);
            UNROLLED(SAMPLES)
            for (int k = 0; k < SAMPLES; k++) {
                for (int q = 0; q < QUAD; q++) x[k][q] += w[q];
                some_store<QUAD>(a.y, (n + k) * a.sample + i, n + k < end ? (n + k + 1) * a.sample : 0, a.whole, x[k]);
            }
        }
    }
}

int k_cuda_add_rows(const KArgs *a, Err *e) {
    const View *x = &a->add_rows.x, *y = &a->add_rows.y, *w = &a->add_rows.w;
    const int64_t sample = sample_size(y), samples = y->count / sample;
    AddRows f = {elements_of(x), elements_of(w), elements_of(y), sample, samples, samples, sample % QUAD == 0};
    assert(x->count == y->count && w->count >= sample);
    f.w.data = (char *)w->data + offset_of(a, w) * (int64_t)dtype_size(w->dtype);
    f.whole = f.whole && elements_aligned(f.x) && elements_aligned(f.w) && elements_aligned(f.y);
    const unsigned across = blocks_for(a, (sample + QUAD - 1) / QUAD, TABLE_THREADS);
    const int64_t parts = min_i64((samples + SAMPLES - 1) / SAMPLES, (int64_t)cuda_of(a)->model.processors * 8 / across + 1);
    f.each = (samples + parts - 1) / parts;
    const dim3 grid(across, (unsigned)((samples + f.each - 1) / f.each));
    return launch_op(a, e, add_rows_kernel, grid, TABLE_THREADS, f);
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
