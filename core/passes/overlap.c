/* Collective ops beside computing: with overlap_comm an op among the ranks of other samples only begins, and an op `wait` ends
 * it:
 *
 *     dw = all_reduce(dw.whole)              dw = all_reduce(dw.whole), begun
 *     w = sgd(dw)                            ... gradients of the next bucket
 *     ... gradients of the next bucket       dv = all_reduce(dv.whole), begun
 *     dv = all_reduce(dv.whole)              wait(dw, dw.whole)
 *                                            w = sgd(dw)
 *
 * What reads a gradient that is under way is put off until the next bucket has begun, so that one bucket at a time is sent while
 * the next one's gradients are made; at the end of the body, and where something needs it at once, all of it is waited for. What
 * is gathered is waited for by its first reader: gather_ahead says how early it begins.
 *
 * The wait reads all operands of the op, its workspace, too: they live, and nothing takes their place, until it. No number
 * changes, since each rank begins the same ops in the same order as before, and an op that is put off meets the values that it
 * met before. The verifier (check.c) sees to it that nothing touches what is under way. */
#include <limits.h>

#include "rewrite.h"

/* Op number `op` of the new list, which was begun. group: of the bucket, in the order of buckets; 0: it is of none. */
typedef struct Flight { int op, group; } Flight;

typedef struct Overlap {
    Program *p;
    Flight *flight;        /* [n_flights]: for which no wait was put yet, in their order */
    const Op **late;       /* [n_late]: old ops that are put off, in their order */
    bool *reads, *writes;  /* by root: does one of them read it, or write it? */
    int n_flights, n_late;
    int group;             /* of the last bucket that has begun */
    bool fresh;            /* the last op that was put is of that bucket, and what was under way before it still is */
} Overlap;

static bool can_begin(const Op *op) {
    switch (op->kind) {
    case OP_all_reduce: case OP_all_reduce_: case OP_reduce_scatter: case OP_all_gather: case OP_all_gather_:
        return op->attr.collective.axis == MESH_DATA;
    default: return false;
    }
}

/* ---- who touches what */

/* Must the op under way be over before this one? */
static bool meets(const Overlap *o, const Op *op, const Flight *f) {
    const Op *begun = &o->p->ops[f->op];
    return rewrite_touches(o->p, op, begun->out[0], true) || rewrite_touches(o->p, op, begun->in[0], false) ||
           rewrite_touches(o->p, op, begun->workspace, false);
}

/* Does the op read a gradient that is under way, or what an op that is put off makes? */
static bool depends(const Overlap *o, const Op *op) {
    EACH_IN(op, k) if (o->writes[program_root(o->p, op->in[k])]) return true;
    for (int i = 0; i < o->n_flights; i++)
        if (o->flight[i].group && rewrite_touches(o->p, op, o->p->ops[o->flight[i].op].out[0], true)) return true;
    return false;
}

/* Does the op change what one that is put off reads or writes? */
static bool disturbs(const Overlap *o, const Op *op) {
    EACH_OUT(op, k) {
        const int root = program_root(o->p, op->out[k]);
        if (o->reads[root] || o->writes[root]) return true;
    }
    return false;
}

/* ---- putting off, and ending */

static void put_off(Overlap *o, const Op *op) {
    o->late[o->n_late++] = op;
    EACH_IN(op, k) o->reads[program_root(o->p, op->in[k])] = true;
    EACH_OUT(op, k) o->writes[program_root(o->p, op->out[k])] = true;
}

/* Puts the wait for flight i, which is none any more. */
static void put_wait(Overlap *o, int i) {
    Program *p = o->p;
    const Op begun = p->ops[o->flight[i].op];
    Op *op = program_op(p, OP_wait, begun.path);
    op->wait.y = begun.out[0];
    if (begun.in[0] != NO_BUF && program_root(p, begun.in[0]) != program_root(p, begun.out[0])) op->wait.x = begun.in[0];
    op->wait.room = begun.workspace;
    for (o->n_flights--; i < o->n_flights; i++) o->flight[i] = o->flight[i + 1];
}

/* Waits for the buckets before group `before`, and puts what was put off, all of which follows these. */
static void land(Overlap *o, int before) {
    for (int i = 0; i < o->n_flights && !o->p->failed;)
        if (o->flight[i].group && o->flight[i].group < before) put_wait(o, i);
        else i++;
    for (int i = 0; i < o->n_late; i++) {
        rewrite_put(o->p, o->late[i]);
        EACH_IN(o->late[i], k) o->reads[program_root(o->p, o->late[i]->in[k])] = false;
        EACH_OUT(o->late[i], k) o->writes[program_root(o->p, o->late[i]->out[k])] = false;
    }
    o->n_late = 0;
    o->fresh = false;
}

static void land_all(Overlap *o) {
    land(o, INT_MAX);
    while (o->n_flights && !o->p->failed) put_wait(o, 0);
}

/* Is the op of the bucket that the last op was of? */
static bool goes_on(const Overlap *o, int bucket) {
    const Program *p = o->p;
    const Flight *last = o->n_flights ? &o->flight[o->n_flights - 1] : NULL;
    return last && last->op == p->n_ops - 1 && last->group && p->ops[last->op].attr.collective.bucket == bucket;
}

static void put_begun(Overlap *o, const Op *old) {
    const int bucket = old->attr.collective.bucket;
    bool older = o->n_late > 0;
    for (int i = 0; i < o->n_flights; i++) older |= o->flight[i].group > 0;
    if (bucket && !goes_on(o, bucket)) {
        o->group++;
        o->fresh = older;
    }
    o->flight[o->n_flights++] = (Flight){o->p->n_ops, bucket ? o->group : 0};
    rewrite_put(o->p, old)->begun = true;
}

static void put(Overlap *o, const Op *op, bool in_body) {
    const bool begins = can_begin(op);
    if (o->fresh && !(begins && goes_on(o, op->attr.collective.bucket))) land(o, o->group);
    if (depends(o, op)) {
        if (in_body && !op_exchanges(op->kind)) {
            put_off(o, op);
            return;
        }
        land(o, INT_MAX);
    } else if (disturbs(o, op)) {
        land(o, INT_MAX);
    }
    if (attr_exchanges(op->kind, &op->attr)) land_all(o);
    for (int i = 0; i < o->n_flights && !o->p->failed;)
        if (meets(o, op, &o->flight[i])) put_wait(o, i);
        else i++;
    if (begins) put_begun(o, op);
    else rewrite_put(o->p, op);
}

int pass_overlap(Program *p, Compile *c) {
    if (!c->settings->overlap_comm || p->world == 1) return UNCHANGED;
    Scratch *s = &c->scratch;
    const size_t ops = (size_t)p->n_ops, bufs = (size_t)p->n_bufs;
    Overlap o = {.p = p, .flight = scratch_new(s, ops, sizeof *o.flight), .late = scratch_new(s, ops, sizeof *o.late),
                 .reads = scratch_new(s, bufs, sizeof *o.reads), .writes = scratch_new(s, bufs, sizeof *o.writes)};
    Rewriter r;
    if (s->failed) return OK;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        put(&o, op, r.at < r.body_end);
        if (r.at + 1 == r.n || (r.at + 1 == r.body_end && p->micro_batches > 1)) land_all(&o); /* a body ends as it began */
    }
    rewrite_end(&r);
    return OK;
}
