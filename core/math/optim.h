/* optim.h: PyTorch's update rules (torch.optim), once for every device, in fp32: what is the same for all numbers in a
 * step, and how one number of a parameter changes. Shared with .cu files. */
#ifndef MT_OPTIM_H
#define MT_OPTIM_H

#include <float.h>
#include <math.h>

#include "base/base.h"

enum { OPTIM_STATES = 3 }; /* the most that a rule keeps */

/* PyTorch's options; 0 where the optimizer lacks one */
typedef struct OptimRule {
    float lr, momentum, dampening, weight_decay;
    float beta1, beta2, eps;
    int nesterov, decoupled; /* nesterov: also NAdam; decoupled: weight_decay is AdamW's, not an L2 penalty */
    float clip_norm;         /* the largest norm of all gradients; 0: no bound */
    float alpha;
    int centered, amsgrad;
    float lr_decay, initial_accumulator_value;
    float momentum_decay;
    float beta2_decay, eps2, d;
    int block_size; /* numbers of an 8-bit state that share a scale (quant8.h); 0: states are not of 8 bits */
} OptimRule;

/* What a program with a step count or a loss scale keeps on the device. */
typedef struct StepState {
    float loss_scale;
    int32_t good_steps; /* steps without overflow since the scale last changed */
    int32_t overflow;   /* 1: a gradient of this step has an infinity or NaN */
    int32_t step;       /* the number of updates, t in Adam's formulas; at least 1 when the first one runs */
} StepState;

/* Both factors are 1 where the scale is fixed. */
typedef struct ScalerAttr { double growth, backoff; int64_t interval; } ScalerAttr;

/* torch.amp.GradScaler.update, at the end of every step; ATen's _amp_update_scale_ multiplies in double, and leaves a
 * scale that would grow to infinity as it is */
MT_FN void scaler_update(const ScalerAttr *scaler, StepState *state) {
    if (state->overflow) {
        state->loss_scale = (float)((double)state->loss_scale * scaler->backoff);
        state->good_steps = 0;
    } else if (++state->good_steps == scaler->interval) {
        const double grown = (double)state->loss_scale * scaler->growth;
        if (grown <= (double)FLT_MAX) state->loss_scale = (float)grown;
        state->good_steps = 0;
    }
    state->overflow = 0;
}

/* ---- what is the same for all numbers of one update */

typedef struct OptimStep {
    OptimRule rule;
    float unscale;    /* multiplies gradients: it undoes the loss scale and clips the norm */
    float rate;       /* the decayed learning rate, with the bias correction of the first moment */
    float root_scale; /* the bias correction of the second moment's root */
    float rectified;  /* multiplies RAdam's steps; 0: too few squares have been seen to divide by them */
    float along, ahead; /* NAdam's rates of the gradient and of the first moment */
    float taken;      /* Adafactor's weight of this step's mean squares in their moving average */
    int t;            /* the number of this update: 1, 2, ... */
    int first;        /* 1: the first update, in which SGD's momentum buffer starts without dampening */
} OptimStep;

/* `unscale` times the factor of torch.nn.utils.clip_grad_norm_. square: the sum of squares of all gradients, which
 * still have the loss scale */
MT_FN float clip_factor(const OptimRule *o, float unscale, float square) {
    float norm = sqrtf(square) * unscale;
    return o->clip_norm > 0.0f && norm + 1e-6f > o->clip_norm ? unscale * (o->clip_norm / (norm + 1e-6f)) : unscale;
}

/* x^t, t >= 0, by squaring: two products for each bit of t. Every block of a launch computes it, so it must be short, and products
 * alone have the same bits on every device, which pow has not. For |x| <= 1 it is off by 4e-17 / (1 - |x|) at most, at any t. */
MT_FN double optim_power(double x, int t) {
    double power = 1.0;
    for (; t > 0; t >>= 1, x *= x)
        if (t & 1) power *= x;
    return power;
}

/* The sum of the weights of an exponential moving average after t updates from zero: 1 - beta^t, in double because
 * beta^t can be near 1; 1 for beta = 0 */
MT_FN double optim_seen(float beta, int t) { return 1.0 - optim_power((double)beta, t); }

/* RAdam's rectification (Liu et al. 2020) after t updates of the moving average of squares. seen: optim_seen of
 * these */
