/* Sequential: one layer after the other. Graph: children that say whose outputs they read. Both are wired by data (Layer.from,
 * Layer.result), the first as a chain; `which` is the most inputs that the kind takes. */
#include <stdio.h>

#include "layer.h"
#include "mem.h"

/* The value `from` means: the container's input ~from, or the output of a child. */
static int find_value(const Layer *l, int from, Value *value, Err *e) {
    if (from < 0 && ~from >= l->n_in)
        return layer_error(l, e, "takes %d inputs, found %d", ~from + 1, l->n_in);
    if (from >= l->n_child) return layer_error(l, e, "has no layer %d", from);
    *value = from < 0 ? l->ins[~from] : l->child[from]->output;
    return OK;
}

int layer_graph_shape(Network *n, Layer *l, Err *e) {
    int code = layer_expect_inputs(l, l->kind->which, e);
    for (int i = 0; i < l->n_child && !code; i++) {
        const Layer *child = l->child[i];
        Value in[LAYER_IN];
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        for (int k = 0; k < child->n_from && !code; k++) code = find_value(l, child->from[k], &in[k], e);
        if (!code) code = network_infer_child(n, l, i, name, in, child->n_from, e);
    }
    return code ? code : find_value(l, l->result, &l->output, e);
}

static int find_buf(const int *made, const int *in, int from) { return from < 0 ? in[~from] : made[from]; }

int layer_graph_forward(Lower *lw, const Layer *l, const int *in) {
    int *made = mem_new((size_t)l->n_child * sizeof *made); /* by child: its output */
    if (!made) lw->p->failed = true;
    for (int i = 0; i < l->n_child && !lw->p->failed; i++) {
        int read[LAYER_IN];
        for (int k = 0; k < l->child[i]->n_from; k++) read[k] = find_buf(made, in, l->child[i]->from[k]);
        made[i] = lower_forward(lw, l->child[i], read);
    }
    int y = lw->p->failed ? 0 : find_buf(made, in, l->result);
    mem_free(made);
    return y;
}
