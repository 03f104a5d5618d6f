/* loss.h: what a loss does with its terms and its gradient's, once for every device. Shared with .cu files. */
#ifndef MT_LOSS_H
#define MT_LOSS_H

#include "op.h"

/* From the sum of all terms; count: of elements, or of samples that are not ignored, each by its class's weight. */
MT_FN float loss_value(const LossAttr *loss, double sum, double count) {
    return (float)((double)loss->scale * (loss->sum ? sum : sum / count));
}

/* What every gradient is multiplied by: the attribute's scale, 1 / count under "mean", the loss scale if there is
 * one. */
MT_FN float loss_slope_scale(const LossAttr *loss, const StepState *state, double count) {
    return loss->scale * (state ? state->loss_scale : 1.0f) / (float)(loss->sum ? 1.0 : count);
}

/* A row of cross_entropy's stats. The logarithm of class c's probability is x_c - max - log_sum. An ignored sample has
 * zeros, and so has x where it holds logarithms. */
typedef struct Softmax { float max, log_sum; } Softmax;

/* w: the classes' weights [C], NULL: all are 1 */
MT_FN float class_weight(const float *w, int64_t c) { return w ? w[c] : 1.0f; }

/* The probability that a class ought to have, times its weight: what every class gets, and what the sample's class gets
 * beside that */
MT_FN float loss_even(const LossAttr *loss, const float *w, int64_t c, int64_t classes) {
    return loss->smoothing / (float)classes * class_weight(w, c);
}
MT_FN float loss_sure(const LossAttr *loss, const float *w, int64_t target) {
    return (1.0f - loss->smoothing) * class_weight(w, target);
}
/* What a sample's term has beside that: the square of the logarithm of its sum of exponentials, which keeps it near 0
 * (PaLM's z-loss: Chowdhery et al. 2022) */
MT_FN float loss_square(const LossAttr *loss, const float *w, int64_t target, Softmax s) {
    float log_sum = s.max + s.log_sum;
    return loss->beta * class_weight(w, target) * log_sum * log_sum;
}
/* What multiplies softmax(x) in the gradient: the probabilities' sum over all classes, and the square's slope; all: of
 * the weights */
MT_FN float loss_mass(const LossAttr *loss, const float *w, int64_t target, double all, int64_t classes, Softmax s) {
    float sum = w ? loss_sure(loss, w, target) + loss->smoothing / (float)classes * (float)all : 1.0f;
    return loss->beta == 0 ? sum : sum + 2 * loss->beta * class_weight(w, target) * (s.max + s.log_sum);
}

#endif
