/* loss.h: what losses do with their terms, and with the terms of their gradients, for every device. Shared with .cu
 * files. */
#ifndef MT_LOSS_H
#define MT_LOSS_H

#include "op.h"

/* The loss. sum: of all terms; count: the number of elements, or the sum of the class weights of the samples that are
 * not ignored. */
MT_FN float loss_value(const LossAttr *loss, double sum, double count) {
    return (float)((double)loss->scale * (loss->sum ? sum : sum / count));
}

/* The factor of every element of the gradient: the attribute's scale, 1 / count under reduction "mean", and the loss
 * scale if there is one (state not NULL). */
MT_FN float loss_slope_scale(const LossAttr *loss, const StepState *state, double count) {
    return loss->scale * (state ? state->loss_scale : 1.0f) / (float)(loss->sum ? 1.0 : count);
}

/* How many of linear_cross_entropy's rows of logits are there at a time: a multiple of 8, so that on a GPU each part
 * starts at a 16-byte word, and at most all of them. */
MT_FN int64_t loss_chunk(const LossAttr *loss, int64_t rows) {
    const int64_t each = ((rows + loss->chunks - 1) / loss->chunks + 7) / 8 * 8;
    return each < rows ? each : rows;
}

/* What loss_term has beside x and t, for element i: w's number [classes] for its place in the last dimension; w NULL: one
 * number for all */
MT_FN float loss_beta(const LossAttr *loss, const float *w, int64_t classes, int64_t i) {
    return w ? w[i % classes] : loss->beta;
}

/* All classes, of which x has `own`; and the first of these. */
MT_FN int64_t loss_classes(const LossAttr *loss, int64_t own) { return loss->world ? own * loss->world : own; }
MT_FN int64_t loss_first(const LossAttr *loss, int64_t own) { return own * loss->rank; }

/* A sample's row of cross_entropy's stats: the log-probability of class c is x_c - max - log_sum. Both are 0 for an
 * ignored sample, and where x holds log-probabilities. */
typedef struct Softmax { float max, log_sum; } Softmax;

/* What a rank that has some of the classes tells the others of a sample: of its logits the largest, the sum of exp(x - max),
 * the sum; and the logit of the sample's own class, 0 where it is another rank's. All are 0 for an ignored sample. */
typedef struct SoftmaxPart { float max, sum, own, all; } SoftmaxPart;

/* One sample's parts, of `world` ranks (at least one), each `stride` from the one before -> what is known of all its logits. *stats: its row. */
MT_FN SoftmaxPart softmax_join(const SoftmaxPart *part, int64_t stride, int world, Softmax *stats) {
    SoftmaxPart s = {-INFINITY, 0, 0, 0};
    double sum = 0;
    for (int r = 0; r < world; r++) {
        s.max = part[r * stride].max > s.max ? part[r * stride].max : s.max;
        s.own += part[r * stride].own;
        s.all += part[r * stride].all;
    }
    int r = 0;
    do sum += (double)part[r * stride].sum * exp((double)(part[r * stride].max - s.max)); while (++r < world);
    s.sum = (float)sum;
    stats->max = s.max;
    stats->log_sum = (float)log(sum);
    return s;
}

/* w: the weights of the classes [C]; NULL: all are 1 */
MT_FN float class_weight(const float *w, int64_t c) { return w ? w[c] : 1.0f; }

/* A class's target probability times its weight: loss_even is what every class gets by label smoothing, loss_sure what
 * the sample's own class gets in addition. */
MT_FN float loss_even(const LossAttr *loss, const float *w, int64_t c, int64_t classes) {
    return loss->smoothing / (float)classes * class_weight(w, c);
}
MT_FN float loss_sure(const LossAttr *loss, const float *w, int64_t target) {
    return (1.0f - loss->smoothing) * class_weight(w, target);
}
/* A sample's z-loss, which is added to its term: beta times its class weight times (log sum exp x)^2. It keeps that
 * logarithm near 0 (PaLM: Chowdhery et al. 2022). */
MT_FN float loss_square(const LossAttr *loss, const float *w, int64_t target, Softmax s) {
    float log_sum = s.max + s.log_sum;
    return loss->beta * class_weight(w, target) * log_sum * log_sum;
}
/* The term of a sample, whose classes have no weights, by what softmax_join gives */
MT_FN double loss_joined(const LossAttr *loss, SoftmaxPart x, int64_t classes, Softmax s) {
    double term = (double)(1.0f - loss->smoothing) * (double)(s.log_sum - (x.own - s.max));
    if (loss->smoothing != 0)
        term -= (double)(loss->smoothing / (float)classes) * ((double)x.all - (double)classes * (double)(s.max + s.log_sum));
    return loss->beta == 0 ? term : term + (double)loss_square(loss, NULL, 0, s);
}
/* The factor of softmax(x) in the gradient: the sum of loss_even and loss_sure over all classes, and the derivative of
 * the z-loss. all: the sum of all weights. */
MT_FN float loss_mass(const LossAttr *loss, const float *w, int64_t target, double all, int64_t classes, Softmax s) {
    float sum = w ? loss_sure(loss, w, target) + loss->smoothing / (float)classes * (float)all : 1.0f;
    return loss->beta == 0 ? sum : sum + 2 * loss->beta * class_weight(w, target) * (s.max + s.log_sum);
}

#endif
