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

/* in[n_in] are lent; the result is the caller's. */
#define LAYER(name, role, functions, which, spec) Module module_##functions;
#include "network/layers.def"
#undef LAYER

#endif
