/* Residual: body(x) + shortcut(x), or body(x) + x.
 * Checkpoint: one layer whose activations may be recomputed. Like PyTorch's function it adds nothing to names. */
#include <assert.h>
#include <string.h>

#include "network/layer.h"

int layer_residual_shape(Network *n, Layer *l, Err *e) {
    char body[SHAPE_TEXT], shortcut[SHAPE_TEXT];
    if (l->n_child < 1 || l->n_child > 2)
        return layer_error(l, e, "expected a body and at most one shortcut, found %d layers", l->n_child);
    int code = layer_expect_inputs(l, 1, e);
    const Shape *other = &l->in;
    const int64_t *order = l->in_order;
    for (int i = 0; i < l->n_child && !code; i++)
        code = network_infer_child(n, l, i, i ? "shortcut" : "body", l->ins, 1, e);
    if (code) return code;
    if (l->n_child == 2) {
        other = &l->child[1]->out;
        order = l->child[1]->out_order;
    }
    const Layer *first = l->child[0];
    if (!shape_equal(&first->out, other))
        return layer_error(l, e, "the body gives %s, but the %s %s", shape_text(&first->out, body),
                           l->n_child == 2 ? "shortcut gives" : "input that is added to it is",
                           shape_text(other, shortcut));
    bool same = !memcmp(first->out_order, order, sizeof first->out_order);
    layer_output(l, first->out);
    l->out_rows = first->out.rank == 4 && (first->out_rows || (l->n_child == 2 ? l->child[1]->out_rows : l->in_rows));
    if (same) memcpy(l->out_order, order, sizeof l->out_order);
    return OK;
}

int layer_residual_forward(Lower *lw, const Layer *l, const int *in) {
    assert(l->n_child == 1 || l->n_child == 2);
    int side[2] = {lower_forward(lw, l->child[0], in), l->n_child == 2 ? lower_forward(lw, l->child[1], in) : in[0]};
    if (!l->out_order[0]) /* unless both sides have the same order, they are added in PyTorch's */
        for (int i = 0; i < 2; i++) side[i] = lower_as_output(lw, l, side[i]);
    return lower_op(lw, OP_add, l, side, 2, NULL);
}

int layer_checkpoint_shape(Network *n, Layer *l, Err *e) {
    if (l->n_child != 1) return layer_error(l, e, "expected exactly one layer, found %d", l->n_child);
    int code = network_infer_child(n, l, 0, "", l->ins, l->n_in, e);
    l->output = l->child[0]->output;
    return code;
}

/* A Checkpoint inside another belongs to the outer one, which recomputes its activations anyway. */
int layer_checkpoint_forward(Lower *lw, const Layer *l, const int *in) {
    int outer = lw->region;
    if (!outer) lw->region = ++lw->regions;
    int y = lower_forward(lw, l->child[0], in);
    lw->region = outer;
    return y;
}
