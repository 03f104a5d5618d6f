/* Checkpointing: activations inside a segment of the forward pass are not kept for the backward pass; the ops that
 * make them run again, from the segment's input, right before the backward pass first reads one. The same ops run on
 * the same inputs (dropout draws by its id), so no number changes.
 *
 * A cut between two segments lies where a single activation connects what is before with what is behind, so a residual
 * block is one unit by itself. What is behind the last cut, the loss above all, is never dropped: it would be made
 * again at once. Segments: nn.Checkpoint (marked), every unit (all), about sqrt(n) runs of units (sqrt: Chen et al.
 * 2016, "Training Deep Nets with Sublinear Memory Cost"), or what fits a number of bytes (checkpoint_budget.c). Not
 * segments, but single ops that cost little: checkpoint_selective.c. */
#include "checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- the chain */

/* By position: how many storages cross it, and the sum of their numbers: where one does, its number. Casts of parameters
 * can be made anywhere: not counted. */
typedef struct Crossing { int count; int64_t root; } Crossing;

static bool counts(const Program *p, int root, int writer) {
    const Op *op = &p->ops[writer];
    return !(op->kind == OP_cast && p->bufs[op->in[0]].kind == BUF_PERSISTENT) && p->bufs[root].kind == BUF_TEMP;
}

static void find_writers(Chain *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) c->writer[b] = NO_OP;
    for (int i = 0; i < p->forward_end; i++)
        for (int k = 0; k < OP_OUT; k++) {
            int b = p->ops[i].out[k];
            if (b != NO_BUF && p->bufs[b].kind == BUF_TEMP && program_root(p, b) == b) c->writer[b] = i;
        }
    for (int i = p->forward_end; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN; k++)
            if (p->ops[i].in[k] != NO_BUF) c->saved[program_root(p, p->ops[i].in[k])] = true;
}

/* A storage crosses the positions after its writer up to its last reader. `at` first holds by how much each position
 * has more than the one before it. */
static void find_crossings(const Chain *c, Crossing *at, int *end) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) end[b] = c->writer[b];
    for (int i = 0; i < p->forward_end; i++)
        for (int k = 0; k < OP_IN; k++)
            if (p->ops[i].in[k] != NO_BUF) end[program_root(p, p->ops[i].in[k])] = i;
    for (int b = 0; b < p->n_bufs; b++) {
        if (c->writer[b] == NO_OP || end[b] == c->writer[b] || !counts(p, b, c->writer[b])) continue;
        at[c->writer[b] + 1].count++;
        at[c->writer[b] + 1].root += b;
        at[end[b] + 1].count--;
        at[end[b] + 1].root -= b;
    }
    for (int i = 1; i <= p->forward_end; i++) {
        at[i].count += at[i - 1].count;
        at[i].root += at[i - 1].root;
    }
}

static void find_cuts(Chain *c, const Crossing *at) {
    int loss = c->p->loss == NO_BUF ? NO_OP : c->writer[program_root(c->p, c->p->loss)];
    c->cut[c->n_cuts++] = (Cut){0, NO_BUF};
    for (int i = 1; i <= loss; i++)
        if (at[i].count == 1 && at[i].root != c->cut[c->n_cuts - 1].root)
            c->cut[c->n_cuts++] = (Cut){i, (int)at[i].root};
    c->cut[c->n_cuts++] = (Cut){c->p->forward_end, NO_BUF};
}

int chain_find(Chain *c, const Program *p, Err *e) {
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->forward_end;
    *c = (Chain){p, mem_new(bufs * sizeof(int)), mem_new(bufs * sizeof(bool)), mem_new((ops + 2) * sizeof(Cut)), 0};
    Crossing *at = mem_new((ops + 2) * sizeof *at);
    int *end = mem_new(bufs * sizeof *end);
    bool made = c->writer && c->saved && c->cut && at && end;
    if (made) {
        find_writers(c);
        find_crossings(c, at, end);
        find_cuts(c, at);
    } else {
        chain_free(c);
    }
    mem_free(at);
    mem_free(end);
    return made ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory in checkpoint");
}

void chain_free(Chain *c) {
    mem_free(c->writer);
    mem_free(c->saved);
    mem_free(c->cut);
    *c = (Chain){0};
}

/* ---- the choice */

static void choose_marked(const Chain *c, int *segment) {
    for (int i = 0; i < c->p->forward_end; i++) segment[i] = c->p->ops[i].region;
}

/* May a segment begin at the cut? What crosses it is then kept: free where the backward pass keeps it anyway, but a
 * loss where that would drop it, as the large map before a max pooling. */
static bool is_free(const Chain *c, int cut) { return c->cut[cut].root == NO_BUF || c->saved[c->cut[cut].root]; }

/* Each unit by itself; the last one, the loss, stays. */
static void choose_all(const Chain *c, int *segment) {
    int number = 0;
    for (int u = 1; u < c->n_cuts - 1; u++) {
        if (is_free(c, u - 1)) number = u;
        for (int i = c->cut[u - 1].at; i < c->cut[u].at; i++) segment[i] = number;
    }
}

