/* BatchNorm1d and BatchNorm2d (`which`: the input's rank, where 2 stands for 3, too), LayerNorm and RMSNorm (`which`:
 * 1), GroupNorm, InstanceNorm1d and InstanceNorm2d (`which`: the rank). Channels are dimension 1, for LayerNorm and
 * RMSNorm the last dimension. Parameters of a flattened image lie in its features' order, as a Linear's columns do. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

/* A parameter or buffer with a value per channel, all `value` at first. */
static int channel_param(Network *n, Layer *l, const char *name, double value, bool buffer, int64_t channels, Err *e) {
    Param like = {.shape = shape1(channels), .init = INIT_CONSTANT, .bound = value, .buffer = buffer};
    if (l->in.rank == 2) memcpy(like.order, l->in_order, sizeof like.order);
    return network_tensor(n, l, name, &like, e);
}

static int expect_channels(const Layer *l, int axis, int64_t expected, Err *e) {
    char text[SHAPE_TEXT];
    if (l->in.dim[axis] == expected) return OK;
    return layer_error(l, e, "expected %" PRId64 " %s, found %" PRId64 ": input %s", expected,
                       axis == 1 && l->in.rank > 2 ? "channels" : "features", l->in.dim[axis],
                       shape_text(&l->in, text));
}

static Attr norm_attr(const Layer *l, int axis, int groups) {
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.norm.axis = axis;
    a.norm.groups = groups;
    a.norm.eps = options_word(&l->options, "eps", text)[0] ? -1.0f : (float)options_float(&l->options, "eps");
    return a;
}

/* y = kind(the layer's inputs and parameters), and the statistics that its gradient needs. */
static int emit_norm(Lower *lw, OpKind kind, const Layer *l, const int *in, Shape stats, const Attr *a) {
    const bool rms = l->kind->shape == layer_layernorm_shape && l->kind->which; /* it subtracts no mean */
    int y = lower_layer(lw, kind, l, in, a);
    if (!rms) lower_keep(lw, 1, lower_temp(lw, l, "mean", stats, NULL, DT_F32));
    lower_keep(lw, 2, lower_temp(lw, l, "istd", stats, NULL, DT_F32));
    return y;
}

/* ---- over the batch */

int layer_batchnorm_check(const Layer *l, bool training, Err *e) {
    int code = OK;
    if (l->kind->shape == layer_batchnorm_shape && (training || !options_bool(&l->options, "track_running_stats")) &&
        shape_elements(&l->in) == l->in.dim[1])
        return layer_error(l, e, "batch normalisation%s expects more than 1 value per channel", training ? " in training" : "");
    for (int i = 0; i < l->n_child && !code; i++) code = layer_batchnorm_check(l->child[i], training, e);
    return code;
}

static int affine_params(const Layer *l) { return options_bool(&l->options, "affine") ? 2 : 0; }

static int affine(Network *n, Layer *l, int64_t channels, Err *e) {
    int code = affine_params(l) ? channel_param(n, l, "weight", 1, false, channels, e) : OK;
    return code || !affine_params(l) ? code : channel_param(n, l, "bias", 0, false, channels, e);
}

int layer_batchnorm_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    int64_t channels = options_int(o, "num_features");
    int code = layer_expect_range(l, "num_features", 1, INT32_MAX, e);
    if (!code && l->kind->which == 4) code = layer_expect_rank(l, 4, "(N, C, H, W)", e);
    else if (!code && l->in.rank != 3) code = layer_expect_rank(l, 2, "(N, C) or 3 dimensions (N, C, L)", e);
    if (!code) code = expect_channels(l, 1, channels, e);
    if (!code) code = affine(n, l, channels, e);
    if (code || !options_bool(o, "track_running_stats")) return code;
    if ((code = channel_param(n, l, "running_mean", 0, true, channels, e))) return code;
    if ((code = channel_param(n, l, "running_var", 1, true, channels, e))) return code;
    const Param count = {.init = INIT_CONSTANT, .dtype = DT_I32, .buffer = true};
    return network_tensor(n, l, "num_batches_tracked", &count, e);
}

/* The layer's parameters: weight and bias, which may be absent; then, if they are tracked, the running mean, the
 * running variance and the count of batches. */
