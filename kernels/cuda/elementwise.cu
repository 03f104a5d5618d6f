/* elementwise.cu: the plain ones: add, copy, cast, view, accumulate. */
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

static int copy_run(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->in[0])}};
    return elements_run(a, e, Copied{}, x);
}

static int sum_run(const KArgs *a, Err *e, const View *first, const View *second) {
    ElementsOf<2> x = {{elements_of(first), elements_of(second)}};
    return elements_run(a, e, Sum{}, x);
}

int k_cuda_add(const KArgs *a, Err *e) { return sum_run(a, e, &a->in[0], &a->in[1]); }

/* Copies between the GPU's memory and pinned memory of the host, like a kernel after all that was enqueued. */
int k_cuda_copy(const KArgs *a, Err *e) {
    CudaDevice *c = (CudaDevice *)a->device;
    const size_t bytes = (size_t)a->out[0].count * dtype_size(a->out[0].dtype);
    return cuda_check(c, cudaMemcpyAsync(a->out[0].data, a->in[0].data, bytes, cudaMemcpyDefault, c->stream), "copy",
                      e);
}

int k_cuda_cast(const KArgs *a, Err *e) { return copy_run(a, e); }

int k_cuda_accumulate(const KArgs *a, Err *e) {
    return a->micro == 0 ? copy_run(a, e) : sum_run(a, e, &a->out[0], &a->in[0]);
}

int k_cuda_view(const KArgs *a, Err *e) {
    if (a->out[0].data == a->in[0].data) return OK;
    return err_set(e, ERR_INTERNAL, "view: y at %p does not share x's storage at %p", a->out[0].data, a->in[0].data);
}
