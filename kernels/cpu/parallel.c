#include "parallel.h"

#include "leave.h"

enum { SUM_PARTS = 64 }; /* of a sum, whatever the count, which are kept on the stack */

void pieces_run(const void *of, int64_t count, PieceFn *piece) {
    assert(count >= 0);
    if (count <= 1 || omp_get_max_threads() == 1) { /* libgomp takes 0.3 us to begin and end a region of one thread, too */
        for (int64_t i = 0; i < count; i++) piece(of, i);
        return;
    }
#pragma omp parallel
    {
        leave_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; i++) piece(of, i);
        leave_end();
    }
}

typedef struct Range { const KArgs *a; int64_t count, grain; RangeFn *piece; } Range;

static void range_piece(const void *of, int64_t i) {
    const Range *r = of;
    r->piece(r->a, i * r->grain, min_i64((i + 1) * r->grain, r->count));
}

void range_run(const KArgs *a, int64_t count, int64_t grain, RangeFn *piece) {
    assert(count >= 0 && grain > 0);
    const Range r = {a, count, grain, piece};
    pieces_run(&r, div_up(count, grain), range_piece);
}

void blocks_run(const KArgs *a, int64_t count, RangeFn *piece) { range_run(a, count, BLOCK, piece); }

int64_t columns_together(int64_t columns) {
    int64_t n = COLUMNS_LEAST;
    while (n < COLUMNS_MOST && columns >= 2 * COLUMN_PIECES * n) n *= 2;
    return n;
}

typedef struct Sum { const KArgs *a; int64_t count, grain; SumFn *piece; double *part; } Sum;

static void sum_piece(const void *of, int64_t i) {
    const Sum *s = of;
    s->part[i] = s->piece(s->a, i * s->grain, min_i64((i + 1) * s->grain, s->count));
}

double range_sum(const KArgs *a, int64_t count, SumFn *piece) {
    assert(count >= 0);
    double part[SUM_PARTS], sum = 0;
    const int64_t grain = max_i64(1, div_up(count, SUM_PARTS)), parts = div_up(count, grain);
    const Sum s = {a, count, grain, piece, part};
    pieces_run(&s, parts, sum_piece);
    for (int64_t i = 0; i < parts; i++) sum += part[i];
    return sum;
}

HOT static void bf16_expand(float *to, const uint16_t *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = bf16_to_f32(from[i]);
}

HOT static void f16_expand(float *to, const uint16_t *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = f16_to_f32(from[i]);
}

HOT static void bf16_round(uint16_t *to, const float *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = bf16_from_f32(from[i]);
}

HOT static void f16_round(uint16_t *to, const float *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = f16_from_f32(from[i]);
}

float *block_load(const View *v, int64_t begin, int64_t n, float *scratch) {
    if (v->dtype == DT_F32) return (float *)v->data + begin;
    const uint16_t *from = (const uint16_t *)v->data + begin;
    if (v->dtype == DT_BF16) {
        bf16_expand(scratch, from, n);
    } else {
        assert(v->dtype == DT_F16);
        f16_expand(scratch, from, n);
    }
    return scratch;
}

float *block_target(const View *v, int64_t begin, float *scratch) {
    return v->dtype == DT_F32 && leave_lies() ? (float *)v->data + begin : scratch;
}

void block_store(const View *v, int64_t begin, int64_t n, const float *values) {
    if (v->dtype == DT_F32) {
        float *to = (float *)v->data + begin;
        if (to != values) leave_bytes(to, values, (size_t)n * sizeof *to);
    } else {
        uint16_t *to = (uint16_t *)v->data + begin;
        if (v->dtype == DT_BF16) {
            bf16_round(to, values, n);
        } else {
            assert(v->dtype == DT_F16);
            f16_round(to, values, n);
        }
    }
}

/* ---- blocks in fp32 */

HOT void block_fill(float *y, float value, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = value;
}

HOT void block_add(float *y, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

HOT void block_multiply(float *y, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

HOT static void round_bf16(float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = dtype_round(DT_BF16, x[i]);
}

HOT static void round_f16(float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = dtype_round(DT_F16, x[i]);
}

void block_round(DType type, float *x, int64_t n) {
    if (type == DT_BF16) round_bf16(x, n);
    if (type == DT_F16) round_f16(x, n);
}

HOT void block_sum(double *sums, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sums[i] += (double)x[i];
}

HOT void sum_rows(float *sums, const float *x, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) sums[c] += x[r * channels + c];
    }
}
