/* op.h: the kinds of ops, what ops.def says about each, and their attributes. */
#ifndef MT_OP_H
#define MT_OP_H

#include "math/rnn_cells.h"
#include "base/dtype.h"
#include "math/optim.h"
#include "math/pointwise.h"
#include "math/broadcast.h"
#include "math/shard.h"
#include "math/einsum.h"
#include "math/tensor.h"

enum { OP_IN = 9, OP_OUT = 6, OP_PATH = 112, NEVER = -1 };

typedef enum OpKind {
#define OP(name, in, out, inplace, autocast, prepare, equation) OP_##name,
#include "ops.def"
#undef OP
    OP_KIND_COUNT
} OpKind;

/* What mixed precision does with an op: see ops.def. */
typedef enum Autocast { AUTOCAST_LOW, AUTOCAST_WIDE, AUTOCAST_SAME, AUTOCAST_NONE } Autocast;

typedef struct OperandInfo {
    const char *name; /* "dw", "acc"; NULL after the last one */
    bool optional;
    bool updated;     /* the op reads and writes it: it has a value before */
    bool fp32;        /* fp32 in every precision */
    bool any;         /* of any floating type: the kernel converts it */
    bool as_is;       /* autocast does not change its type */
    bool rounded;     /* may be fp32, which the kernel rounds to the type of input 0, where the device can */
} OperandInfo;

typedef struct OpInfo {
    const char *name, *equation;
    int inplace; /* the index of the input whose storage output 0 may take over, or NEVER */
    bool asks;   /* ... where the device can: not every way to compute the op reads an element before it writes it */
    Autocast autocast;
    bool prepared; /* the device keeps a state for it, and it may want workspace */
    int n_in, n_out; /* operands, with the optional ones */
    OperandInfo in[OP_IN], out[OP_OUT];
} OpInfo;

#ifdef __cplusplus
extern "C" {
#endif

/* The row of the kind in ops.def. */
const OpInfo *op_info(OpKind kind);

#ifdef __cplusplus
}
#endif

/* Is the op the update of a parameter? Then its outputs are the weight, the states that it keeps, and last the fp32
 * master copy. */
static inline bool op_is_update(OpKind kind) {
    switch (kind) {
#define EACH(op, ...) case OP_##op:
#define TOGETHER(op, ...) case OP_##op:
#include "optimizers.def"
        return true;
    default: return false;
    }
}
/* The index of an update's output "master". */
static inline int op_master(OpKind kind) {
    assert(op_is_update(kind));
    return op_info(kind)->n_out - 1;
}

/* Do several ranks take part in it? */
static inline bool op_exchanges(OpKind kind) {
    switch (kind) {
    case OP_all_reduce: case OP_all_reduce_: case OP_reduce_scatter: case OP_all_gather: case OP_all_gather_: case OP_any_overflow:
    case OP_transfer: case OP_wait: return true;
    default: return false;
    }
}

/* ---- attributes of ops, by family */

/* kernel, stride, pad, dilation: rows and columns. divisor: 0: the window's size; fused: ACT_RELU in a maxpool that
 * applies it, else ACT_NONE */
typedef struct PoolAttr {
    int32_t kernel[2], stride[2], pad[2], dilation[2], count_include_pad, divisor;
    ActAttr fused;
} PoolAttr;
/* pad: top, left, bottom, right; fused: the activation that the op itself applies (dx: by whose derivative it
 * multiplies), or ACT_NONE; tf32: a GPU may round fp32 operands of the product to 10 bits (the setting "tf32") */
typedef struct ConvAttr { int32_t stride[2], pad[4], dilation[2], groups; ActAttr fused; int32_t tf32; } ConvAttr;
typedef struct LinearAttr { ActAttr fused; int32_t tf32; } LinearAttr;
/* The elements of a tensor that an operand has which is a slice of it along one axis: `piece` neighbours of each `whole`, from
 * `first` on; piece 0: all elements */
