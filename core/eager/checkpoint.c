/* torch.utils.checkpoint.checkpoint. use_reentrant=False: what a layer would save is not kept but counted; the first node
 * of it that runs backward makes all of it again, until there is as much as was counted. Source:
 * torch/utils/checkpoint.py (early stop is its default). */
#include <math.h>

#include "modules.h"

/* ---- what is run: a layer, or some of its children one after the other */

static Tensor *run(Eager *g, const Part *part, Tensor *const *in) {
    if (!part->end) return module_call(g, part->layer, in);
    Tensor *x = tensor_ref(in[0]);
    for (int i = part->first; i < part->end; i++) tensor_set(g, &x, module_call(g, part->layer->child[i], &x));
    return x;
}

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
    g->angles = n->angles;
    Tensor *y = module_call(g, l, in);
    if (g->autocast) amp_end(g);
    g->autocast = before.autocast;
    g->category = before.category;
    g->angles = before.angles;
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
        n->angles = angles_ref(&g->angles);
    }
    for (int i = 0; i < l->n_in; i++) node_save(g, n, i, in[i]);
    g->grad = false;
    Tensor *y = module_call(g, l, in);
    g->grad = true;
    node_output(g, n, y);
    return y;
}

/* ---- use_reentrant=False */

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
    g->angles = f->angles;
    tensor_drop(g, run(g, &f->part, f->in));
    g->halted = false;
    if (f->autocast) amp_end(g);
    g->angles = before.angles;
    g->frame = before.frame;
    g->grad = before.grad;
    g->autocast = before.autocast;
    g->category = before.category;
    eager_where(g, before.layer, before.node);
}

static Tensor *checkpoint(Eager *g, Part part, int n_in, Tensor *const *in) {
    Frame *f = scratch_new(&g->scratch, 1, sizeof *f);
    if (!f) return tensor_ref(g->unnamed);
    *f = (Frame){.part = part, .refs = 1, .angles = angles_ref(&g->angles), .autocast = g->autocast,
                 .make_again = make_again};
    for (int i = 0; i < n_in; i++) {
        f->in[i] = tensor_detach(g, in[i]);
        f->in[i]->leaf = tensor_requires_grad(in[i]);
    }
    g->frame = f;
    Tensor *y = run(g, &part, in);
    g->frame = NULL;
    frame_drop(g, f);
    return y;
}

/* One inside another is a part of the outer one. */
Tensor *module_checkpoint(Eager *g, const Layer *l, Tensor *const *in) {
    const Layer *body = l->child[0];
    if (!g->checkpoint || !g->grad || g->frame) return module_call(g, body, in);
    return g->reentrant ? call_reentrant(g, body, in) : checkpoint(g, (Part){body, 0, 0}, l->n_in, in);
}

/* Equal segments but the last one, which is kept and takes what is left over. */
Tensor *module_call_segments(Eager *g, const Layer *l, Tensor *x) {
    const int segments = (int)fmax(1, round(sqrt(l->n_child))), size = l->n_child / segments;
    Part part = {l, 0, 0};
    Tensor *y = tensor_ref(x);
    for (int k = 0; k + 1 < segments; k++) {
        part.first = part.end;
        part.end += size;
        tensor_set(g, &y, checkpoint(g, part, 1, &y));
    }
    part.first = part.end;
    part.end = l->n_child;
    tensor_set(g, &y, run(g, &part, &y));
    return y;
}
