/* modules.h: PyTorch's modules, as the layers of a network stand for them: what each forward function calls, and which
 * of its variables hold what while it runs. One function for each family of layers.def, in modules_<what>.c. */
#ifndef MT_MODULES_H
#define MT_MODULES_H

#include "aten.h"
#include "network/layer.h"

/* Runs a layer. */
Tensor *module_call(Eager *g, const Layer *l, Tensor *const *in);
/* torch.utils.checkpoint.checkpoint_sequential(l, round(sqrt(len(l))), x) of an nn.Sequential. */
Tensor *module_call_segments(Eager *g, const Layer *l, Tensor *x);
/* What model.to(device) does after it has moved the parameters of a layer. */
void module_moved(Eager *g, const Layer *l);
/* The layer's k-th parameter, lent; NULL: it has fewer. */
Tensor *module_param(const Eager *g, const Layer *l, int k);
/* The loss of an output, times its factor. */
Tensor *module_loss(Eager *g, const Layer *l, Tensor *x, Tensor *target);

/* Takes over t, which lives until the forward function that runs returns. */
void tensor_keep(Eager *g, Tensor *t);

/* The children of a container, one after the other; after_first, where there is one, gets the first one's output. */
Tensor *graph_run(Eager *g, const Layer *l, Tensor *const *in, void (*after_first)(Eager *g, const Layer *l, const Tensor *y));
/* (N, T, heads width) as (N, heads, T, width): view().transpose(1, 2); and transpose(1, 2).contiguous().view() */
Tensor *heads_apart(Eager *g, Tensor *x, int64_t heads);
Tensor *heads_together(Eager *g, Tensor *x);
Tensor *rotate_halves(Eager *g, Tensor *x); /* by the angles of the model */
/* Has a ScaledDotProductAttention neither a window that leaves out a key nor a cap? */
bool attention_is_plain(const Layer *l);

/* modules_tensor.c: makes the buffers of a network's masks, which model.to(device) moves. several: on several ranks */
void mask_buffers(Eager *g, const Network *net, bool several);

/* modules_llama.c. llama_graph: what a container is whose option `listing` names it, or NULL. llama_models:
 * model[i] is the LlamaModel whose last parameter is the network's i-th; llama_buffers: what model.to() moves after it.
 * llama_check: ERR_SCRIPT where a layer is not what its listing says. */
enum { LLAMA_BUFFERS = 2 };
Module *llama_graph(const Layer *l);
Tensor *llama_rms_norm(Eager *g, Tensor *x, Tensor *w);
void llama_models(const Layer *root, const Layer **model);
void llama_buffers(Eager *g, const Layer *model);
int llama_check(const Layer *root, Err *e);
/* modules_lora.c: an adapter and the layer that it belongs to. lora_check: as llama_check, of one layer. lora_asks: the
 * embedding whose output asks for a gradient where blocks are checkpointed and all but adapters is frozen: transformers'
 * enable_input_require_grads, which PEFT calls then. NULL: there is none. */
const Layer *lora_asks(const Layer *root);
Tensor *lora_linear(Eager *g, const Layer *l, Tensor *const *in);
int lora_check(const Layer *l, Err *e);

/* bitsandbytes.c: is it a linear layer with weights of so many bits? bnb_derived: the numbers of what belongs to a quantised weight,
 * in the order in which it is moved before the codes; returns how many. (Scales of 8 bits are moved after the codes.) */
enum { BNB_DERIVED = 5 };
bool bnb_is(const Layer *l, int bits);
Tensor *bnb_dequantized(Eager *g, const Layer *l); /* its weight as numbers */
int bnb_derived(const Network *n, int weight, int order[BNB_DERIVED]);

/* in[n_in] are lent; the result is the caller's. */
#define LAYER(name, role, functions, which, spec) Module module_##functions;
#include "network/layers.def"
#undef LAYER

#endif
