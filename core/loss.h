/* loss.h: what a loss does with its terms and its gradient's, once for every device. Shared with .cu files. */
#ifndef MT_LOSS_H
#define MT_LOSS_H

#include "op.h"

/* From the sum of all terms; count: of samples, or elements, that are not ignored. */
MT_FN float loss_value(const LossAttr *loss, double sum, double count) {
    return (float)((double)loss->scale * (loss->sum ? sum : sum / count));
}

/* What every gradient is multiplied by: the attribute's scale, 1 / count under "mean", the loss scale if there is
 * one. */
MT_FN float loss_slope_scale(const LossAttr *loss, const StepState *state, double count) {
    return loss->scale * (state ? state->loss_scale : 1.0f) / (float)(loss->sum ? 1.0 : count);
}

/* The probability that a class ought to have; target: it is the sample's. */
MT_FN float loss_wanted(const LossAttr *loss, bool target, int64_t classes) {
    return (target ? 1.0f - loss->smoothing : 0.0f) + loss->smoothing / (float)classes;
}

#endif
