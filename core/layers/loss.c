/* The losses; each gives one number.
 *
 *   of classes   logits, or (`which`: 1) logarithms of probabilities: (N, C) and a class for each row, or (N, C, L),
 *                (N, C, H, W) and a class for each place
 *   of a script  a forward function of logits (N, C) or (N, T, C) and a class for each row of C, whose values are
 *                reduced; `which`: the most inputs of its graph
 *   of elements  `which` is the function (LossFn): a target like the network's output and in its order, or no target
 *
 * All losses of a step that have a target share it, and the first loss has one. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "network/layer.h"

bool layer_has_labels(const Layer *l) {
    return l->kind->shape == layer_class_loss_shape || l->kind->shape == layer_script_loss_shape;
}
int layer_class_dim(const Layer *l) { return l->kind->shape == layer_script_loss_shape ? l->in.rank - 1 : 1; }
static bool has_target(const Layer *l) { return layer_has_labels(l) || l->kind->which != LOSS_IDENTITY; }

/* The target's shape, with all labels in one dimension. */
static Shape target_shape(const Layer *l) {
    return layer_has_labels(l) ? shape1(shape_elements(&l->in) / l->in.dim[layer_class_dim(l)]) : l->in;
}

/* Checks that `l` has the same target as the first loss. */
static int check_target(const Layer *first, const Layer *l, Err *e) {
    const Shape here = target_shape(l), there = target_shape(first);
    char one[SHAPE_TEXT], two[SHAPE_TEXT];
    if (layer_has_labels(l) != layer_has_labels(first))
        return layer_error(l, e, "the losses of a step have the same target, but %s has %s, and this one %s",
                           first->kind->name, layer_has_labels(first) ? "labels" : "numbers",
                           layer_has_labels(l) ? "labels" : "numbers");
    if (!shape_equal(&here, &there))
        return layer_error(l, e, "the losses of a step have the same target, but %s has %s, and this one %s",
                           first->kind->name, shape_text(&there, one), shape_text(&here, two));
    int64_t ignored = options_int(&first->options, "ignore_index");
    if (layer_has_labels(l) && options_int(&l->options, "ignore_index") != ignored)
        return layer_error(l, e, "expected ignore_index = %" PRId64 ", as %s has it", ignored, first->kind->name);
    return OK;
}

/* Sets n->targets, and checks that every sample has that many. */
static int count_targets(Network *n, const Layer *first, Err *e) {
    const Shape all = target_shape(first);
    char text[NETWORK_OUTPUT];
    int64_t count = shape_elements(&all), batch = n->batch;
    n->targets = count / batch;
    n->class_dim = layer_has_labels(first) ? layer_class_dim(first) : 0;
    if (count % batch == 0) return OK;
    network_output_text(n, text, sizeof text);
    return layer_error(first, e, "expected as many %s for each of %" PRId64 " samples, found %" PRId64 " in all: %s",
                       layer_has_labels(first) ? "labels" : "numbers", batch, count, text);
}

/* What the shape functions of all losses have in common. */
static int one_number(Network *n, Layer *l, Err *e) {
    const Layer *first = n->loss[0];
    if (!has_target(first)) return layer_error(first, e, "expected a loss with a target as the first one");
    int code = l == first ? count_targets(n, l, e) : has_target(l) ? check_target(first, l, e) : OK;
    layer_output(l, (Shape){0, {1, 1, 1, 1}});
    return code;
}

/* Attributes with the factor and the reduction. */
static Attr reduced(const Layer *l) {
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.loss.scale = (float)l->factor;
    a.loss.sum = !strcmp(options_word(&l->options, "reduction", text), "sum");
    return a;
}

/* Makes the program's target: a class for each row of x, or numbers that lie as x does. */
static int make_target(Lower *lw, const Layer *l, int x) {
    const Buf like = lw->p->bufs[x];
    bool classes = layer_has_labels(l);
    int t = program_buf(lw->p, CAT_INPUT, target_shape(l), classes ? DT_I32 : DT_F32, "target");
    if (lw->p->failed) return 0;
    Buf *b = &lw->p->bufs[t];
    b->kind = BUF_INPUT;
    if (classes) return t;
    b->layout = like.layout;
    memcpy(b->order, like.order, sizeof b->order);
    return t;
}

/* The program's target, which the first loss makes; NO_BUF: this one has none. */
static int find_target(Lower *lw, const Layer *l, int x) {
    if (!has_target(l) || lw->p->failed) return NO_BUF;
    if (lw->p->target == NO_BUF) lw->p->target = make_target(lw, l, x);
    return lw->p->target;
}

/* Emits loss = kind(x, t, w); t and w are NO_BUF for kinds without target, and without weights. */
static int finish(Lower *lw, OpKind kind, const Layer *l, int x, int t, int w, const Attr *a) {
    Program *p = lw->p;
    if (p->failed) return 0;
    int in[] = {x, t, w}, loss = lower_op(lw, kind, l, in, op_info(kind)->n_in, a);
    if (p->failed) return 0;
    Buf *b = &p->bufs[loss];
    snprintf(b->name, sizeof b->name, "%s", l->path);
    b->category = CAT_OTHER;
    b->keep = b->loss = true;
    return loss;
}

/* The numbers of an option, one for each class, as a constant of the program; NO_BUF: it has no list. */
static int make_weights(Lower *lw, const Layer *l, const char *option, const char *name) {
    int64_t n;
    char text[BUF_NAME];
    const double *weight = options_list(&l->options, option, &n);
    if (!weight) return NO_BUF;
    snprintf(text, sizeof text, "%s%s", name, l->path + strlen("loss"));
    return program_constant(lw->p, text, shape1(n), DT_F32, weight);
}

