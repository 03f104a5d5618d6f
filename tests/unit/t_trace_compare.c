/* Two traces side by side: the first difference, and bytes by op. */
#include "memory/trace_compare.h"

#include "base/mem.h"
#include "memory/trace_align.h"
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

/* Events of the first from `from` on, in all of the second. */
static void compare(const char *first, const char *second, int from, int equal, int moved, const char *text) {
    Trace a, b;
    TraceComparison c;
    Err e;
    make(&a, first);
    make(&b, second);
    is_int(trace_compare(&a, from, a.n_events, &b, 0, &c, &e), OK, first);
    is_int(c.equal, equal, "allocations before the first difference");
    is_int(c.moved, moved, "tensors freed at another time");
    is_str(c.text, text, "the first difference");
    ok((c.event[0] < 0 && c.event[1] < 0) == !*text, "... or none");
    trace_comparison_free(&c);
    trace_free(&a);
    trace_free(&b);
}

static void counts(const char *first, const char *second, int pairs, int only_first, int only_second, int outside, int begin,
                   int end) {
    Trace a, b;
    TraceComparison c;
    Err e;
    make(&a, first);
    make(&b, second);
    is_int(trace_compare(&a, 0, a.n_events, &b, 0, &c, &e), OK, first);
    is_int(c.pairs, pairs, "pairs");
    is_int(c.only[0], only_first, "only the one has");
    is_int(c.only[1], only_second, "only the other has");
    is_int(c.outside, outside, "not recorded");
    ok(c.begin == begin && c.end == end, "events %d to %d, found %d to %d", begin, end, c.begin, c.end);
    trace_comparison_free(&c);
    trace_free(&a);
    trace_free(&b);
}

/* What trace_align must give: pairs in order, of equal numbers; and of sequences that differ in few places, as many pairs
 * as the longest common subsequence from the best start has. Random ones with few different numbers. */
static void random_alignments(void) {
    unsigned seed = 1;
    long wrong = 0, few = 0;
    for (int round = 0; round < 2000; round++) {
        size_t a[40], b[120];
        int pair[40], n_a = 1 + round % 40, n_b = 0, last = -1, kept = 0, found = 0;
        for (int i = 0; i < n_a; i++) a[i] = 1 + (seed = seed * 1103515245u + 12345u) / 65536 % 30;
        for (int i = 0; i < 20; i++) b[n_b++] = 100 + (size_t)i;
        for (int i = 0; i < n_a; i++) {
            const unsigned what = (seed = seed * 1103515245u + 12345u) / 65536 % 16;
            if (what == 0) continue;
            if (what == 1) b[n_b++] = 77;
            b[n_b++] = a[i];
            kept++;
        }
        for (int i = 0; i < 20; i++) b[n_b++] = 200 + (size_t)i;
        Scratch s = {0};
        if (!trace_align(a, n_a, b, n_b, pair, &s)) wrong++;
        scratch_release(&s, NULL);
        for (int i = 0; i < n_a; i++) {
            if (pair[i] < 0) continue;
            wrong += pair[i] <= last || pair[i] >= n_b || b[pair[i]] != a[i];
            last = pair[i];
            found++;
        }
        few += found < kept;
    }
    is_int(wrong, 0, "pairs are ascending and equal");
    is_int(few, 0, "and none is missed");
}

int main(void) {
    compare("a4 b8 -0 c2", "a4 b8 -0 c2", 0, 3, 0, "");
    compare("a4 b8 -0 c2", "z4 y8 -0 x2", 0, 3, 0, "");
    compare("a4 b8 c16", "a4 b9 c16", 0, 1, 0,
            "the one allocates 8 bytes of b (x.py:1), the other allocates 9 bytes of b (x.py:1)");
    compare("a4 b8 c16", "a4 z7 b8 c16", 0, 1, 0,
            "the one allocates 8 bytes of b (x.py:1), the other allocates 7 bytes of z (x.py:1)");
    compare("a4 b8", "a4 b9", 0, 1, 0,
            "the one allocates 8 bytes of b (x.py:1), the other allocates 9 bytes of b (x.py:1)");
    /* frees between two allocations are in no order */
    compare("a4 b4 -0 -1 c2", "a4 b4 -1 -0 c2", 0, 3, 0, "");
    compare("a4 b4 -0", "a4 b4 -1", 0, 2, 1, "the one frees 4 bytes of a (x.py:1), the other at another time");
    compare("a4 b4 -0", "a4 b4", 0, 2, 1, "the one frees 4 bytes of a (x.py:1), the other at another time");
    compare("a4 b5 c6", "a4 b5 -0 c6", 0, 2, 1, "the other frees 4 bytes of a (x.py:1), the one at another time");
    /* what was there before is known by its size alone */
    compare("a4 b4 c8 d2 e3 -0", "c8 b4 d2 e3 -1", 3, 2, 0, "");
    compare("a4 b4 c8 d2 e3 -2", "c8 b4 d2 e3 -1", 3, 2, 1,
            "the other frees 4 bytes of b (x.py:1), the one at another time");
    compare("", "", 0, 0, 0, "");
    compare("a4", "b5", 0, 0, 0, "the one allocates 4 bytes of a (x.py:1), the other has ended");
    /* a step in the middle of others, with what is freed at its end */
    counts("a1 b2 c3 -2", "x9 a1 b2 c3 -3 a1", 3, 0, 0, 0, 1, 5);
    counts("a1 b2 c3", "x9 a1 b2 y7 c3 z8", 3, 0, 1, 0, 1, 5);
    counts("a1 b2 c3", "x9 a1 c3 z8", 2, 1, 0, 0, 1, 3);
    counts("a1 b2 c3", "x9 b2 c3 z8", 2, 1, 1, 0, 0, 3); /* one of another size instead of a */
    counts("a1 b2 c3 d4", "b2 c3", 2, 0, 0, 2, 0, 2);
    random_alignments();
    Trace a, b;
    TraceComparison c;
    Err e;
    make(&a, "a4 a5 b100 -0 c1");
    make(&b, "a9 x4 y5 d50 c1");
    is_int(trace_compare(&a, 0, a.n_events, &b, 1, &c, &e), OK, "bytes by op");
    is_int(c.n_ops, 5, "of five pairs of ops");
    ok(!strcmp(c.ops[0].op[0], "b") && !*c.ops[0].op[1] && c.ops[0].bytes[0] == 100 && c.ops[0].bytes[1] == 0
       && c.ops[0].count[0] == 1, "the largest difference first");
    ok(!*c.ops[1].op[0] && !strcmp(c.ops[1].op[1], "d") && c.ops[1].bytes[1] == 50, "one that only the second has");
    ok(!strcmp(c.ops[2].op[0], "a") && !strcmp(c.ops[2].op[1], "y") && c.ops[2].bytes[0] == c.ops[2].bytes[1],
       "two names beside each other");
    trace_comparison_free(&c);
    long live = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    for (long k = 1; code == ERR_HOST_MEMORY && k < 90; k++) {
        mem_fail_after(k);
        code = trace_compare(&a, 0, a.n_events, &b, 1, &c, &e);
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
