#include <math.h>

#include "reference/reference.h"

/* One update of a tensor. The weight is the fp32 master where there is one; w is then its copy. */

void ref_sgd(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *v = &r->out[1], *w = r->out[2].at ? &r->out[2] : &r->out[0];
    bool first = r->state && r->state->step == 1;
    if (r->state && r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] / (r->state ? r->state->loss_scale : 1);
        d += o->weight_decay * w->at[i];
        if (o->momentum != 0) {
            v->at[i] = first ? d : o->momentum * v->at[i] + (1 - (double)o->dampening) * d;
            d = o->nesterov ? d + o->momentum * v->at[i] : v->at[i];
        }
        w->at[i] -= o->lr * d;
        r->out[0].at[i] = w->at[i];
    }
}

void ref_adam(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *m = &r->out[1], *v = &r->out[2], *w = r->out[3].at ? &r->out[3] : &r->out[0];
    double t = r->state->step, beta1 = o->beta1, beta2 = o->beta2;
    if (r->state->overflow) return;
    for (int64_t i = 0; i < w->count; i++) {
        double d = r->in[0].at[i] / r->state->loss_scale;
        if (o->decoupled) w->at[i] -= o->lr * o->weight_decay * w->at[i];
        else d += o->weight_decay * w->at[i];
        m->at[i] = beta1 * m->at[i] + (1 - beta1) * d;
        v->at[i] = beta2 * v->at[i] + (1 - beta2) * d * d;
        double m_hat = m->at[i] / (1 - pow(beta1, t)), v_hat = v->at[i] / (1 - pow(beta2, t));
        w->at[i] -= o->lr * m_hat / (sqrt(v_hat) + o->eps);
        r->out[0].at[i] = w->at[i];
    }
}

/* ---- the step's numbers */

void ref_grad_check(Ref *r) {
    for (int64_t i = 0; i < r->in[0].count; i++)
        if (!isfinite(r->in[0].at[i])) r->state->overflow = 1;
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
