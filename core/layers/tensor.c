/* Tensor operations of graphs: two values that are broadcast (`which`: the operator), reductions along dimensions
 * (`which`: the reduction), triangles of the last two dimensions, the masks of them that a script makes itself, elements
 * by label, and parameters of a graph's own.
 * All but the last take values in PyTorch's order. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

static void plain_output(Layer *l, Shape out) {
    layer_output(l, out);
    l->out_rows = out.rank == 4;
}

static int expect_values(const Layer *l, int n, Err *e) {
    return l->n_in == n ? OK : layer_error(l, e, "expects %d values, found %d", n, l->n_in);
}

/* The first n values are neither labels nor masks nor what those are made of. */
static int expect_numbers(const Layer *l, int n, Err *e) {
    for (int k = 0; k < n; k++)
        if (l->ins[k].labels || l->ins[k].positions || l->ins[k].mask || l->ins[k].below)
            return layer_error(l, e, "value %d is made of whole numbers, which it does not read", k);
    return OK;
}

/* ---- two values */

int layer_binary_shape(Network *n, Layer *l, Err *e) {
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    Shape out;
    int code = expect_values(l, 2, e);
    (void)n;
    if (code) return code;
    if (!broadcast_shapes(&l->ins[0].shape, &l->ins[1].shape, &out))
        return layer_error(l, e, "expected values of one shape, or sizes of 1 where they differ, found %s and %s",
                           shape_text(&l->ins[0].shape, a), shape_text(&l->ins[1].shape, b));
    plain_output(l, out);
    return OK;
}

int layer_binary_forward(Lower *lw, const Layer *l, const int *in) {
    static const BinaryFn of_join[] = {[OP_add] = BINARY_ADD, [OP_mul] = BINARY_MUL};
    Attr a;
    memset(&a, 0, sizeof a);
    a.binary.f = l->kind->role == 'c' ? of_join[l->kind->which] : (BinaryFn)l->kind->which;
    return lower_op(lw, OP_binary, l, (int[]){lower_plain(lw, l, in[0]), lower_plain(lw, l, in[1])}, 2, &a);
}

/* ---- reductions */

/* The input's shape with 1 in the dimensions that are reduced, and without them. */
static int find_reduced(const Layer *l, Shape *kept, Shape *out, Err *e) {
    int64_t n = 1;
    const double one = (double)options_int(&l->options, "dim");
    const double *list = l->kind->which == REDUCE_MAX ? &one : options_list(&l->options, "dim", &n);
    const int rank = l->in.rank;
    unsigned seen = 0;
    *kept = l->in;
    for (int64_t i = 0; i < n; i++) {
        const double dim = list[i] < 0 ? list[i] + rank : list[i];
        if (!(dim >= 0 && dim < rank) || dim != floor(dim) || seen >> (int)dim & 1)
            return layer_error(l, e, "dim must name dimensions between %d and %d, each once, found %g", -rank, rank - 1,
                               list[i]);
        seen |= 1u << (int)dim;
        kept->dim[(int)dim] = 1;
    }
    *out = *kept;
    if (options_bool(&l->options, "keepdim")) return OK;
    *out = (Shape){0, {1, 1, 1, 1}};
    for (int d = 0; d < rank; d++)
        if (!(seen >> d & 1)) out->dim[out->rank++] = l->in.dim[d];
    return out->rank ? OK : layer_error(l, e, "a value keeps 1 dimension at least: say keepdim");
}

int layer_reduce_shape(Network *n, Layer *l, Err *e) {
    Shape kept, out;
    int code = expect_values(l, 1, e);
    (void)n;
    if (!code) code = find_reduced(l, &kept, &out, e);
    if (code) return code;
    plain_output(l, out);
    return OK;
}

int layer_reduce_forward(Lower *lw, const Layer *l, const int *in) {
    Shape kept, out;
    Attr a;
    memset(&a, 0, sizeof a);
    a.reduce.f = (ReduceFn)l->kind->which;
    if (find_reduced(l, &kept, &out, NULL)) return 0; /* checked before */
    int x = lower_plain(lw, l, in[0]);
    if (shape_equal(&kept, &out)) return lower_op(lw, OP_reduce, l, &x, 1, &a);
    Layer plain = *l;
    plain.out_rows = kept.rank == 4;
    return lower_view(lw, l, lower_emit(lw, OP_reduce, l, &x, 1, lower_temp(lw, &plain, "kept", kept, NULL, DT_F32), &a));
}

