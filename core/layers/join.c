/* Concat, Add and Mul (`which`: the op) of branches that read the same input, or of the inputs themselves if there are
 * no branches; `inplace` is for PyTorch's step, where the first value takes the result. Identity; and Contiguous, which is the
 * same but for PyTorch's step. Select and Narrow, which cut a part out, Narrow also every step-th element. Roll. Dimensions
 * are PyTorch's: negative ones count from the end. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "network/layer.h"

/* What is joined: the branches' outputs, or the inputs. */
static int count_values(const Layer *l) { return l->n_child ? l->n_child : l->n_in; }
static const Value *value(const Layer *l, int k) { return l->n_child ? &l->child[k]->output : &l->ins[k]; }

/* The option "dim", counted from the front; at least `least`: 1 where dimension 0 is the batch. */
static int find_dim(const Layer *l, int rank, int least, int *dim, Err *e) {
    int64_t given = options_int(&l->options, "dim");
    *dim = (int)(given < 0 ? given + rank : given);
    if (given >= -rank && given < rank && *dim >= least) return OK;
    return layer_error(l, e, "dim must be between %d and %d%s, found %" PRId64, least, rank - 1,
                       least ? " (0 is the batch)" : "", given);
}

/* ---- joins */

/* The joined shape: all shapes must equal the first, except for the sizes along `dim`, which are added up. dim -1: no
 * exception. */
static int join_shapes(const Layer *l, int dim, Shape *out, Err *e) {
    char one[SHAPE_TEXT], two[SHAPE_TEXT];
    *out = value(l, 0)->shape;
    for (int k = 1; k < count_values(l); k++) {
        const Shape *s = &value(l, k)->shape;
        Shape like = value(l, 0)->shape;
        if (dim >= 0 && s->rank == like.rank) {
            like.dim[dim] = s->dim[dim];
            out->dim[dim] += s->dim[dim];
        }
        if (!shape_equal(s, &like))
            return layer_error(l, e, "expected values of one shape%s, found %s and %s",
                               dim < 0 ? "" : " apart from the sizes that are put together",
                               shape_text(&value(l, 0)->shape, one), shape_text(s, two));
    }
    return OK;
}

/* Which of two factors or terms is broadcast over the other: it has the other's sizes except for one run of 1s. -1:
 * none. The run must be one in the order in which the larger value lies, too. */
static int find_broadcast(const Layer *l) {
    if (l->kind->which == OP_concat || count_values(l) != 2 || value(l, 0)->param || value(l, 1)->param) return -1;
    for (int k = 0; k < 2; k++) {
        const Value *s = value(l, k), *x = value(l, 1 - k);
        bool last = (x->shape.rank == 4 && !x->rows) || (x->shape.rank == 3 && x->order[0]); /* channels-last */
        bool flattened = x->shape.rank == 2 && x->order[0];                                  /* such an image as a matrix */
        Broadcast r;
        if (broadcast_read(&x->shape, &s->shape, last, &r) && r.run > 1 && (!flattened || r.inner == 1)) return k;
    }
    return -1;
}

/* Do two values lie alike? Of images (N, C, L) that are joined along the channels, C may differ. */
static bool same_order(const Value *a, const Value *b, int dim) {
    int from = dim == 1 && a->order[0] && b->order[0];
    return !memcmp(a->order + from, b->order + from, (3 - (size_t)from) * sizeof *a->order);
}

/* Two values that are broadcast any other way, or of which one is a parameter, are a tensor operation's. */
static bool is_binary(const Layer *l) {
    return l->kind->which != OP_concat && !l->n_child && l->n_in == 2 &&
           (l->ins[0].param || l->ins[1].param || !shape_equal(&l->ins[0].shape, &l->ins[1].shape));
}

/* Of values that lie differently, all are taken in PyTorch's order. */
static bool any_rows(const Layer *l) {
    bool any = false;
    for (int k = 0; k < count_values(l); k++) any |= value(l, k)->rows;
    return any;
}

