/* embedding.c: rows of a table w (V, D), and their gradient. It sums over positions in ascending order: the same bits
 * for any number of threads. add_rows: rows of a table from `start` on, added to each sample. first_place: which rows of
 * (N T, D) the places of a token are. */
#include "cpu.h"
#include "leave.h"
#include "parallel.h"

static bool has_row(const View *w, int64_t v) { return v >= 0 && v < w->shape.dim[0]; }

static void embedding_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *w = &a->embedding.w;
    const int32_t *idx = a->embedding.idx.data;
    size_t row = (size_t)w->shape.dim[1] * dtype_size(a->embedding.y.dtype);
    for (int64_t i = begin; i < end; i++) {
        const int64_t v = idx[i] - a->attr->embedding.first;
        char *y = (char *)a->embedding.y.data + (size_t)i * row;
        if (has_row(w, v)) leave_bytes(y, (const char *)w->data + (size_t)v * row, row);
        else memset(y, 0, row);
    }
}

static int64_t rows_grain(int64_t dim) { return max_i64(1, BLOCK / dim); }

int k_cpu_embedding(const KArgs *a, Err *e) {
    (void)e;
    assert(a->embedding.idx.dtype == DT_I32 && a->embedding.w.dtype == a->embedding.y.dtype);
    assert(a->embedding.y.count == a->embedding.idx.count * a->embedding.w.shape.dim[1]);
    range_run(a, a->embedding.idx.count, rows_grain(a->embedding.w.shape.dim[1]), embedding_piece);
    return OK;
}

/* ---- the gradient: each row of w has a chain of the positions that read it; workspace: first[V], next[positions] */

enum { END = -1, PART = 512 };

static void embedding_dw_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int32_t *first = a->workspace, *next = first + a->embedding_dw.dw.shape.dim[0];
    int64_t dim = a->embedding_dw.dw.shape.dim[1];
    float sum[PART], from[PART];
    for (int64_t v = begin; v < end; v++)
        for (int64_t c = 0; c < dim; c += PART) {
            int64_t n = min_i64(PART, dim - c);
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int32_t i = first[v]; i != END; i = next[i])
                block_add(sum, sum, block_load(&a->embedding_dw.dy, i * dim + c, n, from), n);
            block_store(&a->embedding_dw.dw, v * dim + c, n, sum);
        }
}

static void chain_positions(const KArgs *a) {
    const int32_t *idx = a->embedding_dw.idx.data;
    const EmbeddingAttr *attr = &a->attr->embedding;
    int64_t rows = a->embedding_dw.dw.shape.dim[0];
    int32_t *first = a->workspace, *next = first + rows;
    for (int64_t v = 0; v < rows; v++) first[v] = END;
    for (int64_t i = a->embedding_dw.idx.count - 1; i >= 0; i--) {
        const int64_t v = idx[i] - attr->first;
        if (idx[i] == attr->padding || !has_row(&a->embedding_dw.dw, v)) continue;
        next[i] = first[v];
        first[v] = (int32_t)i;
    }
}

int k_cpu_embedding_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    *state = NULL;
    *workspace = (size_t)(a->embedding_dw.dw.shape.dim[0] + a->embedding_dw.idx.count) * sizeof(int32_t);
    if (a->embedding_dw.idx.count <= INT32_MAX) return OK;
    return err_set(e, ERR_UNSUPPORTED, "embedding_dw: at most %d positions, found %lld", INT32_MAX,
                   (long long)a->embedding_dw.idx.count);
}

int k_cpu_embedding_dw(const KArgs *a, Err *e) {
    const View *dw = &a->embedding_dw.dw, *idx = &a->embedding_dw.idx;
    (void)e, (void)idx;
    assert(idx->dtype == DT_I32 && a->embedding_dw.dy.count == idx->count * dw->shape.dim[1]);
    assert(a->workspace_bytes >= (size_t)(dw->shape.dim[0] + idx->count) * sizeof(int32_t));
    chain_positions(a);
    range_run(a, dw->shape.dim[0], rows_grain(dw->shape.dim[1]), embedding_dw_piece);
    return OK;
}

/* ---- add_rows: a sample's T D elements are those of w from an offset on */

static int64_t sample_size(const View *y) {
    return y->shape.dim[y->shape.rank - 1] * y->shape.dim[y->shape.rank - 2];
}

static int64_t offset_of(const KArgs *a, const View *w) { return a->attr->axis.start * w->shape.dim[1]; }

static void add_rows_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], row[BLOCK], to[BLOCK];
    int64_t sample = sample_size(&a->add_rows.y), first = offset_of(a, &a->add_rows.w);
    for (int64_t i = begin, n; i < end; i += n) {
        n = min_i64(end - i, sample - i % sample);
        float *y = block_target(&a->add_rows.y, i, to);
        block_add(y, block_load(&a->add_rows.x, i, n, from), block_load(&a->add_rows.w, first + i % sample, n, row), n);
        block_store(&a->add_rows.y, i, n, y);
    }
}

/* Rows that no step reads are 0. */
static void add_rows_dw_piece(const KArgs *a, int64_t begin, int64_t end) {
    float sum[BLOCK] = {0}, from[BLOCK];
    const int64_t sample = sample_size(&a->add_rows_dw.dy), first = offset_of(a, &a->add_rows_dw.dw);
    const int64_t from_at = max_i64(begin, first), n = min_i64(end, first + sample) - from_at;
    for (int64_t i = from_at - first; n > 0 && i < a->add_rows_dw.dy.count; i += sample) {
        float *here = sum + (from_at - begin);
        block_add(here, here, block_load(&a->add_rows_dw.dy, i, n, from), n);
    }
    block_store(&a->add_rows_dw.dw, begin, end - begin, sum);
}

int k_cpu_add_rows(const KArgs *a, Err *e) {
    (void)e;
    assert(a->add_rows.x.count == a->add_rows.y.count && a->add_rows.w.count >= sample_size(&a->add_rows.y));
    blocks_run(a, a->add_rows.y.count, add_rows_piece);
    return OK;
}

int k_cpu_add_rows_dw(const KArgs *a, Err *e) {
    (void)e;
    assert(a->add_rows_dw.dy.count % sample_size(&a->add_rows_dw.dy) == 0);
    blocks_run(a, a->add_rows_dw.dw.count, add_rows_dw_piece);
    return OK;
}

/* ---- idx (N, T), y (N) */

static void place_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t steps = a->first_place.idx.shape.dim[1], token = a->attr->place.token;
    int32_t *y = a->first_place.y.data;
    for (int64_t n = begin; n < end; n++) {
        const int32_t *row = (const int32_t *)a->first_place.idx.data + n * steps;
        int64_t first = 0;
        for (int64_t t = 1; t < steps; t++)
            if (token < 0 ? row[t] > row[first] : row[t] == token && row[first] != token) first = t;
        y[n] = (int32_t)(n * steps + first);
    }
}

int k_cpu_first_place(const KArgs *a, Err *e) {
    const View *idx = &a->first_place.idx;
    if (idx->count > INT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "first_place: at most %d places, found %lld", INT32_MAX, (long long)idx->count);
    range_run(a, idx->shape.dim[0], rows_grain(idx->shape.dim[1]), place_piece);
    return OK;
}
