#include "parallel.h"

#include <math.h>

/* A sum has SUM_PARTS parts, whatever the count, which are kept on the stack. Up to SERIAL_PIECES pieces of work are
 * not worth the start of threads. */
enum { SUM_PARTS = 64, SERIAL_PIECES = 4 };

void range_run(const KArgs *a, int64_t count, int64_t grain, RangeFn *piece) {
    assert(count >= 0 && grain > 0);
    int64_t pieces = (count + grain - 1) / grain;
#pragma omp parallel for schedule(static) if (pieces > SERIAL_PIECES)
    for (int64_t i = 0; i < pieces; i++) piece(a, i * grain, min_i64((i + 1) * grain, count));
}

void blocks_run(const KArgs *a, int64_t count, RangeFn *piece) { range_run(a, count, BLOCK, piece); }

double range_sum(const KArgs *a, int64_t count, SumFn *piece) {
    assert(count >= 0);
    double part[SUM_PARTS], sum = 0;
    int64_t grain = (count + SUM_PARTS - 1) / SUM_PARTS;
#pragma omp parallel for schedule(static) if (count > BLOCK)
    for (int64_t i = 0; i < SUM_PARTS; i++)
        part[i] = piece(a, min_i64(i * grain, count), min_i64((i + 1) * grain, count));
    for (int i = 0; i < SUM_PARTS; i++) sum += part[i];
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
    return v->dtype == DT_F32 ? (float *)v->data + begin : scratch;
}

void block_store(const View *v, int64_t begin, int64_t n, const float *values) {
    if (v->dtype == DT_F32) {
        float *to = (float *)v->data + begin;
        if (to != values) memcpy(to, values, (size_t)n * sizeof *to);
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
