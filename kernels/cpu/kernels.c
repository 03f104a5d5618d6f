/* kernels.c: the table of a set of kernels (isa.h). The Makefile defines ISA, the set's name. */
#include "cpu.h"
#include "gemm_ops.h"
#include "isa.h"
#include "leave.h"
#include "onednn.h"

static KernelRun *const runs[] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) k_cpu_##name,
#include "program/ops.def"
#undef OP
};

#define PREPARE_PREPARED(name) k_cpu_##name##_prepare
#define PREPARE_PLAIN(name) NULL
static KernelPrepare *const prepares[] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) PREPARE_##prepare(name),
#include "program/ops.def"
#undef OP
};

static KernelOverwrites *const overwrites[OP_KIND_COUNT] = {
    [OP_conv2d_dx] = k_cpu_conv2d_dx_overwrites, [OP_linear_dx] = k_cpu_linear_dx_overwrites,
};

#define TABLE_OF(isa) cpu_kernels_##isa
#define TABLE(isa) TABLE_OF(isa)
const CpuKernels TABLE(ISA) = {runs, prepares, overwrites, product_rounds, kernel_state_release, prim_computes, &leave_patience};
