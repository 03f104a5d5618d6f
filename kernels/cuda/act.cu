/* act.cu: activations and their gradients, by the formulas of core/math/pointwise.h. There is one kernel per
 * activation: the choice is made before the launch. */
#include "elements.h"

template <ActFn ACT> struct ActValue {
    enum { INPUTS = 1 };
    ActAttr f;
    __device__ void eight(float *y, const float (*x)[LANES], int64_t) const {
        for (int i = 0; i < LANES; i++) y[i] = act_value(act_as(f, ACT), x[0][i]);
    }
};

template <ActFn ACT> struct ActSlope {
    enum { INPUTS = 2 };
    ActAttr f;
    __device__ void eight(float *dx, const float (*x)[LANES], int64_t) const {
        for (int i = 0; i < LANES; i++) dx[i] = x[0][i] * act_slope(act_as(f, ACT), x[1][i]);
    }
};

static int unknown(const KArgs *a, Err *e) {
    return err_set(e, ERR_INTERNAL, "%s: expected one of %d activations, found number %d", op_info(a->kind)->name,
                   (int)ACT_COUNT, (int)a->attr->act.act);
}

int k_cuda_act(const KArgs *a, Err *e) {
    ElementsOf<1> x = {{elements_of(&a->act.x)}};
    assert(a->act.x.count == a->act.y.count);
    switch (a->attr->act.act) {
#define X(name, text, saved) \
    case ACT_##name: return elements_run(a, e, ActValue<ACT_##name>{a->attr->act}, x);
    ACTS(X)
#undef X
    default: return unknown(a, e);
    }
}

int k_cuda_act_dx(const KArgs *a, Err *e) {
    ElementsOf<2> x = {{elements_of(&a->act_dx.dy), elements_of(&a->act_dx.s)}};
    assert(a->act_dx.dy.count == a->act_dx.dx.count && a->act_dx.s.count == a->act_dx.dx.count);
    switch (a->attr->act.act) {
#define X(name, text, saved) \
    case ACT_##name: return elements_run(a, e, ActSlope<ACT_##name>{a->attr->act}, x);
    ACTS(X)
#undef X
    default: return unknown(a, e);
    }
}
