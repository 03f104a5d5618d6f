#include "stream.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"

enum { ROUNDS = 9, PIECES = 64, LEAST = 64 << 20, PIECE_UNIT = 4096 };

/* Bytes of the last caches of all processors, as the kernel says; glibc's answer for AMD's is that of the largest machine that could
 * be built of them. Neither knows: 0. */
static size_t cache_bytes(void) {
#define CACHE "/sys/devices/system/cpu/cpu0/cache/index3/"
    NumberSet online, sharing;
    machine_list("", "/sys/devices/system/cpu/online", &online);
    machine_list("", CACHE "shared_cpu_list", &sharing);
    const int all = set_count(&online), each = set_count(&sharing);
    FILE *f = fopen(CACHE "size", "r");
    long size = 0;
    const bool told = f && fscanf(f, "%ldK", &size) == 1 && size > 0 && all > 0 && each > 0;
#undef CACHE
    if (f) fclose(f);
    if (told) return (size_t)size * 1024 * (size_t)div_up(all, each);
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return size > 0 ? (size_t)size : 0;
}

size_t cpu_stream_bytes(void) {
    const size_t wanted = 2 * cache_bytes(), unit = (size_t)PIECES * PIECE_UNIT;
    return (wanted > LEAST ? wanted : LEAST) / unit * unit;
}

/* Seconds of one copy. */
static double copy(char *to, const char *from, size_t n) {
    const double start = omp_get_wtime();
#pragma omp parallel for schedule(static)
    for (int i = 0; i < PIECES; i++) memcpy(to + n / PIECES * (size_t)i, from + n / PIECES * (size_t)i, n / PIECES);
    return omp_get_wtime() - start;
}

double cpu_stream(void *to, void *from, size_t bytes) {
    double least = 0;
    memset(from, 1, bytes);
    copy(to, from, bytes); /* touches it for the first time */
    for (int r = 0; r < ROUNDS; r++) {
        const double seconds = copy(to, from, bytes);
        if (r == 0 || seconds < least) least = seconds;
    }
    return 2.0 * (double)bytes / least;
}
