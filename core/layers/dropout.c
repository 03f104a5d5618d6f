/* Dropout, and Dropout2d, which drops whole channels: each op draws its own numbers by an id. In evaluation, and with
 * p = 0, it is its input. RandnLike draws in evaluation, too, and takes nothing of its input but the shape. */
#include <string.h>

#include "network/layer.h"

int layer_dropout_shape(Network *n, Layer *l, Err *e) {
    double p = options_float(&l->options, "p");
    (void)n;
    int code = l->kind->which ? layer_expect_rank(l, 4, "(N, C, H, W)", e) : OK;
    if (code) return code;
    return p >= 0 && p <= 1 ? OK : layer_error(l, e, "the probability p must be between 0 and 1, found %g", p);
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
