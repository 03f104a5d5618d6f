#include "small_n_gemm.h"

#include "act.h"
#include "lanes.h"
#include "program/operands.h"

/* Sums are fp32, in vectors of LANES. A tile of x or w is TILE columns: it is read where it lies, or, if it is 16-bit
 * or no multiple of STEP long, from an fp32 copy in the first cache. */
enum { OUTPUTS = 16, STEP = 2 * LANES, TILE = 512, ROWS = 32, CHUNKS = 32 };

bool small_n_fits(const View *w) { return w->shape.dim[0] <= OUTPUTS; }

/* ---- tiles */

INLINE void tile_read(DType t, const void *from, int64_t at, int64_t n, float *to) {
    const uint16_t *h = (const uint16_t *)from + at;
    if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++) to[i] = bf16_to_f32(h[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = dtype_load(t, from, (size_t)(at + i));
    for (int64_t i = n; i % STEP; i++) to[i] = 0.0f;
}

/* n elements from `at` on as fp32; up to the next multiple of STEP there are zeros after them */
INLINE const float *tile_get(DType t, const void *from, int64_t at, int64_t n, float *buffer) {
    if (t == DT_F32 && n % STEP == 0) return (const float *)from + at;
    tile_read(t, from, at, n, buffer);
    return buffer;
}

/* Where to write n elements: where they lie, or a buffer that tile_put then stores */
INLINE float *tile_place(DType t, void *to, int64_t at, int64_t n, float *buffer) {
    return t == DT_F32 && n % STEP == 0 ? (float *)to + at : buffer;
}

INLINE void tile_put(DType t, void *to, int64_t at, int64_t n, const float *from) {
    uint16_t *h = (uint16_t *)to + at;
    if (t == DT_F32 && from == (float *)to + at) return;
    if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++) h[i] = bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++) dtype_store(t, to, (size_t)(at + i), from[i]);
}

/* ---- forward: blocks of rows times chunks of columns; at the end the chunks' sums are added up */

/* Columns of a chunk */
static int64_t chunk_columns(int64_t inputs) { return (inputs + CHUNKS * TILE - 1) / (CHUNKS * TILE) * TILE; }

static int64_t chunk_count(int64_t inputs) { return (inputs + chunk_columns(inputs) - 1) / chunk_columns(inputs); }

size_t small_n_workspace(const KArgs *args) {
    const Shape *w = &args->linear.w.shape;
    int64_t rows = args->linear.x.count / w->dim[1];
    return align_up((size_t)(chunk_count(w->dim[1]) * rows * w->dim[0]) * sizeof(float), 64);
}

/* sum0[k] += x0 w[k], sum1[k] += x1 w[k] for k < q, over n columns, lane by lane */
INLINE void dot(const float *x0, const float *x1, const float *const *w, int q, int64_t n, V *sum0, V *sum1) {
    V a[4], b[4];
    for (int k = 0; k < q; k++) a[k] = sum0[k], b[k] = sum1[k];
    for (int64_t i = 0; i < n; i += LANES) {
        V u = *(const V *)(x0 + i), v = *(const V *)(x1 + i);
        for (int k = 0; k < q; k++) {
            V c = *(const V *)(w[k] + i);
            a[k] += u * c;
            b[k] += v * c;
        }
    }
    for (int k = 0; k < q; k++) sum0[k] = a[k], sum1[k] = b[k];
}

INLINE void dots(const float *x0, const float *x1, const float *const *w, int outputs, int64_t n, V *sum0, V *sum1) {
    for (int o = 0; o < outputs; o += 4) {
        switch (outputs - o) {
        case 1: dot(x0, x1, w + o, 1, n, sum0 + o, sum1 + o); break;
        case 2: dot(x0, x1, w + o, 2, n, sum0 + o, sum1 + o); break;
        case 3: dot(x0, x1, w + o, 3, n, sum0 + o, sum1 + o); break;
        default: dot(x0, x1, w + o, 4, n, sum0 + o, sum1 + o);
        }
    }
}

/* partial[rows][outputs] = x w^T over columns [col, end); at most ROWS rows */
FUSED static void forward_block(const View *x, const View *w, int64_t row, int64_t rows, int64_t col, int64_t end,
                                 float *partial) {
    int outputs = (int)w->shape.dim[0];
    int64_t inputs = w->shape.dim[1];
    float wide[OUTPUTS][TILE], even[TILE], odd[TILE];
    const float *tile[OUTPUTS];
    V sums[ROWS + 1][OUTPUTS]; /* an odd last row is computed twice, the second time into the additional row */
    memset(sums, 0, sizeof sums);
    for (; col < end; col += TILE) {
        int64_t n = min_i64(TILE, end - col), to = (n + LANES - 1) / LANES * LANES;
        for (int o = 0; o < outputs; o++) tile[o] = tile_get(w->dtype, w->data, o * inputs + col, n, wide[o]);
        for (int64_t r = 0; r < rows; r += 2) {
            const float *x0 = tile_get(x->dtype, x->data, (row + r) * inputs + col, n, even), *x1 = x0;
            if (r + 1 < rows) x1 = tile_get(x->dtype, x->data, (row + r + 1) * inputs + col, n, odd);
            dots(x0, x1, tile, outputs, to, sums[r], sums[r + 1]);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            float sum = 0.0f;
            for (int k = 0; k < LANES; k++) sum += sums[r][o][k];
            partial[r * outputs + o] = sum;
        }
    }
}

