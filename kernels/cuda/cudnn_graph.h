/* cudnn_graph.h: graphs of cuDNN, in this program's terms: tensors with dimensions in PyTorch's order, which lie
 * channels-last unless it is said; one pass of a convolution; pointwise ops and a sum after it. It calls cuDNN's backend API from C.
 *
 * A Graph remembers its first failure; later calls do nothing. So a caller adds everything and checks once, in
 * graph_finish. graph_free frees everything that was made. */
#ifndef MT_CUDNN_GRAPH_H
#define MT_CUDNN_GRAPH_H

#include <cudnn.h>

#include "base/conv_plan.h"
#include "program/kernel.h"

/* Tensors that exist only inside the graph have ids from GRAPH_VIRTUAL on. */
enum { GRAPH_DESCRIPTORS = 32, GRAPH_OPS = 4, GRAPH_VIRTUAL = 100 };

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
void graph_conv(Graph *g, ConvPass pass, const ConvAttr *attr, Node x, Node w, Node y);
/* out = in + b, b (1, C, 1, 1) */
void graph_add(Graph *g, Node in, Node b, Node out);
/* A factor in host memory: its data is the address of a float. */
Node graph_factor(Graph *g, int64_t id);
/* out = in * factor, in out's type */
void graph_scale(Graph *g, Node in, Node factor, Node out);
/* out = f(in), where graph_can_act(f); NULL or ACT_NONE: out = in in out's type */
void graph_act(Graph *g, const ActAttr *act, Node in, Node out);
/* out = dy f'(s) */
void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out);
/* out (1, C, 1, 1) = sum of in over the other dimensions */
void graph_sum(Graph *g, Node in, Node out);
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
