/* roof.h: fp32 multiply-adds per second on all threads, at most: independent chains of them that stay in registers. */
#ifndef BENCH_ROOF_H
#define BENCH_ROOF_H

#include <omp.h>
#include <stdlib.h>

enum { ROOF_LANES = 16, ROOF_CHAINS = 12, ROOF_ROUNDS = 7 };

typedef float RoofVec __attribute__((vector_size(ROOF_LANES * sizeof(float))));

__attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline,
               optimize("fp-contract=fast", "unroll-loops")))
static float roof_chains(float seed, int loops) {
    RoofVec acc[ROOF_CHAINS], a, b;
    for (int l = 0; l < ROOF_LANES; l++) {
        a[l] = 0.999f + seed * 1e-6f;
        b[l] = 1e-3f + seed;
    }
    for (int k = 0; k < ROOF_CHAINS; k++) acc[k] = a + (float)k;
    for (int i = 0; i < loops; i++)
        for (int k = 0; k < ROOF_CHAINS; k++) acc[k] = acc[k] * a + b;
    float sum = 0;
    for (int k = 0; k < ROOF_CHAINS; k++)
        for (int l = 0; l < ROOF_LANES; l++) sum += acc[k][l];
    return sum;
}

static int roof_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Operations per second: the median of several rounds of so many loops */
static double roof_flops(int loops) {
    double flops[ROOF_ROUNDS];
    volatile float sink = 0; /* so that the sums are needed */
    for (int r = 0; r < ROOF_ROUNDS; r++) {
        float sum = 0;
        const double start = omp_get_wtime();
#pragma omp parallel reduction(+ : sum)
        sum += roof_chains((float)omp_get_thread_num(), loops);
        flops[r] = 2.0 * ROOF_LANES * ROOF_CHAINS * loops * omp_get_max_threads() / (omp_get_wtime() - start);
        sink += sum;
    }
    qsort(flops, ROOF_ROUNDS, sizeof *flops, roof_order);
    return flops[ROOF_ROUNDS / 2];
}

#endif
