/* torch.utils.checkpoint.checkpoint(use_reentrant=False): what a layer would save is not kept but counted; the first node
 * of it that runs backward makes all of it again, until there is as much as was counted. Source:
 * torch/utils/checkpoint.py (early stop is its default). */
#include "modules.h"

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

static Tensor *checkpoint(Eager *g, const Layer *l, Tensor *const *in) {
    Frame *f = scratch_new(&g->scratch, 1, sizeof *f);
    if (!f) return module_call(g, l, in);
    *f = (Frame){.layer = l, .refs = 1, .autocast = g->autocast, .make_again = make_again};
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

/* One inside another is a part of the outer one. */
Tensor *module_checkpoint(Eager *g, const Layer *l, Tensor *const *in) {
    return g->checkpoint && g->grad && !g->frame ? checkpoint(g, l->child[0], in) : module_call(g, l->child[0], in);
}
