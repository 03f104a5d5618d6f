/* isa.h: the one query of the instructions that kernels may use: those of the machine, limited by ONEDNN_MAX_CPU_ISA
 * (or DNNL_MAX_CPU_ISA) as oneDNN reads it, which answers. */
#ifndef MT_CPU_ISA_H
#define MT_CPU_ISA_H

#include <stdbool.h>

#include <oneapi/dnnl/dnnl.h>

static inline bool isa_has(dnnl_cpu_isa_t needed) { return (dnnl_get_effective_cpu_isa() & needed) == needed; }

#endif
