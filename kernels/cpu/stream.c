#include "stream.h"

#include <omp.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 9, PIECES = 64, LEAST = 64 << 20, PIECE_UNIT = 4096 };

size_t cpu_stream_bytes(void) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t wanted = cache > 0 ? 2 * (size_t)cache : 0, unit = (size_t)PIECES * PIECE_UNIT;
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
