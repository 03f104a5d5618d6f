#include "trace_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "trace_align.h"

/* One of the traces, from an event on. Allocations are counted from 0 there. */
typedef struct Side {
    const Trace *t;
    int *event;     /* of each allocation */
    size_t *bytes;
    int *pair;      /* its number among the pairs, -1: the other has none */
    int *number;    /* by tensor: of its allocation, -1: it was there before */
    int n;
    int low, high;  /* allocations that stand beside the other's */
} Side;

typedef struct Freed { int after, pair; size_t bytes; int event; } Freed; /* after so many pairs; pair -1: from before */

static Side read_side(const Trace *t, int begin, int end, Scratch *s) {
    Side side = {.t = t, .number = scratch_new(s, (size_t)t->n_tensors + 1, sizeof(int))};
    side.event = scratch_new(s, (size_t)(end - begin) + 1, sizeof(int));
    side.pair = scratch_new(s, (size_t)(end - begin) + 1, sizeof(int));
    side.bytes = scratch_new(s, (size_t)(end - begin) + 1, sizeof(size_t));
    if (s->failed) return side;
    for (int i = 0; i < t->n_tensors; i++) side.number[i] = -1;
    for (int i = begin; i < end; i++) {
        if (t->events[i] < 0) continue;
        side.number[t->events[i]] = side.n;
        side.bytes[side.n] = t->tensors[t->events[i]].bytes;
        side.pair[side.n] = -1;
        side.event[side.n++] = i;
    }
    return side;
}

/* Numbers the pairs, and says which allocations stand beside the other's: of b also as many at either end as `a` has
 * there without a partner. */
static void align(Side *a, Side *b, TraceComparison *out) {
    Scratch *s = &out->scratch;
    int *partner = scratch_new(s, (size_t)a->n + 1, sizeof *partner), first = -1, last = -1;
    if (s->failed || !trace_align(a->bytes, a->n, b->bytes, b->n, partner, s)) return;
    for (int i = 0; i < a->n; i++) {
        if (partner[i] < 0) continue;
        a->pair[i] = b->pair[partner[i]] = out->pairs++;
        if (first < 0) first = i;
        last = i;
    }
    a->high = a->n;
    if (first < 0) return;
    const int before = first < partner[first] ? first : partner[first];
    const int rest_a = a->n - 1 - last, rest_b = b->n - 1 - partner[last], after = rest_a < rest_b ? rest_a : rest_b;
    a->low = first - before;
    a->high = last + 1 + after;
    b->low = partner[first] - before;
    b->high = partner[last] + 1 + after;
    out->outside = a->low + a->n - a->high;
    out->begin = b->event[b->low];
    out->end = b->high < b->n ? b->event[b->high] : b->t->n_events;
}

/* ---- what is freed when */

static int by_time(const void *a, const void *b) {
    const Freed *x = a, *y = b;
    if (x->after != y->after) return x->after - y->after;
    if (x->pair != y->pair) return x->pair - y->pair;
    return x->bytes == y->bytes ? 0 : x->bytes < y->bytes ? -1 : 1;
}

/* The frees of the events [begin, end) after the first allocation that counts. from_before, to_end: are tensors from
 * before it, and frees after the last pair, there in both traces? */
static int read_frees(const Side *w, int end, int pairs, bool from_before, bool to_end, Freed *out) {
    int n = 0, after = 0;
    for (int i = w->low < w->high ? w->event[w->low] : end; i < end; i++) {
        const int tensor = w->t->events[i] < 0 ? ~w->t->events[i] : w->t->events[i], number = w->number[tensor];
        const bool old = number < w->low;
        if (w->t->events[i] >= 0) after += w->pair[number] >= 0;
        else if ((old ? from_before : w->pair[number] >= 0) && (to_end || after < pairs))
            out[n++] = (Freed){after, old ? -1 : w->pair[number], w->t->tensors[tensor].bytes, i};
    }
    qsort(out, (size_t)n, sizeof *out, by_time);
    return n;
}

