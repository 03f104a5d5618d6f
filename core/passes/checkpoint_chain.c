/* A forward program as a chain of units, and the rewriting that drops some of them: see checkpoint.c. */
#include "checkpoint.h"

#include <assert.h>
#include <string.h>

#include "rewrite.h"

/* ---- the chain */

/* A position before a forward op: how many storages cross it, and the sum of their numbers, which of a single one is
 * its number. */
typedef struct Crossing { int count; int64_t root; } Crossing;

/* Fills c->writer and c->saved. */
static void find_writers(Chain *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) c->writer[b] = NO_OP;
    for (int i = 0; i < p->forward_end; i++)
        EACH_OUT(&p->ops[i], k) {
            int b = p->ops[i].out[k];
            if (p->bufs[b].kind == BUF_TEMP && program_root(p, b) == b) c->writer[b] = i;
        }
    for (int i = p->forward_end; i < p->n_ops; i++)
        EACH_IN(&p->ops[i], k) c->saved[program_root(p, p->ops[i].in[k])] = true;
}

/* Fills c->gathers. What the forward pass does not read comes about right before the backward pass. */
static void find_gathers(Chain *c, bool *read) {
    const Program *p = c->p;
    for (int i = p->forward_end - 1; i >= 0; i--) {
        const Op *op = &p->ops[i];
        c->gathers[i] = op->kind == OP_all_gather && op->attr.collective.terms && read[op->out[0]];
        EACH_IN(op, k) read[program_root(p, op->in[k])] = true;
    }
}

/* at[forward_end + 1]: a storage crosses the positions after its writer up to its last reader. The entries are the
 * differences to the position before, until they are summed up. end[n_bufs] is scratch. */
