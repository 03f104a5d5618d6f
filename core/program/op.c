#include "op.h"

#include <stdio.h>
#include <string.h>

static OpInfo table[OP_KIND_COUNT] = {
#define LOW AUTOCAST_LOW
#define WIDE AUTOCAST_WIDE
#define SAME AUTOCAST_SAME
#define NONE AUTOCAST_NONE
#define PREPARED true
#define PLAIN false
#define OP(name, in, out, inplace, autocast, prepare, equation) \
    {#name, in, out, equation, inplace, autocast, prepare, 0, 0, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}},
#include "ops.def"
#undef OP
};

static int read_operands(const char *text, bool *optional, bool *wide, bool *any, bool *as_is, bool *updated) {
    int n = 0;
    while (*text) {
        for (; *text && *text != ' '; text++) {
            if (*text == '?') optional[n] = true;
            if (*text == '!') wide[n] = true;
            if (*text == '~') any[n] = true;
            if (*text == '=' && as_is) as_is[n] = true;
            if (*text == '*' && updated) updated[n] = true;
        }
        n++;
        while (*text == ' ') text++;
    }
    return n;
}

const OpInfo *op_info(OpKind kind) {
    static bool ready;
    if (!ready) {
        for (int i = 0; i < OP_KIND_COUNT; i++) {
            OpInfo *o = &table[i];
            o->n_in = read_operands(o->in_names, o->in_optional, o->in_wide, o->in_any, o->in_as_is, NULL);
            o->n_out = read_operands(o->out_names, o->out_optional, o->out_wide, o->out_any, NULL, o->out_updated);
        }
        ready = true;
    }
    return &table[kind];
}

const char *op_operand(OpKind kind, bool output, int slot, char *text) {
    const char *s = output ? op_info(kind)->out_names : op_info(kind)->in_names;
    for (; slot > 0 && *s; slot--) {
        s += strcspn(s, " ");
        s += strspn(s, " ");
    }
    snprintf(text, OPERAND_NAME, "%.*s", (int)strcspn(s, " ?*!~="), s);
    return text;
}