static size_t saved_bytes(const Chain *c, int op) {
    size_t bytes = 0;
    for (int k = 0; k < OP_OUT; k++) {
        int b = c->p->ops[op].out[k];
        if (b != NO_BUF && c->writer[b] == op && c->saved[b]) bytes += c->p->bufs[b].bytes;
    }
    return bytes;
}

static int sqrt_up(int n) {
    int root = 0;
    while (root * root < n) root++;
    return root;
}

/* At most ceil(sqrt(n)) runs of units with about equal bytes of saved activations: a unit belongs to the run in which
 * its first byte lies. The run of the last unit stays. */
static void choose_sqrt(const Chain *c, int *segment) {
    size_t total = 0, before = 0;
    for (int i = 0; i < c->p->forward_end; i++) total += saved_bytes(c, i);
    size_t run = total / (size_t)sqrt_up(c->n_cuts - 1) + 1;
    int number = 1;
    for (int u = 1; u < c->n_cuts; u++) {
        if (is_free(c, u - 1)) number = 1 + (int)(before / run);
        for (int i = c->cut[u - 1].at; i < c->cut[u].at; i++) {
            segment[i] = number;
            before += saved_bytes(c, i);
        }
    }
    for (int i = 0; i < c->p->forward_end; i++)
        if (segment[i] == number) segment[i] = 0;
}

void chain_choose(const Chain *c, Checkpoint mode, int *segment) {
    memset(segment, 0, (size_t)c->p->forward_end * sizeof *segment);
    if (mode == CHECKPOINT_MARKED) choose_marked(c, segment);
    if (mode == CHECKPOINT_ALL) choose_all(c, segment);
    if (mode == CHECKPOINT_SQRT) choose_sqrt(c, segment);
}

/* ---- what a choice does */

static void find_lost(const Chain *c, const int *segment, bool *lost) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        int w = c->writer[b], of = w == NO_OP ? STORED : segment[w];
        lost[b] = of > 0 || (of == ALONE && program_root(p, p->ops[w].out[0]) == b);
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].keep || p->bufs[b].carried) lost[program_root(p, b)] = false;
    for (int i = 0; i < p->forward_end; i++)
        for (int k = 0; k < OP_IN; k++) {
            int root = p->ops[i].in[k] == NO_BUF ? NO_BUF : program_root(p, p->ops[i].in[k]);
            if (root == NO_BUF || !lost[root]) continue;
            int of = segment[c->writer[root]];
            if (of == ALONE ? segment[i] > 0 : of != segment[i]) lost[root] = false;
        }
}

double chain_again(const Chain *c, const int *segment, bool *lost, bool *need, bool *again) {
    const Program *p = c->p;
    double seconds = 0;
    find_lost(c, segment, lost);
    for (int b = 0; b < p->n_bufs; b++) need[b] = lost[b] && c->saved[b];
    for (int i = p->forward_end - 1; i >= 0; i--) {
        const Op *op = &p->ops[i];
        again[i] = false;
        for (int k = 0; k < OP_OUT; k++) again[i] |= op->out[k] != NO_BUF && need[program_root(p, op->out[k])];
        if (!again[i]) continue;
        seconds += op_seconds(op);
        for (int k = 0; k < OP_IN; k++) {
            int root = op->in[k] == NO_BUF ? NO_BUF : program_root(p, op->in[k]);
            if (root != NO_BUF && lost[root]) need[root] = true;
        }
    }
    return seconds;
}

typedef struct Rewrite {
    const Chain *c;
    const int *segment;
    Program *p;
    Op *old;                   /* its ops before */
    int n_bufs;                /* and how many buffers it had */
    bool *lost, *need, *again; /* as chain_again gives them */
    int *twin;                 /* by buffer: the one that its op makes the second time, or NO_BUF */
    int *maker;                /* by buffer: the forward op whose first output it is */
    int *first, *next;         /* by segment: its first op that runs again; by op: the next one of its segment; or NO_OP */
} Rewrite;

static int most_segments(const Chain *c, const int *segment) {
    int most = 0;
    for (int i = 0; i < c->p->forward_end; i++)
        if (segment[i] > most) most = segment[i];
    return most;
}

/* A buffer like `b` for an op's second run. */
static int second_buf(Program *p, int b) {
    const Buf like = p->bufs[b];
    int n = program_buf(p, like.category, like.shape, like.dtype, "%.*s.again", BUF_NAME - 7, like.name);
    if (p->failed) return b;
    Buf *to = &p->bufs[n];
    char name[BUF_NAME];
    memcpy(name, to->name, sizeof name);
    *to = like;
    memcpy(to->name, name, sizeof name);
    to->alias = NO_BUF;
    to->keep = to->loss = false;
    return n;
}

