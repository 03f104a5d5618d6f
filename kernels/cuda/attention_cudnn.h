/* attention_cudnn.h: attention and its gradient as graphs of cuDNN. attention_choose.c says when they are taken.
 *
 * cuDNN draws numbers for dropout of its own, so ops with dropout have no such graph: all devices draw the same. */
#ifndef MT_ATTENTION_CUDNN_H
#define MT_ATTENTION_CUDNN_H

#include "cudnn_graph.h"
#include "program/attention.h"

/* A graph's tensors, by id: the op's operands; INNER: <dy, y> of each query, in the workspace; numbers in host memory. */
enum {
    SDPA_Q = 1, SDPA_K, SDPA_V, SDPA_Y, SDPA_LSE, SDPA_DY, SDPA_DQ, SDPA_DK, SDPA_DV, SDPA_INNER, SDPA_SCALE, SDPA_UNSEEN,
    SDPA_ONE, SDPA_IDS
};

/* (samples, heads, steps, features) and how its elements lie, where the op has them; data: NULL before a run */
typedef struct SdpaTensor { int64_t dim[4], stride[4]; char *data; } SdpaTensor;

typedef struct Sdpa {
    AttentionAttr attr;
    bool gradient;
    DType type;
    SdpaTensor at[SDPA_IDS]; /* of the first ten; dim[0] == 0: the op has no such operand */
} Sdpa;

/* false: the op has what the graphs lack: another type than bf16 and f16, features that do not lie in whole words of 16 bytes,
 * dropout, a bias, a window, a cap, or several sequences in a row. */
bool sdpa_read(const KArgs *a, Sdpa *s);
/* handle: of a device that is here, else NULL */
int sdpa_graph(const Sdpa *s, cudnnHandle_t handle, Graph *g, Err *e);
/* Bytes of the workspace before the engine's own. */
size_t sdpa_inner_bytes(const Sdpa *s);
/* The graph's tensors for a run: tensor id[k] lies at data[k]; returns how many there are. */
int sdpa_tensors(const Sdpa *s, char *workspace, int64_t id[SDPA_IDS], void *data[SDPA_IDS]);

#endif