MT_FN double optim_rectified(float beta, int t, double seen) {
    const double all = 2.0 / (1.0 - (double)beta) - 1.0;
    const double length = all - 2.0 * t * (1.0 - seen) / seen;
    return length > 5.0 ? sqrt((length - 4.0) * (length - 2.0) * all / ((all - 4.0) * (all - 2.0) * length)) : 0.0;
}

/* NAdam's momentum in update t (Dozat 2016); fading: 0.96^(t momentum_decay) */
MT_FN double optim_nesterov(float beta, double fading) { return (double)beta * (1.0 - 0.5 * fading); }

/* Sets NAdam's rates. The product of all momenta so far ends where what is left of it cannot change a float. */
MT_FN void optim_nadam(OptimStep *s) {
    const OptimRule *o = &s->rule;
    const double fades = pow(0.96, (double)o->momentum_decay), fading = optim_power(fades, s->t);
    const double now = optim_nesterov(o->beta1, fading), next = optim_nesterov(o->beta1, fading * fades);
    double product = 1.0, faded = fades;
    for (int t = 1; t <= s->t && product > 1e-12; t++, faded *= fades) product *= optim_nesterov(o->beta1, faded);
    s->along = (float)((double)o->lr * (1.0 - now) / (1.0 - product));
    s->ahead = (float)((double)o->lr * next / (1.0 - product * next));
}

/* state: NULL: no step count and no loss scale; lr: NULL: the rule's; square: clip_factor's, NULL: nothing is
 * clipped */
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
    s.along = s.ahead = 0.0f;
    s.taken = rule->beta2_decay != 0.0f ? (float)pow((double)t, (double)rule->beta2_decay) : 1.0f;
    if (rule->nesterov) optim_nadam(&s);
    return s;
}

/* ---- a number of a parameter, its states and its gradient g -> its new value and states */

/* own: the states in the order of optimizers.def; one that is not kept may have any value */
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

/* The weight decay and both moments of Adam, RAdam and NAdam */
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

/* PyTorch adds the weight decay to the gradient that is followed directly, too. */
MT_FN OptimNumber nadam_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    const float decayed = o->decoupled ? g : g + o->weight_decay * x.w;
    x = optim_moments(s, x, g);
    x.w -= (s->along * decayed + s->ahead * x.own[0]) / (sqrtf(x.own[1]) * s->root_scale + o->eps);
    return x;
}

/* The second state is the largest |g| so far; before each step it is multiplied by beta2. */
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

/* Lion (Chen et al. 2023), as bitsandbytes.optim.Lion: every number moves by the rate, along the sign of a mix of the first moment
 * and the gradient, which the moment then remembers by beta2. The weight decay is decoupled. */
MT_FN OptimNumber lion_value(const OptimStep *s, OptimNumber x, float g) {
    const OptimRule *o = &s->rule;
    const float along = o->beta1 * x.own[0] + (1.0f - o->beta1) * g;
    x.w -= o->lr * o->weight_decay * x.w;
    x.w -= along > 0.0f ? o->lr : along < 0.0f ? -o->lr : along; /* 0 stays, and so does a NaN */
    x.own[0] = o->beta2 * x.own[0] + (1.0f - o->beta2) * g;
    return x;
}

/* centered: the root of the variance instead of the mean square; as in PyTorch, rounding below 0 gives NaN */
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

/* ---- Adafactor: a number depends on its row, its column and the parameter's root mean square */

/* The moving average of squares `old` after it has taken in this step's mean */
MT_FN float adafactor_mean(const OptimStep *s, float old, float mean) {
    return old + s->taken * (mean - old);
}

/* x, but at least `least`; a NaN stays */
MT_FN float adafactor_clamp(float x, float least) { return x < least ? least : x; }

/* What g is divided by. square: the estimate of g^2 from its row and column, or from its own past; eps: eps1 */
MT_FN float adafactor_root(float square, float eps) { return sqrtf(adafactor_clamp(square, eps * eps)); }

/* The factor of g / root in this step. weight, update: the mean squares of the parameter's numbers and of g / root */
MT_FN float adafactor_rate(const OptimStep *s, double weight, double update) {
    const double rho = fmin((double)s->rule.lr, 1.0 / sqrt((double)s->t));
    return (float)(fmax((double)s->rule.eps2, sqrt(weight)) * rho / fmax(1.0, sqrt(update) / (double)s->rule.d));
}

#endif
