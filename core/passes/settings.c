#include "settings.h"

#include <string.h>

#include "program/quant8.h"

const PrecisionInfo *precision_info(Precision p) {
#define AUTOCAST_ON true
#define AUTOCAST_OFF false
    static const PrecisionInfo table[] = {
#define X(name, text, low, weights, autocast, master, scaling, what) \
        {text, DT_##low, DT_##weights, autocast, master, scaling},
        PRECISIONS(X)
#undef X
    };
    return &table[p];
}

static const struct { const char *name, *spec; OpKind op; } optimizers[] = {
#define X(name, rule, spec) {#name, spec OPTIM_CLIPS, OP_##rule},
    OPTIMIZERS(X)
#undef X
};

const char *optimizer_spec(int kind, const char **name) {
    if (kind < 0 || kind >= OPTIM_COUNT) return NULL;
    if (name) *name = optimizers[kind].name;
    return optimizers[kind].spec;
}

OpKind optimizer_op(const Optimizer *o, const Shape *like) {
    const int64_t n = like ? shape_elements(like) : 0, block = o->rule.block_size;
    return block && n >= CODES_LEAST && n % block == 0 ? OP_adam8bit : optimizers[o->kind].op;
}

bool optimizer_keeps(const Optimizer *o, int slot, const Shape *like, DType type, OptimState *state) {
    const int rank = like->rank;
    const OpKind op = optimizer_op(o, like);
    /* of the states that ops.def calls optional; over: the dimension of which one is left, from the last one on */
    const struct { const char *state; bool wanted; int over; } optional[] = {
        {"momentum_buffer", o->rule.momentum != 0.0f, 0},
        {"grad_avg", o->rule.centered, 0},
        {"max_exp_avg_sq", o->rule.amsgrad, 0},
        {"row_var", rank > 1, 1},
        {"col_var", rank > 1, 2},
        {"variance", rank == 1, 0},
    };
    const char *name = op_info(op)->out[slot].name;
    *state = (OptimState){*like, op == OP_adam8bit ? DT_U8 : type};
    if (!strcmp(name, "scale"))
        *state = (OptimState){shape1(shape_elements(like) / o->rule.block_size * (2 + o->rule.amsgrad)), DT_F32};
    for (size_t i = 0; i < ARRAY_LEN(optional); i++) {
        if (strcmp(name, optional[i].state) != 0) continue;
        if (optional[i].wanted && optional[i].over) state->shape.dim[rank - optional[i].over] = 1;
        return optional[i].wanted;
    }
    return true;
}

/* Options that are one number of the rule each, of whichever optimizer has them. */
static const struct { const char *name; size_t at; bool any; } numbers[] = {
    {"lr", offsetof(OptimRule, lr), false},
    {"momentum", offsetof(OptimRule, momentum), false},
    {"dampening", offsetof(OptimRule, dampening), true},
    {"weight_decay", offsetof(OptimRule, weight_decay), false},
    {"eps", offsetof(OptimRule, eps), false},
    {"clip_norm", offsetof(OptimRule, clip_norm), false},
    {"alpha", offsetof(OptimRule, alpha), false},
    {"rho", offsetof(OptimRule, alpha), false}, /* no optimizer has both */
    {"lr_decay", offsetof(OptimRule, lr_decay), false},
    {"initial_accumulator_value", offsetof(OptimRule, initial_accumulator_value), false},
    {"beta2_decay", offsetof(OptimRule, beta2_decay), true},
    {"d", offsetof(OptimRule, d), false},
};

static int set_adafactor(OptimRule *r, const Options *options, Err *e) {
    r->eps = (float)options_floats(options, "eps", 0);
    r->eps2 = (float)options_floats(options, "eps", 1);
    if (!(r->eps >= 0) || !(r->eps2 >= 0))
        return err_set(e, ERR_SCRIPT, "eps must not be negative, found %g and %g", (double)r->eps, (double)r->eps2);
    if (!(r->beta2_decay <= 0))
        return err_set(e, ERR_SCRIPT, "beta2_decay must not be above 0, found %g", (double)r->beta2_decay);
    if (!(r->d >= 1)) return err_set(e, ERR_SCRIPT, "d must be at least 1, found %g", (double)r->d);
    return OK;
}

static int set_block(OptimRule *r, const Options *options, Err *e) {
    const int64_t size = options_int(options, "block_size");
    if (size < 1 || size > CODES_MOST)
        return err_set(e, ERR_SCRIPT, "block_size must be from 1 to %d, found %lld", CODES_MOST, (long long)size);
    r->block_size = (int)size;
    return OK;
}

int optimizer_set(Optimizer *o, int kind, const Options *options, Err *e) {
    OptimRule r = {0};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        double value = options_float(options, numbers[i].name);
        if (!numbers[i].any && !(value >= 0))
            return err_set(e, ERR_SCRIPT, "%s must not be negative, found %g", numbers[i].name, value);
        *(float *)(void *)((char *)&r + numbers[i].at) += (float)value;
    }
    if (options_float(options, "rho") > 1)
        return err_set(e, ERR_SCRIPT, "rho must not be above 1, found %g", options_float(options, "rho"));
    r.beta1 = (float)options_floats(options, "betas", 0);
    r.beta2 = (float)options_floats(options, "betas", 1);
    if (!(r.beta1 >= 0 && r.beta1 < 1) || !(r.beta2 >= 0 && r.beta2 < 1))
        return err_set(e, ERR_SCRIPT, "betas must be in [0, 1), found %g and %g", (double)r.beta1, (double)r.beta2);
    r.nesterov = options_bool(options, "nesterov");
    if (r.nesterov && (!(r.momentum > 0) || r.dampening != 0))
        return err_set(e, ERR_SCRIPT, "nesterov needs a momentum above 0 and dampening = 0");
    r.centered = options_bool(options, "centered");
    r.amsgrad = options_bool(options, "amsgrad");
    const bool coded = kind == OPTIM_Adam8bit || kind == OPTIM_AdamW8bit;
    r.decoupled = kind == OPTIM_AdamW || kind == OPTIM_AdamW8bit || options_bool(options, "decoupled_weight_decay");
    if (kind == OPTIM_Adafactor && set_adafactor(&r, options, e)) return ERR_SCRIPT;
    if (coded && set_block(&r, options, e)) return ERR_SCRIPT;
    *o = (Optimizer){(OptimKind)kind, r};
    return OK;
}

Settings settings_default(void) {
    Settings s = {0};
    s.accumulate = 1;
    s.workspace_limit = (size_t)4 << 20;
    s.offload_least = 4096;
    s.graph = true;
    s.optimizer.kind = OPTIM_Adam;
    s.optimizer.rule.lr = 1e-3f;
    s.optimizer.rule.beta1 = 0.9f;
    s.optimizer.rule.beta2 = 0.999f;
    s.optimizer.rule.eps = 1e-8f;
    s.scaler.growth = 2.0f;
    s.scaler.backoff = 0.5f;
    s.scaler.interval = 2000;
    s.loss_scale = 65536.0f;
    return s;
}
