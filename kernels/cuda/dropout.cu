/* dropout.cu: ops that draw: y = x keep / (1 - p), and normal numbers. Numbers are drawn as on the CPU: by an element's
 * place in memory, the op and the count of calls. The count is read on the device, so that a recorded step draws other
 * numbers each time it is replayed. */
#include "elements.h"

enum { DRAWN = 4 }; /* numbers that one call of Philox draws */
static_assert((int)DRAWN == (int)QUAD, "a quad is one call");

struct Dropout {
    enum { INPUTS = 1 };
    DropAttr drop;
    uint64_t seed;
    const uint32_t *calls;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t begin) const {
        const Philox r = philox(seed, RNG_DROPOUT, drop.id, *calls, (uint64_t)begin / DRAWN);
        for (int i = 0; i < DRAWN; i++) y[i] = x[0][i] * dropout_keep(drop.p, r.x[i]);
    }
};

/* The same of a slice. */
struct DropoutWithin {
    enum { INPUTS = 1 };
    DropAttr drop;
    uint64_t seed;
    const uint32_t *calls;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t begin) const {
        for (int i = 0; i < QUAD; i++)
            y[i] = x[0][i] * dropout_factor(drop.p, seed, drop.id, *calls, (uint64_t)within_place(drop.within, begin + i));
    }
};

/* Whole channels: number n C + c is drawn for channel c of image n. */
struct DropoutChannels {
    enum { INPUTS = 1 };
    DropAttr drop;
    uint64_t seed;
    const uint32_t *calls;
    int64_t channels, image; /* elements of an image */
    __device__ void four(float *y, const float (*x)[QUAD], int64_t begin) const {
        for (int i = 0; i < QUAD; i++) {
            int64_t at = begin + i, number = at / image * channels + at % channels;
            y[i] = x[0][i] * dropout_factor(drop.p, seed, drop.id, *calls, (uint64_t)number);
        }
    }
};

int k_cuda_dropout(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->in[0])}};
    const View *y = &a->out[0];
    const uint32_t *calls = (const uint32_t *)a->dropout.calls.data;
    assert(a->in[0].count == y->count && 0 <= a->attr->drop.p && a->attr->drop.p <= 1);
    if (a->attr->drop.channels && !y->channels_last)
        return err_set(e, ERR_INTERNAL, "dropout of channels: the operand must be a channels-last image");
    DropoutChannels f = {a->attr->drop, a->seed, calls, y->shape.dim[1], y->count / y->shape.dim[0]};
    if (f.drop.channels) return elements_run(a, e, f, x);
    if (f.drop.within.piece) return elements_run(a, e, DropoutWithin{a->attr->drop, a->seed, calls}, x);
    return elements_run(a, e, Dropout{a->attr->drop, a->seed, calls}, x);
}

int k_cuda_dropout_dx(const KArgs *a, Err *e) { return k_cuda_dropout(a, e); }

static __global__ void randn(Elements y, uint64_t seed, uint32_t id, const uint32_t *calls, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x * DRAWN;
    for (int64_t begin = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * DRAWN; begin < count; begin += stride) {
        float four[DRAWN];
        rng_normals(philox(seed, RNG_NOISE, id, *calls, (uint64_t)begin / DRAWN), four);
        for (int k = 0; k < DRAWN && begin + k < count; k++) dtype_store(y.type, y.data, (size_t)(begin + k), four[k]);
    }
}

int k_cuda_randn(const KArgs *a, Err *e) {
    int64_t count = a->randn.y.count;
    unsigned blocks = blocks_for(a, (count + DRAWN - 1) / DRAWN, ELEMENT_THREADS);
    return launch_op(a, e, randn, blocks, ELEMENT_THREADS, elements_of(&a->randn.y), a->seed, a->attr->drop.id,
                     (const uint32_t *)a->randn.calls.data, count);
}

static __global__ void count_call(uint32_t *calls, uint32_t by) { *calls += by; }

int k_cuda_count_call(const KArgs *a, Err *e) {
    return launch_op(a, e, count_call, 1, 1, (uint32_t *)a->count_call.calls.data, (uint32_t)a->attr->count.by);
}
