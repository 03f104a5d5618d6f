#include "lower.h"

#include <assert.h>
#include <string.h>

#include "layer.h"
#include "base/mem.h"

static const int64_t rows[3] = {0}; /* PyTorch's order */

/* Says how a buffer lies. An image lies channels-last, and so does (N, C, L) with an order; a matrix keeps the order
 * of its features. */
static void set_order(Program *p, int buf, const int64_t *order) {
    Buf *b = &p->bufs[buf];
    assert(!order[0] || b->shape.rank == 2 || b->shape.rank == 3); /* (C, H, W) of dimension 1, or (C, 1, L) */
    b->layout = b->shape.rank == 4 || (b->shape.rank == 3 && order[0]) ? LAYOUT_NHWC : LAYOUT_ROWS;
    memcpy(b->order, b->shape.rank == 3 ? rows : order, sizeof b->order);
}

/* `x` in another order, converted once per buffer. (N, C, L) and (N, C, H, W) with one channel or one place are the same
 * in both orders: a view. */
static int reorder(Lower *lw, const Layer *l, int x, OpKind kind, const char *name, const int64_t *order) {
    Program *p = lw->p;
    if (!p->failed && !mem_grow(&lw->other, &lw->cap_other, x + 1, sizeof *lw->other)) p->failed = true;
    if (p->failed) return 0;
    int *known = kind == OP_nhwc_to_nchw ? &lw->other[x].rows : &lw->other[x].line;
    if (*known) return *known - 1;
    const Shape s = p->bufs[x].shape;
    const bool image = s.rank == 4, to_rows = kind == OP_nhwc_to_nchw;
    int y = program_like(p, x, CAT_ACTIVATIONS, s, p->bufs[x].dtype, name);
    if (p->failed) return 0;
    *known = y + 1;
    set_order(p, y, order);
    if (image) p->bufs[y].layout = to_rows ? LAYOUT_ROWS : LAYOUT_NHWC;
    bool same = s.rank >= 3 && (s.dim[1] == 1 || s.dim[2] * s.dim[3] == 1);
    if (same) p->bufs[y].alias = program_root(p, x);
    return lower_emit(lw, same ? OP_view : kind, l, &x, 1, y, NULL);
}

static bool is_line(const Lower *lw, int x) {
    return lw->p->bufs[x].shape.rank == 3 && lw->p->bufs[x].layout == LAYOUT_NHWC;
}

int lower_forward(Lower *lw, const Layer *l, const int *in) {
    int taken[LAYER_IN];
    assert(l->n_in >= 1 && l->n_in <= LAYER_IN); /* shapes are inferred */
    for (int k = 0; k < l->n_in && !lw->p->failed; k++) {
        const int64_t *order = l->ins[k].order;
        bool wanted = l->ins[k].shape.rank == 3 && order[0];
        taken[k] = in[k];
        if (l->ins[k].positions || l->ins[k].mask) continue; /* what stands for them is not read */
        if (l->ins[k].shape.rank == 4 && !l->ins[k].rows) taken[k] = lower_image(lw, l, in[k]);
        if (wanted) taken[k] = lower_line(lw, l, in[k]);
        if (!wanted && is_line(lw, in[k])) taken[k] = lower_rows(lw, l, in[k]);
    }
    return lw->p->failed ? 0 : l->kind->forward(lw, l, taken);
}

int lower_temp(Lower *lw, const Layer *l, const char *operand, Shape shape, const int64_t *order, DType dtype) {
    int b = program_buf(lw->p, CAT_ACTIVATIONS, shape, dtype, "%s%s%s", l->path, l->path[0] ? "." : "", operand);
    if (lw->p->failed) return 0;
    set_order(lw->p, b, order ? order : rows);
    const bool as_input = l->out.rank < 4;
    if (shape.rank == 4 && (l->out_rows || (as_input && l->in_rows))) lw->p->bufs[b].layout = LAYOUT_ROWS;
    return b;
}

int lower_buf(Lower *lw, const Layer *l, const char *operand, DType dtype) {
    return lower_temp(lw, l, operand, l->out, l->out_order, dtype);
}

int lower_emit(Lower *lw, OpKind kind, const Layer *l, const int *in, int n_in, int out, const Attr *attr) {
    if (lw->p->failed) return 0;
    assert(n_in >= 1 && n_in <= op_info(kind)->n_in && out >= 0 && out < lw->p->n_bufs);
    Op *op = program_op(lw->p, kind, l->path);
    for (int i = 0; i < n_in; i++) op->in[i] = in[i];
    op->out[0] = out;
    op->region = lw->region;
    if (attr) op->attr = *attr;
    op_cost(lw->p, op);
    return out;
}

