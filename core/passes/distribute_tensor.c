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
 * residual sums (or by slices of the sequence, distribute_sequence.c).
 *
 * The vocabulary is divided, too, the largest that an embedding has: each rank looks up the rows that it has, and the sum over
 * the ranks has all. A head with as many outputs is a region that ends in the cross entropy: each rank makes the logits of its
 * classes, and they exchange a row's maximum, sum of exponents and the label's logit. Head and embedding may share a weight.
 *
 * The pass runs on forward ops; their gradients follow by the ops' own rules. */
#include <assert.h>
#include <string.h>

#include "distribute_split.h"

/* The rows of a table that embeddings of the network's input look up, which ranks divide. */
static bool is_vocabulary(const Split *s, int buf) {
    const Buf *b = &s->p->bufs[buf];
    return s->looked_up[buf] && b->kind == BUF_PERSISTENT && b->param >= 0 && b->shape.dim[0] == s->vocabulary;
}

/* May this op divide the parameter: is no other one there that reads it whole? A head may have the weight of embeddings. */
static bool own_weight(const Split *s, int buf) {
    return split_own_param(s, buf) || (is_vocabulary(s, buf) && s->readers[buf] == s->looked_up[buf] + 1);
}

/* Can the linear layer divide the rows of its weight (axis 0), in so many blocks, or its columns (axis 1)? */
static bool divides(const Split *s, const Op *op, int axis, int blocks) {
    const Program *p = s->p;
    const Buf *w = &p->bufs[op->linear.w];
    const bool bias = op->linear.b == NO_BUF || (split_own_param(s, op->linear.b) && p->bufs[op->linear.b].shape.rank == 1);
    const int64_t features = w->shape.dim[axis];
    if (op->kind != OP_linear || !own_weight(s, op->linear.w) || !bias || w->order[0]) return false;
    return features % ((int64_t)p->tensor * blocks) == 0 && features > p->tensor;
}

