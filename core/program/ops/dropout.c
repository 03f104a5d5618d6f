/* Ops that draw random numbers, and the counter that makes each micro-batch draw different ones. */
#include <inttypes.h>

#include "program/rule.h"

static void dropout_gradient(Gradients *g, const Op *f, int dy) {
    gradient_by(g, OP_dropout_dx, f, f->dropout.x, dy, f->dropout.calls);
}

static void dropout_show(const Attr *a, Line *l) {
    const Within *w = &a->drop.within;
    line_put(l, " p=%g id=%u", (double)a->drop.p, a->drop.id);
    if (w->piece) line_put(l, " within=%" PRId64 "+%" PRId64 "/%" PRId64, w->first, w->piece, w->whole);
}
static void randn_show(const Attr *a, Line *l) { line_put(l, " id=%u", a->drop.id); }

const OpRule rule_dropout = {fits_elements, NULL, dropout_gradient, dropout_show};
const OpRule rule_dropout_dx = {fits_elements, NULL, NULL, dropout_show};
const OpRule rule_randn = {NULL, NULL, NULL, randn_show};
const OpRule rule_count_call = {NULL, NULL, NULL, NULL};
