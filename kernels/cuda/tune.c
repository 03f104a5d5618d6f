#include "tune.h"

#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "tuning.h"

/* The choice so far: its candidate, its state, and microseconds in a race. */
typedef struct Search {
    const Tunable *t;
    const KArgs *a;
    size_t limit;
    Candidate chosen;
    void *state;         /* NULL: nothing is chosen yet */
    size_t workspace;
    Bench bench;
    Candidate winner;
    double first_us, us; /* of the first choice; of the winner */
} Search;

static void choose(Search *q, const Candidate *c, void *state, size_t workspace) {
    kernel_state_release(q->state);
    q->chosen = *c;
    q->chosen.handle = NULL;
    q->state = state;
    q->workspace = workspace;
}

/* An Offer: the first candidate that can be had */
static bool take(void *arg, Candidate *c, Err *why) {
    Search *q = arg;
    void *state = NULL;
    size_t bytes = 0;
    if (q->t->open(q->a, c, &state, &bytes, why)) return false;
    choose(q, c, state, bytes);
    return true;
}

/* Takes the pick, laid out under its own limit, which may differ from the caller's. false: it no longer applies, because
 * its engine is gone or needs other bytes than before, or because its line was changed. */
static bool take_pick(Search *q, const Pick *pick) {
    Candidate c = {.way = pick->way, .engine = pick->engine, .limit = pick->limit, .workspace = pick->workspace};
    void *state = NULL;
    size_t bytes = 0;
    if (q->t->open(q->a, &c, &state, &bytes, NULL)) return false;
    if (bytes == pick->workspace) choose(q, &c, state, bytes);
    else kernel_state_release(state);
    return bytes == pick->workspace;
}

/* An Offer: times the candidate against the winner so far. What cannot be run does not win; a lost device ends the race. */
static bool compete(void *arg, Candidate *c, Err *why) {
    Search *q = arg;
    void *state = NULL;
    size_t bytes = 0;
    double us = 0;
    int code = q->t->open(q->a, c, &state, &bytes, why);
    if (!code) code = bench_time(&q->bench, q->t->run, state, bytes, q->us, &us, why);
    kernel_state_release(state);
    /* the first choice stays unless the gain is more than the noise */
    if (!code && us < q->us && us < RACE_GAIN * q->first_us) {
        q->winner = *c;
        q->winner.handle = NULL;
        q->winner.workspace = bytes;
        q->us = us;
    }
    return cuda_of(q->a)->lost.code != OK;
}

/* The first choice becomes the fastest one, which is kept as a pick. */
static int race(Search *q, const char *op, Err *e) {
    CudaDevice *c = cuda_of(q->a);
    int code = bench_open(&q->bench, &c->base, q->a, 2 * c->model.l2_bytes, e);
    if (code) return code;
    code = bench_time(&q->bench, q->t->run, q->state, q->workspace, 0, &q->first_us, e);
    q->us = q->first_us;
    q->winner = q->chosen;
    q->winner.workspace = q->workspace;
    if (!code) code = q->t->candidates(q->a, q->limit, &q->chosen, compete, q, e);
    bench_close(&q->bench);
    if (!code && c->lost.code) code = err_set(e, c->lost.code, "the GPU was lost: %s", c->lost.text);
    if (code) return code;
    Pick pick = {.version = q->t->version(), .limit = q->limit, .engine = q->winner.engine,
                 .workspace = q->winner.workspace, .us = q->us};
    snprintf(pick.op, sizeof pick.op, "%s", op);
    snprintf(pick.way, sizeof pick.way, "%s", q->winner.way);
    if (take_pick(q, &pick)) return tuning_keep(c, &pick, e);
    /* the library's first choice may be one that cannot be asked for by name: then it stays, without a pick */
    return q->us == q->first_us ? OK : err_set(e, ERR_INTERNAL, "what won the race of %s cannot be had again", op);
}

int tune_prepare(const Tunable *t, const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    Search q = {.t = t, .a = a, .limit = limit};
    char op[PICK_OP];
    const Pick *pick = NULL;
    bool racing = false;
    int code = t->text(a, op, e);
    if (!code) code = tuning_ask(cuda_of(a), t->version(), op, limit, &pick, &racing, e);
    if (code) return code;
    if (!pick || racing || !take_pick(&q, pick)) {
        code = t->first(a, limit, take, &q, e);
        assert(code || q.state);
        if (!code && racing) code = race(&q, op, e);
    }
    if (code) {
        kernel_state_release(q.state);
        return code;
    }
    *state = q.state;
    *workspace = q.workspace;
    return OK;
}
