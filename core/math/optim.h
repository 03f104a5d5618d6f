/* optim.h: PyTorch's update rules (torch.optim), once for every device, in fp32: what a step knows, and what becomes of
 * one number of a parameter. Shared with .cu files. */
#ifndef MT_OPTIM_H
#define MT_OPTIM_H

#include <math.h>

#include "base/base.h"

/* Each is an op: its row in ops.def names, as PyTorch does, the states that it may keep beside a parameter. What these
 * make of a number depends on no other one. */
#define OPTIM_RULES(X) X(sgd) X(adam) X(radam) X(adamax) X(rmsprop) X(adagrad) X(adadelta)
/* And all others: a number's row and column count, or the block with which it shares a scale */
#define OPTIM_OPS(X) OPTIM_RULES(X) X(adafactor) X(adam8bit)

enum { OPTIM_STATES = 3 }; /* most that a rule keeps */

/* PyTorch's options; 0: an optimizer without it */
typedef struct OptimRule {
    float lr, momentum, dampening, weight_decay;
    float beta1, beta2, eps;
    int nesterov, decoupled; /* decoupled: weight_decay is AdamW's, not L2 */
    float clip_norm;         /* most that the norm of all gradients may be; 0: anything */
    float alpha;
    int centered, amsgrad;
    float lr_decay, initial_accumulator_value;
    float beta2_decay, eps2, d;
    int block_size; /* numbers of a state of 8 bits that share a scale (quant8.h); 0: there are no such states */
} OptimRule;

/* The numbers that a step keeps on the device when it has an optimizer with a step count or a loss scale. */
typedef struct StepState {
    float loss_scale;
    int32_t good_steps; /* since the scale last changed */
    int32_t overflow;   /* this step's gradients hold an infinity or NaN */
    int32_t step;       /* updates made, t in Adam's formulas */
} StepState;

typedef struct ScalerAttr { float growth, backoff; int32_t interval; } ScalerAttr;

/* torch's GradScaler.update: called at the end of every step */
MT_FN void scaler_update(const ScalerAttr *scaler, StepState *state) {
    if (state->overflow) {
        state->loss_scale *= scaler->backoff;
        state->good_steps = 0;
    } else if (++state->good_steps == scaler->interval) {
        state->loss_scale *= scaler->growth;
        state->good_steps = 0;
    }
    state->overflow = 0;
}

/* ---- what is the same for all numbers of one update */

typedef struct OptimStep {
    OptimRule rule;
    float unscale;    /* what gradients are multiplied by: the loss scale is taken out, and their norm clipped */
    float rate;       /* the learning rate as it has decayed, with what makes up for the first moment's start at zero */
    float root_scale; /* the same for the root of the second moment */
    float rectified;  /* what RAdam's steps are multiplied by; 0: too few squares are known to divide by them */
    int t;            /* the number of this update: 1, 2, ... */
    int first;        /* the first update, which starts SGD's momentum buffer without dampening */
} OptimStep;

/* `unscale`, and what torch's clip_grad_norm_ adds to it. square: of the norm of all gradients before that. */
MT_FN float clip_factor(const OptimRule *o, float unscale, float square) {
    float norm = sqrtf(square) * unscale;
    return o->clip_norm > 0.0f && norm + 1e-6f > o->clip_norm ? unscale * (o->clip_norm / (norm + 1e-6f)) : unscale;
}

/* What a mean that forgets by `beta` has seen of all weights after t updates from zero; in double: 1 is near */
MT_FN double optim_seen(float beta, int t) { return beta != 0.0f ? 1.0 - pow((double)beta, (double)t) : 1.0; }

/* For a mean of squares that forgets by `beta`, of which t updates have seen that much (Liu et al. 2020) */
MT_FN double optim_rectified(float beta, int t, double seen) {
    const double all = 2.0 / (1.0 - (double)beta) - 1.0;
    const double length = all - 2.0 * t * (1.0 - seen) / seen;
    return length > 5.0 ? sqrt((length - 4.0) * (length - 2.0) * all / ((all - 4.0) * (all - 2.0) * length)) : 0.0;
}

/* state: NULL: neither counts nor a loss scale; lr: NULL: the rule's; square: NULL: nothing is clipped */
MT_FN OptimStep optim_step(const OptimRule *rule, const StepState *state, const float *lr, const float *square) {
    const int t = state ? state->step : 1;
    const double squares = optim_seen(rule->beta2, t);
    OptimStep s;
    s.rule = *rule;
    if (lr) s.rule.lr = *lr;
    s.unscale = state ? 1.0f / state->loss_scale : 1.0f;
    if (square) s.unscale = clip_factor(rule, s.unscale, *square);
    s.rate = (float)((double)s.rule.lr / optim_seen(rule->beta1, t) / (1.0 + (t - 1) * (double)rule->lr_decay));
    s.root_scale = (float)(1.0 / sqrt(squares));
    s.rectified = (float)optim_rectified(rule->beta2, t, squares);
    s.t = t;
    s.first = state && t == 1;
    return s;
}

