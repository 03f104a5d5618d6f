/* The predictor: the runtime's own walk on the dry device. */
#include <assert.h>

#include "runtime.h"

static int make_call(Runtime *r, const Call *call, Err *e) {
    StepResult ignored;
    if (call->part == PART_WHOLE) return runtime_step(r, call->which, NULL, NULL, NULL, e);
    return runtime_part(r, call->which, call->part, true, NULL, NULL, &ignored, e);
}

static int walk(Runtime *r, const Call *calls, int n_calls, int rounds, Err *e) {
    uint64_t before = runtime_state(r) + 1;
    for (int i = 0; i < rounds && runtime_state(r) != before; i++) {
        before = runtime_state(r); /* after a round that leaves the allocator as it found it, all rounds are the same */
        for (int k = 0; k < n_calls; k++) {
            int code = make_call(r, &calls[k], e);
            if (code) return code;
        }
    }
    return OK;
}

/* Running out of memory at the limit is a result, not an error. */
static int run_dry(const Job *jobs, int n_jobs, AllocKind kind, Device *dry, size_t limit, const Call *calls,
                   int n_calls, int rounds, Prediction *out, Err *e) {
    Runtime *r = NULL;
    int code = runtime_open(dry, kind, limit, jobs, n_jobs, 0, 0, &r, &out->reason);
    if (!code) code = walk(r, calls, n_calls, rounds, &out->reason);
    out->fits = code == OK;
    if (r) {
        const Ledger *l = runtime_ledger(r);
        out->peak = l->peak;
        out->allocated = l->used;
        out->reserved = l->held;
        out->host = runtime_host_bytes(r);
        for (int k = 0; k < n_calls; k++)
            out->lower_bound = max_size(out->lower_bound, runtime_lower_bound(r, calls[k].which));
    }
    int closed = runtime_close_checked(r, code ? NULL : e);
    if (code && code != ERR_OOM && e) *e = out->reason;
    return code == ERR_OOM ? OK : code ? code : closed;
}

int predict(const Job *jobs, int n_jobs, AllocKind kind, Device *device, size_t limit, const Call *calls, int n_calls,
            int rounds, Prediction *out, Err *e) {
    Device *dry;
    Prediction result = {0};
    assert(n_calls >= 1);
    int code = device_dry_open(device, &dry, e);
    if (code) return code;
    code = run_dry(jobs, n_jobs, kind, dry, limit, calls, n_calls, rounds, &result, e);
    device_close(dry);
    if (!code) *out = result;
    return code;
}
