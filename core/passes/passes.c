#include "passes.h"

#include <assert.h>

int pass_apply(const Pass *pass, Program *p, Compile *c) {
    void *before = c->scratch.last;
    assert(!p->failed && !c->scratch.failed);
    int code = pass->run(p, c);
    scratch_release(&c->scratch, before);
    assert(code || p->failed || (p->forward_end <= p->body_end && p->body_end <= p->n_ops));
    if (!code && c->scratch.failed) code = err_set(c->e, ERR_HOST_MEMORY, "out of host memory in %s", pass->name);
    return code;
}

int pass_run(const Pass *pass, Program *p, Compile *c) {
    const int code = pass_apply(pass, p, c);
    return code ? code : program_check(p, pass->name, c->e);
}
