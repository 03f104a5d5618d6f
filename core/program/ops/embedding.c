/* Embeddings: rows of a table, chosen by index. */
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

const OpRule rule_embedding = {embedding_fits, NULL, embedding_gradient, NULL};
const OpRule rule_embedding_dw = {embedding_dw_fits, NULL, NULL, NULL};
