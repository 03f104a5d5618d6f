/* cpu.h: what the files of this folder share: the open device and the prepare half of the PREPARED ops. */
#ifndef MT_CPU_H
#define MT_CPU_H

#include <oneapi/dnnl/dnnl.h>

#include "memory/device.h"
#include "program/op_cache.h"
#include "waiting.h"

enum { CPU_ALIGNMENT = 64 };

typedef struct CpuDevice {
    Device base;
    const struct CpuKernels *kernels; /* isa.h */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;             /* when it was opened: what ops are prepared for */
    double started, seconds; /* the timed section, and the sum of those before it */
    bool emulated[DT_COUNT]; /* types: see DeviceInfo */
    OpCache prepared;
    Waiting waiting;
} CpuDevice;

/* A KernelPrepare per PREPARED op; its state is NULL or belongs to prim_release (onednn.h). */
#define PROTOTYPE_PREPARED(name) KernelPrepare k_cpu_##name##_prepare;
#define PROTOTYPE_PLAIN(name)
#define OP(name, in, out, inplace, autocast, prepare, equation) PROTOTYPE_##prepare(name)
#include "program/ops.def"
#undef OP
#undef PROTOTYPE_PREPARED
#undef PROTOTYPE_PLAIN

#endif