typedef struct Within { int64_t first, piece, whole; } Within;
/* The place in the tensor of the operand's element i */
MT_FN int64_t within_place(Within of, int64_t i) { return of.piece ? of.first + i / of.piece * of.whole + i % of.piece : i; }

/* p: the probability of 0; id: names the op in the stream of random numbers; inplace: the layer asked for it; channels:
 * whole channels are dropped; within: numbers are drawn by the elements' places there (not with channels) */
typedef struct DropAttr { float p; uint32_t id; int32_t inplace, channels; Within within; } DropAttr;
/* scale: multiplies the loss; smoothing: label smoothing; sum: reduction = "sum", else "mean"; log: x has
 * log-probabilities, not logits; f: the loss of an element; beta: see loss_term, with logits see loss_square; chunks: in
 * how many parts linear_cross_entropy makes its logits, see loss_chunk; tf32: as in ConvAttr, of its products;
 * world, rank: x has the classes of this rank, as many as each of `world` along the mesh's axis "tensor" has; 0: it has all */
typedef struct LossAttr {
    float scale, smoothing;
    int32_t ignore_index, sum, log;
    LossFn f;
    float beta;
    int32_t chunks, tf32, world, rank;
} LossAttr;
/* f: what a product of two tensors applies to the first, or ACT_NONE; of: the type to which f(a) is rounded, as if it were
 * stored */
typedef struct MulAttr { ActAttr f; DType of; } MulAttr;
typedef struct OptimAttr { OptimRule rule; } OptimAttr;
typedef struct CountAttr { int32_t by; } CountAttr;      /* the ranks of a training: each draws for its micro-batches */
/* The axes along which the ranks of a training are arranged: enum, name, and what differs from rank to rank */
#define MESH(X)                                        \
    X(DATA, data, "samples")                           \
    X(TENSOR, tensor, "features and heads of a layer") \
    X(PIPELINE, pipeline, "layers")

typedef enum MeshAxis {
#define X(axis, name, what) MESH_##axis,
    MESH(X)
#undef X
    MESH_AXES
} MeshAxis;
static inline const char *mesh_axis_name(MeshAxis axis) {
    static const char *const names[] = {
#define X(axis, name, what) #name,
        MESH(X)
#undef X
    };
    assert((unsigned)axis < MESH_AXES);
    return names[axis];
}
/* The ranks along that axis take part, and this is one of them; bucket: ops of one bucket stand together and are sent
 * together; terms: of an all_gather, what reads y makes a term of the gradient on each rank, not all of it */
typedef struct CollectiveAttr { int32_t world, rank, bucket; MeshAxis axis; int32_t terms; } CollectiveAttr;
/* The stages of a pipeline, from 0, between which a tensor goes */
typedef struct TransferAttr { int32_t from, to; } TransferAttr;
/* more: it is not the first micro-batch that the body, which has the ops of several, sums up */
typedef struct AccumulateAttr { int32_t more; } AccumulateAttr;
/* first: the first gradient of a step, which the sum starts with; share: multiplies it, so that a gradient which several
 * ranks have counts once in the sum over all */
typedef struct SquareAttr { int32_t first; float share; } SquareAttr;

/* batch_first: operands are (N, T, F), else (T, N, F); reverse: the steps are computed from the last one to the
 * first; tf32: as in ConvAttr */
typedef struct RnnAttr { RnnMode mode; int32_t batch_first, reverse, tf32; } RnnAttr;
/* heads: of q; kv_heads: of k and v, a divisor of heads; causal: no query sees later keys; batch_first: as in RnnAttr;
 * scale: multiplies the scores; p, id: dropout of the probabilities as in DropAttr, p = 0: none; window: a causal query
 * sees that many keys at most, the last ones, 0: all; cap: see attention_cap, 0: none */
typedef struct AttentionAttr {
    int32_t heads, kv_heads, causal, batch_first;
    float scale, p;
    uint32_t id;
    int32_t window;
    float cap;
} AttentionAttr;

