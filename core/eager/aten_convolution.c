/* Convolutions: the bias is added in place; the backward pass gives dx, dw and db in one call. All three passes are cuDNN's,
 * which takes all tensors in one memory format and a workspace while it runs; depthwise ones may have kernels of their own.
 * Sources: ATen/native/Convolution.cpp (use_cudnn_depthwise), ConvUtils.h (cudnn_conv_suggest_memory_format),
 * cudnn/ConvShared.cpp, cudnn/Conv_v8.cpp. */
#include <string.h>

#include "aten.h"

/* ---- which kernels */

/* check_cudnn_depthwise_workload_with_filter: of fp16, in order; sizes of images (N, C, H, W) */
static bool depthwise_suits(const int64_t *x, const int64_t *w, int64_t stride) {
    if (x[2] == 1 && stride == 1) return true;
    if (w[2] != w[3] || (w[3] != 1 && w[3] != 3 && w[3] != 5) || x[3] < 7) return false;
    if (stride != 2) return stride == 1;
    if (x[0] == 1) return w[3] != 1 || x[3] <= 28;
    if (w[3] == 1) return x[0] <= 16 && x[1] >= 128 && x[3] <= 7;
    return x[1] >= 512 || (x[1] >= 256 && x[3] >= 28);
}

static void image_of(const Size *s, int64_t image[4]) {
    const int line = s->rank == 3;
    for (int d = 0; d < 4; d++) image[d] = line && d == 2 ? 1 : s->of[d - (line && d == 3)];
}

/* Does cuDNN run it? Else a depthwise kernel of PyTorch's own. */
static bool is_cudnn(const Tensor *x, const Tensor *w, const ConvHow *how, bool channels_last) {
    const ConvSteps *a = &how->steps;
    int64_t in[4], kernel[4];
    image_of(&x->size, in);
    image_of(&w->size, kernel);
    if (how->transposed || a->groups == 1 || in[1] != a->groups || channels_last) return true;
    return x->type == T_HALF && a->dilation[0] == 1 && a->dilation[1] == 1 && in[1] >= 32 &&
           (a->stride[0] == a->stride[1] || in[2] == 1) && depthwise_suits(in, kernel, a->stride[1]);
}

/* ---- the workspace */

static DType dtype_of(ScalarType t) { return t == T_FLOAT ? DT_F32 : t == T_HALF ? DT_F16 : DT_BF16; }

/* One pass of the convolution that maps images x to y: of a transposed one, its output to its input. */
static void workspace(Eager *g, ConvPass pass, ScalarType type, bool channels_last, const ConvHow *how, const Size *x,
                      const Size *w, const Size *y) {
    ConvQuery q;
    memset(&q, 0, sizeof q); /* it is compared as memory */
    q.pass = how->transposed && pass != CONV_WEIGHTS ? (pass == CONV_FORWARD ? CONV_DATA : CONV_FORWARD) : pass;
    q.type = dtype_of(type);
    q.channels_last = channels_last;
    image_of(how->transposed ? y : x, q.x);
    image_of(w, q.w);
    image_of(how->transposed ? x : y, q.y);
    q.steps = how->steps;
    if (g->halted) return;
    static const char *const ops[] = {"aten::cudnn_convolution", "aten::cudnn_convolution_backward_input",
                                      "aten::cudnn_convolution_backward_weight"};
    const Workspace found = conv_workspace(g->card, &q, g->benchmark);
    const char *op = g->op;
    g->convs.count[found.source]++;
    if (found.bytes[ESTIMATE_LEAST] != found.bytes[ESTIMATE_MOST]) g->estimate.any = true;
    if (found.version) g->convs.version[found.source] = found.version;
    eager_op(g, ops[pass]);
    g->uncounted = true; /* how much of it is used is not known */
    INNER(g, (int64_t)found.bytes[g->estimate.which]);
    g->uncounted = false;
    eager_op(g, op);
}

/* ---- memory formats */

/* x in that format: itself, or a copy. */
static Tensor *laid(Eager *g, Tensor *x, bool channels_last) {
    if (channels_last ? tensor_lies_channels_last(x) : tensor_is_contiguous(x)) return tensor_ref(x);
    READS(g, x);
    return tensor_in_format(g, x->type, x->size, channels_last);
}

/* x, or the image of height 1 that x.unsqueeze(2) is of a line */
static bool suggests_last(const Tensor *x) {
    Tensor image = *x;
    if (x->size.rank == 4) return tensor_suggests_channels_last(x);
    image.size.rank = 4;
    image_of(&x->size, image.size.of);
    image.stride[3] = x->stride[2];
    image.stride[2] = x->size.of[2] * x->stride[2];
    return tensor_suggests_channels_last(&image);
}

/* cudnn_conv_suggest_memory_format */
static bool suggests(const Tensor *a, const Tensor *b) { return suggests_last(a) || suggests_last(b); }

/* ---- the passes */

