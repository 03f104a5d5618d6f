/* rows.c: channels-last images to PyTorch's element order and back: per sample a
 * transposition (H W, C) <-> (C, H W). */
#include "loops.h"

enum { TILE = 32 }; /* rows of cache lines that stay close while a tile is turned */

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

/* (C, H W) of the channels-last operand: an image, or a flattened one. */
static void image_of(const View *v, int64_t *c, int64_t *hw) {
    const int64_t *chw = v->order[0] ? v->order : &v->shape.dim[1];
    *c = chw[0];
    *hw = chw[1] * chw[2];
}

/* One tile of columns of one sample's (rows, cols) matrix; items are tiles. */
static void turn(const KArgs *a, int64_t rows, int64_t cols, int64_t begin, int64_t end) {
    size_t size = dtype_size(a->in[0].dtype), sample = (size_t)(rows * cols) * size;
    int64_t tiles = (cols + TILE - 1) / TILE;
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)a->out[0].data + (size_t)(i / tiles) * sample;
        const char *from = (const char *)a->in[0].data + (size_t)(i / tiles) * sample;
        int64_t c0 = i % tiles * TILE;
        (size == 2 ? transpose_2 : transpose_4)(to, from, rows, cols, c0, min_i64(c0 + TILE, cols));
    }
}

static void to_rows_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t c, hw;
    image_of(&a->in[0], &c, &hw);
    turn(a, hw, c, begin, end);
}

static void to_rows_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t c, hw;
    image_of(&a->out[0], &c, &hw);
    turn(a, c, hw, begin, end);
}

static int check(const KArgs *a, const View *image, Err *e) {
    if (a->in[0].dtype != a->out[0].dtype)
        return err_set(e, ERR_INTERNAL, "%s: from %s to %s; both must be of one type", op_info(a->kind)->name,
                       dtype_name(a->in[0].dtype), dtype_name(a->out[0].dtype));
    if (!image->order[0] && !(image->channels_last && image->shape.rank == 4))
        return err_set(e, ERR_INTERNAL, "%s: the operand is neither a channels-last image nor a flattened one",
                       op_info(a->kind)->name);
    return OK;
}

static void turn_run(const KArgs *a, const View *image, bool to_rows) {
    int64_t c, hw;
    image_of(image, &c, &hw);
    int64_t tiles = ((to_rows ? c : hw) + TILE - 1) / TILE;
    range_run(a, image->count / (c * hw) * tiles, 1, to_rows ? to_rows_piece : to_rows_dx_piece);
}

int k_cpu_to_rows(const KArgs *a, Err *e) {
    int rc = check(a, &a->in[0], e);
    if (rc == OK) turn_run(a, &a->in[0], true);
    return rc;
}

int k_cpu_to_rows_dx(const KArgs *a, Err *e) {
    int rc = check(a, &a->out[0], e);
    if (rc == OK) turn_run(a, &a->out[0], false);
    return rc;
}
