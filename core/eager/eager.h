/* eager.h: the training step that eager PyTorch makes of a network: the trace of its allocations. */
#ifndef MT_EAGER_H
#define MT_EAGER_H

#include "conv_workspace.h"
#include "memory/trace.h"
#include "network/network.h"
#include "passes/settings.h"
#include "work.h"

typedef struct EagerStep {
    Trace trace;    /* of all steps */
    int steps;
    Work work;      /* of the last one */
    ConvCalls convs; /* of all steps: where the workspaces of convolutions come from */
    bool estimated; /* sizes were estimated that cuDNN alone knows */
} EagerStep;

/* How many steps show all that later ones do: a step is like the one before it once states and gradients are there, so
 * that the third is looked at; RAdam's for-loop does more in later steps. */
int eager_steps(const Settings *s);

/* The steps of PyTorch's usual loop, from model.to(device) on, each of them
 *
 *     x, y = batch(); optimizer.zero_grad(); output = model(x); loss = criterion(output, y); loss.backward();
 *     optimizer.step()
 *
 * x, y, output and loss live until they are bound again. Fills in a zeroed step, whose trace has a mark "step 1", ...
 * before each. `which`: what is taken for sizes that cuDNN alone knows. ERR_SCRIPT: a layer or setting that is not predicted. */
int eager_trace(const Network *net, const Settings *s, const Card *card, int steps, EstimateKind which, EagerStep *out, Err *e);

#endif