int small_n_forward(const KArgs *args, Err *e) {
    const View *x = &args->linear.x, *w = &args->linear.w, *b = &args->linear.b, *y = &args->linear.y;
    const LinearAttr *a = &args->attr->linear;
    int64_t inputs = w->shape.dim[1], outputs = w->shape.dim[0], rows = x->count / inputs;
    int64_t columns = chunk_columns(inputs), chunks = chunk_count(inputs);
    assert(small_n_fits(w) && y->count == rows * outputs && (!b->count || b->count == outputs));
    if (args->workspace_bytes < small_n_workspace(args))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", small_n_workspace(args),
                       args->workspace_bytes);
    float *partial = args->workspace; /* (chunks, N, O) */
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t r = 0; r < rows; r += ROWS)
            forward_block(x, w, r, min_i64(ROWS, rows - r), c * columns, min_i64(inputs, (c + 1) * columns),
                          partial + (c * rows + r) * outputs);
    for (int64_t i = 0; i < rows * outputs; i++) {
        float sum = b->count ? dtype_load(b->dtype, b->data, (size_t)(i % outputs)) : 0.0f;
        for (int64_t c = 0; c < chunks; c++) sum += partial[c * rows * outputs + i];
        dtype_store(y->dtype, y->data, (size_t)i, act_value(a->fused, sum));
    }
    return OK;
}

/* ---- gradient of the input: two rows and two vectors at a time */

/* For db each block of rows has a row of the workspace: the sums of its columns. */
size_t small_n_dx_workspace(const KArgs *args) {
    int64_t inputs = args->linear_dx.db.count;
    int64_t blocks = inputs ? (args->linear_dx.dx.count / inputs + ROWS - 1) / ROWS : 0;
    return align_up((size_t)(blocks * inputs) * sizeof(float), 64);
}

/* n elements of dx from `at` on, in `to`, lack only the activation's gradient: multiplies by it, adds the elements to
 * their sums and stores them. */
INLINE void dx_leave(const KArgs *args, int64_t at, int64_t n, float *to, float *sums) {
    const ActAttr *act = &args->attr->linear.fused;
    const View *s = &args->linear_dx.s, *dx = &args->linear_dx.dx;
    float saved[TILE], *out = act->act ? tile_place(dx->dtype, dx->data, at, n, to) : to;
    if (act->act) act_dx_block(act, out, to, tile_get(s->dtype, s->data, at, n, saved), n);
    if (sums) sum_rows(sums, out, 1, n);
    tile_put(dx->dtype, dx->data, at, n, out);
}

/* dx of rows [row, row + rows), TILE columns from `col` on. sums: of these columns, for db; NULL: there is no db */
FUSED static void dx_block(const KArgs *args, int64_t row, int64_t rows, int64_t col, float *sums) {
    const View *dy = &args->linear_dx.dy, *w = &args->linear_dx.w, *dx = &args->linear_dx.dx;
    int outputs = (int)w->shape.dim[0];
    int64_t inputs = w->shape.dim[1], n = min_i64(TILE, inputs - col);
    const bool act = args->attr->linear.fused.act;
    float wide[OUTPUTS][TILE], even[TILE], odd[TILE], d[2][OUTPUTS + STEP];
    const float *tile[OUTPUTS];
    for (int o = 0; o < outputs; o++) tile[o] = tile_get(w->dtype, w->data, o * inputs + col, n, wide[o]);
    for (int64_t r = row; r < row + rows; r += 2) {
        bool pair = r + 1 < row + rows;
        tile_read(dy->dtype, dy->data, r * outputs, outputs, d[0]);
        if (pair) tile_read(dy->dtype, dy->data, (r + 1) * outputs, outputs, d[1]);
        else memset(d[1], 0, sizeof d[1]);
        /* with an activation dx may lie where s does, so products stay in the buffers until s has been read */
        float *to0 = act ? even : tile_place(dx->dtype, dx->data, r * inputs + col, n, even);
        float *to1 = act || !pair ? odd : tile_place(dx->dtype, dx->data, (r + 1) * inputs + col, n, odd);
        for (int64_t i = 0; i < n; i += STEP) {
            V a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0};
            for (int o = 0; o < outputs; o++) {
                V w0 = *(const V *)(tile[o] + i), w1 = *(const V *)(tile[o] + i + LANES);
                a0 += d[0][o] * w0;
                a1 += d[0][o] * w1;
                b0 += d[1][o] * w0;
                b1 += d[1][o] * w1;
            }
            *(V *)(to0 + i) = a0;
            *(V *)(to0 + i + LANES) = a1;
            *(V *)(to1 + i) = b0;
            *(V *)(to1 + i + LANES) = b1;
        }
        dx_leave(args, r * inputs + col, n, to0, sums);
        if (pair) dx_leave(args, (r + 1) * inputs + col, n, to1, sums);
    }
}

int small_n_dx(const KArgs *args, Err *e) {
    const View *w = &args->linear_dx.w, *dx = &args->linear_dx.dx, *db = &args->linear_dx.db;
    int64_t inputs = w->shape.dim[1], rows = dx->count / inputs, blocks = (rows + ROWS - 1) / ROWS;
    float *parts = args->workspace; /* (blocks, I) */
    assert(small_n_fits(w) && args->linear_dx.dy.count == rows * w->shape.dim[0]);
    assert(!db->count || db->count == inputs);
    assert(!args->attr->linear.fused.act || args->linear_dx.s.count == dx->count);
    if (args->workspace_bytes < small_n_dx_workspace(args))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", small_n_dx_workspace(args),
                       args->workspace_bytes);
    if (db->count) memset(parts, 0, (size_t)(blocks * inputs) * sizeof *parts);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t c = 0; c < inputs; c += TILE)
        for (int64_t b = 0; b < blocks; b++)
            dx_block(args, b * ROWS, min_i64(ROWS, rows - b * ROWS), c, db->count ? parts + b * inputs + c : NULL);
    if (db->count) sum_parts(db, parts, blocks);
    return OK;
}
