/* Weights of several ranks. With zero = 3 a weight is kept in shards, and is whole only while the ops of a layer read it:
 *
 *     y = linear(x, w)                 w.all = all_gather(w)        w: this rank's shard
 *                                      y = linear(x, w.all)
 *
 * once in the forward pass and once more in the backward pass. What is gathered comes gather_ahead layers before the one that
 * reads it, so that it can be on its way while those before it compute (pass overlap). A weight that is cast first is cast in shards,
 * and the copies are gathered: fewer bytes are sent, and none of them is kept whole.
 *
 * With zero = 1 and 2 a weight is whole on every rank. Each rank updates a shard of it, in place, and then all gather the
 * others. */
#include <assert.h>
#include <string.h>

#include "distribute.h"

/* A weight, or a copy of it, that becomes whole for layer number `layer`, of which op `reader` is the first that reads it. */
typedef struct Gather {
    int buf, all;      /* the shard; the whole, once the op is emitted */
    int layer, reader, until; /* until: the last op of the layer that reads it */
    int shares;        /* the gather before it, if what that has made is still whole when this one would come; or NONE */
    int next;          /* another one before the same op, or NONE */
} Gather;

enum { NONE = -1 };

typedef struct Divide {
    Program *p;
    bool *divided;  /* by buffer: it is a shard from now on */
    int *writer;    /* by buffer: the op that makes it, NO_OP: none does */
    int *last;      /* by buffer: the last of list[] that makes it whole, NONE: none does */
    int *whole;     /* by buffer: what that has made, once it is emitted */
    int *before;    /* by op: what is gathered before it: the first of list[], or NONE */
    int *first;     /* by layer: its first op */
    Gather *list;   /* [n], in the order of their readers */
    int n, layers;
} Divide;

/* Weights that ops update in the body (running statistics), and those that belong to codes, stay whole. */
static void choose(const Divide *d) {
    const Program *p = d->p;
    for (int i = 0; i < p->n_params; i++) {
        const int w = p->params[i].weight;
        d->divided[w] = dtype_is_float(p->bufs[w].dtype) && distribute_shard(p, w).count;
    }
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        const OpInfo *info = op_info(op->kind);
        const bool codes = op->kind == OP_linear_q || op->kind == OP_linear_q_dx;
        EACH_OUT(op, k) if (info->out[k].updated) d->divided[op->out[k]] = false;
        EACH_IN(op, k) if (codes && info->in[k].fp32) d->divided[op->in[k]] = false;
    }
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (op->kind == OP_cast && d->divided[op->cast.x]) d->divided[op->cast.y] = true;
    }
}

/* Are both ops of one layer, which reads its weights in one go? */
static bool one_layer(const Program *p, int a, int b) {
    const Op *one = &p->ops[a], *two = &p->ops[b];
    return (a < p->forward_end) == (b < p->forward_end) && one->recomputed == two->recomputed && !strcmp(one->path, two->path);
}

/* Does the op compute in shards? */
static bool in_shards(const Divide *d, const Op *op) { return op->kind == OP_cast && d->divided[op->cast.x]; }

/* Fills list, first and before. */
static void find_gathers(Divide *d, int ahead) {
    const Program *p = d->p;
    for (int b = 0; b < p->n_bufs; b++) d->writer[b] = d->last[b] = NONE;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        d->before[i] = NONE;
        EACH_OUT(op, k) d->writer[op->out[k]] = i;
        EACH_IN(op, k) {
            const int b = op->in[k];
            if (!d->divided[b] || in_shards(d, op)) continue;
            if (d->last[b] != NONE && one_layer(p, d->list[d->last[b]].reader, i)) {
                d->list[d->last[b]].until = i;
                continue;
            }
            if (!d->layers || !one_layer(p, d->first[d->layers - 1], i)) d->first[d->layers++] = i;
            d->list[d->n] = (Gather){b, NO_BUF, d->layers - 1, i, i, d->last[b], NONE};
            d->last[b] = d->n++;
        }
    }
    for (int g = 0; g < d->n; g++) {
        const int early = d->first[d->list[g].layer < ahead ? 0 : d->list[g].layer - ahead], made = d->writer[d->list[g].buf];
        const int at = early > made ? early : made + 1;
        const int earlier = d->list[g].shares;
        assert(at <= d->list[g].reader);
        if (earlier != NONE && at <= d->list[earlier].until + 1) {
            d->list[earlier].until = d->list[g].until;
            continue;
        }
        d->list[g].shares = NONE;
        d->list[g].next = d->before[at];
        d->before[at] = g;
    }
}

static void gather(Program *p, Gather *g) {
    const Buf *b = &p->bufs[g->buf];
    g->all = program_like(p, g->buf, CAT_WEIGHTS, b->shape, b->dtype, "all");
    if (p->failed) return;
    distribute_divide(p, g->all, (Shard){0, 0});
    distribute_op(p, OP_all_gather, MESH_DATA, g->buf, g->all, 0, p->bufs[g->buf].name);
}

static void insert_gathers(const Divide *d) {
    Rewriter r;
    int read = 0; /* of list[]: the first that no op has read yet */
    for (const Op *old = rewrite_begin(&r, d->p); old; old = rewrite_next(&r)) {
        Op op = *old;
        for (int g = d->before[r.at]; g != NONE && !d->p->failed; g = d->list[g].next) gather(d->p, &d->list[g]);
        for (; read < d->n && d->list[read].reader == r.at; read++) {
            Gather *g = &d->list[read];
            if (g->shares != NONE) g->all = d->list[g->shares].all;
            d->whole[g->buf] = g->all;
        }
        EACH_IN(old, k) if (d->divided[old->in[k]] && !in_shards(d, old)) op.in[k] = d->whole[old->in[k]];
        rewrite_put(d->p, &op);
    }
    rewrite_end(&r);
}

int pass_divide_weights(Program *p, Compile *c) {
    const Settings *set = c->settings;
    if (p->world == 1 || set->zero < 3) return UNCHANGED;
    assert(p->body_end == p->n_ops && !p->updates);
    Scratch *s = &c->scratch;
    const size_t bufs = (size_t)p->n_bufs, ops = (size_t)p->n_ops;
    Divide d = {p, scratch_new(s, bufs, sizeof(bool)), scratch_new(s, bufs, sizeof(int)), scratch_new(s, bufs, sizeof(int)),
                scratch_new(s, bufs, sizeof(int)), scratch_new(s, ops, sizeof(int)), scratch_new(s, ops, sizeof(int)),
                scratch_new(s, ops * OP_IN, sizeof(Gather)), 0, 0};
    if (s->failed) return OK;
    choose(&d);
    find_gathers(&d, set->gather_ahead);
    for (int b = 0, n = p->n_bufs; b < n; b++)
        if (d.divided[b]) distribute_divide(p, b, distribute_shard(p, b));
    insert_gathers(&d);
    p->body_end = p->n_ops;
    return OK;
}

int pass_gather_weights(Program *p, Compile *c) {
    (void)c;
    for (int i = p->body_end, n = p->n_ops; i < n && !p->failed; i++) {
        const int updated = op_is_update(p->ops[i].kind) ? p->ops[i].out[0] : NO_BUF;
        if (updated == NO_BUF || p->bufs[updated].alias == NO_BUF) continue;
        const int w = p->bufs[updated].alias;
        distribute_op(p, OP_all_gather_, MESH_DATA, NO_BUF, w, 0, p->bufs[w].name);
    }
    return OK;
}
