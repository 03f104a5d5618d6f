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
    int in_loop;          /* ... more of them in the for-loop form */
} Temporaries;

static const Temporaries temporaries[] = {
    {OP_sgd, {NULL}, {{NULL}}, false, 0, 3, 5, 0},
    {OP_adam, {"aten::_foreach_sqrt"}, {{"aten::sqrt", false}, {"aten::div", true}}, true, 0, 18, 0, 0},
    {OP_radam, {"aten::_foreach_sqrt"}, {{NULL}}, true, 0, 22, 0, 6},
    {OP_nadam, {"aten::_foreach_sqrt"}, {{"aten::div", false}, {"aten::sqrt", true}}, false, 0, 22, 0, 0},
    {OP_adamax, {"aten::_foreach_abs"}, {{"aten::abs", false}}, false, 1, 16, 0, 0},
    {OP_rmsprop, {"aten::_foreach_sqrt"}, {{"aten::sqrt", true}}, false, 0, 13, 5, 0},
    {OP_adagrad, {"aten::_foreach_sqrt", "aten::_foreach_mul"}, {{"aten::sqrt", true}}, false, 2, 13, 0, -2},
    {OP_adadelta, {"aten::_foreach_add", "aten::_foreach_add"}, {{"aten::add", true}, {"aten::add", true}}, false, 0, 27, 0, 0},
};

static OpKind rule_of(const EagerOptim *s) { return optimizer_op(s->optimizer, NULL); }

static const Temporaries *temporaries_of(const EagerOptim *s) {
    for (size_t i = 0; i < ARRAY_LEN(temporaries); i++)
        if (temporaries[i].rule == rule_of(s)) return &temporaries[i];
    return NULL;
}

bool optim_is_bnb(const Optimizer *o) { return optimizer_base(o->kind) == OPTIM_Lion || optimizer_is_paged(o->kind); }

/* Of 8-bit states: the least numbers of a parameter (min_8bit_size); those that share a scale; those of a map */
enum { BNB_LEAST = 4096, BNB_BLOCK = 256, BNB_CODES = 256 };

const char *optim_unknown(const Optimizer *o, OptimForm form) {
    if (optimizer_is_paged(o->kind) && o->rule.amsgrad) return "bitsandbytes' optimizers have no amsgrad";
    if (optimizer_is_paged(o->kind) && o->rule.block_size && o->rule.block_size != BNB_BLOCK)
        return "bitsandbytes' optimizers have a block_size of 256";
    switch (o->kind) {
    case OPTIM_Adam8bit: case OPTIM_AdamW8bit:
        return "torchao's 8-bit optimizers are not predicted; bitsandbytes' PagedAdam8bit and PagedAdamW8bit are";
    case OPTIM_Rule: return form == FORM_FORLOOP ? NULL : "a Rule is a for-loop over parameters: it has no other form";
    default: break;
    }
    const bool fused = o->kind == OPTIM_SGD || o->kind == OPTIM_Adam || o->kind == OPTIM_AdamW || o->kind == OPTIM_Adagrad;
    return form == FORM_FUSED && !fused ? "has no fused form: SGD, Adam, AdamW and Adagrad have one" : NULL;
}

/* Has RAdam seen enough squares to divide by them? */
static bool is_rectified(const OptimRule *r, int step) {
    return optim_rectified(r->beta2, step, optim_seen(r->beta2, step)) > 0;
}

