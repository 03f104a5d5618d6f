/* The loop of eager.h. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ddp.h"
#include "eager.h"
#include "fsdp.h"
#include "modules.h"
#include "optim.h"

/* The variables of the loop, and what stands beside it. */
typedef struct Loop {
    Eager *g;
    const Settings *s;
    EagerOptim optim, own;          /* own: of ZeroRedundancyOptimizer, which updates the parameters that the rank owns */
    Tensor *x[LAYER_IN], *y, *output[LAYER_IN], *loss;
    Tensor *weights[LAYER_IN];      /* of classes, by loss */
    Tensor *of_bytes[LAYER_IN][2];  /* mean and std of the channels, by input of bytes */
    Tensor *resident[RESIDENTS];
    Tensor *scale, *growth_tracker; /* of the GradScaler */
    const PrecisionInfo *precision;
    Size target;
    ScalarType input_type[LAYER_IN], target_type;
    int steps;                      /* of the trace */
    bool too_long;                  /* ... which would fill the host's memory with so many: */
    double gigabytes;
    int most;                       /* micro-batches that it has room for */
} Loop;

static Module *const modules[] = {
#define LAYER(name, role, functions, which, spec) module_##functions,
#include "network/layers.def"
#undef LAYER
};

static ScalarType scalar_of(DType t) {
    static const ScalarType types[DT_COUNT] = {[DT_F32] = T_FLOAT, [DT_BF16] = T_BFLOAT16, [DT_F16] = T_HALF, [DT_I32] = T_LONG,
                                               [DT_U8] = T_BYTE};
    return types[t];
}

/* ---- model.to(device), the criterion's weights, what else the script holds, the optimizer */

/* .to(device, memory_format=torch.channels_last) changes what has four dimensions. */
static Tensor *moved(Eager *g, const char *op, Size size, ScalarType type) {
    GUARD(g);
    eager_op(g, op);
    return tensor_in_format(g, type, size, g->channels_last && size.rank == 4);
}

static ScalarType param_type(const Param *p, Precision precision) {
    const PrecisionInfo *info = precision_info(precision);
    if (p->dtype != DT_F32) return scalar_of(p->dtype);
    return info->autocast || p->wide || p->derived ? T_FLOAT : scalar_of(info->weights);
}

static void make_param(Loop *l, int i) {
    Eager *g = l->g;
    const Param *p = &g->net->params[i];
    eager_where(g, p->owner, NULL);
    Tensor *t = g->params[i] = moved(g, "aten::to", size_from(&p->shape), param_type(p, l->s->precision));
    t->parameter = p->trainable && !p->buffer;
    t->leaf = t->parameter && !l->s->eval;
}

/* Modules move what their children have before what they have themselves, and parameters before buffers. Takes the
 * parameters from `i` on whose names begin with the same `prefix` characters, those of a module: their numbers come to
 * `order`, of which *n are there. Returns the first parameter after them. */
static int in_order(const Network *net, int i, size_t prefix, int *order, int *n) {
    const int first = i;
    const char *name = net->params[first].name;
    while (i < net->n_params && !strncmp(net->params[i].name, name, prefix)) {
        const char *dot = strchr(net->params[i].name + prefix, '.');
        i = dot ? in_order(net, i, (size_t)(dot - net->params[i].name) + 1, order, n) : i + 1;
    }
    for (int buffer = 0; buffer < 2; buffer++)
        for (int k = first; k < i; k++)
            if (!strchr(net->params[k].name + prefix, '.') && net->params[k].buffer == buffer) order[(*n)++] = k;
    return i;
}

