/* einsum.c: y = a b by labels (core/math/einsum.h) in fp32: matrix products, shared among threads where there are
 * several, else each on all threads; or, where an operand's neighbours are no row and no column, plain loops. And
 * tensors whose dimensions are put in another order. */
#include <string.h>

#include "math/einsum.h"
#include "cpu.h"
#include "fp32_product.h"
#include "fp32_workspace.h"

static EinsumPlan plan_of(const KArgs *a) {
    EinsumPlan p;
    memset(&p, 0, sizeof p);
    einsum_plan(&a->attr->einsum, &a->einsum.a.shape, &a->einsum.b.shape, &a->einsum.y.shape, &p); /* it was checked */
    return p;
}

int k_cpu_einsum_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    Room r = {NULL, 0};
    KArgs wide;
    (void)limit;
    (void)e;
    fp32_enter(a, &r, &wide);
    return room_prepared(&r, state, workspace);
}

static Matrix matrix_at(float *at, EinsumMatrix m) { return (Matrix){at, m.stride, m.transposed}; }
static Matrix turned(Matrix m) { return (Matrix){m.at, m.stride, !m.transposed}; }

/* Sums of several matrix products are added up one after the other. What lies by columns is the product of the
 * transposed operands. */
static int one_product(const KArgs *w, const EinsumPlan *p, EinsumPlace at) {
    const EinsumMatrix a = einsum_matrix(&p->m, p->m.a, &p->k, p->k.a), b = einsum_matrix(&p->k, p->k.b, &p->n, p->n.b);
    const EinsumMatrix y = einsum_matrix(&p->m, p->m.y, &p->n, p->n.y);
    const int64_t count = einsum_count(p->inner, p->n_inner);
    int status = 0;
    for (int64_t i = 0; i < count && !status; i++) {
        const EinsumPlace in = einsum_place(p->inner, p->n_inner, i, at);
        const Matrix one = matrix_at((float *)w->einsum.a.data + in.a, a), two = matrix_at((float *)w->einsum.b.data + in.b, b);
        const Matrix to = {(float *)w->einsum.y.data + in.y, y.stride, false};
        status = y.transposed ? product(p->n.size, p->m.size, p->k.size, 1.0f, turned(two), turned(one), i > 0, to)
                              : product(p->m.size, p->n.size, p->k.size, 1.0f, one, two, i > 0, to);
    }
    return status;
}

static float one_sum(const float *a, const float *b, const EinsumPlan *p, EinsumPlace at) {
    const int64_t count = einsum_count(p->inner, p->n_inner);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const EinsumPlace in = einsum_place(p->inner, p->n_inner, i, at);
        for (int64_t k = 0; k < p->k.size; k++) sum += (double)a[in.a + k * p->k.a] * (double)b[in.b + k * p->k.b];
    }
    return (float)sum;
}

static void plain_loops(const KArgs *w, const EinsumPlan *p, EinsumPlace at) {
    const float *a = w->einsum.a.data, *b = w->einsum.b.data;
    float *y = w->einsum.y.data;
    for (int64_t m = 0; m < p->m.size; m++)
        for (int64_t n = 0; n < p->n.size; n++) {
            const EinsumPlace of = {at.a + m * p->m.a, at.b + n * p->n.b, at.y + m * p->m.y + n * p->n.y};
            y[of.y] = one_sum(a, b, p, of);
        }
}

int k_cpu_einsum(const KArgs *a, Err *e) {
    const EinsumPlan p = plan_of(a);
    const int64_t all = einsum_count(p.outer, p.n_outer);
    Room needed = {NULL, 0}, room = {a->workspace, 0};
    KArgs w;
    int status = 0;
    fp32_enter(a, &needed, &w);
    int code = room_check(&needed, a, e);
    if (code) return code;
    if (a->workspace) fp32_enter(a, &room, &w);
#pragma omp parallel for schedule(static) reduction(| : status) if (all > 1)
    for (int64_t i = 0; i < all; i++) {
        const EinsumPlace at = einsum_place(p.outer, p.n_outer, i, (EinsumPlace){0, 0, 0});
        if (p.matrices) status |= one_product(&w, &p, at);
        else plain_loops(&w, &p, at);
    }
    fp32_leave(a, &w);
    return product_check(status, e);
}

/* ---- another order of dimensions */

enum { LINE = 64 }; /* elements of y that a thread moves at a time, at least */

/* By dimension of y: how far apart its elements lie in x, in elements */
static void strides_of(const View *x, const PermuteAttr *p, int64_t stride[SHAPE_MAX]) {
    int64_t of_x[SHAPE_MAX] = {0}, step = 1;
    for (int d = x->shape.rank - 1; d >= 0; d--) {
        of_x[d] = step;
        step *= x->shape.dim[d];
    }
    for (int d = 0; d < x->shape.rank; d++) stride[d] = of_x[p->from[d]];
}

HOT static void move_line(char *to, const char *from, int64_t stride, int64_t n, size_t size) {
    if (stride == 1) memcpy(to, from, (size_t)n * size);
    else if (size == 4) for (int64_t i = 0; i < n; i++) ((uint32_t *)to)[i] = ((const uint32_t *)from)[i * stride];
    else if (size == 2) for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = ((const uint16_t *)from)[i * stride];
    else for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];
}

/* Items are lines of y along its last dimension. */
static void permute_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *x = &a->permute.x, *y = &a->permute.y;
    const int rank = y->shape.rank, last = rank - 1;
    const int64_t n = y->shape.dim[last];
    const size_t size = dtype_size(y->dtype);
    int64_t stride[SHAPE_MAX];
    strides_of(x, &a->attr->permute, stride);
    for (int64_t line = begin; line < end; line++) {
        int64_t from = 0;
        for (int64_t d = last - 1, rest = line; d >= 0; rest /= y->shape.dim[d], d--)
            from += rest % y->shape.dim[d] * stride[d];
        move_line((char *)y->data + (size_t)(line * n) * size, (const char *)x->data + (size_t)from * size, stride[last],
                  n, size);
    }
}

int k_cpu_permute(const KArgs *a, Err *e) {
    const int64_t n = a->permute.y.shape.dim[a->permute.y.shape.rank - 1];
    (void)e;
    range_run(a, a->permute.y.count / n, max_i64(1, LINE / n), permute_piece);
    return OK;
}
