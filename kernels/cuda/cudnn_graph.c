#include "cudnn_graph.h"

#include <string.h>

#include "cudnn_device.h"

cudnnStatus_t node_get(Node d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t max,
                       int64_t *n, void *out) {
    int64_t count = 0;
    cudnnStatus_t status = cudnnBackendGetAttribute(d, name, type, max, &count, out);
    *n = status ? 0 : count < max || max == 0 ? count : max;
    return status;
}

void node_free(Node *d) {
    if (*d) cudnnBackendDestroyDescriptor(*d);
    *d = NULL;
}

/* ---- building */

static Node make(Graph *g, cudnnBackendDescriptorType_t type, const char *what) {
    if (g->status) return NULL;
    g->failed = what;
    if (g->n_made == GRAPH_DESCRIPTORS) {
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
        return NULL;
    }
    Node d = NULL;
    g->status = cudnnBackendCreateDescriptor(type, &d);
    if (!g->status) g->made[g->n_made++] = d;
    return d;
}

static void set(Graph *g, Node d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *value) {
    if (!g->status) g->status = cudnnBackendSetAttribute(d, name, type, n, value);
}

static void set_node(Graph *g, Node d, cudnnBackendAttributeName_t name, Node value) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_pair(Graph *g, Node d, cudnnBackendAttributeName_t name, const int32_t value[2]) {
    set(g, d, name, CUDNN_TYPE_INT64, 2, (int64_t[]){value[0], value[1]});
}

static void finish(Graph *g, Node d) {
    if (!g->status) g->status = cudnnBackendFinalize(d);
}

static void finish_op(Graph *g, Node op) {
    finish(g, op);
    if (!g->status && g->n_ops == GRAPH_OPS) g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->status) g->op[g->n_ops++] = op;
}

static const cudnnDataType_t types[DT_COUNT] = {[DT_F32] = CUDNN_DATA_FLOAT, [DT_BF16] = CUDNN_DATA_BFLOAT16,
    [DT_F16] = CUDNN_DATA_HALF, [DT_I32] = CUDNN_DATA_INT32, [DT_U8] = CUDNN_DATA_UINT8};
static const cudnnDataType_t in_f32 = CUDNN_DATA_FLOAT; /* every sum and pointwise op is computed in it */

typedef struct Placed { bool is_virtual, by_value, in_order; } Placed;

static Node tensor(Graph *g, int64_t id, DType type, const int64_t dim[4], Placed placed) {
    Node d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
    const int64_t image = dim[1] * dim[2] * dim[3];
    const int64_t last[4] = {image, 1, dim[3] * dim[1], dim[1]}, in_order[4] = {image, dim[2] * dim[3], dim[3], 1};
    const int64_t alignment = 16; /* bytes; the program's buffers start at multiples of CUDA_ALIGNMENT */
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &types[type]);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, placed.in_order ? in_order : last);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &placed.is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &placed.by_value);
    finish(g, d);
    return d;
}

Node graph_tensor(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    Placed placed = {.is_virtual = id == 0};
    return tensor(g, id ? id : GRAPH_VIRTUAL + g->n_virtual++, type, dim, placed);
}

Node graph_tensor_in_order(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    return tensor(g, id, type, dim, (Placed){.in_order = true});
}

Node graph_factor(Graph *g, int64_t id) {
    return tensor(g, id, DT_F32, (int64_t[]){1, 1, 1, 1}, (Placed){.by_value = true});
}

