#include "optim.h"

/* What a step allocates beside states, for each of its rules. In the for-each-tensor form these are lists, a tensor for
 * each parameter, which live to the step's end; in the for-loop form one parameter comes after the other, and what is
 * `bound` to a variable lives until the next parameter's is bound to it. */
typedef struct Temporary { const char *op; bool bound; } Temporary;
typedef struct Temporaries {
    OpKind rule;
    const char *foreach[2];
    Temporary loop[2];
    bool drops_gradients; /* gradients with weight decay in them go before the lists are made */
    int of_gradients;     /* 1 + the list that is made in place where weight decay has made copies of the gradients */
    int passes;           /* tensors of the parameter's size that the step's calls read and write, temporaries among them */
    int with_momentum;    /* ... more of them */
} Temporaries;

static const Temporaries temporaries[] = {
    {OP_sgd, {NULL}, {{NULL}}, false, 0, 3, 5},
    {OP_adam, {"aten::_foreach_sqrt"}, {{"aten::sqrt", false}, {"aten::div", true}}, true, 0, 18, 0},
    {OP_radam, {"aten::_foreach_sqrt"}, {{NULL}}, true, 0, 22, 0},
    {OP_adamax, {"aten::_foreach_abs"}, {{"aten::abs", false}}, false, 1, 16, 0},
    {OP_rmsprop, {"aten::_foreach_sqrt"}, {{"aten::sqrt", true}}, false, 0, 13, 5},
    {OP_adagrad, {"aten::_foreach_sqrt", "aten::_foreach_mul"}, {{"aten::sqrt", true}}, false, 2, 13, 0},
    {OP_adadelta, {"aten::_foreach_add", "aten::_foreach_add"}, {{"aten::add", true}, {"aten::add", true}}, false, 0, 27, 0},
};

static OpKind rule_of(const EagerOptim *s) { return optimizer_op(s->optimizer, NULL); }

static const Temporaries *temporaries_of(const EagerOptim *s) {
    for (size_t i = 0; i < ARRAY_LEN(temporaries); i++)
        if (temporaries[i].rule == rule_of(s)) return &temporaries[i];
    return NULL;
}

const char *optim_unknown(const Optimizer *o, OptimForm form) {
    switch (o->kind) {
    case OPTIM_Adam8bit: case OPTIM_AdamW8bit: return "torchao's 8-bit optimizers are not predicted";
    case OPTIM_RAdam: return form == FORM_FORLOOP ? "RAdam's for-loop form is not predicted" : NULL;
    default: break;
    }
    const bool fused = o->kind == OPTIM_SGD || o->kind == OPTIM_Adam || o->kind == OPTIM_AdamW || o->kind == OPTIM_Adagrad;
    return form == FORM_FUSED && !fused ? "has no fused form: SGD, Adam, AdamW and Adagrad have one" : NULL;
}

/* ---- states */

static Tensor *like(Eager *g, const char *op, const Tensor *p) {
    eager_op(g, op);
    return tensor_like(g, p, p->type);
}

/* Tensors of the parameter's size that start at zero. */
static int count_states(const EagerOptim *s) {
    const OptimRule *r = &s->optimizer->rule;
    switch (rule_of(s)) {
    case OP_adam: return 2 + r->amsgrad;
    case OP_radam: case OP_adamax: case OP_adadelta: return 2;
    case OP_rmsprop: return 1 + (r->momentum != 0) + r->centered;
    default: return 0;
    }
}

static void make_states(Eager *g, EagerOptim *s) {
    const int n = count_states(s);
    g->category = CAT_OPTIMIZER;
    for (int i = 0; i < s->n; i++) {
        if (n && s->form == FORM_FUSED) s->states[i][EAGER_STATES - 1] = aten_random(g, "aten::zeros", (Size){0, {0}}, T_FLOAT);
        for (int k = 0; k < n; k++) s->states[i][k] = like(g, "aten::zeros_like", s->params[i]);
    }
}

void optim_open(Eager *g, EagerOptim *s) {
    const Category before = g->category;
    g->category = CAT_OPTIMIZER;
    for (int i = 0; i < s->n && rule_of(s) == OP_adagrad; i++) {
        if (s->form == FORM_FUSED) s->states[i][1] = aten_random(g, "aten::tensor", (Size){0, {0}}, T_FLOAT);
        s->states[i][0] = like(g, "aten::full_like", s->params[i]);
    }
    g->category = before;
}

/* ---- the for-each-tensor form */

