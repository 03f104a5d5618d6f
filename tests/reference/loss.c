#include <math.h>
#include <stdlib.h>

#include "ref_conv.h"
#include "reference.h"

static double reduce(const Ref *r, double sum, double count) {
    return r->attr->loss.scale * (r->attr->loss.sum ? sum : sum / count);
}

/* d loss / d sum, times the loss scale */
static double outer(const Ref *r, double count) {
    return reduce(r, 1, count) * (r->state ? r->state->loss_scale : 1);
}

/* ---- cross entropy, x (N, C), t (N), w [C]: -sum_c q_c log softmax(x)_c, where q_c = w_c ((1 - smoothing) onehot(t) +
 *      smoothing / C), over the samples that are not ignored; their mean counts each w_t times; and beta w_t log(sum_c
 *      exp(x_c))^2. NLLLoss: x_c itself is the logarithm */

void ref_softmax_stats(const double *x, int64_t classes, double *stats) {
    double sum = 0;
    stats[0] = -INFINITY;
    for (int64_t c = 0; c < classes; c++) stats[0] = fmax(stats[0], x[c]);
    for (int64_t c = 0; c < classes; c++) sum += exp(x[c] - stats[0]);
    stats[1] = log(sum);
}

static double weight(const double *w, int64_t c) { return w ? w[c] : 1; }

static double wanted(const Ref *r, const double *w, int64_t n, int64_t c) {
    double smoothing = r->attr->loss.smoothing, even = smoothing / (double)r->cross_entropy.x.shape.dim[1];
    return weight(w, c) * (((int64_t)r->cross_entropy.t.at[n] == c ? 1 - smoothing : 0) + even);
}

static bool ignored(const Ref *r, int64_t n) { return (int32_t)r->cross_entropy.t.at[n] == r->attr->loss.ignore_index; }

static double samples(const Ref *r, const double *w) {
    double count = 0;
    for (int64_t n = 0; n < r->cross_entropy.t.count; n++)
        if (!ignored(r, n)) count += weight(w, (int64_t)r->cross_entropy.t.at[n]);
    return count;
}

/* The log-probability of class c is x_c - stats[0] - stats[1]. */
static void stats_of(const Ref *r, int64_t n, double *stats) {
    int64_t classes = r->cross_entropy.x.shape.dim[1];
    stats[0] = stats[1] = 0;
    if (!r->attr->loss.log && !ignored(r, n)) ref_softmax_stats(&r->cross_entropy.x.at[n * classes], classes, stats);
}

static double square(const Ref *r, const double *w, int64_t n) {
    return r->attr->loss.beta * weight(w, (int64_t)r->cross_entropy.t.at[n]);
}

void ref_cross_entropy(Ref *r) {
    const Tensor *x = &r->cross_entropy.x;
    const double *w = r->cross_entropy.w.at;
    double sum = 0, stats[2];
    for (int64_t n = 0; n < x->shape.dim[0]; n++) {
        stats_of(r, n, stats);
        for (int k = 0; r->cross_entropy.stats.at && k < 2; k++) r->cross_entropy.stats.at[2 * n + k] = stats[k];
        for (int64_t c = 0; c < x->shape.dim[1] && !ignored(r, n); c++)
            sum -= wanted(r, w, n, c) * (x->at[n * x->shape.dim[1] + c] - stats[0] - stats[1]);
        if (!ignored(r, n)) sum += square(r, w, n) * pow(stats[0] + stats[1], 2);
    }
    r->cross_entropy.loss.at[0] = reduce(r, sum, samples(r, w));
}

/* Computes the stats from x; it does not need the saved ones. */
void ref_cross_entropy_dx(Ref *r) {
    const Tensor *x = &r->cross_entropy_dx.x;
    const double *w = r->cross_entropy_dx.w.at;
    double scale = outer(r, samples(r, w)), stats[2];
    for (int64_t n = 0; n < x->shape.dim[0]; n++) {
        double mass = 0;
        stats_of(r, n, stats);
        for (int64_t c = 0; c < x->shape.dim[1]; c++) mass += wanted(r, w, n, c);
        if (!ignored(r, n)) mass += 2 * square(r, w, n) * (stats[0] + stats[1]);
        for (int64_t c = 0; c < x->shape.dim[1]; c++) {
            int64_t i = n * x->shape.dim[1] + c;
            double p = r->attr->loss.log ? 0 : exp(x->at[i] - stats[0] - stats[1]);
            r->cross_entropy_dx.dx.at[i] = ignored(r, n) ? 0 : scale * (mass * p - wanted(r, w, n, c));
        }
    }
}

/* ---- of x w^T + b */

