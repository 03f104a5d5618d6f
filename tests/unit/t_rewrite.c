/* The list of ops written anew: where its parts end, whatever is inserted and dropped. */
#include "passes/rewrite.h"
#include "tap.h"

enum { FORWARD = 2, BODY = 5, ALL = 6 };

static Program *sample(void) {
    Program *p = program_new();
    for (int i = 0; p && i < ALL; i++) program_op(p, OP_add, "old");
    if (p) p->forward_end = FORWARD, p->body_end = BODY;
    return p;
}

static void test_insert(void) {
    Program *p = sample();
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        if (r.at == FORWARD) program_op(p, OP_mul, "before the backward pass");
        rewrite_put(p, op);
        if (r.at == FORWARD - 1 || r.at == BODY - 1) program_op(p, OP_mul, "after the last");
    }
    rewrite_end(&r);
    is_int(p->n_ops, ALL + 3, "three more ops");
    is_int(p->forward_end, FORWARD + 1, "what comes after the last forward op is of the forward pass");
    is_int(p->body_end, BODY + 3, "what comes before a backward op, or after the last, is of the backward pass");
    is_str(p->ops[FORWARD].path, "after the last", "the forward pass ends with its own");
    is_str(p->ops[FORWARD + 1].path, "before the backward pass", "the backward pass begins with its own");
    program_free(p);
}

static void test_drop(void) {
    Program *p = sample();
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r))
        if (r.at > 0 && r.at < BODY - 1) rewrite_put(p, op);
    rewrite_end(&r);
    is_int(p->n_ops, BODY - 2, "what was not put is gone");
    is_int(p->forward_end, FORWARD - 1, "of the forward pass");
    is_int(p->body_end, BODY - 2, "and of the body, of which nothing follows");
    program_free(p);
}

int main(void) {
    test_insert();
    test_drop();
    return tap_done();
}
