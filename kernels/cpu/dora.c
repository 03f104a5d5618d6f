/* dora.c: the magnitudes of DoRA (math/dora.h): the norms of the rows of w + scaling b a, one row at a time, of which no
 * more than a piece exists; and features times their magnitude, with its gradient. */
#include "math/dora.h"
#include "codes.h"
#include "tiles.h"
#include "cpu.h"

/* ---- norms */

HOT static void add_product(float *w, float times, const float *a, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) w[i] = dora_weight(w[i], times, a[i]);
}

HOT static double square_sum(const float *w, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += w[i] * w[i];
    return (double)sum;
}

/* The sum of squares of numbers [at, at + n) of row o; n is at most TILE_COLS */
static double piece_squares(const KArgs *a, const Quantized *codes, int64_t o, int64_t at, int64_t n) {
    const View *of_a = &a->dora_norm.a, *of_b = &a->dora_norm.b;
    const int64_t rank = of_a->shape.dim[0], columns = of_a->shape.dim[1];
    float w[TILE_COLS], scratch[TILE_COLS];
    if (a->dora_norm.absmax.count) codes_load(codes, o * columns + at, n, w);
    else memcpy(w, block_load(&a->dora_norm.w, o * columns + at, n, scratch), (size_t)n * sizeof *w);
    for (int64_t k = 0; k < rank; k++) {
        const float times = a->attr->dora.scaling * dtype_load(of_b->dtype, of_b->data, (size_t)(o * rank + k));
        if (times != 0.0f) add_product(w, times, block_load(of_a, k * columns + at, n, scratch), n);
    }
    return square_sum(w, n);
}

static void norm_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t columns = a->dora_norm.a.shape.dim[1];
    const Quantized codes = {a->dora_norm.w.data, a->dora_norm.absmax.data, a->dora_norm.quant_map.data,
                             a->dora_norm.nested_absmax.data, a->dora_norm.nested_quant_map.data, a->dora_norm.nested_offset.data,
                             columns};
    for (int64_t o = begin; o < end; o++) {
        double sum = 0;
        for (int64_t at = 0; at < columns; at += TILE_COLS) sum += piece_squares(a, &codes, o, at, min_i64(TILE_COLS, columns - at));
        ((float *)a->dora_norm.norm.data)[o] = (float)sqrt(sum);
    }
}

int k_cpu_dora_norm_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)a, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cpu_dora_norm(const KArgs *a, Err *e) {
    (void)e;
    assert(a->dora_norm.b.shape.dim[1] == a->dora_norm.a.shape.dim[0] && operand_is_vector(&a->dora_norm.norm, a->dora_norm.b.shape.dim[0]));
    range_run(a, a->dora_norm.norm.count, 1, norm_piece);
    return OK;
}

/* ---- features */

HOT static void features_part(float *y, const float *x, const float *b, const float *magnitude, const float *norm, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = dora_feature(x[i], b[i], dora_factor(magnitude[i], norm[i]));
}

HOT static void terms_part(double *sum, const float *dy, const float *x, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += (double)dora_term(dy[i], x[i], b[i]);
}

/* Numbers [at, at + n) of a vector, or zeros where it is absent */
static const float *vector_load(const View *v, int64_t at, int64_t n, float *scratch) {
    if (v->count) return block_load(v, at, n, scratch);
    return memset(scratch, 0, (size_t)n * sizeof *scratch);
}

/* How many of the elements from `at` on, before `end`, are of one row and fit a tile */
static int64_t part_of(int64_t at, int64_t end, int64_t columns) {
    return min_i64(min_i64(TILE_COLS, columns - at % columns), end - at);
}

static void features_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t columns = a->dora.norm.count;
    float x[TILE_COLS], b[TILE_COLS], magnitude[TILE_COLS], y[TILE_COLS];
    for (int64_t at = begin, n; at < end; at += n) {
        n = part_of(at, end, columns);
        float *to = block_target(&a->dora.y, at, y);
        features_part(to, block_load(&a->dora.x, at, n, x), vector_load(&a->dora.b, at % columns, n, b),
                      block_load(&a->dora.magnitude, at % columns, n, magnitude), (const float *)a->dora.norm.data + at % columns, n);
        block_store(&a->dora.y, at, n, to);
    }
}

int k_cpu_dora(const KArgs *a, Err *e) {
    (void)e;
    assert(a->dora.x.count == a->dora.y.count && a->dora.x.count % a->dora.norm.count == 0);
    assert(operand_is_fp32(&a->dora.norm) && a->dora.magnitude.count == a->dora.norm.count);
    blocks_run(a, a->dora.y.count, features_piece);
    return OK;
}

static void terms_slab(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    const int64_t columns = a->dora_dm.norm.count, stop = end * columns;
    float dy[TILE_COLS], x[TILE_COLS], b[TILE_COLS];
    for (int64_t at = begin * columns, n; at < stop; at += n) {
        n = part_of(at, stop, columns);
        terms_part(sums + at % columns, block_load(&a->dora_dm.dy, at, n, dy), block_load(&a->dora_dm.x, at, n, x),
                   vector_load(&a->dora_dm.b, at % columns, n, b), n);
    }
}

int k_cpu_dora_dm_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit, (void)e;
    *state = NULL;
    *workspace = slabs_workspace(a->dora_dm.x.count / a->dora_dm.norm.count, a->dora_dm.norm.count);
    return OK;
}

int k_cpu_dora_dm(const KArgs *a, Err *e) {
    const int64_t columns = a->dora_dm.norm.count;
    (void)e;
    assert(a->dora_dm.dy.count == a->dora_dm.x.count && a->dora_dm.x.count % columns == 0 && a->dora_dm.dm.count == columns);
    const double *sums = slabs_run(a, a->dora_dm.x.count / columns, columns, terms_slab);
    const float *norm = a->dora_dm.norm.data;
    for (int64_t i = 0; i < columns; i++)
        dtype_store(a->dora_dm.dm.dtype, a->dora_dm.dm.data, (size_t)i, (float)(sums[i] / (double)norm[i]));
    return OK;
}
