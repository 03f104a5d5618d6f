/* tensor.h: PyTorch's tensors without contents: sizes, strides, a storage that is counted, and the graph that autograd
 * hangs on them. What runs on them (aten.h, modules.h) allocates and drops as eager PyTorch does, into a Trace.
 *
 *   Tensor ──> Storage ──> tensor of the trace: freed when the last Tensor on it is gone
 *      └─────> Node (grad_fn) ──> saved tensors, and edges to the nodes that made its inputs
 *
 * Ownership is PyTorch's: who holds a reference keeps it alive. A function returns a reference of the caller's own, and
 * takes its arguments as they are lent. All memory is the step's Scratch, and goes with it. */
#ifndef MT_EAGER_TENSOR_H
#define MT_EAGER_TENSOR_H

#include "conv_workspace.h"
#include "memory/trace.h"
#include "network/network.h"
#include "passes/settings.h"
#include "work.h"

/*   name      bytes */
#define SCALAR_TYPES(X) X(FLOAT, 4) X(HALF, 2) X(BFLOAT16, 2) X(LONG, 8) X(INT, 4) X(BOOL, 1) X(BYTE, 1)
typedef enum ScalarType {
#define X(name, bytes) T_##name,
    SCALAR_TYPES(X)
#undef X
    T_COUNT
} ScalarType;
/* Bytes of an element. */
static inline size_t scalar_bytes(ScalarType t) {
    static const size_t bytes[] = {
#define X(name, bytes) bytes,
        SCALAR_TYPES(X)
#undef X
    };
    return bytes[t];
}
static inline bool scalar_is_float(ScalarType t) { return t <= T_BFLOAT16; }

enum { TENSOR_RANK = 6 };

typedef struct Size { int rank; int64_t of[TENSOR_RANK]; } Size; /* rank 0: one element */
Size size_of(int rank, const int64_t *dims);
Size size_from(const Shape *s);
#define SIZE(...) size_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
bool size_equal(const Size *a, const Size *b);
int64_t size_elements(const Size *s);

/* traced: its number in the trace; -1: it is none of the device's. host: bytes of the host's pinned memory. */
typedef struct Storage { int refs, traced; size_t host; } Storage;

typedef struct Node Node;
typedef struct Frame Frame;
typedef struct Ddp Ddp;
typedef struct Fsdp Fsdp;
typedef struct FsdpUnit FsdpUnit;
typedef struct Eager Eager;

typedef struct Tensor {
    Storage *storage;
    int refs;
    Size size;
    int64_t stride[TENSOR_RANK];
    ScalarType type;
    Node *node;           /* grad_fn, a reference; NULL: a leaf */
    int output;           /* which of the node's outputs it is */
    bool leaf;            /* it has no node, but gets a gradient */
    bool parameter;       /* its 16-bit copy is kept by autocast: requires_grad, in evaluation, too */
    Node *accumulate;     /* of a leaf: its AccumulateGrad */
    struct Tensor *base;  /* of a view: what it was made of, a reference, so that it shares its storage for good */
    struct Tensor *grad;  /* of a leaf: a reference, or NULL */
    struct Tensor *cast;  /* of a parameter: autocast's copy in its cache, a reference, or NULL */
} Tensor;

/* What one thread of a process has on a GPU (the backward pass runs on a thread of its own). */
typedef enum Thread { THREAD_FORWARD, THREAD_AUTOGRAD, THREADS } Thread;

typedef struct Tensor *Module(Eager *g, const Layer *l, struct Tensor *const *in); /* modules.h */

/* What wraps the model hooks itself into the backward pass; NULL: it does not. */
typedef struct BackwardHooks {
    void (*gradient)(Eager *g, Tensor *p);   /* that of a parameter has been accumulated */
    void (*output)(Eager *g, FsdpUnit *u);   /* ... of a unit's output (node_hook) is there */
    void (*end)(Eager *g);                   /* all nodes have run */
} BackwardHooks;

/* What a model's forward function knows of positions: references, or NULL. */
typedef struct Angles { Tensor *positions, *cosine, *sine; } Angles;

