#include "compile.h"

#include <string.h>

#include "network/layer.h"
#include "base/mem.h"

static void watched(PassWatch *watch, void *arg, const char *pass, const Program *p) {
    if (watch) watch(arg, pass, p);
}

int compile_finish(Program *p, const Settings *s, Device *device, PassWatch *watch, void *arg, Err *e) {
    static const struct { const char *name; int (*run)(Program *, const Settings *, Err *); } passes[] = {
        {"accumulate", pass_accumulate}, {"update", pass_update},
        {"update_early", pass_update_early}, {"inplace", pass_inplace}};
    for (size_t i = 0; i < ARRAY_LEN(passes); i++) {
        int code = passes[i].run(p, s, e);
        if (code) return code;
        watched(watch, arg, passes[i].name, p);
    }
    int code = pass_workspace(p, s, device, e);
    if (!code) watched(watch, arg, "update_workspace", p);
    return code;
}

/* A budget holds for every program, also for one in which there is nothing to drop. */
static int check_budgets(const Program *p, const Settings *s, Device *device, Err *e) {
    const struct { const char *of; bool given; size_t bytes; } budgets[] = {
        {"checkpoint", s->checkpoint == CHECKPOINT_BUDGET, s->budget},
        {"offload", s->offload == OFFLOAD_BUDGET, s->offload_budget}};
    int code = OK;
    for (size_t i = 0; i < ARRAY_LEN(budgets) && !code; i++) {
        Placement place;
        if (!budgets[i].given) continue;
        if ((code = placement_build(p, device->table->alignment, &place, e))) return code;
        if (place.arena > budgets[i].bytes)
            code = err_set(e, ERR_OOM, "%s: a budget of %zu bytes is too small: this program needs %zu bytes",
                           budgets[i].of, budgets[i].bytes, place.arena);
        placement_free(&place);
    }
    return code;
}

static int run_passes(Program *p, const Settings *s, Device *device, PassWatch *watch, void *arg, Err *e) {
    static const struct { const char *name; int (*run)(Program *, const Settings *, Err *); } passes[] = {
        {"precision", pass_precision}, {"fuse", pass_fuse}, {"backward", pass_backward},
        {"fuse_gradient", pass_fuse_gradient}, {"fuse_cast", pass_fuse_cast}};
    int code;
    for (size_t i = 0; i < ARRAY_LEN(passes); i++) {
        if ((code = passes[i].run(p, s, e))) return code;
        watched(watch, arg, passes[i].name, p);
    }
    if ((code = pass_workspace(p, s, device, e))) return code;
    watched(watch, arg, "workspace", p);
    if ((code = pass_checkpoint(p, s, device, e))) return code;
    watched(watch, arg, "checkpoint", p);
    if ((code = pass_offload(p, s, device, e))) return code;
    watched(watch, arg, "offload", p);
    if ((code = compile_finish(p, s, device, watch, arg, e))) return code;
    if ((code = pass_workspace_spare(p, s, device, e))) return code;
    watched(watch, arg, "workspace_spare", p);
    return check_budgets(p, s, device, e);
}

/* As PyTorch's autocast on GPUs: probabilities near 1 that a 16-bit sigmoid has rounded leave no logarithm of 1 - p. */
static int check_losses(const Network *net, const Program *p, const PrecisionInfo *precision, Err *e) {
    for (int k = 0; k < net->n_losses && p->loss != NO_BUF && precision->autocast; k++)
        if (!strcmp(layer_kind(net->loss[k]), "BCELoss"))
            return layer_error(net->loss[k], e, "unsafe under precision %s: expected BCEWithLogitsLoss, of logits, in "
                               "its place", precision->text);
    return OK;
}

/* What is the program's own has its scope in the name. */
static void scope_constants(Program *p) {
    char name[BUF_NAME];
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].constant) memcpy(p->bufs[b].name, program_scoped(p, p->bufs[b].name, name), sizeof name);
}

int compile(const Network *net, const Settings *s, Device *device, PassWatch *watch, void *arg, Program **out, Err *e) {
    Program *p;
    int code = lower_network(net, !s->eval, !s->no_loss, &p, e);
    if (code) return code;
    p->graph = s->graph;
    memcpy(p->scope, s->scope, sizeof p->scope);
    scope_constants(p);
    if (s->keep_output || p->loss == NO_BUF) p->bufs[p->output].keep = true;
    code = program_check(p, "lower", e);
    if (!code) watched(watch, arg, "lower", p);
    if (!code) code = check_losses(net, p, precision_info(s->precision), e);
    if (!code) code = run_passes(p, s, device, watch, arg, e);
    if (code) program_free(p);
    else *out = p;
    return code;
}