static Tensor **list(Eager *g, const EagerOptim *s, const char *op) {
    Tensor **made = scratch_new(&g->scratch, (size_t)s->n, sizeof *made);
    for (int i = 0; made && i < s->n; i++) made[i] = like(g, op, s->params[i]);
    return made;
}

static void list_drop(Eager *g, const EagerOptim *s, Tensor **made) {
    for (int i = s->n - 1; made && i >= 0; i--) tensor_set(g, &made[i], NULL);
}

/* SGD's momentum buffer starts as the first gradient. */
static void start_momentum(Eager *g, EagerOptim *s, int i, const char *op) {
    const Category before = g->category;
    g->category = CAT_OPTIMIZER;
    s->states[i][0] = like(g, op, s->params[i]);
    g->category = before;
}

static bool starts_momentum(const EagerOptim *s) {
    return rule_of(s) == OP_sgd && s->optimizer->rule.momentum != 0 && !s->begun;
}

static bool decays_gradients(const EagerOptim *s) {
    return s->optimizer->rule.weight_decay != 0 && !s->optimizer->rule.decoupled;
}

static void run_foreach(Eager *g, EagerOptim *s) {
    const Temporaries *t = temporaries_of(s);
    Tensor **grads = decays_gradients(s) ? list(g, s, "aten::_foreach_add") : NULL, **made[2] = {NULL};
    if (starts_momentum(s))
        for (int i = 0; i < s->n; i++) start_momentum(g, s, i, "aten::clone");
    if (t->drops_gradients) list_drop(g, s, grads);
    for (int k = 0; k < 2; k++) {
        const char *op = rule_of(s) == OP_rmsprop && s->optimizer->rule.centered ? "aten::_foreach_addcmul" : t->foreach[k];
        if (t->foreach[k] && !(grads && t->of_gradients == k + 1)) made[k] = list(g, s, op);
    }
    for (int k = 1; k >= 0; k--) list_drop(g, s, made[k]);
    if (!t->drops_gradients) list_drop(g, s, grads);
}

/* ---- the for-loop form */

static void run_forloop(Eager *g, EagerOptim *s) {
    const Temporaries *t = temporaries_of(s);
    Tensor *grad = NULL, *variable[2] = {NULL}, *temporary = NULL;
    for (int i = 0; i < s->n; i++) {
        const Tensor *p = s->params[i];
        tensor_set(g, &grad, NULL);
        if (decays_gradients(s)) grad = like(g, "aten::add", p);
        if (starts_momentum(s)) start_momentum(g, s, i, "aten::clone");
        if (rule_of(s) == OP_sgd && s->optimizer->rule.nesterov) tensor_set(g, &grad, like(g, "aten::add", p));
        for (int k = 0; k < 2 && t->loop[k].op; k++) {
            Tensor **to = t->loop[k].bound ? &variable[k] : &temporary;
            tensor_set(g, to, like(g, t->loop[k].op, p));
        }
        tensor_set(g, &temporary, NULL);
    }
    tensor_drop(g, grad);
    for (int k = 0; k < 2; k++) tensor_drop(g, variable[k]);
}

/* ---- Adafactor, which has the for-loop form alone. Of a matrix a number for each row and each column is kept. */

static void number(Eager *g, const char *op) {
    eager_op(g, op);
    INNER(g, 4);
}

static Size without(const Tensor *t, int from_end) {
    Size s = t->size;
    s.of[s.rank - from_end] = 1;
    return s;
}

static void make_factors(Eager *g, EagerOptim *s) {
    g->category = CAT_OPTIMIZER;
    for (int i = 0; i < s->n; i++) {
        const Tensor *p = s->params[i];
        if (p->size.rank > 1) {
            s->states[i][0] = aten_random(g, "aten::new_zeros", without(p, 1), p->type);
            s->states[i][1] = aten_random(g, "aten::new_zeros", without(p, 2), p->type);
        } else {
            s->states[i][0] = like(g, "aten::zeros_like", p);
        }
    }
}

