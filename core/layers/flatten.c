/* Flatten: (N, C, H, W) becomes (N, C H W) without moving anything: the features keep the channels-last order, which is
 * PyTorch's own where there is one channel or one pixel. */
#include <inttypes.h>
#include <string.h>

#include "layer.h"

int layer_flatten_shape(Network *n, Layer *l, Err *e) {
    int64_t start = options_int(&l->options, "start_dim"), end = options_int(&l->options, "end_dim");
    const int64_t *d = l->in.dim;
    int rank = l->in.rank;
    (void)n;
    if ((start < 0 ? start + rank : start) != 1 || (end < 0 ? end + rank : end) != rank - 1)
        return layer_error(l, e, "only the dimensions 1 to -1 (all but the batch) can be flattened, found %" PRId64
                           " to %" PRId64, start, end);
    if (rank == 2) return OK;
    layer_output(l, shape2(d[0], shape_elements(&l->in) / d[0]));
    if (rank == 4 && d[1] > 1 && d[2] * d[3] > 1) memcpy(l->out_order, d + 1, sizeof l->out_order);
    return OK;
}

int layer_flatten_forward(Lower *lw, const Layer *l, const int *in) {
    return l->in.rank == 2 ? in[0] : lower_view(lw, l, in[0]);
}
