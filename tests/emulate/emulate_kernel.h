/* emulate_kernel.h: CUDA's keywords, built-in variables, vector types, warp and atomic functions, as plain C++. Blocks
 * run one after the other, so shared memory can be static memory. It is thread-local: all of that lies in one place,
 * where grid.c can put junk. Under AddressSanitizer it is not: it guards the ends of other static variables only. */
#ifndef EMULATE_KERNEL_H
#define EMULATE_KERNEL_H

#include <math.h>
#include <string.h>

#include <tuple>
#include <utility>

#include "emulate.h"
#include "shadow/shadow.h"

#define __global__
#define __device__
#define __host__
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
/* room between two arrays, so that what comes after one belongs to none */
#define __shared__ static thread_local char EMULATE_NAME(emulate_room_, __LINE__)[64] __attribute__((used)); static thread_local
#define EMULATE_NAME(a, b) EMULATE_PASTE(a, b)
#define EMULATE_PASTE(a, b) a##b
#endif
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

/* What the shadow memory (shadow.h) is told otherwise than by its own instrumentation */
#define EMULATE_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#define EMULATE_PC __builtin_return_address(0)
#define EMULATE_AT EmulatePlace at = {__builtin_FILE(), __builtin_LINE()} /* of the call */

extern "C" uint3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = EMULATE_WARP;

/* ---- vector types: as aligned as CUDA's. A copy is one access of all its bytes, which the compiler would split. */

#define EMULATE_VECTORS(X) X(float, float) X(uint, unsigned) X(int, int) X(ushort, unsigned short)
#ifdef __SANITIZE_THREAD__
#define EMULATE_COPIES(vector)                                                                                      \
    vector() = default;                                                                                             \
    EMULATE_UNSEEN vector(const vector &from) { emulate_copy(this, &from, sizeof from, EMULATE_PC); }                         \
    EMULATE_UNSEEN vector &operator=(const vector &from) { return emulate_copy(this, &from, sizeof from, EMULATE_PC), *this; }
#else
#define EMULATE_COPIES(vector)
#endif
#define X(name, type)                                                                                            \
    struct alignas(2 * sizeof(type)) name##2 {                                                                   \
        type x, y;                                                                                               \
        EMULATE_COPIES(name##2)                                                                                  \
    };                                                                                                           \
    struct alignas(4 * sizeof(type)) name##4 {                                                                   \
        type x, y, z, w;                                                                                         \
        EMULATE_COPIES(name##4)                                                                                  \
    };                                                                                                           \
    static inline name##2 make_##name##2(type x, type y) { name##2 v; v.x = x, v.y = y; return v; }              \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { name##4 v; v.x = x, v.y = y, v.z = z, v.w = w; return v; }
EMULATE_VECTORS(X)
#undef X

/* ---- threads that wait for each other */

static inline void __syncthreads(EMULATE_AT) { emulate_syncthreads(at); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATE_AT) { emulate_syncwarp(mask, at); }
static inline void __threadfence() {}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATE_AT) {
    return emulate_ballot(mask, predicate, at);
}
static inline int __any_sync(unsigned mask, int predicate, EMULATE_AT) { return emulate_ballot(mask, predicate, at) != 0; }
static inline int __all_sync(unsigned mask, int predicate, EMULATE_AT) { return emulate_ballot(mask, !predicate, at) == 0; }

template <typename T>
static inline T emulate_lane_value(unsigned mask, T value, unsigned lane, EmulatePlace at) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "one shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulate_shuffle(mask, bits, lane, at);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Each `width` lanes are a group; for a lane outside of its group a thread gets its own value. */
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, EMULATE_AT) {
    unsigned group = emulate_lane() & ~(unsigned)(width - 1);
    return emulate_lane_value(mask, value, group + ((unsigned)lane & (unsigned)(width - 1)), at);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, EMULATE_AT) {
    unsigned lane = emulate_lane(), other = lane ^ (unsigned)bits;
    unsigned end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
    return emulate_lane_value(mask, value, other < end ? other : lane, at);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, EMULATE_AT) {
    unsigned lane = emulate_lane(), end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
    return emulate_lane_value(mask, value, lane + delta < end ? lane + delta : lane, at);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, EMULATE_AT) {
    unsigned lane = emulate_lane(), begin = lane & ~(unsigned)(width - 1);
    return emulate_lane_value(mask, value, lane >= begin + delta ? lane - delta : lane, at);
}

