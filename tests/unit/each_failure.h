/* each_failure.h: every allocation made to fail once. */
#ifndef EACH_FAILURE_H
#define EACH_FAILURE_H

#include "base/err.h"
#include "base/mem.h"
#include "tap.h"

/* Does the work and gives back what it made; returns its code. */
typedef int Attempt(void *arg, Err *e);

/* Attempts it with the first allocation failing, then with the second, and so on until it succeeds: each failure must
 * be ERR_HOST_MEMORY, say so, and leave nothing behind. At least `least` allocations must be seen. */
__attribute__((unused)) static void each_failure(Attempt *attempt, void *arg, int least, const char *what) {
    enum { MOST = 5000 };
    long before = mem_live();
    int failures = 0, wrong = 0, code = ERR_HOST_MEMORY;
    Err e = {0, ""};
    for (; code && failures < MOST; failures += code != OK) {
        e = (Err){0, ""};
        mem_fail_after(failures + 1);
        code = attempt(arg, &e);
        mem_fail_after(0);
        int good = code == OK || (code == ERR_HOST_MEMORY && e.code == code && strstr(e.text, "host memory"));
        if (!good || mem_live() != before) printf("# allocation %d: %d, %s\n", failures + 1, code, e.text);
        wrong += !good || mem_live() != before;
    }
    ok(code == OK && failures >= least, "%s: each of %d allocations made to fail", what, failures);
    is_int(wrong, 0, "each failure is an error of its kind and leaves nothing behind");
}

#endif
