#include <math.h>
#include <stdlib.h>

#include "reference.h"

/* Elements as (outer, C, inner) in PyTorch's order. */
typedef struct Split { int64_t outer, channels, inner; } Split;

static Split split(const Tensor *x, int axis) {
    Split s = {1, x->shape.dim[axis], 1};
    for (int d = 0; d < x->shape.rank; d++) {
        if (d < axis) s.outer *= x->shape.dim[d];
        if (d > axis) s.inner *= x->shape.dim[d];
    }
    return s;
}

static double value(const Tensor *t, int64_t i, double absent) { return t->at ? t->at[i] : absent; }

/* The statistic that element i belongs to: its channel, or the group of its sample. `stats`: how many there are. */
static int64_t stat_of(const Ref *r, const Split *s, int64_t i, int64_t stats) {
    int64_t channel = i / s->inner % s->channels, groups = r->attr->norm.groups;
    if (groups == 0) return channel;
    int64_t sample = i / (s->outer * s->channels * s->inner / (stats / groups));
    return sample * groups + channel / (s->channels / groups);
}

/* Without a mean it is 0. */
static void normalise(const Ref *r, const Tensor *mean, const Tensor *istd) {
    const Tensor *x = &r->batchnorm.x;
    Split s = split(x, r->attr->norm.axis);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels, k = stat_of(r, &s, i, istd->count);
        double xhat = (x->at[i] - value(mean, k, 0)) * istd->at[k];
        r->batchnorm.y.at[i] = xhat * value(&r->batchnorm.w, c, 1) + value(&r->batchnorm.b, c, 0);
    }
}

/* Fills mean (out[1]) and istd (out[2]), the latter with the biased variance; returns the values in each. */
static double statistics(Ref *r, bool finish) {
    const Tensor *x = &r->batchnorm.x;
    int64_t count = r->batchnorm.istd.count;
    double *mean = r->batchnorm.mean.at, *var = r->batchnorm.istd.at, n = (double)x->count / (double)count;
    Split s = split(x, r->attr->norm.axis);
    for (int64_t k = 0; k < count; k++) var[k] = 0;
    for (int64_t k = 0; mean && k < count; k++) mean[k] = 0;
    for (int64_t i = 0; mean && i < x->count; i++) mean[stat_of(r, &s, i, count)] += x->at[i] / n;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t k = stat_of(r, &s, i, count);
        var[k] += pow(x->at[i] - value(&r->batchnorm.mean, k, 0), 2) / n;
    }
    for (int64_t k = 0; finish && k < count; k++) var[k] = 1 / sqrt(var[k] + r->attr->norm.eps);
    return n;
}

void ref_norm(Ref *r) {
    statistics(r, true);
    normalise(r, &r->norm.mean, &r->norm.istd);
}

void ref_batchnorm(Ref *r) {
    double n = statistics(r, false), m = r->attr->norm.momentum, *var = r->batchnorm.istd.at;
    if (r->batchnorm.batches.at) r->batchnorm.batches.at[0] += 1;
    if (m < 0 && r->batchnorm.batches.at) m = 1 / r->batchnorm.batches.at[0];
    for (int64_t c = 0; c < r->batchnorm.mean.count; c++) {
        if (r->batchnorm.running_mean.at) {
            r->batchnorm.running_mean.at[c] = (1 - m) * r->batchnorm.running_mean.at[c] + m * r->batchnorm.mean.at[c];
            r->batchnorm.running_var.at[c] = (1 - m) * r->batchnorm.running_var.at[c] + m * var[c] * n / (n - 1);
        }
        var[c] = 1 / sqrt(var[c] + r->attr->norm.eps);
    }
    normalise(r, &r->batchnorm.mean, &r->batchnorm.istd);
}

void ref_batchnorm_eval(Ref *r) {
    const Tensor *x = &r->batchnorm_eval.x;
    Split s = split(x, r->attr->norm.axis);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels;
        r->batchnorm_eval.y.at[i] =
            (x->at[i] - r->batchnorm_eval.mean.at[c]) / sqrt(r->batchnorm_eval.var.at[c] + r->attr->norm.eps) *
                          value(&r->batchnorm_eval.w, c, 1) + value(&r->batchnorm_eval.b, c, 0);
    }
}

void ref_batchnorm_again(Ref *r) {
    const Tensor *x = &r->batchnorm_again.x;
    Split s = split(x, r->attr->norm.axis);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels;
        r->batchnorm_again.y.at[i] = (x->at[i] - r->batchnorm_again.mean.at[c]) * r->batchnorm_again.istd.at[c] *
                                         value(&r->batchnorm_again.w, c, 1) + value(&r->batchnorm_again.b, c, 0);
    }
}

void ref_batchnorm_dx(Ref *r) {
    const Tensor *dy = &r->batchnorm_dx.dy, *x = &r->batchnorm_dx.x;
    Split s = split(x, r->attr->norm.axis);
    double n = (double)x->count / (double)s.channels;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels;
        double istd = r->batchnorm_dx.istd.at[c], xhat = (x->at[i] - r->batchnorm_dx.mean.at[c]) * istd;
        r->batchnorm_dx.dx.at[i] = value(&r->batchnorm_dx.w, c, 1) * istd *
            (dy->at[i] - r->batchnorm_dx.db.at[c] / n - xhat * r->batchnorm_dx.dw.at[c] / n);
    }
}

void ref_norm_dx(Ref *r) {
    const Tensor *dy = &r->norm_dx.dy, *x = &r->norm_dx.x, *w = &r->norm_dx.w, *mean = &r->norm_dx.mean;
    const Tensor *istd = &r->norm_dx.istd;
    Split s = split(x, r->attr->norm.axis);
    double n = (double)x->count / (double)istd->count;
    double (*means)[2] = calloc((size_t)istd->count, sizeof *means); /* by statistic: of g, of g xhat */
    if (!means) exit(2);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < x->count; i++) {
            int64_t k = stat_of(r, &s, i, istd->count);
            double g = dy->at[i] * value(w, i / s.inner % s.channels, 1);
            double xhat = (x->at[i] - value(mean, k, 0)) * istd->at[k];
            if (pass == 0) {
                means[k][0] += mean->at ? g / n : 0;
                means[k][1] += g * xhat / n;
            } else {
                r->norm_dx.dx.at[i] = istd->at[k] * (g - means[k][0] - xhat * means[k][1]);
            }
        }
    free(means);
}

void ref_norm_dw(Ref *r) {
    const Tensor *dy = &r->norm_dw.dy, *x = &r->norm_dw.x, *mean = &r->norm_dw.mean, *istd = &r->norm_dw.istd;
    Split s = split(x, r->attr->norm.axis);
    for (int k = 0; k < 2; k++)
        for (int64_t c = 0; r->out[k].at && c < r->out[k].count; c++) r->out[k].at[c] = 0;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels, k = stat_of(r, &s, i, istd->count);
        r->norm_dw.dw.at[c] += dy->at[i] * (x->at[i] - value(mean, k, 0)) * istd->at[k];
        if (r->norm_dw.db.at) r->norm_dw.db.at[c] += dy->at[i];
    }
}
