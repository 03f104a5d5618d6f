/* apart.h: a network whose ops apply activations themselves trains as the same network whose ops do not, since the border of a
 * checkpoint keeps them apart: losses and all that a run keeps are equal bit for bit, in every precision. */
#ifndef TEST_APART_H
#define TEST_APART_H

#include <stdlib.h>

#include "program/rule.h"
#include "run/runtime.h"
#include "tap.h"
#include "unit/nets.h"

/* fused: ops of `one` that apply an activation */
typedef struct ApartNet { const char *what, *one, *apart; int fused; } ApartNet;
typedef bool FusedFn(const Op *op);

enum { APART_STEPS = 3 };

/* values: all that a run keeps: parameters, statistics, optimizer state; peak: of the plan */
typedef struct Trained { float loss[APART_STEPS], *values; size_t count, peak; int fused, code; Err err; } Trained;

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

static Trained train(Device *d, const char *text, const Settings *s, FusedFn *is_fused) {
    Trained t = {{0}, NULL, 0, 0, 0, OK, {0, ""}};
    Program *p = NULL;
    Runtime *r = NULL;
    StepResult step;
    Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), &t.err);
    t.code = net ? compile(net, s, d, NULL, NULL, &p, &t.err) : t.err.code;
    if (!t.code) t.code = placement_arena(p, d->table->alignment, &t.peak, &t.err);
    if (!t.code) t.code = runtime_open(d, s->allocator, 0, &(Job){net, p}, 1, 7, 0, &r, &t.err);
    for (int i = 0; i < APART_STEPS && !t.code; i++) {
        t.code = runtime_step(r, 0, net_feed, p, &step, &t.err);
        t.loss[i] = step.loss;
    }
    if (!t.code) t.code = read_all(r, &t);
    for (int i = 0; p && i < p->n_ops; i++) t.fused += is_fused(&p->ops[i]);
    runtime_close(r);
    program_free(p);
    network_free(net);
    return t;
}

static void check_apart(Device *d, const ApartNet *net, const Settings *s, FusedFn *is_fused) {
    Trained one = train(d, net->one, s, is_fused), apart = train(d, net->apart, s, is_fused);
    const bool same = !one.code && !apart.code && !memcmp(one.loss, apart.loss, sizeof one.loss) && one.count == apart.count &&
                      one.count > 1000 && !memcmp(one.values, apart.values, one.count * sizeof *one.values);
    if (!ok(same && one.fused == net->fused && !apart.fused && one.peak <= apart.peak && one.loss[0] != one.loss[APART_STEPS - 1],
            "%s: %s, %s, accumulate %d", d->table->kind, net->what, precision_info(s->precision)->text, s->accumulate))
        printf("# losses %.9g and %.9g of %zu and %zu numbers; %d and %d fused, %zu and %zu bytes; %s%s\n",
               (double)one.loss[APART_STEPS - 1], (double)apart.loss[APART_STEPS - 1], one.count, apart.count, one.fused, apart.fused,
               one.peak, apart.peak, one.err.text, apart.err.text);
    free(one.values);
    free(apart.values);
}

static void check_all_apart(Device *d, const ApartNet *nets, size_t n, FusedFn *is_fused) {
    for (size_t k = 0; k < n; k++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Settings s = settings_default();
            s.precision = (Precision)precision;
            s.accumulate = 1 + precision % 2;
            s.inplace = (Inplace)(precision % 3);
            s.optimizer.kind = OPTIM_SGD;
            s.optimizer.rule = (OptimRule){.lr = 0.05f, .momentum = 0.9f};
            check_apart(d, &nets[k], &s, is_fused);
        }
}

#endif