static void make_model(Loop *l) {
    Eager *g = l->g;
    const Network *net = g->net;
    int n = 0, *order = scratch_new(&g->scratch, (size_t)net->n_params, sizeof *order);
    const Layer **llama = scratch_new(&g->scratch, (size_t)net->n_params, sizeof *llama);
    g->rotary = scratch_new(&g->scratch, LLAMA_BUFFERS * (size_t)net->n_params, sizeof *g->rotary);
    if (!order || !llama || !g->rotary) return;
    llama_models(net->root, llama);
    g->category = CAT_WEIGHTS;
    in_order(net, 0, 0, order, &n);
    for (int i = 0; i < n; i++) {
        const Layer *owner = net->params[order[i]].owner;
        const Param *p = &net->params[order[i]];
        int derived[BNB_DERIVED];
        const int n_derived = p->quantized.format ? bnb_derived(net, order[i], derived) : 0;
        for (int k = 0; k < n_derived; k++) make_param(l, derived[k]);
        if (!p->derived || !bnb_is(owner, 4)) make_param(l, order[i]);
        if (llama[order[i]]) llama_buffers(g, llama[order[i]]);
        if (i + 1 == n || net->params[order[i + 1]].owner != owner) module_moved(g, owner);
    }
    mask_buffers(g, net, l->s->world > 1);
    eager_where(g, NULL, NULL);
    g->category = CAT_OTHER;
    for (int k = 0; k < g->net->n_losses; k++) {
        const Options *o = &g->net->loss[k]->options;
        int64_t classes;
        if (options_list(o, "weight", &classes) || options_list(o, "pos_weight", &classes))
            l->weights[k] = aten_random(g, "aten::to", SIZE(classes), T_FLOAT);
    }
    for (int k = 0; k < 2 * g->net->n_inputs; k++) {
        const int64_t channels = g->net->inputs[k / 2].channels;
        if (channels) l->of_bytes[k / 2][k % 2] = aten_random(g, "aten::to", SIZE(channels), T_FLOAT);
    }
    g->category = CAT_INPUT;
    for (int k = 0; k < l->s->pytorch.n_resident; k++)
        l->resident[k] = aten_random(g, "aten::to", SIZE(l->s->pytorch.resident[k]), T_BYTE);
}

/* PyTorch's rule: for each tensor at once, unless a form is asked for; Adafactor and a script's rule have the for-loop
 * alone. */
static OptimForm form_of(const Settings *s) {
    if (s->pytorch.fused == SAID_TRUE) return FORM_FUSED;
    if (s->optimizer.kind == OPTIM_Rule && s->pytorch.foreach == UNSAID) return FORM_FORLOOP;
    return s->pytorch.foreach == SAID_FALSE ? FORM_FORLOOP : FORM_FOREACH;
}

/* model.parameters() has it at this place. t: the parameter, or its shard */
static void give(EagerOptim *o, Tensor *t, bool leaf) {
    o->given[o->n_given++] = t;
    if (leaf) o->params[o->n++] = t;
}

static EagerOptim new_optimizer(Loop *l) {
    EagerOptim o = {.optimizer = &l->s->optimizer, .form = form_of(l->s)};
    o.params = scratch_new(&l->g->scratch, (size_t)l->g->net->n_params, sizeof *o.params);
    o.given = scratch_new(&l->g->scratch, (size_t)l->g->net->n_params, sizeof *o.given);
    o.states = scratch_new(&l->g->scratch, (size_t)l->g->net->n_params, sizeof *o.states);
    return o;
}

/* ZeroRedundancyOptimizer._partition_parameters: the largest first, each to the rank that has the fewest elements, frozen
 * ones, too. */
static void partition(Loop *l) {
    Eager *g = l->g;
    const Network *net = g->net;
    int n = 0;
    int64_t *elements = scratch_new(&g->scratch, (size_t)l->s->world, sizeof *elements);
    Tensor **sorted = scratch_new(&g->scratch, (size_t)net->n_params, sizeof *sorted);
    l->own = new_optimizer(l);
    for (int i = 0; i < net->n_params && !g->scratch.failed; i++) {
        if (net->params[i].buffer) continue;
        int at = n++;
        for (; at && tensor_elements(sorted[at - 1]) < tensor_elements(g->params[i]); at--) sorted[at] = sorted[at - 1];
        sorted[at] = g->params[i];
    }
    for (int i = 0; i < n; i++) {
        int rank = 0;
        for (int k = 1; k < l->s->world; k++)
            if (elements[k] < elements[rank]) rank = k;
        elements[rank] += tensor_elements(sorted[i]);
        if (rank == l->s->rank) give(&l->own, sorted[i], sorted[i]->leaf);
    }
}

static void open_optimizer(Loop *l) {
    Eager *g = l->g;
    EagerOptim *o = &l->optim;
    *o = new_optimizer(l);
    for (int i = 0; !g->scratch.failed && i < g->net->n_params; i++)
        if (!g->net->params[i].buffer && !g->net->params[i].derived) give(o, g->fsdp ? fsdp_shard(g->fsdp, i) : g->params[i], g->params[i]->leaf);
    const bool divides = l->s->world > 1 && l->s->zero == 1;
    if (divides) partition(l);
    if (!g->scratch.failed) optim_open(g, divides ? &l->own : o);
}

/* ---- a step */

