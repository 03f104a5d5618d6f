#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "loss.h"

const char *category_name(Category c) {
    static const char *const names[] = {
#define X(name, text, what) text,
        CATEGORIES(X)
#undef X
    };
    assert((unsigned)c < CAT_COUNT);
    return names[c];
}

Program *program_new(void) {
    Program *p = mem_new(sizeof *p);
    if (!p) return NULL;
    p->target = p->output = p->loss = p->state = p->lr = p->calls = NO_BUF;
    p->micro_batches = p->fed = p->world = p->tensor = p->pipeline = 1;
    return p;
}

/* Precision may have made the buffer smaller than its values. */
static size_t constant_bytes(const Buf *b) { return (size_t)shape_elements(&b->shape) * CONSTANT_BYTES; }

/* Gives a copied program constants of its own; until then it has the pointers of the original. false: out of host
 * memory; constants that were not copied are NULL. */
static bool copy_constants(Program *p) {
    bool copied = true;
    for (int b = 0; b < p->n_bufs; b++) {
        if (!p->bufs[b].constant) continue;
        p->bufs[b].constant = copied ? mem_copy(p->bufs[b].constant, constant_bytes(&p->bufs[b])) : NULL;
        copied &= p->bufs[b].constant != NULL;
    }
    return copied;
}

Program *program_copy(const Program *p) {
    Program *c = mem_copy(p, sizeof *p);
    if (!c) return NULL;
    c->placed = NULL;
    c->bufs = mem_copy(p->bufs, (size_t)p->n_bufs * sizeof *p->bufs);
    c->ops = mem_copy(p->ops, (size_t)p->n_ops * sizeof *p->ops);
    c->params = mem_copy(p->params, (size_t)p->n_params * sizeof *p->params);
    c->cap_params = p->n_params;
    c->cap_bufs = p->n_bufs;
    c->cap_ops = p->n_ops;
    bool copied = c->bufs && copy_constants(c);
    if (copied && c->ops && c->params) return c;
    program_free(c);
    return NULL;
}

void program_free(Program *p) {
    if (!p) return;
    for (int b = 0; p->bufs && b < p->n_bufs; b++) mem_free(p->bufs[b].constant);
    mem_free(p->bufs);
    mem_free(p->ops);
    mem_free(p->params);
    mem_free(p->placed);
    mem_free(p);
}

void program_resize(Program *p, int buf) {
    Buf *b = &p->bufs[buf];
    int64_t n;
    if (shape_count(&b->shape, &n, NULL) != OK) p->failed = true; /* shapes of the network were checked before */
    else b->bytes = (size_t)(b->shard.count ? b->shard.count : n) * dtype_size(b->dtype);
}

enum { NUMBER = 16 }; /* characters of a name that was cut off */

int program_buf(Program *p, Category category, Shape shape, DType dtype, const char *name, ...) {
    char text[BUF_NAME]; /* made first: the arguments may be in p->bufs, which may move */
    assert((unsigned)category < CAT_COUNT);
    va_list args;
    va_start(args, name);
    int length = vsnprintf(text, sizeof text, name, args);
    va_end(args);
    if (p->failed || !mem_grow(&p->bufs, &p->cap_bufs, p->n_bufs + 1, sizeof *p->bufs)) {
        p->failed = true;
        return 0;
    }
    Buf *b = &p->bufs[p->n_bufs];
    memset(b, 0, sizeof *b);
    memcpy(b->name, text, sizeof text);
    if (length >= BUF_NAME) snprintf(b->name + BUF_NAME - NUMBER, NUMBER, "~%d", p->n_bufs); /* cut off, but its own */
    b->category = category;
    b->shape = shape;
    b->dtype = dtype;
    b->alias = b->ahead = NO_BUF;
    b->param = b->stage = -1;
    program_resize(p, p->n_bufs);
    return p->n_bufs++;
}

int program_like(Program *p, int like, Category category, Shape shape, DType dtype, const char *suffix) {
    assert(p->failed || (like >= 0 && like < p->n_bufs));
    int b = p->failed ? 0 : program_buf(p, category, shape, dtype, "%s.%s", p->bufs[like].name, suffix);
    if (p->failed) return 0;
    const Buf *from = &p->bufs[like];
    if (shape.rank == from->shape.rank) p->bufs[b].layout = from->layout;
    p->bufs[b].turned = from->turned && shape_equal(&shape, &from->shape);
    if (shape_equal(&shape, &from->shape)) {
        p->bufs[b].slice = from->slice;
        p->bufs[b].shard = from->shard;
        program_resize(p, b);
    }
    if (shape.dim[1] == from->shape.dim[1]) memcpy(p->bufs[b].order, from->order, sizeof from->order);
    return b;
}

int program_param(Program *p, Shape shape, DType dtype, const char *name) {
    int b = program_buf(p, CAT_WEIGHTS, shape, dtype, "%s", name);
    if (p->failed || !mem_grow(&p->params, &p->cap_params, p->n_params + 1, sizeof *p->params)) {
        p->failed = true;
        return 0;
    }
    p->bufs[b].kind = BUF_PERSISTENT;
    p->bufs[b].param = p->n_params;
    p->params[p->n_params++] = (ParamBufs){b, NO_BUF, NO_BUF, 0};
    return b;
}

