#include "passes.h"

int pass_run(const Pass *pass, Program *p, Compile *c) {
    void *before = c->scratch.last;
    int code = pass->run(p, c);
    scratch_release(&c->scratch, before);
    if (!code && c->scratch.failed) code = err_set(c->e, ERR_HOST_MEMORY, "out of host memory in %s", pass->name);
    return code ? code : program_check(p, pass->name, c->e);
}
