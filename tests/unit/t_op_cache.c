/* op_cache.c: ops are prepared once, and what was not asked for lately is dropped. */
#include "program/op_cache.h"

#include "base/mem.h"
#include "tap.h"

static int prepared, released;

static int prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    if (limit == 13) return err_set(e, ERR_DEVICE, "13");
    int64_t *of = mem_new(sizeof *of);
    if (!of) return err_set(e, ERR_HOST_MEMORY, "no memory");
    *of = args->in[0].shape.dim[0];
    *state = of;
    *workspace = (size_t)*of;
    prepared++;
    return OK;
}

static void release(void *state) {
    released++;
    mem_free(state);
}

/* Asks for the op on vectors of n; returns whether its state is that. */
static bool ask(OpCache *p, int64_t n) {
    static const Attr attr;
    Err e;
    void *state;
    size_t workspace;
    KArgs args = {.kind = OP_linear, .attr = &attr};
    args.in[0] = (View){.shape = shape1(n), .count = n};
    return !op_cache_get(p, prepare, &args, 0, &state, &workspace, &e) && *(int64_t *)state == n &&
           workspace == (size_t)n;
}

static void ask_all(OpCache *p, int64_t from, int64_t to) {
    bool right = true;
    for (int64_t n = from; n <= to; n++) right = ask(p, n) && right;
    ok(right, "each of %d to %d has its own state", (int)from, (int)to);
}

int main(void) {
    static OpCache p; /* zeroed */
    Err e;
    void *state;
    size_t workspace;
    KArgs args = {.kind = OP_linear};
    is_int(op_cache_get(&p, NULL, &args, 0, &state, &workspace, &e), OK, "an op that needs nothing");
    ok(!state && !workspace, "has no state");
    ask_all(&p, 1, 20);
    ask_all(&p, 1, 20);
    is_int(prepared, 20, "an op is prepared once");
    static const Attr attr;
    args.attr = &attr;
    is_int(op_cache_get(&p, prepare, &args, 13, &state, &workspace, &e), ERR_DEVICE, "a failure is passed on");
    is_int(p.count, 20, "and leaves nothing");

    op_cache_trim(&p, 5, release);
    is_int(released, 0, "what was asked for since the last trim stays, however much");
    ask_all(&p, 4, 6);
    op_cache_trim(&p, 5, release);
    is_int(released, 15, "of what is older, the latest stay");
    prepared = 0;
    ask_all(&p, 4, 6);
    ask_all(&p, 19, 20);
    is_int(prepared, 0, "those that were asked for last");
    ask(&p, 18);
    is_int(prepared, 1, "and no others");
    op_cache_trim(&p, 5, release);
    op_cache_trim(&p, 0, release);
    is_int(p.count, 0, "all can be dropped");
    ask_all(&p, 1, 9000); /* several in each bucket */
    op_cache_trim(&p, 100, release);
    for (int turn = 0; turn < 100; turn++) {
        for (int n = 0; n < 90; n++) ask(&p, 9000 + (turn * 37 + n * 101) % 9000);
        op_cache_trim(&p, 100, release);
        if (p.count != 100) ok(false, "turn %d: expected 100 states, found %d", turn, p.count);
    }
    op_cache_clear(&p, release);
    ok(p.count == 0 && !p.newest && !p.oldest, "nothing is left");
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
