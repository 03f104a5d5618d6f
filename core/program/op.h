/* op.h: an op of a step program, and what ops.def says about its kind. */
#ifndef MT_OP_H
#define MT_OP_H

#include "math/rnn_cells.h"
#include "base/dtype.h"
#include "math/optim.h"
#include "math/pointwise.h"
#include "math/broadcast.h"
#include "math/einsum.h"
#include "math/tensor.h"

enum { OP_IN = 8, OP_OUT = 6, OP_PATH = 80, NEVER = -1 };

typedef enum OpKind {
#define OP(name, in, out, inplace, autocast, prepare, equation) OP_##name,
#include "ops.def"
#undef OP
    OP_KIND_COUNT
} OpKind;

typedef enum Autocast { AUTOCAST_LOW, AUTOCAST_WIDE, AUTOCAST_SAME, AUTOCAST_NONE } Autocast;

typedef struct OperandInfo {
    const char *name; /* "dw", "acc"; NULL after the last one */
    bool optional;
    bool updated;     /* read and written: it was there before */
    bool fp32;        /* in every precision */
    bool any;         /* converted where it is read or written */
    bool as_is;       /* autocast leaves its type */
} OperandInfo;

typedef struct OpInfo {
    const char *name, *equation;
    int inplace; /* input index or NEVER */
    Autocast autocast;
    bool prepared;
    int n_in, n_out; /* operands, the optional ones included */
    OperandInfo in[OP_IN], out[OP_OUT];
} OpInfo;

#ifdef __cplusplus
extern "C" {
#endif

/* The row of a kind. */
const OpInfo *op_info(OpKind kind);

#ifdef __cplusplus
}
#endif

/* Is it the update of a parameter? Its outputs are the weight, then the states that it keeps, last the fp32 master. */
static inline bool op_is_update(OpKind kind) {
#define X(rule) || kind == OP_##rule
    return false OPTIM_OPS(X);
#undef X
}
static inline int op_master(OpKind kind) { return op_info(kind)->n_out - 1; }

/* divisor 0: window size; fused: ACT_RELU in a maxpool that applies one, else ACT_NONE */
typedef struct PoolAttr {
    int32_t kernel[2], stride[2], pad[2], dilation[2], count_include_pad, divisor;
    ActAttr fused;
} PoolAttr;
/* pad: top left bottom right; fused: the activation that the op applies itself (dx: whose gradient it passes
 * through), ACT_NONE: none; tf32: a GPU may round fp32 operands of the product to 10 bits (the setting "tf32"), as it
 * may not without being told */
typedef struct ConvAttr { int32_t stride[2], pad[4], dilation[2], groups; ActAttr fused; int32_t tf32; } ConvAttr;
typedef struct LinearAttr { ActAttr fused; int32_t tf32; } LinearAttr;
typedef struct DropAttr { float p; uint32_t id; int32_t inplace, channels; } DropAttr; /* channels: whole ones */
/* sum: reduction = "sum"; log: x holds logarithms of probabilities, no logits; f: of elements; beta: see loss_term, of
 * logits see loss_square */
typedef struct LossAttr { float scale, smoothing; int32_t ignore_index, sum, log; LossFn f; float beta; } LossAttr;
typedef struct OptimAttr { OptimRule rule; } OptimAttr;
typedef struct SquareAttr { int32_t first; } SquareAttr; /* the first gradient of a step: the sum starts with it */

/* time is dimension 1 of (N, T, F) with batch_first, else dimension 0; reverse: the last step comes first */
typedef struct RnnAttr { RnnMode mode; int32_t batch_first, reverse; } RnnAttr;
/* heads: of q; kv_heads: of k and v, a divisor; scale: of the scores; p, id: dropout of the probabilities, 0: none;
 * dimensions as in RnnAttr */
typedef struct AttentionAttr {
    int32_t heads, kv_heads, causal, batch_first;
    float scale, p;
    uint32_t id;
} AttentionAttr;

typedef struct PermuteAttr { int8_t from[SHAPE_MAX]; } PermuteAttr; /* dimension i of y is from[i] of x */
typedef struct AxisAttr { int32_t axis; int64_t start; } AxisAttr; /* of PyTorch's dimensions */
/* axis: the channels; groups: of a sample's channels, 0: batch normalisation. momentum below 0: the running statistics
 * are the mean over all batches; eps below 0: the machine epsilon of x's type, which the precision pass puts there */
typedef struct NormAttr { int32_t axis, groups; float eps, momentum; } NormAttr;
typedef struct SoftmaxAttr { int32_t axis, log; } SoftmaxAttr;
typedef struct EmbeddingAttr { int64_t padding; } EmbeddingAttr; /* the row without a gradient, -1: none */

/* Cleared to zero bytes before it is filled, so that two equal attributes are equal as memory. */
typedef union Attr {
    ConvAttr conv;
    LinearAttr linear;
    EinsumAttr einsum;
    PermuteAttr permute;
    BinaryAttr binary;
    ReduceAttr reduce;
    TriangleAttr triangle;
    PoolAttr pool;
    ActAttr act;
    DropAttr drop;
    AxisAttr axis;
    BroadcastAttr broadcast;
    RnnAttr rnn;
    AttentionAttr attention;
    NormAttr norm;
    SoftmaxAttr softmax;
    EmbeddingAttr embedding;
    UpsampleAttr upsample;
    RotaryAttr rotary;
    LossAttr loss;
    OptimAttr optim;
    SquareAttr square;
    ScalerAttr scaler;
} Attr;

/* What mixed precision does to an op, as PyTorch's lists: some functions are fp32's. */
static inline Autocast op_autocast(OpKind kind, const Attr *a) {
    const ActFn f = kind == OP_act ? a->act.act : ACT_NONE;
    const bool wide = f == ACT_EXP || f == ACT_LOG || f == ACT_POW || f == ACT_RSQRT || f == ACT_RECIPROCAL ||
                      (kind == OP_reduce && a->reduce.f == REDUCE_SUM);
    return wide ? AUTOCAST_WIDE : op_info(kind)->autocast;
}

/* Where an op of this kind has its fused activation; NULL: it can have none. */
static inline ActAttr *attr_fused(OpKind kind, Attr *a) {
    if (kind == OP_conv2d || kind == OP_conv2d_dx) return &a->conv.fused;
    if (kind == OP_maxpool) return &a->pool.fused;
    return kind == OP_linear || kind == OP_linear_dx ? &a->linear.fused : NULL;
}

#endif
