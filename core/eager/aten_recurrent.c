/* cuDNN's recurrent layers. Source: ATen/native/cudnn/RNN.cpp (_cudnn_rnn, _cudnn_rnn_backward_input,
 * _cudnn_rnn_backward_weight, copy_weights_to_flat_buf_views, get_dropout_state); derivatives.yaml (_cudnn_rnn). */
#include <stdint.h>

#include "aten.h"

static Tensor *hidden(Eager *g, const char *op, const CudnnRnn *r) {
    eager_op(g, op);
    return tensor_new(g, r->type, SIZE(r->layers * r->directions, r->samples, r->units));
}

/* What lies as (T, N, F): x itself, or a copy. */
static Tensor *steps_first(Eager *g, const CudnnRnn *r, Tensor *x) {
    Tensor *turned = r->batch_first ? aten_transpose(g, x, 0, 1) : tensor_ref(x), *y = aten_contiguous(g, turned);
    tensor_drop(g, turned);
    return y;
}

/* A new tensor that lies as (T, N, n), seen as the layer's input is. */
static Tensor *of_steps(Eager *g, const CudnnRnn *r, int64_t n) {
    eager_op(g, "aten::empty");
    Tensor *y = tensor_new(g, r->type, SIZE(r->steps, r->samples, n));
    if (r->batch_first && y != g->unnamed) {
        y->size = SIZE(r->samples, r->steps, n);
        y->stride[0] = n;
        y->stride[1] = r->samples * n;
    }
    return y;
}

static EstimateKind estimated(Eager *g) {
    g->estimate.any = true;
    return g->estimate.which;
}

static Tensor *bytes(Eager *g, Category category, int64_t n) {
    const Category before = g->category;
    eager_op(g, "aten::empty");
    g->category = category;
    g->uncounted = category == CAT_WORKSPACE; /* how much of it is used is not known */
    Tensor *t = tensor_new(g, T_BYTE, SIZE(n));
    g->uncounted = false;
    g->category = before;
    return t;
}

static void run_workspace(Eager *g, const CudnnRnn *r) {
    eager_op(g, "aten::empty");
    g->uncounted = true;
    INNER(g, cudnn_rnn_workspace(r, estimated(g)));
    g->uncounted = false;
}

/* One pass over the weights in each step, whose gates are read or written: forward, for dx, and for dw. cuDNN takes TF32 for fp32 as
 * it does in convolutions. */
static void multiplies(Eager *g, const char *op, const CudnnRnn *r, const Tensor *x, const Tensor *reserve) {
    const double steps = (double)(r->steps * r->samples), flops = 2 * steps * (double)cudnn_rnn_matrices(r);
    eager_op(g, op);
    READS(g, x, reserve);
    work_moves(g, (double)cudnn_rnn_weights(r) * (double)scalar_bytes(r->type));
    work_flops(g, r->type, UNIT_TF32, flops, flops);
}

/* ---- the weights lie in one buffer, which has room for biases even where there are none */

static Tensor *flat_buffer(Eager *g, const CudnnRnn *r, ScalarType type) {
    eager_op(g, "aten::zeros");
    return tensor_new(g, type, SIZE(cudnn_rnn_weights(r)));
}

/* A part of the buffer, with no other relation to it. */
static Tensor *slice(Eager *g, const Tensor *buffer, const Size *size) {
    Tensor *part = tensor_detach(g, buffer);
    if (part == g->unnamed) return part;
    part->size = *size;
    contiguous_strides(size, part->stride);
    return part;
}

void aten_cudnn_rnn_flatten(Eager *g, const CudnnRnn *r, Tensor **w, int n) {
    Tensor *buffer = flat_buffer(g, r, w[0]->type);
    for (int i = 0; i < n && !g->scratch.failed; i++) {
        Tensor *part = slice(g, buffer, &w[i]->size);
        part->leaf = w[i]->leaf;
        part->parameter = w[i]->parameter;
        tensor_set(g, &w[i], part);
    }
    tensor_drop(g, buffer);
}

/* ---- the layers */

enum { SAVED_X, SAVED_HX, SAVED_CX, SAVED_Y, SAVED_RESERVE, SAVED_WEIGHT, SAVED };
enum { EDGE_X, EDGE_WEIGHTS };

