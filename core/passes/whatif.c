#include "whatif.h"

#include <assert.h>

#define BUILD(...)
#define CHOOSE(...)
#define FINISH(...) {__VA_ARGS__},
#define SPARE(...)
static const Pass finishing[] = {
#define PASS(name, stage, function, technique) stage(#name, function)
#include "passes.def"
#undef PASS
};

int whatif(const Program *p, ApplyFn *apply, const void *choice, Compile *c, Program **finished, size_t *arena) {
    assert(p->body_end == p->n_ops && p->micro_batches == 1); /* before stage FINISH */
    Program *copy = program_copy(p);
    if (!copy) return err_set(c->e, ERR_HOST_MEMORY, "out of host memory for a copy of the program");
    void *before = c->scratch.last;
    if (apply) apply(copy, choice, &c->scratch);
    scratch_release(&c->scratch, before);
    int code = OK;
    if (copy->failed || c->scratch.failed) code = err_set(c->e, ERR_HOST_MEMORY, "out of host memory in a choice");
    for (size_t i = 0; i < ARRAY_LEN(finishing) && !code && !copy->failed; i++) code = pass_apply(&finishing[i], copy, c);
    if (!code) code = program_check(copy, "the passes of a choice", c->e); /* of the choice that is made, after each of them */
    if (!code && arena) code = placement_arena(copy, c->device->table->alignment, arena, c->e);
    if (finished && !code) *finished = copy;
    else program_free(copy);
    return code;
}
