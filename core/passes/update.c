/* The update, once per step: the optimizer's op for every parameter that has a gradient, with its states as persistent
 * buffers; before and after them, if they are needed, the step count and the dynamic loss scale:
 *
 *   grad_check, grad_square (every gradient)   step_begin   sgd | adam | ... (every parameter)   scale_update
 *
 * Updates of one kind stand together, so that a device can run small ones together; between those whose states come
 * from the host's memory (page.c) there are copies, so they stand by themselves.
 *
 * A learning rate that may change, and the square of the gradients' norm, are persistent buffers, "lr" and
 * "grad_square". */
#include <assert.h>

#include "distribute.h"

/* A persistent buffer beside parameter `w`: "<w>.<what>". */
static int state_buf(Program *p, int w, Category category, OptimState state, const char *what) {
    int b = program_like(p, w, category, state.shape, state.type, what);
    if (p->failed) return NO_BUF;
    p->bufs[b].kind = BUF_PERSISTENT;
    p->bufs[b].param = p->bufs[w].param;
    distribute_divide(p, b, p->bufs[p->params[p->bufs[w].param].grad].shard);
    return b;
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

/* Is there a gradient of which the ranks have different elements? */
static bool divides(const Program *p) {
    for (int i = 0; i < p->n_params; i++) {
        const int grad = p->params[i].grad;
        if (grad != NO_BUF && (p->bufs[grad].shard.count || p->bufs[grad].slice.parts)) return true;
    }
    return false;
}

/* How many ranks have these elements of the gradient. */
static int copies_of(const Program *p, const Buf *grad) {
    return (grad->shard.count ? 1 : p->world) * (grad->slice.parts ? 1 : p->tensor);
}

/* Do the ranks along the axis have different gradients, or different elements of them? */
static bool differ_along(const Program *p, MeshAxis axis) {
    return program_axis(p, axis).world > 1 && (axis == MESH_PIPELINE || divides(p));
}

/* Emits the sum of the squares of all gradients; returns its buffer. */
static int sum_squares(Program *p) {
    const int square = number_buf(p, "grad_square", 0);
    const bool divided = divides(p);
    bool first = true;
    for (int i = 0; i < p->n_params && !p->failed; i++) {
        const ParamBufs *param = &p->params[i];
        if (param->grad == NO_BUF) continue;
        Op *op = program_op(p, OP_grad_square, p->bufs[param->weight].name);
        op->attr.square = (SquareAttr){first, divided ? 1.0f / (float)copies_of(p, &p->bufs[param->grad]) : 1.0f};
        op->in[0] = param->grad;
        op->out[0] = square;
        op_cost(p, op);
        first = false;
    }
    for (int axis = 0; axis < MESH_AXES; axis++)
        if (differ_along(p, (MeshAxis)axis)) distribute_op(p, OP_all_reduce_, (MeshAxis)axis, NO_BUF, square, 0, "");
    return square;
}

/* What the update of the weight changes: the weight or, where its gradient is a shard and it is not, that shard of it. */
static int updated_part(Program *p, const ParamBufs *param) {
    const int w = param->weight;
    const Shard shard = p->bufs[param->grad].shard;
    if (!shard.count || p->bufs[w].shard.count) return w;
    const int part = program_like(p, w, CAT_WEIGHTS, p->bufs[w].shape, p->bufs[w].dtype, "shard");
    if (p->failed) return w;
    distribute_divide(p, part, shard);
    p->bufs[part].alias = w;
    p->bufs[part].start = shard.first;
    return part;
}

/* in[3]: the buffers of the StepState, the learning rate and the square of the norm, or NO_BUF. */
static void update_param(Program *p, const Optimizer *o, ParamBufs *param, const int *in) {
    int w = param->weight;
    assert(param->grad != NO_BUF && param->master == NO_BUF && !p->bufs[w].frozen);
    bool master = p->masters && p->bufs[w].dtype != DT_F32;
    DType type = master ? DT_F32 : p->bufs[w].dtype;
    OpKind kind = optimizer_op(o, &p->bufs[w].shape);
    OptimState state;
    const int part = updated_part(p, param);
    Op *op = program_op(p, kind, p->bufs[w].name);
    op->attr.optim.rule = o->rule;
    op->in[0] = param->grad;
    for (int k = 0; k < 3; k++) op->in[1 + k] = in[k];
    op->out[0] = part;
    for (int k = 1; k < op_master(kind) && !p->failed; k++) {
        if (!optimizer_keeps(o, k, &p->bufs[w].shape, type, &state)) continue;
        op->out[k] = state_buf(p, w, CAT_OPTIMIZER, state, optimizer_state_name(o, k, &p->bufs[w].shape));
        if (!p->failed) p->bufs[op->out[k]].first = o->rule.initial_accumulator_value;
    }
    state = (OptimState){p->bufs[w].shape, DT_F32};
    if (master) op->out[op_master(kind)] = param->master = state_buf(p, w, CAT_WEIGHTS, state, "master");
    if (!p->failed) op_cost(p, op);
}

/* The updates of all parameters whose states have 8 bits, or not, and are paged, or not. */
static void update_params(Program *p, const Settings *s, bool coded, bool paged, const int *in) {
    for (int i = 0; i < p->n_params && !p->failed; i++) {
        ParamBufs *param = &p->params[i];
        const Shape *shape = &p->bufs[param->weight].shape;
        if (param->grad == NO_BUF || paged != optimizer_pages(s, shape)) continue;
        if (coded != (optimizer_op(&s->optimizer, shape) == OP_adam8bit)) continue;
        if (s->keep_gradients) p->bufs[param->grad].keep = true;
        update_param(p, &s->optimizer, param, in);
    }
}

/* An op that changes the StepState: grad_check of a gradient, step_begin, scale_update. */
static void state_op(Program *p, OpKind kind, int gradient, const Settings *s) {
    int state = program_state(p);
    Op *op = program_op(p, kind, "");
    op->in[0] = gradient;
    op->out[0] = state;
    if (kind == OP_scale_update) op->attr.scaler = s->scaler.attr;
}

/* Does the update depend on the step number? Adam's corrections, a formula that asks for it and a learning rate that
 * decays do. So does dampening, which PyTorch leaves out in the first step; without dampening, momentum that starts at
 * zero gives PyTorch's values. */
static bool is_counted(const Optimizer *o) {
    bool always = !op_info(optimizer_op(o, NULL))->in[1].optional || formula_counts(&o->formula); /* "state" */
    return always || (o->rule.momentum != 0.0f && o->rule.dampening != 0.0f) || o->rule.lr_decay != 0.0f;
}

int pass_update(Program *p, Compile *c) {
    const Settings *s = c->settings;
    const OptimRule *rule = &s->optimizer.rule;
    if (s->eval) return OK;
    if (divides(p) && (rule->block_size || optimizer_op(&s->optimizer, NULL) == OP_adafactor))
        return err_set(c->e, ERR_SCRIPT, "the optimizer keeps states of %s, which ranks do not divide: expected zero = 0, and a mesh without tensor",
                       rule->block_size ? "8 bits" : "rows and columns");
    assert(!p->updates && p->micro_batches == s->accumulate); /* after accumulate */
    const int before = p->n_ops;
    p->formula = s->optimizer.formula;
    bool counted = p->loss_scaling || is_counted(&s->optimizer);
    int state = counted ? program_state(p) : NO_BUF;
    p->first_scale = p->loss_scaling ? s->scaler.init_scale : 1.0f;
    for (int i = 0; i < p->n_params && p->loss_scaling && !p->failed; i++)
        if (p->params[i].grad != NO_BUF) state_op(p, OP_grad_check, p->params[i].grad, s);
    for (int axis = 0; axis < MESH_AXES && p->loss_scaling; axis++)
        if (differ_along(p, (MeshAxis)axis))
            distribute_op(p, OP_any_overflow, (MeshAxis)axis, NO_BUF, p->state, 0, "");
    p->lr = s->scheduled ? number_buf(p, "lr", rule->lr) : NO_BUF;
    int square = rule->clip_norm > 0.0f ? sum_squares(p) : NO_BUF;
    if (counted) state_op(p, OP_step_begin, NO_BUF, s);
    for (int k = 0; k < 4; k++) update_params(p, s, k % 2 == 0, k >= 2, (int[]){state, p->lr, square});
    if (p->loss_scaling) state_op(p, OP_scale_update, NO_BUF, s);
    p->updates = p->n_ops > before;
    return OK;
}