static void find_crossings(const Chain *c, Crossing *at, int *end) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) end[b] = c->writer[b];
    for (int i = 0; i < p->forward_end; i++)
        EACH_IN(&p->ops[i], k) end[program_root(p, p->ops[i].in[k])] = i;
    for (int b = 0; b < p->n_bufs; b++) {
        if (c->writer[b] == NO_OP || end[b] == c->writer[b]) continue;
        const Op *writer = &p->ops[c->writer[b]]; /* a cast of a parameter can be made anywhere: it does not count */
        if (writer->kind == OP_cast && p->bufs[writer->in[0]].kind == BUF_PERSISTENT) continue;
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

/* A cut lies at each position before the loss that one storage crosses, once per storage; and at both ends. */
static void find_cuts(Chain *c, const Crossing *at) {
    int loss = c->p->loss == NO_BUF ? NO_OP : c->writer[program_root(c->p, c->p->loss)];
    c->cut[c->n_cuts++] = (Cut){0, NO_BUF};
    for (int i = 1; i <= loss; i++)
        if (at[i].count == 1 && at[i].root != c->cut[c->n_cuts - 1].root)
            c->cut[c->n_cuts++] = (Cut){i, (int)at[i].root};
    c->cut[c->n_cuts++] = (Cut){c->p->forward_end, NO_BUF};
}

bool chain_has_choice(const Program *p) { return p->forward_end > 0 && p->forward_end < p->n_ops; }

bool chain_find(Chain *c, const Program *p, Scratch *s) {
    size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->forward_end;
    assert(chain_has_choice(p));
    *c = (Chain){p, scratch_new(s, bufs, sizeof(int)), scratch_new(s, bufs, sizeof(bool)), scratch_new(s, ops, sizeof(bool)),
                 scratch_new(s, ops + 2, sizeof(Cut)), 0};
    bool *read = scratch_new(s, bufs, sizeof *read);
    Crossing *at = scratch_new(s, ops + 2, sizeof *at);
    int *end = scratch_new(s, bufs, sizeof *end);
    if (s->failed) return false;
    find_writers(c);
    find_gathers(c, read);
    find_crossings(c, at, end);
    find_cuts(c, at);
    return true;
}

/* ---- the choice */

/* May a segment begin at the cut? It keeps what crosses the cut. That costs nothing if the backward pass keeps it
 * anyway; else it costs bytes, as with the large map before a max pooling. */
static bool is_free(const Chain *c, int cut) { return c->cut[cut].root == NO_BUF || c->saved[c->cut[cut].root]; }

/* What op i's segment is where it belongs to none that is dropped. */
static int stored(const Chain *c, int i) { return c->gathers[i] ? ALONE : STORED; }

/* Each unit is a segment, except the last one, the loss, which stays. */
static void choose_all(const Chain *c, int *segment) {
    int number = 0;
    for (int u = 1; u < c->n_cuts - 1; u++) {
        if (is_free(c, u - 1)) number = u;
        for (int i = c->cut[u - 1].at; i < c->cut[u].at; i++) segment[i] = number ? number : stored(c, i);
    }
}

static size_t saved_bytes(const Chain *c, int op) {
    size_t bytes = 0;
    EACH_OUT(&c->p->ops[op], k) {
        int b = c->p->ops[op].out[k];
        if (c->writer[b] == op && c->saved[b]) bytes += c->p->bufs[b].bytes;
    }
    return bytes;
}

/* At most ceil(sqrt(units)) runs of units with about equal bytes of saved activations: a unit belongs to the run in
 * which its first byte lies. The run of the last unit stays. */
static void choose_sqrt(const Chain *c, int *segment) {
    size_t total = 0, before = 0, runs = 1;
    while (runs * runs < (size_t)c->n_cuts - 1) runs++;
    for (int i = 0; i < c->p->forward_end; i++) total += saved_bytes(c, i);
    size_t run = total / runs + 1;
    int number = 1;
    for (int u = 1; u < c->n_cuts; u++) {
        if (is_free(c, u - 1)) number = 1 + (int)(before / run);
        for (int i = c->cut[u - 1].at; i < c->cut[u].at; i++) {
            segment[i] = number;
            before += saved_bytes(c, i);
        }
    }
    for (int i = 0; i < c->p->forward_end; i++)
        if (segment[i] == number) segment[i] = stored(c, i);
}

void chain_store(const Chain *c, int as, int *segment) {
    for (int i = 0; i < c->p->forward_end; i++) segment[i] = c->gathers[i] ? ALONE : as;
}

void chain_choose(const Chain *c, Checkpoint mode, int *segment) {
    assert(mode != CHECKPOINT_SELECTIVE && mode != CHECKPOINT_BUDGET);
    chain_store(c, STORED, segment);
    for (int i = 0; i < c->p->forward_end && mode == CHECKPOINT_MARKED; i++)
        if (c->p->ops[i].region) segment[i] = c->p->ops[i].region;
    if (mode == CHECKPOINT_ALL) choose_all(c, segment);
    if (mode == CHECKPOINT_SQRT) choose_sqrt(c, segment);
}

/* ---- what a choice does */

/* lost[n_bufs]: see chain_again. A storage is lost if its writer is dropped, nothing needs it later in the step, and
 * every forward op that reads it is in the same segment; of an op that is ALONE, in a segment that is not dropped
 * whole. */
static void find_lost(const Chain *c, const int *segment, bool *lost) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        int w = c->writer[b], of = w == NO_OP ? STORED : segment[w];
        const bool own = w != NO_OP && p->ops[w].kind != OP_transfer; /* what another rank has made stays */
        lost[b] = own && (of > 0 || (of == ALONE && program_root(p, p->ops[w].out[0]) == b));
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].keep || p->bufs[b].carried) lost[program_root(p, b)] = false;
    for (int i = 0; i < p->forward_end; i++)
        EACH_IN(&p->ops[i], k) {
            int root = program_root(p, p->ops[i].in[k]);
            if (!lost[root]) continue;
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
        EACH_OUT(op, k) again[i] |= need[program_root(p, op->out[k])];
        if (!again[i]) continue;
        seconds += op_seconds(op);
        EACH_IN(op, k) {
            int root = program_root(p, op->in[k]);
            need[root] |= lost[root];
        }
    }
    return seconds;
}

typedef struct Drop {
    const Chain *c;
    const int *segment;
    Program *p;
    Rewriter old;              /* its ops before */
    int n_bufs;                /* how many buffers it had before */
    bool *lost, *need, *again; /* see chain_again */
    int *twin;                 /* by buffer: the one that its op's second run makes, or NO_BUF */
    int *maker;                /* by buffer: the forward op whose first output it is */
    int *first, *next;         /* by segment: its first op that runs again; by op: the next one of its segment; or NO_OP */
} Drop;

static int most_segments(const Chain *c, const int *segment) {
    int most = 0;
    for (int i = 0; i < c->p->forward_end; i++)
        if (segment[i] > most) most = segment[i];
    return most;
}

/* A new buffer for what was `b` in the first run. */
static int second_buf(Program *p, int b) {
    int n = program_like(p, b, p->bufs[b].category, p->bufs[b].shape, p->bufs[b].dtype, "again");
    if (p->failed) return b;
    p->bufs[n].bytes = p->bufs[b].bytes; /* a workspace has more than its shape says */
    return n;
}

/* An op that runs for its first output alone. A batch normalisation takes the statistics that its first run has left. */
static Op for_first_output(const Op *first) {
    Op op = *first;
    if (op.kind != OP_batchnorm) return op;
    op.kind = OP_batchnorm_again;
    op.batchnorm_again.mean = first->batchnorm.mean;
    op.batchnorm_again.istd = first->batchnorm.istd;
    EACH_OUT(first, k)
        if (k) op.out[k] = NO_BUF;
    op.workspace = NO_BUF;
    return op;
}

