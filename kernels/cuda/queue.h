/* queue.h: updates that wait on the host. A step has one such op per parameter, and most are small. Consecutive ones of the same kind
 * and rule become one launch, with the list of their tensors in the kernel's parameters. cuda_flush enqueues what waits; the
 * device calls it before anything else is enqueued or waited for. For C and .cu files. */
#ifndef MT_QUEUE_H
#define MT_QUEUE_H

#include "cuda.h"

enum { PARAMETER_BYTES = 4096 /* of a kernel */ };

/* What a launch begins with: what its tensors have in common, and how many there are. */
typedef struct QueueHead {
    OptimRule rule;
    StepState *state; /* NULL: the rule needs none */
    const float *lr;  /* NULL: rule.lr */
    float *square;    /* NULL: gradients are not clipped */
    int n;
} QueueHead;

/* Enqueues a launch of ops of this kind. */
typedef int QueueEnqueue(CudaDevice *c, OpKind kind, const void *launch, Err *e);

#ifdef __cplusplus
extern "C" {
#endif

/* *launch: what the tensor of op `a` is to be added to: fewer than `most` tensors of its kind, with this head; where there is none,
 * what waits is enqueued before. It is all zeros, its head aside, where head.n is 0. */
int queue_join(const KArgs *a, const QueueHead *head, int most, QueueEnqueue *enqueue, void **launch, Err *e);
/* The launch that waits, or NULL */
void *queue_waiting(CudaDevice *c, OpKind kind);

#ifdef __cplusplus
}

/* Does the workspace of op `a` lie where `count` elements do, a gradient's that may be no longer there, but is still waited with? */
static inline bool workspace_holds(const KArgs *a, const void *p, int64_t count, DType type) {
    const uintptr_t at = (uintptr_t)a->workspace, g = (uintptr_t)p;
    return g < at + a->workspace_bytes && at < g + (size_t)count * dtype_size(type);
}

/* Of an optimizer's op */
static inline QueueHead update_head(const KArgs *a) {
    QueueHead head = {};
    head.rule = a->attr->optim.rule;
    head.state = (StepState *)a->update.state.data;
    head.lr = (const float *)a->update.lr.data;
    head.square = (float *)a->update.square.data;
    return head;
}

/* What is the same for all numbers of an update, among it Adam's powers of beta, by one thread of the block; all of its threads must
 * call it. NEEDED false: it is not computed. */
template <bool NEEDED = true> static __device__ inline const OptimStep &block_step(const QueueHead &h) {
    __shared__ OptimStep step;
    if (NEEDED && threadIdx.x == 0 && threadIdx.y == 0) {
        const OptimStep now = optim_step(&h.rule, h.state, h.lr, h.square);
        step = now;
    }
    __syncthreads();
    return step;
}

/* The tensor that item number `item` of a launch is of: the last one that begins at it or before it. tensor[k].first: the number of
 * its first item */
template <typename T> static __device__ inline int tensor_of(const T *tensor, int n, int64_t item) {
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (tensor[middle].first <= item) low = middle;
        else high = middle - 1;
    }
    return low;
}
#endif

#endif