/* A loss that evaluation binds to no variable is not computed either. */
static bool has_loss(const Settings *s) { return !s->no_loss && !(s->eval && s->pytorch.drops_loss); }

static void drop_output(Loop *l) {
    for (int k = 0; k < LAYER_IN; k++) tensor_set(l->g, &l->output[k], NULL);
}

/* The output is bound to a variable, or goes once the loss has read it. */
static void run_forward(Loop *l) {
    Eager *g = l->g;
    g->n_more = 0;
    g->autocast = l->precision->autocast;
    g->category = CAT_ACTIVATIONS;
    const bool segments = l->s->checkpoint == CHECKPOINT_SQRT && g->grad;
    Tensor *output[LAYER_IN] = {segments ? module_call_segments(g, g->net->root, l->x[0]) : module_call(g, g->net->root, l->x)};
    memcpy(output + 1, g->more, sizeof output - sizeof *output);
    for (int k = 0; k < LAYER_IN; k++) tensor_set(g, &l->output[k], k <= g->n_more ? output[k] : NULL);
    g->category = CAT_OTHER;
    Tensor *loss = NULL;
    for (int k = 0; k < g->net->n_losses && k <= g->n_more && has_loss(l->s); k++) {
        g->class_weights = l->weights[k];
        Tensor *term = module_loss(g, g->net->loss[k], l->output[k], l->y);
        if (loss) {
            tensor_set(g, &loss, aten_binary(g, WITH_ADD, loss, term));
            tensor_drop(g, term);
        } else {
            loss = term;
        }
    }
    if (l->s->pytorch.drops_output) drop_output(l);
    if (loss) tensor_set(g, &l->loss, loss);
    if (loss && l->s->accumulate > 1 && g->grad) tensor_set(g, &l->loss, aten_binary_number(g, WITH_DIV, l->loss));
    angles_drop(g, &g->angles);
    if (g->autocast) amp_end(g);
    g->autocast = false;
}

/* scaler.scale(loss).backward(): the scale is made when it is first asked for. */
static void run_backward(Loop *l) {
    Eager *g = l->g;
    eager_where(g, NULL, NULL);
    if (!g->scratch.failed && !tensor_requires_grad(l->loss)) {
        eager_refuse(g, "framework = \"pytorch\": PyTorch refuses it: loss.backward() expects a loss with a graph, which ends where "
                        "use_reentrant = true meets a checkpoint whose inputs need no gradient");
        return;
    }
    if (!settings_scale_loss(l->s)) {
        backward(g, l->loss, NULL);
        return;
    }
    g->category = CAT_OPTIMIZER;
    if (!l->scale) l->scale = aten_random(g, "aten::full", (Size){0, {0}}, T_FLOAT);
    if (!l->growth_tracker) l->growth_tracker = aten_random(g, "aten::full", (Size){0, {0}}, T_INT);
    g->category = CAT_OTHER;
    const bool offload = g->offload;
    g->offload = false; /* save_on_cpu is around the forward pass and the loss */
    Tensor *scaled = aten_binary(g, WITH_MUL, l->loss, l->scale);
    g->offload = offload;
    backward(g, scaled, NULL);
    tensor_drop(g, scaled);
}

/* A fused optimizer takes the scale and found_inf itself, which scaler.step() makes and adds up. */
static Tensor *found_for_fused(Eager *g) {
    const Size one = {0, {0}};
    Tensor *found = aten_random(g, "aten::full", one, T_FLOAT), *inv_scale = aten_random(g, "aten::full", one, T_FLOAT);
    Tensor *kept = aten_random(g, "aten::_to_copy", one, T_FLOAT), *copy = aten_random(g, "aten::_to_copy", one, T_FLOAT);
    tensor_drop(g, copy);
    tensor_drop(g, found);
    tensor_drop(g, inv_scale);
    return kept;
}

/* scaler.unscale_(optimizer): what stays until scaler.update() is found_inf on the device. */
static Tensor *unscale(Eager *g) {
    const Size one = {0, {0}};
    Tensor *wide = aten_random(g, "aten::_to_copy", one, T_LONG), *inverse = aten_random(g, "aten::reciprocal", one, T_LONG);
    tensor_drop(g, wide);
    Tensor *inv_scale = aten_random(g, "aten::_to_copy", one, T_FLOAT);
    tensor_drop(g, inverse);
    Tensor *found = aten_random(g, "aten::full", one, T_FLOAT), *kept = aten_random(g, "aten::_to_copy", one, T_FLOAT);
    Tensor *copy = aten_random(g, "aten::_to_copy", one, T_FLOAT);
    Tensor *of_all = g->fsdp ? aten_random(g, "c10d::all_reduce", one, T_FLOAT) : NULL; /* any rank's shards */
    tensor_drop(g, of_all);
    tensor_drop(g, copy);
    tensor_drop(g, inv_scale);
    tensor_drop(g, found);
    return kept;
}

