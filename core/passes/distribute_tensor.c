/* Tensor parallelism, as Megatron-LM's (Shoeybi et al. 2019): the ranks along the mesh's axis "tensor" have the same samples,
 * and divide the layers between two linear ones by features, attention by heads. The first product divides the rows of its
 * weight, so each rank makes some of the features; the last one divides the columns, so each makes a term of a sum:
 *
 *     y = linear(x, up)                x' = view(x)                  its gradient is a sum over the ranks
 *     h = act(y)                       y = linear(x', up's rows)
 *     z = linear(h, down)              h = act(y)
 *                                      z.term = linear(h, down's columns)
 *                                      z = all_reduce(z.term)
 *
 * A region is what lies between: ops that work feature by feature, or head by head. It begins with one product or several
 * (query, key and value; gate and up), and every way out of it is a product. All else is done by every rank: normalisation,
 * embeddings, the head. The pass runs on forward ops; their gradients follow by the ops' own rules. */
#include <assert.h>
#include <string.h>

#include "distribute.h"

typedef enum Place { UNKNOWN, WHOLE, DIVIDED } Place;

typedef struct Split {
    Program *p;
    int n_bufs;
    Place *place;     /* by buffer; a weight is WHOLE unless an op divides it */
    int *blocks;      /* by buffer that is divided: in how many neighbours, each for itself (Slice) */
    int *maker;       /* by buffer: the op that makes it, NO_OP: none does */
    int *readers;     /* by buffer: how many ops read it */
    bool *member;     /* by buffer: of the region that is tried */
    bool *pinned;     /* by buffer: a first product of that region reads it */
    int *queue, n;    /* the region's buffers, in the order in which they were found */
} Split;

/* Is the weight, or the bias, a parameter that this op alone reads? */
static bool own_param(const Split *s, int buf) {
    const Buf *b = &s->p->bufs[buf];
    return b->kind == BUF_PERSISTENT && b->param >= 0 && s->readers[buf] == 1 && b->layout == LAYOUT_ROWS && !b->slice.parts;
}

/* Can the linear layer divide the rows of its weight (axis 0), in so many blocks, or its columns (axis 1)? */
static bool divides(const Split *s, const Op *op, int axis, int blocks) {
    const Program *p = s->p;
    const Buf *w = &p->bufs[op->linear.w];
    const bool bias = op->linear.b == NO_BUF || (own_param(s, op->linear.b) && p->bufs[op->linear.b].shape.rank == 1);
    const int64_t features = w->shape.dim[axis];
    if (op->kind != OP_linear || !own_param(s, op->linear.w) || !bias || w->order[0]) return false;
    return features % ((int64_t)p->tensor * blocks) == 0 && features > p->tensor;
}

static int64_t last_dim(const Buf *b) { return b->shape.rank ? b->shape.dim[b->shape.rank - 1] : 0; }

/* Does the op make each feature of its output of the same feature of each input? */
static bool by_feature(const Split *s, const Op *op) {
    const Program *p = s->p;
    const Buf *x = op->in[0] == NO_BUF ? NULL : &p->bufs[op->in[0]], *y = op->out[0] == NO_BUF ? NULL : &p->bufs[op->out[0]];
    switch (op->kind) {
    case OP_act: case OP_add: case OP_mul: return true;
    case OP_dropout: return !op->attr.drop.channels;
    case OP_view: return x->shape.rank > 1 && y->shape.rank > 1 && last_dim(x) == last_dim(y) && !x->order[0] && !y->order[0];
    case OP_rotary: return last_dim(x) % ((int64_t)op->attr.rotary.dim * p->tensor) == 0;
    default: return false;
    }
}

/* Can attention divide its heads? Query, key and value are three operands, or lie in one with as many heads each. */
static bool by_head(const Split *s, const Op *op, int *blocks) {
    const AttentionAttr *a = &op->attr.attention;
    const bool apart = op->attention.k != NO_BUF && op->attention.v != NO_BUF;
    const bool packed = op->attention.k == NO_BUF && op->attention.v == NO_BUF && a->heads == a->kv_heads;
    *blocks = apart ? 1 : 3;
    return op->kind == OP_attention && (apart || packed) && op->attention.bias == NO_BUF && a->heads % s->p->tensor == 0 &&
           a->kv_heads % s->p->tensor == 0;
}

