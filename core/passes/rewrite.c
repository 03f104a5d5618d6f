#include "rewrite.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

/* Looks at old op `at`, or past the last one. What is put from now on belongs to its part of the step. */
static const Op *look(Rewriter *r, int at) {
    Program *p = r->p;
    if (at == r->forward_end) p->forward_end = p->n_ops;
    if (at == r->body_end) p->body_end = p->n_ops;
    r->at = at;
    return at < r->n && !p->failed ? &r->old[at] : NULL;
}

const Op *rewrite_begin(Rewriter *r, Program *p) {
    *r = (Rewriter){p, mem_copy(p->ops, (size_t)p->n_ops * sizeof *p->ops), p->n_ops, p->forward_end, p->body_end, 0};
    if (!r->old) {
        p->failed = true;
        return NULL;
    }
    p->n_ops = 0;
    return look(r, 0);
}

const Op *rewrite_next(Rewriter *r) { return look(r, r->at + 1); }

void rewrite_end(Rewriter *r) { mem_free(r->old); }

Op *rewrite_put(Program *p, const Op *op) {
    assert(op < p->ops || op >= p->ops + p->cap_ops); /* making room may move the program's own ops */
    Op *put = program_op(p, op->kind, op->path);
    *put = *op;
    if (op->kind == OP_view && !p->failed) p->bufs[op->out[0]].alias = program_root(p, op->in[0]);
    return put;
}

bool rewrite_touches(const Program *p, const Op *op, int buf, bool reads) {
    if (buf == NO_BUF) return false;
    const int root = program_root(p, buf);
    EACH_IN(op, k) if (reads && program_root(p, op->in[k]) == root) return true;
    EACH_OUT(op, k) if (program_root(p, op->out[k]) == root) return true;
    return op->workspace != NO_BUF && program_root(p, op->workspace) == root;
}

static bool is_loss(OpKind k) {
    return k == OP_cross_entropy || k == OP_element_loss || k == OP_cross_entropy_dx || k == OP_element_loss_dx ||
           k == OP_linear_cross_entropy || k == OP_linear_cross_entropy_dx;
}

void rewrite_part_of_batch(Op *op, int parts) {
    assert(parts >= 1);
    if (is_loss(op->kind) && !op->attr.loss.sum) op->attr.loss.scale /= (float)parts;
}

int rewrite_successor(Program *p, int part, DType type, const char *suffix) {
    char name[BUF_NAME];
    assert(p->failed || p->bufs[part].kind == BUF_TEMP);
    const int next = program_like(p, part, p->bufs[part].category, p->bufs[part].shape, type, suffix);
    if (p->failed) return part;
    Buf *from = &p->bufs[part], *to = &p->bufs[next];
    memcpy(name, from->name, sizeof name);
    memcpy(from->name, to->name, sizeof name);
    memcpy(to->name, name, sizeof name);
    to->param = from->param;
    to->keep = from->keep;
    to->loss = from->loss;
    from->keep = from->loss = false;
    for (int i = 0; i < p->n_params; i++)
        if (p->params[i].grad == part) p->params[i].grad = next;
    if (p->loss == part) p->loss = next;
    return next;
}

void rewrite_emit(Program *p, OpKind kind, int in, int out, const char *path) {
    Op *op = program_op(p, kind, path);
    op->in[0] = in;
    op->out[0] = out;
    op_cost(p, op);
}
