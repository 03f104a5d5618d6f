/* truth.h: does the measurement equal the prediction? Shared by t_truth (every combination) and t_fuzz (random
 * networks). */
#ifndef TRUTH_H
#define TRUTH_H

#include "unit/nets.h"
#include "run/runtime.h"

typedef struct Outcome { LedgerPeak peak; float loss[2]; size_t allocated, reserved, host; int code; Err err; } Outcome;

/* Two steps on `device`. */
static Outcome truth_run(Device *device, const Network *net, Program *p, AllocKind kind, size_t limit, size_t fail_at) {
    Outcome o = {{0}, {0, 0}, 0, 0, 0, 0, {0, ""}};
    Runtime *r = NULL;
    StepResult step = {0};
    o.code = runtime_open(device, kind, limit, &(Job){net, p}, 1, 7, fail_at, &r, &o.err);
    for (int i = 0; i < 2 && !o.code; i++) {
        o.code = runtime_step(r, 0, net_feed, p, &step, &o.err);
        o.loss[i] = step.loss;
    }
    if (!r) return o;
    const Ledger *l = runtime_ledger(r);
    o.peak = l->peak;
    o.allocated = l->used;
    o.reserved = l->held;
    o.host = runtime_host_bytes(r);
    Err e = {0, ""};
    if (runtime_close_checked(r, &e)) {
        o.code = ERR_INTERNAL;
        o.err = e;
    }
    return o;
}

static bool sums(const LedgerPeak *p) {
    size_t n = 0;
    for (int c = 0; c < CAT_COUNT; c++) n += p->category[c];
    return n == p->held;
}

static bool same_peak(const LedgerPeak *a, const LedgerPeak *b) { return !memcmp(a, b, sizeof *a); }

static inline void truth_describe(char *text, size_t room, const Settings *s) {
    static const char *const check[] = {"none", "marked", "all", "sqrt", "selective", "budget"};
    static const char *const inplace[] = {"marked", "off", "on"};
    snprintf(text, room, "%s %s accumulate %d checkpoint %s inplace %s%s%s%s%s", alloc_name(s->allocator),
             precision_info(s->precision)->text, s->accumulate, check[s->checkpoint], inplace[s->inplace],
             s->offload ? " offload" : "", optimizer_is_paged(s->optimizer.kind) ? " paged" : "", s->eval ? " eval" : "", settings_scale_loss(s) ? " scaled" : "");
}

/* planned and direct: exactly the prediction is enough, one byte less is not. caching may give cached segments back
 * first: then the prediction under that limit says the same as the run. */
static int check_limit(Device *device, const Network *net, Program *p, const Settings *s, size_t peak, Err *e) {
    Prediction under;
    Outcome at = truth_run(device, net, p, s->allocator, peak, 0);
    Outcome below = truth_run(device, net, p, s->allocator, peak - 1, 0);
    if (at.code) return err_set(e, at.code, "with exactly the prediction: %s", at.err.text);
    int code = predict(&(Job){net, p}, 1, s->allocator, device, peak - 1, &(Call){0, PART_WHOLE}, 1, 2, &under, e);
    if (code) return code;
    if (under.fits != (below.code == OK))
        return err_set(e, ERR_INTERNAL, "one byte less: predicted %d, found %d", under.fits, below.code);
    if (s->allocator != ALLOC_CACHING && below.code != ERR_OOM)
        return err_set(e, ERR_INTERNAL, "one byte less: %s", err_name(below.code));
    if (below.code && below.code != ERR_OOM) return err_set(e, ERR_INTERNAL, "one byte less: %s", below.err.text);
    return OK;
}

/* Compiles, predicts and runs `net` under `s`; ERR_INTERNAL says what does not agree. loss[2]: the two steps'. */
static int truth_check(Device *device, const Network *net, const Settings *s, bool limits, float *loss, Err *e) {
    Program *p = NULL;
    Prediction guess;
    int code = compile(net, s, device, NULL, NULL, &p, e);
    if (code) return code;
    code = predict(&(Job){net, p}, 1, s->allocator, device, 0, &(Call){0, PART_WHOLE}, 1, 2, &guess, e);
    if (!code) {
        Outcome o = truth_run(device, net, p, s->allocator, 0, 0);
        if (o.code) code = err_set(e, o.code, "%s", o.err.text);
        else if (!same_peak(&o.peak, &guess.peak))
            code = err_set(e, ERR_INTERNAL, "predicted %zu, measured %zu", guess.peak.held, o.peak.held);
        else if (!sums(&o.peak)) code = err_set(e, ERR_INTERNAL, "the categories do not sum to the peak");
        else if (o.allocated != guess.allocated || o.reserved != guess.reserved)
            code = err_set(e, ERR_INTERNAL, "after a step: predicted %zu of %zu, measured %zu of %zu", guess.allocated,
                           guess.reserved, o.allocated, o.reserved);
        else if (o.host != guess.host)
            code = err_set(e, ERR_INTERNAL, "on the host: predicted %zu, found %zu", guess.host, o.host);
        else if (guess.lower_bound > o.peak.held && s->allocator != ALLOC_CACHING)
            code = err_set(e, ERR_INTERNAL, "below the lower bound %zu: %zu", guess.lower_bound, o.peak.held);
        else if (!isfinite(o.loss[0]) && !s->eval) code = err_set(e, ERR_INTERNAL, "loss %g", (double)o.loss[0]);
        memcpy(loss, o.loss, sizeof o.loss);
    }
    if (!code && limits) code = check_limit(device, net, p, s, guess.peak.held, e);
    program_free(p);
    return code;
}

#endif
