#include "trace_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"

/* The number of each tensor that is allocated from the event on, counted from 0; others -1. */
static int *places(const Trace *t, int from, Scratch *s) {
    int *place = scratch_new(s, (size_t)t->n_tensors, sizeof *place);
    for (int i = 0; i < t->n_tensors && place; i++) place[i] = -1;
    for (int i = from, n = 0; i < t->n_events && place; i++)
        if (t->events[i] >= 0) place[t->events[i]] = n++;
    return place;
}

/* The event as text: "allocates 512 bytes in aten::mm (model.py:3)". */
static const char *describe(const Trace *t, int event, char *text, size_t size) {
    if (event < 0) return "has ended";
    int tensor = t->events[event] < 0 ? ~t->events[event] : t->events[event];
    const TraceCall *c = &t->calls[t->tensors[tensor].call];
    snprintf(text, size, "%s %zu bytes%s%.48s%s%.40s%s", t->events[event] < 0 ? "frees" : "allocates",
             t->tensors[tensor].bytes, *c->op ? " of " : "", c->op, *c->where ? " (" : "", c->where,
             *c->where ? ")" : "");
    return text;
}

static bool alike(const Trace *a, int x, const int *place_a, const Trace *b, int y, const int *place_b) {
    if ((x < 0) != (y < 0)) return false;
    int i = x < 0 ? ~x : x, k = y < 0 ? ~y : y;
    return a->tensors[i].bytes == b->tensors[k].bytes && (x >= 0 || place_a[i] == place_b[k]);
}

static void find_difference(const Trace *a, const Trace *b, const int from[2], const int *place_a, const int *place_b,
                            TraceComparison *out) {
    int n[2] = {a->n_events - from[0], b->n_events - from[1]}, i = 0;
    while (i < n[0] && i < n[1] && alike(a, a->events[from[0] + i], place_a, b, b->events[from[1] + i], place_b)) i++;
    out->equal = i;
    for (int k = 0; k < 2; k++) out->event[k] = i < n[k] ? from[k] + i : -1;
    if (i == n[0] && i == n[1]) return;
    char one[140], other[140];
    snprintf(out->text, sizeof out->text, "the one %s, the other %s", describe(a, out->event[0], one, sizeof one),
             describe(b, out->event[1], other, sizeof other));
}

static const char *op_name(const void *ops, int i) { return ((const TraceOp *)ops)[i].op; }

/* out->ops has room for one more op than there is. */
static bool add_bytes(TraceComparison *out, Names *names, const char *op, size_t bytes, int which) {
    int i = names_find(names, op, op_name, out->ops);
    if (i < 0) {
        out->ops[i = out->n_ops] = (TraceOp){.op = op};
        if (!names_add(names, i, op_name, out->ops)) return false;
        out->n_ops++;
    }
    out->ops[i].count[which]++;
    out->ops[i].bytes[which] += bytes;
    return true;
}

static size_t apart(const TraceOp *o) {
    return o->bytes[0] > o->bytes[1] ? o->bytes[0] - o->bytes[1] : o->bytes[1] - o->bytes[0];
}

static int by_difference(const void *a, const void *b) {
    size_t x = apart(a), y = apart(b);
    return x == y ? strcmp(((const TraceOp *)a)->op, ((const TraceOp *)b)->op) : x > y ? -1 : 1;
}

static bool sum_ops(const Trace *a, const Trace *b, const int from[2], TraceComparison *out) {
    Names names = {0};
    bool good = true;
    for (int which = 0; which < 2; which++) {
        const Trace *t = which ? b : a;
        for (int i = from[which]; i < t->n_events && good; i++) {
            const TraceTensor *tensor = t->events[i] < 0 ? NULL : &t->tensors[t->events[i]];
            if (tensor) good = add_bytes(out, &names, t->calls[tensor->call].op, tensor->bytes, which);
        }
    }
    names_free(&names);
    if (good && out->n_ops) qsort(out->ops, (size_t)out->n_ops, sizeof *out->ops, by_difference);
    return good;
}

int trace_compare(const Trace *a, const Trace *b, const int from[2], TraceComparison *out, Err *e) {
    *out = (TraceComparison){0};
    int *place_a = places(a, from[0], &out->scratch), *place_b = places(b, from[1], &out->scratch);
    out->ops = scratch_new(&out->scratch, (size_t)a->n_calls + (size_t)b->n_calls + 1, sizeof *out->ops);
    if (!out->scratch.failed) find_difference(a, b, from, place_a, place_b, out);
    if (!out->scratch.failed && sum_ops(a, b, from, out)) return OK;
    trace_comparison_free(out);
    return err_set(e, ERR_HOST_MEMORY, "out of host memory for the comparison of two traces");
}

void trace_comparison_free(TraceComparison *c) {
    scratch_release(&c->scratch, NULL);
    c->ops = NULL;
    c->n_ops = 0;
}