int layer_join_shape(Network *n, Layer *l, Err *e) {
    int dim = -1, code = OK;
    Shape out;
    for (int i = 0; i < l->n_child && !code; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        code = network_infer_child(n, l, i, name, l->ins, l->n_in, e);
    }
    if (!code && count_values(l) > LAYER_IN)
        code = layer_error(l, e, "takes at most %d branches, found %d", LAYER_IN, l->n_child);
    if (!code && l->kind->which == OP_concat) code = find_dim(l, value(l, 0)->shape.rank, 1, &dim, e);
    if (code) return code;
    int broadcast = find_broadcast(l);
    if (broadcast >= 0) {
        l->output = *value(l, 1 - broadcast);
        return OK;
    }
    if (is_binary(l)) return layer_binary_shape(n, l, e);
    if ((code = join_shapes(l, dim, &out, e))) return code;
    bool same = dim < 0 || (dim == 1 && out.rank == 3); /* equal orders stay; else all values get PyTorch's */
    for (int k = 1; k < count_values(l); k++) same &= same_order(value(l, k), value(l, 0), dim);
    const Value first = *value(l, 0);
    layer_output(l, out);
    l->out_rows = out.rank == 4 && any_rows(l);
    if (same) memcpy(l->out_order, first.order, sizeof l->out_order);
    if (same && first.order[0] && dim == 1) l->out_order[0] = out.dim[1];
    return OK;
}

/* Sums and products: the first two, then the result and the next one. */
static int join_pairs(Lower *lw, const Layer *l, const int *side, int n) {
    int y = side[0];
    for (int k = 1; k < n; k++) {
        char part[16];
        snprintf(part, sizeof part, k + 1 < n ? "part%d" : "y", k);
        int to = lower_buf(lw, l, part, DT_F32);
        y = lower_emit(lw, (OpKind)l->kind->which, l, (int[]){y, side[k]}, 2, to, NULL);
    }
    return y;
}

/* x + s or x s, with s broadcast over x, lying as x does. */
static int join_broadcast(Lower *lw, const Layer *l, int x, int s) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.broadcast.add = l->kind->which == OP_add;
    if (l->out.rank == 3 && l->out_order[0]) s = lower_line(lw, l, s);
    else s = l->out.rank == 4 && !l->out_rows ? lower_image(lw, l, s) : lower_plain(lw, l, s);
    return lower_op(lw, OP_broadcast, l, (int[]){x, s}, 2, &a);
}

int layer_join_forward(Lower *lw, const Layer *l, const int *in) {
    int side[LAYER_IN] = {0}, dim, n = count_values(l);
    Attr a;
    memset(&a, 0, sizeof a);
    assert(n >= 1 && n <= LAYER_IN);
    int broadcast = find_broadcast(l);
    if (broadcast < 0 && is_binary(l)) return layer_binary_forward(lw, l, in);
    for (int k = 0; k < n; k++) {
        side[k] = l->n_child ? lower_forward(lw, l->child[k], in) : in[k];
        if (broadcast < 0 && !l->out_order[0]) side[k] = lower_as_output(lw, l, side[k]);
    }
    if (broadcast >= 0) return join_broadcast(lw, l, side[1 - broadcast], side[broadcast]);
    if (l->kind->which != OP_concat || n == 1) return join_pairs(lw, l, side, n);
    int code = find_dim(l, l->out.rank, 1, &dim, NULL);
    assert(!code); /* layer_join_shape has checked it */
    a.axis.axis = dim;
    return lower_op(lw, OP_concat, l, side, n, &a);
}

/* ---- parts */

int layer_identity_shape(Network *n, Layer *l, Err *e) {
    (void)n, (void)e;
    l->output = l->ins[0];
    return OK;
}

int layer_identity_forward(Lower *lw, const Layer *l, const int *in) {
    (void)lw, (void)l;
    return in[0];
}