/* The buffer belongs to the region. blocks: how its features are divided. False: it cannot be divided so. */
static bool join(Split *s, int buf, int blocks) {
    if (s->member[buf]) return s->blocks[buf] == blocks;
    if (s->place[buf] != UNKNOWN || s->p->bufs[buf].keep || buf == s->p->output) return false;
    s->member[buf] = true;
    s->blocks[buf] = blocks;
    s->queue[s->n++] = buf;
    return true;
}

/* The op that makes a member: a first product, or an op within the region, whose inputs then belong to it, too. */
static bool reach_back(Split *s, const Op *op, int blocks) {
    const Program *p = s->p;
    int heads;
    if (op->kind == OP_linear && !s->member[op->linear.x]) {
        if (s->place[op->linear.x] == DIVIDED || !divides(s, op, 0, blocks)) return false;
        s->pinned[op->linear.x] = true;
        return true;
    }
    if (by_head(s, op, &heads)) {
        for (int k = 0; k < 3; k++)
            if (op->in[k] != NO_BUF && !join(s, op->in[k], heads)) return false;
        return blocks == 1;
    }
    if (!by_feature(s, op)) return false;
    EACH_IN(op, k)
        if (p->bufs[op->in[k]].dtype != DT_I32 && !join(s, op->in[k], blocks)) return false; /* counters and positions are whole */
    return true;
}

/* An op that reads a member: a last product, or an op within the region, whose output then belongs to it, too. */
static bool reach_on(Split *s, const Op *op, int buf) {
    int heads;
    if (op->kind == OP_linear && op->linear.x == buf) return s->blocks[buf] == 1 && divides(s, op, 1, 1);
    if (by_head(s, op, &heads)) return heads == s->blocks[buf] && join(s, op->attention.y, 1);
    return by_feature(s, op) && join(s, op->out[0], s->blocks[buf]);
}

/* Tries the region that the output of a linear layer lies in. */
static bool find_region(Split *s, int first) {
    const Program *p = s->p;
    bool fits = true;
    s->n = 0;
    memset(s->member, 0, (size_t)s->n_bufs * sizeof *s->member);
    memset(s->pinned, 0, (size_t)s->n_bufs * sizeof *s->pinned);
    /* packed query, key and value are divided each for itself */
    int blocks = 1;
    for (int i = 0, heads; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_attention && p->ops[i].in[0] == first && by_head(s, &p->ops[i], &heads)) blocks = heads;
    fits = join(s, first, blocks);
    for (int at = 0; at < s->n && fits; at++) {
        const int buf = s->queue[at];
        fits = s->maker[buf] != NO_OP && reach_back(s, &p->ops[s->maker[buf]], s->blocks[buf]);
        for (int i = 0; i < p->n_ops && fits; i++)
            for (int k = 0; k < OP_IN && fits; k++)
                if (p->ops[i].in[k] == buf) fits = reach_on(s, &p->ops[i], buf);
    }
    for (int at = 0; at < s->n && fits; at++) fits = !s->pinned[s->queue[at]]; /* what a first product reads is whole */
    return fits;
}

/* The outputs of all linear layers are placed, in the order of the ops: a region that was found is kept. */
static void find_regions(Split *s) {
    const Program *p = s->p;
    for (int b = 0; b < s->n_bufs; b++) s->maker[b] = NO_OP;
    for (int i = 0; i < p->n_ops; i++) {
        EACH_IN(&p->ops[i], k) s->readers[p->ops[i].in[k]]++;
        EACH_OUT(&p->ops[i], k) s->maker[p->ops[i].out[k]] = i;
    }
    for (int i = 0; i < p->n_ops; i++) {
        const int y = p->ops[i].kind == OP_linear ? p->ops[i].linear.y : NO_BUF;
        if (y == NO_BUF || s->place[y] != UNKNOWN) continue;
        if (s->place[p->ops[i].linear.x] == DIVIDED || !find_region(s, y)) {
            s->place[y] = WHOLE;
            continue;
        }
        for (int at = 0; at < s->n; at++) s->place[s->queue[at]] = DIVIDED;
        for (int b = 0; b < s->n_bufs; b++)
            if (s->pinned[b]) s->place[b] = WHOLE;
    }
}

/* ---- the program of one rank */

static void slice(Program *p, int buf, int axis, int blocks) {
    Buf *b = &p->bufs[buf];
    b->slice = (Slice){axis, p->tensor, p->tensor_rank, blocks};
    b->shape.dim[axis] /= p->tensor;
    program_resize(p, buf);
}