static void run_adafactor(Eager *g, EagerOptim *s) {
    Tensor *row = NULL, *column = NULL, *squared = NULL, *estimate = NULL, *update = NULL;
    for (int i = 0; i < s->n; i++) {
        Tensor *p = s->params[i];
        number(g, "aten::linalg_vector_norm");
        if (p->size.rank > 1) {
            tensor_set(g, &row, aten_random(g, "aten::linalg_vector_norm", without(p, 1), p->type));
            tensor_set(g, &column, aten_random(g, "aten::linalg_vector_norm", without(p, 2), p->type));
            tensor_set(g, &estimate, aten_matmul(g, s->states[i][0], s->states[i][1]));
            Size one = without(p, 1);
            one.of[one.rank - 2] = 1;
            tensor_drop(g, aten_random(g, "aten::mean", one, p->type));
        } else {
            tensor_set(g, &squared, like(g, "aten::mul", p));
            tensor_set(g, &estimate, like(g, "aten::clone", p));
        }
        tensor_set(g, &update, tensor_ref(estimate));
        number(g, "aten::linalg_vector_norm");
    }
    tensor_drop(g, row);
    tensor_drop(g, column);
    tensor_drop(g, squared);
    tensor_drop(g, estimate);
    tensor_drop(g, update);
}

/* ---- what a step reads and writes */

static int passes(const EagerOptim *s) {
    const OptimRule *r = &s->optimizer->rule;
    const Temporaries *t = temporaries_of(s);
    const bool adagrad = rule_of(s) == OP_adagrad, momentum = r->momentum != 0;
    if (s->form == FORM_FUSED) return 3 + 2 * (count_states(s) + adagrad + (rule_of(s) == OP_sgd && momentum));
    const int decay = r->weight_decay == 0 ? 0 : r->decoupled ? 2 : 3;
    if (!t) return 17 + decay; /* Adafactor's, of a matrix */
    const int numerator = adagrad && s->form == FORM_FORLOOP ? 2 : 0; /* that only the foreach form makes */
    return t->passes + decay + momentum * t->with_momentum + 3 * (r->nesterov + r->amsgrad) + 6 * r->centered - numerator;
}

void optim_moves(Eager *g, const EagerOptim *s, int n) {
    work_end(g);
    for (int i = 0; i < s->n; i++) work_moves(g, (double)n * (double)tensor_bytes(s->params[i]));
}

/* ---- */

void optim_run(Eager *g, EagerOptim *s) {
    const Eager before = *g;
    const bool adafactor = rule_of(s) == OP_adafactor;
    g->grad = false;
    if (!s->begun) (adafactor ? make_factors : make_states)(g, s);
    g->category = CAT_OTHER;
    g->uncounted = true;
    optim_moves(g, s, passes(s));
    if (adafactor) run_adafactor(g, s);
    else if (s->form == FORM_FOREACH) run_foreach(g, s);
    else if (s->form == FORM_FORLOOP) run_forloop(g, s);
    else if (starts_momentum(s))
        for (int i = 0; i < s->n; i++) start_momentum(g, s, i, "aten::empty_like");
    s->begun = true;
    g->uncounted = false;
    g->grad = before.grad;
    g->category = before.category;
}

void optim_clip(Eager *g, const EagerOptim *s) {
    const Category before = g->category;
    const Size one = {0, {0}};
    g->category = CAT_OTHER;
    int64_t longest = 0; /* ForeachReduceOp.cu: a partial norm for each piece of the longest, of every tensor */
    for (int i = 0; i < s->n; i++) longest = max_i64(longest, tensor_elements(s->params[i]));
    Tensor *parts = aten_random(g, "aten::_foreach_norm", SIZE(s->n * ((longest + 65535) / 65536)), T_FLOAT);
    Tensor **norms = scratch_new(&g->scratch, (size_t)s->n, sizeof *norms);
    for (int i = 0; norms && i < s->n; i++) norms[i] = aten_random(g, "aten::_foreach_norm", one, T_FLOAT);
    tensor_drop(g, parts);
    Tensor *stack = aten_random(g, "aten::stack", SIZE(s->n), T_FLOAT);
    Tensor *total = aten_random(g, "aten::linalg_vector_norm", one, T_FLOAT);
    tensor_drop(g, stack);
    list_drop(g, s, norms);
    Tensor *sum = aten_random(g, "aten::add", one, T_FLOAT), *inverse = aten_random(g, "aten::reciprocal", one, T_FLOAT);
    Tensor *factor = aten_random(g, "aten::mul", one, T_FLOAT);
    tensor_drop(g, inverse);
    tensor_drop(g, sum);
    Tensor *clamped = aten_random(g, "aten::clamp", one, T_FLOAT);
    tensor_drop(g, factor);
    tensor_drop(g, clamped);
    tensor_drop(g, total);
    optim_moves(g, s, 3); /* read for the norm; multiplied in place */
    g->category = before;
}