/* Does the op make each feature of its output of the same feature of each input? */
static bool by_feature(const Split *s, const Op *op) {
    const Program *p = s->p;
    const Buf *x = op->in[0] == NO_BUF ? NULL : &p->bufs[op->in[0]], *y = op->out[0] == NO_BUF ? NULL : &p->bufs[op->out[0]];
    switch (op->kind) {
    case OP_act: case OP_add: case OP_mul: return true;
    case OP_dropout: return !op->attr.drop.channels;
    case OP_view: return x->shape.rank > 1 && y->shape.rank > 1 && split_last_dim(x) == split_last_dim(y) && !x->order[0] && !y->order[0];
    case OP_rotary: return split_last_dim(x) % ((int64_t)op->attr.rotary.dim * p->tensor) == 0;
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
    const Buf *b = &s->p->bufs[buf];
    const bool gathered = blocks == 1 && s->vocabulary && split_last_dim(b) == s->vocabulary; /* a head's output */
    if (s->place[buf] != UNKNOWN || (b->keep && !gathered)) return false;
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

/* Does the loss read the logits of a vocabulary, of which each rank may have some? */
static bool ends_in_loss(const Split *s, const Op *op, int buf) {
    return op->kind == OP_cross_entropy && op->cross_entropy.x == buf && !op->attr.loss.log && op->cross_entropy.w == NO_BUF &&
           s->blocks[buf] == 1 && s->vocabulary && s->p->bufs[buf].shape.dim[1] == s->vocabulary;
}

/* An op that reads a member: a last product, a loss, or an op within the region, whose output then belongs to it, too. */
static bool reach_on(Split *s, const Op *op, int buf) {
    int heads;
    if (ends_in_loss(s, op, buf)) return true;
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

/* Counts makers, readers and what embeddings look up. */
static void find_uses(Split *s) {
    const Program *p = s->p;
    for (int b = 0; b < s->n_bufs; b++) s->maker[b] = NO_OP;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        EACH_IN(op, k) s->readers[op->in[k]]++;
        EACH_OUT(op, k) s->maker[op->out[k]] = i;
        if (op->kind != OP_embedding || p->bufs[op->embedding.idx].kind != BUF_INPUT) continue;
        s->looked_up[op->embedding.w]++;
        s->vocabulary = max_i64(s->vocabulary, p->bufs[op->embedding.w].shape.dim[0]);
    }
    if (s->vocabulary % p->tensor || s->vocabulary == p->tensor) s->vocabulary = 0;
}

/* The outputs of all linear layers are placed, in the order of the ops: a region that was found is kept. */
static void find_regions(Split *s) {
    const Program *p = s->p;
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

/* An embedding's table is divided where all that read it are embeddings, and a head that is. */
static void find_tables(Split *s) {
    const Program *p = s->p;
    for (int b = 0; b < s->n_bufs; b++) {
        int others = s->readers[b] - s->looked_up[b];
        if (!is_vocabulary(s, b)) continue;
        for (int i = 0; i < p->n_ops; i++)
            others -= p->ops[i].kind == OP_linear && p->ops[i].linear.w == b && s->place[p->ops[i].linear.y] == DIVIDED;
        if (!others) s->place[b] = DIVIDED;
    }
}

/* ---- the program of one rank */

/* Once for a weight that several ops read. */
static void slice(Program *p, int buf, int axis, int blocks) {
    Buf *b = &p->bufs[buf];
    if (b->slice.parts) return;
    b->slice = (Slice){axis, p->tensor, p->tensor_rank, blocks};
    b->shape.dim[axis] /= p->tensor;
    program_resize(p, buf);
}

static void shrink(Program *p, int buf, int axis) {
    p->bufs[buf].shape.dim[axis] /= p->tensor;
    program_resize(p, buf);
    if (buf == p->output) p->output = NO_BUF; /* no rank has it */
}

/* A buffer for the op's term of y, which several ranks make; y is then a slice, where it is to be one. */
static int term_of(Split *s, int y, const char *suffix) {
    Program *p = s->p;
    const int term = program_like(p, y, CAT_ACTIVATIONS, p->bufs[y].shape, p->bufs[y].dtype, suffix);
    if (s->sliced[y] && !p->failed) shrink(p, y, 1);
    return term;
}

/* The last product: its terms are summed up before the bias is added. */
static void put_last(Split *s, Op op) {
    Program *p = s->p;
    const int y = op.linear.y, bias = op.linear.b, term = term_of(s, y, "term");
    const int sum = bias == NO_BUF || p->failed ? y : program_like(p, y, CAT_ACTIVATIONS, p->bufs[y].shape, p->bufs[y].dtype, "sum");
    if (p->failed) return;
    slice(p, op.linear.w, 1, 1);
    op.linear.b = NO_BUF;
    op.linear.y = term;
    op_cost(p, rewrite_put(p, &op));
    split_sum(s, term, sum, s->sliced[y], &op);
    if (bias == NO_BUF) return;
    p->bufs[bias].terms = s->sliced[y];
    Op *add = program_op(p, OP_binary, op.path);
    add->region = op.region;
    add->attr.binary.f = BINARY_ADD;
    add->binary.a = sum;
    add->binary.b = bias;
    add->binary.y = y;
    op_cost(p, add);
}

/* An embedding of some of the rows: where it has none, its term is 0. */
static void put_embedding(Split *s, Op op) {
    Program *p = s->p;
    const int y = op.embedding.y, term = term_of(s, y, "term");
    if (p->failed) return;
    slice(p, op.embedding.w, 0, 1);
    op.attr.embedding.first = p->tensor_rank * p->bufs[op.embedding.w].shape.dim[0];
    op.embedding.y = term;
    op_cost(p, rewrite_put(p, &op));
    split_sum(s, term, y, s->sliced[y], &op);
}

/* An op of a region reads what this rank has of an output that is kept as a whole. */
static void read_parts(const Split *s, Op *op) {
    EACH_IN(op, k) {
        const int in = op->in[k];
        if (s->place[in] == DIVIDED && s->as[READS_SLICE][in] != NO_BUF) op->in[k] = s->as[READS_SLICE][in];
    }
}

/* A cross entropy of some of the logits: ranks exchange what is known of each row, which the gradient needs, too. */
static void put_loss(Split *s, Op op, bool gradient) {
    Program *p = s->p;
    const int64_t rows = p->bufs[op.cross_entropy.x].shape.dim[0];
    if (op.cross_entropy.stats == NO_BUF && gradient)
        op.cross_entropy.stats = program_buf(p, CAT_ACTIVATIONS, shape2(rows, 2), DT_F32, "%s.stats", op.path);
    read_parts(s, &op);
    op.attr.loss.world = p->tensor;
    op.attr.loss.rank = p->tensor_rank;
    op_cost(p, rewrite_put(p, &op));
}

/* Random numbers are drawn by the place of an element in the op's operands: each rank's are those of an op of its own. */
static uint32_t own_draws(const Program *p, uint32_t id) { return id + ((uint32_t)p->tensor_rank << 20); }

/* Where in the whole tensor, whose last axis is divided, the operand lies. */
static Within within(const Program *p, const Buf *whole, int blocks) {
    const int64_t piece = split_last_dim(whole) / p->tensor / blocks;
    return (Within){p->tensor_rank * piece, piece, p->tensor * piece};
}

/* Puts an op of a region. An output that is kept is the gathered whole of what the ranks make. */
static void put_divided(Split *s, Op op) {
    Program *p = s->p;
    const int y = op.out[0], axis = p->bufs[y].shape.rank - 1;
    const bool keep = p->bufs[y].keep;
    if (keep) {
        op.out[0] = s->as[READS_SLICE][y] = program_like(p, y, CAT_ACTIVATIONS, p->bufs[y].shape, p->bufs[y].dtype, "part");
        p->bufs[y].alias = NO_BUF;
    }
    if (p->failed) return;
    shrink(p, op.out[0], axis);
    op_cost(p, rewrite_put(p, &op));
    if (keep) split_gather(s, op.out[0], y, false, &op);
}

/* An op between first and last products, which works on its rank's features or heads; or a first product. */
static void put_inside(Split *s, Op op) {
    Program *p = s->p;
    const int y = op.out[0];
    read_parts(s, &op);
    if (op.kind == OP_linear) {
        op.linear.x = split_read(s, op.linear.x, READS_SHARED, &op);
        slice(p, op.linear.w, 0, s->blocks[y]);
        if (op.linear.b != NO_BUF) slice(p, op.linear.b, 0, s->blocks[y]);
    }
    if (op.kind == OP_dropout) op.attr.drop.within = within(p, &p->bufs[y], s->blocks[y]);
    if (op.kind == OP_attention) {
        op.attr.attention.heads /= p->tensor;
        op.attr.attention.kv_heads /= p->tensor;
        op.attr.attention.id = own_draws(p, op.attr.attention.id);
        if (op.attention.lse != NO_BUF) shrink(p, op.attention.lse, 1);
    }
    put_divided(s, op);
}

static void put(Split *s, const Op *old, bool by_token, bool gradient) {
    Program *p = s->p;
    Op op = *old;
    const int y = op.out[0];
    if (op.kind == OP_linear && s->place[op.linear.x] == DIVIDED) put_last(s, op);
    else if (op.kind == OP_embedding && s->place[op.embedding.w] == DIVIDED) put_embedding(s, op);
    else if (op.kind == OP_cross_entropy && s->place[op.cross_entropy.x] == DIVIDED) put_loss(s, op, gradient);
    else if (y != NO_BUF && s->place[y] == DIVIDED) put_inside(s, op);
    else if (by_token) split_put_slice(s, old);
    else {
        EACH_IN(old, k) op.in[k] = split_read(s, old->in[k], READS_WHOLE, old);
        op_cost(p, rewrite_put(p, &op));
    }
}

int pass_split_tensors(Program *p, Compile *c) {
    if (p->tensor == 1) return UNCHANGED;
    assert(p->forward_end == p->n_ops);
    const size_t n = (size_t)p->n_bufs;
    Scratch *m = &c->scratch;
    Split s = {.p = p, .n_bufs = p->n_bufs, .place = scratch_new(m, n, sizeof(Place)), .blocks = scratch_new(m, n, sizeof(int)),
               .maker = scratch_new(m, n, sizeof(int)), .readers = scratch_new(m, n, sizeof(int)),
               .member = scratch_new(m, n, sizeof(bool)), .pinned = scratch_new(m, n, sizeof(bool)),
               .queue = scratch_new(m, n, sizeof(int)), .looked_up = scratch_new(m, n, sizeof(int)),
               .by_token = scratch_new(m, (size_t)p->n_ops, sizeof(bool)), .sliced = scratch_new(m, n, sizeof(bool))};
    for (int how = 0; how < READS; how++) s.as[how] = scratch_new(m, n, sizeof(int));
    if (m->failed) return OK;
    for (int how = 0; how < READS; how++)
        for (size_t b = 0; b < n; b++) s.as[how][b] = NO_BUF;
    find_uses(&s);
    find_regions(&s);
    find_tables(&s);
    const int code = c->settings->sequence_parallel ? split_sequence(&s, c->e) : OK;
    if (code) return code;
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) put(&s, op, s.by_token[r.at], !c->settings->eval);
    rewrite_end(&r);
    p->forward_end = p->body_end = p->n_ops;
    return OK;
}