/* Finds the part [start, start + length) along the layer's dim; `from` is the option that says where it starts. */
static int find_part(const Layer *l, const char *from, int64_t length, int *dim, int64_t *start, Err *e) {
    int code = find_dim(l, l->in.rank, l->in_is_param || l->in_is_constant ? 0 : 1, dim, e);
    if (code) return code;
    int64_t given = options_int(&l->options, from), size = l->in.dim[*dim];
    *start = given < 0 ? given + size : given;
    if (length >= 1 && *start >= 0 && *start <= size - length) return OK;
    return layer_error(l, e, "%s %" PRId64 " and length %" PRId64 " do not lie in dimension %d, whose size is %" PRId64,
                       from, given, length, *dim, size);
}

static int emit_part(Lower *lw, const Layer *l, int x, const char *from, int64_t length, int y) {
    int dim;
    Attr a;
    memset(&a, 0, sizeof a);
    int code = find_part(l, from, length, &dim, &a.axis.start, NULL);
    assert(!code); /* the shape function has checked it */
    a.axis.axis = dim;
    return lower_emit(lw, OP_slice, l, &x, 1, y, &a);
}

/* Of a part with a step: from its first to its last element. */
static int64_t span(const Layer *l) {
    return (options_int(&l->options, "length") - 1) * options_int(&l->options, "step") + 1;
}

/* The option `split` says which part of which parts it is: PyTorch's step makes them in one call. */
static int expect_split(const Layer *l, int dim, int64_t start, Err *e) {
    int64_t count = 0, at = 0;
    const double *sizes = options_list(&l->options, "split", &count);
    bool found = !sizes;
    if (count > LAYER_IN) return layer_error(l, e, "split: expected %d parts at most, found %" PRId64, LAYER_IN, count);
    for (int64_t i = 0; i < count; i++) {
        found |= (double)at == (double)start && sizes[i] == (double)options_int(&l->options, "length");
        at += (int64_t)sizes[i];
    }
    return found && (!sizes || at == l->in.dim[dim])
        ? OK : layer_error(l, e, "split: expected the sizes of all parts of dimension %d, of which this is one", dim);
}

int layer_narrow_shape(Network *n, Layer *l, Err *e) {
    int64_t start, length = options_int(&l->options, "length"), step = options_int(&l->options, "step");
    int dim, code = layer_expect_inputs(l, 1, e);
    (void)n;
    if (!code) code = layer_expect_range(l, "step", 1, INT32_MAX, e);
    if (!code) code = find_part(l, "start", span(l), &dim, &start, e);
    if (!code) code = expect_split(l, dim, start, e);
    if (!code && l->in.dim[dim] % step)
        code = layer_error(l, e, "step %" PRId64 " does not divide dimension %d, whose size is %" PRId64, step, dim,
                           l->in.dim[dim]);
    if (code) return code;
    Shape out = l->in;
    out.dim[dim] = length;
    layer_output(l, out);
    if (step > 1) l->out_rows = out.rank == 4;
    l->out_is_constant = l->in_is_constant;
    return OK;
}

/* A slice of (outer, n / step, step, inner) along an axis. */
static int steps_part(Lower *lw, const Layer *l, const char *name, int x, Shape apart, int axis, int64_t start) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.axis.axis = axis;
    a.axis.start = start;
    return lower_emit(lw, OP_slice, l, &x, 1, lower_temp(lw, l, name, apart, NULL, DT_F32), &a);
}

