/* The setting "sliced_updates": the gradient of a large weight is made, and the weight updated, some rows at a time, where
 * that lowers the peak. So a network whose peak is the gradient of one weight, beside all weights and states, needs
 * little more than these:
 *
 *     dw = linear_dw(x, dy)             dy.0 = slice(dy)         the first columns: those outputs
 *     db = sum of dy                    dw.0 = linear_dw(x, dy.0)
 *     ...                               adam(dw.0, w.0, ...)     w.0: the first rows of w, in its storage; its states alike
 *     adam(dw, w, ...)                  dy.1 = slice(dy)
 *                                       ...
 *
 * Each element is the same sum of products, in an order that may be another. Into how many slices, says pass_choose_slices.
 *
 * Slices stand where the update stood, after the last op that reads the weight, and after the last one that reads dy: then a copy of
 * the weight in 16 bits is gone, too. So what the gradient is made of lives until then; the gradient of the bias is an op of its
 * own (bias_db). A slice begins at a multiple of the device's alignment. */
#include "slice_updates.h"

#include "rewrite.h"

/* ---- which gradients */

Find slices_find_new(const Program *p, const Compile *c, Scratch *s) {
    const size_t bufs = (size_t)p->n_bufs;
    return (Find){p, c->device->table->alignment, scratch_new(s, bufs, sizeof(int)), scratch_new(s, bufs, sizeof(int)),
                  scratch_new(s, bufs, sizeof(int)), scratch_new(s, (size_t)p->n_ops, sizeof(Large)), 0};
}

/* May rows of all that the update writes be updated by themselves? All of it has one number for each of the weight's. */
static bool is_by_element(const Program *p, const Op *update) {
    const Buf *w = &p->bufs[update->out[0]];
    EACH_OUT(update, k) {
        const Buf *b = &p->bufs[update->out[k]];
        if (!shape_equal(&b->shape, &w->shape) || b->layout != w->layout) return false;
        if (b->kind != BUF_PERSISTENT || b->alias != NO_BUF || b->shard.count || b->host) return false;
    }
    return true;
}

static bool is_product(const Program *p, const Op *op) {
    if (op->kind == OP_conv2d_dw && op->attr.conv.groups != 1) return false;
    return (op->kind == OP_linear_dw || op->kind == OP_conv2d_dw) && !p->bufs[op->linear_dw.dy].order[0];
}

/* Do slices of so many rows begin at multiples of the alignment? */
static bool is_aligned(const Find *f, const Op *update, int64_t rows) {
    EACH_OUT(update, k) {
        const Buf *b = &f->p->bufs[update->out[k]];
        if (b->bytes / (size_t)b->shape.dim[0] * (size_t)rows % f->alignment) return false;
    }
    return true;
}

bool slices_divide(const Find *f, const Op *update, int slices) {
    const Shape *shape = &f->p->bufs[update->out[0]].shape;
    const int64_t rows = shape->dim[0];
    return rows % slices == 0 && shape_elements(shape) / slices >= SLICES_LEAST && is_aligned(f, update, rows / slices);
}

void slices_find(Find *f, size_t least) {
    const Program *p = f->p;
    for (int b = 0; b < p->n_bufs; b++) f->made[b] = f->read[b] = NO_OP;
    for (int i = 0; i < p->n_ops; i++) {
        EACH_IN(&p->ops[i], k) f->reads[p->ops[i].in[k]]++, f->read[p->ops[i].in[k]] = i;
        EACH_OUT(&p->ops[i], k) f->made[p->ops[i].out[k]] = i;
    }
    for (int i = p->forward_end; i < p->body_end; i++) {
        const Op *op = &p->ops[i];
        if (!op_is_update(op->kind) || p->bufs[op->in[0]].bytes < least) continue;
        const int g = op->in[0], maker = f->made[g];
        const Buf *grad = &p->bufs[g];
        if (maker == NO_OP || !is_product(p, &p->ops[maker]) || p->ops[maker].out[0] != g) continue;
        if (f->reads[g] != 1 || grad->alias != NO_BUF) continue;
        const int at = max_int(i, f->read[p->ops[maker].linear_dw.dy]);
        if (at >= p->body_end || !is_by_element(p, op) || !slices_divide(f, op, 2)) continue;
        f->large[f->n++] = (Large){.maker = maker, .update = i, .at = at, .slices = 1};
    }
}

/* ---- the slices */

static Shape rows_shape(const Buf *b, int64_t rows) {
    Shape shape = b->shape;
    shape.dim[0] = rows;
    return shape;
}

