/* Flatten: dimensions start_dim to end_dim become one without moving anything. An image (N, C, H, W) or
 * (N, C, L) becomes (N, C H W), whose features keep the channels-last order, which is PyTorch's own where there is one
 * channel or one pixel. */
#include <inttypes.h>
#include <string.h>

#include "layer.h"

static int find_dims(const Layer *l, int *start, int *end, Err *e) {
    int64_t first = options_int(&l->options, "start_dim"), last = options_int(&l->options, "end_dim");
    int rank = l->in.rank;
    *start = (int)(first < 0 ? first + rank : first);
    *end = (int)(last < 0 ? last + rank : last);
    if (*start < 0 || *end >= rank || *start > *end)
        return layer_error(l, e, "expected dimensions of an input of %d, found %" PRId64 " to %" PRId64, rank, first,
                           last);
    if (*start != *end && ((rank == 4 && (*start != 1 || *end != 3)) || (rank == 2 && l->in_order[0] && *start == 0)))
        return layer_error(l, e, "of an image only the dimensions 1 to -1 (all but the batch) can be flattened, found %"
                           PRId64 " to %" PRId64, first, last);
    return OK;
}

int layer_flatten_shape(Network *n, Layer *l, Err *e) {
    int start, end, code = find_dims(l, &start, &end, e);
    const Shape in = l->in;
    (void)n;
    if (code || start == end) return code;
    Shape out = {in.rank - (end - start), {1, 1, 1, 1}};
    for (int d = 0; d < in.rank; d++) out.dim[d <= start ? d : d <= end ? start : d - (end - start)] *= in.dim[d];
    layer_output(l, out);
    bool image = in.rank == 4 || (l->in_order[0] && start == 1 && end == 2);
    const int64_t chw[] = {in.dim[1], in.rank == 4 ? in.dim[2] : 1, in.dim[in.rank - 1]};
    if (image && chw[0] > 1 && chw[1] * chw[2] > 1) memcpy(l->out_order, chw, sizeof chw);
    return OK;
}

int layer_flatten_forward(Lower *lw, const Layer *l, const int *in) {
    bool batch = l->in.rank == 3 && l->out.dim[0] != l->in.dim[0]; /* what an image does not keep together */
    return l->in.rank == l->out.rank ? in[0] : lower_view(lw, l, batch ? lower_rows(lw, l, in[0]) : in[0]);
}
