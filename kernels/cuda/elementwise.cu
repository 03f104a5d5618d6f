/* elementwise.cu: add, copy, cast, view, accumulate. */
#include "elements.h"

struct Copied {
    enum { INPUTS = 1 };
    __device__ void eight(float *y, const float (*x)[LANES], int64_t) const {
        for (int i = 0; i < LANES; i++) y[i] = x[0][i];
    }
};

struct Sum {
    enum { INPUTS = 2 };
    __device__ void eight(float *y, const float (*x)[LANES], int64_t) const {
        for (int i = 0; i < LANES; i++) y[i] = x[0][i] + x[1][i];
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

int k_cuda_cast(const KArgs *a, Err *e) { return copy_run(a, e); }

int k_cuda_accumulate(const KArgs *a, Err *e) {
    return a->micro == 0 ? copy_run(a, e) : sum_run(a, e, &a->accumulate.acc, &a->accumulate.x);
}

int k_cuda_view(const KArgs *a, Err *e) {
    if (a->view.y.data == a->view.x.data) return OK;
    return err_set(e, ERR_INTERNAL, "view: y at %p does not share x's storage at %p", a->view.y.data, a->view.x.data);
}
