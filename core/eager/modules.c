/* Calls of modules. */
#include "fsdp.h"
#include "modules.h"

Tensor *module_call(Eager *g, const Layer *l, Tensor *const *in) {
    const Layer *caller = g->layer;
    FsdpUnit *unit = fsdp_unit(g, l);
    Tensor *taken[LAYER_IN];
    GUARD(g);
    eager_where(g, l, g->node);
    if (unit) fsdp_before(g, unit, in, l->n_in, taken);
    Tensor *y = g->modules[l->kind - layer_kinds](g, l, unit ? taken : in);
    if (unit) fsdp_after(g, unit, y);
    for (int k = 0; unit && k < l->n_in; k++) tensor_drop(g, taken[k]);
    eager_where(g, caller, g->node);
    return y;
}

Tensor *module_param(const Eager *g, const Layer *l, int k) { return k < l->n_params ? g->params[l->param[k]] : NULL; }

/* ---- containers */

/* The child during which the output of child i is alive last: one that reads it, or one that runs while a variable of
 * the forward function holds it; n_child where it is a result. */
static int last_user(const Layer *l, int i) {
    int last = l->child[i]->held > i ? l->child[i]->held : i;
    for (int k = i + 1; k < l->n_child; k++)
        for (int j = 0; j < l->child[k]->n_from; j++)
            if (l->child[k]->from[j] == i && last < k) last = k;
    for (int k = 0; k < l->n_result; k++)
        if (l->result[k] == i) last = l->n_child;
    return last;
}

void tensor_keep(Eager *g, Tensor *t) {
    Kept *one = scratch_new(&g->scratch, 1, sizeof *one);
    if (!one) return;
    *one = (Kept){t, g->kept};
    g->kept = one;
}

/* nn.Sequential and forward functions: a value goes when the call has returned during which it is read, or a variable
 * holds it, last. The outputs beside the first one go to the losses. */
Tensor *graph_run(Eager *g, const Layer *l, Tensor *const *in, void (*after_first)(Eager *g, const Layer *l, const Tensor *y)) {
    Tensor **made = scratch_new(&g->scratch, (size_t)l->n_child, sizeof *made);
    int *last = scratch_new(&g->scratch, (size_t)l->n_child, sizeof *last);
    if (!made || !last) return tensor_ref(in[0]);
    const Parts outer = g->parts;
    Kept *const kept = g->kept;
    g->parts.n = 0;
    g->kept = NULL;
    for (int i = 0; i < l->n_child; i++) last[i] = last_user(l, i);
    for (int i = 0; i < l->n_child; i++) {
        const Layer *child = l->child[i];
        Tensor *read[LAYER_IN];
        for (int k = 0; k < child->n_from; k++) read[k] = child->from[k] < 0 ? in[~child->from[k]] : made[child->from[k]];
        made[i] = module_call(g, child, read);
        if (i == 0 && after_first) after_first(g, l, made[i]);
        for (int k = 0; k <= i; k++)
            if (last[k] == i) tensor_set(g, &made[k], NULL);
    }
    Tensor *y = NULL;
    for (int k = 0; k < l->n_result; k++) {
        Tensor *result = l->result[k] < 0 ? in[~l->result[k]] : made[l->result[k]];
        if (k == 0) y = tensor_ref(result);
        else g->more[g->n_more++] = tensor_ref(result);
    }
    for (int i = 0; i < l->n_child; i++) tensor_set(g, &made[i], NULL);
    for (int k = 0; k < g->parts.n; k++) tensor_drop(g, g->parts.part[k]);
    g->parts = outer;
    for (; g->kept; g->kept = g->kept->next) tensor_drop(g, g->kept->tensor);
    g->kept = kept;
    return y;
}