static void run_again(Rewrite *r, const Op *first) {
    Program *p = r->p;
    Op op = *first;
    op.recomputed = true;
    for (int k = 0; k < OP_IN; k++)
        if (op.in[k] != NO_BUF && r->twin[op.in[k]] != NO_BUF) op.in[k] = r->twin[op.in[k]];
    for (int k = 0; k < OP_OUT; k++) {
        if (first->out[k] == NO_BUF || op_info(first->kind)->out[k].updated) continue; /* that is updated again */
        op.out[k] = second_buf(p, first->out[k]);
        if (r->lost[program_root(p, first->out[k])]) r->twin[first->out[k]] = op.out[k];
    }
    if (op.workspace != NO_BUF) op.workspace = second_buf(p, op.workspace);
    if (p->failed) return;
    if (op.kind == OP_view) p->bufs[op.out[0]].alias = program_root(p, op.in[0]);
    *program_op(p, op.kind, op.path) = op;
}

/* Runs the op again that makes `b`, behind those that make what it reads and that is lost. */
static void make_alone(Rewrite *r, int b) {
    const Program *p = r->p;
    const Op *op = &r->old[r->maker[b]];
    for (int k = 0; k < OP_IN && !p->failed; k++) {
        int in = op->in[k];
        if (in != NO_BUF && r->lost[program_root(p, in)] && r->twin[in] == NO_BUF) make_alone(r, in);
    }
    if (!p->failed) run_again(r, op);
}

/* A backward op reads `b`: if that was dropped, its whole segment is made again here, once. */
static int made_again(Rewrite *r, int b) {
    if (b == NO_BUF || b >= r->n_bufs || !r->lost[program_root(r->p, b)]) return b;
    if (r->twin[b] != NO_BUF) return r->twin[b];
    int number = r->segment[r->c->writer[program_root(r->p, b)]];
    if (number == ALONE) make_alone(r, b);
    for (int i = number > 0 ? r->first[number] : NO_OP; i != NO_OP && !r->p->failed; i = r->next[i])
        run_again(r, &r->old[i]);
    return r->p->failed ? b : r->twin[b];
}

static void list_segments(const Rewrite *r) {
    for (int k = most_segments(r->c, r->segment); k >= 0; k--) r->first[k] = NO_OP;
    for (int i = r->p->forward_end - 1; i >= 0; i--) {
        int number = r->segment[i];
        if (r->old[i].out[0] != NO_BUF) r->maker[r->old[i].out[0]] = i;
        if (number <= 0 || !r->again[i]) continue;
        r->next[i] = r->first[number];
        r->first[number] = i;
    }
}

static void rewrite(Rewrite *r) {
    Program *p = r->p;
    int n = p->n_ops;
    for (int b = 0; b < r->n_bufs; b++) r->twin[b] = NO_BUF;
    chain_again(r->c, r->segment, r->lost, r->need, r->again);
    list_segments(r);
    p->n_ops = p->forward_end;
    for (int i = p->forward_end; i < n && !p->failed; i++) {
        Op op = r->old[i];
        for (int k = 0; k < OP_IN; k++) op.in[k] = made_again(r, op.in[k]);
        if (!p->failed) *program_op(p, op.kind, op.path) = op;
    }
    p->body_end = p->n_ops;
}

void chain_drop(const Chain *c, Program *p, const int *segment) {
    size_t bufs = (size_t)p->n_bufs, forward = (size_t)p->forward_end;
    Op *old = mem_copy(p->ops, (size_t)p->n_ops * sizeof *old);
    size_t segments = (size_t)most_segments(c, segment) + 1;
    Rewrite r = {c, segment, p, old, p->n_bufs, mem_new(bufs), mem_new(bufs), mem_new(forward),
                 mem_new(bufs * sizeof(int)), mem_new(bufs * sizeof(int)), mem_new(segments * sizeof(int)),
                 mem_new(forward * sizeof(int))};
    if (old && r.lost && r.need && r.again && r.twin && r.maker && r.first && r.next) rewrite(&r);
    else p->failed = true;
    void *const all[] = {old, r.lost, r.need, r.again, r.twin, r.maker, r.first, r.next};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) mem_free(all[i]);
}

int pass_checkpoint(Program *p, const Settings *s, Device *device, Err *e) {
    if (s->eval || s->checkpoint == CHECKPOINT_NONE || p->forward_end == p->n_ops) return OK;
    Chain c;
    int code = chain_find(&c, p, e);
    if (code) return code;
    int *segment = mem_new((size_t)p->forward_end * sizeof *segment);
    if (!segment) code = err_set(e, ERR_HOST_MEMORY, "out of host memory in checkpoint");
    else if (s->checkpoint == CHECKPOINT_SELECTIVE) code = chain_select(&c, s, device, segment, e);
    else if (s->checkpoint == CHECKPOINT_BUDGET) code = chain_fit(&c, s, device, segment, e);
    else chain_choose(&c, s->checkpoint, segment);
    if (!code) chain_drop(&c, p, segment);
    mem_free(segment);
    chain_free(&c);
    return code ? code : program_check(p, "checkpoint", e);
}
