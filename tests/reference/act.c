#include <math.h>

#include "reference/reference.h"

static const double pi = 3.14159265358979323846;

static double value(ActFn f, double x, double slope) {
    switch (f) {
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_LEAKY: return x > 0 ? x : slope * x;
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_TANH: return tanh(x);
    case ACT_GELU: return x * 0.5 * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH: return x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3))));
    default: return x;
    }
}

/* f'(x), from x where the op saves x and from y = f(x) where it saves y */
static double derivative(ActFn f, double s, double slope) {
    double inner, t;
    switch (f) {
    case ACT_RELU: return s > 0;
    case ACT_LEAKY: return s > 0 ? 1 : slope;
    case ACT_SIGMOID: return s * (1 - s);
    case ACT_TANH: return 1 - s * s;
    case ACT_GELU: return 0.5 * (1 + erf(s / sqrt(2))) + s * exp(-s * s / 2) / sqrt(2 * pi);
    case ACT_GELU_TANH:
        inner = sqrt(2 / pi) * (s + 0.044715 * pow(s, 3));
        t = tanh(inner);
        return 0.5 * (1 + t) + 0.5 * s * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * s * s);
    default: return 1;
    }
}

void ref_act(Ref *r) {
    for (int64_t i = 0; i < r->out[0].count; i++)
        r->out[0].at[i] = value(r->attr->act.act, r->in[0].at[i], r->attr->act.slope);
}

void ref_act_dx(Ref *r) {
    for (int64_t i = 0; i < r->out[0].count; i++)
        r->out[0].at[i] = r->in[0].at[i] * derivative(r->attr->act.act, r->in[1].at[i], r->attr->act.slope);
}
