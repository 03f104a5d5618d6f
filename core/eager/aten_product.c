/* Matrix products. Sources: ATen/native/Linear.cpp, LinearAlgebra.cpp (matmul), cuda/Blas.cpp;
 * FunctionsManual.cpp (mm_mat1_grad, mm_mat2_grad). */
#include <assert.h>
#include <string.h>

#include "aten.h"

void eager_cublas(Eager *g) {
    if (g->has_workspace[g->thread] || g->halted) return;
    g->has_workspace[g->thread] = true;
    eager_forever(g, (size_t)card_workspace(g->card, g->version));
}

static bool is_column_major(const Tensor *t) { return t->stride[0] == 1 && t->stride[1] == t->size.of[0]; }

/* y is the product of a and b, the sum over `inner`. */
static void multiplies(Eager *g, const Tensor *a, const Tensor *b, const Tensor *y, int64_t inner) {
    const double flops = 2.0 * (double)tensor_elements(y) * (double)inner;
    READS(g, a, b);
    work_flops(g, y->type, g->products, flops, flops);
}

/* (rows, columns), lying column by column if it is the gradient of what does. */
static Tensor *product(Eager *g, ScalarType type, int64_t rows, int64_t columns, bool column_major) {
    eager_op(g, "aten::mm");
    Tensor *y = tensor_new(g, type, SIZE(rows, columns));
    if (column_major) {
        y->stride[0] = 1;
        y->stride[1] = rows;
    }
    eager_cublas(g);
    return y;
}

/* ---- mm and addmm. saved, in the order of PyTorch's names, where the other's gradient is wanted: mat2 and self of mm, mat1
 * and mat2 of addmm; number: was it column-major? */

/* The gradient of one factor; other: the one that it is multiplied by */
static Tensor *mm_grad(Eager *g, const Node *n, const Tensor *dy, int which, const Tensor *other) {
    const Meta *m = &n->next[which].node->out[n->next[which].output];
    Tensor *dx = product(g, dy->type, m->size.of[0], m->size.of[1], n->number[which]);
    multiplies(g, dy, other, dx, dy->size.of[1 - which]);
    return dx;
}

static void apply_mm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int which = 1; which >= 0; which--)
        if (node_wants(n, which)) dx[which] = mm_grad(g, n, dy[0], which, n->saved[which]);
}

static void apply_addmm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int which = 0; which < 2; which++)
        if (node_wants(n, which)) dx[which] = mm_grad(g, n, dy[0], which, n->saved[1 - which]);
    if (node_wants(n, 2)) dx[2] = tensor_ref(dy[0]);
}

static const NodeRule mm_rule = {"MmBackward0", apply_mm}, addmm_rule = {"AddmmBackward0", apply_addmm};

/* a b, + bias where there is one. */
static Tensor *mm(Eager *g, Tensor *a, Tensor *b, Tensor *bias) {
    GUARD(g);
    assert(a->size.rank == 2 && b->size.rank == 2 && a->size.of[1] == b->size.of[0]);
    Node *n = node_new(g, bias ? &addmm_rule : &mm_rule, (Tensor *[]){a, b, bias}, bias ? 3 : 2, 2);
    if (n && node_wants(n, 1)) node_save(g, n, bias ? 0 : 1, a);
    if (n && node_wants(n, 0)) node_save(g, n, bias ? 1 : 0, b);
    if (n) n->number[0] = is_column_major(a);
    if (n) n->number[1] = is_column_major(b);
    eager_op(g, bias ? "aten::addmm" : "aten::mm");
    Tensor *y = tensor_new(g, a->type, SIZE(a->size.of[0], b->size.of[1]));
    multiplies(g, a, b, y, a->size.of[1]);
    READS(g, bias);
    eager_cublas(g);
    node_output(g, n, y);
    return y;
}

Tensor *aten_mm(Eager *g, Tensor *a, Tensor *b) {
    GUARD(g);
    return mm(g, a, b, NULL);
}

/* ---- bmm */

static void bmm_gradient(Eager *g, const Node *n, Tensor *dy, int which, Tensor **dx) {
    if (!node_wants(n, which)) return;
    eager_op(g, "aten::bmm");
    dx[which] = tensor_new(g, dy->type, n->next[which].node->out[n->next[which].output].size);
    multiplies(g, dy, n->saved[which], dx[which], dy->size.of[2 - which]);
    eager_cublas(g);
}

