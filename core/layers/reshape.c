/* The same elements in other dimensions: Flatten, Unflatten, Reshape, Squeeze, Unsqueeze (`which`). They move elements
 * only if they must. A sample of a channels-last image is a matrix (P, C), pixels by channels: a reshape that keeps the
 * channels, or puts all of a sample into one dimension, is a view that remembers the order. Every other reshape goes by
 * PyTorch's order; an image that it makes becomes channels-last when a layer takes it as an image. */
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

/* An option that is a dimension, counted from the front. */
static int64_t dimension(const Layer *l, const char *option, int rank) {
    int64_t dim = options_int(&l->options, option);
    return dim < 0 ? dim + rank : dim;
}

static int expect_dimension(const Layer *l, const char *option, int rank, int64_t *dim, Err *e) {
    *dim = dimension(l, option, rank);
    if (*dim > 0 && *dim < rank) return OK;
    return layer_error(l, e, "%s must be between 1 and %d (0 is the batch), found %" PRId64, option, rank - 1,
                       options_int(&l->options, option));
}

/* ---- the output's shape, by kind */

static int flattened(const Layer *l, Shape *out, Err *e) {
    const Shape in = l->in;
    int64_t start = dimension(l, "start_dim", in.rank), end = dimension(l, "end_dim", in.rank);
    if (start < 0 || end >= in.rank || start > end)
        return layer_error(l, e, "expected dimensions of an input of %d, found %" PRId64 " to %" PRId64, in.rank,
                           options_int(&l->options, "start_dim"), options_int(&l->options, "end_dim"));
    *out = (Shape){in.rank - (int)(end - start), {1, 1, 1, 1}};
    for (int d = 0; d < in.rank; d++) out->dim[d <= start ? d : d <= end ? start : d - (end - start)] *= in.dim[d];
    return OK;
}

/* Puts the list of sizes, whose product must be `elements`, into out from dimension `at` on. 0 stands for the input's
 * own size there; one size may be -1: what is left of `elements`. */
static int fill_sizes(const Layer *l, const char *option, int at, int64_t elements, Shape *out, Err *e) {
    int64_t n, product = 1, *open = NULL;
    char text[SHAPE_TEXT];
    const double *list = options_list(&l->options, option, &n);
    if (at + n > SHAPE_MAX)
        return layer_error(l, e, "%s gives more than %d dimensions", option, SHAPE_MAX);
    for (int64_t k = 0; k < n; k++) {
        int64_t size = list[k] >= -1 && list[k] <= (double)elements ? (int64_t)list[k] : -2;
        if (size == 0 && at + k < l->in.rank) size = l->in.dim[at + k];
        if ((double)size != list[k] && list[k] != 0) size = -2;
        if (size == -1 && !open) open = &out->dim[at + k];
        else if (size < 1 || product > elements / size)
            return layer_error(l, e, "%s: %g at place %" PRId64 " does not fit an input of %s", option, list[k], k,
                               shape_text(&l->in, text));
        else product *= out->dim[at + k] = size;
    }
    if (open && elements % product != 0)
        return layer_error(l, e, "%s: there is no size for -1: the other sizes multiply to %" PRId64 ", which does not divide %" PRId64
                           ": input %s", option, product, elements, shape_text(&l->in, text));
    if (open) product *= *open = elements / product;
    out->rank = at + (int)n;
    if (product == elements) return OK;
    return layer_error(l, e, "%s holds %" PRId64 " elements, expected %" PRId64 ": input %s", option, product, elements,
                       shape_text(&l->in, text));
}

static int reshaped(const Layer *l, Shape *out, Err *e) {
    return fill_sizes(l, "shape", 0, shape_elements(&l->in), out, e);
}

static int unflattened(const Layer *l, Shape *out, Err *e) {
    const Shape in = l->in;
    int64_t dim;
    int code = expect_dimension(l, "dim", in.rank, &dim, e);
    for (int d = 0; d < dim && !code; d++) out->dim[d] = in.dim[d];
    if (!code) code = fill_sizes(l, "unflattened_size", (int)dim, in.dim[dim], out, e);
    for (int64_t d = dim + 1; d < in.rank && !code; d++) {
        if (out->rank == SHAPE_MAX) return layer_error(l, e, "gives more than %d dimensions", SHAPE_MAX);
        out->dim[out->rank++] = in.dim[d];
    }
    return code;
}

