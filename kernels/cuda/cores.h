/* cores.h: a warp multiplies on tensor cores: d (16, 8) += a (16, 16) b (16, 8), a and b of a 16-bit type T, d in fp32; and loads
 * their factors from shared memory. Lane 4 g + t has, in words of two neighbours:
 *
 *   a[0] row g, columns 2 t, 2 t + 1    a[1] row g + 8      a[2], a[3] the same 8 columns further
 *   b[0] rows 2 t, 2 t + 1, column g    b[1] 8 rows further
 *   upper[2] row g, columns 2 t, 2 t + 1 of d               lower[2] row g + 8
 *
 * For .cu files. Only GPUs of compute capability 8.0 and later may run it. */
#ifndef MT_CORES_H
#define MT_CORES_H

#include "cuda.h"

#define MMA(type)                                                                                   \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                              \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])                            \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <DType T> static __device__ inline void mma(float *upper, float *lower, const uint32_t *a, const uint32_t *b) {
#ifdef EMULATE_CUDA_RUNTIME_H
    emulate_mma(T == DT_BF16 ? bf16_to_f32 : f16_to_f32, upper, lower, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (T == DT_BF16) MMA("bf16");
    else MMA("f16");
#endif
}

/* Four matrices of 8 rows of 8 numbers of 16 bits, in shared memory, each row 16 bytes that begin where a word of them may.
 * row: this lane's: lane l has row l % 8 of matrix l / 8. to[k]: of matrix k, lane 4 g + t gets numbers 2 t and 2 t + 1 of row g;
 * TRANSPOSED: number g of rows 2 t and 2 t + 1. */
template <bool TRANSPOSED> static __device__ inline void matrices_load(uint32_t *to, const uint32_t *row) {
#ifdef EMULATE_CUDA_RUNTIME_H
    emulate_ldmatrix(TRANSPOSED, to, row);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
#endif
}

#endif
