/* What belongs to a parameter is known by its role: with other names for all buffers a step is the same. */
#include "checkpoint_nets.h"
#include "tap.h"

static bool same_ops(const Program *a, const Program *b) {
    bool same = a->n_ops == b->n_ops && a->n_bufs == b->n_bufs && a->body_end == b->body_end;
    for (int i = 0; same && i < a->n_ops; i++)
        same = a->ops[i].kind == b->ops[i].kind && !memcmp(a->ops[i].in, b->ops[i].in, sizeof a->ops[i].in) &&
               !memcmp(a->ops[i].out, b->ops[i].out, sizeof a->ops[i].out);
    return same;
}

static void rename_all(Program *p) {
    for (int b = 0; b < p->n_bufs; b++) snprintf(p->bufs[b].name, sizeof p->bufs[b].name, "buffer%d", b);
}

/* The update of a parameter reads its gradient, and writes it and its master. */
static int wrong_roles(const Program *p, bool masters) {
    int wrong = 0, updates = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (!op_is_update(op->kind)) continue;
        const ParamBufs *of = &p->params[p->bufs[op->out[0]].param];
        wrong += of->weight != op->out[0] || of->grad != op->in[0] || of->master != op->out[op_master(op->kind)];
        wrong += masters != (of->master != NO_BUF);
        updates++;
    }
    return updates == p->n_params ? wrong : -1;
}

static void test_names(Settings s, const char *what) {
    Err e = {0, ""};
    Compile c = {.settings = &s, .device = &model, .e = &e};
    Program *p = before(residual, &s, &e), *named = NULL, *numbered = NULL;
    if (!ok(p && !whatif(p, NULL, NULL, &c, &named, NULL), "%s: %s", what, e.text)) return;
    rename_all(p);
    ok(!whatif(p, NULL, NULL, &c, &numbered, NULL) && same_ops(named, numbered), "%s: no op depends on a name", what);
    ok(!wrong_roles(named, precision_info(s.precision)->master), "%s: an update has its parameter's buffers", what);
    program_free(p);
    program_free(named);
    program_free(numbered);
}

int main(void) {
    Settings s = settings_default();
    test_names(s, "fp32");
    s.accumulate = 3;
    test_names(s, "several micro-batches");
    s.precision = PREC_MASTER_FP16;
    test_names(s, "master copies");
    return tap_done();
}
