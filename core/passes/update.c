/* The update, once per step: the optimizer's op for every parameter that has a gradient, with its state as persistent
 * buffers; around them, where they are needed, the step count and the dynamic loss scale:
 *
 *   grad_check, grad_square (every gradient)   step_begin   sgd | adam | ... (every parameter)   scale_update
 *
 * Updates of one kind stand together, since a device may take small ones together.
 *
 * A learning rate that may change and the square of the gradients' norm are persistent buffers, "lr" and
 * "grad_square". */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/names.h"
#include "passes.h"

/* A persistent buffer beside parameter `w`: "<w>.<what>". It lies as the parameter does where it has its shape, or that
 * with 1 in place of a dimension. */
static int state_buf(Program *p, int w, Category category, OptimState state, const char *what) {
    const Buf like = p->bufs[w];
    const Shape *shape = &state.shape;
    int b = program_buf(p, category, *shape, state.type, "%s.%s", like.name, what);
    if (p->failed) return NO_BUF;
    p->bufs[b].kind = BUF_PERSISTENT;
    p->bufs[b].param = like.param;
    if (shape->rank == like.shape.rank) p->bufs[b].layout = like.layout;
    if (shape->dim[1] == like.shape.dim[1]) memcpy(p->bufs[b].order, like.order, sizeof like.order);
    return b;
}

/* By buffer: the gradient of the parameter that it is, or NO_BUF; NULL: no host memory. */
static int *find_gradients(const Program *p) {
    char name[BUF_NAME + 8];
    Names names = {0};
    int *grad = mem_new((size_t)p->n_bufs * sizeof *grad);
    bool made = grad != NULL;
    for (int b = 0; b < p->n_bufs && made; b++) made = names_add(&names, b, program_buf_name, p);
    for (int w = 0; w < p->n_bufs && made; w++) {
        snprintf(name, sizeof name, "%s.grad", p->bufs[w].name);
        grad[w] = p->bufs[w].kind == BUF_PERSISTENT ? names_find(&names, name, program_buf_name, p) : NO_BUF;
    }
    names_free(&names);
    if (made) return grad;
    mem_free(grad);
    return NULL;
}

/* A persistent number that starts with `first`. */
static int number_buf(Program *p, const char *name, float first) {
    char text[BUF_NAME];
    int b = program_buf(p, CAT_OPTIMIZER, shape1(1), DT_F32, "%s", program_scoped(p, name, text));
    if (p->failed) return NO_BUF;
    p->bufs[b].kind = BUF_PERSISTENT;
    p->bufs[b].first = first;
    return b;
}

/* The sum of squares of all gradients -> its buffer */
static int sum_squares(Program *p, const int *grad, int n) {
    int square = number_buf(p, "grad_square", 0);
    bool first = true;
    for (int w = 0; w < n && !p->failed; w++) {
        if (grad[w] == NO_BUF) continue;
        Op *op = program_op(p, OP_grad_square, p->bufs[w].name);
        op->attr.square.first = first;
        op->in[0] = grad[w];
        op->out[0] = square;
        op_cost(p, op);
        first = false;
    }
    return square;
}

/* in: the state, lr and the square, each of them or NO_BUF */
static void update_param(Program *p, const Optimizer *o, int w, int grad, const int *in) {
    DType type = p->bufs[w].master ? DT_F32 : p->bufs[w].dtype;
    OpKind kind = optimizer_op(o, &p->bufs[w].shape);
    OptimState state;
    Op *op = program_op(p, kind, p->bufs[w].name);
    op->attr.optim.rule = o->rule;
    op->in[0] = grad;
    for (int k = 0; k < 3; k++) op->in[1 + k] = in[k];
    op->out[0] = w;
    for (int k = 1; k < op_master(kind) && !p->failed; k++) {
        if (!optimizer_keeps(o, k, &p->bufs[w].shape, type, &state)) continue;
        op->out[k] = state_buf(p, w, CAT_OPTIMIZER, state, op_info(kind)->out[k].name);
        if (!p->failed) p->bufs[op->out[k]].first = o->rule.initial_accumulator_value;
    }
    state = (OptimState){p->bufs[w].shape, DT_F32};
    if (p->bufs[w].master) op->out[op_master(kind)] = state_buf(p, w, CAT_WEIGHTS, state, "master");
    if (!p->failed) op_cost(p, op);
}

/* Those of all parameters among the first n buffers whose states have 8 bits, or of all others */
static void update_params(Program *p, const Settings *s, const int *grad, int n, bool coded, const int *in) {
    for (int w = 0; w < n && !p->failed; w++) {
        if (grad[w] == NO_BUF || coded != (optimizer_op(&s->optimizer, &p->bufs[w].shape) == OP_adam8bit)) continue;
        if (s->keep_gradients) p->bufs[grad[w]].keep = true;
        update_param(p, &s->optimizer, w, grad[w], in);
    }
}

static void state_op(Program *p, OpKind kind, int gradient, const Settings *s) {
    int state = program_state(p);
    Op *op = program_op(p, kind, "");
    op->in[0] = gradient;
    op->out[0] = state;
    if (kind == OP_scale_update) op->attr.scaler = s->scaler;
}

/* Is one update another than the next? Dampening leaves out the first; without it a buffer that starts at zero gives
 * PyTorch's values. A rate decays. */
static bool is_counted(const Optimizer *o) {
    bool always = !op_info(optimizer_op(o, NULL))->in[1].optional; /* "state" */
    return always || (o->rule.momentum != 0.0f && o->rule.dampening != 0.0f) || o->rule.lr_decay != 0.0f;
}

/* grad: as find_gradients gives it, of the first n buffers. */
static void emit_update(Program *p, const Settings *s, const int *grad, int n) {
    const OptimRule *rule = &s->optimizer.rule;
    bool counted = p->loss_scaling || is_counted(&s->optimizer);
    int state = counted ? program_state(p) : NO_BUF;
    p->first_scale = p->loss_scaling ? s->loss_scale : 1.0f;
    for (int w = 0; w < n && p->loss_scaling && !p->failed; w++)
        if (grad[w] != NO_BUF) state_op(p, OP_grad_check, grad[w], s);
    p->lr = s->scheduled ? number_buf(p, "lr", rule->lr) : NO_BUF;
    int square = rule->clip_norm > 0.0f ? sum_squares(p, grad, n) : NO_BUF;
    if (counted) state_op(p, OP_step_begin, NO_BUF, s);
    for (int k = 0; k < 2; k++)
        update_params(p, s, grad, n, k == 0, (int[]){state, p->lr, square});
    if (p->loss_scaling) state_op(p, OP_scale_update, NO_BUF, s);
    p->updates = p->n_ops > p->body_end;
}

int pass_update(Program *p, const Settings *s, Err *e) {
    if (s->eval) return OK;
    int *grad = find_gradients(p);
    if (grad) emit_update(p, s, grad, p->n_bufs);
    else p->failed = true;
    mem_free(grad);
    return program_check(p, "update", e);
}
