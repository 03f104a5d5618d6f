/* The activations: one op; `which` is the function (ActFn). Shape and order stay as they are. GLU, which halves a
 * dimension. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

/* Of a clamp; a word stands for none. */
static double bound(const Options *o, const char *name, double none) {
    char word[OPTION_WORDS];
    return options_word(o, name, word)[0] ? none : options_float(o, name);
}

int layer_activation_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    (void)n;
    if (l->kind->which == ACT_SOFTPLUS && !(options_float(o, "beta") > 0))
        return layer_error(l, e, "beta must be above 0, found %g", options_float(o, "beta"));
    if (l->kind->which == ACT_CELU && options_float(o, "alpha") == 0)
        return layer_error(l, e, "alpha must not be 0: x is divided by it");
    if (l->kind->which == ACT_HARDTANH && !(options_float(o, "max_val") > options_float(o, "min_val")))
        return layer_error(l, e, "max_val must be above min_val %g, found %g", options_float(o, "min_val"),
                           options_float(o, "max_val"));
    if (l->kind->which == ACT_CLAMP && bound(o, "min", -INFINITY) > bound(o, "max", INFINITY))
        return layer_error(l, e, "max must not be below min %g, found %g", options_float(o, "min"),
                           options_float(o, "max"));
    return OK;
}

int layer_activation_forward(Lower *lw, const Layer *l, const int *in) {
    /* an activation has one of each at most, under PyTorch's name; options that it does not have read as 0 */
    static const char *const slopes[] = {"negative_slope", "alpha", "beta", "min_val", "factor", "exponent"};
    static const char *const highs[] = {"max_val", "offset"};
    const Options *o = &l->options;
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.act.act = strcmp(options_word(o, "approximate", text), "tanh") ? (ActFn)l->kind->which : ACT_GELU_TANH;
    for (size_t i = 0; i < ARRAY_LEN(slopes); i++) a.act.slope += (float)options_float(o, slopes[i]);
    for (size_t i = 0; i < ARRAY_LEN(highs); i++) a.act.high += (float)options_float(o, highs[i]);
    if (a.act.act == ACT_CLAMP) a.act.slope = (float)bound(o, "min", -INFINITY);
    if (a.act.act == ACT_CLAMP) a.act.high = (float)bound(o, "max", INFINITY);
    a.act.inplace = options_bool(o, "inplace");
    return lower_layer(lw, OP_act, l, in, &a);
}

/* ---- GLU */

static int glu_dim(const Layer *l) {
    const int64_t dim = options_int(&l->options, "dim");
    return (int)(dim < 0 ? dim + l->in.rank : dim);
}

/* (N, C, L) halved along its channels stays channels-last where it lies so: a convolution's output, and the next one's
 * input. */
int layer_glu_shape(Network *n, Layer *l, Err *e) {
    const int64_t given = options_int(&l->options, "dim"), least = l->in_is_param ? 0 : 1;
    const int dim = glu_dim(l);
    (void)n;
    if (given < -l->in.rank || given >= l->in.rank || dim < least)
        return layer_error(l, e, "dim must be between %" PRId64 " and %d%s, found %" PRId64, least, l->in.rank - 1,
                           least ? " (0 is the batch)" : "", given);
    if (l->in.dim[dim] % 2)
        return layer_error(l, e, "halves dimension %d, whose size %" PRId64 " is odd", dim, l->in.dim[dim]);
    Shape out = l->in;
    out.dim[dim] /= 2;
    layer_output(l, out);
    if (l->in.rank != 3 || dim != 1 || !l->in_order[0]) return OK;
    memcpy(l->out_order, l->in_order, sizeof l->out_order);
    l->out_order[0] = out.dim[1];
    return OK;
}

int layer_glu_forward(Lower *lw, const Layer *l, const int *in) {
    const int64_t *d = l->out.dim;
    Attr a;
    memset(&a, 0, sizeof a);
    a.axis.axis = glu_dim(l);
    assert(a.axis.axis >= 0 && a.axis.axis < l->in.rank);
    if (!l->out_order[0]) {
        const int x = lower_rows(lw, l, in[0]);
        return lower_op(lw, OP_glu, l, &x, 1, &a);
    }
    const int x = lower_view_as(lw, l, "rows", shape2(d[0] * d[2], 2 * d[1]), in[0]); /* the channels lie last */
    const int y = lower_temp(lw, l, "half", shape2(d[0] * d[2], d[1]), NULL, DT_F32);
    return lower_view(lw, l, lower_emit(lw, OP_glu, l, &x, 1, y, &a));
}
