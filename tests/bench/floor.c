/* floor.c: what this machine can do at most: fp32 multiply-adds per second on all threads (roof.h), and bytes copied per
 * second (kernels/cpu/stream.h).
 * The article's step at batch 64 has 22.98 GFLOP (conv2d forward, dx and dw, linear; see docs/article.md): its floor in
 * fp32 is 22.98 / peak. Prints the median of several rounds of the first, the best of the second. */
#include <stdio.h>

#include "memory/device.h"
#include "roof.h"

enum { LOOPS = 4000000 };

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
    printf("threads,fp32_gflops,copy_gb_per_s,article_floor_ms\n%d,%.0f,%.1f,%.1f\n", omp_get_max_threads(),
           peak / 1e9, bytes / 1e9, 22.98e9 / peak * 1e3);
    return 0;
}