int lower_op(Lower *lw, OpKind kind, const Layer *l, const int *in, int n_in, const Attr *attr) {
    return lower_emit(lw, kind, l, in, n_in, lower_buf(lw, l, op_info(kind)->out[0].name, DT_F32), attr);
}

void lower_keep(Lower *lw, int slot, int buf) {
    if (lw->p->failed) return;
    assert(lw->p->n_ops > 0);
    Op *op = &lw->p->ops[lw->p->n_ops - 1];
    assert(slot > 0 && slot < op_info(op->kind)->n_out);
    assert(op->out[slot] == NO_BUF);
    op->out[slot] = buf;
    op_cost(lw->p, op);
}

int lower_layer(Lower *lw, OpKind kind, const Layer *l, const int *in, const Attr *attr) {
    int operands[OP_IN], n = 0;
    assert(l->n_in + l->n_params <= op_info(kind)->n_in);
    for (int i = 0; i < l->n_in; i++) operands[n++] = in[i];
    for (int i = 0; i < l->n_params; i++) operands[n++] = lw->param[l->param[i]];
    return lower_op(lw, kind, l, operands, n, attr);
}

static int emit_view(Lower *lw, const Layer *l, int x, int y) {
    if (lw->p->failed) return 0;
    lw->p->bufs[y].alias = program_root(lw->p, x);
    return lower_emit(lw, OP_view, l, &x, 1, y, NULL);
}

int lower_view(Lower *lw, const Layer *l, int x) { return emit_view(lw, l, x, lower_buf(lw, l, "y", DT_F32)); }

int lower_view_as(Lower *lw, const Layer *l, const char *operand, Shape shape, int x) {
    return emit_view(lw, l, x, lower_temp(lw, l, operand, shape, NULL, DT_F32));
}

int lower_flat(Lower *lw, const Layer *l, int x, int64_t features, Layer *flat) {
    *flat = *l;
    if (l->in.rank < 4) return x;
    const int64_t width = l->in.dim[3], count = shape_elements(&l->in) / width;
    flat->in = shape2(count, width);
    flat->out = shape2(count, features);
    return lower_view_as(lw, l, "flat", flat->in, lower_plain(lw, l, x));
}

int lower_unflat(Lower *lw, const Layer *l, int y) {
    return l->out.rank < 4 ? y : lower_view_as(lw, l, "unflat", l->out, y);
}

int lower_rows(Lower *lw, const Layer *l, int x) {
    if (lw->p->failed) return 0;
    bool other = lw->p->bufs[x].order[0] || is_line(lw, x);
    return other ? reorder(lw, l, x, OP_nhwc_to_nchw, "rows", rows) : x;
}

int lower_line(Lower *lw, const Layer *l, int x) {
    if (lw->p->failed || is_line(lw, x)) return x;
    const int64_t *d = lw->p->bufs[x].shape.dim, order[3] = {d[1], 1, d[2]};
    return reorder(lw, l, x, OP_nhwc_to_nchw_dx, "line", order);
}

int lower_plain(Lower *lw, const Layer *l, int x) {
    if (lw->p->failed) return 0;
    bool image = lw->p->bufs[x].shape.rank == 4 && lw->p->bufs[x].layout == LAYOUT_NHWC;
    return image ? reorder(lw, l, x, OP_nhwc_to_nchw, "rows", rows) : lower_rows(lw, l, x);
}

int lower_image(Lower *lw, const Layer *l, int x) {
    if (lw->p->failed) return 0;
    bool plain = lw->p->bufs[x].shape.rank == 4 && lw->p->bufs[x].layout == LAYOUT_ROWS;
    return plain ? reorder(lw, l, x, OP_nhwc_to_nchw_dx, "image", rows) : x;
}

int lower_as_output(Lower *lw, const Layer *l, int x) { return l->out_rows ? lower_plain(lw, l, x) : lower_rows(lw, l, x); }

int lower_source(const Lower *lw, int x, OpKind kind) {
    for (int i = lw->p->n_ops - 1; i >= 0 && !lw->p->failed; i--)
        if (lw->p->ops[i].out[0] == x) return lw->p->ops[i].kind == kind ? i : NO_OP;
    return NO_OP;
}

