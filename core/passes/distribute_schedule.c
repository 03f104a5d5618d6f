/* A rank's part of a step that was cut into stages (distribute_stages.c): the ops of its stage, for all micro-batches of the
 * step, in the order of the schedule. The body that one micro-batch runs becomes one body for all of them, so that the planner
 * sees which activations are alive at a time:
 *
 *     gpipe   F0 F1 F2 F3 B0 B1 B2 B3      every stage
 *     1f1b    F0 F1 B0 F2 B1 F3 B2 B3      the first of two: as many micro-batches are under way as stages follow, and one
 *
 * Two ranks wait for each other at a transfer. So all of them must come in one order that suits every rank: a stage that has
 * finished a backward pass first receives what the next forward pass reads, and then sends its gradient, since the stage before
 * it sends before it receives (F, send, receive, B).
 *
 * A stage consists of the ops that are connected by tensors, parameters and what belongs to these; transfers lie between stages.
 * What is not connected with any (the loss scale, the step count) is every rank's. */
#include <string.h>

#include "distribute.h"

enum { EVERY = -1 }; /* a stage: all of them */

typedef struct Stages {
    Program *p;
    const Op *old;           /* the step's ops */
    int n, forward_end, body_end, n_bufs, micro_batches;
    int *set;                /* by buffer: another one of its stage, or itself: the one that stands for all */
    int *stage;              /* by such a buffer: which stage it is */
    bool *shared;            /* by buffer: all micro-batches have one: made once, for the first of them */
    int *copy;               /* by micro-batch and buffer: its own, or NO_BUF until it is made */
} Stages;

/* ---- which stage an op belongs to */

static int find(Stages *s, int buf) {
    int b = program_root(s->p, buf);
    while (s->set[b] != b) b = s->set[b] = s->set[s->set[b]];
    return b;
}

/* Inputs, constants and counters connect nothing: each stage that reads them has its own. */
static bool connects(const Stages *s, int buf) {
    const Buf *root = &s->p->bufs[program_root(s->p, buf)];
    return root->kind == BUF_TEMP || (root->kind == BUF_PERSISTENT && root->param >= 0);
}

static void connect(Stages *s, const Op *op) {
    int first = NO_BUF;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const int b = k < OP_IN ? op->in[k] : op->out[k - OP_IN];
        if (b == NO_BUF || !connects(s, b)) continue;
        if (first == NO_BUF) first = find(s, b);
        else s->set[find(s, b)] = first;
    }
}

static int label(Stages *s, int buf, int stage, Err *e) {
    int *is = &s->stage[find(s, buf)];
    if (*is != EVERY && *is != stage)
        return err_set(e, ERR_INTERNAL, "%s belongs to stages %d and %d of the pipeline", s->p->bufs[buf].name, *is, stage);
    *is = stage;
    return OK;
}

static int find_stages(Stages *s, Err *e) {
    int code = OK;
    for (int b = 0; b < s->n_bufs; b++) {
        s->set[b] = b;
        s->stage[b] = EVERY;
    }
    for (int i = 0; i < s->n; i++)
        if (s->old[i].kind != OP_transfer) connect(s, &s->old[i]);
    for (int i = 0; i < s->p->n_params; i++) { /* a master, and the gradient of a frozen stage, are reached by no op of the body */
        const ParamBufs *of = &s->p->params[i];
        if (of->master != NO_BUF) s->set[find(s, of->master)] = find(s, of->weight);
    }
    for (int i = 0; i < s->n && !code; i++) {
        const Op *op = &s->old[i];
        if (op->kind != OP_transfer) continue;
        code = label(s, op->transfer.x, op->attr.transfer.from, e);
        if (!code) code = label(s, op->transfer.y, op->attr.transfer.to, e);
    }
    return code;
}

static int stage_of(Stages *s, int buf) { return connects(s, buf) ? s->stage[find(s, buf)] : EVERY; }

/* Does this rank run the op? A transfer belongs to two stages. */
static bool is_own(Stages *s, const Op *op) {
    const int own = s->p->stage;
    if (op->kind == OP_transfer) return op->attr.transfer.from == own || op->attr.transfer.to == own;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const int b = k < OP_IN ? op->in[k] : op->out[k - OP_IN], stage = b == NO_BUF ? EVERY : stage_of(s, b);
        if (stage != EVERY) return stage == own;
    }
    return true;
}

/* ---- the buffers of each micro-batch */

/* A buffer like `b` for another micro-batch. */
static int copy_buf(Program *p, int b, int alias, int micro) {
    char name[BUF_NAME];
    const int n = program_buf(p, p->bufs[b].category, p->bufs[b].shape, p->bufs[b].dtype, "%s.micro%d", p->bufs[b].name, micro);
    if (p->failed) return b;
    Buf *to = &p->bufs[n];
    memcpy(name, to->name, sizeof name);
    *to = p->bufs[b];
    memcpy(to->name, name, sizeof name);
    to->alias = alias;
    to->keep = false;
    return n;
}

