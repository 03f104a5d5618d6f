/* elementwise.cu: add, copy, cast, view, accumulate. */
#include "elements.h"

struct Copied {
    enum { INPUTS = 1 };
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i];
    }
};

struct Sum {
    enum { INPUTS = 2 };
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i] + x[1][i];
    }
};

/* of cast, and of accumulate in the first micro-batch */
static int copy_run(const KArgs *a, Err *e) {
    assert(a->in[0].count == a->out[0].count);
    ElementsOf<1> x = {{elements_of(&a->cast.x)}};
    return elements_run(a, e, Copied{}, x);
}

static int sum_run(const KArgs *a, Err *e, const View *first, const View *second) {
    assert(first->count == a->out[0].count && second->count == a->out[0].count);
    ElementsOf<2> x = {{elements_of(first), elements_of(second)}};
    return elements_run(a, e, Sum{}, x);
}

int k_cuda_add(const KArgs *a, Err *e) { return sum_run(a, e, &a->add.a, &a->add.b); }

/* Copies between the GPU's memory and pinned memory of the host; enqueued like a kernel. */
int k_cuda_copy(const KArgs *a, Err *e) {
    const View *x = &a->copy.x, *y = &a->copy.y;
    CudaDevice *c = cuda_of(a);
    const size_t bytes = (size_t)y->count * dtype_size(y->dtype);
    assert(x->count == y->count && x->dtype == y->dtype);
    return cuda_check(c, cudaMemcpyAsync(y->data, x->data, bytes, cudaMemcpyDefault, c->stream), "copy", e);
}

/* mean, std: [channels], or NULL: the attribute's */
typedef struct Bytes { const uint8_t *x; const float *mean, *std; int64_t inner, channels; BytesAttr f; } Bytes;

static __global__ void from_bytes_kernel(Elements y, Bytes b, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t c = b.mean ? i / b.inner % b.channels : 0;
        const float mean = b.mean ? b.mean[c] : b.f.mean, std = b.mean ? b.std[c] : b.f.std;
        dtype_store(y.type, y.data, (size_t)i, byte_value(b.f.divisor, mean, std, b.x[i]));
    }
}

int k_cuda_from_bytes(const KArgs *a, Err *e) {
    const View *x = &a->from_bytes.x, *y = &a->from_bytes.y, *mean = &a->from_bytes.mean;
    int64_t outer, inner = 1;
    assert(x->dtype == DT_U8 && x->count == y->count);
    if (mean->count) view_split(x, 1, &outer, &inner);
    Bytes b = {(const uint8_t *)x->data, (const float *)mean->data, (const float *)a->from_bytes.std.data, inner,
               mean->count, a->attr->bytes};
    return launch_op(a, e, from_bytes_kernel, blocks_for(a, y->count, ELEMENT_THREADS), ELEMENT_THREADS, elements_of(y), b,
                     y->count);
}

int k_cuda_cast(const KArgs *a, Err *e) { return copy_run(a, e); }

int k_cuda_accumulate(const KArgs *a, Err *e) {
    return a->micro == 0 ? copy_run(a, e) : sum_run(a, e, &a->accumulate.acc, &a->accumulate.x);
}

int k_cuda_view(const KArgs *a, Err *e) {
    if (a->view.y.data == a->view.x.data) return OK;
    return err_set(e, ERR_INTERNAL, "view: y at %p does not share x's storage at %p", a->view.y.data, a->view.x.data);
}
