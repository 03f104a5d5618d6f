/* base.h: what every other header may use. Sizes are size_t and are multiplied only through the checked helpers.
 *
 * assert states what a function relies on. Its condition can only be false where memtide itself is wrong: whatever a
 * script, a file or a device can cause is an Err (err.h). */
#ifndef MT_BASE_H
#define MT_BASE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What differs when nvcc compiles a file:
 *   MT_FN               a function that the CPU and the GPU both run
 *   MT_GPU(code, other) `code` on the GPU, `other` elsewhere
 *   UNROLLED(n)         before a loop: unrolls it n times, so that the loads of n rounds are in flight together */
#ifdef __CUDACC__
#define MT_FN static __host__ __device__ inline
#define MT_PRAGMA(text) _Pragma(#text)
#define UNROLLED(n) MT_PRAGMA(unroll n)
#else
#define MT_FN static inline
#define UNROLLED(n)
#endif
#ifdef __CUDA_ARCH__
#define MT_GPU(code, other) code
#else
#define MT_GPU(code, other) other
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MT_VERSION "0.1.0"

/* false: the result does not fit; *out is then unchanged */
static inline bool size_mul(size_t a, size_t b, size_t *out) {
    if (b != 0 && a > SIZE_MAX / b) return false;
    *out = a * b;
    return true;
}

static inline bool size_add(size_t a, size_t b, size_t *out) {
    if (a > SIZE_MAX - b) return false;
    *out = a + b;
    return true;
}

/* n rounded up to a multiple of `to`, a power of two. Does not overflow for the bytes of a shape that shape_count has
 * accepted. */
static inline size_t align_up(size_t n, size_t to) {
    assert(to > 0 && (to & (to - 1)) == 0 && n <= SIZE_MAX - (to - 1));
    return (n + to - 1) & ~(to - 1);
}

/* n / d, rounded up; both positive */
static inline int64_t div_up(int64_t n, int64_t d) { return (n + d - 1) / d; }
static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }

MT_FN int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
MT_FN int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

/* FNV-1a, 64 bits: `hash` of the bytes before, HASH_START at first -> the hash with n more bytes */
#define HASH_START 0xcbf29ce484222325u
#define HASH_PRIME 0x100000001b3u
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * HASH_PRIME;
    return hash;
}

#endif
