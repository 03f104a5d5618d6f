#include "gradient.h"

#include <stdio.h>
#include <string.h>

/* "x.grad" -> "x.grad.what7", where 7 is the number of ops, so that no other buffer has the name. */
static void rename_buf(Program *p, int buf, const char *what) {
    char name[BUF_NAME];
    if (p->failed) return;
    snprintf(name, sizeof name, "%.*s.%s%d", BUF_NAME - 20, p->bufs[buf].name, what, p->n_ops);
    memcpy(p->bufs[buf].name, name, sizeof name);
}

int gradient_buf(Gradients *g, int of) {
    assert(of >= 0 && of < g->p->n_bufs);
    const Buf *like = &g->p->bufs[of];
    bool weight = like->kind == BUF_PERSISTENT;
    int made = program_like(g->p, of, weight ? CAT_GRADIENTS : CAT_ACTIVATION_GRADIENTS, like->shape, like->dtype,
                            "grad");
    if (!g->p->failed && weight) g->p->bufs[made].param = g->p->bufs[of].param;
    return made;
}

int gradient_buf_wanted(Gradients *g, int of) { return gradient_wanted(g, of) ? gradient_buf(g, of) : NO_BUF; }

Op *gradient_op(Gradients *g, OpKind kind, const Op *f) {
    Op *op = program_op(g->p, kind, f->path);
    op->attr = f->attr;
    return op;
}

void gradient_add(Gradients *g, const Op *f, int of, int buf) {
    Program *p = g->p;
    assert(p->failed || shape_equal(&p->bufs[of].shape, &p->bufs[buf].shape));
    int before = g->grad[of];
    g->grad[of] = buf;
    if (before == NO_BUF) return;
    rename_buf(p, before, "part");
    if (buf != before) rename_buf(p, buf, "more");
    int sum = gradient_buf(g, of);
    if (p->failed) return;
    Op *op = gradient_op(g, OP_add, f);
    memset(&op->attr, 0, sizeof op->attr);
    op->add.a = before;
    op->add.b = buf;
    op->add.y = g->grad[of] = sum;
}

void gradient_by(Gradients *g, OpKind kind, const Op *f, int of, int in0, int in1) {
    int made = gradient_buf_wanted(g, of);
    if (made == NO_BUF) return;
    Op *op = gradient_op(g, kind, f);
    op->in[0] = in0;
    op->in[1] = in1;
    op->out[0] = made;
    gradient_add(g, f, of, made);
}

void gradient_pass(Gradients *g, const Op *f, int of, int dy) {
    if (gradient_wanted(g, of)) gradient_add(g, f, of, dy);
}

int gradient_through_act(Gradients *g, Op *f, int dy) {
    ActAttr *fused = attr_fused(f->kind, &f->attr);
    assert(fused);
    ActAttr act = *fused;
    memset(fused, 0, sizeof *fused);
    if (act.act == ACT_NONE) return dy;
    int before = gradient_buf(g, f->out[0]);
    rename_buf(g->p, before, "pre"); /* of the activation's input, which is never stored */
    Op *op = gradient_op(g, OP_act_dx, f);
    memset(&op->attr, 0, sizeof op->attr);
    op->attr.act = act;
    op->act_dx.dy = dy;
    op->act_dx.s = f->out[0];
    op->act_dx.dx = before;
    return before;
}
