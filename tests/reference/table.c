#include "reference.h"

static void zero(Tensor *t) {
    for (int64_t i = 0; i < t->count; i++) t->at[i] = 0;
}

void ref_embedding(Ref *r) {
    int64_t dim = r->embedding.w.shape.dim[1], rows = r->embedding.w.shape.dim[0];
    for (int64_t i = 0; i < r->embedding.idx.count; i++) {
        int64_t row = (int64_t)r->embedding.idx.at[i] - r->attr->embedding.first;
        for (int64_t d = 0; d < dim; d++)
            r->embedding.y.at[i * dim + d] = row < 0 || row >= rows ? 0 : r->embedding.w.at[row * dim + d];
    }
}

void ref_embedding_dw(Ref *r) {
    int64_t dim = r->embedding_dw.dw.shape.dim[1];
    zero(&r->embedding_dw.dw);
    for (int64_t i = 0; i < r->embedding_dw.idx.count; i++) {
        int64_t index = (int64_t)r->embedding_dw.idx.at[i], row = index - r->attr->embedding.first;
        if (row < 0 || row >= r->embedding_dw.dw.shape.dim[0]) continue;
        for (int64_t d = 0; d < dim && index != r->attr->embedding.padding; d++)
            r->embedding_dw.dw.at[row * dim + d] += r->embedding_dw.dy.at[i * dim + d];
    }
}

void ref_first_place(Ref *r) {
    const int64_t steps = r->first_place.idx.shape.dim[1], token = r->attr->place.token;
    for (int64_t n = 0; n < r->first_place.y.count; n++) {
        const double *row = r->first_place.idx.at + n * steps;
        int64_t first = steps - 1;
        for (int64_t t = steps - 1; t >= 0; t--)
            if (token < 0 ? row[t] >= row[first] : row[t] == (double)token) first = t;
        if (token >= 0 && row[first] != (double)token) first = 0;
        r->first_place.y.at[n] = (double)(n * steps + first);
    }
}

/* x (N, T, D), w (P, D) */
void ref_add_rows(Ref *r) {
    const int64_t *d = r->add_rows.x.shape.dim;
    for (int64_t i = 0; i < r->add_rows.x.count; i++)
        r->add_rows.y.at[i] = r->add_rows.x.at[i] + r->add_rows.w.at[r->attr->axis.start * d[2] + i % (d[1] * d[2])];
}

void ref_add_rows_dw(Ref *r) {
    const int64_t *d = r->add_rows_dw.dy.shape.dim;
    zero(&r->add_rows_dw.dw);
    for (int64_t n = 0; n < d[0]; n++)
        for (int64_t t = 0; t < d[1] * d[2]; t++)
            r->add_rows_dw.dw.at[r->attr->axis.start * d[2] + t] += r->add_rows_dw.dy.at[n * d[1] * d[2] + t];
}
