/* optim.h: optimizer.step() in PyTorch's three forms, and bitsandbytes' own: the states that it makes in the first step,
 * and the temporaries of each step. Sources: torch/optim, PyTorch 2.x; bitsandbytes/optim/optimizer.py, 0.50. */
#ifndef MT_OPTIM_EAGER_H
#define MT_OPTIM_EAGER_H

#include "aten.h"
#include "passes/settings.h"

typedef enum OptimForm { FORM_FOREACH, FORM_FORLOOP, FORM_FUSED } OptimForm;

enum { EAGER_STATES = 4 }; /* most tensors that are kept for a parameter */

typedef struct EagerOptim {
    const Optimizer *optimizer;
    OptimForm form;
    Tensor **params;            /* those with a gradient, in model.parameters()' order; lent */
    Tensor **given;             /* all that the constructor gets: the frozen ones, too */
    int n, n_given;
    Tensor *(*states)[EAGER_STATES]; /* by parameter: references */
    Tensor *maps[2];            /* bitsandbytes': what the codes of each state stand for, or NULL */
    int made;                   /* steps */
} EagerOptim;

/* Is it bitsandbytes', which has one form of its own? */
bool optim_is_bnb(const Optimizer *o);
/* NULL, or why it is not predicted. */
const char *optim_unknown(const Optimizer *o, OptimForm form);
/* The step from which on all are alike. */
int optim_settled(const Optimizer *o, OptimForm form);
/* What the constructor makes. */
void optim_open(Eager *g, EagerOptim *s);
void optim_run(Eager *g, EagerOptim *s);
/* A call reads and writes n tensors of each parameter's size. */
void optim_moves(Eager *g, const EagerOptim *s, int n);
/* torch.nn.utils.clip_grad_norm_ */
void optim_clip(Eager *g, const EagerOptim *s);

#endif
