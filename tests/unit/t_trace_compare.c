/* Two traces side by side: the first difference, and bytes by op. */
#include "memory/trace_compare.h"

#include "base/mem.h"
#include "tap.h"

/* "+4 +8 -0 ..." by op letters: "a4 b8 -0": allocates 4 bytes in op a, 8 in b, frees tensor 0. */
static void make(Trace *t, const char *text) {
    *t = (Trace){0};
    while (*text) {
        int value, length = 0;
        char op[2] = {*text, 0};
        sscanf(text + 1, "%d%n", &value, &length);
        if (*text == '-') trace_release(t, value);
        else trace_alloc(t, (size_t)value, CAT_OTHER, trace_call(t, trace_text(t, op), "", "x.py:1"));
        text += 1 + length;
        while (*text == ' ') text++;
    }
}

static void compare(const char *first, const char *second, int from_first, int from_second, int equal,
                    const char *text) {
    Trace a, b;
    TraceComparison c;
    Err e;
    make(&a, first);
    make(&b, second);
    is_int(trace_compare(&a, &b, (int[]){from_first, from_second}, &c, &e), OK, first);
    is_int(c.equal, equal, "events that are alike");
    is_str(c.text, text, "the first difference");
    ok((c.event[0] < 0 && c.event[1] < 0) == !*text, "... or none");
    trace_comparison_free(&c);
    trace_free(&a);
    trace_free(&b);
}

int main(void) {
    compare("a4 b8 -0 c2", "a4 b8 -0 c2", 0, 0, 4, "");
    compare("a4 b8 -0 c2", "z4 y8 -0 x2", 0, 0, 4, "");
    compare("a4 b8", "a4 b9", 0, 0, 1,
            "the one allocates 8 bytes of b (x.py:1), the other allocates 9 bytes of b (x.py:1)");
    compare("a4 b4 -0", "a4 b4 -1", 0, 0, 2,
            "the one frees 4 bytes of a (x.py:1), the other frees 4 bytes of b (x.py:1)");
    compare("a4 b4 -0", "a4 b4", 0, 0, 2, "the one frees 4 bytes of a (x.py:1), the other has ended");
    compare("a4", "a4 -0", 0, 0, 1, "the one has ended, the other frees 4 bytes of a (x.py:1)");
    compare("a4", "-0", 1, 1, 0, "");
    /* what was there before is known by its size alone */
    compare("a4 b4 c8 d2 -0", "c8 b4 d2 -1", 3, 2, 2, "");
    compare("a4 b4 c8 d2 -2", "c8 b4 d2 -1", 3, 2, 1,
            "the one frees 8 bytes of c (x.py:1), the other frees 4 bytes of b (x.py:1)");
    compare("", "", 0, 0, 0, "");
    Trace a, b;
    TraceComparison c;
    Err e;
    make(&a, "a4 a5 b100 -0 c1");
    make(&b, "a9 b30 d50 c1");
    is_int(trace_compare(&a, &b, (int[]){0, 1}, &c, &e), OK, "bytes by op");
    is_int(c.n_ops, 4, "of four ops");
    ok(!strcmp(c.ops[0].op, "b") && c.ops[0].bytes[0] == 100 && c.ops[0].bytes[1] == 30 && c.ops[0].count[1] == 1,
       "the largest difference first");
    ok(!strcmp(c.ops[1].op, "d") && c.ops[1].count[0] == 0 && c.ops[1].bytes[1] == 50, "one that only the second has");
    ok(!strcmp(c.ops[2].op, "a") && c.ops[2].count[0] == 2 && c.ops[2].bytes[0] == 9 && c.ops[2].bytes[1] == 0,
       "what comes before the beginning does not count");
    ok(!strcmp(c.ops[3].op, "c") && c.ops[3].bytes[0] == c.ops[3].bytes[1], "equal ones last");
    trace_comparison_free(&c);
    long live = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    for (long k = 1; code == ERR_HOST_MEMORY && k < 50; k++) {
        mem_fail_after(k);
        code = trace_compare(&a, &b, (int[]){0, 1}, &c, &e);
        mem_fail_after(0);
        failures += code == ERR_HOST_MEMORY;
        if (code && mem_live() != live) break;
    }
    ok(code == OK && failures > 2, "each of %ld host allocations fails once, nothing stays", failures);
    trace_comparison_free(&c);
    trace_free(&a);
    trace_free(&b);
    return tap_done();
}
