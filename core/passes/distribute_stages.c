/* Pipeline parallelism: the ranks along the mesh's axis "pipeline" have some layers each, a stage. This pass cuts the forward ops
 * into stages, and lets what crosses a cut go from one rank to the next; gradients go the other way by the op's own rule:
 *
 *     y = linear(x, w)                 y = linear(x, w)                 stage 0
 *     z = linear(y, v)                 y.stage1 = transfer(y)           from 0 to 1
 *                                      z = linear(y.stage1, v)          stage 1
 *
 * What is read several stages later is handed on by each between, so that a rank talks to its neighbours only. All passes but the
 * last ones see the whole step; pass schedule_stages keeps one rank's part of it.
 *
 * The cuts are those for which the slowest stage takes the least time, where a tensor that crosses takes time, too; of such cuts,
 * those which the fewest bytes cross. No cut parts the ops that read one parameter, and none comes after a loss. */
#include <assert.h>

#include "distribute.h"
#include "whatif.h"

typedef struct Cutting {
    const Program *p;
    int n;           /* forward ops; a position from 0 to n lies before the op of that number */
    int *leaf;       /* by buffer: the parameter that it is a cast of; else the buffer itself */
    int *first, *last; /* by buffer: the op that makes it, of a parameter the first that reads it; the last that reads it; NO_OP */
    double *bytes;   /* by position: what crosses it */
    double *seconds; /* by position: of all ops before it */
    int *closed;     /* by position: why no cut may lie there: parameters that ops on both sides read */
    int *place;      /* [places]: the positions at which a stage may begin or end, 0 and n among them */
    int places;
} Cutting;

/* The best cuts of the ops before a place into a number of stages. */
typedef struct Best { double slowest, bytes; int before; } Best; /* before: the place where the last stage begins; NO_OP: none */

static bool crosses(const Program *p, int buf) { return p->bufs[buf].kind == BUF_TEMP; }
static bool is_parameter(const Program *p, int buf) { return p->bufs[buf].kind == BUF_PERSISTENT && p->bufs[buf].param >= 0; }

/* A cast of a parameter can be made by any stage. */
static bool is_weight_copy(const Program *p, const Op *op) {
    return op->kind == OP_cast && p->bufs[op->cast.x].kind == BUF_PERSISTENT;
}

/* Fills leaf, first and last. */
static void find_lives(Cutting *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        c->leaf[b] = b;
        c->first[b] = c->last[b] = NO_OP;
    }
    for (int i = 0; i < c->n; i++) {
        const Op *op = &p->ops[i];
        if (is_weight_copy(p, op)) {
            c->leaf[op->cast.y] = op->cast.x;
            continue;
        }
        EACH_IN(op, k) {
            const int b = c->leaf[op->in[k]];
            if (is_parameter(p, b) && c->first[b] == NO_OP) c->first[b] = i;
            c->last[b] = i;
        }
        EACH_OUT(op, k) if (crosses(p, op->out[k])) c->first[op->out[k]] = i;
    }
}

/* Fills bytes, seconds and closed: first with the differences to the position before. A step does about three times the work of
 * its forward pass. */
static void find_costs(Cutting *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        if (c->first[b] == NO_OP || c->last[b] <= c->first[b]) continue;
        if (is_parameter(p, b)) {
            c->closed[c->first[b] + 1]++;
            c->closed[c->last[b] + 1]--;
        } else if (crosses(p, b)) {
            c->bytes[c->first[b] + 1] += (double)p->bufs[b].bytes;
            c->bytes[c->last[b] + 1] -= (double)p->bufs[b].bytes;
        }
    }
    for (int i = 1; i <= c->n; i++) {
        c->bytes[i] += c->bytes[i - 1];
        c->closed[i] += c->closed[i - 1];
        c->seconds[i] = c->seconds[i - 1] + 3 * op_seconds(&p->ops[i - 1]);
    }
}

/* No stage begins after a loss: it is made in the last one. Between two places there is something to compute. */
static void find_places(Cutting *c) {
    const Program *p = c->p;
    bool loss = false;
    c->place[c->places++] = 0;
    for (int i = 1; i < c->n; i++) {
        EACH_OUT(&p->ops[i - 1], k) loss |= p->bufs[p->ops[i - 1].out[k]].loss;
        const bool work = c->seconds[i] > c->seconds[c->place[c->places - 1]];
        if (!loss && work && !c->closed[i] && c->bytes[i] > 0) c->place[c->places++] = i;
    }
    c->place[c->places++] = c->n;
}

/* Seconds of the stage between two places, on op_seconds' device, with a link of 10 GB/s. */
static double stage_seconds(const Cutting *c, int from, int to) {
    const double bytes_per_second = 1e10, both_ways = 2 * (c->bytes[c->place[from]] + c->bytes[c->place[to]]);
    return c->seconds[c->place[to]] - c->seconds[c->place[from]] + both_ways / bytes_per_second;
}

/* best[stages + 1][places], row by row */
static void find_best(const Cutting *c, int stages, Best *best) {
    for (int k = 0; k <= stages; k++)
        for (int to = 0; to < c->places; to++) {
            Best *b = &best[k * c->places + to];
            *b = (Best){0, 0, NO_OP};
            for (int from = k - 1; k && from < (k == 1 && to ? 1 : to); from++) {
                const Best *before = &best[(k - 1) * c->places + from];
                if (k > 1 && before->before == NO_OP) continue;
                const double own = stage_seconds(c, from, to);
                const Best tried = {own > before->slowest ? own : before->slowest, before->bytes + c->bytes[c->place[to]], from};
                const bool better = tried.slowest < b->slowest || (tried.slowest == b->slowest && tried.bytes < b->bytes);
                if (b->before == NO_OP || better) *b = tried;
            }
        }
}

