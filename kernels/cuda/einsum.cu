/* einsum.cu: products by labels as plain loops (einsum.h), and tensors whose dimensions are put in another order. */
#include "einsum.h"

#include "elements.h"

struct Loops { Elements a, b, y; EinsumPlan p; int64_t outer, inner; };

static __global__ void einsum_kernel(const __grid_constant__ Loops l) {
    const int64_t each = l.p.m.size * l.p.n.size, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < l.outer * each; i += stride) {
        const int64_t m = i % each / l.p.n.size, n = i % l.p.n.size;
        EinsumPlace at = {m * l.p.m.a, n * l.p.n.b, m * l.p.m.y + n * l.p.n.y};
        at = einsum_place(l.p.outer, l.p.n_outer, i / each, at);
        double sum = 0;
        for (int64_t q = 0; q < l.inner; q++) {
            const EinsumPlace in = einsum_place(l.p.inner, l.p.n_inner, q, at);
            for (int64_t k = 0; k < l.p.k.size; k++)
                sum += (double)element_at(l.a, in.a + k * l.p.k.a) * (double)element_at(l.b, in.b + k * l.p.k.b);
        }
        dtype_store(l.y.type, l.y.data, (size_t)at.y, (float)sum);
    }
}

int cuda_einsum_loops(const KArgs *a, const EinsumPlan *p, Err *e) {
    const Loops l = {elements_of(&a->einsum.a), elements_of(&a->einsum.b), elements_of(&a->einsum.y), *p,
                     einsum_count(p->outer, p->n_outer), einsum_count(p->inner, p->n_inner)};
    return launch_op(a, e, einsum_kernel, blocks_for(a, a->einsum.y.count, ELEMENT_THREADS), ELEMENT_THREADS, l);
}

/* ---- another order of dimensions */

/* By dimension of y: its size, and how far apart its elements lie in x */
struct Permuted { Elements x, y; int rank; int64_t size[SHAPE_MAX], stride[SHAPE_MAX]; };

static __global__ void permute_kernel(const __grid_constant__ Permuted p, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        int64_t from = 0, rest = i;
        for (int d = p.rank - 1; d >= 0; d--) {
            from += rest % p.size[d] * p.stride[d];
            rest /= p.size[d];
        }
        dtype_store(p.y.type, p.y.data, (size_t)i, element_at(p.x, from));
    }
}

int k_cuda_permute(const KArgs *a, Err *e) {
    const Shape *x = &a->permute.x.shape;
    Permuted p = {elements_of(&a->permute.x), elements_of(&a->permute.y), x->rank, {0}, {0}};
    int64_t of_x[SHAPE_MAX], step = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        of_x[d] = step;
        step *= x->dim[d];
    }
    for (int d = 0; d < x->rank; d++) {
        p.size[d] = a->permute.y.shape.dim[d];
        p.stride[d] = of_x[a->attr->permute.from[d]];
    }
    return launch_op(a, e, permute_kernel, blocks_for(a, a->permute.y.count, ELEMENT_THREADS), ELEMENT_THREADS, p,
                     a->permute.y.count);
}