Op *program_op(Program *p, OpKind kind, const char *path) {
    static _Thread_local Op dummy; /* where ops go after a failure, so that code that emits ops needs no checks */
    Op *op = &dummy;
    if (p->failed || !mem_grow(&p->ops, &p->cap_ops, p->n_ops + 1, sizeof *p->ops)) p->failed = true;
    else op = &p->ops[p->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->workspace = NO_BUF;
    for (int k = 0; k < OP_IN; k++) op->in[k] = NO_BUF;
    for (int k = 0; k < OP_OUT; k++) op->out[k] = NO_BUF;
    snprintf(op->path, sizeof op->path, "%s", path);
    return op;
}

/* *buf: a persistent buffer of `numbers` 32-bit numbers, made unless it is there. */
static int counter(Program *p, int *buf, Category category, int64_t numbers, const char *name) {
    if (*buf != NO_BUF) return *buf;
    int b = program_buf(p, category, shape1(numbers), DT_I32, "%s", name);
    if (p->failed) return 0;
    p->bufs[b].kind = BUF_PERSISTENT;
    return *buf = b;
}

const char *program_scoped(const Program *p, const char *name, char *text) {
    snprintf(text, BUF_NAME, "%s%s%s", p->scope, p->scope[0] ? "." : "", name);
    return text;
}

int64_t program_classes(const Program *p, const Op *op) {
    const LossAttr *loss = &op->attr.loss;
    if (op->kind == OP_cross_entropy) return loss_classes(loss, p->bufs[op->cross_entropy.x].shape.dim[1]);
    const bool of_linear = op->kind == OP_linear_cross_entropy || op->kind == OP_linear_cross_entropy_dx;
    return of_linear ? loss_classes(loss, p->bufs[op->linear_cross_entropy.w].shape.dim[0]) : 0;
}

int program_positions(const Op *op) {
    return op->kind == OP_attention ? op->attention.positions : op->kind == OP_rotary ? op->rotary.positions : NO_BUF;
}

int program_state(Program *p) {
    char name[BUF_NAME];
    return counter(p, &p->state, CAT_OPTIMIZER, sizeof(StepState) / 4, program_scoped(p, "state", name));
}

int program_calls(Program *p) { return counter(p, &p->calls, CAT_OTHER, 1, "calls"); }

/* Gives the buffer room for the values that it has for good. */
static void make_constant(Program *p, Buf *b) {
    assert(b->dtype == DT_F32 || b->dtype == DT_I32);
    b->kind = BUF_PERSISTENT;
    b->constant = mem_new(constant_bytes(b));
    if (!b->constant) p->failed = true;
}

void program_set_constant(Program *p, int buf, const double *values) {
    if (p->failed) return;
    Buf *b = &p->bufs[buf];
    make_constant(p, b);
    for (int64_t i = 0; i < shape_elements(&b->shape) && b->constant; i++) {
        if (b->dtype == DT_I32) ((int32_t *)b->constant)[i] = (int32_t)values[i];
        else ((float *)b->constant)[i] = (float)values[i];
    }
}

int program_constant(Program *p, const char *name, Shape shape, DType dtype, const double *values) {
    int b = program_buf(p, CAT_OTHER, shape, dtype, "%s", name);
    program_set_constant(p, b, values);
    return b;
}

int program_whole_numbers(Program *p, const char *name, Shape shape, int32_t **values) {
    int b = program_buf(p, CAT_OTHER, shape, DT_I32, "%s", name);
    *values = NULL;
    if (p->failed) return b;
    make_constant(p, &p->bufs[b]);
    *values = p->bufs[b].constant;
    return b;
}

/* Op `op` touches the buffer. */
static void live_at(const Program *p, Life *life, int buf, int op) {
    Life *l = &life[program_root(p, buf)];
    if (!l->used) l->first = op;
    l->used = true;
    if (op > l->last) l->last = op;
}

/* Extends the life in which ops touch the storage by what the buffer's kind and flags demand. */
static void extend(const Program *p, const Buf *b, Life *l) {
    int end = p->n_ops - 1;
    if (b->kind == BUF_PERSISTENT) {
        l->first = 0;
        l->last = end;
        l->used = true;
    }
    if (!l->used) return;
    if (b->kind == BUF_INPUT || b->carried || (b->keep && p->micro_batches > 1)) l->first = 0;
    if (b->carried && l->last < p->body_end - 1) l->last = p->body_end - 1;
    if (b->keep) l->last = end;
}

void program_lives(const Program *p, Life *life) {
    assert(p->body_end <= p->n_ops);
    memset(life, 0, (size_t)p->n_bufs * sizeof *life);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        EACH_IN(op, k) live_at(p, life, op->in[k], i);
        EACH_OUT(op, k) live_at(p, life, op->out[k], i);
        if (op->workspace != NO_BUF) live_at(p, life, op->workspace, i);
    }
    for (int b = 0; b < p->n_bufs; b++) {
        Life *l = &life[program_root(p, b)];
        extend(p, &p->bufs[b], l);
        life[b].persistent = p->bufs[b].kind == BUF_PERSISTENT;
        life[b].host = p->bufs[b].host;
        if (l->used) l->bytes = max_size(l->bytes, p->bufs[b].bytes);
    }
}
