/* layers.h: what tests of single layers share: the parameters they declare, the program they become, what they refuse,
 * and that nothing is left where memory runs out. */
#ifndef LAYERS_H
#define LAYERS_H

#include "network/layer.h"
#include "base/mem.h"
#include "net.h"
#include "tap.h"

typedef struct Lines { char text[8192]; size_t used; } Lines;

__attribute__((unused)) static void collect(void *arg, const char *line) {
    Lines *l = arg;
    if (l->used < sizeof l->text)
        l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s\n", line);
}

/* NULL on an error, which is a failed check. */
__attribute__((unused)) static Program *lowered(const char *net, const char *loss, Shape input, bool training) {
    Err e = {0};
    Program *p = NULL;
    Network *n = net_new(net, loss, input, &e);
    if (n && lower_network(n, training, loss != NULL, &p, &e) == OK && program_check(p, "lower", &e) != OK) {
        program_free(p);
        p = NULL;
    }
    ok(p != NULL, "%s is lowered: %s", net, e.text);
    network_free(n);
    return p;
}

/* The program of `net` as text. */
__attribute__((unused)) static void is_program(const char *net, const char *loss, Shape input, bool training,
                                               const char *expected) {
    Program *p = lowered(net, loss, input, training);
    Lines dump = {"", 0};
    if (!p) return;
    program_dump(p, collect, &dump);
    is_str(dump.text, expected, "as expected, op by op");
    program_free(p);
}

/* The attributes of the which-th op of that kind, or NULL. */
__attribute__((unused)) static const Attr *attr_of(const Program *p, OpKind kind, int which) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && which-- == 0) return &p->ops[i].attr;
    return NULL;
}

/* The shape that comes out, and a line per parameter: name, shape, how it starts: "0.weight (4, 3) uniform 0.5". */
__attribute__((unused)) static void is_network(const char *net, Shape input, const char *output, const char *params) {
    static const char *const init[] = {[INIT_UNIFORM] = "uniform", [INIT_CONSTANT] = "all", [INIT_NORMAL] = "normal"};
    Err e = {0};
    Lines found = {"", 0};
    char text[SHAPE_TEXT], line[PARAM_NAME + SHAPE_TEXT + 64];
    Network *n = net_new(net, NULL, input, &e);
    if (!ok(n != NULL, "%s: %s", net, e.text)) return;
    is_str(shape_text(&n->output, text), output, "its output");
    for (int i = 0; i < n->n_params; i++) {
        const Param *p = &n->params[i];
        snprintf(line, sizeof line, "%s %s %s %.6g", p->name, shape_text(&p->shape, text), init[p->init], p->bound);
        collect(&found, line);
    }
    is_str(found.text, params, "its parameters");
    network_free(n);
}

/* Refused for the script's mistake, with this in the message. */
__attribute__((unused)) static void is_refused(const char *net, Shape input, const char *message) {
    Err e = {0};
    long before = mem_live();
    Network *n = net_new(net, NULL, input, &e);
    ok(!n && e.code == ERR_SCRIPT, "%s is refused", net);
    has_text(e.text, message, message);
    network_free(n);
    is_int(mem_live(), before, "and leaves nothing");
}

/* Builds the network and its program again and again, with one allocation after the other made to fail. */
__attribute__((unused)) static void survives_memory(const char *net, const char *loss, Shape input, int least) {
    const long before = mem_live();
    int failures = 0, wrong = 0, code = ERR_HOST_MEMORY;
    while (code && failures < 5000) {
        Err e = {0};
        Program *p = NULL;
        mem_fail_after(failures + 1);
        Network *n = net_new(net, loss, input, &e);
        code = n ? lower_network(n, true, loss != NULL, &p, &e) : e.code;
        mem_fail_after(0);
        failures += code != OK;
        wrong += code && (code != ERR_HOST_MEMORY || e.code != code || p);
        network_free(n);
        program_free(p);
        wrong += mem_live() != before;
    }
    ok(!code && failures >= least, "%s: %d allocations, each made to fail", net, failures);
    is_int(wrong, 0, "each failure is an error of its kind and leaves nothing");
}

#endif
