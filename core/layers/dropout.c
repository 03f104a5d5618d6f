/* Dropout; Dropout2d (`which`: 1), which drops whole channels; StochasticDepth, which drops whole samples or the whole
 * batch. Each op draws its own numbers by an id. In evaluation, and with p = 0, the layer gives its input. RandnLike
 * draws in evaluation, too, and uses only its input's shape. */
#include <string.h>

#include "network/layer.h"

static int expect_probability(const Layer *l, Err *e) {
    double p = options_float(&l->options, "p");
    return p >= 0 && p <= 1 ? OK : layer_error(l, e, "the probability p must be between 0 and 1, found %g", p);
}

int layer_dropout_shape(Network *n, Layer *l, Err *e) {
    (void)n;
    int code = l->kind->which ? layer_expect_rank(l, 4, "(N, C, H, W)", e) : OK;
    return code ? code : expect_probability(l, e);
}

int layer_dropout_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.drop.p = (float)options_float(&l->options, "p");
    a.drop.channels = l->kind->which;
    a.drop.inplace = options_bool(&l->options, "inplace");
    if (!lw->training || a.drop.p == 0) return in[0];
    a.drop.id = lw->drops++;
    return lower_op(lw, OP_dropout, l, (int[]){in[0], program_calls(lw->p)}, 2, &a);
}

int layer_stochastic_depth_shape(Network *n, Layer *l, Err *e) {
    (void)n;
    return expect_probability(l, e);
}

/* The view of an image with one channel, which lies the same way in both orders, as the op wants it */
static int image_of(const Lower *lw, int x) {
    if (!lw->p->failed) lw->p->bufs[x].layout = LAYOUT_NHWC;
    return x;
}

/* Drops whole channels of an image whose only channel is a sample, or the batch. */
int layer_stochastic_depth_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    char mode[OPTION_WORDS];
    memset(&a, 0, sizeof a);
    a.drop.p = (float)options_float(&l->options, "p");
    a.drop.channels = true;
    if (!lw->training || a.drop.p == 0) return in[0];
    a.drop.id = lw->drops++;
    const bool batch = !strcmp(options_word(&l->options, "mode", mode), "batch");
    const int64_t samples = l->in.dim[0], features = shape_elements(&l->in) / samples;
    const Shape image = batch ? shape4(1, 1, samples, features) : shape4(samples, 1, 1, features);
    const int x = image_of(lw, lower_view_as(lw, l, "x", image, in[0]));
    const int dropped = image_of(lw, lower_temp(lw, l, "dropped", image, NULL, DT_F32));
    return lower_view(lw, l, lower_emit(lw, OP_dropout, l, (int[]){x, program_calls(lw->p)}, 2, dropped, &a));
}

int layer_randn_shape(Network *n, Layer *l, Err *e) {
    (void)n, (void)l, (void)e;
    return OK;
}

int layer_randn_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    (void)in;
    memset(&a, 0, sizeof a);
    a.drop.id = lw->drops++;
    return lower_op(lw, OP_randn, l, (int[]){program_calls(lw->p)}, 1, &a);
}