/* In the order of the operands' names: mat2, self; batch1, batch2 */
static void apply_bmm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int which = 1; which >= 0; which--) bmm_gradient(g, n, dy[0], which, dx);
}

static void apply_baddbmm(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    for (int which = 0; which < 2; which++) bmm_gradient(g, n, dy[0], which, dx);
}

static const NodeRule bmm_rule = {"BmmBackward0", apply_bmm}, baddbmm_rule = {"BaddbmmBackward0", apply_baddbmm};

static Tensor *bmm(Eager *g, const NodeRule *rule, const char *op, Tensor *a, Tensor *b) {
    GUARD(g);
    assert(a->size.rank == 3 && b->size.rank == 3 && a->size.of[2] == b->size.of[1]);
    Node *n = node_new(g, rule, (Tensor *[]){a, b}, 2, 2);
    if (n && node_wants(n, 1)) node_save(g, n, 1, a);
    if (n && node_wants(n, 0)) node_save(g, n, 0, b);
    eager_op(g, op);
    Tensor *y = tensor_new(g, a->type, SIZE(a->size.of[0], a->size.of[1], b->size.of[2]));
    multiplies(g, a, b, y, a->size.of[2]);
    eager_cublas(g);
    node_output(g, n, y);
    return y;
}

Tensor *aten_bmm(Eager *g, Tensor *a, Tensor *b) { return bmm(g, &bmm_rule, "aten::bmm", a, b); }

Tensor *aten_baddbmm(Eager *g, Tensor *added, Tensor *a, Tensor *b) {
    Tensor *y = bmm(g, &baddbmm_rule, "aten::baddbmm", a, b);
    READS(g, added);
    return y;
}

/* ---- matmul: a matrix on the right is multiplied with all rows at once; else both become batches of matrices. */

static Size with_rows(const Size *s, int64_t last) {
    Size out = *s;
    out.of[out.rank - 1] = last;
    return out;
}

static Tensor *fold(Eager *g, Tensor *a, Tensor *b) {
    GUARD(g);
    const int64_t last = a->size.of[a->size.rank - 1];
    Tensor *rows = aten_reshape(g, a, SIZE(tensor_elements(a) / last, last)), *y2 = mm(g, rows, b, NULL);
    tensor_drop(g, rows);
    Tensor *y = aten_view(g, y2, with_rows(&a->size, b->size.of[1]));
    tensor_drop(g, y2);
    return y;
}

static Tensor *as_batch(Eager *g, Tensor *x, const Size *batch) {
    GUARD(g);
    Size wide = *batch;
    wide.of[wide.rank++] = x->size.of[x->size.rank - 2];
    wide.of[wide.rank++] = x->size.of[x->size.rank - 1];
    Tensor *e = aten_expand(g, x, wide);
    Tensor *y = aten_reshape(g, e, SIZE(size_elements(batch), wide.of[wide.rank - 2], wide.of[wide.rank - 1]));
    tensor_drop(g, e);
    return y;
}

Tensor *aten_matmul(Eager *g, Tensor *a, Tensor *b) {
    GUARD(g);
    if (a->size.rank == 2 && b->size.rank == 2) return mm(g, a, b, NULL);
    if (b->size.rank == 2) return fold(g, a, b);
    const Size *longer = a->size.rank >= b->size.rank ? &a->size : &b->size, *other = longer == &a->size ? &b->size : &a->size;
    Size batch = *longer;
    batch.rank -= 2;
    for (int d = 0; d < other->rank - 2; d++) {
        const int at = d + batch.rank - (other->rank - 2);
        if (batch.of[at] == 1) batch.of[at] = other->of[d];
    }
    Tensor *left = as_batch(g, a, &batch), *right = as_batch(g, b, &batch), *y3 = aten_bmm(g, left, right);
    tensor_drop(g, left);
    tensor_drop(g, right);
    Size size = batch;
    size.of[size.rank++] = a->size.of[a->size.rank - 2];
    size.of[size.rank++] = b->size.of[b->size.rank - 1];
    Tensor *y = aten_view(g, y3, size);
    tensor_drop(g, y3);
    return y;
}

