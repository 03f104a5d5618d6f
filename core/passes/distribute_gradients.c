/* Gradients and losses of several ranks. Each rank makes the gradients of its own micro-batch; the update wants their sum. The
 * batch's mean is the mean of the ranks' means, as it is that of the micro-batches', so each loss is divided by the number of
 * ranks. Sums go in the order of the ranks: N ranks give the bits of one rank that accumulates N micro-batches in fp32.
 *
 *     dw = linear_dw(x, dy)            dw.whole = linear_dw(x, dy)
 *     w = sgd(dw)                      dw = all_reduce(dw.whole)            zero = 0
 *                                      dw = reduce_scatter(dw.whole)        zero >= 1: this rank's shard of the sum
 *                                      w = sgd(dw)
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

/* Emits the sum of the parameter's gradient over the ranks; it takes the gradient's name and roles. */
static void send_gradient(Program *p, int param, bool divide, int bucket) {
    const int part = p->params[param].grad, w = p->params[param].weight;
    const Shard shard = divide ? distribute_shard(p, part) : (Shard){0, 0};
    if (!shard.count && p->bufs[part].carried) {
        distribute_op(p, OP_all_reduce_, MESH_DATA, NO_BUF, part, bucket, p->bufs[w].name);
        return;
    }
    const int sum = rewrite_successor(p, part, p->bufs[part].dtype, "whole");
    if (p->failed) return;
    if (shard.count) distribute_divide(p, sum, shard);
    distribute_op(p, shard.count ? OP_reduce_scatter : OP_all_reduce, MESH_DATA, part, sum, bucket, p->bufs[w].name);
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
    if (p->world == 1 || s->eval || !sends_each(s)) return OK;
    assert(p->body_end == p->n_ops);
    Bucket bucket = {scratch_new(&c->scratch, (size_t)p->n_params, sizeof(int)), 0, 0, 1};
    Rewriter r;
    if (c->scratch.failed) return OK;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        rewrite_put(p, op);
        EACH_OUT(op, k) {
            const int param = p->bufs[op->out[k]].param;
            if (param >= 0 && p->params[param].grad == op->out[k]) collect(p, &bucket, param, s);
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
    if (p->world == 1) return OK;
    const bool once = p->micro_batches == 1;
    for (int i = 0; i < p->n_ops; i++) rewrite_part_of_batch(&p->ops[i], p->world);
    draw_apart(p);
    for (int i = 0; i < p->n_params && !s->eval && !sends_each(s); i++)
        if (p->params[i].grad != NO_BUF) send_gradient(p, i, s->zero >= 1, 1);
    send_losses(p);
    if (once) p->body_end = p->n_ops;
    if (s->eval) p->forward_end = p->n_ops;
    return OK;
}
