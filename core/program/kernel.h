/* kernel.h: what a kernel gets, and the prototypes of all kernels, expanded from ops.def. Shared with .cu files. */
#ifndef MT_KERNEL_H
#define MT_KERNEL_H

#include "op.h"

/* One operand. data is NULL while an op is prepared, and where an optional operand is absent (then count is 0). */
typedef struct View {
    void *data;
    Shape shape;     /* PyTorch's order: (N, C, H, W) or (N, F) or parameters */
    DType dtype;
    int channels_last; /* 4-D: elements lie as N, H, W, C (weights: O, KH, KW, I) */
    int64_t order[3];  /* nhwc_to_nchw: (C, H, W) of a flattened image, else 0 */
    int64_t count;     /* elements */
} View;

/* The operand as (outer, size along `axis`, inner), in the order in which elements lie in memory. */
static inline void view_split(const View *v, int axis, int64_t *outer, int64_t *inner) {
    const int channels_last[SHAPE_MAX] = {0, 2, 3, 1};
    bool before = true;
    *outer = *inner = 1;
    for (int i = 0; i < v->shape.rank; i++) {
        int d = v->channels_last && v->shape.rank == 4 ? channels_last[i] : i;
        if (d == axis) before = false;
        else if (before) *outer *= v->shape.dim[d];
        else *inner *= v->shape.dim[d];
    }
}

typedef struct KArgs {
    OpKind kind;
    const Attr *attr;
#define SLOT View
#include "slots.h"
    void *workspace;
    size_t workspace_bytes;
    void *state;     /* what prepare returned */
    void *device;    /* the Device */
    uint64_t seed;
    uint32_t micro;  /* 0 in the first micro-batch of a step, 1 in later ones: all that a kernel is told of the time, so
                      * that a recorded step can be replayed */
} KArgs;

/* run: 0 or an ErrCode. prepare: see DeviceTable. A kernel that is missing on a device is a link error. */
typedef int KernelRun(const KArgs *, Err *);
typedef int KernelPrepare(const KArgs *, size_t limit, void **state, size_t *workspace, Err *);
typedef void KernelRelease(void *state);

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