static void run_optimizer(Loop *l) {
    Eager *g = l->g;
    eager_where(g, NULL, NULL);
    g->category = CAT_OTHER;
    const bool clips = l->s->optimizer.rule.clip_norm > 0, itself = l->optim.form == FORM_FUSED && !clips;
    Tensor *found = !settings_scale_loss(l->s) ? NULL : itself ? found_for_fused(g) : unscale(g), *sum = NULL, *scaled = NULL;
    if (found && !itself) optim_moves(g, &l->optim, 2); /* gradients are unscaled in place */
    if (clips) optim_clip(g, &l->optim);
    if (found && l->optim.form == FORM_FUSED) {
        sum = aten_random(g, "aten::add", (Size){0, {0}}, T_FLOAT);
        if (itself) scaled = aten_random(g, "aten::mul", (Size){0, {0}}, T_FLOAT); /* else grad_scale is None */
    }
    optim_run(g, l->own.params ? &l->own : &l->optim);
    tensor_drop(g, scaled);
    tensor_drop(g, sum);
    tensor_drop(g, found);
}

/* Gradients that are not set to None stay, and are filled with zeros. */
static void zero_grad(Loop *l) {
    if (l->s->pytorch.set_to_none == SAID_FALSE) {
        if (l->optim.made) optim_moves(l->g, &l->optim, 1);
        return;
    }
    for (int i = 0; i < l->optim.n; i++) tensor_set(l->g, &l->optim.params[i]->grad, NULL);
}

/* A trace has every micro-batch of every step: after two of them it is known how many tensors that will be, and one that would fill the
 * host's memory is not begun. Returns whether it has the room. */
static bool has_room(Loop *l, int before) {
    enum { MOST = 1 << 24, BYTES = 900 }; /* tensors; what one takes of the host's memory with its nodes, until all steps are over */
    const Trace *t = l->g->trace;
    const double each = t->n_tensors - before, all = each * l->s->accumulate * l->steps;
    if (all <= MOST) return true;
    l->too_long = true;
    l->gigabytes = all * BYTES / 1e9;
    l->most = (int)(MOST / each / l->steps);
    return false;
}

static void run_step(Loop *l) {
    Eager *g = l->g;
    const bool training = !l->s->eval;
    g->work = (Work){0, 0, 0};
    for (int part = 0; part < l->s->accumulate && !g->scratch.failed; part++) {
        const int before = g->trace->n_tensors;
        eager_where(g, NULL, NULL);
        g->category = CAT_INPUT;
        for (int k = 0; k < g->net->n_inputs; k++)
            tensor_set(g, &l->x[k], moved(g, "aten::empty", size_from(&g->net->inputs[k].shape), l->input_type[k]));
        if (l->target.rank >= 0) tensor_set(g, &l->y, aten_random(g, "aten::empty", l->target, l->target_type));
        if (part == 0) zero_grad(l);
        g->grad = g->training = training;
        if (g->ddp) ddp_forward(g, g->ddp, part + 1 == l->s->accumulate);
        run_forward(l);
        if (training) run_backward(l);
        if (g->ddp) ddp_backward_ends(g, g->ddp);
        if (l->s->pytorch.drops_loss) tensor_set(g, &l->loss, NULL);
        if (part == 1 && !has_room(l, before)) return;
    }
    if (training && !g->scratch.failed) run_optimizer(l);
    if (l->s->pytorch.step_function == SAID_TRUE) {
        drop_output(l);
        tensor_set(g, &l->loss, NULL);
    }
    work_end(g);
}

/* ---- */

static int unknown_version(const char *name, Err *e) {
    char known[64] = "";
    for (int i = 0; version_info(i); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", version_info(i)->name);
    return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": version %s is not known: expected one of %s", name, known);
}

/* checkpoint_sequential takes an nn.Sequential. Its reentrant form would leave the weights of the first segment without
 * gradients, since the input needs none. */