/* x[start::step] of (outer, n, inner). */
static int narrow_steps(Lower *lw, const Layer *l, int x, int dim, int64_t start) {
    const int64_t length = l->out.dim[dim], step = options_int(&l->options, "step");
    Shape apart = {SHAPE_MAX, {1, l->in.dim[dim] / step, step, 1}};
    Layer plain = *l;
    plain.out_rows = true;
    for (int d = 0; d < l->in.rank; d++)
        if (d != dim) apart.dim[d < dim ? 0 : SHAPE_MAX - 1] *= l->in.dim[d];
    x = lower_view_as(lw, &plain, "apart", apart, lower_plain(lw, l, x));
    apart.dim[2] = 1;
    x = steps_part(lw, &plain, "part", x, apart, 2, start % step);
    if (length < apart.dim[1]) {
        apart.dim[1] = length;
        x = steps_part(lw, &plain, "length", x, apart, 1, start / step);
    }
    return lower_view(lw, l, x);
}

int layer_narrow_forward(Lower *lw, const Layer *l, const int *in) {
    int dim;
    int64_t start;
    const int code = find_part(l, "start", span(l), &dim, &start, NULL);
    assert(!code); /* layer_narrow_shape has checked it */
    if (options_int(&l->options, "step") > 1) return narrow_steps(lw, l, in[0], dim, start);
    return emit_part(lw, l, lower_rows(lw, l, in[0]), "start", options_int(&l->options, "length"),
                     lower_buf(lw, l, "y", DT_F32));
}

int layer_select_shape(Network *n, Layer *l, Err *e) {
    int64_t start;
    int dim, code = find_part(l, "index", 1, &dim, &start, e);
    char text[SHAPE_TEXT];
    (void)n;
    if (code) return code;
    const int64_t unbind = options_int(&l->options, "unbind");
    if (unbind && (unbind != l->in.dim[dim] || unbind > LAYER_IN))
        return layer_error(l, e, "unbind: expected the size of dimension %d, %" PRId64 ", and %d at most, found %" PRId64, dim,
                           l->in.dim[dim], LAYER_IN, unbind);
    if (l->in.rank < 3)
        return layer_error(l, e, "expected an input of at least 3 dimensions, found %s", shape_text(&l->in, text));
    Shape out = {l->in.rank - 1, {1, 1, 1, 1}};
    for (int d = 0, k = 0; d < l->in.rank; d++)
        if (d != dim) out.dim[k++] = l->in.dim[d];
    layer_output(l, out);
    return OK;
}

/* A part of size 1, then the same elements without that dimension: a view, unless they lie channels-last. */
int layer_select_forward(Lower *lw, const Layer *l, const int *in) {
    int dim, code = find_dim(l, l->in.rank, 1, &dim, NULL);
    assert(!code); /* layer_select_shape has checked it */
    Shape part = l->in;
    part.dim[dim] = 1;
    int x = emit_part(lw, l, in[0], "index", 1, lower_temp(lw, l, "part", part, NULL, DT_F32));
    if (l->in.rank == 4 && !l->in_rows && dim > 1) return lower_op(lw, OP_nhwc_to_nchw, l, &x, 1, NULL);
    return lower_view(lw, l, x);
}

/* ---- the same elements at other places */

/* Where the first element goes: an index along the layer's dim. */
static int find_shift(const Layer *l, int *dim, int64_t *shift, Err *e) {
    int code = find_dim(l, l->in.rank, 1, dim, e);
    if (code) return code;
    const int64_t size = l->in.dim[*dim], given = options_int(&l->options, "shift") % size;
    *shift = given < 0 ? given + size : given;
    return OK;
}

int layer_roll_shape(Network *n, Layer *l, Err *e) {
    int dim;
    int64_t shift;
    int code = find_shift(l, &dim, &shift, e);
    (void)n;
    if (!code) layer_output(l, l->in);
    return code;
}

int layer_roll_forward(Lower *lw, const Layer *l, const int *in) {
    int dim, x = lower_rows(lw, l, in[0]);
    Attr a;
    memset(&a, 0, sizeof a);
    int code = find_shift(l, &dim, &a.axis.start, NULL);
    assert(!code); /* layer_roll_shape has checked it */
    if (!a.axis.start) return x;
    a.axis.axis = dim;
    return lower_op(lw, OP_roll, l, &x, 1, &a);
}
