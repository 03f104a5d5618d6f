#include <math.h>

#include "reference.h"

/* One update of a tensor. The rule works on the master, if there is one; w is then a copy of it. */

/* The factor of gradients: it undoes the loss scale and clips their norm. */
static double gradient_factor(const Ref *r) {
    double unscale = r->state ? 1.0 / r->state->loss_scale : 1, most = r->attr->optim.rule.clip_norm;
    if (!r->update.square.at || most == 0) return unscale;
    return unscale * fmin(1, most / (sqrt(r->update.square.at[0]) * unscale + 1e-6));
}

static double learning_rate(const Ref *r) {
    return r->update.lr.at ? r->update.lr.at[0] : (double)r->attr->optim.rule.lr;
}

void ref_sgd(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *v = &r->sgd.momentum_buffer;
    const Tensor *w = r->sgd.master.at ? &r->sgd.master : &r->sgd.w;
    bool first = r->state && r->state->step == 1;
    double factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->sgd.g.at[i] * factor;
        d += o->weight_decay * w->at[i];
        if (o->momentum != 0) {
            v->at[i] = first ? d : o->momentum * v->at[i] + (1 - (double)o->dampening) * d;
            d = o->nesterov ? d + o->momentum * v->at[i] : v->at[i];
        }
        w->at[i] -= lr * d;
        r->sgd.w.at[i] = w->at[i];
    }
}

/* REF_FORMULA by hand */
void ref_formula(Ref *r) {
    const Tensor *m = &r->formula.first, *v = &r->formula.second;
    const Tensor *w = r->formula.master.at ? &r->formula.master : &r->formula.w;
    const double factor = gradient_factor(r), lr = learning_rate(r), bias = 1 - pow(0.9, r->state->step);
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        const double d = r->formula.g.at[i] * factor;
        m->at[i] = 0.9 * m->at[i] + 0.1 * d;
        v->at[i] = 0.9 * v->at[i] + 0.1 * d * d;
        w->at[i] -= lr * m->at[i] / (sqrt(v->at[i] / bias) + 0.001);
        r->formula.w.at[i] = w->at[i];
    }
}

void ref_adam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->adam.exp_avg, *v = &r->adam.exp_avg_sq, *most = &r->adam.max_exp_avg_sq;
    const Tensor *w = r->adam.master.at ? &r->adam.master : &r->adam.w;
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->adam.g.at[i] * factor;
        if (o->decoupled) w->at[i] -= lr * o->weight_decay * w->at[i];
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        if (o->amsgrad) most->at[i] = fmax(most->at[i], v->at[i]);
        double m_hat = m->at[i] / (1 - pow(beta1, t));
        double v_hat = (o->amsgrad ? most->at[i] : v->at[i]) / (1 - pow(beta2, t));
        w->at[i] -= lr * m_hat / (sqrt(v_hat) + o->eps);
        r->adam.w.at[i] = w->at[i];
    }
}

/* In PyTorch's order: the root and eps first, then the bias. */
void ref_radam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->radam.exp_avg, *v = &r->radam.exp_avg_sq;
    const Tensor *w = r->radam.master.at ? &r->radam.master : &r->radam.w;
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2, factor = gradient_factor(r), lr = learning_rate(r);
    double seen = 1 - pow(beta2, t), most = 2 / (1 - beta2) - 1, rho = most - 2 * t * pow(beta2, t) / seen;
    double rect = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->radam.g.at[i] * factor;
        if (o->decoupled) w->at[i] *= 1 - lr * o->weight_decay;
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        w->at[i] -= lr * m->at[i] / (1 - pow(beta1, t)) *
                    (rho > 5 ? rect * sqrt(seen) / (sqrt(v->at[i]) + o->eps) : 1);
        r->radam.w.at[i] = w->at[i];
    }
}

/* In PyTorch's order: a product that is kept, and two additions to the parameter. */
void ref_nadam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->nadam.exp_avg, *v = &r->nadam.exp_avg_sq;
    const Tensor *w = r->nadam.master.at ? &r->nadam.master : &r->nadam.w;
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2, factor = gradient_factor(r), lr = learning_rate(r);
    double product = 1, mu = 0, next = beta1 * (1 - 0.5 * pow(0.96, (t + 1) * o->momentum_decay));
    for (int i = 1; i <= t; i++) product *= mu = beta1 * (1 - 0.5 * pow(0.96, i * (double)o->momentum_decay));
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->nadam.g.at[i] * factor;
        if (o->decoupled) w->at[i] *= 1 - lr * o->weight_decay;
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        double root = sqrt(v->at[i] / (1 - pow(beta2, t))) + o->eps;
        w->at[i] -= lr * (1 - mu) / (1 - product) * d / root;
        w->at[i] -= lr * next / (1 - product * next) * m->at[i] / root;
        r->nadam.w.at[i] = w->at[i];
    }
}