static int check_segments(const Network *net, const Settings *s, Err *e) {
    if (strcmp(layer_kind(net->root), "Sequential") != 0)
        return layer_error(net->root, e, "framework = \"pytorch\": checkpoint = \"sqrt\" is checkpoint_sequential, which "
                                         "expects one nn.Sequential");
    if (s->pytorch.use_reentrant == SAID_TRUE)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": checkpoint = \"sqrt\" expects use_reentrant = false: with "
                                      "true the first segment's weights get no gradients");
    return OK;
}

static int check_inputs(const Network *net, Err *e) {
    for (int k = 0; k < net->n_inputs; k++)
        if (net->inputs[k].positions)
            return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": sequences that share a row (input %s) are not predicted: "
                           "expected the model without them", net->inputs[k].name);
    return OK;
}

static int check_one_type(const Network *net, const Settings *s, Err *e) {
    const Param *first = NULL;
    for (int i = 0; i < net->n_params; i++) {
        const Param *p = &net->params[i];
        if (p->buffer) continue;
        if (!first) first = p;
        if (param_type(p, s->precision) != param_type(first, s->precision))
            return layer_error(p->owner, e, "framework = \"pytorch\": PyTorch refuses it: ZeroRedundancyOptimizer expects parameters of "
                                            "one type");
    }
    return OK;
}

/* Does a parameter get a gradient? */
static bool trains(const Network *net) {
    for (int i = 0; i < net->n_params; i++)
        if (net->params[i].trainable && !net->params[i].buffer) return true;
    return false;
}

/* What wraps the model of a rank that trains with others. */
static int check_ranks(const Network *net, const Settings *s, Err *e) {
    const bool sharded = s->world > 1 && s->zero > 1;
    if (!sharded && (s->pytorch.param_dtype || s->pytorch.reduce_dtype))
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": param_dtype and reduce_dtype are of fully_shard: expected world above 1 "
                                      "and zero = 2 or 3");
    if (s->mesh.tensor > 1)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": mesh: products that ranks divide are not predicted: expected tensor = 1, "
                                      "found %d", s->mesh.tensor);
    if (s->world == 1 || (s->eval && s->zero < 2)) return OK;
    if (s->rank >= s->world)
        return err_set(e, ERR_SCRIPT, "expected rank below world = %d, found %d", s->world, s->rank);
    if (s->checkpoint == CHECKPOINT_SQRT)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected world = 1 with checkpoint = \"sqrt\": checkpoint_sequential "
                                      "does not call the model that is wrapped");
    if (sharded) return fsdp_check(net, s, e);
    if (!trains(net))
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": PyTorch refuses it: DistributedDataParallel expects a parameter that "
                                      "gets a gradient");
    return s->zero == 1 ? check_one_type(net, s, e) : OK;
}

static int check(const Network *net, const Settings *s, Err *e) {
    int code = check_inputs(net, e);
    if (!code) code = llama_check(net->root, e);
    if (!code) code = layer_batchnorm_check(net->root, !s->eval, e);
    const PrecisionInfo *precision = precision_info(s->precision);
    const char *why = s->eval ? NULL : optim_unknown(&s->optimizer, form_of(s));
    if (code) return code;
    if (!version_find(s->pytorch.version)) return unknown_version(s->pytorch.version, e);
    if (s->pytorch.attention == SDP_CUDNN && !version_find(s->pytorch.version)->cudnn_first)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": attention = \"cudnn\" is not predicted for version %s",
                       s->pytorch.version);
    if (precision->master) return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected a precision that PyTorch has, found %s", precision->text);
    if (settings_scale_loss(s) && !s->eval && precision->weights == DT_F16)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": torch.amp.GradScaler refuses gradients of fp16");
    if (!s->eval && !trains(net))
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": PyTorch refuses it: loss.backward() expects a parameter that gets a "
                                      "gradient; a forward pass alone is mode = \"eval\"");
    if (check_ranks(net, s, e)) return ERR_SCRIPT;
    if (s->checkpoint == CHECKPOINT_SQRT && check_segments(net, s, e)) return ERR_SCRIPT;
    if (s->checkpoint != CHECKPOINT_SQRT && s->checkpoint != CHECKPOINT_NONE && s->checkpoint != CHECKPOINT_MARKED)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected checkpoint = \"none\", \"marked\" or \"sqrt\"");
    if (!s->eval && optim_is_bnb(&s->optimizer) && s->pytorch.channels_last == SAID_TRUE)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected channels_last = false: bitsandbytes' optimizers lay "
                                      "parameters in order again, which is not predicted");
    if (s->loss_chunks > 1)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected loss_chunks = 1: the step of "
                                      "torch.nn.functional.linear_cross_entropy in chunks is not predicted");
    if (s->feed_ahead) return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected feed_ahead = false");
    if (s->offload == OFFLOAD_BUDGET)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected offload = \"none\" or \"all\"");
    if (s->offload != OFFLOAD_NONE && s->checkpoint != CHECKPOINT_NONE)
        return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected checkpoint = \"none\" with offload = \"all\"");
    return why ? err_set(e, ERR_SCRIPT, "framework = \"pytorch\": %s", why) : OK;
}

