/* The predictor: the runtime's own walk on the dry device. */
#include <assert.h>

#include "runtime.h"

/* turns: how many of the programs run in each step, the first ones. */
static int walk(Runtime *r, int steps, int turns, Err *e) {
    uint64_t before = runtime_state(r) + 1;
    for (int i = 0; i < steps && runtime_state(r) != before; i++) {
        before = runtime_state(r); /* after a step that leaves the allocator as it found it, all steps are the same */
        for (int which = 0; which < turns; which++) {
            int code = runtime_step(r, which, NULL, NULL, false, NULL, e);
            if (code) return code;
        }
    }
    return OK;
}

/* Running out of memory at the limit is a result, not an error. */
static int run_dry(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *dry,
                   size_t limit, int steps, int turns, Prediction *out, Err *e) {
    Runtime *r = NULL;
    int code = runtime_open(dry, kind, limit, net, programs, n_programs, 0, 0, &r, &out->reason);
    if (!code) code = walk(r, steps, turns, &out->reason);
    out->fits = code == OK;
    if (r) {
        const Ledger *l = runtime_ledger(r);
        const Placement *place = runtime_placement(r, 0);
        out->peak = l->peak;
        out->allocated = l->used;
        out->reserved = l->held;
        out->host = runtime_host_bytes(r);
        out->lower_bound = place->persistent + place->plan.lower_bound;
    }
    int closed = runtime_close_checked(r, code ? NULL : e);
    if (code && code != ERR_OOM && e) *e = out->reason;
    return code == ERR_OOM ? OK : code ? code : closed;
}

static int run(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *device,
               size_t limit, int steps, int turns, Prediction *out, Err *e) {
    Device *dry;
    Prediction result = {0};
    assert(turns >= 1 && turns <= n_programs);
    int code = device_dry_open(device, &dry, e);
    if (code) return code;
    code = run_dry(net, programs, n_programs, kind, dry, limit, steps, turns, &result, e);
    device_close(dry);
    if (!code) *out = result;
    return code;
}

int predict(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *device, size_t limit,
            int steps, Prediction *out, Err *e) {
    return run(net, programs, n_programs, kind, device, limit, steps, 1, out, e);
}

int predict_turns(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *device,
                  size_t limit, int steps, Prediction *out, Err *e) {
    int code = run(net, programs, n_programs, kind, device, limit, steps, n_programs, out, e);
    if (!code && n_programs > 1) out->peak.mark = -1; /* the op's number does not say of which program */
    return code;
}