void ref_rmsprop(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *square = &r->rmsprop.square_avg, *velocity = &r->rmsprop.momentum_buffer;
    const Tensor *mean = &r->rmsprop.grad_avg;
    const Tensor *w = r->rmsprop.master.at ? &r->rmsprop.master : &r->rmsprop.w;
    double alpha = o->alpha, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->rmsprop.g.at[i] * factor + o->weight_decay * w->at[i], variance;
        variance = square->at[i] = alpha * square->at[i] + (1 - alpha) * d * d;
        if (o->centered) {
            mean->at[i] = alpha * mean->at[i] + (1 - alpha) * d;
            variance -= mean->at[i] * mean->at[i];
        }
        d /= sqrt(variance) + o->eps;
        if (o->momentum > 0) d = velocity->at[i] = o->momentum * velocity->at[i] + d;
        w->at[i] -= lr * d;
        r->rmsprop.w.at[i] = w->at[i];
    }
}

void ref_adagrad(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *sum = &r->adagrad.sum;
    const Tensor *w = r->adagrad.master.at ? &r->adagrad.master : &r->adagrad.w;
    double factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    if (r->state) lr /= 1 + (r->state->step - 1) * (double)o->lr_decay;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->adagrad.g.at[i] * factor + o->weight_decay * w->at[i];
        sum->at[i] += d * d;
        w->at[i] -= lr * d / (sqrt(sum->at[i]) + o->eps);
        r->adagrad.w.at[i] = w->at[i];
    }
}

void ref_lion(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->lion.exp_avg;
    const Tensor *w = r->lion.master.at ? &r->lion.master : &r->lion.w;
    double factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->lion.g.at[i] * factor, along = o->beta1 * m->at[i] + (1 - (double)o->beta1) * d;
        w->at[i] -= lr * o->weight_decay * w->at[i];
        w->at[i] -= lr * ((along > 0) - (along < 0));
        m->at[i] = o->beta2 * m->at[i] + (1 - (double)o->beta2) * d;
        r->lion.w.at[i] = w->at[i];
    }
}

void ref_adamax(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->adamax.exp_avg, *u = &r->adamax.exp_inf;
    const Tensor *w = r->adamax.master.at ? &r->adamax.master : &r->adamax.w;
    double t = r->state->step, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->adamax.g.at[i] * factor + o->weight_decay * w->at[i];
        m->at[i] = o->beta1 * m->at[i] + (1 - (double)o->beta1) * d;
        u->at[i] = fmax(o->beta2 * u->at[i], fabs(d) + o->eps);
        w->at[i] -= lr / (1 - pow(o->beta1, t)) * m->at[i] / u->at[i];
        r->adamax.w.at[i] = w->at[i];
    }
}

void ref_adadelta(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *square = &r->adadelta.square_avg, *moved = &r->adadelta.acc_delta;
    const Tensor *w = r->adadelta.master.at ? &r->adadelta.master : &r->adadelta.w;
    double rho = o->alpha, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->adadelta.g.at[i] * factor + o->weight_decay * w->at[i];
        square->at[i] = rho * square->at[i] + (1 - rho) * d * d;
        d *= sqrt(moved->at[i] + o->eps) / sqrt(square->at[i] + o->eps);
        moved->at[i] = rho * moved->at[i] + (1 - rho) * d * d;
        w->at[i] -= lr * d;
        r->adadelta.w.at[i] = w->at[i];
    }
}

/* ---- the step's numbers */

void ref_grad_check(Ref *r) {
    for (int64_t i = 0; i < r->grad_check.g.count; i++)
        if (!isfinite(r->grad_check.g.at[i])) r->state->overflow = 1;
}

void ref_grad_square(Ref *r) {
    if (r->attr->square.first) r->grad_square.square.at[0] = 0;
    const Tensor *g = &r->grad_square.g;
    for (int64_t i = 0; i < g->count; i++) r->grad_square.square.at[0] += (double)r->attr->square.share * g->at[i] * g->at[i];
}

void ref_step_begin(Ref *r) {
    if (!r->state->overflow) r->state->step += 1;
}

void ref_scale_update(Ref *r) {
    const ScalerAttr *s = &r->attr->scaler;
    r->state->good_steps = r->state->overflow ? 0 : r->state->good_steps + 1;
    if (r->state->overflow) r->state->loss_scale = (float)(r->state->loss_scale * s->backoff);
    if (r->state->good_steps == s->interval) {
        const float grown = (float)(r->state->loss_scale * s->growth);
        if (isfinite(grown)) r->state->loss_scale = grown;
        r->state->good_steps = 0;
    }
    r->state->overflow = 0;
}
