#include "reference.h"

/* Samples, steps, inputs, units */
typedef struct Sizes { int64_t n, t, i, h, gates, saved; const RnnAttr *attr; } Sizes;

static Sizes sizes_of(const Ref *r, const Tensor *x, const Tensor *y) {
    const RnnAttr *a = &r->attr->rnn;
    int time = a->batch_first ? 1 : 0;
    RnnInfo info = rnn_info(a->mode);
    return (Sizes){x->shape.dim[1 - time], x->shape.dim[time], x->shape.dim[2], y->shape.dim[2], info.gates, info.saved,
                   a};
}

/* The features of sample n at step t of a (N, T, F) or (T, N, F) tensor; t counts in the order in which steps are
 * taken. */
static double *row(const Sizes *s, double *at, int64_t features, int64_t n, int64_t t) {
    if (!at) return NULL;
    if (s->attr->reverse) t = s->t - 1 - t;
    return at + (s->attr->batch_first ? n * s->t + t : t * s->n + n) * features;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* b[k] + <row k of w, x>, n numbers each; b NULL, x NULL: zeros */
static double dot_row(const double *w, const double *b, const double *x, int64_t n, int64_t k) {
    double sum = b ? b[k] : 0;
    for (int64_t j = 0; x && j < n; j++) sum += w[k * n + j] * x[j];
    return sum;
}

/* Unit j of one sample and step; a[g], b[g]: gate g's sums from x and from h */
static void unit(const Sizes *s, const double *a, const double *b, double h, double *c, double *y, double *saved,
                 int64_t j) {
    double gate[5];
    switch (s->attr->mode) {
    case RNN_TANH: *y = tanh(a[0] + b[0]); return;
    case RNN_RELU: *y = fmax(0, a[0] + b[0]); return;
    case RNN_LSTM:
        for (int g = 0; g < 4; g++) gate[g] = g == 2 ? tanh(a[g] + b[g]) : sigmoid(a[g] + b[g]);
        gate[4] = *c = gate[1] * *c + gate[0] * gate[2];
        *y = gate[3] * tanh(*c);
        break;
    default:
        gate[0] = sigmoid(a[0] + b[0]);
        gate[1] = sigmoid(a[1] + b[1]);
        gate[3] = b[2];
        gate[2] = tanh(a[2] + gate[0] * b[2]);
        *y = (1 - gate[1]) * gate[2] + gate[1] * h;
    }
    for (int64_t g = 0; saved && g < s->saved; g++) saved[g * s->h + j] = gate[g];
}

void ref_rnn(Ref *r) {
    const Tensor *y = &r->rnn.y;
    const double *w_ih = r->rnn.w_ih.at, *w_hh = r->rnn.w_hh.at, *b_ih = r->rnn.b_ih.at, *b_hh = r->rnn.b_hh.at;
    Sizes s = sizes_of(r, &r->rnn.x, y);
    for (int64_t n = 0; n < s.n; n++) {
        for (int64_t j = 0; j < s.h; j++) r->scratch[j] = 0; /* c */
        for (int64_t t = 0; t < s.t; t++) {
            const double *x = row(&s, r->rnn.x.at, s.i, n, t), *h = t ? row(&s, y->at, s.h, n, t - 1) : NULL;
            for (int64_t j = 0; j < s.h; j++) {
                double a[4], b[4];
                for (int64_t g = 0; g < s.gates; g++) {
                    a[g] = dot_row(w_ih, b_ih, x, s.i, g * s.h + j);
                    b[g] = dot_row(w_hh, b_hh, h, s.h, g * s.h + j);
                }
                unit(&s, a, b, h ? h[j] : 0, &r->scratch[j], row(&s, y->at, s.h, n, t) + j,
                     row(&s, r->rnn.saved.at, s.saved * s.h, n, t), j);
            }
        }
    }
}

/* Fills da[g] and db[g], the gradients of unit j's sums. *dc becomes the gradient of c before this step; returns the
 * part of the gradient of h before this step that does not come through w_hh. */
static double unit_dx(const Sizes *s, double y, const double *v, double c_before, double y_before, double dh,
                      double *dc, double *da, double *db, int64_t j) {
    double through = 0, tc, d;
    const double *at = v ? v + j : NULL;
    int64_t h = s->h;
    switch (s->attr->mode) {
    case RNN_TANH: da[0] = dh * (1 - y * y); break;
    case RNN_RELU: da[0] = y > 0 ? dh : 0; break;
    case RNN_LSTM:
        tc = tanh(at[4 * h]);
        d = *dc + dh * at[3 * h] * (1 - tc * tc);
        da[0] = d * at[2 * h] * at[0] * (1 - at[0]);
        da[1] = d * c_before * at[h] * (1 - at[h]);
        da[2] = d * at[0] * (1 - at[2 * h] * at[2 * h]);
        da[3] = dh * tc * at[3 * h] * (1 - at[3 * h]);
        *dc = d * at[h];
        break;
    default:
        da[2] = dh * (1 - at[h]) * (1 - at[2 * h] * at[2 * h]);
        da[1] = dh * (y_before - at[2 * h]) * at[h] * (1 - at[h]);
        da[0] = da[2] * at[3 * h] * at[0] * (1 - at[0]);
        through = dh * at[h];
    }
    for (int64_t g = 0; g < s->gates; g++) db[g] = da[g];
    if (s->attr->mode == RNN_GRU) db[2] = da[2] * at[0];
    return through;
}

/* d: the gradient of sum k. to[j] += d w[k, j]; dw[k, j] += d from[j]; db[k] += d */
static void add_products(double d, int64_t k, int64_t n, const double *w, const double *from, double *to, double *dw,
                         double *db) {
    for (int64_t j = 0; j < n; j++) {
        if (to) to[j] += d * w[k * n + j];
        if (dw && from) dw[k * n + j] += d * from[j];
    }
    if (db) db[k] += d;
}

void ref_rnn_dx(Ref *r) {
    const double *w_ih = r->rnn_dx.w_ih.at, *w_hh = r->rnn_dx.w_hh.at;
    double *ys = r->rnn_dx.y.at, *all = r->rnn_dx.saved.at, *dw_ih = r->rnn_dx.dw_ih.at, *dw_hh = r->rnn_dx.dw_hh.at;
    double *db_ih = r->rnn_dx.db_ih.at, *db_hh = r->rnn_dx.db_hh.at;
    Sizes s = sizes_of(r, &r->rnn_dx.x, &r->rnn_dx.y);
    double *dh = r->scratch, *dc = dh + s.h, *next = dc + s.h;
    for (int k = 0; k < 5; k++)
        for (int64_t i = 0; i < r->out[k].count; i++) r->out[k].at[i] = 0;
    for (int64_t n = 0; n < s.n; n++) {
        for (int64_t j = 0; j < s.h; j++) dh[j] = dc[j] = 0;
        for (int64_t t = s.t - 1; t >= 0; t--) {
            const double *y = row(&s, ys, s.h, n, t), *before = t ? row(&s, ys, s.h, n, t - 1) : NULL;
            const double *saved = row(&s, all, s.saved * s.h, n, t), *x = row(&s, r->rnn_dx.x.at, s.i, n, t);
            const double *saved_before = t ? row(&s, all, s.saved * s.h, n, t - 1) : NULL;
            double *dx = row(&s, r->rnn_dx.dx.at, s.i, n, t);
            const double *dy = row(&s, r->rnn_dx.dy.at, s.h, n, t);
            for (int64_t j = 0; j < s.h; j++) next[j] = 0;
            for (int64_t j = 0; j < s.h; j++) {
                double da[4], db[4], c = s.saved == 5 && t ? saved_before[4 * s.h + j] : 0;
                double d = dh[j] + dy[j];
                next[j] += unit_dx(&s, y[j], saved, c, before ? before[j] : 0, d, &dc[j], da, db, j);
                for (int64_t g = 0; g < s.gates; g++) {
                    add_products(da[g], g * s.h + j, s.i, w_ih, x, dx, dw_ih, db_ih);
                    add_products(db[g], g * s.h + j, s.h, w_hh, before, next, dw_hh, db_hh);
                }
            }
            for (int64_t j = 0; j < s.h; j++) dh[j] = next[j];
        }
    }
}
