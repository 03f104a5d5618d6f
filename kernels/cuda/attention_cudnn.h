/* attention_cudnn.h: attention and its gradient as graphs of cuDNN. attention_choose.c says when they are taken.
 *
 * cuDNN would draw numbers of its own for dropout, and memtide draws the same everywhere. So the graphs multiply by a mask in the
 * workspace, which an own kernel makes of memtide's numbers. */
#ifndef MT_ATTENTION_CUDNN_H
#define MT_ATTENTION_CUDNN_H

#include "cuda.h"
#include "cudnn_graph.h"
#include "program/attention.h"
#include "tuned.h"

/* A graph's tensors, by id: the op's operands; in the workspace INNER: <dy, y> of each query, and MASK: 1 where dropout keeps a
 * probability, else 0; numbers in host memory: the factor of what is kept, the share that is kept, and the score of a key that
 * is not seen. */
enum {
    SDPA_Q = 1, SDPA_K, SDPA_V, SDPA_Y, SDPA_LSE, SDPA_DY, SDPA_DQ, SDPA_DK, SDPA_DV, SDPA_INNER, SDPA_MASK, SDPA_SCALE, SDPA_KEEP,
    SDPA_SHARE, SDPA_UNSEEN, SDPA_IDS
};

/* (samples, heads, steps, features) and how its elements lie, where the op has them; data: NULL before a run */
typedef struct SdpaTensor { int64_t dim[4], stride[4]; char *data; } SdpaTensor;

typedef struct Sdpa {
    AttentionAttr attr;
    bool gradient, drops;
    DType type;
    float keep, share, unseen; /* the numbers */
    SdpaTensor at[SDPA_IDS];   /* but of numbers; dim[0] == 0: the op has no such operand */
} Sdpa;

/* false: the library is too old, or the op has what the graphs lack: another type than bf16 and f16, features that do not lie in
 * whole words of 16 bytes, a bias, a window, a cap, several sequences in a row, or a single query with a single key. */
bool sdpa_read(const KArgs *a, Sdpa *s);
int sdpa_graph(CudaDevice *c, const Sdpa *s, Graph *g, Err *e);
/* Bytes of the workspace before the engine's own: [mask | inner | the engine's]. */
size_t sdpa_before(const Sdpa *s);
/* The graph's tensors for a run: tensor id[k] lies at data[k], numbers in *s; returns how many there are. */
int sdpa_tensors(const Sdpa *s, char *workspace, int64_t id[SDPA_IDS], void *data[SDPA_IDS]);

/* ---- attention_choose.c */

/* A prepared op, in either way */
typedef struct AttentionState {
    CudaState base;
    bool cudnn;         /* else by own kernels */
    Node plan;          /* NULL: by own kernels, or the device is not here */
    size_t engine_at;   /* bytes from the start of the workspace */
    size_t workspace;
} AttentionState;

/* The op's name in picks, which has all that the choice depends on */
int attention_text(const KArgs *a, char text[PICK_OP], Err *e);

#endif
