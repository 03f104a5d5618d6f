#include <math.h>

#include "reference.h"

static const double pi = 3.14159265358979323846;
/* Klambauer et al. 2017, as PyTorch has them */
static const double selu_scale = 1.0507009873554804934193349852946, selu_alpha = 1.6732632423543772848170429916717;

static double value(const ActAttr *a, double x) {
    const double slope = a->slope;
    switch (a->act) {
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_LEAKY: return x > 0 ? x : slope * x;
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_TANH: return tanh(x);
    case ACT_GELU: return x * 0.5 * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH: return x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3))));
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_ELU: return x > 0 ? x : slope * expm1(x);
    case ACT_CELU: return fmax(x, 0) + fmin(slope * expm1(x / slope), 0);
    case ACT_SOFTPLUS: return log1p(exp(slope * x)) / slope;
    case ACT_HARDSWISH: return x * fmin(fmax(x + 3, 0), 6) / 6;
    case ACT_RELU6: return fmin(fmax(x, 0), 6);
    case ACT_CLAMP:
    case ACT_HARDTANH: return fmin(fmax(x, slope), a->high);
    case ACT_HARDSIGMOID: return fmin(fmax(x + 3, 0), 6) / 6;
    case ACT_MISH: return x * tanh(log1p(exp(x)));
    case ACT_LOGSIGMOID: return -log1p(exp(-x));
    case ACT_SOFTSIGN: return x / (1 + fabs(x));
    case ACT_SELU: return selu_scale * (fmax(x, 0) + fmin(selu_alpha * expm1(x), 0));
    case ACT_ABS: return x < 0 ? -x : x;
    case ACT_EXP: return exp(x);
    case ACT_SCALE: return slope * x + a->high;
    case ACT_LOG: return log(x);
    case ACT_SQRT: return sqrt(x);
    case ACT_RSQRT: return pow(x, -0.5);
    case ACT_RECIPROCAL: return 1 / x;
    case ACT_POW: return pow(x, slope);
    case ACT_SIN: return sin(x);
    case ACT_COS: return cos(x);
    default: return x;
    }
}

/* f'(x), from x where the op saves x and from y = f(x) where it saves y */
static double derivative(const ActAttr *a, double s) {
    const double slope = a->slope;
    double inner, t;
    switch (a->act) {
    case ACT_RELU: return s > 0;
    case ACT_LEAKY: return s > 0 ? 1 : slope;
    case ACT_SIGMOID: return s * (1 - s);
    case ACT_TANH: return 1 - s * s;
    case ACT_GELU: return 0.5 * (1 + erf(s / sqrt(2))) + s * exp(-s * s / 2) / sqrt(2 * pi);
    case ACT_GELU_TANH:
        inner = sqrt(2 / pi) * (s + 0.044715 * pow(s, 3));
        t = tanh(inner);
        return 0.5 * (1 + t) + 0.5 * s * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * s * s);
    case ACT_SILU: return (1 + exp(-s) + s * exp(-s)) / pow(1 + exp(-s), 2);
    case ACT_ELU: return s > 0 ? 1 : slope * exp(s);
    case ACT_CELU: return s > 0 ? 1 : exp(s / slope);
    case ACT_SOFTPLUS: return 1 / (1 + exp(-slope * s));
    case ACT_HARDSWISH: return s <= -3 ? 0 : s >= 3 ? 1 : (2 * s + 3) / 6;
    case ACT_RELU6: return s > 0 && s < 6;
    case ACT_CLAMP: return s >= slope && s <= a->high;
    case ACT_HARDTANH: return s > slope && s < a->high;
    case ACT_HARDSIGMOID: return s > 0 && s < 1 ? 1 / 6.0 : 0;
    case ACT_MISH:
        t = tanh(log1p(exp(s)));
        return t + s * (1 - t * t) / (1 + exp(-s));
    case ACT_LOGSIGMOID: return 1 - exp(s);
    case ACT_SOFTSIGN: return pow(1 + fabs(s), -2);
    case ACT_SELU: return selu_scale * (s > 0 ? 1 : selu_alpha * exp(s));
    case ACT_ABS: return s > 0 ? 1 : s < 0 ? -1 : 0;
    case ACT_EXP: return s;
    case ACT_SCALE: return slope;
    case ACT_LOG: return 1 / s;
    case ACT_SQRT: return 1 / (2 * s);
    case ACT_RSQRT: return -pow(s, 3) / 2;
    case ACT_RECIPROCAL: return -pow(s, 2);
    case ACT_POW: return slope * pow(s, slope - 1);
    case ACT_SIN: return cos(s);
    case ACT_COS: return -sin(s);
    default: return 1;
    }
}

