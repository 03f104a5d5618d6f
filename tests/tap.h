/* tap.h: Test Anything Protocol for C tests. A test binary is one main: checks, then `return tap_done();`. */
#ifndef TAP_H
#define TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int tap_count, tap_failed;

__attribute__((format(printf, 2, 3), unused)) static int ok(int good, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%sok %d - ", good ? "" : "not ", ++tap_count);
    vprintf(format, args);
    putchar('\n');
    fflush(stdout); /* a test that is stopped, or crashes in a library, has told how far it came */
    va_end(args);
    if (!good) tap_failed++;
    return good;
}

__attribute__((unused)) static int is_int(long long found, long long expected, const char *what) {
    int good = ok(found == expected, "%s", what);
    if (!good) printf("# found %lld, expected %lld\n", found, expected);
    return good;
}

__attribute__((unused)) static int is_str(const char *found, const char *expected, const char *what) {
    int good = ok(found && !strcmp(found, expected), "%s", what);
    if (!good) printf("# found    %s\n# expected %s\n", found ? found : "NULL", expected);
    return good;
}

/* |found - expected| <= atol + rtol |expected|; NaN is never near */
__attribute__((unused)) static int is_near(double found, double expected, double rtol, double atol, const char *what) {
    int good = ok(fabs(found - expected) <= atol + rtol * fabs(expected), "%s", what);
    if (!good) printf("# found %.9g, expected %.9g\n", found, expected);
    return good;
}

/* the message contains this text */
__attribute__((unused)) static int has_text(const char *found, const char *part, const char *what) {
    int good = ok(found && strstr(found, part), "%s", what);
    if (!good) printf("# found %s\n# wanted in it: %s\n", found ? found : "NULL", part);
    return good;
}

__attribute__((unused)) static void skip(const char *what, const char *why) {
    printf("ok %d - %s # SKIP %s\n", ++tap_count, what, why);
}

__attribute__((unused)) static int tap_done(void) {
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
