#include "err.h"

#include <stdarg.h>
#include <stdio.h>

#include "base.h"

static const struct { const char *name; int status; } codes[] = {
#define X(name, text, status) {#name, status},
    ERR_CODES(X)
#undef X
};

int err_set(Err *e, int code, const char *format, ...) {
    if (!e) return code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    e->code = code;
    return code;
}

int err_prefix(Err *e, const char *format, ...) {
    if (!e) return ERR_INTERNAL;
    char text[sizeof e->text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) n = (int)sizeof text - 1;
    snprintf(text + n, sizeof text - (size_t)n, ": %s", e->text);
    snprintf(e->text, sizeof e->text, "%s", text);
    return e->code;
}

const char *err_name(int code) {
    return code >= 0 && code < ERR_CODE_COUNT ? codes[code].name : "UNKNOWN";
}

int err_exit_status(int code) {
    return code >= 0 && code < ERR_CODE_COUNT ? codes[code].status : 70;
}
