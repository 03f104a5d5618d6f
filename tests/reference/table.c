#include "reference.h"

static void zero(Tensor *t) {
    for (int64_t i = 0; i < t->count; i++) t->at[i] = 0;
}

void ref_embedding(Ref *r) {
    int64_t dim = r->in[1].shape.dim[1];
    for (int64_t i = 0; i < r->in[0].count; i++)
        for (int64_t d = 0; d < dim; d++) r->out[0].at[i * dim + d] = r->in[1].at[(int64_t)r->in[0].at[i] * dim + d];
}

void ref_embedding_dw(Ref *r) {
    int64_t dim = r->out[0].shape.dim[1];
    zero(&r->out[0]);
    for (int64_t i = 0; i < r->in[1].count; i++) {
        int64_t row = (int64_t)r->in[1].at[i];
        for (int64_t d = 0; d < dim && row != r->attr->embedding.padding; d++)
            r->out[0].at[row * dim + d] += r->in[0].at[i * dim + d];
    }
}

/* x (N, T, D), w (P, D) */
void ref_add_rows(Ref *r) {
    const int64_t *d = r->in[0].shape.dim;
    for (int64_t i = 0; i < r->in[0].count; i++) r->out[0].at[i] = r->in[0].at[i] + r->in[1].at[i % (d[1] * d[2])];
}

void ref_add_rows_dw(Ref *r) {
    const int64_t *d = r->in[0].shape.dim;
    zero(&r->out[0]);
    for (int64_t n = 0; n < d[0]; n++)
        for (int64_t t = 0; t < d[1] * d[2]; t++) r->out[0].at[t] += r->in[0].at[n * d[1] * d[2] + t];
}
