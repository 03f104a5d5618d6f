/* rotary.cu: rotates pairs of a sequence's features by angles that grow with the step. A thread has some neighbouring
 * pairs of one step of a sample. It computes their angles once and takes one head after the other; it loads HEADS of
 * them at once. */
#include "elements.h"

enum { ROTARY_THREADS = 256, HEADS = 4 };

typedef struct Rotary {
    RotaryAttr attr;
    float frequency[ROTARY_PAIRS]; /* computed on the CPU, so that angles differ from its by a rounding at most */
    int64_t samples, steps, heads;
    const int32_t *positions; /* (samples, steps); NULL: the steps are the positions */
} Rotary;

/* v: N pairs of features, as two words of N: one word of each half of the head; interleaved: two neighbours */
template <int N>
static __device__ inline void turn(const Rotary &r, const float *cosine, const float *sine, float *v) {
    if (r.attr.interleaved)
        for (int k = 0; k < N; k++) rotary_turn(cosine[k], sine[k], &v[2 * k], &v[2 * k + 1]);
    else
        for (int k = 0; k < N; k++) rotary_turn(cosine[k], sine[k], &v[k], &v[N + k]);
}

/* y may be x */
template <int N>
static __global__ void rotary_kernel(const __grid_constant__ Rotary r, Elements y, Elements x) {
    const int dim = r.attr.dim, pairs = dim / 2;
    const int64_t words = pairs / N, i = (int64_t)blockIdx.x * ROTARY_THREADS + threadIdx.x;
    const int64_t pair = i % words * N, row = i / words;
    const int64_t low_at = r.attr.interleaved ? 2 * pair : pair, apart = r.attr.interleaved ? N : pairs;
    float cosine[N], sine[N];
    if (row >= r.samples * r.steps) return;
    const int64_t place = r.positions ? r.positions[row] : row % r.steps;
    for (int k = 0; k < N; k++) {
        const float angle = (float)(r.attr.back ? -place : place) * r.frequency[pair + k];
        cosine[k] = cosf(angle);
        sine[k] = sinf(angle);
    }
    for (int64_t head = 0; head < r.heads; head += HEADS) {
        const int64_t at = (row * r.heads + head) * dim + low_at;
        Piece<N> low[HEADS] = {}, high[HEADS] = {};
        UNROLLED(HEADS)
        for (int h = 0; h < HEADS; h++) {
            if (head + h >= r.heads) continue;
            low[h] = piece_load<N>(x.type, x.data, at + h * dim);
            high[h] = piece_load<N>(x.type, x.data, at + h * dim + apart);
        }
        UNROLLED(HEADS)
        for (int h = 0; h < HEADS; h++) {
            float v[2 * N];
            if (head + h >= r.heads) continue;
            piece_unpack(x.type, low[h], v);
            piece_unpack(x.type, high[h], v + N);
            turn<N>(r, cosine, sine, v);
            lanes_store<N>(y.type, y.data, at + h * dim, v);
            lanes_store<N>(y.type, y.data, at + h * dim + apart, v + N);
        }
    }
}

template <int N> static int run(const KArgs *a, Err *e, const Rotary &r) {
    const Elements x = elements_of(&a->rotary.x), y = elements_of(&a->rotary.y);
    const int64_t threads = r.samples * r.steps * (r.attr.dim / 2 / N);
    const int64_t blocks = (threads + ROTARY_THREADS - 1) / ROTARY_THREADS;
    if (blocks <= INT32_MAX)
        return launch_op(a, e, rotary_kernel<N>, (unsigned)blocks, ROTARY_THREADS, r, y, x);
    return err_set(e, ERR_UNSUPPORTED, "rotary: expected at most 2^31 blocks, found %lld", (long long)blocks);
}

int k_cuda_rotary(const KArgs *a, Err *e) {
    const View *x = &a->rotary.x, *y = &a->rotary.y;
    assert(a->attr->rotary.dim > 0 && a->attr->rotary.dim % 2 == 0 && a->attr->rotary.dim / 2 <= ROTARY_PAIRS);
    assert(x->shape.rank == 3 && x->shape.dim[2] % a->attr->rotary.dim == 0 && x->count == y->count);
    Rotary r = {};
    r.attr = a->attr->rotary;
    r.samples = x->shape.dim[0];
    r.steps = x->shape.dim[1];
    r.heads = x->shape.dim[2] / r.attr.dim;
    r.positions = (const int32_t *)a->rotary.positions.data;
    for (int i = 0; i < r.attr.dim / 2; i++) r.frequency[i] = rotary_frequency(&r.attr, i);
    const int64_t half = r.attr.dim / 2;
    const bool whole = lanes_fit<4>(x->data, x->dtype, half) && lanes_fit<4>(y->data, y->dtype, half);
    return whole ? run<4>(a, e, r) : run<1>(a, e, r);
}
