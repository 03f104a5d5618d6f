/* Softmax and LogSoftmax (`which`: 1) along a dimension; negative ones count from the end. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

static int64_t softmax_axis(const Layer *l) {
    int64_t dim = options_int(&l->options, "dim");
    return dim < 0 ? dim + l->in.rank : dim;
}

int layer_softmax_shape(Network *n, Layer *l, Err *e) {
    int64_t axis = softmax_axis(l);
    (void)n;
    if (axis >= 0 && axis < l->in.rank) return OK;
    return layer_error(l, e, "dim must be between %d and %d, found %" PRId64, -l->in.rank, l->in.rank - 1,
                       options_int(&l->options, "dim"));
}

int layer_softmax_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.softmax.axis = (int32_t)softmax_axis(l);
    assert(a.softmax.axis >= 0 && a.softmax.axis < l->in.rank);
    a.softmax.log = l->kind->which;
    return lower_layer(lw, OP_softmax, l, in, &a);
}