/* A buffer for the gradient of some rows; the first of them take over that of all. */
static int rows_gradient(Program *p, int grad, int slice, int64_t rows) {
    const Shape shape = rows_shape(&p->bufs[grad], rows);
    if (slice == 0) {
        p->bufs[grad].shape = shape;
        program_resize(p, grad);
        return grad;
    }
    const int b = program_like(p, grad, p->bufs[grad].category, shape, p->bufs[grad].dtype, "rows");
    if (!p->failed) p->bufs[b].param = p->bufs[grad].param;
    return b;
}

/* Rows of a persistent buffer, in its storage. */
static int rows_inside(Program *p, int whole, int slice, int64_t rows) {
    const Shape shape = rows_shape(&p->bufs[whole], rows);
    const int b = program_like(p, whole, p->bufs[whole].category, shape, p->bufs[whole].dtype, "rows");
    if (p->failed) return whole;
    p->bufs[b].alias = whole;
    p->bufs[b].start = slice * shape_elements(&shape);
    return b;
}

/* Features of dy, the dimension 1 of an image and the last one of others, from `first` on: the gradient of these rows. */
static int slice_features(Program *p, const Op *maker, int64_t first, int64_t rows) {
    const int dy = maker->linear_dw.dy;
    Shape shape = p->bufs[dy].shape;
    const int axis = maker->kind == OP_conv2d_dw ? 1 : shape.rank - 1;
    shape.dim[axis] = rows;
    const int part = program_like(p, dy, p->bufs[dy].category, shape, p->bufs[dy].dtype, "rows");
    Op *op = program_op(p, OP_slice, maker->path);
    op->slice.x = dy;
    op->slice.y = part;
    op->attr.axis = (AxisAttr){.axis = axis, .start = first};
    op_cost(p, op);
    return part;
}

static void put_slices(Program *p, const Op *maker, const Op *update, int slices) {
    const int64_t rows = p->bufs[maker->out[0]].shape.dim[0] / slices;
    for (int k = 0; k < slices && !p->failed; k++) {
        Op product = *maker, step = *update;
        product.linear_dw.dy = slice_features(p, maker, k * rows, rows);
        product.linear_dw.dw = step.in[0] = rows_gradient(p, maker->linear_dw.dw, k, rows);
        product.linear_dw.db = product.workspace = NO_BUF;
        product.state = NULL;
        EACH_OUT(update, out) step.out[out] = rows_inside(p, update->out[out], k, rows);
        if (p->failed) return;
        op_cost(p, rewrite_put(p, &product));
        op_cost(p, rewrite_put(p, &step));
    }
}

static void put_bias(Program *p, const Op *maker) {
    if (maker->linear_dw.db == NO_BUF) return;
    Op *op = program_op(p, OP_bias_db, maker->path);
    op->bias_db.dy = maker->linear_dw.dy;
    op->bias_db.db = maker->linear_dw.db;
    op_cost(p, op);
}

/* By op: the gradient that it makes, or whose update it is; those whose slices stand after it. NULL: there is none. */
typedef struct Places { Large **made, **updated, **after; } Places;

static bool is_cut(const Large *l) { return l && l->slices > 1; }

static void cut(Program *p, const Places *places) {
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        if (is_cut(places->made[r.at])) put_bias(p, op);
        else if (!is_cut(places->updated[r.at])) rewrite_put(p, op);
        for (const Large *l = places->after[r.at]; l; l = l->next)
            if (is_cut(l)) put_slices(p, &r.old[l->maker], &r.old[l->update], l->slices);
    }
    rewrite_end(&r);
}

/* Gives each large gradient its parameter's slices. */
static Places find_places(Find *f, Scratch *s) {
    const size_t ops = (size_t)f->p->n_ops;
    const Places places = {scratch_new(s, ops, sizeof(Large *)), scratch_new(s, ops, sizeof(Large *)), scratch_new(s, ops, sizeof(Large *))};
    for (int k = 0; k < f->n && !s->failed; k++) {
        Large *l = &f->large[k];
        l->slices = max_int(1, f->p->params[f->p->bufs[f->p->ops[l->update].out[0]].param].slices);
        places.made[l->maker] = places.updated[l->update] = l;
        l->next = places.after[l->at];
        places.after[l->at] = l;
    }
    return places;
}

int pass_slice_updates(Program *p, Compile *c) {
    int most = 0;
    for (int i = 0; i < p->n_params; i++) most = max_int(most, p->params[i].slices);
    if (most < 2) return UNCHANGED;
    Find f = slices_find_new(p, c, &c->scratch);
    if (c->scratch.failed) return OK;
    slices_find(&f, 1);
    const Places places = find_places(&f, &c->scratch);
    if (!c->scratch.failed) cut(p, &places);
    return OK;
}