/* ---- a number of a parameter with gradient g -> what it becomes */

/* own: its states, in the order of ops.def; the place of one that is not kept does not count */
typedef struct OptimNumber { float w, own[OPTIM_STATES]; } OptimNumber;
typedef OptimNumber OptimFn(const OptimStep *s, OptimNumber x, float g);

MT_FN OptimNumber sgd_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    g += o->weight_decay * x.w;
    if (o->momentum != 0.0f) {
        x.own[0] = s->first ? g : o->momentum * x.own[0] + (1.0f - o->dampening) * g;
        g = o->nesterov ? g + o->momentum * x.own[0] : x.own[0];
    }
    x.w -= s->rate * g;
    return x;
}

/* What Adam and RAdam begin with: the decay and both means */
MT_FN OptimNumber optim_moments(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    if (o->decoupled) x.w -= o->lr * o->weight_decay * x.w;
    else g += o->weight_decay * x.w;
    x.own[0] = o->beta1 * x.own[0] + (1.0f - o->beta1) * g;
    x.own[1] = o->beta2 * x.own[1] + (1.0f - o->beta2) * g * g;
    return x;
}

MT_FN OptimNumber adam_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    float square;
    x = optim_moments(s, x, g);
    square = x.own[1];
    if (o->amsgrad) square = x.own[2] = x.own[2] > square ? x.own[2] : square; /* a NaN stays */
    x.w -= s->rate * x.own[0] / (sqrtf(square) * s->root_scale + o->eps);
    return x;
}

MT_FN OptimNumber radam_value(const OptimStep *s, OptimNumber x, float g) {
    float root;
    x = optim_moments(s, x, g);
    root = (sqrtf(x.own[1]) + s->rule.eps) * s->root_scale;
    x.w -= s->rate * x.own[0] * (s->rectified > 0.0f ? s->rectified / root : 1.0f);
    return x;
}

/* The second state is the largest |g| of all, which shrinks by beta2 from step to step. */
MT_FN OptimNumber adamax_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    float before = o->beta2 * x.own[1];
    g += o->weight_decay * x.w;
    x.own[0] = o->beta1 * x.own[0] + (1.0f - o->beta1) * g;
    g = fabsf(g) + o->eps;
    x.own[1] = before > g ? before : g; /* a NaN stays */
    x.w -= s->rate * x.own[0] / x.own[1];
    return x;
}

/* centered: the root of the variance instead of the mean square; rounding below 0 gives NaN, as there */
MT_FN OptimNumber rmsprop_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    float square;
    g += o->weight_decay * x.w;
    square = x.own[0] = o->alpha * x.own[0] + (1.0f - o->alpha) * g * g;
    if (o->centered) {
        x.own[2] += (1.0f - o->alpha) * (g - x.own[2]);
        square -= x.own[2] * x.own[2];
    }
    g /= sqrtf(square) + o->eps;
    if (o->momentum != 0.0f) g = x.own[1] = o->momentum * x.own[1] + g;
    x.w -= s->rate * g;
    return x;
}

MT_FN OptimNumber adagrad_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    g += o->weight_decay * x.w;
    x.own[0] += g * g;
    x.w -= s->rate * g / (sqrtf(x.own[0]) + o->eps);
    return x;
}

/* alpha: PyTorch's rho */
MT_FN OptimNumber adadelta_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    g += o->weight_decay * x.w;
    x.own[0] = o->alpha * x.own[0] + (1.0f - o->alpha) * g * g;
    g *= sqrtf(x.own[1] + o->eps) / sqrtf(x.own[0] + o->eps);
    x.own[1] = o->alpha * x.own[1] + (1.0f - o->alpha) * g * g;
    x.w -= s->rate * g;
    return x;
}

/* ---- Adafactor: what a number becomes depends on its row, its column and the size of the whole */

/* A mean of squares after this step's mean is counted in */
MT_FN float adafactor_mean(const OptimStep *s, float old, float mean) {
    return old + (float)pow((double)s->t, (double)s->rule.beta2_decay) * (mean - old);
}

/* x, but at least `least`; a NaN stays */
MT_FN float adafactor_clamp(float x, float least) { return x < least ? least : x; }

/* What g is divided by, from the mean of squares that its row and column, or its own past, let expect. eps: eps1 */
MT_FN float adafactor_root(float square, float eps) { return sqrtf(adafactor_clamp(square, eps * eps)); }

/* How far the parameter goes along g / root; the arguments are means of squares over all its numbers. */
MT_FN float adafactor_rate(const OptimStep *s, double weight, double update) {
    const double rho = fmin((double)s->rule.lr, 1.0 / sqrt((double)s->t));
    return (float)(fmax((double)s->rule.eps2, sqrt(weight)) * rho / fmax(1.0, sqrt(update) / (double)s->rule.d));
}

#endif
