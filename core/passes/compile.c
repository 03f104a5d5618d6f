#include "compile.h"

#include <assert.h>
#include <string.h>

#include "network/layer.h"

static const Pass passes[] = {
#define PASS(name, stage, function, technique) {#name, function},
#include "passes.def"
#undef PASS
};

static void watched(PassWatch *watch, void *arg, const char *pass, const Program *p) {
    if (watch) watch(arg, pass, p);
}

/* A budget is a limit for every program, also for one in which there is nothing to drop. */
static int check_budgets(Program *p, const Compile *c) {
    const Settings *s = c->settings;
    const struct { const char *of; bool given; size_t bytes; } budgets[] = {
        {"checkpoint", s->checkpoint == CHECKPOINT_BUDGET, s->budget},
        {"offload", s->offload == OFFLOAD_BUDGET, s->offload_budget}};
    int code = OK;
    for (size_t i = 0, arena; i < ARRAY_LEN(budgets) && !code; i++) {
        if (!budgets[i].given) continue;
        code = placement_arena(p, c->device->table->alignment, &arena, c->e);
        if (!code && arena > budgets[i].bytes)
            code = err_set(c->e, ERR_OOM, "%s: a budget of %zu bytes is too small: this program needs %zu bytes",
                           budgets[i].of, budgets[i].bytes, arena);
    }
    return code;
}

/* As PyTorch's autocast on GPUs refuses BCELoss: of probabilities p near 1, which a 16-bit sigmoid has rounded to 1,
 * there is no logarithm of 1 - p. */
static int check_losses(const Network *net, const Program *p, const PrecisionInfo *precision, Err *e) {
    for (int k = 0; k < net->n_losses && p->loss != NO_BUF && precision->autocast; k++)
        if (!strcmp(layer_kind(net->loss[k]), "BCELoss"))
            return layer_error(net->loss[k], e, "unsafe under precision %s: expected BCEWithLogitsLoss, of logits, in "
                               "its place", precision->text);
    return OK;
}

static int check_ranks(const Settings *s, Err *e) {
    if (s->rank >= s->world) return err_set(e, ERR_SCRIPT, "rank: expected less than world = %d, found %d", s->world, s->rank);
    const int64_t others = (int64_t)s->mesh.tensor * s->mesh.pipeline, data = s->world / others;
    if (s->world % others || (s->mesh.data && s->mesh.data != data))
        return err_set(e, ERR_SCRIPT, "mesh: expected sizes that multiply to world = %d, found data = %d, tensor = %d, pipeline = %d",
                       s->world, s->mesh.data ? s->mesh.data : (int)data, s->mesh.tensor, s->mesh.pipeline);
    if (s->sequence_parallel && s->mesh.tensor == 1)
        return err_set(e, ERR_SCRIPT, "sequence_parallel: expected a mesh with tensor above 1, whose ranks divide the sequence");
    if (s->world > 1 && s->parts)
        return err_set(e, ERR_SCRIPT, "world: a step that runs in parts is that of one rank: expected world = 1");
    return OK;
}

/* The device by whose workspace choices are made: that with one thread, since the number of threads must not change what is computed.
 * A budget in bytes is one for all threads. */
static int choosing(const Settings *s, Device *device, Device **chooser, Err *e) {
    *chooser = device;
    const bool budget = s->checkpoint == CHECKPOINT_BUDGET || s->offload == OFFLOAD_BUDGET;
    return budget || !device->table->alone ? OK : device->table->alone(device, chooser, e);
}

int compile(const Network *net, const Settings *s, Device *device, PassWatch *watch, void *arg, Program **out, Err *e) {
    Compile c = {.settings = s, .threads = device, .e = e};
    char name[BUF_NAME];
    Program *p;
    int code = check_ranks(s, e);
    if (!code) code = choosing(s, device, &c.device, e);
    if (!code) code = layer_batchnorm_check(net->root, !s->eval, e);
    if (!code) code = lower_network(net, !s->eval, !s->no_loss, &p, e);
    if (code) return code;
    p->graph = s->graph;
    p->tensor = s->mesh.tensor;
    p->tensor_rank = s->rank % p->tensor;
    p->pipeline = s->mesh.pipeline;
    p->world = s->world / p->tensor / p->pipeline;
    p->rank = s->rank / p->tensor % p->world;
    p->stage = s->rank / p->tensor / p->world;
    memcpy(p->scope, s->scope, sizeof p->scope);
    for (int b = 0; b < p->n_bufs; b++) /* a constant is the program's own: its name begins with the scope */
        if (p->bufs[b].constant) memcpy(p->bufs[b].name, program_scoped(p, p->bufs[b].name, name), sizeof name);
    if (s->keep_output || p->loss == NO_BUF) p->bufs[p->output].keep = true;
    code = program_check(p, "lower", e);
    if (!code) watched(watch, arg, "lower", p);
    if (!code) code = check_losses(net, p, precision_info(s->precision), e);
    for (size_t i = 0; i < ARRAY_LEN(passes) && !code; i++) {
        code = pass_run(&passes[i], p, &c);
        if (!code) watched(watch, arg, passes[i].name, p);
    }
    assert(!c.scratch.last); /* each pass's scratch was given back */
    if (!code) code = check_budgets(p, &c);
    if (code) program_free(p);
    else *out = p;
    return code;
}