typedef struct PermuteAttr { int8_t from[SHAPE_MAX]; } PermuteAttr; /* dimension i of y is from[i] of x */
/* axis: one of PyTorch's dimensions; world: of a slice, each of so many ranks along the mesh's axis "tensor" takes its own of
 * what they all have, 0: there is no other */
typedef struct AxisAttr { int32_t axis; int64_t start; int32_t world, rank; } AxisAttr;
/* axis: the dimension of the channels; groups: of a sample's channels, 0: batch normalisation; momentum: below 0 the
 * running statistics are the mean over all batches; eps: below 0 it stands for the machine epsilon of x's type, and the
 * precision pass replaces it by that */
typedef struct NormAttr { int32_t axis, groups; float eps, momentum; } NormAttr;
typedef struct SoftmaxAttr { int32_t axis, log; } SoftmaxAttr; /* log: the logarithm of the probabilities */
typedef struct PlaceAttr { int64_t token; } PlaceAttr;           /* that is looked for, -1: the largest of the row */
/* padding: the row that gets no gradient, -1: none; first: that of the table which is w's row 0; rows that w lacks are 0 */
typedef struct EmbeddingAttr { int64_t padding, first; } EmbeddingAttr;
typedef struct DoraAttr { float scaling; } DoraAttr;             /* of the product of low rank */

/* All bytes are zero before it is filled, so that memcmp compares attributes. */
typedef union Attr {
    ConvAttr conv;
    LinearAttr linear;
    DoraAttr dora;
    EinsumAttr einsum;
    PermuteAttr permute;
    BinaryAttr binary;
    ReduceAttr reduce;
    TriangleAttr triangle;
    PoolAttr pool;
    ActAttr act;
    MulAttr mul;
    DropAttr drop;
    AxisAttr axis;
    BroadcastAttr broadcast;
    RnnAttr rnn;
    AttentionAttr attention;
    NormAttr norm;
    SoftmaxAttr softmax;
    EmbeddingAttr embedding;
    PlaceAttr place;
    UpsampleAttr upsample;
    BytesAttr bytes;
    RotaryAttr rotary;
    LossAttr loss;
    OptimAttr optim;
    SquareAttr square;
    CountAttr count;
    CollectiveAttr collective;
    TransferAttr transfer;
    AccumulateAttr accumulate;
    ScalerAttr scaler;
} Attr;

/* What mixed precision does to an op, as PyTorch's lists: some functions are fp32's. */
static inline Autocast op_autocast(OpKind kind, const Attr *a) {
    const ActFn f = kind == OP_act ? a->act.act : ACT_NONE;
    if (kind == OP_all_gather && a->collective.terms) return AUTOCAST_LOW; /* for products, in the type that they read */
    const bool wide = f == ACT_EXP || f == ACT_LOG || f == ACT_POW || f == ACT_RSQRT || f == ACT_RECIPROCAL ||
                      (kind == OP_reduce && a->reduce.f == REDUCE_SUM);
    return wide ? AUTOCAST_WIDE : op_info(kind)->autocast;
}

/* Does the kernel exchange numbers with other ranks while it computes: a loss of which each has some of the classes? Then no
 * collective op may be under way beside it. */
static inline bool attr_exchanges(OpKind kind, const Attr *a) {
    switch (kind) {
    case OP_cross_entropy: case OP_linear_cross_entropy: case OP_linear_cross_entropy_dx: return a->loss.world > 0;
    default: return false;
    }
}

/* The fused activation of an op of this kind; NULL: it cannot have one. */
static inline ActAttr *attr_fused(OpKind kind, Attr *a) {
    if (kind == OP_conv2d || kind == OP_conv2d_dx) return &a->conv.fused;
    if (kind == OP_maxpool) return &a->pool.fused;
    return kind == OP_linear || kind == OP_linear_dx ? &a->linear.fused : NULL;
}

#endif
