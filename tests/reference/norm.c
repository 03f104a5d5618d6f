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
    const Tensor *x = &r->in[0];
    Split s = split(x, r->attr->norm.axis);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels, k = stat_of(r, &s, i, istd->count);
        double xhat = (x->at[i] - value(mean, k, 0)) * istd->at[k];
        r->out[0].at[i] = xhat * value(&r->in[1], c, 1) + value(&r->in[2], c, 0);
    }
}

/* Fills mean (out[1]) and istd (out[2]), the latter with the biased variance; returns the values in each. */
static double statistics(Ref *r, bool finish) {
    const Tensor *x = &r->in[0];
    int64_t count = r->out[2].count;
    double *mean = r->out[1].at, *var = r->out[2].at, n = (double)x->count / (double)count;
    Split s = split(x, r->attr->norm.axis);
    for (int64_t k = 0; k < count; k++) var[k] = 0;
    for (int64_t k = 0; mean && k < count; k++) mean[k] = 0;
    for (int64_t i = 0; mean && i < x->count; i++) mean[stat_of(r, &s, i, count)] += x->at[i] / n;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t k = stat_of(r, &s, i, count);
        var[k] += pow(x->at[i] - value(&r->out[1], k, 0), 2) / n;
    }
    for (int64_t k = 0; finish && k < count; k++) var[k] = 1 / sqrt(var[k] + r->attr->norm.eps);
    return n;
}

void ref_norm(Ref *r) {
    statistics(r, true);
    normalise(r, &r->out[1], &r->out[2]);
}

void ref_batchnorm(Ref *r) {
    double n = statistics(r, false), m = r->attr->norm.momentum, *var = r->out[2].at;
    if (r->out[5].at) r->out[5].at[0] += 1;
    if (m < 0 && r->out[5].at) m = 1 / r->out[5].at[0];
    for (int64_t c = 0; c < r->out[1].count; c++) {
        if (r->out[3].at) {
            r->out[3].at[c] = (1 - m) * r->out[3].at[c] + m * r->out[1].at[c];
            r->out[4].at[c] = (1 - m) * r->out[4].at[c] + m * var[c] * n / (n - 1);
        }
        var[c] = 1 / sqrt(var[c] + r->attr->norm.eps);
    }
    normalise(r, &r->out[1], &r->out[2]);
}

void ref_batchnorm_eval(Ref *r) {
    const Tensor *x = &r->in[0];
    Split s = split(x, r->attr->norm.axis);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels;
        r->out[0].at[i] = (x->at[i] - r->in[3].at[c]) / sqrt(r->in[4].at[c] + r->attr->norm.eps) *
                          value(&r->in[1], c, 1) + value(&r->in[2], c, 0);
    }
}

void ref_batchnorm_dx(Ref *r) {
    const Tensor *dy = &r->in[0], *x = &r->in[1];
    Split s = split(x, r->attr->norm.axis);
    double n = (double)x->count / (double)s.channels;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels;
        double istd = r->in[4].at[c], xhat = (x->at[i] - r->in[3].at[c]) * istd;
        r->out[0].at[i] = value(&r->in[2], c, 1) * istd * (dy->at[i] - r->in[6].at[c] / n - xhat * r->in[5].at[c] / n);
    }
}

void ref_norm_dx(Ref *r) {
    const Tensor *dy = &r->in[0], *x = &r->in[1], *w = &r->in[2], *mean = &r->in[3], *istd = &r->in[4];
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
                r->out[0].at[i] = istd->at[k] * (g - means[k][0] - xhat * means[k][1]);
            }
        }
    free(means);
}

void ref_norm_dw(Ref *r) {
    const Tensor *dy = &r->in[0], *x = &r->in[1], *mean = &r->in[2], *istd = &r->in[3];
    Split s = split(x, r->attr->norm.axis);
    for (int k = 0; k < 2; k++)
        for (int64_t c = 0; r->out[k].at && c < r->out[k].count; c++) r->out[k].at[c] = 0;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t c = i / s.inner % s.channels, k = stat_of(r, &s, i, istd->count);
        r->out[0].at[c] += dy->at[i] * (x->at[i] - value(mean, k, 0)) * istd->at[k];
        if (r->out[1].at) r->out[1].at[c] += dy->at[i];
    }
}
