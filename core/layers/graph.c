/* Sequential: one layer after the other. Graph: children that say whose outputs they read. Both are wired by data
 * (Layer.from, Layer.result), the first as a chain; `which` is the most inputs that the kind takes. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/scratch.h"
#include "network/layer.h"

/* The value that `from` means (see Layer.from): an input of the container, or the output of a child. */
static int find_value(const Layer *l, int from, Value *value, Err *e) {
    if (from < 0 && ~from >= l->n_in)
        return layer_error(l, e, "takes %d inputs, found %d", ~from + 1, l->n_in);
    if (from >= l->n_child) return layer_error(l, e, "has no layer %d", from);
    *value = from < 0 ? l->ins[~from] : l->child[from]->output;
    return OK;
}

/* ---- the order of parameters: that of first use, unless the children's places say otherwise */

/* Parameter first + i has become first + moved[i]: corrects the numbers that `l` and its children hold. */
static void renumber(Layer *l, const int *moved, int first) {
    for (int i = 0; i < l->n_params; i++)
        if (l->param[i] >= first) l->param[i] = first + moved[l->param[i] - first];
    for (int i = 0; i < l->n_child; i++) renumber(l->child[i], moved, first);
}

typedef struct Placed { int place, child; } Placed;

static int compare_placed(const void *left, const void *right) {
    const Placed *a = left, *b = right;
    return a->place != b->place ? (a->place > b->place) - (a->place < b->place) : a->child - b->child;
}

/* Puts the parameters in the order of the children's places. Child i declared [start[i], start[i + 1]). aliases: how
 * many the network had before this layer's own. Uses scratch s. */
static int place_params(Network *n, Layer *l, const int *start, int aliases, Scratch *s, Err *e) {
    int first = start[0], count = start[l->n_child] - first, before = 0;
    assert(first >= 0 && count >= 0 && start[l->n_child] == n->n_params);
    Placed *placed = scratch_new(s, (size_t)l->n_child, sizeof *placed);
    int *moved = scratch_new(s, (size_t)count, sizeof *moved);  /* by parameter, from `first` on: its new number - first */
    int *at = scratch_new(s, (size_t)count, sizeof *at);        /* its place in the index of names */
    Param *old = scratch_new(s, (size_t)count, sizeof *old);
    if (s->failed) return err_set(e, ERR_HOST_MEMORY, "out of host memory for the parameters of a graph");
    for (int i = 0; i < l->n_child; i++) placed[i] = (Placed){l->child[i]->place, i};
    qsort(placed, (size_t)l->n_child, sizeof *placed, compare_placed);
    for (int i = 0; i < l->n_child; i++) {
        int child = placed[i].child;
        for (int k = start[child]; k < start[child + 1]; k++) moved[k - first] = before++;
    }
    for (int i = 0; i < count; i++) {
        old[i] = n->params[first + i];
        at[i] = names_place(&n->names, old[i].name, network_param_name, n);
    }
    for (int i = 0; i < count; i++) {
        n->params[first + moved[i]] = old[i];
        n->names.slot[at[i]] = 1 + first + moved[i];
    }
    for (int i = aliases; i < n->n_aliases; i++)
        if (n->aliases[i].param >= first) n->aliases[i].param = first + moved[n->aliases[i].param - first];
    renumber(l, moved, first);
    return OK;
}

/* ---- the kind */

/* The first result is the graph's output. The others, which only losses read, must be outputs of layers. */
static int find_results(Layer *l, Err *e) {
    int code = OK;
    for (int k = l->n_result - 1; k >= 0 && !code; k--) {
        code = find_value(l, l->result[k], &l->output, e);
        if (!code && k && l->result[k] < 0) code = layer_error(l, e, "gives its own input for a loss");
    }
    return code;
}

/* start[n_child + 1]: by child its first parameter; and how many there are after the last child. */
static int infer_children(Network *n, Layer *l, int *start, Err *e) {
    int code = OK;
    for (int i = 0; i < l->n_child && !code; i++) {
        const Layer *child = l->child[i];
        Value in[LAYER_IN];
        start[i] = n->n_params;
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        for (int k = 0; k < child->n_from && !code; k++) code = find_value(l, child->from[k], &in[k], e);
        if (!code) code = network_infer_child(n, l, i, name, in, child->n_from, e);
    }
    start[l->n_child] = n->n_params;
    return code;
}

int layer_graph_shape(Network *n, Layer *l, Err *e) {
    int code = layer_expect_inputs(l, l->kind->which, e), aliases = n->n_aliases;
    bool placed = false; /* do the places ask for another order than that of first use? */
    Scratch s = {0};
    int *start = scratch_new(&s, (size_t)l->n_child + 1, sizeof *start);
    if (!code && !start) code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a graph");
    if (!code) code = infer_children(n, l, start, e);
    for (int i = 0; i < l->n_child; i++) placed |= l->child[i]->place != i;
    if (!code && placed) code = place_params(n, l, start, aliases, &s, e);
    scratch_release(&s, NULL);
    return code ? code : find_results(l, e);
}

/* The buffer that `from` means (see Layer.from). */
static int find_buf(const int *made, const int *in, int from) { return from < 0 ? in[~from] : made[from]; }

/* needed[n_child]: does one of the first `results` results depend on the child? */
static void find_needed(const Layer *l, int results, bool *needed) {
    for (int k = 0; k < results; k++)
        if (l->result[k] >= 0) needed[l->result[k]] = true;
    for (int i = l->n_child - 1; i >= 0; i--)
        for (int k = 0; k < l->child[i]->n_from && needed[i]; k++)
            if (l->child[i]->from[k] >= 0) needed[l->child[i]->from[k]] = true;
}

int layer_graph_forward(Lower *lw, const Layer *l, const int *in) {
    Scratch s = {0};
    int *made = scratch_new(&s, (size_t)l->n_child, sizeof *made); /* by child: its output */
    bool *needed = scratch_new(&s, (size_t)l->n_child, sizeof *needed);
    if (s.failed) lw->p->failed = true;
    else find_needed(l, lw->training ? l->n_result : 1, needed);
    for (int i = 0; i < l->n_child && !lw->p->failed; i++) {
        int read[LAYER_IN];
        if (!needed[i]) continue;
        for (int k = 0; k < l->child[i]->n_from; k++) read[k] = find_buf(made, in, l->child[i]->from[k]);
        made[i] = lower_forward(lw, l->child[i], read);
        for (int k = 1; k < l->n_result; k++)
            if (l->result[k] == i) lower_loss(lw, k, made[i]);
    }
    int y = lw->p->failed ? 0 : find_buf(made, in, l->result[0]);
    scratch_release(&s, NULL);
    return y;
}