int layer_batchnorm_forward(Lower *lw, const Layer *l, const int *in) {
    const bool tracked = options_bool(&l->options, "track_running_stats");
    const int *param = l->param, own = affine_params(l);
    char text[OPTION_WORDS];
    Attr a = norm_attr(l, 1, 0);
    bool cumulative = options_word(&l->options, "momentum", text)[0] != '\0';
    a.norm.momentum = cumulative ? -1.0f : (float)options_float(&l->options, "momentum");
    assert(l->n_params == own + (tracked ? 3 : 0));
    if (tracked && !lw->training) {
        int operands[5] = {in[0], NO_BUF, NO_BUF, lw->param[param[own]], lw->param[param[own + 1]]};
        for (int k = 0; k < own; k++) operands[1 + k] = lw->param[param[k]];
        return lower_op(lw, OP_batchnorm_eval, l, operands, 5, &a);
    }
    Layer plain = *l; /* without what is tracked: these are outputs */
    plain.n_params = own;
    int y = emit_norm(lw, OP_batchnorm, &plain, in, shape1(l->in.dim[1]), &a);
    if (lw->p->failed || !tracked) return y;
    Op *op = &lw->p->ops[lw->p->n_ops - 1];
    for (int k = 0; k < 3; k++) op->out[3 + k] = lw->param[param[own + k]];
    op_cost(lw->p, op);
    return y;
}

/* ---- within a sample */

int layer_layernorm_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    int64_t features = options_int(o, "normalized_shape");
    int code = layer_expect_range(l, "normalized_shape", 1, INT32_MAX, e);
    if (code) return code;
    if (options_float(o, "eps") < 0)
        return layer_error(l, e, "eps must not be negative, found %g", options_float(o, "eps"));
    if ((code = expect_channels(l, l->in.rank - 1, features, e))) return code;
    l->out_rows = l->in.rank == 4;
    if (!options_bool(o, "elementwise_affine")) return OK;
    code = channel_param(n, l, "weight", 1, false, features, e);
    return code || !options_bool(o, "bias") ? code : channel_param(n, l, "bias", 0, false, features, e);
}

int layer_layernorm_forward(Lower *lw, const Layer *l, const int *in) {
    Layer flat;
    const int64_t width = l->in.dim[l->in.rank - 1];
    const int x = lower_flat(lw, l, in[0], width, &flat);
    const Attr a = norm_attr(l, flat.in.rank - 1, 1);
    return lower_unflat(lw, l, emit_norm(lw, OP_norm, &flat, &x, shape2(shape_elements(&l->in) / width, 1), &a));
}

int layer_groupnorm_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    int64_t groups = options_int(o, "num_groups"), channels = options_int(o, "num_channels");
    char text[SHAPE_TEXT];
    int code = layer_expect_range(l, "num_groups", 1, INT32_MAX, e);
    if (!code) code = layer_expect_range(l, "num_channels", 1, INT32_MAX, e);
    if (code) return code;
    if (channels % groups)
        return layer_error(l, e, "num_channels must be divisible by num_groups, found %" PRId64 " and %" PRId64,
                           channels, groups);
    if (l->in.rank == 2 && l->in_order[0])
        return layer_error(l, e, "normalises (N, C), (N, C, L) or (N, C, H, W), found %s, a flattened image",
                           shape_text(&l->in, text));
    code = expect_channels(l, 1, channels, e);
    return code ? code : affine(n, l, channels, e);
}

/* As in PyTorch, each sample is normalised as a batch of its own. */
int layer_instancenorm_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    int64_t channels = options_int(o, "num_features");
    int rank = l->kind->which, code = layer_expect_range(l, "num_features", 1, INT32_MAX, e);
    if (!code) code = layer_expect_rank(l, rank, rank == 3 ? "(N, C, L)" : "(N, C, H, W)", e);
    if (!code) code = expect_channels(l, 1, channels, e);
    if (code) return code;
    if (options_bool(o, "track_running_stats"))
        return layer_error(l, e, "track_running_stats = true is not known here: each sample has its own statistics");
    if (l->in.dim[2] * l->in.dim[3] == 1)
        return layer_error(l, e, "expected more than 1 value per channel of a sample");
    return affine(n, l, channels, e);
}

static int by_groups(Lower *lw, const Layer *l, const int *in, int64_t groups) {
    const Attr a = norm_attr(l, 1, (int)groups);
    return emit_norm(lw, OP_norm, l, in, shape2(l->in.dim[0], groups), &a);
}

int layer_groupnorm_forward(Lower *lw, const Layer *l, const int *in) {
    return by_groups(lw, l, in, options_int(&l->options, "num_groups"));
}

int layer_instancenorm_forward(Lower *lw, const Layer *l, const int *in) { return by_groups(lw, l, in, l->in.dim[1]); }