/* As in PyTorch, a dimension of another size than 1 stays. */
static int squeezed(const Layer *l, Shape *out, Err *e) {
    int64_t dim;
    int code = expect_dimension(l, "dim", l->in.rank, &dim, e);
    *out = l->in;
    if (code || l->in.dim[dim] != 1) return code;
    if (l->in.rank == 2)
        return layer_error(l, e, "a value keeps 2 dimensions: leave it out, and give the loss targets of one number");
    out->rank--;
    memmove(&out->dim[dim], &l->in.dim[dim + 1], (size_t)(out->rank - dim) * sizeof *out->dim);
    out->dim[out->rank] = 1; /* every shape has 1 after its last dimension */
    return OK;
}

static int unsqueezed(const Layer *l, Shape *out, Err *e) {
    int64_t dim = 0;
    int code = l->in.rank < SHAPE_MAX ? expect_dimension(l, "dim", l->in.rank + 1, &dim, e)
                                      : layer_error(l, e, "gives more than %d dimensions", SHAPE_MAX);
    if (code) return code;
    *out = l->in;
    out->dim[dim] = 1;
    memcpy(&out->dim[dim + 1], &l->in.dim[dim], (size_t)(out->rank++ - dim) * sizeof *out->dim);
    return OK;
}

typedef int ShapeFn(const Layer *l, Shape *out, Err *e);
static ShapeFn *const shapes[] = {[RESHAPE_FLATTEN] = flattened, [RESHAPE_UNFLATTEN] = unflattened,
                                  [RESHAPE_VIEW] = reshaped, [RESHAPE_SQUEEZE] = squeezed,
                                  [RESHAPE_UNSQUEEZE] = unsqueezed};

/* ---- the order */

/* Does the value lie channels-last, where that is not PyTorch's order anyway? If so, chw is its (C, H, W). */
static bool lies_last(const Value *v, int64_t chw[3]) {
    const Shape s = v->shape;
    const int64_t own[3] = {s.dim[1], s.rank == 4 ? s.dim[2] : 1, s.dim[s.rank - 1]};
    if (s.rank == 4 ? v->rows : !v->order[0]) return false;
    memcpy(chw, s.rank == 2 ? v->order : own, 3 * sizeof *chw);
    return chw[0] > 1 && chw[1] * chw[2] > 1;
}

/* Are the samples of the output the same matrices (P, C) as those of the image `in`, which lies channels-last? */
static bool keeps_order(const Shape *in, const Shape *out, const int64_t chw[3]) {
    int64_t channels = out->rank == 2 ? chw[0] * chw[1] * chw[2] : chw[0];
    return in->dim[0] == out->dim[0] && out->rank > 1 && out->dim[1] == channels;
}

int layer_reshape_shape(Network *n, Layer *l, Err *e) {
    Shape out = {0, {1, 1, 1, 1}};
    int64_t chw[3], to[3];
    char text[SHAPE_TEXT];
    if (l->ins[0].param) return layer_error(l, e, "a parameter has the shape that it was declared with");
    int code = shapes[l->kind->which](l, &out, e);
    (void)n;
    if (code || shape_equal(&out, &l->in)) return code;
    if (out.rank < 2)
        return layer_error(l, e, "a value keeps 2 dimensions at least: from %s", shape_text(&l->in, text));
    bool kept = lies_last(&l->ins[0], chw) && keeps_order(&l->in, &out, chw);
    layer_output(l, out);
    l->out_rows = false;
    l->out_rows = !kept && out.rank == 4 && lies_last(&l->output, to);
    if (kept && out.rank == 2) memcpy(l->out_order, chw, sizeof chw);
    if (kept && out.rank == 3) memcpy(l->out_order, (int64_t[]){chw[0], 1, chw[1] * chw[2]}, sizeof chw);
    return OK;
}

int layer_reshape_forward(Lower *lw, const Layer *l, const int *in) {
    int64_t chw[3];
    if (shape_equal(&l->in, &l->out)) return in[0];
    if (!lies_last(&l->ins[0], chw) || keeps_order(&l->in, &l->out, chw)) return lower_view(lw, l, in[0]);
    return lower_op(lw, OP_nhwc_to_nchw, l, in, 1, NULL);
}