/* Most need the first step, which makes states. RAdam never divides by squares if it forgets them too soon. */
int optim_settled(const Optimizer *o, OptimForm form) {
    enum { LONGEST = 1000 };
    const bool waits = optimizer_op(o, NULL) == OP_radam && form == FORM_FORLOOP;
    int step = 2;
    while (waits && step < LONGEST && !is_rectified(&o->rule, step)) step++;
    return step < LONGEST ? step : 2;
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
    case OP_radam: case OP_nadam: case OP_adamax: case OP_adadelta: return 2;
    case OP_lion: return 1;
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

/* bitsandbytes' states are fp32, or codes if the parameter is large, whatever type it has. Paged ones are managed memory,
 * which the caching allocator knows nothing of; scales are not. */
static void make_bnb_states(Eager *g, EagerOptim *s) {
    const int n = count_states(s);
    g->category = CAT_OPTIMIZER;
    for (int i = 0; i < s->n; i++) {
        const Tensor *p = s->params[i];
        const int64_t numbers = tensor_elements(p);
        const bool coded = s->optimizer->rule.block_size && numbers >= BNB_LEAST;
        const bool paged = optimizer_is_paged(s->optimizer->kind) && numbers >= PAGE_LEAST;
        const ScalarType type = coded ? T_BYTE : T_FLOAT;
        for (int k = 0; k < n && coded && !s->maps[k]; k++) s->maps[k] = aten_random(g, "aten::_to_copy", SIZE(BNB_CODES), T_FLOAT);
        eager_op(g, "aten::zeros_like");
        for (int k = 0; k < n; k++) {
            if (paged) eager_pages(g, (size_t)numbers * scalar_bytes(type));
            else s->states[i][k] = tensor_like(g, p, type);
        }
        for (int k = 0; k < n && coded; k++)
            s->states[i][n + k] = aten_random(g, "aten::zeros", SIZE((numbers + BNB_BLOCK - 1) / BNB_BLOCK), T_FLOAT);
    }
}

void optim_open(Eager *g, EagerOptim *s) {
    const Category before = g->category;
    g->category = CAT_OPTIMIZER;
    for (int k = 0, i = 0; k < s->n_given && rule_of(s) == OP_adagrad; k++) {
        Tensor *steps = s->form == FORM_FUSED ? aten_random(g, "aten::tensor", (Size){0, {0}}, T_FLOAT) : NULL;
        Tensor *sum = like(g, "aten::full_like", s->given[k]);
        if (i == s->n || s->given[k] != s->params[i]) continue; /* a frozen one's stay as they are until the end */
        s->states[i][0] = sum;
        s->states[i++][1] = steps;
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
    return rule_of(s) == OP_sgd && s->optimizer->rule.momentum != 0 && !s->made;
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

/* ---- RAdam's for-loop, which divides by the squares once it has seen enough of them */

/* bias_corrected_exp_avg * lr * _compute_adaptive_lr() * rect; bias_corrected_exp_avg is bound to a variable. */
static void run_radam(Eager *g, EagerOptim *s) {
    const bool rectified = is_rectified(&s->optimizer->rule, s->made + 1);
    Tensor *grad = NULL, *average = NULL;
    for (int i = 0; i < s->n; i++) {
        const Tensor *p = s->params[i];
        tensor_set(g, &grad, NULL);
        if (decays_gradients(s)) grad = like(g, "aten::add", p);
        tensor_set(g, &average, like(g, "aten::div", p));
        Tensor *step = like(g, "aten::mul", p);
        if (rectified) {
            Tensor *root = like(g, "aten::sqrt", p), *inverse = like(g, "aten::reciprocal", p), *rate = like(g, "aten::mul", p);
            tensor_drop(g, inverse);
            tensor_drop(g, root);
            tensor_set(g, &step, like(g, "aten::mul", p));
            tensor_drop(g, rate);
            tensor_set(g, &step, like(g, "aten::mul", p));
        }
        tensor_drop(g, step);
    }
    tensor_drop(g, grad);
    tensor_drop(g, average);
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

/* ---- a script's own rule: the body of a for-loop over the parameters, one ATen call for each step. Its variables are
 * those of the function that the loop stands in: they hold what the last parameter's turn has bound until it is bound
 * again. */

typedef struct Turn { Tensor *made[FORMULA_STEPS], *before[OPTIM_STATES]; } Turn;

static bool goes(uint8_t until, int done, int from) { return until == from + done; }

/* Frees what goes once `done` steps of a turn are done; the variables' from the turn before, and this one's own. */
static void drop_done(Eager *g, const Formula *f, Turn *last, Turn *now, int done) {
    for (int i = 0; i < f->n; i++) {
        if (goes(f->step[i].until, done, FORMULA_LATER)) tensor_set(g, &last->made[i], NULL);
        if (done && goes(f->step[i].until, done - 1, 0)) tensor_set(g, &now->made[i], NULL);
    }
    for (int k = 0; k < f->states; k++) {
        if (goes(f->replaced[k], done, FORMULA_LATER)) tensor_set(g, &last->before[k], NULL);
        if (done && goes(f->replaced[k], done - 1, 0)) tensor_set(g, &now->before[k], NULL);
    }
}

/* The state that the script asks for with a default makes it in the first step; the others exist before. */
static bool has_default(const Formula *f, int state) {
    for (int i = 0; i < f->n; i++)
        if (f->step[i].fn == FORMULA_DEFAULT && f->step[i].of[0] == state) return true;
    return false;
}

static Tensor *run_formula_step(Eager *g, const EagerOptim *s, const FormulaStep *step, const Tensor *p) {
    const Formula *f = &s->optimizer->formula;
    const FormulaInfo *info = formula_info(step->fn);
    Tensor *number[FORMULA_OPERANDS] = {NULL};
    if (!info && step->fn != FORMULA_DEFAULT) return NULL;
    for (int k = 1; step->fn == FORMULA_WHERE && k < 3; k++)
        if (f->step[step->of[k]].scalar) number[k] = aten_random(g, "aten::scalar_tensor", (Size){0, {0}}, p->type);
    eager_op(g, info ? info->aten : "aten::zeros_like");
    Tensor *y = tensor_like(g, p, formula_is_bool((FormulaFn)step->fn) ? T_BOOL : p->type);
    for (int k = 1; k < 3; k++) tensor_drop(g, number[k]);
    return y;
}

static void run_turn(Eager *g, EagerOptim *s, int i, Turn *last, Turn *now) {
    const Formula *f = &s->optimizer->formula;
    Tensor **state = s->states[i];
    for (int k = 0; k < f->states; k++) {
        g->category = CAT_OPTIMIZER;
        if (!s->made && !has_default(f, k)) state[k] = like(g, "aten::zeros_like", s->params[i]);
        if (f->replaced[k] == FORMULA_KEPT) continue;
        now->before[k] = state[k];
        state[k] = NULL;
    }
    drop_done(g, f, last, now, 0);
    for (int n = 0; n < f->n; n++) {
        const FormulaStep *step = &f->step[n];
        g->category = step->until == FORMULA_KEPT ? CAT_OPTIMIZER : CAT_OTHER;
        if (!step->scalar && !step->inplace) now->made[n] = run_formula_step(g, s, step, s->params[i]);
        if (step->fn == FORMULA_DEFAULT && !s->made) {
            Tensor **to = f->replaced[step->of[0]] == FORMULA_KEPT ? &state[step->of[0]] : &now->before[step->of[0]];
            *to = now->made[n];
            now->made[n] = NULL;
        }
        drop_done(g, f, last, now, n + 1);
    }
    for (int k = 0; k < f->states; k++)
        if (f->replaced[k] != FORMULA_KEPT) state[k] = tensor_ref(now->made[formula_storage(f, f->result[1 + k])]);
    for (int n = 0; n < f->n; n++)
        if (f->step[n].until < FORMULA_LATER || f->step[n].until == FORMULA_KEPT) tensor_set(g, &now->made[n], NULL);
}

static void end_turn(Eager *g, Turn *turn) {
    for (int n = 0; n < FORMULA_STEPS; n++) tensor_drop(g, turn->made[n]);
    for (int k = 0; k < OPTIM_STATES; k++) tensor_drop(g, turn->before[k]);
}

static void run_formula(Eager *g, EagerOptim *s) {
    Turn turns[2] = {{{NULL}, {NULL}}, {{NULL}, {NULL}}};
    for (int i = 0; i < s->n; i++) {
        Turn *last = &turns[i % 2], *now = &turns[1 - i % 2];
        run_turn(g, s, i, last, now);
        end_turn(g, last);
        *last = (Turn){{NULL}, {NULL}};
    }
    end_turn(g, &turns[s->n % 2]);
}

/* ---- what a step reads and writes */

/* Each step of a formula reads its operands and writes its result. */
static int formula_passes(const Formula *f) {
    int n = 0;
    for (int i = 0; i < f->n; i++) {
        const FormulaStep *step = &f->step[i];
        const FormulaInfo *info = step->scalar ? NULL : formula_info(step->fn);
        for (int k = 0; info && k < info->operands; k++) n += !f->step[step->of[k]].scalar;
        n += info != NULL;
    }
    return n;
}

static int passes(const EagerOptim *s) {
    const OptimRule *r = &s->optimizer->rule;
    const Temporaries *t = temporaries_of(s);
    const bool adagrad = rule_of(s) == OP_adagrad, forloop = s->form == FORM_FORLOOP, momentum = r->momentum != 0;
    if (rule_of(s) == OP_formula) return formula_passes(&s->optimizer->formula);
    if (s->form == FORM_FUSED || optim_is_bnb(s->optimizer)) return 3 + 2 * (count_states(s) + adagrad + (rule_of(s) == OP_sgd && momentum));
    const int decay = r->weight_decay == 0 ? 0 : r->decoupled ? 2 : 3;
    if (!t) return 17 + decay; /* Adafactor's, of a matrix */
    return t->passes + decay + momentum * t->with_momentum + 3 * ((rule_of(s) == OP_sgd && r->nesterov) + r->amsgrad) + 6 * r->centered +
           forloop * t->in_loop;
}

void optim_moves(Eager *g, const EagerOptim *s, int n) {
    work_end(g);
    for (int i = 0; i < s->n; i++) work_moves(g, (double)n * (double)tensor_bytes(s->params[i]));
}

/* ---- */

void optim_run(Eager *g, EagerOptim *s) {
    const Eager before = *g;
    const bool adafactor = rule_of(s) == OP_adafactor, script = rule_of(s) == OP_formula, bnb = optim_is_bnb(s->optimizer);
    g->grad = false;
    if (!s->made && !script) (adafactor ? make_factors : bnb ? make_bnb_states : make_states)(g, s);
    g->category = CAT_OTHER;
    g->uncounted = true;
    optim_moves(g, s, passes(s));
    if (script) run_formula(g, s);
    else if (bnb) {} /* a kernel for each parameter */
    else if (adafactor) run_adafactor(g, s);
    else if (s->form == FORM_FOREACH) run_foreach(g, s);
    else if (rule_of(s) == OP_radam) run_radam(g, s);
    else if (s->form == FORM_FORLOOP) run_forloop(g, s);
    else if (starts_momentum(s))
        for (int i = 0; i < s->n; i++) start_momentum(g, s, i, "aten::empty_like");
    s->made++;
    g->uncounted = false;
    g->grad = before.grad;
    g->category = before.category;
}

/* The norm of norms of shards: their squares are summed up over the ranks. */
static Tensor *norms_of_all(Eager *g, int n) {
    Tensor *squares = aten_random(g, "aten::pow", SIZE(n), T_FLOAT), *sums = aten_random(g, "c10d::all_reduce", SIZE(n), T_FLOAT);
    Tensor *norms = aten_random(g, "aten::pow", SIZE(n), T_FLOAT);
    tensor_drop(g, squares);
    tensor_drop(g, sums);
    return norms;
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
    Tensor *whole = g->fsdp ? norms_of_all(g, s->n) : NULL;
    Tensor *total = aten_random(g, "aten::linalg_vector_norm", one, T_FLOAT);
    tensor_drop(g, whole);
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