/* What lay in another order for products alone, which read it as it was, is not made. */
static void drop_unread(Program *p) {
    for (int i = p->n_ops - 1; i >= 0 && !p->failed; i--) {
        const int y = p->ops[i].out[0];
        bool read = p->ops[i].kind != OP_permute || y == p->output;
        for (int k = i + 1; k < p->n_ops && !read; k++)
            EACH_IN(&p->ops[k], slot) read |= p->ops[k].in[slot] == y;
        if (read) continue;
        memmove(&p->ops[i], &p->ops[i + 1], (size_t)(p->n_ops - i - 1) * sizeof *p->ops);
        p->n_ops--;
    }
}

void lower_loss(Lower *lw, int k, int x) {
    if (!lw->with_loss || (k && !lw->training)) return;
    assert(k >= 0 && k < lw->net->n_losses);
    int loss = lower_forward(lw, lw->net->loss[k], &x);
    if (k == 0) lw->p->loss = loss;
}

static void lower_all(Lower *lw) {
    Program *p = lw->p;
    const Network *net = lw->net;
    for (int i = 0; i < net->n_params; i++) {
        const Param *from = &net->params[i];
        const Shape turned = shape2(from->shape.dim[1], from->shape.dim[0]);
        int b = lw->param[i] = program_param(p, from->turned ? turned : from->shape, from->dtype, from->name);
        if (p->failed) return;
        p->bufs[b].turned = from->turned;
        p->bufs[b].layout = from->layout;
        memcpy(p->bufs[b].order, from->order, sizeof from->order);
        p->bufs[b].frozen = !from->trainable;
        p->bufs[b].wide = from->wide;
        if (from->constant) program_set_constant(p, b, from->constant);
    }
    for (int k = 0; k < net->n_inputs; k++) {
        const Input *in = &net->inputs[k];
        const int b = program_buf(p, CAT_INPUT, in->shape, in->bytes ? DT_U8 : in->indices ? DT_I32 : DT_F32, "input%s%s", *in->name ? "." : "", in->name);
        if (p->failed) return;
        set_order(p, b, net->root->ins[k].order);
        p->bufs[b].kind = BUF_INPUT;
        p->inputs[p->n_inputs++] = b;
    }
    p->output = lower_forward(lw, net->root, p->inputs);
    lower_loss(lw, 0, p->output);
    drop_unread(p);
    p->forward_end = p->body_end = p->n_ops;
}

static bool is_input(const Program *p, int b, DType type) {
    for (int k = 0; k < p->n_inputs; k++)
        if (p->inputs[k] == b) return p->bufs[b].dtype == type;
    return false;
}

/* The layer of that path in `l`, or `l` */
static const Layer *layer_at(const Layer *l, const char *path) {
    for (int i = 0; i < l->n_child; i++) {
        const Layer *found = layer_at(l->child[i], path);
        if (!strcmp(found->path, path)) return found;
    }
    return l;
}

/* Mistakes that no single layer sees: only Embedding, SelectToken and what takes positions may read indices, only FromBytes
 * bytes. */
static int check_ops(const Program *p, const Layer *root, Err *e) {
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        EACH_IN(op, k) {
            if (is_input(p, op->in[k], DT_I32) && op->kind != OP_embedding && op->kind != OP_first_place &&
                op->in[k] != program_positions(op))
                return layer_error(layer_at(root, op->path), e, "the network's input holds indices, which only nn.Embedding reads");
            if (is_input(p, op->in[k], DT_U8) && op->kind != OP_from_bytes)
                return layer_error(layer_at(root, op->path), e, "the network's input holds bytes, which only nn.FromBytes reads");
        }
    }
    return OK;
}

int lower_network(const Network *net, bool training, bool with_loss, Program **out, Err *e) {
    if (with_loss && !net->n_losses)
        return err_set(e, ERR_SCRIPT, "expected a loss: the network was built without one");
    Lower lw = {program_new(), net, mem_new((size_t)net->n_params * sizeof(int)), training, with_loss, 0, 0, 0,
                NULL, 0};
    bool made = lw.p && lw.param;
    if (made) lower_all(&lw);
    mem_free(lw.param);
    mem_free(lw.other);
    int code = made && !lw.p->failed ? check_ops(lw.p, net->root, e)
                                     : err_set(e, ERR_HOST_MEMORY, "out of host memory for the program of a network");
    if (code) program_free(lw.p);
    else *out = lw.p;
    return code;
}
