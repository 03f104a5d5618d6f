/* isa.h: the one query of the instructions that kernels may use: those of the machine, limited by ONEDNN_MAX_CPU_ISA
 * (or DNNL_MAX_CPU_ISA) as oneDNN reads it, which answers; and the kernels by instruction set.
 *
 * Every file of this folder but device.c and waiting.c is compiled once per set (ISAS in the Makefile) and sees the
 * functions of its own set only: of a set, nothing but its table is global. device.c takes the best set that may be
 * used. */
#ifndef MT_CPU_ISA_H
#define MT_CPU_ISA_H

#include <oneapi/dnnl/dnnl.h>

#include "program/kernel.h"

static inline bool isa_has(dnnl_cpu_isa_t needed) { return (dnnl_get_effective_cpu_isa() & needed) == needed; }

typedef struct CpuKernels {
    KernelRun *const *run;          /* by OpKind */
    KernelPrepare *const *prepare;
    KernelRelease *release;         /* of what prepare made */
    bool (*computes)(dnnl_engine_t, DType); /* prim_computes (onednn.h) */
} CpuKernels;

extern const CpuKernels cpu_kernels_v4, cpu_kernels_v3, cpu_kernels_base; /* x86-64-v4 has AVX-512, -v3 AVX2 and FMA */

#endif
