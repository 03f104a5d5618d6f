/* Ops on gradients and parameters after the backward pass. */
#include "program/rule.h"

static bool update_fits(const Operands *o) {
    return same_elements(o->update.g, o->update.w) && (!o->update.lr || o->update.lr->dtype == DT_F32);
}

/* Each state has a code per number of the parameter, in the same order, and a scale per block; blocks are full. */
static bool adam8bit_fits(const Operands *o) {
    const Buf *w = o->adam8bit.w, *scale = o->adam8bit.scale, *const *states = &o->adam8bit.exp_avg;
    const int64_t n = shape_elements(&w->shape), block = o->attr->optim.rule.block_size;
    int kept = 0;
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (!states[k]) continue;
        if (!same_elements(states[k], w) || states[k]->dtype != DT_U8) return false;
        kept++;
    }
    return update_fits(o) && block > 0 && n % block == 0 && scale->dtype == DT_F32 &&
           shape_elements(&scale->shape) == n / block * kept;
}

static void update_show(const Attr *a, Line *l) { line_put(l, " lr=%g", (double)a->optim.rule.lr); }

#define EACH(op, ...) const OpRule rule_##op = {update_fits, NULL, NULL, update_show};
#include "program/optimizers.def"
const OpRule rule_adafactor = {update_fits, NULL, NULL, update_show};
const OpRule rule_formula = {update_fits, NULL, NULL, update_show};
const OpRule rule_adam8bit = {adam8bit_fits, NULL, NULL, update_show};

static void accumulate_show(const Attr *a, Line *l) {
    if (a->accumulate.more) line_put(l, " more");
}

const OpRule rule_accumulate = {fits_elements, NULL, NULL, accumulate_show};
const OpRule rule_grad_check = {NULL, NULL, NULL, NULL};
const OpRule rule_grad_square = {NULL, NULL, NULL, NULL};
const OpRule rule_step_begin = {NULL, NULL, NULL, NULL};
const OpRule rule_scale_update = {NULL, NULL, NULL, NULL};
