#include "checkpoint.h"

#include <assert.h>

#include "modules.h"

struct Frame {
    const Layer *layer;
    Tensor *in[LAYER_IN]; /* references, without their graph */
    int refs;
    bool autocast;
    int counted;          /* tensors that were to be saved */
    int made;             /* of these, how many have been made again */
    Tensor **again;       /* [counted], references; NULL until they are made */
};

/* ---- use_reentrant=True: CheckpointFunction runs the layer without gradients and saves its inputs; its backward runs it
 * again with gradients, and a backward pass of its own. */

static void apply_reentrant(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    const Eager before = *g;
    const Layer *l = (const Layer *)(intptr_t)n->number[0];
    Tensor *in[LAYER_IN] = {NULL};
    for (int i = 0; i < n->n_next; i++) {
        in[i] = tensor_detach(g, n->saved[i]);
        in[i]->leaf = node_wants(n, i);
    }
    g->grad = true;
    g->autocast = n->number[1];
    g->category = CAT_ACTIVATIONS;
    g->node = "checkpoint";
    Tensor *y = module_call(g, l, in);
    if (g->autocast) amp_end(g);
    g->autocast = before.autocast;
    g->category = before.category;
    g->grad = before.grad;
    backward(g, y, dy[0]);
    eager_where(g, before.layer, before.node);
    tensor_drop(g, y);
    for (int i = 0; i < n->n_next; i++) {
        dx[i] = tensor_ref(in[i]->grad);
        tensor_drop(g, in[i]);
    }
}

static const NodeRule reentrant_rule = {"CheckpointFunctionBackward", apply_reentrant};

static Tensor *call_reentrant(Eager *g, const Layer *l, Tensor *const *in) {
    Node *n = node_new(g, &reentrant_rule, in, l->n_in, l->n_in);
    if (n) {
        n->number[0] = (int64_t)(intptr_t)l;
        n->number[1] = g->autocast;
    }
    for (int i = 0; i < l->n_in; i++) node_save(g, n, i, in[i]);
    g->grad = false;
    Tensor *y = module_call(g, l, in);
    g->grad = true;
    node_output(g, n, y);
    return y;
}

/* ---- use_reentrant=False */

Tensor *checkpoint_call(Eager *g, const Layer *l, Tensor *const *in) {
    if (g->reentrant) return call_reentrant(g, l, in);
    Frame *f = scratch_new(&g->scratch, 1, sizeof *f);
    if (!f) return module_call(g, l, in);
    *f = (Frame){.layer = l, .refs = 1, .autocast = g->autocast};
    for (int i = 0; i < l->n_in; i++) {
        f->in[i] = tensor_detach(g, in[i]);
        f->in[i]->leaf = tensor_requires_grad(in[i]);
    }
    g->frame = f;
    Tensor *y = module_call(g, l, in);
    g->frame = NULL;
    frame_drop(g, f);
    return y;
}

void frame_drop(Eager *g, Frame *f) {
    if (!f || --f->refs > 0) return;
    for (int i = 0; i < LAYER_IN; i++) tensor_drop(g, f->in[i]);
    for (int i = 0; f->again && i < f->made; i++) tensor_drop(g, f->again[i]);
}

void frame_save(Eager *g, Node *n, int k, Tensor *x) {
    Frame *f = g->frame;
    if (!f->again) {
        if (!n->frame) f->refs++;
        n->frame = f;
        n->held[k] = ++f->counted;
    } else if (f->made < f->counted) {
        f->again[f->made++] = tensor_detach(g, x);
        g->halted = f->made == f->counted;
    }
}

/* Runs the layer once more, in the state in which it ran, on the thread that runs backward. */
static void make_again(Eager *g, Frame *f) {
    const Eager before = *g;
    f->again = scratch_new(&g->scratch, (size_t)f->counted, sizeof *f->again);
    if (!f->again) return;
    g->frame = f;
    g->grad = true;
    g->autocast = f->autocast;
    g->category = CAT_ACTIVATIONS;
    g->node = "checkpoint";
    tensor_drop(g, module_call(g, f->layer, f->in));
    g->halted = false;
    if (f->autocast) amp_end(g);
    g->frame = before.frame;
    g->grad = before.grad;
    g->autocast = before.autocast;
    g->category = before.category;
    eager_where(g, before.layer, before.node);
}

void frame_restore(Eager *g, Node *n) {
    Frame *f = n->frame;
    if (!f) return;
    if (!f->again) make_again(g, f);
    for (int k = 0; k < n->n_saved && !g->scratch.failed; k++) {
        if (!n->held[k]) continue;
        assert(n->held[k] <= f->made);
        n->saved[k] = f->again[n->held[k] - 1];
        f->again[n->held[k] - 1] = NULL;
    }
}
