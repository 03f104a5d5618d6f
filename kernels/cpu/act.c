/* act.c: activations and their gradients, by the formulas of core/pointwise.h. */
#include "loops.h"

#if defined(__x86_64__) && defined(__GLIBC__)
/* libmvec's vector forms, which glibc's own header offers under -ffast-math only (and with it NaN would be lost) */
__attribute__((simd("notinbranch"))) float expf(float);
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) float tanhf(float);
__attribute__((simd("notinbranch"))) float erff(float);
#endif
#endif

/* One loop per activation, so that the choice is made outside of it. */
HOT static void act_block(ActFn f, float slope, float *y, const float *x, int64_t n) {
    switch (f) {
#define X(name, text, saved)                                                          \
    case ACT_##name:                                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = act_value(ACT_##name, x[i], slope); \
        break;
        ACTS(X)
#undef X
    default: break;
    }
}

HOT static void act_dx_block(ActFn f, float slope, float *dx, const float *dy, const float *s, int64_t n) {
    switch (f) {
#define X(name, text, saved)                                                          \
    case ACT_##name:                                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * act_slope(ACT_##name, s[i], slope); \
        break;
        ACTS(X)
#undef X
    default: break;
    }
}

static void act_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK];
    const ActAttr *act = &a->attr->act;
    float *y = block_target(&a->out[0], begin, to);
    act_block(act->act, act->slope, y, block_load(&a->in[0], begin, end - begin, from), end - begin);
    block_store(&a->out[0], begin, end - begin, y);
}

static void act_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    float gradient[BLOCK], saved[BLOCK], to[BLOCK];
    const ActAttr *act = &a->attr->act;
    const float *dy = block_load(&a->in[0], begin, end - begin, gradient);
    const float *s = block_load(&a->in[1], begin, end - begin, saved);
    float *dx = block_target(&a->out[0], begin, to);
    act_dx_block(act->act, act->slope, dx, dy, s, end - begin);
    block_store(&a->out[0], begin, end - begin, dx);
}

int k_cpu_act(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->out[0].count, act_piece);
    return OK;
}

int k_cpu_act_dx(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->out[0].count, act_dx_piece);
    return OK;
}