void ref_act(Ref *r) {
    for (int64_t i = 0; i < r->act.y.count; i++)
        r->act.y.at[i] = value(&r->attr->act, r->act.x.at[i]);
}

void ref_act_dx(Ref *r) {
    for (int64_t i = 0; i < r->act_dx.dx.count; i++)
        r->act_dx.dx.at[i] = r->act_dx.dy.at[i] * derivative(&r->attr->act, r->act_dx.s.at[i]);
}

/* f(a) b: what a type would make of f(a) is left to the tolerance. */
void ref_mul(Ref *r) {
    for (int64_t i = 0; i < r->mul.y.count; i++) r->mul.y.at[i] = value(&r->attr->mul.f, r->mul.a.at[i]) * r->mul.b.at[i];
}

void ref_mul_da(Ref *r) {
    for (int64_t i = 0; i < r->mul_da.da.count; i++)
        r->mul_da.da.at[i] = r->mul_da.b.at[i] * r->mul_da.dy.at[i] * derivative(&r->attr->mul.f, r->mul_da.a.at[i]);
}

/* The weight for element i: that of its channel (dimension 1), or the only one. */
static int64_t slope_of(const Tensor *x, const Tensor *w, int64_t i) {
    int64_t inner = 1;
    for (int d = 2; d < x->shape.rank; d++) inner *= x->shape.dim[d];
    return w->count == 1 ? 0 : i / inner % w->count;
}

void ref_prelu(Ref *r) {
    const Tensor *x = &r->prelu.x, *w = &r->prelu.w;
    for (int64_t i = 0; i < x->count; i++)
        r->prelu.y.at[i] = x->at[i] < 0 ? w->at[slope_of(x, w, i)] * x->at[i] : x->at[i];
}

void ref_prelu_dx(Ref *r) {
    const Tensor *x = &r->prelu_dx.x, *w = &r->prelu_dx.w;
    for (int64_t i = 0; i < x->count; i++)
        r->prelu_dx.dx.at[i] = x->at[i] > 0 ? r->prelu_dx.dy.at[i] : w->at[slope_of(x, w, i)] * r->prelu_dx.dy.at[i];
}

void ref_prelu_dw(Ref *r) {
    const Tensor *x = &r->prelu_dw.x, *dw = &r->prelu_dw.dw;
    for (int64_t i = 0; i < dw->count; i++) dw->at[i] = 0;
    for (int64_t i = 0; i < x->count; i++)
        dw->at[slope_of(x, dw, i)] += x->at[i] > 0 ? 0 : r->prelu_dw.dy.at[i] * x->at[i];
}

/* Element i of y: element i of a, which is element *at of x, and as far behind it as half the axis reaches b. */
static int64_t glu_half(const Ref *r, const Tensor *half, int64_t i, int64_t *at) {
    int64_t run = 1;
    for (int d = r->attr->axis.axis; d < half->shape.rank; d++) run *= half->shape.dim[d];
    *at = i / run * 2 * run + i % run;
    return run;
}

void ref_glu(Ref *r) {
    for (int64_t i = 0, at; i < r->glu.y.count; i++) {
        const int64_t run = glu_half(r, &r->glu.y, i, &at);
        r->glu.y.at[i] = r->glu.x.at[at] / (1 + exp(-r->glu.x.at[at + run]));
    }
}

void ref_glu_dx(Ref *r) {
    for (int64_t i = 0, at; i < r->glu_dx.dy.count; i++) {
        const int64_t run = glu_half(r, &r->glu_dx.dy, i, &at);
        const double a = r->glu_dx.x.at[at], gate = 1 / (1 + exp(-r->glu_dx.x.at[at + run])), dy = r->glu_dx.dy.at[i];
        r->glu_dx.dx.at[at] = dy * gate;
        r->glu_dx.dx.at[at + run] = dy * a * gate * (1 - gate);
    }
}
