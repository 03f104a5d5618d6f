/* trained.h: what a few steps of a network make: losses, all that a run keeps, and the plan's peak. */
#ifndef TEST_TRAINED_H
#define TEST_TRAINED_H

#include <stdlib.h>

#include "program/rule.h"
#include "run/runtime.h"
#include "tap.h"
#include "unit/nets.h"

/* Is it one of the ops that a test counts? */
typedef bool CountedFn(const Op *op);

enum { TRAINED_STEPS = 3 };

/* values: all that a run keeps: parameters, statistics, optimizer state; peak: of the plan; counted: ops */
typedef struct Trained { float loss[TRAINED_STEPS], *values; size_t count, peak; int counted, code; Err err; } Trained;

static int read_all(Runtime *r, Trained *t) {
    const Buf *b;
    for (int i = 0, code; (b = runtime_persistent(r, i)); i++) {
        size_t n = (size_t)shape_elements(&b->shape);
        float *more = realloc(t->values, (t->count + n) * sizeof *more);
        if (!more) return ERR_HOST_MEMORY;
        t->values = more;
        if ((code = runtime_read(r, 0, b->name, more + t->count, &t->err))) return code;
        t->count += n;
    }
    return OK;
}

static Trained train(Device *d, const char *text, const Settings *s, CountedFn *is_counted) {
    Trained t = {{0}, NULL, 0, 0, 0, OK, {0, ""}};
    Program *p = NULL;
    Runtime *r = NULL;
    StepResult step;
    Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), &t.err);
    t.code = net ? compile(net, s, d, NULL, NULL, &p, &t.err) : t.err.code;
    if (!t.code) t.code = placement_arena(p, d->table->alignment, &t.peak, &t.err);
    if (!t.code) t.code = runtime_open(d, s->allocator, 0, &(Job){net, p}, 1, 7, 0, &r, &t.err);
    for (int i = 0; i < TRAINED_STEPS && !t.code; i++) {
        t.code = runtime_step(r, 0, net_feed, p, &step, &t.err);
        t.loss[i] = step.loss;
    }
    if (!t.code) t.code = read_all(r, &t);
    for (int i = 0; p && i < p->n_ops; i++) t.counted += is_counted(&p->ops[i]);
    runtime_close(r);
    program_free(p);
    network_free(net);
    return t;
}

#endif