/* The first one that only one of the lists has. Returns which list has it, -1: none. */
static int compare_frees(const Freed *a, int n_a, const Freed *b, int n_b, Freed *first, int *moved) {
    int which = -1, only[2] = {0, 0};
    for (int i = 0, k = 0; i < n_a || k < n_b;) {
        const int order = i == n_a ? 1 : k == n_b ? -1 : by_time(&a[i], &b[k]);
        if (order && which < 0) {
            which = order > 0;
            *first = order > 0 ? b[k] : a[i];
        }
        only[0] += order < 0;
        only[1] += order > 0;
        i += order <= 0;
        k += order >= 0;
    }
    *moved = only[0] > only[1] ? only[0] : only[1];
    return which;
}

/* ---- the first difference */

/* The event as text: "allocates 512 bytes of aten::mm (model.py:3)". */
static const char *describe(const Trace *t, int event, char *text, size_t size) {
    if (event < 0) return "has ended";
    int tensor = t->events[event] < 0 ? ~t->events[event] : t->events[event];
    const TraceCall *c = &t->calls[t->tensors[tensor].call];
    snprintf(text, size, "%s %zu bytes%s%.48s%s%.40s%s", t->events[event] < 0 ? "frees" : "allocates",
             t->tensors[tensor].bytes, *c->op ? " of " : "", c->op, *c->where ? " (" : "", c->where,
             *c->where ? ")" : "");
    return text;
}

/* How many pairs come before the first allocation without a partner; `none` if all have one. */
static int first_alone(const Side *w, int none) {
    int pairs = 0;
    for (int i = w->low; i < w->high; i++, pairs++)
        if (w->pair[i] < 0) return pairs;
    return none;
}

/* The allocation after so many pairs; -1: none counts. */
static int event_after(const Side *w, int pairs) {
    return w->low + pairs < w->high ? w->event[w->low + pairs] : -1;
}

static void find_difference(const Side *a, const Side *b, int end, TraceComparison *out) {
    Freed *freed[2], first = {0};
    char one[140], other[140];
    freed[0] = scratch_new(&out->scratch, (size_t)a->t->n_events + 1, sizeof first);
    freed[1] = scratch_new(&out->scratch, (size_t)b->t->n_events + 1, sizeof first);
    if (out->scratch.failed) return;
    const bool from_before = a->low == 0, to_end = a->high == a->n;
    const int n_a = read_frees(a, end, out->pairs, from_before, to_end, freed[0]);
    const int n_b = read_frees(b, out->end, out->pairs, from_before, to_end, freed[1]);
    const int which = compare_frees(freed[0], n_a, freed[1], n_b, &first, &out->moved);
    const int alone_a = first_alone(a, INT32_MAX), alone_b = first_alone(b, INT32_MAX);
    const int alone = alone_a < alone_b ? alone_a : alone_b;
    out->event[0] = out->event[1] = -1;
    out->equal = out->pairs;
    if (alone != INT32_MAX && (which < 0 || alone <= first.after)) {
        out->equal = alone;
        out->event[0] = event_after(a, alone);
        out->event[1] = event_after(b, alone);
        snprintf(out->text, sizeof out->text, "the one %s, the other %s", describe(a->t, out->event[0], one, sizeof one),
                 describe(b->t, out->event[1], other, sizeof other));
    } else if (which >= 0) {
        out->equal = first.after;
        out->event[which] = first.event;
        snprintf(out->text, sizeof out->text, "the %s %s, the %s at another time", which ? "other" : "one",
                 describe(which ? b->t : a->t, first.event, one, sizeof one), which ? "one" : "other");
    }
}

/* ---- bytes by op */

typedef struct OpRow { TraceOp sum; const char *key; } OpRow;

static const char *row_key(const void *rows, int i) { return ((const OpRow *)rows)[i].key; }