/* ---- triangles */

/* A number stands outside of the triangle, not a second value. */
static bool has_number(const Layer *l) {
    char word[OPTION_WORDS];
    return strcmp(options_word(&l->options, "value", word), "none") != 0;
}

/* Reads one value, or two, and after them the mask where it is a value, too. In memtide's step the mask takes no memory:
 * the op knows the triangle. */
int layer_triangle_shape(Network *n, Layer *l, Err *e) {
    const int64_t rows = options_int(&l->options, "rows"), columns = options_int(&l->options, "columns");
    const Shape s = l->in;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    const bool masked = l->n_in > 1 && l->ins[l->n_in - 1].mask, two = !has_number(l);
    int code = expect_values(l, (two ? 2 : 1) + masked, e);
    (void)n;
    if (!code) code = expect_numbers(l, l->n_in - masked, e);
    if (code) return code;
    if (s.rank < 2 || s.dim[s.rank - 2] != rows || s.dim[s.rank - 1] != columns)
        return layer_error(l, e, "a mask of (%" PRId64 ", %" PRId64 ") does not fit %s", rows, columns, shape_text(&s, a));
    if (masked && !shape_equal(&l->ins[l->n_in - 1].shape, &(Shape){2, {rows, columns, 1, 1}}))
        return layer_error(l, e, "a mask of (%" PRId64 ", %" PRId64 ") is not %s", rows, columns,
                           shape_text(&l->ins[l->n_in - 1].shape, b));
    if (two && !shape_equal(&l->ins[1].shape, &s))
        return layer_error(l, e, "expected two values of one shape, found %s and %s", shape_text(&s, a),
                           shape_text(&l->ins[1].shape, b));
    plain_output(l, s);
    return OK;
}

int layer_triangle_forward(Lower *lw, const Layer *l, const int *in) {
    char word[OPTION_WORDS];
    int of[2];
    Attr a;
    memset(&a, 0, sizeof a);
    options_word(&l->options, "value", word);
    a.triangle.diagonal = (int32_t)options_int(&l->options, "diagonal");
    a.triangle.upper = options_bool(&l->options, "upper");
    a.triangle.value = word[0] ? word[0] == '-' ? -INFINITY : INFINITY : (float)options_float(&l->options, "value");
    const int values = has_number(l) ? 1 : 2;
    for (int k = 0; k < values; k++) of[k] = lower_plain(lw, l, in[k]);
    return lower_op(lw, OP_where, l, of, values, &a);
}

/* ---- masks that are values: positions, and a comparison of those of the rows with those of the columns. What they read
 * first stands for them in memtide's step, which never reads it. */

int layer_arange_shape(Network *n, Layer *l, Err *e) {
    int code = layer_expect_inputs(l, 1, e);
    (void)n;
    if (!code) code = layer_expect_range(l, "end", 1, INT32_MAX, e);
    if (code) return code;
    plain_output(l, shape1(options_int(&l->options, "end")));
    l->output.positions = true;
    return OK;
}

int layer_arange_forward(Lower *lw, const Layer *l, const int *in) { return (void)lw, (void)l, in[0]; }

int layer_compare_shape(Network *n, Layer *l, Err *e) {
    int code = expect_values(l, 2, e);
    (void)n;
    if (code) return code;
    if (!l->ins[0].positions || !l->ins[1].positions) return layer_error(l, e, "expected two values of arange");
    plain_output(l, shape2(l->ins[0].shape.dim[0], l->ins[1].shape.dim[0]));
    l->output.mask = true;
    return OK;
}