/* What one call of split or unbind has made of a tensor, of which layers ask for one part after the other: references, NULL once taken. */
typedef struct Parts { const Storage *of; Size size; int dim, n; Tensor **part; } Parts;

/* What variables of a forward function hold beside the values of its graph. */
typedef struct Kept { Tensor *tensor; struct Kept *next; } Kept;

/* A buffer of a module that memtide's step does without. */
typedef struct MaskBuffer { const Layer *layer; Tensor *tensor; } MaskBuffer;

struct Eager {
    Trace *trace;
    const Network *net;
    Scratch scratch;
    const Card *card;
    const PyTorchVersion *version;
    SdpBackend attention; /* the setting */
    const Layer *refused; /* the layer that is not predicted (eager_refuse), or NULL */
    const char *why;
    Estimate estimate;    /* what sizes are taken for that cuDNN alone knows */
    Category category;    /* of what is allocated now */
    bool grad;            /* gradients are recorded: not under no_grad, not in the backward pass */
    bool autocast;
    ScalarType low;       /* what autocast computes in */
    ScalarType numbers;   /* of the model's parameters, and of what it is given */
    Thread thread;
    bool has_workspace[THREADS];
    Tensor *dropout_state; /* of cuDNN's recurrent layers: a reference, or NULL */
    long sequence;        /* of the last node */
    const Layer *layer;   /* whose op it is */
    const char *op;       /* "aten::relu" */
    const char *node;     /* "ReluBackward0" in the backward pass, else NULL */
    int call;             /* of the trace, for these four; -1: not yet entered */
    Work work;            /* of the step so far, but for */
    Kernel kernel;        /* ... the call that runs */
    bool uncounted;       /* what is allocated is counted by who allocates it */
    Unit products;        /* that multiply matrices in fp32 */
    Tensor **params;      /* by the network's number */
    Tensor **rotary;      /* buffers of Llama models, which the network does not know; lent */
    int n_rotary;
    MaskBuffer *masks;    /* of layers of kind Mask */
    int n_masks;
    Ddp *ddp;             /* what the model is wrapped in, or NULL */
    Fsdp *fsdp;           /* ... or how it is sharded, or NULL */
    BackwardHooks hooks;
    int stream;           /* whose blocks what is allocated now can have */
    Tensor *unnamed;      /* stands for a tensor where host memory ran out */
    bool offload;         /* what is saved waits on the host: torch.autograd.graph.save_on_cpu(pin_memory=True) */
    size_t host;          /* bytes of it there now */
    bool training;        /* model.train(), not model.eval() */
    Inplace inplace;      /* the setting */
    bool checkpoint;      /* nn.Checkpoint is torch.utils.checkpoint */
    const Layer *asks;    /* the embedding whose output asks for a gradient (lora_asks), or NULL */
    bool reentrant;       /* ... with use_reentrant=True */
    Frame *frame;         /* of the checkpoint that runs, or NULL */
    bool channels_last;   /* x and the model's weights lie so */
    bool benchmark;       /* cudnn.benchmark */
    ConvCalls convs;      /* so far */
    bool halted;          /* a recomputation has all that it is for: what follows does not happen */
    Tensor *more[LAYER_IN]; /* outputs of the network beside the first one, in forward(): references */
    int n_more;
    Kept *kept;             /* until the forward function that runs returns: references */
    Parts parts;            /* of the forward function that runs */
    Tensor *class_weights;  /* of the loss that runs, or NULL */
    Angles angles;          /* of rotary positions, in a forward pass */
    Module *const *modules; /* by kind of layer */
};

/* Where host memory has run out there is nothing to go on with: every op gives the step's stand-in, and the step ends
 * (eager_trace says why). */
#define GUARD(g) if ((g)->scratch.failed) return tensor_ref((g)->unnamed)

/* Names what runs from here on: the calls of the trace. eager_op begins a call. */
void eager_op(Eager *g, const char *op);
/* A call that makes a tensor anew in place, of itself and another, which may be NULL. */
void eager_inplace(Eager *g, const char *op, const Tensor *t, const Tensor *other);
void eager_where(Eager *g, const Layer *l, const char *node);

