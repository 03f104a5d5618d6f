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

static Tensor *flat_buffer(Eager *g, const CudnnRnn *r) {
    eager_op(g, "aten::zeros");
    return tensor_new(g, r->type, SIZE(cudnn_rnn_weights(r)));
}

/* A part of the buffer, with no other relation to it. */
static Tensor *slice(Eager *g, const Tensor *buffer, const Size *size) {
    Tensor *part = tensor_detach(g, buffer);
    if (part == g->unnamed) return part;
    part->size = *size;
    contiguous_strides(size, part->stride);
    return part;
}

void aten_cudnn_rnn_flatten(Eager *g, CudnnRnn r, Tensor **w, int n) {
    r.type = w[0]->type;
    Tensor *buffer = flat_buffer(g, &r);
    for (int i = 0; i < n && !g->scratch.failed; i++) {
        Tensor *part = slice(g, buffer, &w[i]->size);
        part->leaf = w[i]->leaf;
        part->parameter = w[i]->parameter;
        tensor_set(g, &w[i], part);
    }
    tensor_drop(g, buffer);
}

/* ---- the layers */

/* In the order of PyTorch's names; after the weights the output, the reserve and the buffer of the weights. */
enum { SAVED_CX, SAVED_STATE, SAVED_HX, SAVED_X, SAVED_WEIGHTS };
enum { RESULT_Y, RESULT_RESERVE, RESULT_BUFFER, SAVED_RESULTS };
enum { EDGE_X, EDGE_WEIGHTS };

static const Tensor *saved_result(const Node *n, int which) {
    return n->saved[SAVED_WEIGHTS + n->n_next - EDGE_WEIGHTS + which];
}

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
    multiplies(g, "aten::_cudnn_rnn_backward", r, dy_steps, saved_result(n, RESULT_RESERVE));
    tensor_drop(g, dy_steps);
    tensor_drop(g, x);
    x = steps_first(g, r, n->saved[SAVED_X]);
    Tensor *dw = flat_buffer(g, r);
    run_workspace(g, r);
    multiplies(g, "aten::_cudnn_rnn_backward", r, x, saved_result(n, RESULT_RESERVE));
    READS(g, saved_result(n, RESULT_Y));
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
    if (g->dropout_state) return;
    eager_op(g, "aten::empty");
    INNER(g, (int64_t)scalar_bytes(T_LONG)); /* the seed */
    g->dropout_state = bytes(g, CAT_OTHER, cudnn_dropout_state(g->card, estimated(g)));
}

static Tensor *cudnn_rnn(Eager *g, const CudnnRnn *r, Tensor *x, Tensor *const *w, int n_w, Tensor *hx, Tensor *cx) {
    GUARD(g);
    const bool grad = g->grad;
    Tensor **in = scratch_new(&g->scratch, (size_t)(EDGE_WEIGHTS + n_w), sizeof *in);
    CudnnRnn *kept = scratch_new(&g->scratch, 1, sizeof *kept);
    if (!in || !kept) return tensor_ref(g->unnamed);
    in[EDGE_X] = x;
    for (int i = 0; i < n_w; i++) in[EDGE_WEIGHTS + i] = w[i];
    Node *n = node_new(g, &cudnn_rnn_rule, in, EDGE_WEIGHTS + n_w, SAVED_WEIGHTS + n_w + SAVED_RESULTS);
    *kept = *r;
    if (n) n->number[0] = (int64_t)(intptr_t)kept;
    node_save(g, n, SAVED_X, x);
    node_save(g, n, SAVED_HX, hx);
    node_save(g, n, SAVED_CX, cx);
    node_save(g, n, SAVED_STATE, g->dropout_state);
    for (int i = 0; i < n_w; i++) node_save(g, n, SAVED_WEIGHTS + i, w[i]);
    g->grad = false;
    Tensor *steps = steps_first(g, r, x), *y = of_steps(g, r, r->directions * r->units);
    Tensor *hy = hidden(g, "aten::empty", r), *cy = cx ? hidden(g, "aten::empty", r) : NULL;
    Tensor *workspace = bytes(g, CAT_WORKSPACE, cudnn_rnn_workspace(r, estimated(g)));
    Tensor *reserve = g->training ? bytes(g, CAT_ACTIVATIONS, cudnn_rnn_reserve(r, estimated(g))) : NULL;
    multiplies(g, "aten::_cudnn_rnn", r, steps, NULL);
    tensor_drop(g, workspace);
    tensor_drop(g, steps);
    g->grad = grad;
    node_output(g, n, y);
    Tensor *buffer = slice(g, w[0], &(Size){1, {cudnn_rnn_weights(r)}});
    Tensor *const results[SAVED_RESULTS] = {[RESULT_Y] = y, [RESULT_RESERVE] = reserve, [RESULT_BUFFER] = buffer};
    for (int k = 0; k < SAVED_RESULTS; k++) node_save(g, n, SAVED_WEIGHTS + n_w + k, results[k]);
    tensor_drop(g, buffer);
    tensor_drop(g, reserve);
    tensor_drop(g, cy);
    tensor_drop(g, hy);
    return y;
}

/* ---- autocast runs them in fp16, of whichever type it is: a second buffer has copies of the weights, which are not kept
 * for the next call. Source: ATen/cudnn/AutocastRNN.cpp (_cudnn_rnn_cast_reflatten). */

static void apply_copy(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)g, (void)n;
    dx[0] = tensor_ref(dy[0]); /* which the engine converts */
}

static const NodeRule copy_rule = {"CopyBackwards", apply_copy};

static Tensor *half_copy(Eager *g, const Tensor *buffer, Tensor *w) {
    Tensor *column = aten_view(g, w, SIZE(tensor_elements(w), 1)), *part = slice(g, buffer, &column->size);
    node_output(g, node_new(g, &copy_rule, &column, 1, 0), part);
    tensor_drop(g, column);
    return part;
}

static Tensor *in_half(Eager *g, CudnnRnn *r, Tensor *x, Tensor *const *w, int n_w, Tensor *hx, Tensor *cx) {
    r->type = T_HALF;
    Tensor *buffer = flat_buffer(g, r), **part = scratch_new(&g->scratch, (size_t)n_w, sizeof *part);
    if (!part) return tensor_ref(g->unnamed);
    for (int i = 0; i < n_w; i++) part[i] = half_copy(g, buffer, w[i]);
    Tensor *c = cx ? aten_to(g, cx, T_HALF) : NULL, *h = aten_to(g, hx, T_HALF), *low = aten_to(g, x, T_HALF);
    Tensor *y = cudnn_rnn(g, r, low, part, n_w, h, c);
    tensor_drop(g, low);
    tensor_drop(g, h);
    tensor_drop(g, c);
    for (int i = 0; i < n_w; i++) tensor_drop(g, part[i]);
    tensor_drop(g, buffer);
    return y;
}

Tensor *aten_cudnn_rnn(Eager *g, CudnnRnn r, Tensor *x, Tensor *const *w, int n_w, double dropout) {
    GUARD(g);
    r.type = x->type;
    Tensor *hx = hidden(g, "aten::zeros", &r), *cx = r.mode == RNN_LSTM ? hidden(g, "aten::zeros", &r) : NULL;
    if (g->training && dropout > 0) make_dropout_state(g);
    Tensor *y = g->autocast ? in_half(g, &r, x, w, n_w, hx, cx) : cudnn_rnn(g, &r, x, w, n_w, hx, cx);
    tensor_drop(g, cx);
    tensor_drop(g, hx);
    return y;
}
