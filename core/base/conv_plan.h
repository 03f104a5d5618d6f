/* conv_plan.h: what cuDNN is asked of a convolution, on a GPU that need not be here. memtide_plan.so answers
 * (kernels/cuda/plan.c): a library of its own beside the program, which builds wherever cuDNN's headers are. */
#ifndef MT_CONV_PLAN_H
#define MT_CONV_PLAN_H

#include "dtype.h"
#include "err.h"

typedef enum ConvPass { CONV_FORWARD, CONV_DATA, CONV_WEIGHTS, CONV_PASSES } ConvPass;

/* A GPU as far as cuDNN's answers depend on it, and the clocks in kHz, on which a few of them do. */
typedef struct PlanCard {
    char name[96];             /* "NVIDIA A100 80 GB" */
    int capability;            /* 80: compute capability 8.0 */
    int64_t multiprocessors, threads, memory, clock, memory_clock; /* threads of each multiprocessor; bytes; kHz */
} PlanCard;

/* How a kernel goes over an image: along rows, columns. */
typedef struct ConvSteps { int32_t stride[2], pad[2], dilation[2], groups; } ConvSteps;

/* One pass of a convolution, as PyTorch asks it: tensors (N, C, H, W), w (O, C / groups, KH, KW), y (N, O, OH, OW); in
 * CONV_DATA x is computed, in CONV_WEIGHTS w. All bytes are zero before it is filled. */
typedef struct ConvQuery {
    ConvPass pass;
    DType type;                /* of all three; sums are fp32, and fp32 may be rounded to TF32 */
    bool channels_last;        /* all three lie so; else in the order of their dimensions */
    int64_t x[4], w[4], y[4];
    ConvSteps steps;
} ConvQuery;

/* first: bytes of the engine that PyTorch takes, the first in cuDNN's ranking; most: of the engine that wants the most, if
 * all were asked for, else that of `first`. version: cuDNN's, 91900. */
typedef struct ConvAnswer { size_t first, most, version; } ConvAnswer;

/* The library exports memtide_plan_conv, a ConvPlan, and memtide_plan_abi, which is PLAN_ABI. ERR_UNSUPPORTED: cuDNN has no
 * engine for it on that card. */
typedef int ConvPlan(const PlanCard *card, const ConvQuery *q, bool all, ConvAnswer *out, Err *e);
#define PLAN_ABI ((uint64_t)sizeof(PlanCard) << 32 | (uint64_t)sizeof(ConvQuery) << 16 | DT_COUNT)

#endif
