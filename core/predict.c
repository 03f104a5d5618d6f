/* The predictor: the runtime's own walk on the dry device. */
#include "runtime.h"

static int walk(Runtime *r, int steps, Err *e) {
    uint64_t before = runtime_state(r) + 1;
    for (int i = 0; i < steps && runtime_state(r) != before; i++) {
        before = runtime_state(r); /* a step that leaves the allocator as it found it is followed by equal ones */
        int code = runtime_step(r, 0, NULL, NULL, NULL, e);
        if (code) return code;
    }
    return OK;
}

int predict(const Network *net, Program *program, AllocKind kind, Device *device, size_t limit, int steps, Prediction *out, Err *e) {
    Device *dry;
    Runtime *r = NULL;
    Prediction result = {.fits = true};
    Placement place;
    int code = device_dry_open(device, &dry, e);
    if (code) return code;
    code = placement_build(program, dry->table->alignment, &place, e);
    if (!code) {
        result.lower_bound = place.persistent + place.plan.lower_bound;
        placement_free(&place);
        code = runtime_open(dry, kind, limit, net, &program, 1, 0, 0, &r, &result.reason);
        if (!code) code = walk(r, steps, &result.reason);
        result.fits = code == OK;
        if (code && code != ERR_OOM && e) *e = result.reason;
    }
    if (r) {
        const Ledger *l = runtime_ledger(r);
        result.peak = l->peak;
        result.allocated = l->used;
        result.reserved = l->held;
        int closed = runtime_close_checked(r, code == OK ? e : NULL);
        if (code == OK) code = closed;
    }
    device_close(dry);
    if (code && code != ERR_OOM) return code;
    *out = result;
    return OK;
}
