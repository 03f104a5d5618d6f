/* Gradients and losses of several ranks. Each rank makes the gradients of its own micro-batch; the update wants their sum. The
 * batch's mean is the mean of the ranks' means, as it is that of the micro-batches', so each loss is divided by the number of
 * ranks. Sums go in the order of the ranks: N ranks give the bits of one rank that accumulates N micro-batches in fp32.
 *
 *     dw = linear_dw(x, dy)            dw.whole = linear_dw(x, dy)
 *     w = sgd(dw)                      dw = all_reduce(dw.whole)            zero = 0
 *                                      dw = reduce_scatter(dw.whole)        zero >= 1: this rank's shard of the sum
 *                                      w = sgd(dw)
 *
 * Ranks that divide the sequence (distribute_sequence.c) each make a term of the gradients of norms and biases, and sum these up,
 * too.
 *
 * They are sent in buckets: as soon as the gradients that have come about since the last bucket have bucket_bytes. The
 * ops stand there in line with the others; pass overlap lets them go on beside these. Several micro-batches are summed up first,
 * in whole, and the sums are sent once per step; but where gradients are divided (zero >= 2), each micro-batch's are sent, and only shards are summed up. */
#include <assert.h>

#include "distribute.h"

/* The parameters whose gradients wait to be sent: the body's ops have made them in this order. */
typedef struct Bucket {
    int *param, n;  /* [n_params] */
    size_t bytes;
    int number;     /* of the next bucket */
} Bucket;

/* Emits the sum of the parameter's gradient over the ranks along the axis, or that shard of it (count 0: all); it takes the
 * gradient's name and roles. */
static void sum_gradient(Program *p, int param, MeshAxis axis, Shard shard, int bucket) {
    const int part = p->params[param].grad, w = p->params[param].weight;
    if (!shard.count && p->bufs[part].carried) {
        distribute_op(p, OP_all_reduce_, axis, NO_BUF, part, bucket, p->bufs[w].name);
        return;
    }
    const int sum = rewrite_successor(p, part, p->bufs[part].dtype, axis == MESH_DATA ? "whole" : "term");
    if (p->failed) return;
    if (shard.count) distribute_divide(p, sum, shard);
    distribute_op(p, shard.count ? OP_reduce_scatter : OP_all_reduce, axis, part, sum, bucket, p->bufs[w].name);
}

/* Does the parameter have a gradient of which this rank has made a term alone? */
static bool is_sent(const Program *p, int param) {
    return p->params[param].grad != NO_BUF && (p->world > 1 || p->bufs[p->params[param].weight].terms);
}

/* Ranks that have slices of the sequence sum up last, what a rank keeps. */
static void send_gradient(Program *p, int param, bool divide, int bucket) {
    const Shard shard = divide ? distribute_shard(p, p->params[param].grad) : (Shard){0, 0};
    if (p->world > 1) sum_gradient(p, param, MESH_DATA, shard, bucket);
    if (p->bufs[p->params[param].weight].terms && !p->failed) sum_gradient(p, param, MESH_TENSOR, (Shard){0, 0}, bucket);
}

static void send_bucket(Program *p, Bucket *b, bool divide) {
    for (int i = 0; i < b->n && !p->failed; i++) send_gradient(p, b->param[i], divide, b->number);
    b->number += b->n > 0;
    b->n = 0;
    b->bytes = 0;
}

static void collect(Program *p, Bucket *b, int param, const Settings *s) {
    b->param[b->n++] = param;
    b->bytes += p->bufs[p->params[param].grad].bytes;
    if (b->bytes >= s->bucket_bytes) send_bucket(p, b, s->zero >= 1);
}

/* Are gradients sent after each micro-batch? Otherwise their sums are, after the last one. */
static bool sends_each(const Settings *s) { return s->accumulate == 1 || s->zero >= 2; }

int pass_reduce_gradients(Program *p, Compile *c) {
    const Settings *s = c->settings;
    if ((p->world == 1 && p->tensor == 1) || s->eval || !sends_each(s)) return UNCHANGED;
    assert(p->body_end == p->n_ops);
    Bucket bucket = {scratch_new(&c->scratch, (size_t)p->n_params, sizeof(int)), 0, 0, 1};
    Rewriter r;
    if (c->scratch.failed) return OK;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        rewrite_put(p, op);
        EACH_OUT(op, k) {
            const int param = p->bufs[op->out[k]].param;
            if (param >= 0 && p->params[param].grad == op->out[k] && is_sent(p, param)) collect(p, &bucket, param, s);
        }
    }
    rewrite_end(&r);
    send_bucket(p, &bucket, s->zero >= 1);
    p->body_end = p->n_ops;
    return OK;
}

/* The losses: means over all ranks. Of one micro-batch the sum stands in the body, where the loss is. */
static void send_losses(Program *p) {
    for (int b = 0, n = p->n_bufs; b < n && !p->failed; b++) {
        if (!p->bufs[b].loss) continue;
        if (p->bufs[b].carried) distribute_op(p, OP_all_reduce_, MESH_DATA, NO_BUF, b, 0, "");
        else distribute_op(p, OP_all_reduce, MESH_DATA, b, rewrite_successor(p, b, p->bufs[b].dtype, "own"), 0, "");
    }
}

/* Each rank draws the random numbers of its own micro-batches: those of micro-batch m and rank r are the ones that a single
 * rank would draw for micro-batch m world + r. */
static void draw_apart(Program *p) {
    if (p->calls == NO_BUF) return;
    p->bufs[p->calls].first = (float)p->rank;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_count_call) p->ops[i].attr.count.by = p->world;
}

int pass_reduce_sums(Program *p, Compile *c) {
    const Settings *s = c->settings;
    for (int i = 0; i < p->n_params && !s->eval && !sends_each(s); i++)
        if (is_sent(p, i)) send_gradient(p, i, s->zero >= 1, 1);
    if (p->world == 1) return OK;
    const bool once = p->micro_batches == 1;
    for (int i = 0; i < p->n_ops; i++) rewrite_part_of_batch(&p->ops[i], p->world);
    draw_apart(p);
    send_losses(p);
    if (once) p->body_end = p->n_ops;
    if (s->eval) p->forward_end = p->n_ops;
    return OK;
}