static int cannot_cut(const Cutting *c, int stages, Err *e) {
    const Program *p = c->p;
    int widest = NO_BUF;
    for (int b = 0; b < p->n_bufs; b++) {
        if (!is_parameter(p, b) || c->last[b] <= c->first[b]) continue;
        if (widest == NO_BUF || c->last[b] - c->first[b] > c->last[widest] - c->first[widest]) widest = b;
    }
    return err_set(e, ERR_SCRIPT, "mesh: pipeline: expected at most %d stages of this network, found %d%s%s", c->places - 1, stages,
                   widest == NO_BUF ? "" : "; one stage has all layers that read ",
                   widest == NO_BUF ? "" : p->bufs[widest].name);
}

/* cut[stages]: the position at which each stage begins. */
static int choose_cuts(Cutting *c, int stages, int *cut, Scratch *s, Err *e) {
    find_lives(c);
    find_costs(c);
    find_places(c);
    Best *best = scratch_new(s, ((size_t)stages + 1) * (size_t)c->places, sizeof *best);
    if (s->failed) return OK;
    find_best(c, stages, best);
    int at = c->places - 1;
    for (int k = stages; k > 0; k--) {
        if (best[k * c->places + at].before == NO_OP) return cannot_cut(c, stages, e);
        at = best[k * c->places + at].before;
        cut[k - 1] = c->place[at];
    }
    return OK;
}

/* ---- the program with its cuts */

/* Hands on to `stage` what its ops, or later ones, read. now: by buffer, what the ops of the stage read in its place */
static void cross(Program *p, const Cutting *c, int at, int stage, int *now, int n_bufs) {
    for (int b = 0; b < n_bufs && !p->failed; b++) {
        if (!crosses(p, b) || c->leaf[b] != b || c->first[b] == NO_OP || c->first[b] >= at || c->last[b] < at) continue;
        const int y = program_buf(p, CAT_ACTIVATIONS, p->bufs[b].shape, p->bufs[b].dtype, "%s.stage%d", p->bufs[b].name, stage);
        if (p->failed) return;
        const Buf *from = &p->bufs[b];
        Buf *to = &p->bufs[y];
        to->layout = from->layout;
        to->turned = from->turned;
        for (int k = 0; k < 3; k++) to->order[k] = from->order[k];
        Op *op = program_op(p, OP_transfer, "");
        op->attr.transfer = (TransferAttr){stage - 1, stage};
        op->transfer.x = now[b];
        op->transfer.y = y;
        op_cost(p, op);
        now[b] = y;
    }
}

static int check_settings(const Program *p, const Settings *s, Err *e) {
    const char *problem = s->eval                                 ? "mode: a pipeline trains, and does not evaluate"
                          : s->keep_output || s->keep_gradients   ? "keep_output, keep_gradients: no rank of a pipeline has all of them"
                          : s->checkpoint == CHECKPOINT_BUDGET    ? "checkpoint: no budget is divided among the stages of a pipeline"
                          : s->offload != OFFLOAD_NONE            ? "offload: activations of a pipeline stay on the device"
                                                                  : NULL;
    for (int i = 0; i < p->n_ops && !problem; i++)
        if (p->ops[i].kind == OP_linear_q) problem = "weights of 4 or 8 bits are not divided into stages";
    return problem ? err_set(e, ERR_SCRIPT, "%s: expected a mesh without pipeline", problem) : OK;
}

int pass_cut_stages(Program *p, Compile *c) {
    if (p->pipeline == 1) return UNCHANGED;
    assert(p->forward_end == p->n_ops);
    int code = check_settings(p, c->settings, c->e);
    if (code) return code;
    Scratch *s = &c->scratch;
    const size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops + 2;
    Cutting cutting = {p, p->n_ops, scratch_new(s, bufs, sizeof(int)), scratch_new(s, bufs, sizeof(int)),
                       scratch_new(s, bufs, sizeof(int)), scratch_new(s, ops, sizeof(double)), scratch_new(s, ops, sizeof(double)),
                       scratch_new(s, ops, sizeof(int)), scratch_new(s, ops, sizeof(int)), 0};
    int *cut = scratch_new(s, (size_t)p->pipeline, sizeof *cut), *now = scratch_new(s, bufs, sizeof *now);
    if (s->failed) return OK;
    code = choose_cuts(&cutting, p->pipeline, cut, s, c->e);
    if (code || s->failed) return code;
    Rewriter r;
    int stage = 0;
    for (size_t b = 0; b < bufs; b++) now[b] = (int)b;
    for (const Op *old = rewrite_begin(&r, p); old; old = rewrite_next(&r)) {
        Op op = *old;
        if (stage + 1 < p->pipeline && r.at == cut[stage + 1]) cross(p, &cutting, r.at, ++stage, now, (int)bufs);
        EACH_IN(old, k) op.in[k] = now[old->in[k]];
        rewrite_put(p, &op);
    }
    rewrite_end(&r);
    p->forward_end = p->body_end = p->n_ops;
    return OK;
}
