/* kernel.h: the arguments of a kernel, and the prototypes of all kernels, made from ops.def. Shared with .cu files. */
#ifndef MT_KERNEL_H
#define MT_KERNEL_H

#include "math/formula.h"
#include "op.h"

/* One operand. data is NULL while an op is prepared. An operand that is absent is all zero bytes: count is 0. */
typedef struct View {
    void *data;
    Shape shape;     /* in PyTorch's order: (N, C, H, W), (N, F), a parameter's */
    DType dtype;
    int channels_last; /* 4-D: elements are stored as N, H, W, C (weights: O, KH, KW, I) */
    int64_t order[3];  /* (C, H, W) of a flattened image whose elements are stored as H, W, C; else 0 */
    int64_t count;     /* elements */
} View;

/* The operand as (outer, size along `axis`, inner) in the order of memory; axis: one of its dimensions. */
static inline void view_split(const View *v, int axis, int64_t *outer, int64_t *inner) {
    const int channels_last[SHAPE_MAX] = {0, 2, 3, 1};
    bool before = true;
    assert(axis >= 0 && axis < v->shape.rank);
    *outer = *inner = 1;
    for (int i = 0; i < v->shape.rank; i++) {
        int d = v->channels_last && v->shape.rank == 4 ? channels_last[i] : i;
        if (d == axis) before = false;
        else if (before) *outer *= v->shape.dim[d];
        else *inner *= v->shape.dim[d];
    }
}

/* How the parts of which each rank has one lie in the whole: slices along the one axis in which the shapes differ; or shards,
 * which are seen flat (view_of). */
static inline Division view_division(const View *whole, const View *part) {
    Division d = {whole->count, 0, 0};
    int64_t before = 1;
    for (int i = 0; part->shape.rank > 1 && i < whole->shape.rank && !d.pieces; before *= whole->shape.dim[i++])
        if (whole->shape.dim[i] != part->shape.dim[i]) d.pieces = before;
    if (d.pieces) d.each = whole->count / d.pieces;
    return d;
}

typedef struct KArgs {
    OpKind kind;
    const Attr *attr;
    const Formula *script; /* the formula that op formula runs: the program's */
#define SLOT View
#include "slots.h"
    void *workspace; /* scratch; contents are undefined */
    size_t workspace_bytes;
    void *state;     /* what prepare returned */
    void *device;    /* the Device */
    const char *path; /* the op's: of its layer; NULL: it is no op of a program. For names, not for results */
    double flops, traffic; /* what the op computes and moves (op_cost); both 0: not known */
    bool begun;      /* the device goes on before the op is over: an op `wait` follows */
    uint64_t seed;   /* of all random numbers of the run */
    uint32_t micro;  /* 0 in the first micro-batch of a step, 1 in later ones. A kernel knows nothing else of the time,
                      * so that a recorded step can be replayed */
} KArgs;

/* Both return an ErrCode. KernelPrepare: see DeviceTable's prepare. A kernel that a device lacks is a link error. */
typedef int KernelRun(const KArgs *, Err *);
typedef int KernelPrepare(const KArgs *, size_t limit, void **state, size_t *workspace, Err *);
typedef void KernelRelease(void *state);
typedef bool KernelOverwrites(const KArgs *, size_t *more); /* see DeviceTable's overwrites */

/* The state of a PREPARED op begins with the function that frees it. A state may be NULL. */
typedef struct KernelState { KernelRelease *release; } KernelState;
static inline void kernel_state_release(void *state) {
    if (state) ((KernelState *)state)->release(state);
}

#ifdef __cplusplus
extern "C" {
#endif
#define OP(name, in, out, inplace, autocast, prepare, equation) KernelRun k_cpu_##name, k_cuda_##name;
#include "ops.def"
#undef OP
#ifdef __cplusplus
}
#endif

#endif