static void shrink(Program *p, int buf, int axis) {
    p->bufs[buf].shape.dim[axis] /= p->tensor;
    program_resize(p, buf);
}

/* What the first products read in place of x: a view, whose gradient is the sum of theirs over the ranks. */
static int entrance(Split *s, int *entered, const Op *first) {
    Program *p = s->p;
    const int x = first->linear.x;
    if (entered[x] != NO_BUF) return entered[x];
    const int view = program_like(p, x, p->bufs[x].category, p->bufs[x].shape, p->bufs[x].dtype, "shared");
    if (p->failed) return x;
    Op *op = program_op(p, OP_view, first->path);
    op->attr.collective = (CollectiveAttr){p->tensor, p->tensor_rank, 0, MESH_TENSOR};
    op->region = first->region;
    op->view.x = x;
    op->view.y = view;
    p->bufs[view].alias = program_root(p, x);
    return entered[x] = view;
}

/* The last product: its terms are summed up before the bias is added. */
static void put_last(Program *p, Op op) {
    const int y = op.linear.y, bias = op.linear.b;
    const int term = program_like(p, y, CAT_ACTIVATIONS, p->bufs[y].shape, p->bufs[y].dtype, "term");
    const int sum = bias == NO_BUF || p->failed ? y : program_like(p, y, CAT_ACTIVATIONS, p->bufs[y].shape, p->bufs[y].dtype, "sum");
    if (p->failed) return;
    slice(p, op.linear.w, 1, 1);
    op.linear.b = NO_BUF;
    op.linear.y = term;
    op_cost(p, rewrite_put(p, &op));
    distribute_op(p, OP_all_reduce, MESH_TENSOR, term, sum, 0, op.path);
    if (!p->failed) p->ops[p->n_ops - 1].region = op.region;
    if (bias == NO_BUF) return;
    Op *add = program_op(p, OP_binary, op.path);
    add->region = op.region;
    add->attr.binary.f = BINARY_ADD;
    add->binary.a = sum;
    add->binary.b = bias;
    add->binary.y = y;
    op_cost(p, add);
}

/* Random numbers are drawn by the place of an element in the op's operands: each rank's are those of an op of its own. */
static uint32_t own_draws(const Program *p, uint32_t id) { return id + ((uint32_t)p->tensor_rank << 20); }

static void put(Split *s, int *entered, const Op *old) {
    Program *p = s->p;
    Op op = *old;
    const int y = op.out[0];
    const bool inside = y != NO_BUF && s->place[y] == DIVIDED;
    if (op.kind == OP_linear && s->place[op.linear.x] == DIVIDED) {
        put_last(p, op);
        return;
    }
    if (op.kind == OP_linear && inside) {
        op.linear.x = entrance(s, entered, &op);
        slice(p, op.linear.w, 0, s->blocks[y]);
        if (op.linear.b != NO_BUF) slice(p, op.linear.b, 0, s->blocks[y]);
    }
    if (inside) shrink(p, y, p->bufs[y].shape.rank - 1);
    if (inside && op.kind == OP_dropout) op.attr.drop.id = own_draws(p, op.attr.drop.id);
    if (inside && op.kind == OP_attention) {
        op.attr.attention.heads /= p->tensor;
        op.attr.attention.kv_heads /= p->tensor;
        op.attr.attention.id = own_draws(p, op.attr.attention.id);
        if (op.attention.lse != NO_BUF) shrink(p, op.attention.lse, 1);
    }
    op_cost(p, rewrite_put(p, &op));
}

int pass_split_tensors(Program *p, Compile *c) {
    if (p->tensor == 1) return OK;
    assert(p->forward_end == p->n_ops);
    const size_t n = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    Split split = {p, p->n_bufs, scratch_new(s, n, sizeof(Place)), scratch_new(s, n, sizeof(int)), scratch_new(s, n, sizeof(int)),
                   scratch_new(s, n, sizeof(int)), scratch_new(s, n, sizeof(bool)), scratch_new(s, n, sizeof(bool)),
                   scratch_new(s, n, sizeof(int)), 0};
    int *entered = scratch_new(s, n, sizeof(int));
    Rewriter r;
    if (s->failed) return OK;
    for (size_t b = 0; b < n; b++) entered[b] = NO_BUF;
    find_regions(&split);
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) put(&split, entered, op);
    rewrite_end(&r);
    p->forward_end = p->body_end = p->n_ops;
    return OK;
}