/* The step is not predicted: says why, of the layer that runs. The first reason counts. */
void eager_refuse(Eager *g, const char *why);

/* A new tensor, contiguous; and one with x's sizes whose dimensions lie in x's order, without holes. */
Tensor *tensor_new(Eager *g, ScalarType type, Size size);
Tensor *tensor_like(Eager *g, const Tensor *x, ScalarType type);
/* A new tensor (N, C, L) or (N, C, H, W) whose channels lie last; or contiguous, as other ranks always are. */
Tensor *tensor_in_format(Eager *g, ScalarType type, Size size, bool channels_last);
/* The result of an elementwise op on n operands, broadcast to that size: it lies as they do. */
Tensor *tensor_of_operands(Eager *g, ScalarType type, Size size, const Tensor *const *x, int n);
/* x's storage under other sizes and strides. */
Tensor *tensor_view(Eager *g, Tensor *x, Size size, const int64_t *stride);
/* storage.resize_(): what it had goes; 0: nothing comes in its place. */
void storage_resize(Eager *g, Storage *s, size_t bytes);
/* A copy of x in the host's memory, which PyTorch takes in powers of 2; what does not lie in order is copied on the device
 * first. Source: torch/autograd/graph.py (save_on_cpu), ATen/native/cuda/Copy.cu (copy_requires_temporaries),
 * ATen/core/CachingHostAllocator.h. */
Tensor *tensor_to_host(Eager *g, const Tensor *x);
/* x without its graph. */
Tensor *tensor_detach(Eager *g, const Tensor *x);
/* refs.c; NULL is allowed. tensor_set: *slot = t, a reference that is given; what the slot held before is dropped after
 * that, as an assignment does. */
Tensor *tensor_ref(Tensor *t);
void tensor_drop(Eager *g, Tensor *t);
void tensor_set(Eager *g, Tensor **slot, Tensor *t);
Angles angles_ref(const Angles *a);
void angles_drop(Eager *g, Angles *a);

int64_t tensor_elements(const Tensor *t);
size_t tensor_bytes(const Tensor *t);
void contiguous_strides(const Size *size, int64_t *stride);
bool tensor_is_contiguous(const Tensor *t);
/* Does it lie as one that tensor_in_format makes with its channels last? */
bool tensor_lies_channels_last(const Tensor *t);
/* Tensor::suggest_memory_format() == channels_last: its strides say so, though it may have holes; where sizes of 1 leave it
 * open, they do not. */
bool tensor_suggests_channels_last(const Tensor *t);
/* No two elements share a place, and none is left out. */
bool tensor_is_dense(const Tensor *t);
bool tensor_same_strides(const Tensor *a, const Tensor *b);
/* Is its storage held by this tensor alone, and the tensor by one reference? */
bool tensor_is_only(const Tensor *t);
/* Allocates pieces of these bytes, one after the other, and frees them: what an op needs while it runs. 0: none. */
void eager_inner(Eager *g, const int64_t *bytes, int n);
#define INNER(g, ...) eager_inner(g, (int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
/* Allocates what is never freed: of the device; pages of the host's memory that the device reads (cudaMallocManaged). */
void eager_forever(Eager *g, size_t bytes);
void eager_pages(Eager *g, size_t bytes);

/* work.c: what the call that runs does beside writing what it allocates. READS: of tensors, NULL is allowed; work_moves:
 * bytes read or written. work_flops: operations on that type, of which the card must do `least` (a causal mask leaves some out),
 * with `wide` where it is fp32. work_end: the call is over. */
void work_reads(Eager *g, const Tensor *const *t, int n);
#define READS(g, ...) work_reads(g, (const Tensor *const[]){__VA_ARGS__}, \
                                 (int)(sizeof((const Tensor *const[]){__VA_ARGS__}) / sizeof(Tensor *)))
void work_moves(Eager *g, double bytes);
void work_flops(Eager *g, ScalarType type, Unit wide, double flops, double least);
void work_end(Eager *g);

#endif
