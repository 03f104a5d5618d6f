/* act.cu: activations, products with them, GLU and their gradients, by the formulas of core/math/pointwise.h. There is one kernel per
 * activation: the choice is made before the launch. */
#include "elements.h"

template <ActFn ACT> struct ActValue {
    enum { INPUTS = 1 };
    ActAttr f;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = act_value(act_as(f, ACT), x[0][i]);
    }
};

template <ActFn ACT> struct ActSlope {
    enum { INPUTS = 2 };
    ActAttr f;
    __device__ void four(float *dx, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) dx[i] = x[0][i] * act_slope(act_as(f, ACT), x[1][i]);
    }
};

struct Product {
    enum { INPUTS = 2 };
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = x[0][i] * x[1][i];
    }
};

template <ActFn ACT> struct Gated {
    enum { INPUTS = 2 };
    MulAttr f;
    __device__ void four(float *y, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) y[i] = dtype_round(f.of, act_value(act_as(f.f, ACT), x[0][i])) * x[1][i];
    }
};

template <ActFn ACT> struct GatedSlope {
    enum { INPUTS = 3 };
    MulAttr f;
    __device__ void four(float *da, const float (*x)[QUAD], int64_t) const {
        for (int i = 0; i < QUAD; i++) da[i] = dtype_round(f.of, x[0][i] * x[1][i]) * act_slope(act_as(f.f, ACT), x[2][i]);
    }
};

static int unknown(const KArgs *a, Err *e) {
    return err_set(e, ERR_INTERNAL, "%s: expected one of %d activations, found number %d", op_info(a->kind)->name,
                   (int)ACT_COUNT, (int)a->attr->act.act);
}

/* Runs F for the activation that the op's attributes, `attr`, begin with, over the elements of x. */
template <template <ActFn> class F, typename A, typename T> static int act_run(const KArgs *a, Err *e, const A &attr, const T &x) {
    switch (a->attr->act.act) {
#define X(name, text, saved) \
    case ACT_##name: return elements_run(a, e, F<ACT_##name>{attr}, x);
    ACTS(X)
#undef X
    default: return unknown(a, e);
    }
}

int k_cuda_act(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->act.x)}};
    assert(a->act.x.count == a->act.y.count);
    return act_run<ActValue>(a, e, a->attr->act, x);
}

int k_cuda_act_dx(const KArgs *a, Err *e) {
    ElementsOf<2> x = {{elements_of(&a->act_dx.dy), elements_of(&a->act_dx.s)}};
    assert(a->act_dx.dy.count == a->act_dx.dx.count && a->act_dx.s.count == a->act_dx.dx.count);
    return act_run<ActSlope>(a, e, a->attr->act, x);
}

/* ---- products of f(a) and b */

int k_cuda_mul(const KArgs *a, Err *e) {
    ElementsOf<2> x = {{elements_of(&a->mul.a), elements_of(&a->mul.b)}};
    assert(a->mul.a.count == a->mul.y.count && a->mul.b.count == a->mul.y.count);
    return a->attr->mul.f.act ? act_run<Gated>(a, e, a->attr->mul, x) : elements_run(a, e, Product{}, x);
}

int k_cuda_mul_da(const KArgs *a, Err *e) {
    const View *b = &a->mul_da.b, *dy = &a->mul_da.dy;
    ElementsOf<3> x = {{elements_of(b), elements_of(dy), elements_of(&a->mul_da.a)}};
    assert(b->count == a->mul_da.da.count && dy->count == b->count && a->mul_da.a.count == b->count);
    return act_run<GatedSlope>(a, e, a->attr->mul, x);
}

/* ---- GLU. x is seen as (outer, axis, inner) in the order in which it lies: of each outer index there is a run of a, then
 *      one of b, each as long as that of y. A thread takes element i of each half. */

static int64_t half_run(const KArgs *a, const View *half) {
    int64_t outer, inner;
    view_split(half, a->attr->axis.axis, &outer, &inner);
    return half->count / outer;
}

static __global__ void glu_kernel(Elements y, Elements x, int64_t run, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t at = i + i / run * run;
        dtype_store(y.type, y.data, (size_t)i, glu_value(element_at(x, at), element_at(x, at + run)));
    }
}

static __global__ void glu_dx_kernel(Elements dx, Elements x, Elements dy, int64_t run, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t at = i + i / run * run;
        float da, db;
        glu_slopes(element_at(x, at), element_at(x, at + run), element_at(dy, i), &da, &db);
        dtype_store(dx.type, dx.data, (size_t)at, da);
        dtype_store(dx.type, dx.data, (size_t)(at + run), db);
    }
}

int k_cuda_glu(const KArgs *a, Err *e) {
    const View *x = &a->glu.x, *y = &a->glu.y;
    assert(x->count == 2 * y->count);
    return launch_op(a, e, glu_kernel, blocks_for(a, y->count, ELEMENT_THREADS), ELEMENT_THREADS, elements_of(y),
                     elements_of(x), half_run(a, y), y->count);
}

int k_cuda_glu_dx(const KArgs *a, Err *e) {
    const View *x = &a->glu_dx.x, *dy = &a->glu_dx.dy, *dx = &a->glu_dx.dx;
    assert(dx->count == 2 * dy->count && x->count == dx->count);
    return launch_op(a, e, glu_dx_kernel, blocks_for(a, dy->count, ELEMENT_THREADS), ELEMENT_THREADS, elements_of(dx),
                     elements_of(x), elements_of(dy), half_run(a, dy), dy->count);
}
