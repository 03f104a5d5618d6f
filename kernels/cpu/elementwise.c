/* elementwise.c: add, mul, copy, cast, view, accumulate. */

#include "act.h"
#include "leave.h"
#include "parallel.h"

static void sum_piece(const View *y, const View *first, const View *second, int64_t begin, int64_t n) {
    float one[BLOCK], two[BLOCK], to[BLOCK];
    float *sum = block_target(y, begin, to);
    block_add(sum, block_load(first, begin, n, one), block_load(second, begin, n, two), n);
    block_store(y, begin, n, sum);
}

static void add_piece(const KArgs *a, int64_t begin, int64_t end) {
    sum_piece(&a->add.y, &a->add.a, &a->add.b, begin, end - begin);
}

static void accumulate_piece(const KArgs *a, int64_t begin, int64_t end) {
    sum_piece(&a->accumulate.acc, &a->accumulate.acc, &a->accumulate.x, begin, end - begin);
}

static void mul_piece(const KArgs *a, int64_t begin, int64_t end) {
    float one[BLOCK], two[BLOCK], gate[BLOCK], to[BLOCK];
    int64_t n = end - begin;
    const float *first = block_load(&a->mul.a, begin, n, one);
    float *y = block_target(&a->mul.y, begin, to);
    if (a->attr->mul.f.act) {
        act_rounded_block(&a->attr->mul, gate, first, n);
        first = gate;
    }
    block_multiply(y, first, block_load(&a->mul.b, begin, n, two), n);
    block_store(&a->mul.y, begin, n, y);
}

/* of cast, and of accumulate in the first micro-batch */
static void cast_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK];
    block_store(&a->out[0], begin, end - begin, block_load(&a->cast.x, begin, end - begin, from));
}

int k_cpu_add(const KArgs *a, Err *e) {
    (void)e;
    assert(a->add.a.count == a->add.y.count && a->add.b.count == a->add.y.count);
    blocks_run(a, a->add.y.count, add_piece);
    return OK;
}

int k_cpu_mul(const KArgs *a, Err *e) {
    (void)e;
    assert(a->mul.a.count == a->mul.y.count && a->mul.b.count == a->mul.y.count);
    blocks_run(a, a->mul.y.count, mul_piece);
    return OK;
}

static void copy_piece(const KArgs *a, int64_t begin, int64_t end) {
    size_t size = dtype_size(a->copy.y.dtype), from = (size_t)begin * size;
    leave_bytes((char *)a->copy.y.data + from, (const char *)a->copy.x.data + from, (size_t)(end - begin) * size);
}

int k_cpu_copy(const KArgs *a, Err *e) {
    (void)e;
    assert(a->copy.x.count == a->copy.y.count && a->copy.x.dtype == a->copy.y.dtype);
    blocks_run(a, a->copy.y.count, copy_piece);
    return OK;
}

/* Elements with one number for all channels, or each with its channel's */
static void from_bytes_piece(const KArgs *a, int64_t begin, int64_t end) {
    const uint8_t *x = a->from_bytes.x.data;
    const float *mean = a->from_bytes.mean.data, *std = a->from_bytes.std.data;
    const BytesAttr *f = &a->attr->bytes;
    int64_t outer, inner = 1, c = 0, channels = a->from_bytes.mean.count;
    float to[BLOCK], *y = block_target(&a->from_bytes.y, begin, to);
    if (mean) view_split(&a->from_bytes.x, 1, &outer, &inner);
    for (int64_t at = begin, n; at < end; at += n) {
        n = mean ? min_i64(end - at, inner - at % inner) : end - at;
        if (mean) c = at / inner % channels;
        const float m = mean ? mean[c] : f->mean, s = std ? std[c] : f->std;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[at - begin + i] = byte_value(f->divisor, m, s, x[at + i]);
    }
    block_store(&a->from_bytes.y, begin, end - begin, y);
}

int k_cpu_from_bytes(const KArgs *a, Err *e) {
    (void)e;
    assert(a->from_bytes.x.dtype == DT_U8 && a->from_bytes.x.count == a->from_bytes.y.count);
    blocks_run(a, a->from_bytes.y.count, from_bytes_piece);
    return OK;
}

int k_cpu_cast(const KArgs *a, Err *e) {
    (void)e;
    assert(a->cast.x.count == a->cast.y.count && operand_is_float(&a->cast.x) && operand_is_float(&a->cast.y));
    blocks_run(a, a->cast.y.count, cast_piece);
    return OK;
}

int k_cpu_accumulate(const KArgs *a, Err *e) {
    (void)e;
    assert(a->accumulate.x.count == a->accumulate.acc.count);
    blocks_run(a, a->accumulate.acc.count, a->micro == 0 ? cast_piece : accumulate_piece);
    return OK;
}

int k_cpu_view(const KArgs *a, Err *e) {
    if (a->view.y.data == a->view.x.data) return OK;
    return err_set(e, ERR_INTERNAL, "view: y at %p does not share x's storage at %p", a->view.y.data, a->view.x.data);
}
