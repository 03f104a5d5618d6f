/* nhwc_to_nchw.c: channels-last images to PyTorch's element order and back: per sample a transposition
 * (H W, C) <-> (C, H W). */
#include "parallel.h"
#include "program/nhwc_to_nchw.h"

enum { TILE = 32 }; /* rows of cache lines that stay close while a tile is transposed */

/* to (cols, rows) = from (rows, cols) transposed, for columns [c0, c1) */
#define TRANSPOSE(name, type)                                                                         \
    static void name(void *to, const void *from, int64_t rows, int64_t cols, int64_t c0, int64_t c1) { \
        for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                                   \
            for (int64_t c = c0; c < c1; c++)                                                         \
                for (int64_t r = r0; r < min_i64(r0 + TILE, rows); r++)                               \
                    ((type *)to)[c * rows + r] = ((const type *)from)[r * cols + c];                  \
    }
TRANSPOSE(transpose_2, uint16_t)
TRANSPOSE(transpose_4, uint32_t)

/* Items are tiles of columns, of one sample after the other. */
static void transpose(const KArgs *a, int64_t begin, int64_t end) {
    Rows r;
    if (rows_read(a, &r, NULL)) return; /* never: k_cpu_nhwc_to_nchw has read it, too */
    size_t size = dtype_size(a->in[0].dtype), sample = (size_t)(r.rows * r.cols) * size;
    int64_t tiles = div_up(r.cols, TILE);
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)a->out[0].data + (size_t)(i / tiles) * sample;
        const char *from = (const char *)a->in[0].data + (size_t)(i / tiles) * sample;
        int64_t c0 = i % tiles * TILE;
        (size == 2 ? transpose_2 : transpose_4)(to, from, r.rows, r.cols, c0, min_i64(c0 + TILE, r.cols));
    }
}

int k_cpu_nhwc_to_nchw(const KArgs *a, Err *e) {
    Rows r;
    int rc = rows_read(a, &r, e);
    assert(rc || (a->in[0].count == a->out[0].count && a->in[0].count == r.samples * r.rows * r.cols));
    assert(rc || dtype_size(a->in[0].dtype) == 2 || dtype_size(a->in[0].dtype) == 4);
    if (rc == OK) range_run(a, r.samples * div_up(r.cols, TILE), 1, transpose);
    return rc;
}

int k_cpu_nhwc_to_nchw_dx(const KArgs *a, Err *e) { return k_cpu_nhwc_to_nchw(a, e); }