/* The logits, and a cross entropy of them, as an op and as its gradient, dx in the logits' place */
static Ref of_logits(const Ref *r) {
    const Tensor *x = &r->linear_cross_entropy.x, *w = &r->linear_cross_entropy.w, *t = &r->linear_cross_entropy.t;
    const int64_t classes = w->shape.dim[0];
    Tensor y = {shape2(t->count, classes), t->count * classes, calloc((size_t)(t->count * classes), sizeof(double))};
    if (!y.at) abort();
    ref_linear(y.at, x->at, w->at, r->linear_cross_entropy.b.at, t->count, w->shape.dim[1], classes);
    Ref loss = {.attr = r->attr, .state = r->state};
    loss.cross_entropy.x = y;
    loss.cross_entropy.t = *t;
    return loss;
}

void ref_linear_cross_entropy(Ref *r) {
    Ref loss = of_logits(r);
    loss.cross_entropy.w = r->linear_cross_entropy.weight;
    loss.cross_entropy.loss = r->linear_cross_entropy.loss;
    ref_cross_entropy(&loss);
    free(loss.cross_entropy.x.at);
}

void ref_linear_cross_entropy_dx(Ref *r) {
    const Tensor *x = &r->linear_cross_entropy_dx.x, *w = &r->linear_cross_entropy_dx.w;
    Tensor *dx = &r->linear_cross_entropy_dx.dx, *dw = &r->linear_cross_entropy_dx.dw, *db = &r->linear_cross_entropy_dx.db;
    const int64_t n = r->linear_cross_entropy_dx.t.count, classes = w->shape.dim[0], inputs = w->shape.dim[1];
    Ref loss = of_logits(r), slopes = loss;
    double *all = calloc((size_t)(classes * inputs), sizeof *all); /* dw, where only db is wanted */
    if (!all) abort();
    loss.cross_entropy.w = r->linear_cross_entropy_dx.weight;
    loss.cross_entropy.loss = r->linear_cross_entropy_dx.loss;
    if (loss.cross_entropy.loss.at) ref_cross_entropy(&loss);
    slopes.cross_entropy_dx.w = r->linear_cross_entropy_dx.weight;
    slopes.cross_entropy_dx.dx = slopes.cross_entropy_dx.x;
    ref_cross_entropy_dx(&slopes);
    const double *dy = slopes.cross_entropy_dx.dx.at;
    if (dx->at) ref_linear_dx(dx->at, dy, w->at, n, inputs, classes);
    if (dw->at || db->at) ref_linear_dw(dw->at ? dw->at : all, db->at, x->at, dy, n, inputs, classes);
    free(loss.cross_entropy.x.at);
    free(all);
}

/* ---- losses of single elements: the formulas of PyTorch's documentation */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* b: the number that the loss has, or w's for the place in the last dimension */
static double term(const LossAttr *a, double x, double t, double b) {
    double d = fabs(x - t);
    switch (a->f) {
    case LOSS_MSE: return d * d;
    case LOSS_L1: return d;
    case LOSS_SMOOTH_L1: return d < b ? d * d / (2 * b) : d - b / 2;
    case LOSS_HUBER: return d <= b ? d * d / 2 : b * (d - b / 2);
    case LOSS_BCE: return -(t * fmax(log(x), -100) + (1 - t) * fmax(log(1 - x), -100));
    case LOSS_IDENTITY: return x;
    case LOSS_BCE_LOGITS: return -(b * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x)));
    }
    return NAN;
}

static double slope(const LossAttr *a, double x, double t, double b) {
    double sign = x > t ? 1 : x < t ? -1 : 0, d = fabs(x - t);
    switch (a->f) {
    case LOSS_MSE: return 2 * (x - t);
    case LOSS_L1: return sign;
    case LOSS_SMOOTH_L1: return d < b ? (x - t) / b : sign;
    case LOSS_HUBER: return d <= b ? x - t : b * sign;
    case LOSS_BCE: return (1 - t) / (1 - x) - t / x;
    case LOSS_IDENTITY: return 1;
    case LOSS_BCE_LOGITS: return sigmoid(x) * (1 - t + b * t) - b * t;
    }
    return NAN;
}

static double number(const LossAttr *a, const Tensor *w, int64_t i) { return w->at ? w->at[i % w->count] : a->beta; }

static double target(const Ref *r, int64_t i) { return r->element_loss.t.at ? r->element_loss.t.at[i] : 0; }

void ref_element_loss(Ref *r) {
    double sum = 0;
    for (int64_t i = 0; i < r->element_loss.x.count; i++) 
        sum += term(&r->attr->loss, r->element_loss.x.at[i], target(r, i),
                    number(&r->attr->loss, &r->element_loss.w, i));
    r->element_loss.loss.at[0] = reduce(r, sum, (double)r->element_loss.x.count);
}

void ref_element_loss_dx(Ref *r) {
    for (int64_t i = 0; i < r->element_loss_dx.x.count; i++)
        r->element_loss_dx.dx.at[i] = outer(r, (double)r->element_loss_dx.x.count) *
            slope(&r->attr->loss, r->element_loss_dx.x.at[i], target(r, i),
                  number(&r->attr->loss, &r->element_loss_dx.w, i));
}
