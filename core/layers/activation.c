/* The activations: one op, told apart by the function (`which`). Shape and order stay as they are. */
#include <string.h>

#include "layer.h"

int layer_activation_shape(Network *n, Layer *l, Err *e) {
    (void)n, (void)l, (void)e;
    return OK;
}

int layer_activation_forward(Lower *lw, const Layer *l, const int *in) {
    const Options *o = &l->options;
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.act.act = strcmp(options_word(o, "approximate", text), "tanh") ? (ActFn)l->kind->which : ACT_GELU_TANH;
    a.act.slope = (float)options_float(o, "negative_slope");
    a.act.inplace = options_bool(o, "inplace");
    return lower_layer(lw, OP_act, l, in, &a);
}
