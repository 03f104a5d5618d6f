/* roof.h: fp32 multiply-adds per second on all threads, at most: independent chains of them that stay in registers. */
#ifndef BENCH_ROOF_H
#define BENCH_ROOF_H

#include <omp.h>
#include <stdlib.h>

enum { ROOF_CHAINS = 12, ROOF_ROUNDS = 7 };

/* The chains of one instruction set, whose registers have so many lanes: all of them are in registers at once. */
#define ROOF(set, lanes, target)                                                                        \
    typedef float RoofVec_##set __attribute__((vector_size(lanes * sizeof(float))));                    \
    target __attribute__((noinline, optimize("fp-contract=fast", "unroll-loops")))                      \
    static float roof_##set(float seed, int loops) {                                                    \
        RoofVec_##set acc[ROOF_CHAINS], a, b;                                                           \
        for (int l = 0; l < lanes; l++) {                                                               \
            a[l] = 0.999f + seed * 1e-6f;                                                               \
            b[l] = 1e-3f + seed;                                                                        \
        }                                                                                               \
        for (int k = 0; k < ROOF_CHAINS; k++) acc[k] = a + (float)k;                                    \
        for (int i = 0; i < loops; i++)                                                                 \
            for (int k = 0; k < ROOF_CHAINS; k++) acc[k] = acc[k] * a + b;                              \
        float sum = 0;                                                                                  \
        for (int k = 0; k < ROOF_CHAINS; k++)                                                           \
            for (int l = 0; l < lanes; l++) sum += acc[k][l];                                           \
        return sum;                                                                                     \
    }

ROOF(base, 4, )
#ifdef __x86_64__
ROOF(v3, 8, __attribute__((target("avx2,fma"))))
ROOF(v4, 16, __attribute__((target("avx512f"))))
#endif

typedef struct Roof { float (*chains)(float seed, int loops); int lanes; } Roof;

static Roof roof_here(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return (Roof){roof_v4, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (Roof){roof_v3, 8};
#endif
    return (Roof){roof_base, 4};
}

static int roof_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Operations per second, in one round of so many loops */
static double roof_round(int loops) {
    const Roof here = roof_here();
    float sum = 0;
    const double start = omp_get_wtime();
#pragma omp parallel reduction(+ : sum)
    sum += here.chains((float)omp_get_thread_num(), loops);
    const double seconds = omp_get_wtime() - start;
    volatile float sink = sum; /* so that the sums are needed */
    (void)sink;
    return 2.0 * here.lanes * ROOF_CHAINS * loops * omp_get_max_threads() / seconds;
}

/* The median of several rounds */
static inline double roof_flops(int loops) {
    double flops[ROOF_ROUNDS];
    for (int r = 0; r < ROOF_ROUNDS; r++) flops[r] = roof_round(loops);
    qsort(flops, ROOF_ROUNDS, sizeof *flops, roof_order);
    return flops[ROOF_ROUNDS / 2];
}

#endif