/* Puts the second run of a forward op: it reads and writes the twins. alone: it runs for its first output, and updates nothing
 * (running statistics of a normalisation); in a segment it updates twice what it updates, as PyTorch's checkpoints do. */
static void run_again(Drop *r, const Op *first, bool alone) {
    Program *p = r->p;
    Op op = alone ? for_first_output(first) : *first;
    op.recomputed = true;
    EACH_IN(&op, k)
        if (r->twin[op.in[k]] != NO_BUF) op.in[k] = r->twin[op.in[k]];
    EACH_OUT(&op, k) {
        const OperandInfo *info = &op_info(op.kind)->out[k];
        if (info->updated && alone) op.out[k] = NO_BUF;
        assert(!info->updated || info->optional || !alone);
        if (info->updated) continue; /* in place */
        op.out[k] = second_buf(p, first->out[k]);
        if (r->lost[program_root(p, first->out[k])]) r->twin[first->out[k]] = op.out[k];
    }
    if (op.workspace != NO_BUF) op.workspace = second_buf(p, op.workspace);
    op_cost(p, &op);
    if (!p->failed) rewrite_put(p, &op);
}

/* Runs the op again whose first output is `b`, after the ops that make its lost inputs. */
static void make_alone(Drop *r, int b) {
    const Program *p = r->p;
    const Op *op = &r->old.old[r->maker[b]];
    EACH_IN(op, k) {
        int in = op->in[k];
        if (!p->failed && r->lost[program_root(p, in)] && r->twin[in] == NO_BUF) make_alone(r, in);
    }
    if (!p->failed) run_again(r, op, true);
}

/* What a backward op reads in place of `b`: itself, or if it is lost its twin. Its first reader has the whole segment
 * made again. */
static int made_again(Drop *r, int b) {
    if (b >= r->n_bufs || !r->lost[program_root(r->p, b)]) return b;
    if (r->twin[b] != NO_BUF) return r->twin[b];
    assert(r->c->writer[program_root(r->p, b)] != NO_OP);
    int number = r->segment[r->c->writer[program_root(r->p, b)]];
    if (number == ALONE) make_alone(r, b);
    for (int i = number > 0 ? r->first[number] : NO_OP; i != NO_OP && !r->p->failed; i = r->next[i])
        run_again(r, &r->old.old[i], false);
    return r->p->failed ? b : r->twin[b];
}

/* Fills r->maker, r->first and r->next. */
static void list_segments(Drop *r) {
    for (int k = most_segments(r->c, r->segment); k >= 0; k--) r->first[k] = NO_OP;
    for (int i = r->c->p->forward_end - 1; i >= 0; i--) {
        const Op *op = &r->c->p->ops[i];
        int number = r->segment[i];
        if (op->out[0] != NO_BUF) r->maker[op->out[0]] = i;
        if (number <= 0 || !r->again[i]) continue;
        r->next[i] = r->first[number];
        r->first[number] = i;
    }
}

void chain_drop(const Chain *c, Program *p, const int *segment, int *twin, Scratch *s) {
    assert(p->forward_end == c->p->forward_end && p->n_bufs == c->p->n_bufs); /* nothing has changed since chain_find */
    size_t bufs = (size_t)p->n_bufs, forward = (size_t)p->forward_end;
    size_t segments = (size_t)most_segments(c, segment) + 1;
    Drop r = {c, segment, p, {0}, p->n_bufs, scratch_new(s, bufs, sizeof(bool)), scratch_new(s, bufs, sizeof(bool)),
              scratch_new(s, forward, sizeof(bool)), scratch_new(s, bufs, sizeof(int)),
              scratch_new(s, bufs, sizeof(int)), scratch_new(s, segments, sizeof(int)),
              scratch_new(s, forward, sizeof(int))};
    if (s->failed) return;
    for (int b = 0; b < r.n_bufs; b++) r.twin[b] = NO_BUF;
    chain_again(c, segment, r.lost, r.need, r.again);
    list_segments(&r);
    for (const Op *old = rewrite_begin(&r.old, p); old; old = rewrite_next(&r.old)) {
        Op op = *old;
        if (r.old.at >= r.old.forward_end) {
            EACH_IN(&op, k) op.in[k] = made_again(&r, op.in[k]);
        }
        rewrite_put(p, &op);
    }
    rewrite_end(&r.old);
    if (twin) memcpy(twin, r.twin, (size_t)r.n_bufs * sizeof *twin);
}

void chain_apply(Program *p, const void *choice, Scratch *s) {
    const ChainChoice *made = choice;
    chain_drop(made->c, p, made->segment, made->twin, s);
}

int chain_arena(const Chain *c, const int *segment, Compile *under, size_t *arena) {
    return whatif(c->p, chain_apply, &(ChainChoice){c, segment, NULL}, under, NULL, arena);
}
