/* cudnn_graph.h: graphs of cuDNN, in this program's terms: tensors with dimensions in PyTorch's order, which lie
 * channels-last unless it is said; one pass of a convolution; products of matrices; pointwise ops and reductions. It calls
 * cuDNN's backend API from C. Sums and pointwise ops are computed in fp32.
 *
 * A Graph remembers its first failure; later calls do nothing. So a caller adds everything and checks once, in
 * graph_finish. graph_free frees everything that was made. */
#ifndef MT_CUDNN_GRAPH_H
#define MT_CUDNN_GRAPH_H

#include <cudnn.h>

#include "base/conv_plan.h"
#include "program/kernel.h"

/* Tensors that exist only inside the graph have ids from GRAPH_VIRTUAL on. */
enum { GRAPH_DESCRIPTORS = 96, GRAPH_OPS = 28, GRAPH_VIRTUAL = 100 };

typedef cudnnBackendDescriptor_t Node;

typedef struct Graph {
    Node made[GRAPH_DESCRIPTORS], op[GRAPH_OPS], graph;
    int n_made, n_ops, n_virtual;
    cudnnStatus_t status;
    const char *failed; /* what was attempted last */
} Graph;

/* A tensor (d0, d1, d2, d3) that lies as d0, d2, d3, d1. `id` names it when the plan is run; 0: it exists only inside. */
Node graph_tensor(Graph *g, int64_t id, DType type, const int64_t dim[4]);
/* One that lies in the order of its dimensions. */
Node graph_tensor_in_order(Graph *g, int64_t id, DType type, const int64_t dim[4]);
/* One whose element (i0, i1, i2, i3) lies at the sum of i[k] stride[k]. */
Node graph_tensor_at(Graph *g, int64_t id, DType type, const int64_t dim[4], const int64_t stride[4]);
/* Truth values, which exist only inside */
Node graph_flags(Graph *g, const int64_t dim[4]);
/* A number in host memory: its data is the address of a float. */
Node graph_number(Graph *g, int64_t id);
void graph_conv(Graph *g, ConvPass pass, const ConvAttr *attr, Node x, Node w, Node y);
/* out (N, H, M, J) = a (N, H, M, K) b (N, H, K, J). Where b has fewer of the second dimension, each of its matrices serves as
 * many neighbouring ones of a. */
void graph_matmul(Graph *g, Node a, Node b, Node out);
/* The same elements, with the last two dimensions exchanged: they are not moved. */
void graph_transpose(Graph *g, Node in, Node out);
/* out = f(a, b) in out's type. b: dimensions of 1 serve all of a's; NULL where f has one operand */
typedef enum GraphMath { GRAPH_ADD, GRAPH_SUB, GRAPH_MUL, GRAPH_DIV, GRAPH_EXP, GRAPH_LOG } GraphMath;
void graph_math(Graph *g, GraphMath f, Node a, Node b, Node out);
/* out, whole numbers: the index along dimension `axis`, with the dimensions of `like` */
void graph_index(Graph *g, int axis, Node like, Node out);
/* flags = a >= b, of whole numbers; out = flags ? a : b */
void graph_at_least(Graph *g, Node a, Node b, Node flags);
void graph_select(Graph *g, Node flags, Node a, Node b, Node out);
/* out = sum or largest of in; a dimension that is shorter in out is reduced, each of out's from as many neighbouring ones */
typedef enum GraphReduce { GRAPH_SUM, GRAPH_MAX } GraphReduce;
void graph_reduce(Graph *g, GraphReduce f, Node in, Node out);
/* out = f(in), where graph_can_act(f); NULL or ACT_NONE: out = in in out's type */
void graph_act(Graph *g, const ActAttr *act, Node in, Node out);
/* out = dy f'(s) */
void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out);
/* handle: of a device that is here, else NULL. Returns the graph's first failure as an ErrCode. */
int graph_finish(Graph *g, cudnnHandle_t handle, Err *e);
void graph_free(Graph *g);

/* Does cuDNN compute this activation as pointwise.h does? Its fused kernels approximate the others. */
static inline bool graph_can_act(ActFn f) { return f == ACT_NONE || f == ACT_RELU || f == ACT_LEAKY; }

/* ---- for the files that ask about graphs: descriptors and their attributes */

/* Reads an attribute of at most `max` items into `out`; *n: how many were read; max 0: how many there are. */
cudnnStatus_t node_get(Node d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t max,
                       int64_t *n, void *out);
void node_free(Node *d);

#endif
