/* The activations: one op, told apart by the function (`which`). Shape and order stay as they are. */
#include <string.h>

#include "layer.h"

int layer_activation_shape(Network *n, Layer *l, Err *e) {
    (void)n;
    if (l->kind->which == ACT_SOFTPLUS && !(options_float(&l->options, "beta") > 0))
        return layer_error(l, e, "beta must be above 0, found %g", options_float(&l->options, "beta"));
    return OK;
}

int layer_activation_forward(Lower *lw, const Layer *l, const int *in) {
    const Options *o = &l->options;
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.act.act = strcmp(options_word(o, "approximate", text), "tanh") ? (ActFn)l->kind->which : ACT_GELU_TANH;
    a.act.slope = (float)(options_float(o, "negative_slope") + options_float(o, "alpha") + options_float(o, "beta"));
    /* one number at most, under the name that PyTorch gives it */
    a.act.inplace = options_bool(o, "inplace");
    return lower_layer(lw, OP_act, l, in, &a);
}