/* Labels: the output's shape without the dimension of classes; else like the output. */
static void read_target(Loop *l) {
    const Network *net = l->g->net;
    const bool classes = net->n_losses && layer_has_labels(net->loss[0]);
    l->target = size_from(&net->output);
    l->target_type = T_FLOAT;
    if (classes) {
        for (int d = layer_class_dim(net->loss[0]); d + 1 < l->target.rank; d++) l->target.of[d] = l->target.of[d + 1];
        l->target.rank--;
        l->target_type = T_LONG;
    }
    if (!net->n_losses || !has_loss(l->s)) l->target.rank = -1;
}

int eager_steps(const Settings *s) { return 1 + (s->eval ? 2 : optim_settled(&s->optimizer, form_of(s))); }

int eager_trace(const Network *net, const Settings *s, const Card *card, int steps, EstimateKind which, EagerStep *out, Err *e) {
    Trace *trace = &out->trace;
    Storage nothing = {1 << 30, -1, 0};
    Tensor unnamed = {.storage = &nothing, .refs = 1 << 30, .size = {TENSOR_RANK, {1, 1, 1, 1, 1, 1}}};
    Eager g = {.trace = trace, .net = net, .card = card, .estimate = {which, false}, .call = -1, .unnamed = &unnamed, .modules = modules};
    Loop l = {.g = &g, .s = s, .precision = precision_info(s->precision), .steps = steps};
    char text[32];
    int code = check(net, s, e);
    if (code) return code;
    g.version = version_find(s->pytorch.version);
    g.attention = s->pytorch.attention;
    g.inplace = s->inplace;
    g.products = s->precision == PREC_TF32 ? UNIT_TF32 : UNIT_FP32;
    g.low = scalar_of(l.precision->low);
    g.checkpoint = s->checkpoint == CHECKPOINT_MARKED;
    g.asks = g.checkpoint && !s->eval ? lora_asks(net->root) : NULL;
    g.offload = s->offload == OFFLOAD_ALL && !s->eval;
    g.channels_last = s->pytorch.channels_last == SAID_TRUE;
    g.benchmark = s->pytorch.cudnn_benchmark == SAID_TRUE;
    g.reentrant = s->pytorch.use_reentrant == SAID_TRUE;
    g.numbers = l.precision->autocast ? T_FLOAT : scalar_of(l.precision->weights);
    for (int k = 0; k < net->n_inputs; k++)
        l.input_type[k] = net->inputs[k].bytes ? T_BYTE : net->inputs[k].indices ? T_LONG : g.numbers;
    read_target(&l);
    g.params = scratch_new(&g.scratch, (size_t)net->n_params, sizeof *g.params);
    if (g.params) {
        make_model(&l);
        if (s->world > 1 && s->zero > 1) g.fsdp = fsdp_new(&g, s);
        else if (s->world > 1 && !s->eval) g.ddp = ddp_new(&g, s);
        if (!s->eval) open_optimizer(&l);
    }
    for (int step = 1; step <= steps && !g.scratch.failed && !g.refused && !trace->failed && !l.too_long; step++) {
        snprintf(text, sizeof text, "step %d", step);
        trace_mark(trace, trace_text(trace, text));
        run_step(&l);
    }
    if (g.refused)
        code = layer_error(g.refused, e, "%s", g.why);
    else if (l.too_long)
        code = err_set(e, ERR_SCRIPT, "framework = \"pytorch\": expected accumulate of at most %d, found %d: each allocation of each "
                       "micro-batch is predicted, which would take about %.0f GB of the host's memory", l.most, s->accumulate, l.gigabytes);
    const bool failed = g.scratch.failed || trace->failed || trace->scratch.failed;
    scratch_release(&g.scratch, NULL);
    if (code) return code;
    out->steps = steps;
    out->work = g.work;
    out->convs = g.convs;
    out->estimated = g.estimate.any;
    return failed ? err_set(e, ERR_HOST_MEMORY, "out of host memory for PyTorch's step of a network") : OK;
}