/* The micro-batch's own buffer. The last one has those of the step as it was, so that what is kept is its. */
static int own_buf(Stages *s, int b, int micro) {
    if (b == NO_BUF || micro == s->micro_batches - 1) return b;
    int *own = &s->copy[(size_t)micro * (size_t)s->n_bufs + (size_t)b];
    const Buf *buf = &s->p->bufs[b];
    const bool one = buf->kind == BUF_PERSISTENT || buf->carried || s->shared[b];
    if (one && b != s->p->calls) return b;
    if (*own != NO_BUF) return *own;
    const int alias = buf->alias == NO_BUF ? NO_BUF : own_buf(s, buf->alias, micro);
    return *own = copy_buf(s->p, b, alias, micro);
}

/* Makes the inputs of all micro-batches, in the order of program_fed. */
static void copy_inputs(Stages *s) {
    Program *p = s->p;
    const int each = program_fed_buffers(p);
    int fed[OP_IN + 1];
    for (int k = 0; k < each; k++) fed[k] = program_fed(p, k, 0);
    p->more_inputs = p->n_bufs;
    for (int m = 0; m + 1 < s->micro_batches; m++)
        for (int k = 0; k < each; k++) own_buf(s, fed[k], m);
    p->fed = s->micro_batches;
}

/* Each micro-batch counts its own calls, as if the others ran before and after it: m draws what a rank without a pipeline draws
 * for it, in its forward pass, its second one and its backward pass. */
static void copy_calls(Stages *s, int by) {
    Program *p = s->p;
    if (p->calls == NO_BUF) return;
    for (int m = 0; m < s->micro_batches; m++) p->bufs[own_buf(s, p->calls, m)].first = (float)(p->rank + m * by);
}

/* ---- the ops of each micro-batch */

static void put(Stages *s, const Op *old, int micro) {
    Op op = *old;
    const bool once = op.out[0] != NO_BUF && s->shared[op.out[0]];
    if (once && micro) return;
    EACH_IN(old, k) op.in[k] = own_buf(s, old->in[k], micro);
    EACH_OUT(old, k) op.out[k] = own_buf(s, old->out[k], micro);
    op.workspace = own_buf(s, old->workspace, micro);
    if (op.kind == OP_accumulate) op.attr.accumulate.more = micro > 0;
    if (op.kind == OP_count_call) op.attr.count.by *= s->micro_batches;
    if (op.kind == OP_transfer && op.attr.transfer.from == s->p->stage) op.transfer.y = NO_BUF;
    else if (op.kind == OP_transfer) op.transfer.x = NO_BUF;
    if (s->p->failed) return;
    rewrite_put(s->p, &op);
}

typedef enum Part { RECEIVED, FORWARD, BACKWARD, SENT } Part;

/* Which part of a micro-batch's work the rank's op is: what the forward pass receives, the rest of it; the backward pass up to
 * the gradients that it sends, and what is left. sent: one has been sent. */
static Part part_of(const Stages *s, int i, bool *sent) {
    const Op *op = &s->old[i];
    const bool receives = op->kind == OP_transfer && op->attr.transfer.to == s->p->stage;
    if (i < s->forward_end) return receives ? RECEIVED : FORWARD;
    *sent |= op->kind == OP_transfer && !receives;
    return *sent ? SENT : BACKWARD;
}

static void put_part(Stages *s, Part part, int micro) {
    bool sent = false;
    for (int i = 0; i < s->body_end; i++)
        if (is_own(s, &s->old[i]) && part_of(s, i, &sent) == part) put(s, &s->old[i], micro);
}

/* The body. ahead: micro-batches that begin before the first one ends. */
static void put_body(Stages *s, int ahead) {
    const int n = s->micro_batches;
    for (int m = 0; m < ahead; m++) {
        put_part(s, RECEIVED, m);
        put_part(s, FORWARD, m);
    }
    if (ahead < n) put_part(s, RECEIVED, ahead);
    for (int m = 0; m < n; m++) {
        const int next = ahead + m;
        if (next < n) put_part(s, FORWARD, next);
        if (m == 0) s->p->forward_end = s->p->n_ops;
        put_part(s, BACKWARD, m);
        if (next + 1 < n) put_part(s, RECEIVED, next + 1);
        put_part(s, SENT, m);
    }
    s->p->body_end = s->p->n_ops;
}

/* ---- what follows the body */