/* Of rows of at least this many logits the maximum and the sum's logarithm are kept for the gradient, which would else
 * read each row once more: 8 bytes per row, at most 1/32 of the logits. */
enum { LONG_ROW = 128 };

/* ---- of classes */

int layer_class_loss_shape(Network *n, Layer *l, Err *e) {
    double smoothing = options_float(&l->options, "label_smoothing");
    double square = options_float(&l->options, "lse_square_scale");
    int64_t weights;
    int code = layer_expect_range(l, "ignore_index", INT32_MIN, INT32_MAX, e);
    if (code) return code;
    if (!(smoothing >= 0 && smoothing <= 1))
        return layer_error(l, e, "label_smoothing must be between 0 and 1, found %g", smoothing);
    if (!(square >= 0)) return layer_error(l, e, "lse_square_scale must be at least 0, found %g", square);
    if (options_list(&l->options, "weight", &weights) && weights != l->in.dim[1])
        return layer_error(l, e, "weight: expected a number for each of %" PRId64 " classes, found %" PRId64,
                           l->in.dim[1], weights);
    layer_take_line(l);
    return one_number(n, l, e);
}

/* A row of C logits, or logarithms, per label: (N, C) in PyTorch's order; an image, whose channels lie side by side,
 * and (N, C, L) as a view (N H W, C). */
static int logit_rows(Lower *lw, const Layer *l, int x) {
    const int64_t *d = l->in.dim;
    Layer rows = *l;
    if (l->in.rank == 2) return lower_rows(lw, l, x);
    assert(l->in.rank == 4 || (l->in.rank == 3 && l->in_order[0])); /* channels-last: layer_take_line */
    rows.out = shape2(d[0] * d[2] * d[3], d[1]); /* d[3] of (N, C, L) is 1 */
    return lower_view(lw, &rows, x);
}

int layer_class_loss_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a = reduced(l);
    a.loss.smoothing = (float)options_float(&l->options, "label_smoothing");
    a.loss.beta = (float)options_float(&l->options, "lse_square_scale");
    a.loss.log = l->kind->which;
    a.loss.ignore_index = (int32_t)options_int(&l->options, "ignore_index");
    const int w = make_weights(lw, l, "weight", "class_weights");
    int x = logit_rows(lw, l, in[0]), loss = finish(lw, OP_cross_entropy, l, x, find_target(lw, l, x), w, &a);
    if (!lw->p->failed && lw->training && !a.loss.log && l->in.dim[1] >= LONG_ROW) {
        const Shape stats = shape2(lw->p->bufs[x].shape.dim[0], 2);
        lower_keep(lw, 1, lower_temp(lw, l, "stats", stats, NULL, DT_F32));
    }
    return loss;
}

/* ---- of elements */

int layer_element_loss_shape(Network *n, Layer *l, Err *e) {
    double beta = options_float(&l->options, "beta"), delta = options_float(&l->options, "delta");
    if (beta < 0) return layer_error(l, e, "beta must be at least 0, found %g", beta);
    int64_t weights;
    if (options_list(&l->options, "pos_weight", &weights) && (!l->in.rank || weights != l->in.dim[l->in.rank - 1]))
        return layer_error(l, e, "pos_weight: expected a number for each of %" PRId64 " classes, the last dimension, found "
                           "%" PRId64, l->in.rank ? l->in.dim[l->in.rank - 1] : 1, weights);
    if (l->kind->which == LOSS_HUBER && !(delta > 0))
        return layer_error(l, e, "delta must be above 0, found %g", delta);
    return one_number(n, l, e);
}

int layer_element_loss_forward(Lower *lw, const Layer *l, const int *in) {
    const Options *o = &l->options;
    Attr a = reduced(l);
    a.loss.f = (LossFn)l->kind->which;
    /* a loss has one of these at most, under PyTorch's name; options that it does not have read as 0 */
    a.loss.beta = (float)(options_float(o, "beta") + options_float(o, "delta") + options_float(o, "pos_weight"));
    /* several losses share a target, which then is in PyTorch's order */
    int x = lw->net->n_losses > 1 ? lower_rows(lw, l, in[0]) : in[0];
    const int w = make_weights(lw, l, "pos_weight", "pos_weight");
    if (w != NO_BUF) x = lower_plain(lw, l, x); /* the classes side by side */
    return finish(lw, OP_element_loss, l, x, find_target(lw, l, x), w, &a);
}

/* ---- of a script: a graph of x and the labels, whose values are then reduced as IdentityLoss reduces them */

int layer_script_loss_shape(Network *n, Layer *l, Err *e) {
    Shape labels = l->in;
    if (labels.rank != 2 && labels.rank != 3)
        return layer_error(l, e, "expected logits (N, C) or (N, T, C), found %d dimensions", labels.rank);
    labels.dim[--labels.rank] = 1;
    l->ins[1] = (Value){.shape = labels, .labels = true};
    l->n_in = 2;
    const int code = layer_graph_shape(n, l, e);
    l->n_in = 1;
    return code ? code : one_number(n, l, e);
}

int layer_script_loss_forward(Lower *lw, const Layer *l, const int *in) {
    const int x = lower_rows(lw, l, in[0]), t = find_target(lw, l, x), y = layer_graph_forward(lw, l, (int[]){x, t});
    Attr a = reduced(l);
    a.loss.f = LOSS_IDENTITY;
    return finish(lw, OP_element_loss, l, y, NO_BUF, NO_BUF, &a);
}
