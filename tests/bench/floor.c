/* floor.c: what this machine can do at most: fp32 multiply-adds per second on all threads, and bytes copied per second
 * (kernels/cpu/stream.h).
 * The article's step at batch 64 has 22.98 GFLOP (conv2d forward, dx and dw, linear; see docs/article.md): its floor in
 * fp32 is 22.98 / peak. Prints the median of several rounds of the first, the best of the second. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory/device.h"

enum { LANES = 16, CHAINS = 12, LOOPS = 4000000, ROUNDS = 7 };

typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));

/* independent chains of multiply-adds that stay in registers */
__attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline,
               optimize("fp-contract=fast", "unroll-loops")))
static float chains(float seed) {
    Vec acc[CHAINS], a, b;
    for (int l = 0; l < LANES; l++) {
        a[l] = 0.999f + seed * 1e-6f;
        b[l] = 1e-3f + seed;
    }
    for (int k = 0; k < CHAINS; k++) acc[k] = a + (float)k;
    for (int i = 0; i < LOOPS; i++)
        for (int k = 0; k < CHAINS; k++) acc[k] = acc[k] * a + b;
    float sum = 0;
    for (int k = 0; k < CHAINS; k++)
        for (int l = 0; l < LANES; l++) sum += acc[k][l];
    return sum;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

int main(void) {
    double flops[ROUNDS], bytes;
    float sink = 0;
    Device *cpu;
    Err e;
    for (int r = 0; r < ROUNDS; r++) {
        double start = omp_get_wtime();
#pragma omp parallel reduction(+ : sink)
        sink += chains((float)omp_get_thread_num());
        flops[r] = 2.0 * LANES * CHAINS * LOOPS * omp_get_max_threads() / (omp_get_wtime() - start);
    }
    int code = device_open("cpu", &cpu, &e);
    if (!code) {
        code = cpu->table->stream(cpu, &bytes, &e);
        device_close(cpu);
    }
    if (code) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    double peak = median(flops);
    printf("threads,fp32_gflops,copy_gb_per_s,article_floor_ms\n%d,%.0f,%.1f,%.1f\n", omp_get_max_threads(),
           peak / 1e9, bytes / 1e9, 22.98e9 / peak * 1e3);
    return sink == 12345.0f;
}