/* The losses go from the last stage, which makes them, to all others. */
static void hand_back_losses(Program *p, int n_bufs) {
    const int last = p->pipeline - 1;
    for (int b = 0; b < n_bufs && !p->failed; b++) {
        if (!p->bufs[b].loss) continue;
        for (int to = last - 1; to >= 0; to--) {
            if (p->stage != to && p->stage != to + 1) continue;
            Op *op = program_op(p, OP_transfer, "");
            op->attr.transfer = (TransferAttr){to + 1, to};
            if (p->stage == to) op->transfer.y = b;
            else op->transfer.x = b;
            op_cost(p, op);
        }
        if (p->stage != last) p->bufs[b].carried = false; /* nothing is summed up here */
    }
}

/* Each stage has a gradient with which its sum of squares begins. */
static int check_norm(Stages *s, const Settings *set, Err *e) {
    for (int stage = 0; stage < s->p->pipeline && set->optimizer.rule.clip_norm > 0.0f; stage++) {
        bool found = false;
        for (int i = s->body_end; i < s->n && !found; i++)
            found = s->old[i].kind == OP_grad_square && stage_of(s, s->old[i].in[0]) == stage;
        if (!found)
            return err_set(e, ERR_SCRIPT, "clip_norm: stage %d of the pipeline has no parameter that is trained: expected no clip_norm, "
                           "or fewer stages", stage);
    }
    return OK;
}

static void put_update(Stages *s) {
    bool first = true;
    for (int i = s->body_end; i < s->n; i++) {
        Op op = s->old[i];
        if (!is_own(s, &op)) continue;
        if (op.kind == OP_grad_square) {
            op.attr.square.first = first;
            first = false;
        }
        rewrite_put(s->p, &op);
    }
}

/* ---- what other ranks have */

static void leave(Buf *b, int stage) {
    b->kind = BUF_TEMP;
    b->stage = stage;
    b->elsewhere = true;
}

/* The parameters of other stages have no memory here, with what belongs to them, and neither have constants that nothing reads. */
static void leave_others(Stages *s) {
    Program *p = s->p;
    bool *used = s->shared; /* nothing more is put */
    memset(used, 0, (size_t)s->n_bufs * sizeof *used);
    for (int i = 0; i < p->n_ops; i++)
        EACH_IN(&p->ops[i], k) if (p->ops[i].in[k] < s->n_bufs) used[p->ops[i].in[k]] = true;
    for (int b = 0; b < s->n_bufs; b++) {
        Buf *buf = &p->bufs[b];
        const int stage = stage_of(s, b);
        if (buf->kind != BUF_PERSISTENT) continue;
        if (stage == EVERY && buf->constant && !used[b]) buf->kind = BUF_TEMP;
        if (stage == EVERY) continue;
        if (stage != p->stage) leave(buf, stage);
        else buf->stage = stage;
    }
}

/* Casts of weights, which change after the last micro-batch only. */
static void find_shared(Stages *s) {
    for (int i = 0; i < s->body_end; i++) {
        const Op *op = &s->old[i];
        if (op->kind == OP_cast && s->p->bufs[op->cast.x].kind == BUF_PERSISTENT) s->shared[op->cast.y] = true;
    }
}

int pass_schedule_stages(Program *p, Compile *c) {
    const Settings *set = c->settings;
    if (p->pipeline == 1) return UNCHANGED;
    Scratch *m = &c->scratch;
    const size_t bufs = (size_t)p->n_bufs;
    Stages s = {p, NULL, 0, 0, 0, p->n_bufs, p->micro_batches, scratch_new(m, bufs, sizeof(int)), scratch_new(m, bufs, sizeof(int)),
                scratch_new(m, bufs, sizeof(bool)), scratch_new(m, bufs * (size_t)p->micro_batches, sizeof(int))};
    if (m->failed) return OK;
    const int by = p->world, follow = p->pipeline - 1 - p->stage;
    const int ahead = set->pipeline_schedule == PIPELINE_GPIPE || follow > s.micro_batches ? s.micro_batches : follow;
    for (size_t i = 0; i < bufs * (size_t)s.micro_batches; i++) s.copy[i] = NO_BUF;
    Rewriter r;
    if (!rewrite_begin(&r, p)) return OK;
    s.old = r.old;
    s.n = r.n;
    s.forward_end = r.forward_end;
    s.body_end = r.body_end;
    int code = find_stages(&s, c->e);
    if (!code) code = check_norm(&s, set, c->e);
    if (!code) {
        find_shared(&s);
        copy_inputs(&s);
        copy_calls(&s, by);
        put_body(&s, ahead);
        p->micro_batches = 1;
        put_update(&s);
        hand_back_losses(p, s.n_bufs);
        leave_others(&s);
    }
    rewrite_end(&r);
    return code;
}