/* ---- einsum: sumproduct_pair of ATen/native/Linear.cpp: both operands become batches of matrices by a permute and a
 * reshape, and the batch of results one value by a view and a permute. */

static int place(const char *letters, char letter) {
    const char *at = strchr(letters, letter);
    return at ? (int)(at - letters) : -1;
}

/* x with its dimensions in the order of three groups of letters, each of which becomes one. */
static Tensor *grouped(Eager *g, Tensor *x, const char *letters, const char *const group[3]) {
    GUARD(g);
    int order[TENSOR_RANK], n = 0;
    Size size = {3, {1, 1, 1}};
    for (int k = 0; k < 3; k++)
        for (const char *c = group[k]; *c; c++) {
            order[n] = place(letters, *c);
            size.of[k] *= x->size.of[order[n++]];
        }
    Tensor *turned = aten_permute(g, x, order), *y = aten_reshape(g, turned, size);
    tensor_drop(g, turned);
    return y;
}

Tensor *aten_einsum(Eager *g, const char *a_letters, const char *b_letters, const char *y_letters, Tensor *a, Tensor *b) {
    GUARD(g);
    enum { BATCH, ROWS, COLUMNS, SUMMED };
    char of[4][TENSOR_RANK + 1] = {{0}}, made[TENSOR_RANK + 1] = {0};
    int n[4] = {0}, order[TENSOR_RANK], count = 0;
    Size size = {0, {0}};
    for (const char *c = y_letters; *c; c++) {
        const int kind = place(a_letters, *c) < 0 ? COLUMNS : place(b_letters, *c) < 0 ? ROWS : BATCH;
        of[kind][n[kind]++] = *c;
    }
    for (char c = 'A'; c <= 'z'; c++)
        if (place(a_letters, c) >= 0 && place(y_letters, c) < 0) of[SUMMED][n[SUMMED]++] = c;
    Tensor *left = grouped(g, a, a_letters, (const char *[]){of[BATCH], of[ROWS], of[SUMMED]});
    Tensor *right = grouped(g, b, b_letters, (const char *[]){of[BATCH], of[SUMMED], of[COLUMNS]});
    Tensor *product = aten_bmm(g, left, right);
    tensor_drop(g, left);
    tensor_drop(g, right);
    for (int kind = BATCH; kind <= COLUMNS; kind++)
        for (const char *c = of[kind]; *c; c++) {
            made[count++] = *c;
            size.of[size.rank++] = place(a_letters, *c) >= 0 ? a->size.of[place(a_letters, *c)] : b->size.of[place(b_letters, *c)];
        }
    for (int d = 0; d < count; d++) order[d] = place(made, y_letters[d]);
    Tensor *apart = aten_view(g, product, size), *y = aten_permute(g, apart, order);
    tensor_drop(g, apart);
    tensor_drop(g, product);
    return y;
}

/* ---- linear; autocast converts the arguments from the last to the first. */

static Tensor *linear(Eager *g, Tensor *x, Tensor *w, Tensor *b) {
    GUARD(g);
    Tensor *wt = aten_transpose(g, w, 0, 1), *y;
    if (b && x->size.rank == 2) {
        y = mm(g, x, wt, b);
    } else if (b && tensor_is_contiguous(x)) { /* Linear.cpp, _flatten_nd_linear */
        const int64_t last = x->size.of[x->size.rank - 1];
        Tensor *rows = aten_view(g, x, SIZE(tensor_elements(x) / last, last)), *y2 = mm(g, rows, wt, b);
        tensor_drop(g, rows);
        y = aten_view(g, y2, with_rows(&x->size, w->size.of[0]));
        tensor_drop(g, y2);
    } else {
        y = aten_matmul(g, x, wt);
        if (b) tensor_drop(g, aten_add_inplace(g, y, b));
    }
    tensor_drop(g, wt);
    return y;
}

Tensor *aten_linear(Eager *g, Tensor *x, Tensor *w, Tensor *b) {
    GUARD(g);
    Tensor *lb = amp_low(g, b), *lw = amp_low(g, w), *lx = amp_low(g, x), *y = linear(g, lx, lw, lb);
    tensor_drop(g, lx);
    tensor_drop(g, lw);
    tensor_drop(g, lb);
    return y;
}
