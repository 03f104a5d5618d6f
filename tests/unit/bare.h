/* bare.h: networks compiled for a device that wants no workspace: programs that are the same on every machine. */
#ifndef BARE_H
#define BARE_H

#include "passes/compile.h"
#include "net.h"
#include "tap.h"

static int bare_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)d, (void)args, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}

/* NULL on an error, which is printed. */
__attribute__((unused)) static Program *compiled(const char *text, Shape input, const Settings *s) {
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = bare_prepare};
    static Device device = {.table = &table};
    Err e = {0, ""};
    Program *p = NULL;
    Network *net = net_new(text, "CrossEntropyLoss", input, &e);
    int code = net ? compile(net, s, &device, NULL, NULL, &p, &e) : e.code;
    network_free(net);
    if (code) printf("# %s\n", e.text);
    return p;
}

typedef struct Case { Network *net; Program *p; } Case;

__attribute__((unused)) static Case case_open(Device *device, const char *text, const char *loss, Shape input,
                                              const Settings *s) {
    Err e = {0, ""};
    Case c = {net_new(text, loss, input, &e), NULL};
    int code = c.net ? compile(c.net, s, device, NULL, NULL, &c.p, &e) : e.code;
    ok(code == OK, "%.40s: %s", text, e.text);
    return c;
}

__attribute__((unused)) static void case_close(Case *c) {
    program_free(c->p);
    network_free(c->net);
}

#endif
