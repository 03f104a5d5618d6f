/* rotary.c: rotates pairs of a sequence's features by angles that grow with the step. A step's cosines and sines are
 * computed once, for all samples and heads; where the samples have positions of their own, for each sample. */
#include "parallel.h"
#include "vector_math.h"

enum { STEPS = 8 }; /* steps of a piece; they share a table of frequencies */

/* of a step's pairs */
typedef struct Angles { float cosine[ROTARY_PAIRS], sine[ROTARY_PAIRS]; } Angles;

HOT static void set_angles(Angles *a, const float *frequency, float t, int64_t pairs) {
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        a->cosine[i] = cosf(t * frequency[i]);
        a->sine[i] = sinf(t * frequency[i]);
    }
}

/* Rotates the pairs of `heads` heads; y may be x. */
typedef void TurnFn(float *y, const float *x, const Angles *a, int64_t heads, int64_t pairs);

HOT static void turn_halves(float *y, const float *x, const Angles *a, int64_t heads, int64_t pairs) {
    for (const float *end = x + heads * 2 * pairs; x < end; x += 2 * pairs, y += 2 * pairs)
#pragma omp simd
        for (int64_t i = 0; i < pairs; i++) {
            float first = x[i], second = x[pairs + i];
            rotary_turn(a->cosine[i], a->sine[i], &first, &second);
            y[i] = first;
            y[pairs + i] = second;
        }
}

HOT static void turn_neighbours(float *y, const float *x, const Angles *a, int64_t heads, int64_t pairs) {
    for (const float *end = x + heads * 2 * pairs; x < end; x += 2 * pairs, y += 2 * pairs)
#pragma omp simd
        for (int64_t i = 0; i < pairs; i++) {
            float first = x[2 * i], second = x[2 * i + 1];
            rotary_turn(a->cosine[i], a->sine[i], &first, &second);
            y[2 * i] = first;
            y[2 * i + 1] = second;
        }
}

/* Steps [begin, end) of every sample, as many heads at a time as a BLOCK holds */
static void rotary_piece(const KArgs *a, int64_t begin, int64_t end) {
    const RotaryAttr *r = &a->attr->rotary;
    const View *x = &a->rotary.x, *y = &a->rotary.y;
    const int32_t *positions = a->rotary.positions.data;
    const int64_t *d = x->shape.dim, pairs = r->dim / 2, some = BLOCK / r->dim * r->dim;
    float frequency[ROTARY_PAIRS], from[BLOCK], to[BLOCK];
    Angles angles;
    TurnFn *turn = r->interleaved ? turn_neighbours : turn_halves;
    for (int64_t i = 0; i < pairs; i++) frequency[i] = rotary_frequency(r, i);
    for (int64_t t = begin; t < end; t++) {
        for (int64_t n = 0; n < d[0]; n++) {
            const int64_t place = positions ? positions[n * d[1] + t] : t;
            if (positions || n == 0) set_angles(&angles, frequency, (float)(r->back ? -place : place), pairs);
            for (int64_t f = 0; f < d[2]; f += some) {
                const int64_t at = (n * d[1] + t) * d[2] + f, count = min_i64(some, d[2] - f);
                float *rotated = block_target(y, at, to);
                turn(rotated, block_load(x, at, count, from), &angles, count / r->dim, pairs);
                block_store(y, at, count, rotated);
            }
        }
    }
}

int k_cpu_rotary(const KArgs *a, Err *e) {
    const View *x = &a->rotary.x;
    const int32_t dim = a->attr->rotary.dim;
    (void)e, (void)x, (void)dim;
    assert(dim > 0 && dim % 2 == 0 && dim / 2 <= ROTARY_PAIRS && dim <= BLOCK);
    assert(x->shape.rank == 3 && x->shape.dim[2] % dim == 0 && x->count == a->rotary.y.count);
    range_run(a, a->rotary.x.shape.dim[1], STEPS, rotary_piece);
    return OK;
}
