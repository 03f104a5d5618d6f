/* floor.c: what this machine can do at most: fp32 multiply-adds per second on all threads (roof.h), and bytes copied per
 * second (kernels/cpu/stream.h); and, where there are two threads, how long a line of memory takes from one core to another and
 * back. That time may change by the minute where a virtual machine is moved between cores, and with it all that threads share.
 * The article's step at batch 64 has 22.98 GFLOP (conv2d forward, dx and dw, linear; see docs/article.md): its floor in
 * fp32 is 22.98 / peak. Prints the median of several rounds of the first and the last, the best of the second. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "memory/device.h"
#include "roof.h"

enum { LOOPS = 4000000, TURNS = 100000, ROUNDS = 5 };

/* Two threads write the same line in turns. NAN where there is one. */
static double line_seconds(void) {
    static _Alignas(64) atomic_int turn;
    double rounds[ROUNDS];
    if (omp_get_max_threads() < 2) return NAN;
    for (int r = 0; r < ROUNDS; r++) {
        const double begin = omp_get_wtime();
#pragma omp parallel num_threads(2)
        for (int me = omp_get_thread_num(), i = 0; i < TURNS && omp_get_num_threads() == 2; i++) {
            while (atomic_load_explicit(&turn, memory_order_acquire) != me) {}
            atomic_store_explicit(&turn, !me, memory_order_release);
        }
        rounds[r] = (omp_get_wtime() - begin) / TURNS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, roof_order);
    return rounds[ROUNDS / 2];
}

int main(void) {
    const double peak = roof_flops(LOOPS);
    double bytes;
    Device *cpu;
    Err e;
    int code = device_open("cpu", &cpu, &e);
    if (!code) {
        code = cpu->table->stream(cpu, &bytes, &e);
        device_close(cpu);
    }
    if (code) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("threads,fp32_gflops,copy_gb_per_s,line_ns,article_floor_ms\n%d,%.0f,%.1f,%.0f,%.1f\n", omp_get_max_threads(),
           peak / 1e9, bytes / 1e9, line_seconds() * 1e9, 22.98e9 / peak * 1e3);
    return 0;
}
