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

/* An op's operand, or its descriptor */
enum { PARTS = 5 };
typedef struct Part { cudnnBackendAttributeName_t name; Node node; } Part;

/* An op of these parts; those whose node is NULL are left out. */
static void add_op(Graph *g, cudnnBackendDescriptorType_t type, const char *what, const Part part[PARTS]) {
    Node op = make(g, type, what);
    for (int k = 0; k < PARTS; k++)
        if (part[k].node) set_node(g, op, part[k].name, part[k].node);
    finish_op(g, op);
}

static const cudnnDataType_t types[DT_COUNT] = {[DT_F32] = CUDNN_DATA_FLOAT, [DT_BF16] = CUDNN_DATA_BFLOAT16,
    [DT_F16] = CUDNN_DATA_HALF, [DT_I32] = CUDNN_DATA_INT32, [DT_U8] = CUDNN_DATA_UINT8};
static const cudnnDataType_t in_f32 = CUDNN_DATA_FLOAT; /* every sum and pointwise op is computed in it */

typedef struct Placed { bool is_virtual, by_value; } Placed;

static Node tensor(Graph *g, int64_t id, cudnnDataType_t type, const int64_t dim[4], const int64_t stride[4], Placed placed) {
    Node d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
    const int64_t alignment = 16; /* bytes; the program's buffers start at multiples of CUDA_ALIGNMENT */
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &placed.is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &placed.by_value);
    finish(g, d);
    return d;
}

static int64_t next_virtual(Graph *g) { return GRAPH_VIRTUAL + g->n_virtual++; }

Node graph_tensor_at(Graph *g, int64_t id, DType type, const int64_t dim[4], const int64_t stride[4]) {
    return tensor(g, id ? id : next_virtual(g), types[type], dim, stride, (Placed){.is_virtual = id == 0});
}

Node graph_tensor(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    const int64_t last[4] = {dim[1] * dim[2] * dim[3], 1, dim[3] * dim[1], dim[1]};
    return graph_tensor_at(g, id, type, dim, last);
}

static void in_order(const int64_t dim[4], int64_t stride[4]) {
    stride[3] = 1;
    for (int k = 2; k >= 0; k--) stride[k] = stride[k + 1] * dim[k + 1];
}

Node graph_tensor_in_order(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    int64_t stride[4];
    in_order(dim, stride);
    return graph_tensor_at(g, id, type, dim, stride);
}

Node graph_flags(Graph *g, const int64_t dim[4]) {
    int64_t stride[4];
    in_order(dim, stride);
    return tensor(g, next_virtual(g), CUDNN_DATA_BOOLEAN, dim, stride, (Placed){.is_virtual = true});
}

Node graph_number(Graph *g, int64_t id) {
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, id, CUDNN_DATA_FLOAT, one, one, (Placed){.by_value = true});
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

static Node pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute) {
    Node d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise op");
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    return d;
}

/* b: the second operand, and flags that choose between both; NULL: there is none */
static void pointwise_op(Graph *g, Node how, Node in, Node b, Node flags, Node out) {
    finish(g, how);
    add_op(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a pointwise op's operands",
           (Part[PARTS]){{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how}, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in},
                         {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b}, {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, flags},
                         {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out}});
}

void graph_math(Graph *g, GraphMath f, Node a, Node b, Node out) {
    static const cudnnPointwiseMode_t modes[] = {
        [GRAPH_ADD] = CUDNN_POINTWISE_ADD, [GRAPH_SUB] = CUDNN_POINTWISE_SUB, [GRAPH_MUL] = CUDNN_POINTWISE_MUL,
        [GRAPH_DIV] = CUDNN_POINTWISE_DIV, [GRAPH_EXP] = CUDNN_POINTWISE_EXP, [GRAPH_LOG] = CUDNN_POINTWISE_LOG};
    pointwise_op(g, pointwise(g, modes[f], in_f32), a, b, NULL, out);
}

void graph_index(Graph *g, int axis, Node like, Node out) {
    const int64_t along = axis;
    Node how = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32);
    set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &along);
    pointwise_op(g, how, like, NULL, NULL, out);
}

void graph_at_least(Graph *g, Node a, Node b, Node flags) {
    pointwise_op(g, pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN), a, b, NULL, flags);
}

void graph_select(Graph *g, Node flags, Node a, Node b, Node out) {
    pointwise_op(g, pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, in_f32), a, b, flags, out);
}

static void set_slope(Graph *g, Node how, const ActAttr *act) {
    const double slope = act->slope;
    if (act->act == ACT_LEAKY) set(g, how, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, &slope);
}

void graph_act(Graph *g, const ActAttr *act, Node in, Node out) {
    const bool identity = !act || act->act == ACT_NONE;
    const cudnnNanPropagation_t keep = CUDNN_PROPAGATE_NAN; /* if a NaN became 0, the loss would not show it */
    Node how = pointwise(g, identity ? CUDNN_POINTWISE_IDENTITY : CUDNN_POINTWISE_RELU_FWD, in_f32);
    if (!identity) {
        set_slope(g, how, act);
        set(g, how, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &keep);
    }
    pointwise_op(g, how, in, NULL, NULL, out);
}

void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out) {
    Node how = pointwise(g, CUDNN_POINTWISE_RELU_BWD, in_f32);
    set_slope(g, how, act);
    finish(g, how);
    add_op(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "an activation's gradient",
           (Part[PARTS]){{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how}, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, s},
                         {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy}, {CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, out}});
}

void graph_matmul(Graph *g, Node a, Node b, Node out) {
    Node how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product of matrices");
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_f32);
    finish(g, how);
    add_op(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product's matrices",
           (Part[PARTS]){{CUDNN_ATTR_OPERATION_MATMUL_DESC, how}, {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                         {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b}, {CUDNN_ATTR_OPERATION_MATMUL_CDESC, out}});
}

void graph_transpose(Graph *g, Node in, Node out) {
    add_op(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transposition",
           (Part[PARTS]){{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, in}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out}});
}

void graph_reduce(Graph *g, GraphReduce f, Node in, Node out) {
    Node how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction");
    const cudnnReduceTensorOp_t op_of = f == GRAPH_SUM ? CUDNN_REDUCE_TENSOR_ADD : CUDNN_REDUCE_TENSOR_MAX;
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op_of);
    const bool same_bits = true; /* without it a sum uses atomics, in any order */
    set(g, how, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &same_bits);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_f32);
    finish(g, how);
    add_op(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction's operands",
           (Part[PARTS]){{CUDNN_ATTR_OPERATION_REDUCTION_DESC, how}, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, in},
                         {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out}});
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
