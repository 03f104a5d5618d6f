/* The network as text, a line per layer: path, kind, options, output shape, parameters that it is the first to use,
 * whether they are frozen, and in a graph where its inputs come from. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "layer.h"

typedef struct Line { char text[OPTIONS_TEXT + (LAYER_IN + 4) * PARAM_NAME + 256]; size_t n; } Line;

__attribute__((format(printf, 2, 3))) static void put_text(Line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->n, sizeof l->text - l->n, format, args);
    va_end(args);
    if (n > 0) l->n = l->n + (size_t)n < sizeof l->text ? l->n + (size_t)n : sizeof l->text - 1;
}

/* A value of Layer.from or Layer.result of `parent`: "conv1", "3", "input". */
static void put_value(Line *line, const Layer *parent, int from) {
    assert(from < parent->n_child);
    if (from < 0) put_text(line, ~from ? "input %d" : "input", ~from + 1);
    else if (parent->child[from]->name[0]) put_text(line, "%s", parent->child[from]->name);
    else put_text(line, "%d", from);
}

/* Where the inputs of child i come from, unless it only reads the child before it. */
static void put_wiring(Line *line, const Layer *parent, int i) {
    const Layer *l = parent->child[i];
    if (l->n_from == 1 && l->from[0] == i - 1) return;
    for (int k = 0; k < l->n_from; k++) {
        put_text(line, k ? ", " : " <- ");
        put_value(line, parent, l->from[k]);
    }
}

static void put_params(Line *line, const Network *n, const Layer *l) {
    int64_t own = 0;
    for (int i = 0; i < l->n_params; i++) {
        const Param *p = &n->params[l->param[i]];
        if (p->owner == l && !p->buffer) own += param_elements(p);
    }
    if (own) put_text(line, " %" PRId64, own);
    if (own && l->frozen) put_text(line, " frozen");
    if (own && l->wide) put_text(line, " float");
    for (int i = 0; i < l->n_params; i++)
        if (n->params[l->param[i]].owner != l) put_text(line, " shares %s", n->params[l->param[i]].name);
}

/* The lines of `l` and its children. parent: NULL for the root and the losses; else l is its child `at`. */
static void dump_layer(const Network *n, const Layer *parent, int at, const Layer *l, TextSink *put, void *arg) {
    char options[OPTIONS_TEXT], shape[SHAPE_TEXT];
    Line line = {"", 0};
    options_text(&l->options, options, sizeof options);
    put_text(&line, "%s %s%s%s %s", l->path[0] ? l->path : ".", l->kind->name, options[0] ? " " : "", options,
             shape_text(&l->out, shape));
    put_params(&line, n, l);
    if (parent) put_wiring(&line, parent, at);
    bool last = l->n_result == 1 && l->result[0] == l->n_child - 1;
    for (int k = 0; k < l->n_result && l->n_child && !last; k++) {
        put_text(&line, k ? ", " : " gives ");
        put_value(&line, l, l->result[k]);
    }
    if (l->factor != 1) put_text(&line, " times %g", l->factor);
    put(arg, line.text);
    for (int i = 0; i < l->n_child; i++) dump_layer(n, l, i, l->child[i], put, arg);
}

void network_dump(const Network *n, TextSink *put, void *arg) {
    char line[64];
    dump_layer(n, NULL, 0, n->root, put, arg);
    for (int k = 0; k < n->n_losses; k++) dump_layer(n, NULL, 0, n->loss[k], put, arg);
    snprintf(line, sizeof line, "%" PRId64 " parameters", network_parameters(n));
    put(arg, line);
}