/* Each pass meets x and y with each weight. cuDNN takes TF32 for fp32 unless it is forbidden
 * (torch.backends.cudnn.allow_tf32). Of a transposed convolution the pixels are those of x. */
static void convolves(Eager *g, ScalarType type, bool transposed, const Size *x, const Size *w, const Size *y) {
    const Size *pixels = transposed ? x : y;
    const double flops = 2.0 * (double)size_elements(pixels) / (double)pixels->of[1] * (double)size_elements(w);
    work_flops(g, type, UNIT_TF32, flops, flops);
}

/* first, second: what the pass reads, in the order in which it is brought into the format. */
static void run_pass(Eager *g, ConvPass pass, const ConvHow *how, bool cudnn, bool channels_last, Tensor *first, Tensor *second,
                     const Size *x, const Size *w, const Size *y) {
    Tensor *a = laid(g, first, channels_last), *b = laid(g, second, channels_last);
    READS(g, a, b);
    convolves(g, first->type, how->transposed, x, w, y);
    if (cudnn) workspace(g, pass, first->type, channels_last, how, x, w, y);
    tensor_drop(g, b);
    tensor_drop(g, a);
}

static void keep_how(Node *n, const ConvHow *how) {
    const ConvSteps *a = &how->steps;
    const int64_t kept[] = {a->stride[0],   a->stride[1],   a->pad[0],  a->pad[1],
                            a->dilation[0], a->dilation[1], a->groups, how->transposed};
    memcpy(n->number, kept, sizeof kept);
    n->size = how->y;
}

static ConvHow how_of(const Node *n) {
    ConvHow how = {.y = n->size, .transposed = n->number[7]};
    for (int i = 0; i < 2; i++) {
        how.steps.stride[i] = (int32_t)n->number[i];
        how.steps.pad[i] = (int32_t)n->number[2 + i];
        how.steps.dilation[i] = (int32_t)n->number[4 + i];
    }
    how.steps.groups = (int32_t)n->number[6];
    return how;
}

static void apply_convolution(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    Tensor *x = n->saved[0], *w = n->saved[1];
    static const char op[] = "aten::convolution_backward";
    const ConvHow how = how_of(n);
    const bool format = suggests(x, w), cudnn = is_cudnn(x, w, &how, format);
    eager_op(g, op);
    Tensor *in = node_wants(n, 1) ? laid(g, x, format) : tensor_ref(x), *d = tensor_ref(dy[0]);
    const bool wanted = suggests_last(in);
    if (how.transposed || suggests_last(d) != wanted) tensor_set(g, &d, laid(g, d, wanted));
    if (node_wants(n, 0)) {
        const bool last = suggests(d, w);
        eager_op(g, op);
        dx[0] = tensor_in_format(g, d->type, x->size, last);
        run_pass(g, CONV_DATA, &how, cudnn, last, w, d, &x->size, &w->size, &how.y);
    }
    if (node_wants(n, 1)) {
        const bool last = suggests(in, d);
        eager_op(g, op);
        Tensor *a = laid(g, how.transposed ? in : d, last), *b = laid(g, how.transposed ? d : in, last);
        dx[1] = tensor_in_format(g, d->type, w->size, last);
        run_pass(g, CONV_WEIGHTS, &how, cudnn, last, a, b, &x->size, &w->size, &how.y);
        tensor_drop(g, b);
        tensor_drop(g, a);
    }
    tensor_drop(g, d);
    tensor_drop(g, in);
    const unsigned all = (1u << dy[0]->size.rank) - 1;
    if (n->n_next < 3 || !node_wants(n, 2)) return;
    eager_op(g, op);
    READS(g, dy[0]);
    dx[2] = tensor_new(g, dy[0]->type, n->next[2].node->out[n->next[2].output].size); /* a sum */
    reduce_inner(g, dy[0], all & ~2u, 4);
}

static const NodeRule convolution_rule = {"ConvolutionBackward0", apply_convolution};

Tensor *aten_convolution(Eager *g, Tensor *x, Tensor *w, Tensor *b, const ConvHow *how) {
    GUARD(g);
    Tensor *lb = amp_low(g, b), *lw = amp_low(g, w), *lx = amp_low(g, x);
    Node *n = node_new(g, &convolution_rule, (Tensor *[]){lx, lw, lb}, lb ? 3 : 2, 2);
    node_save(g, n, 0, lx);
    node_save(g, n, 1, lw);
    if (n) keep_how(n, how);
    eager_op(g, "aten::convolution");
    const bool format = suggests(lx, lw);
    Tensor *in = laid(g, lx, format), *y = tensor_in_format(g, lx->type, how->y, format);
    run_pass(g, CONV_FORWARD, how, is_cudnn(lx, lw, how, format), format, lw, in, &lx->size, &lw->size, &how->y);
    if (lb) eager_inplace(g, "aten::add_", y, lb);
    node_output(g, n, y);
    tensor_drop(g, in);
    tensor_drop(g, lx);
    tensor_drop(g, lw);
    tensor_drop(g, lb);
    return y;
}
