/* isa.h: which instructions kernels may use, and the kernels by instruction set. oneDNN answers: it knows the machine
 * and reads the limit, ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA).
 *
 * Every file of this folder is compiled once per set (ISAS in the Makefile), except those that compute nothing (ONCE there). Functions of a
 * set see each other; the set's table is its only global symbol. device.c takes the best set that may be used. */
#ifndef MT_CPU_ISA_H
#define MT_CPU_ISA_H

#include <oneapi/dnnl/dnnl.h>

#include "program/kernel.h"

/* needed: one of x86's sets. On other processors oneDNN's answer has bits of other meanings, and they have none of these. */
static inline bool isa_has(dnnl_cpu_isa_t needed) {
#ifdef __x86_64__
    return (dnnl_get_effective_cpu_isa() & needed) == needed;
#else
    return (void)needed, false;
#endif
}

typedef struct CpuKernels {
    KernelRun *const *run;          /* by OpKind */
    KernelPrepare *const *prepare;
    KernelOverwrites *const *overwrites;    /* NULL where ops.def does not ask */
    bool (*rounds)(const KArgs *);  /* product_rounds (gemm_ops.h) */
    KernelRelease *release;         /* of what prepare made */
    bool (*computes)(dnnl_engine_t, DType); /* prim_computes (onednn.h) */
    int *leave_patience;            /* leave.h; for tests */
} CpuKernels;

extern const CpuKernels cpu_kernels_v4, cpu_kernels_v3, cpu_kernels_base; /* x86-64-v4 has AVX-512, -v3 AVX2 and FMA */

#endif
