/* The network as text, a line per layer: path, kind, options, output shape, own parameters. And the walk over it. */
#include <inttypes.h>
#include <stdio.h>

#include "layer.h"

static void visit_layer(const Network *n, const Layer *l, LayerVisit *visit, void *arg) {
    if (l->n_child == 0) visit(arg, n, l);
    for (int i = 0; i < l->n_child; i++) visit_layer(n, l->child[i], visit, arg);
}

void network_visit(const Network *n, LayerVisit *visit, void *arg) {
    visit_layer(n, n->root, visit, arg);
}

static void dump_layer(const Network *n, const Layer *l, TextSink *put, void *arg) {
    char options[OPTIONS_TEXT], shape[SHAPE_TEXT], line[OPTIONS_TEXT + 256];
    int64_t parameters = 0;
    for (int i = 0; i < l->n_params; i++)
        if (n->params[l->param[i]].owner == l) parameters += shape_elements(&n->params[l->param[i]].shape);
    options_text(&l->options, options, sizeof options);
    int used = snprintf(line, sizeof line, "%s %s%s%s %s", l->path[0] ? l->path : ".", l->kind->name,
                        options[0] ? " " : "", options, shape_text(&l->out, shape));
    if (parameters) snprintf(line + used, sizeof line - (size_t)used, " %" PRId64, parameters);
    put(arg, line);
    for (int i = 0; i < l->n_child; i++) dump_layer(n, l->child[i], put, arg);
}

void network_dump(const Network *n, TextSink *put, void *arg) {
    char line[64];
    dump_layer(n, n->root, put, arg);
    if (n->loss) dump_layer(n, n->loss, put, arg);
    snprintf(line, sizeof line, "%" PRId64 " parameters", network_parameters(n));
    put(arg, line);
}
