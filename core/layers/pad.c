/* ZeroPad1d and ZeroPad2d (`which`: the input's rank): zeros around (N, C, L) and images. The gradient of cutting a
 * part out (slice_dx) does this along one dimension; two of them pad an image. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

/* How many zeros go before (side 0) or after (side 1) along an axis of (N, C, H, W). PyTorch's list begins with the
 * last axis. */
static int64_t zeros(const Layer *l, int axis, int side) {
    int64_t n, at = (3 - axis) * 2 + side;
    assert((axis == 2 || axis == 3) && (side == 0 || side == 1));
    const double *padding = options_list(&l->options, "padding", &n);
    return at < n ? (int64_t)padding[at] : 0;
}

int layer_pad_shape(Network *n, Layer *l, Err *e) {
    const int rank = l->kind->which, sides = 2 * (rank - 2);
    int64_t count;
    const double *padding = options_list(&l->options, "padding", &count);
    (void)n;
    int code = layer_expect_rank(l, rank, rank == 3 ? "(N, C, L)" : "(N, C, H, W)", e);
    if (code) return code;
    if (count != sides)
        return layer_error(l, e, "padding: expected a number, or %d of them, found %" PRId64, sides, count);
    for (int64_t i = 0; i < count; i++)
        if (!(padding[i] >= 0 && padding[i] <= WINDOW_MAX && padding[i] == (double)(int64_t)padding[i]))
            return layer_error(l, e, "padding: expected whole numbers from 0 to %d, found %g", WINDOW_MAX, padding[i]);
    Shape out = l->in;
    for (int i = 2; i < rank; i++) out.dim[i] += zeros(l, i + 4 - rank, 0) + zeros(l, i + 4 - rank, 1);
    layer_output(l, out);
    layer_take_line(l);
    return OK;
}

int layer_pad_forward(Lower *lw, const Layer *l, const int *in) {
    static const char *const names[] = {"higher", "wider"};
    const bool line = l->in.rank == 3; /* (N, C, L) becomes an image (N, C, 1, L) */
    const int64_t *d = l->in.dim;
    int x = line ? lower_view_as(lw, l, "image", shape4(d[0], d[1], 1, d[2]), in[0]) : in[0];
    for (int axis = 2; axis < 4 && !lw->p->failed; axis++) {
        Shape larger = lw->p->bufs[x].shape;
        Attr a;
        memset(&a, 0, sizeof a);
        a.axis.axis = axis;
        a.axis.start = zeros(l, axis, 0);
        larger.dim[axis] += a.axis.start + zeros(l, axis, 1);
        if (larger.dim[axis] == lw->p->bufs[x].shape.dim[axis]) continue;
        x = lower_emit(lw, OP_slice_dx, l, &x, 1, lower_temp(lw, l, names[axis - 2], larger, NULL, DT_F32), &a);
    }
    return line ? lower_view(lw, l, x) : x;
}
