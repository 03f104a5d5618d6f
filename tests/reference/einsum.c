#include "reference.h"

enum { LABELS = 4 * SHAPE_MAX };

/* Where the element of `t` with these indices by label lies. */
static int64_t element(const Tensor *t, const int8_t *labels, const int64_t *index) {
    int64_t at = 0;
    for (int d = 0; d < t->shape.rank; d++) at = at * t->shape.dim[d] + index[labels[d]];
    return at;
}

/* Over all indices of all labels. */
void ref_einsum(Ref *r) {
    const EinsumAttr *e = &r->attr->einsum;
    const Tensor *of[3] = {&r->einsum.a, &r->einsum.b, &r->einsum.y};
    const int8_t *labels[3] = {e->a, e->b, e->y};
    int64_t size[LABELS], index[LABELS] = {0}, all = 1;
    for (int i = 0; i < LABELS; i++) size[i] = 1;
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < of[k]->shape.rank; d++) size[labels[k][d]] = of[k]->shape.dim[d];
    for (int i = 0; i < LABELS; i++) all *= size[i];
    for (int64_t i = 0; i < r->einsum.y.count; i++) r->einsum.y.at[i] = 0;
    for (int64_t n = 0; n < all; n++) {
        int64_t rest = n;
        for (int i = 0; i < LABELS; rest /= size[i], i++) index[i] = rest % size[i];
        r->einsum.y.at[element(of[2], labels[2], index)] +=
            of[0]->at[element(of[0], labels[0], index)] * of[1]->at[element(of[1], labels[1], index)];
    }
}

void ref_permute(Ref *r) {
    const Shape *x = &r->permute.x.shape, *y = &r->permute.y.shape;
    const int8_t *from = r->attr->permute.from;
    for (int64_t i = 0; i < r->permute.y.count; i++) {
        int64_t index[SHAPE_MAX] = {0}, at = 0;
        for (int64_t d = y->rank - 1, rest = i; d >= 0; rest /= y->dim[d], d--) index[from[d]] = rest % y->dim[d];
        for (int d = 0; d < x->rank; d++) at = at * x->dim[d] + index[d];
        r->permute.y.at[i] = r->permute.x.at[at];
    }
}
