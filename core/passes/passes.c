#include "passes.h"

#include <assert.h>

static int apply(const Pass *pass, Program *p, Compile *c, bool *changed) {
    void *before = c->scratch.last;
    const int ops = p->n_ops, bufs = p->n_bufs;
    assert(!p->failed && !c->scratch.failed);
    int code = pass->run(p, c);
    scratch_release(&c->scratch, before);
    *changed = code != UNCHANGED;
    assert(*changed || p->failed || (p->n_ops == ops && p->n_bufs == bufs));
    if (!*changed) code = OK;
    assert(code || p->failed || (p->forward_end <= p->body_end && p->body_end <= p->n_ops));
    if (!code && c->scratch.failed) code = err_set(c->e, ERR_HOST_MEMORY, "out of host memory in %s", pass->name);
    return code;
}

int pass_apply(const Pass *pass, Program *p, Compile *c) {
    bool changed;
    return apply(pass, p, c, &changed);
}

int pass_run(const Pass *pass, Program *p, Compile *c) {
    bool changed;
    const int code = apply(pass, p, c, &changed);
    return code || (!changed && !p->failed) ? code : program_check(p, pass->name, c->e);
}