/* Each pass has attributes of its own for its tensors, scales and descriptor. */
static const struct PassNames {
    cudnnBackendDescriptorType_t op;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
} passes[] = {
#define NAMES(op, pass, dx, dw, dy) {CUDNN_BACKEND_OPERATION_CONVOLUTION_##op##_DESCRIPTOR,                          \
    CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##dx,             \
    CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##dw, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##dy,                  \
    CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_BETA}
    [CONV_FORWARD] = NAMES(FORWARD, FORWARD, X, W, Y),
    [CONV_DATA] = NAMES(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    [CONV_WEIGHTS] = NAMES(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
#undef NAMES
};

static Node convolution(Graph *g, const ConvAttr *a) {
    Node d = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "a convolution");
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2;
    set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_f32);
    set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    set_pair(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, a->dilation);
    set_pair(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, a->stride);
    set_pair(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, a->pad);
    set_pair(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, a->pad + 2);
    finish(g, d);
    return d;
}

/* cuDNN takes the number of groups from the channels of x and w. */
void graph_conv(Graph *g, ConvPass pass, const ConvAttr *attr, Node x, Node w, Node y) {
    const struct PassNames *names = &passes[pass];
    Node conv = convolution(g, attr), op = make(g, names->op, "a pass of a convolution");
    const float one = 1.0f, zero = 0.0f;
    set_node(g, op, names->conv, conv);
    set_node(g, op, names->x, x);
    set_node(g, op, names->w, w);
    set_node(g, op, names->y, y);
    set(g, op, names->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(g, op, names->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    finish_op(g, op);
}

/* relu: the activation, where the mode is a (leaky) ReLU or its gradient; else NULL */
static Node pointwise(Graph *g, cudnnPointwiseMode_t mode, const ActAttr *relu) {
    Node d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise op");
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &in_f32);
    if (relu && relu->act == ACT_LEAKY) {
        const double slope = relu->slope;
        set(g, d, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, &slope);
    }
    if (relu && mode == CUDNN_POINTWISE_RELU_FWD) {
        const cudnnNanPropagation_t keep = CUDNN_PROPAGATE_NAN; /* if a NaN became 0, the loss would not show it */
        set(g, d, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &keep);
    }
    finish(g, d);
    return d;
}

/* b: the second operand, NULL: there is none */
static void pointwise_op(Graph *g, Node how, Node in, Node b, Node out) {
    Node op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a pointwise op's operands");
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in);
    if (b) set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    finish_op(g, op);
}

void graph_add(Graph *g, Node in, Node b, Node out) {
    pointwise_op(g, pointwise(g, CUDNN_POINTWISE_ADD, NULL), in, b, out);
}

void graph_scale(Graph *g, Node in, Node factor, Node out) {
    pointwise_op(g, pointwise(g, CUDNN_POINTWISE_MUL, NULL), in, factor, out);
}

void graph_act(Graph *g, const ActAttr *act, Node in, Node out) {
    bool identity = !act || act->act == ACT_NONE;
    Node how = identity ? pointwise(g, CUDNN_POINTWISE_IDENTITY, NULL) : pointwise(g, CUDNN_POINTWISE_RELU_FWD, act);
    pointwise_op(g, how, in, NULL, out);
}

void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out) {
    Node how = pointwise(g, CUDNN_POINTWISE_RELU_BWD, act);
    Node op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "an activation's gradient");
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, s);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, out);
    finish_op(g, op);
}

void graph_sum(Graph *g, Node in, Node out) {
    Node how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a sum");
    const cudnnReduceTensorOp_t sum = CUDNN_REDUCE_TENSOR_ADD;
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &sum);
    const bool same_bits = true; /* without it the sum uses atomics, in any order */
    set(g, how, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &same_bits);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_f32);
    finish(g, how);
    Node op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a sum's operands");
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, in);
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    finish_op(g, op);
}

int graph_finish(Graph *g, cudnnHandle_t handle, Err *e) {
    g->graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "a graph");
    /* older versions, and plans with a handle, expect it; newer versions do without it */
    if (handle) set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
    finish(g, g->graph);
    return cudnn_device_check(g->status, g->failed, e);
}

void graph_free(Graph *g) {
    for (int k = g->n_made - 1; k >= 0; k--) node_free(&g->made[k]);
    memset(g, 0, sizeof *g);
}
