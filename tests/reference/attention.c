#include "reference.h"

/* A head of a sample: head h of sample n */
typedef struct Head {
    const AttentionAttr *attr;
    int64_t samples, steps, keys, width, n, h;
    const double *positions; /* (samples, steps) or NULL */
} Head;

/* The tensor that contains q (0), k (1) or v (2): its own, or if that is absent, the one before it. */
static int holder(const Tensor *qkv, int which) {
    return which == 0 || qkv[which].at ? which : holder(qkv, which - 1);
}

static Head head_of(const Ref *r, const Tensor *qkv, const Tensor *y, const Tensor *positions) {
    const AttentionAttr *a = &r->attr->attention;
    int time = a->batch_first ? 1 : 0;
    int64_t keys = qkv[holder(qkv, 1)].shape.dim[time];
    return (Head){a, y->shape.dim[1 - time], y->shape.dim[time], keys, y->shape.dim[2] / a->heads, 0, 0,
                  positions->at};
}

/* x (N, T, F) or (T, N, F): the features of a head in step t; `heads` heads of other parts come before those of its
 * part */
static double *features(const Head *h, const Tensor *x, int64_t t, int64_t heads, int64_t head) {
    int64_t row = h->attr->batch_first ? h->n * x->shape.dim[1] + t : t * x->shape.dim[1] + h->n;
    return x->at + row * x->shape.dim[2] + (heads + head) * h->width;
}

static double *part(const Head *h, const Tensor *qkv, int64_t t, int which) {
    const int64_t heads[] = {h->attr->heads, h->attr->kv_heads, h->attr->kv_heads};
    int64_t before = 0;
    for (int k = holder(qkv, which); k < which; k++) before += heads[k];
    return features(h, &qkv[holder(qkv, which)], t, before, h->h * heads[which] / h->attr->heads);
}

static double *mixed(const Head *h, const Tensor *y, int64_t t) { return features(h, y, t, 0, h->h); }

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += a[j] * b[j];
    return sum;
}

static double *lse_of(const Head *h, double *lse, int64_t t) {
    return &lse[(h->n * h->attr->heads + h->h) * h->steps + t];
}

static int64_t seen(const Head *h, int64_t t) { return h->attr->causal && t < h->keys ? t + 1 : h->keys; }

/* Back from t to where its sequence begins, as far as the window reaches */
static int64_t first(const Head *h, int64_t t) {
    const double *of = h->positions ? h->positions + h->n * h->steps : NULL;
    int64_t begin = t;
    if (!of && !h->attr->window) return 0;
    while (begin > 0 && (!of || of[begin] > 0) && (!h->attr->window || t - begin + 1 < h->attr->window)) begin--;
    return begin;
}

/* Of the bias (N or 1, heads or 1, T, S) or its gradient; NULL: there is none. */
static double *bias_of(const Head *h, const Tensor *bias, int64_t t, int64_t u) {
    const int64_t *d = bias->shape.dim;
    if (!bias->at) return NULL;
    return &bias->at[(((d[0] > 1 ? h->n : 0) * d[1] + (d[1] > 1 ? h->h : 0)) * d[2] + t) * d[3] + u];
}

/* The score before the bias; *slope: the derivative of the cap */
static double capped(const Head *h, const Tensor *qkv, int64_t t, int64_t u, double *slope) {
    const double cap = (double)h->attr->cap;
    const double plain = dot(part(h, qkv, t, 0), part(h, qkv, u, 1), h->width) * (double)h->attr->scale;
    const double tanh_of = cap > 0 ? tanh(plain / cap) : 0;
    *slope = 1 - tanh_of * tanh_of;
    return cap > 0 ? cap * tanh_of : plain;
}

static double score(const Head *h, const Tensor *qkv, const Tensor *bias, int64_t t, int64_t u, double *slope) {
    const double *more = bias_of(h, bias, t, u);
    return capped(h, qkv, t, u, slope) + (more ? *more : 0);
}

/* What dropout multiplies the probability of (t, u) by; rows of draws are padded to multiples of four. */
static double kept(const Head *h, const Ref *r, const Tensor *calls, int64_t t, int64_t u) {
    if (h->attr->p == 0) return 1;
    int64_t i = ((h->n * h->attr->heads + h->h) * h->steps + t) * ((h->keys + 3) / 4 * 4) + u;
    return (double)dropout_factor(h->attr->p, r->seed, h->attr->id, (uint32_t)calls->at[0], (uint64_t)i);
}

static void forward_row(const Head *h, Ref *r, int64_t t) {
    double *p = r->scratch, sum = 0, slope, *y = mixed(h, &r->attention.y, t);
    const Tensor *qkv = &r->attention.q;
    for (int64_t u = first(h, t); u < seen(h, t); u++)
        sum += p[u] = exp(score(h, qkv, &r->attention.bias, t, u, &slope));
    for (int64_t j = 0; j < h->width; j++) {
        y[j] = 0;
        for (int64_t u = first(h, t); u < seen(h, t); u++)
            y[j] += p[u] / sum * kept(h, r, &r->attention.calls, t, u) * part(h, qkv, u, 2)[j];
    }
    if (r->attention.lse.at) *lse_of(h, r->attention.lse.at, t) = log(sum);
}

void ref_attention(Ref *r) {
    Head h = head_of(r, &r->attention.q, &r->attention.y, &r->attention.positions);
    for (h.n = 0; h.n < h.samples; h.n++)
        for (h.h = 0; h.h < h.attr->heads; h.h++)
            for (int64_t t = 0; t < h.steps; t++) forward_row(&h, r, t);
}

/* softmax's gradient: ds = p (dp - sum of p dp) */
static void back_row(const Head *h, Ref *r, int64_t t) {
    const Tensor *qkv = &r->attention_dx.q, *dqkv = &r->attention_dx.dq;
    double *dy = mixed(h, &r->attention_dx.dy, t), lse = *lse_of(h, r->attention_dx.lse.at, t);
    double *p = r->scratch, *dp = p + h->keys, inner = dot(dy, mixed(h, &r->attention_dx.y, t), h->width);
    for (int64_t u = first(h, t); u < seen(h, t); u++) {
        double slope, *dbias = bias_of(h, &r->attention_dx.dbias, t, u);
        double keep = kept(h, r, &r->attention_dx.calls, t, u);
        p[u] = exp(score(h, qkv, &r->attention_dx.bias, t, u, &slope) - lse);
        dp[u] = keep * dot(dy, part(h, qkv, u, 2), h->width);
        double ds = p[u] * (dp[u] - inner);
        if (dbias) *dbias += ds;
        ds *= slope * (double)h->attr->scale;
        for (int64_t j = 0; j < h->width; j++) {
            part(h, dqkv, t, 0)[j] += ds * part(h, qkv, u, 1)[j];
            part(h, dqkv, u, 1)[j] += ds * part(h, qkv, t, 0)[j];
            part(h, dqkv, u, 2)[j] += p[u] * keep * dy[j];
        }
    }
}

void ref_attention_dx(Ref *r) {
    Head h = head_of(r, &r->attention_dx.q, &r->attention_dx.y, &r->attention_dx.positions);
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < r->out[k].count; i++) r->out[k].at[i] = 0;
    for (h.n = 0; h.n < h.samples; h.n++)
        for (h.h = 0; h.h < h.attr->heads; h.h++)
            for (int64_t t = 0; t < h.steps; t++) back_row(&h, r, t);
}
