/* elementwise.c: add, mul, copy, cast, view, accumulate. */
#include <string.h>

#include "parallel.h"

HOT static void add_block(float *y, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void sum_piece(const View *y, const View *first, const View *second, int64_t begin, int64_t n) {
    float one[BLOCK], two[BLOCK], to[BLOCK];
    float *sum = block_target(y, begin, to);
    add_block(sum, block_load(first, begin, n, one), block_load(second, begin, n, two), n);
    block_store(y, begin, n, sum);
}

static void add_piece(const KArgs *a, int64_t begin, int64_t end) {
    sum_piece(&a->add.y, &a->add.a, &a->add.b, begin, end - begin);
}

static void accumulate_piece(const KArgs *a, int64_t begin, int64_t end) {
    sum_piece(&a->accumulate.acc, &a->accumulate.acc, &a->accumulate.x, begin, end - begin);
}

HOT static void mul_block(float *y, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void mul_piece(const KArgs *a, int64_t begin, int64_t end) {
    float one[BLOCK], two[BLOCK], to[BLOCK];
    int64_t n = end - begin;
    float *y = block_target(&a->mul.y, begin, to);
    mul_block(y, block_load(&a->mul.a, begin, n, one), block_load(&a->mul.b, begin, n, two), n);
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
    memcpy((char *)a->copy.y.data + from, (const char *)a->copy.x.data + from, (size_t)(end - begin) * size);
}

int k_cpu_copy(const KArgs *a, Err *e) {
    (void)e;
    assert(a->copy.x.count == a->copy.y.count && a->copy.x.dtype == a->copy.y.dtype);
    blocks_run(a, a->copy.y.count, copy_piece);
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
