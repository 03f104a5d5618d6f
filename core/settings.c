#include "settings.h"

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

const char *optimizer_spec(int kind, const char **name) {
    static const struct { const char *name, *spec; } table[] = {
#define X(name, spec) {#name, spec},
        OPTIMIZERS(X)
#undef X
    };
    if (kind < 0 || kind >= OPTIM_COUNT) return NULL;
    if (name) *name = table[kind].name;
    return table[kind].spec;
}

static int check_betas(const Optimizer *o, Err *e) {
    const OptimRule *r = &o->rule;
    if (!(r->beta1 >= 0 && r->beta1 < 1) || !(r->beta2 >= 0 && r->beta2 < 1))
        return err_set(e, ERR_SCRIPT, "betas must be in [0, 1), found %g and %g", (double)r->beta1, (double)r->beta2);
    if (!(r->eps >= 0)) return err_set(e, ERR_SCRIPT, "eps must not be negative, found %g", (double)r->eps);
    return OK;
}

static int check_sgd(const Optimizer *o, Err *e) {
    const OptimRule *r = &o->rule;
    if (!(r->momentum >= 0))
        return err_set(e, ERR_SCRIPT, "momentum must not be negative, found %g", (double)r->momentum);
    if (r->nesterov && (!(r->momentum > 0) || r->dampening != 0))
        return err_set(e, ERR_SCRIPT, "nesterov needs a momentum above 0 and dampening = 0");
    return OK;
}

int optimizer_set(Optimizer *o, int kind, const Options *options, Err *e) {
    Optimizer n = {0};
    OptimRule *r = &n.rule;
    n.kind = (OptimKind)kind;
    r->lr = (float)options_float(options, "lr");
    r->weight_decay = (float)options_float(options, "weight_decay");
    r->clip_norm = (float)options_float(options, "clip_norm");
    if (!(r->lr >= 0)) return err_set(e, ERR_SCRIPT, "lr must not be negative, found %g", (double)r->lr);
    if (!(r->weight_decay >= 0))
        return err_set(e, ERR_SCRIPT, "weight_decay must not be negative, found %g", (double)r->weight_decay);
    if (!(r->clip_norm >= 0))
        return err_set(e, ERR_SCRIPT, "clip_norm must not be negative, found %g", (double)r->clip_norm);
    if (kind == OPTIM_SGD) {
        r->momentum = (float)options_float(options, "momentum");
        r->dampening = (float)options_float(options, "dampening");
        r->nesterov = options_bool(options, "nesterov");
        if (check_sgd(&n, e)) return ERR_SCRIPT;
    } else {
        r->beta1 = (float)options_floats(options, "betas", 0);
        r->beta2 = (float)options_floats(options, "betas", 1);
        r->eps = (float)options_float(options, "eps");
        r->decoupled = kind == OPTIM_AdamW;
        if (check_betas(&n, e)) return ERR_SCRIPT;
    }
    *o = n;
    return OK;
}

Settings settings_default(void) {
    Settings s = {0};
    s.accumulate = 1;
    s.workspace_limit = (size_t)4 << 20;
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