/* The kernels give the gradients of x and of the states, wanted or not; those of the weights are parts of one buffer. */
static void apply_cudnn_rnn(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const CudnnRnn *r = (const CudnnRnn *)(intptr_t)n->number[0];
    const int states = n->saved[SAVED_CX] ? 2 : 1;
    Tensor *given[2] = {NULL}, *made[2] = {NULL};
    for (int k = 0; k < states; k++) given[k] = hidden(g, "aten::zeros_like", r);
    Tensor *x = steps_first(g, r, n->saved[SAVED_X]), *dy_steps = steps_first(g, r, dy[0]);
    Tensor *dx_steps = of_steps(g, r, r->inputs);
    for (int k = 0; k < states; k++) made[k] = hidden(g, "aten::empty", r);
    run_workspace(g, r);
    multiplies(g, "aten::_cudnn_rnn_backward", r, dy_steps, n->saved[SAVED_RESERVE]);
    tensor_drop(g, dy_steps);
    tensor_drop(g, x);
    x = steps_first(g, r, n->saved[SAVED_X]);
    Tensor *dw = flat_buffer(g, r, r->type);
    run_workspace(g, r);
    multiplies(g, "aten::_cudnn_rnn_backward", r, x, n->saved[SAVED_RESERVE]);
    READS(g, n->saved[SAVED_Y]);
    tensor_drop(g, x);
    for (int i = EDGE_WEIGHTS; i < n->n_next; i++)
        if (node_wants(n, i)) dx[i] = slice(g, dw, &n->next[i].node->out[n->next[i].output].size);
    tensor_drop(g, dw);
    if (node_wants(n, EDGE_X)) dx[EDGE_X] = tensor_ref(dx_steps);
    tensor_drop(g, dx_steps);
    for (int k = 0; k < states; k++) {
        tensor_drop(g, given[k]);
        tensor_drop(g, made[k]);
    }
}

static const NodeRule cudnn_rnn_rule = {"CudnnRnnBackward0", apply_cudnn_rnn};

/* The state of dropout's random numbers is made once in a process. */
static void make_dropout_state(Eager *g) {
    if (g->has_dropout_state) return;
    g->has_dropout_state = true;
    eager_op(g, "aten::empty");
    INNER(g, (int64_t)scalar_bytes(T_LONG)); /* the seed */
    eager_op(g, "aten::_cudnn_init_dropout_state");
    eager_forever(g, (size_t)cudnn_dropout_state(g->card, estimated(g)));
}

Tensor *aten_cudnn_rnn(Eager *g, const CudnnRnn *r, Tensor *x, Tensor *const *w, int n_w, double dropout) {
    GUARD(g);
    const bool grad = g->grad, lstm = r->mode == RNN_LSTM;
    Tensor **in = scratch_new(&g->scratch, (size_t)(EDGE_WEIGHTS + n_w), sizeof *in);
    CudnnRnn *kept = scratch_new(&g->scratch, 1, sizeof *kept);
    if (!in || !kept) return tensor_ref(g->unnamed);
    in[EDGE_X] = x;
    for (int i = 0; i < n_w; i++) in[EDGE_WEIGHTS + i] = w[i];
    Tensor *hx = hidden(g, "aten::zeros", r), *cx = lstm ? hidden(g, "aten::zeros", r) : NULL;
    if (g->training && dropout > 0) make_dropout_state(g);
    Node *n = node_new(g, &cudnn_rnn_rule, in, EDGE_WEIGHTS + n_w, SAVED);
    *kept = *r;
    if (n) n->number[0] = (int64_t)(intptr_t)kept;
    node_save(g, n, SAVED_X, x);
    node_save(g, n, SAVED_HX, hx);
    node_save(g, n, SAVED_CX, cx);
    node_save(g, n, SAVED_WEIGHT, w[0]);
    g->grad = false;
    Tensor *steps = steps_first(g, r, x), *y = of_steps(g, r, r->directions * r->units);
    Tensor *hy = hidden(g, "aten::empty", r), *cy = lstm ? hidden(g, "aten::empty", r) : NULL;
    Tensor *workspace = bytes(g, CAT_WORKSPACE, cudnn_rnn_workspace(r, estimated(g)));
    Tensor *reserve = g->training ? bytes(g, CAT_ACTIVATIONS, cudnn_rnn_reserve(r, estimated(g))) : NULL;
    multiplies(g, "aten::_cudnn_rnn", r, steps, NULL);
    tensor_drop(g, workspace);
    tensor_drop(g, steps);
    g->grad = grad;
    node_save(g, n, SAVED_RESERVE, reserve);
    node_output(g, n, y);
    node_save(g, n, SAVED_Y, y);
    tensor_drop(g, reserve);
    tensor_drop(g, cy);
    tensor_drop(g, hy);
    tensor_drop(g, cx);
    tensor_drop(g, hx);
    return y;
}