/* A triangle that is a value. Only PyTorch's step asks how it is made, and of how large a buffer. */
int layer_mask_shape(Network *n, Layer *l, Err *e) {
    char made[OPTION_WORDS];
    int64_t sizes = 0;
    int code = layer_expect_inputs(l, 1, e);
    (void)n;
    if (!code) code = layer_expect_range(l, "rows", 1, INT32_MAX, e);
    if (!code) code = layer_expect_range(l, "columns", 1, INT32_MAX, e);
    if (code) return code;
    const double *of = options_list(&l->options, "of", &sizes);
    if ((options_word(&l->options, "made", made)[0] == 'b') != (sizes == 2) || (of && !(of[0] >= 1 && of[1] >= 1)))
        return layer_error(l, e, "of: expected rows and columns of the buffer, with made = \"buffer\" or \"booleans\" alone");
    plain_output(l, shape2(options_int(&l->options, "rows"), options_int(&l->options, "columns")));
    l->output.mask = true;
    return OK;
}

int layer_mask_forward(Lower *lw, const Layer *l, const int *in) { return (void)lw, (void)l, in[0]; }

int layer_compare_forward(Lower *lw, const Layer *l, const int *in) { return (void)lw, (void)l, in[0]; }

/* ---- gather: of each row the element that its label names */

int layer_gather_shape(Network *n, Layer *l, Err *e) {
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    int code = expect_values(l, 2, e);
    (void)n;
    if (!code) code = expect_numbers(l, 1, e);
    if (code) return code;
    if (!l->ins[1].labels) return layer_error(l, e, "expected the labels of a loss, found another value");
    const int last = l->in.rank - 1;
    const int64_t dim = options_int(&l->options, "dim");
    if (dim != -1 && dim != last) return layer_error(l, e, "expected the last dimension, -1, found %" PRId64, dim);
    Shape rows = l->in;
    rows.dim[rows.rank = last] = 1;
    if (!shape_equal(&rows, &l->ins[1].shape))
        return layer_error(l, e, "expected a row of classes for each label, found %s for %s", shape_text(&l->in, a),
                           shape_text(&l->ins[1].shape, b));
    Shape out = l->in;
    out.dim[last] = 1;
    plain_output(l, out);
    return OK;
}

/* The op's rows are (N, C): (N, T, C) is a view of them. */
int layer_gather_forward(Lower *lw, const Layer *l, const int *in) {
    const int64_t count = shape_elements(&l->out);
    Layer rows = *l;
    int x = lower_plain(lw, l, in[0]);
    if (l->in.rank > 2) x = lower_view_as(lw, l, "flat", shape2(count, shape_elements(&l->in) / count), x);
    rows.out = shape2(count, 1);
    const int y = lower_op(lw, OP_gather, &rows, (int[]){x, in[1]}, 2, NULL);
    return l->in.rank > 2 ? lower_view_as(lw, l, "unflat", l->out, y) : y;
}

/* ---- parameters: a value that reads nothing */

int layer_parameter_shape(Network *n, Layer *l, Err *e) {
    int64_t rank;
    char word[OPTION_WORDS];
    const double *shape = options_list(&l->options, "shape", &rank);
    Param like = {.init = INIT_CONSTANT, .plain = true};
    if (rank > SHAPE_MAX) return layer_error(l, e, "shape: at most %d dimensions, found %" PRId64, SHAPE_MAX, rank);
    like.shape = (Shape){(int)rank, {1, 1, 1, 1}};
    for (int d = 0; d < rank; d++) {
        if (!(shape[d] >= 1 && shape[d] <= INT32_MAX) || shape[d] != floor(shape[d]))
            return layer_error(l, e, "shape: expected whole numbers of at least 1, found %g", shape[d]);
        like.shape.dim[d] = (int64_t)shape[d];
    }
    options_word(&l->options, "init", word);
    if (word[0]) like.init = word[0] == 'n' ? INIT_NORMAL : INIT_UNIFORM;
    like.bound = options_float(&l->options, !word[0] ? "init" : word[0] == 'n' ? "std" : "bound");
    int code = network_tensor(n, l, "", &like, e);
    if (code) return code;
    plain_output(l, like.shape);
    l->output.param = true;
    return OK;
}

int layer_parameter_forward(Lower *lw, const Layer *l, const int *in) {
    (void)in;
    return lw->param[l->param[0]];
}
