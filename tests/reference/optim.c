#include <math.h>

#include "reference.h"

/* One update of a tensor. The weight is the fp32 master where there is one; w is then its copy. */

/* What gradients are multiplied by: the loss scale is taken out, and their norm cut. */
static double gradient_factor(const Ref *r) {
    double unscale = r->state ? 1.0 / r->state->loss_scale : 1, most = r->attr->optim.rule.clip_norm;
    if (!r->in[3].at || most == 0) return unscale;
    return unscale * fmin(1, most / (sqrt(r->in[3].at[0]) * unscale + 1e-6));
}

static double learning_rate(const Ref *r) { return r->in[2].at ? r->in[2].at[0] : (double)r->attr->optim.rule.lr; }

void ref_sgd(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *v = &r->out[1], *w = r->out[2].at ? &r->out[2] : &r->out[0];
    bool first = r->state && r->state->step == 1;
    double factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor;
        d += o->weight_decay * w->at[i];
        if (o->momentum != 0) {
            v->at[i] = first ? d : o->momentum * v->at[i] + (1 - (double)o->dampening) * d;
            d = o->nesterov ? d + o->momentum * v->at[i] : v->at[i];
        }
        w->at[i] -= lr * d;
        r->out[0].at[i] = w->at[i];
    }
}

void ref_adam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->out[1], *v = &r->out[2], *most = &r->out[3];
    const Tensor *w = r->out[4].at ? &r->out[4] : &r->out[0];
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor;
        if (o->decoupled) w->at[i] -= lr * o->weight_decay * w->at[i];
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        if (o->amsgrad) most->at[i] = fmax(most->at[i], v->at[i]);
        double m_hat = m->at[i] / (1 - pow(beta1, t));
        double v_hat = (o->amsgrad ? most->at[i] : v->at[i]) / (1 - pow(beta2, t));
        w->at[i] -= lr * m_hat / (sqrt(v_hat) + o->eps);
        r->out[0].at[i] = w->at[i];
    }
}

/* In PyTorch's order: the root and eps first, then the bias. */
void ref_radam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->out[1], *v = &r->out[2], *w = r->out[3].at ? &r->out[3] : &r->out[0];
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2, factor = gradient_factor(r), lr = learning_rate(r);
    double seen = 1 - pow(beta2, t), most = 2 / (1 - beta2) - 1, rho = most - 2 * t * pow(beta2, t) / seen;
    double rect = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor;
        if (o->decoupled) w->at[i] *= 1 - lr * o->weight_decay;
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        w->at[i] -= lr * m->at[i] / (1 - pow(beta1, t)) *
                    (rho > 5 ? rect * sqrt(seen) / (sqrt(v->at[i]) + o->eps) : 1);
        r->out[0].at[i] = w->at[i];
    }
}

void ref_rmsprop(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *square = &r->out[1], *velocity = &r->out[2], *mean = &r->out[3];
    const Tensor *w = r->out[4].at ? &r->out[4] : &r->out[0];
    double alpha = o->alpha, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor + o->weight_decay * w->at[i], variance;
        variance = square->at[i] = alpha * square->at[i] + (1 - alpha) * d * d;
        if (o->centered) {
            mean->at[i] = alpha * mean->at[i] + (1 - alpha) * d;
            variance -= mean->at[i] * mean->at[i];
        }
        d /= sqrt(variance) + o->eps;
        if (o->momentum > 0) d = velocity->at[i] = o->momentum * velocity->at[i] + d;
        w->at[i] -= lr * d;
        r->out[0].at[i] = w->at[i];
    }
}

void ref_adagrad(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *sum = &r->out[1], *w = r->out[2].at ? &r->out[2] : &r->out[0];
    double factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    if (r->state) lr /= 1 + (r->state->step - 1) * (double)o->lr_decay;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor + o->weight_decay * w->at[i];
        sum->at[i] += d * d;
        w->at[i] -= lr * d / (sqrt(sum->at[i]) + o->eps);
        r->out[0].at[i] = w->at[i];
    }
}

void ref_adamax(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->out[1], *u = &r->out[2], *w = r->out[3].at ? &r->out[3] : &r->out[0];
    double t = r->state->step, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor + o->weight_decay * w->at[i];
        m->at[i] = o->beta1 * m->at[i] + (1 - (double)o->beta1) * d;
        u->at[i] = fmax(o->beta2 * u->at[i], fabs(d) + o->eps);
        w->at[i] -= lr / (1 - pow(o->beta1, t)) * m->at[i] / u->at[i];
        r->out[0].at[i] = w->at[i];
    }
}

void ref_adadelta(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *square = &r->out[1], *moved = &r->out[2], *w = r->out[3].at ? &r->out[3] : &r->out[0];
    double rho = o->alpha, factor = gradient_factor(r), lr = learning_rate(r);
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] * factor + o->weight_decay * w->at[i];
        square->at[i] = rho * square->at[i] + (1 - rho) * d * d;
        d *= sqrt(moved->at[i] + o->eps) / sqrt(square->at[i] + o->eps);
        moved->at[i] = rho * moved->at[i] + (1 - rho) * d * d;
        w->at[i] -= lr * d;
        r->out[0].at[i] = w->at[i];
    }
}

/* ---- the step's numbers */

void ref_grad_check(Ref *r) {
    for (int64_t i = 0; i < r->in[0].count; i++)
        if (!isfinite(r->in[0].at[i])) r->state->overflow = 1;
}

void ref_grad_square(Ref *r) {
    if (r->attr->square.first) r->out[0].at[0] = 0;
    for (int64_t i = 0; i < r->in[0].count; i++) r->out[0].at[0] += r->in[0].at[i] * r->in[0].at[i];
}

void ref_step_begin(Ref *r) {
    if (!r->state->overflow) r->state->step += 1;
}

void ref_scale_update(Ref *r) {
    const ScalerAttr *s = &r->attr->scaler;
    r->state->good_steps = r->state->overflow ? 0 : r->state->good_steps + 1;
    if (r->state->overflow) r->state->loss_scale *= s->backoff;
    if (r->state->good_steps == s->interval) {
        r->state->loss_scale *= s->growth;
        r->state->good_steps = 0;
    }
    r->state->overflow = 0;
}