static const char *op_of(const Side *w, int number) {
    return w->t->calls[w->t->tensors[w->t->events[w->event[number]]].call].op;
}

typedef struct Sums { OpRow *rows; int n; Names names; Scratch *scratch; } Sums;

/* Of allocations number a and b; -1: there is none. */
static bool add_bytes(Sums *sums, const Side *a, int i, const Side *b, int k) {
    const char *op[2] = {i < 0 ? "" : op_of(a, i), k < 0 ? "" : op_of(b, k)};
    char key[400];
    snprintf(key, sizeof key, "%.190s\n%.190s", op[0], op[1]);
    int at = names_find(&sums->names, key, row_key, sums->rows);
    if (at < 0) {
        char *own = scratch_new(sums->scratch, strlen(key) + 1, 1);
        if (!own) return false;
        sums->rows[at = sums->n] = (OpRow){{.op = {op[0], op[1]}}, memcpy(own, key, strlen(key) + 1)};
        if (names_add(&sums->names, at, row_key, sums->rows) < 0) return false;
        sums->n++;
    }
    TraceOp *sum = &sums->rows[at].sum;
    if (i >= 0) sum->count[0]++, sum->bytes[0] += a->bytes[i];
    if (k >= 0) sum->count[1]++, sum->bytes[1] += b->bytes[k];
    return true;
}

static size_t apart(const TraceOp *o) {
    return o->bytes[0] > o->bytes[1] ? o->bytes[0] - o->bytes[1] : o->bytes[1] - o->bytes[0];
}

static int by_difference(const void *a, const void *b) {
    const TraceOp *p = a, *q = b;
    const size_t x = apart(p), y = apart(q);
    if (x != y) return x > y ? -1 : 1;
    if (p->bytes[0] != q->bytes[0]) return p->bytes[0] > q->bytes[0] ? -1 : 1;
    const int order = strcmp(p->op[0], q->op[0]);
    return order ? order : strcmp(p->op[1], q->op[1]);
}

static bool sum_ops(const Side *a, const Side *b, TraceComparison *out) {
    const size_t most = (size_t)(a->high - a->low) + (size_t)(b->high - b->low) + 1;
    Sums sums = {scratch_new(&out->scratch, most, sizeof(OpRow)), 0, {0}, &out->scratch};
    out->ops = scratch_new(&out->scratch, most, sizeof *out->ops);
    bool good = !out->scratch.failed;
    for (int i = a->low, k = b->low; good && (i < a->high || k < b->high);) {
        const bool alone_a = i < a->high && a->pair[i] < 0, alone_b = k < b->high && b->pair[k] < 0;
        const int x = alone_a || !alone_b ? i++ : -1, y = alone_a ? -1 : k++;
        out->only[0] += y < 0;
        out->only[1] += x < 0;
        good = add_bytes(&sums, a, x, b, y);
    }
    for (int i = 0; good && i < sums.n; i++) out->ops[i] = sums.rows[i].sum;
    out->n_ops = good ? sums.n : 0;
    if (good) qsort(out->ops, (size_t)out->n_ops, sizeof *out->ops, by_difference);
    names_free(&sums.names);
    return good;
}

int trace_compare(const Trace *a, int begin, int end, const Trace *b, int from, TraceComparison *out, Err *e) {
    *out = (TraceComparison){0};
    Side one = read_side(a, begin, end, &out->scratch), other = read_side(b, from, b->n_events, &out->scratch);
    if (!out->scratch.failed) align(&one, &other, out);
    if (!out->scratch.failed) find_difference(&one, &other, end, out);
    if (!out->scratch.failed && sum_ops(&one, &other, out)) return OK;
    trace_comparison_free(out);
    return err_set(e, ERR_HOST_MEMORY, "out of host memory for the comparison of two traces");
}

void trace_comparison_free(TraceComparison *c) {
    scratch_release(&c->scratch, NULL);
    c->ops = NULL;
    c->n_ops = 0;
}
