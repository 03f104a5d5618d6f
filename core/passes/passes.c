#include "passes.h"

int pass_run(const Pass *pass, Program *p, Compile *c) {
    int code = pass->run(p, c);
    return code ? code : program_check(p, pass->name, c->e);
}
