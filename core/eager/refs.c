/* What tensors, nodes and checkpoints' frames hold of each other: whatever nobody holds any more goes, and what it held
 * with it. Their memory is the step's Scratch; what is given back is their place in the trace. */
#include <assert.h>

#include "autograd.h"

Tensor *tensor_ref(Tensor *t) {
    if (t) t->refs++;
    return t;
}

static void storage_drop(Eager *g, Storage *s) {
    assert(s->refs > 0);
    if (--s->refs > 0) return;
    g->host -= s->host;
    if (s->traced >= 0) trace_release(g->trace, s->traced);
}

void tensor_drop(Eager *g, Tensor *t) {
    if (!t || --t->refs > 0) return;
    assert(t->refs == 0);
    Node *node = t->node;
    t->node = NULL;
    storage_drop(g, t->storage);
    tensor_drop(g, t->base);
    tensor_drop(g, t->grad);
    tensor_drop(g, t->cast);
    node_drop(g, node);
}

void tensor_set(Eager *g, Tensor **slot, Tensor *t) {
    Tensor *before = *slot;
    *slot = t;
    tensor_drop(g, before);
}

Angles angles_ref(const Angles *a) {
    return (Angles){tensor_ref(a->positions), tensor_ref(a->cosine), tensor_ref(a->sine)};
}

void angles_drop(Eager *g, Angles *a) {
    tensor_set(g, &a->positions, NULL);
    tensor_set(g, &a->cosine, NULL);
    tensor_set(g, &a->sine, NULL);
}

void node_drop_saved(Eager *g, Node *n) {
    for (int k = 0; k < n->n_saved; k++) tensor_set(g, &n->saved[k], NULL);
}

void node_drop_frame(Eager *g, Node *n) {
    frame_drop(g, n->frame);
    n->frame = NULL;
}

/* Tells the frame that what the node would have saved is not asked for. */
static void tell_frame(Eager *g, const Node *n) {
    Frame *f = n->frame;
    for (int k = 0; f && !f->again && k < n->n_saved; k++) {
        Gone *gone = n->held[k] ? scratch_new(&g->scratch, 1, sizeof *gone) : NULL;
        if (!gone) continue;
        *gone = (Gone){n->held[k] - 1, f->gone};
        f->gone = gone;
    }
}

void node_drop(Eager *g, Node *n) {
    if (!n || --n->refs > 0) return;
    assert(n->refs == 0);
    tell_frame(g, n);
    node_drop_saved(g, n);
    node_drop_frame(g, n);
    angles_drop(g, &n->angles);
    tensor_set(g, &n->kept, NULL);
    for (int i = 0; i < n->n_next; i++) node_drop(g, n->next[i].node);
    if (!n->variable) return;
    n->variable->accumulate = NULL;
    tensor_drop(g, n->variable);
}

void frame_drop(Eager *g, Frame *f) {
    if (!f || --f->refs > 0) return;
    assert(f->refs == 0);
    for (int i = 0; i < LAYER_IN; i++) tensor_drop(g, f->in[i]);
    angles_drop(g, &f->angles);
    for (int i = 0; f->again && i < f->made; i++) tensor_drop(g, f->again[i]);
}
