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

Tensor *checkpoint_call(Eager *g, const Layer *l, Tensor *const *in) {
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
    for (int k = 0; k < n->n_saved && f->again; k++) {
        if (!n->held[k]) continue;
        assert(n->held[k] <= f->made);
        n->saved[k] = f->again[n->held[k] - 1];
        f->again[n->held[k] - 1] = NULL;
    }
}
