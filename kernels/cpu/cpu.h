/* cpu.h: what the files of this folder share: the open device, and the functions that prepare the PREPARED ops. */
#ifndef MT_CPU_H
#define MT_CPU_H

#include <oneapi/dnnl/dnnl.h>

#include "flights.h"
#include "machine.h"
#include "memory/device.h"
#include "program/op_cache.h"
#include "spread.h"
#include "waiting.h"

enum { CPU_ALIGNMENT = 64 };

/* The state of convolutions and linear layers begins with it; without a state an op is computed by own loops. */
typedef struct CpuState {
    KernelState base;
    bool by_library; /* by oneDNN, not by own loops */
} CpuState;

typedef struct CpuDevice {
    Device base;
    const struct CpuKernels *kernels; /* isa.h */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;             /* as many as there were when it was opened; ops are prepared for them */
    Machine machine;
    Spread spread;           /* how large blocks lie */
    bool emulated[DT_COUNT]; /* by type: see DeviceInfo */
    OpCache prepared;
    struct CpuDevice *alone; /* see DeviceTable; NULL: nobody has asked yet */
    Waiting waiting;
    Flights flights;
} CpuDevice;

/* A KernelPrepare per PREPARED op */
#define PROTOTYPE_PREPARED(name) KernelPrepare k_cpu_##name##_prepare;
#define PROTOTYPE_PLAIN(name)
#define OP(name, in, out, inplace, autocast, prepare, equation) PROTOTYPE_##prepare(name)
#include "program/ops.def"
#undef OP
#undef PROTOTYPE_PREPARED
#undef PROTOTYPE_PLAIN
/* and of the ops that ops.def says to ASK about */
KernelOverwrites k_cpu_conv2d_dx_overwrites, k_cpu_linear_dx_overwrites;

#endif
