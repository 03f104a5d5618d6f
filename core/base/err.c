#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base.h"

static const struct { const char *name; int status; } codes[] = {
#define X(name, text, status) {#name, status},
    ERR_CODES(X)
#undef X
};

/* Is the byte at p, which follows the one at `before` (NULL: none), a control character of ASCII or a part of one of
 * Latin 1 in UTF-8 (0xc2, 0x80 to 0x9f)? */
static bool is_control(const unsigned char *p, const unsigned char *before) {
    return *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) ||
           (before && *before == 0xc2 && *p >= 0x80 && *p < 0xa0);
}

/* Messages contain names of files that others made. Bytes that could control a terminal are replaced by \x1b and the
 * like; the text is cut where it would become too long. */
static void escape(char text[ERR_TEXT]) {
    char out[ERR_TEXT];
    size_t n = 0;
    const unsigned char *before = NULL;
    for (const unsigned char *p = (unsigned char *)text; *p; before = p++) {
        bool control = is_control(p, before);
        if (n + (control ? sizeof "\\x1b" : sizeof "x") > ERR_TEXT) break;
        if (control) n += (size_t)snprintf(out + n, ERR_TEXT - n, "\\x%02x", *p);
        else out[n++] = (char)*p;
    }
    memcpy(text, out, n);
    text[n] = 0;
}

int err_set(Err *e, int code, const char *format, ...) {
    assert(code > OK && code < ERR_CODE_COUNT);
    if (!e) return code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    escape(e->text);
    e->code = code;
    return code;
}

int err_prefix(Err *e, const char *format, ...) {
    if (!e) return ERR_INTERNAL;
    assert(e->code > OK && e->code < ERR_CODE_COUNT);
    char text[sizeof e->text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) n = (int)sizeof text - 1;
    snprintf(text + n, sizeof text - (size_t)n, ": %s", e->text);
    snprintf(e->text, sizeof e->text, "%s", text);
    escape(e->text);
    return e->code;
}

const char *err_name(int code) {
    return code >= 0 && code < ERR_CODE_COUNT ? codes[code].name : "UNKNOWN";
}

int err_exit_status(int code) {
    return code >= 0 && code < ERR_CODE_COUNT ? codes[code].status : 70;
}