/* ---- atomics: on whole numbers only, since the order of float sums would change the result */

#define EMULATE_ATOMIC(name, expression)                   \
    template <typename T> static EMULATE_UNSEEN T name(T *p, T v) { \
        static_assert(T(1) / 2 == 0, "whole numbers only"); \
        emulate_atomic(p, sizeof *p, EMULATE_PC);                      \
        T old = *p;                                        \
        *p = (T)(expression);                              \
        return old;                                        \
    }
EMULATE_ATOMIC(atomicAdd, old + v)
EMULATE_ATOMIC(atomicOr, old | v)
EMULATE_ATOMIC(atomicAnd, old & v)
EMULATE_ATOMIC(atomicMax, old > v ? old : v)
EMULATE_ATOMIC(atomicMin, old < v ? old : v)
EMULATE_ATOMIC(atomicExch, v)
#undef EMULATE_ATOMIC

template <typename T> static EMULATE_UNSEEN T atomicCAS(T *p, T expected, T v) {
    emulate_atomic(p, sizeof *p, EMULATE_PC);
    T old = *p;
    if (old == expected) *p = v;
    return old;
}

template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline void __stcs(T *p, T v) { *p = v; }

/* ---- arithmetic */

static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

/* ---- tensor cores: kernels/cuda/cores.h says what each lane has. wide: converts 16 bits to a float. A product of two of
 * these is exact, so that it needs no fused addition. */

static inline void emulate_mma(float (*wide)(uint16_t), float *upper, float *lower, const uint32_t *a,
                               const uint32_t *b) {
    const unsigned lane = emulate_lane(), row = lane / 4, column = lane % 4 * 2;
    const uint64_t words[EMULATE_WORDS] = {(uint64_t)a[1] << 32 | a[0], (uint64_t)a[3] << 32 | a[2],
                                           (uint64_t)b[1] << 32 | b[0]};
    uint64_t of_a[2][4], of_b[2 * 4]; /* of the lanes of this row, and of these two columns */
    emulate_exchange(words, {"mma", 0});
    for (unsigned k = 0; k < 2; k++) emulate_read(k, 4 * row, 4, of_a[k]);
    emulate_read(2, 4 * column, 2 * 4, of_b);
    for (unsigned k = 0; k < 16; k++) {
        const unsigned from = k % 8 / 2, half = k % 2 * 16, far = k / 8;
        const uint64_t rows = of_a[far][from] >> half;
        const float above = wide((uint16_t)rows), below = wide((uint16_t)(rows >> 32));
        for (unsigned n = 0; n < 2; n++) {
            const float y = wide((uint16_t)(of_b[4 * n + from] >> (32 * far + half)));
            upper[n] += above * y;
            lower[n] += below * y;
        }
    }
}

/* The same: each lane reads its row, in one word of 16 bytes, and offers it. */
static inline void emulate_ldmatrix(bool transposed, uint32_t *to, const uint32_t *row) {
    const uint4 mine = *(const uint4 *)row;
    const uint64_t words[EMULATE_WORDS] = {(uint64_t)mine.y << 32 | mine.x, (uint64_t)mine.w << 32 | mine.z, 0};
    const unsigned lane = emulate_lane(), g = lane / 4, t = lane % 4;
    emulate_exchange(words, {"ldmatrix", 0});
    for (unsigned k = 0; k < 4; k++) {
        uint64_t of[2];
        if (transposed) {
            emulate_read(g / 4, 8 * k + 2 * t, 2, of);
            to[k] = (uint32_t)(uint16_t)(of[0] >> g % 4 * 16) | (uint32_t)(uint16_t)(of[1] >> g % 4 * 16) << 16;
        } else {
            emulate_read(t / 2, 8 * k + g, 1, of);
            to[k] = (uint32_t)(of[0] >> t % 2 * 32);
        }
    }
}

/* ---- launches */

template <typename... P> struct EmulatedKernel {
    void (*kernel)(P...);
    std::tuple<P...> args;
    static EMULATE_UNSEEN void call(void *p) {
        EmulatedKernel *k = (EmulatedKernel *)p;
        std::apply(k->kernel, k->args);
    }
};

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...args) {
    EmulatedKernel<P...> k = {kernel, std::tuple<P...>(std::forward<A>(args)...)};
    return emulate_launch(config, (const void *)kernel, EmulatedKernel<P...>::call, &k, sizeof k);
}

#endif
