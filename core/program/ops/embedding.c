/* Embeddings: rows of a table, chosen by index; and which rows the places of a token are. */
#include "program/rule.h"

/* w (V, D), y (..., D), idx (...): one index per row of y. */
static bool operands_fit(const Buf *idx, const Buf *w, const Buf *y) {
    return idx->dtype == DT_I32 && w->shape.rank == 2 &&
           shape_elements(&y->shape) == shape_elements(&idx->shape) * w->shape.dim[1];
}

static bool embedding_fits(const Operands *o) {
    const Buf *w = o->embedding.w, *y = o->embedding.y;
    return operands_fit(o->embedding.idx, w, y) && w->dtype == y->dtype;
}

static bool embedding_dw_fits(const Operands *o) {
    return operands_fit(o->embedding_dw.idx, o->embedding_dw.dw, o->embedding_dw.dy);
}

static void embedding_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_embedding_dw, f, g->leaf[f->embedding.w], dy, f->embedding.idx);
}

static void embedding_show(const Attr *a, Line *l) {
    if (a->embedding.first) line_put(l, " first=%lld", (long long)a->embedding.first);
}

const OpRule rule_embedding = {embedding_fits, NULL, embedding_gradient, embedding_show};
const OpRule rule_embedding_dw = {embedding_dw_fits, NULL, NULL, embedding_show};

/* idx (N, T), y (N) */
static bool place_fits(const Operands *o) {
    const Buf *idx = o->first_place.idx, *y = o->first_place.y;
    return idx->dtype == DT_I32 && y->dtype == DT_I32 && idx->shape.rank == 2 && y->shape.rank == 1 &&
           y->shape.dim[0] == idx->shape.dim[0];
}

static void place_show(const Attr *a, Line *l) {
    if (a->place.token < 0) line_put(l, " largest");
    else line_put(l, " token(%lld)", (long long)a->place.token);
}

const OpRule rule_first_place = {place_fits, NULL, NULL, place_show};
