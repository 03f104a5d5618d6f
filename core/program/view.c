#include "view.h"

#include <string.h>

View view_of(const Buf *b, void *data) {
    View v;
    memset(&v, 0, sizeof v);
    if (!b) return v;
    v.data = data;
    v.dtype = b->dtype;
    v.count = program_elements(b);
    v.shape = b->shard.count ? shape1(v.count) : program_shape(b);
    if (b->shard.count) return v;
    v.channels_last = b->layout == LAYOUT_NHWC;
    memcpy(v.order, b->order, sizeof v.order);
    return v;
}

void view_args(const Program *p, const Op *op, KArgs *args) {
    memset(args, 0, sizeof *args);
    args->kind = op->kind;
    args->attr = &op->attr;
    args->script = &p->formula;
    for (int k = 0; k < OP_IN; k++) args->in[k] = view_of(op->in[k] == NO_BUF ? NULL : &p->bufs[op->in[k]], NULL);
    for (int k = 0; k < OP_OUT; k++) args->out[k] = view_of(op->out[k] == NO_BUF ? NULL : &p->bufs[op->out[k]], NULL);
    args->state = op->state;
    args->flops = op->flops;
    args->traffic = op->traffic;
    args->begun = op->begun;
    args->path = op->path;
}

/* How the elements of `b` are permuted: n blocks, (c, hw) in PyTorch's order, are stored as (hw, c). */
static void blocks(const Buf *b, int64_t *n, int64_t *c, int64_t *hw) {
    const Shape shape = program_shape(b);
    const int64_t count = shape_elements(&shape);
    *c = 1;
    *hw = 1;
    if (b->turned) {
        assert(shape.rank == 2 && b->layout == LAYOUT_ROWS && !b->order[0]);
        *c = shape.dim[1];
        *hw = shape.dim[0];
    } else if (b->layout == LAYOUT_NHWC) {
        assert(shape.rank == 4);
        *c = shape.dim[1];
        *hw = shape.dim[2] * shape.dim[3];
    } else if (b->order[0]) {
        *c = b->order[0];
        *hw = b->order[1] * b->order[2];
    }
    if (*c == 1 || *hw == 1) *c = count, *hw = 1; /* they lie as in PyTorch: one run */
    assert(count % (*c * *hw) == 0);
    *n = count / (*c * *hw);
}

/* Moves elements of `size` bytes, which is known where it is compiled: the copies are single instructions. */
static inline __attribute__((always_inline)) void move_elements(const Buf *b, bool pack, const char *from, char *to,
                                                                size_t size) {
    int64_t n, c, hw;
    blocks(b, &n, &c, &hw);
    for (int64_t i = 0; i < n; i++)
        for (int64_t s = 0; s < hw; s++)
            for (int64_t k = 0; k < c; k++) {
                size_t inside = (size_t)((i * hw + s) * c + k), outside = (size_t)((i * c + k) * hw + s);
                memcpy(to + size * (pack ? inside : outside), from + size * (pack ? outside : inside), size);
            }
}

static void permute(const Buf *b, bool pack, const char *from, char *to) {
    switch (dtype_size(b->dtype)) {
    case 1: move_elements(b, pack, from, to, 1); break;
    case 2: move_elements(b, pack, from, to, 2); break;
    default: move_elements(b, pack, from, to, 4);
    }
}

void view_pack_bytes(const Buf *b, const void *bytes, void *storage) { permute(b, true, bytes, storage); }
void view_unpack_bytes(const Buf *b, const void *storage, void *bytes) { permute(b, false, storage, bytes); }

/* Of a value, an fp32 or an int32 number: elements of as many bytes are those numbers themselves. */
enum { VALUE_BYTES = 4 };

/* Stores values[from], an fp32 or, for integers, an int32 number, as element `at`. */
static void store(const Buf *b, void *storage, int64_t at, const void *values, int64_t from) {
    if (dtype_is_float(b->dtype)) dtype_store(b->dtype, storage, (size_t)at, ((const float *)values)[from]);
    else ((uint8_t *)storage)[at] = (uint8_t)((const int32_t *)values)[from];
}

/* The reverse of store. */
static void load(const Buf *b, const void *storage, int64_t at, void *values, int64_t to) {
    if (dtype_is_float(b->dtype)) ((float *)values)[to] = dtype_load(b->dtype, storage, (size_t)at);
    else ((int32_t *)values)[to] = ((const uint8_t *)storage)[at];
}

void view_pack(const Buf *b, const void *values, void *storage) {
    int64_t n, c, hw;
    if (dtype_size(b->dtype) == VALUE_BYTES) {
        view_pack_bytes(b, values, storage);
        return;
    }
    blocks(b, &n, &c, &hw);
    for (int64_t i = 0; i < n; i++)
        for (int64_t s = 0; s < hw; s++)
            for (int64_t k = 0; k < c; k++) store(b, storage, (i * hw + s) * c + k, values, (i * c + k) * hw + s);
}

void view_unpack(const Buf *b, const void *storage, void *values) {
    int64_t n, c, hw;
    if (dtype_size(b->dtype) == VALUE_BYTES) {
        view_unpack_bytes(b, storage, values);
        return;
    }
    blocks(b, &n, &c, &hw);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < c; k++)
            for (int64_t s = 0; s < hw; s++) load(b, storage, (i * hw + s) * c + k, values, (i * c + k) * hw + s);
}
