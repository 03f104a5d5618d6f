/* Sequence parallelism, as Megatron-LM's (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
 * Models"): between the layers whose products are divided by features, ops that make each step of a sequence of that step alone
 * (normalisation, dropout, residual sums) are divided along the sequence. So the sum after a last product gives each rank its
 * slice alone, and a first product reads the gathered whole; both together send as many bytes as a sum that all ranks get:
 *
 *     z = all_reduce(z.term)               z = reduce_scatter(z.term)       (N, T / ranks, D)
 *     y = norm(x + z)                      y = norm(x + z)
 *     h = linear(y, up's rows)             y.shared = all_gather(y)         the backward pass gathers it once more
 *                                          h = linear(y.shared, up's rows)
 *
 * A tensor (N, T, D) is divided along T. Ops are reached from the last products, through tensors that they share. What such an
 * op reads that is whole on all ranks it takes its slice of; what reads a slice and is no such op, gathers it. Each rank makes a
 * term of the gradients of the parameters of such ops (pass reduce_gradients). */
#include <string.h>

#include "distribute_split.h"

enum { STEPS = 1, RANK = 3 }; /* the sequence's axis, of so many */

/* Is it a tensor (N, T, D) of numbers that may be divided along T? */
static bool has_steps(const Split *s, int buf) {
    const Buf *b = &s->p->bufs[buf];
    return dtype_is_float(b->dtype) && b->shape.rank == RANK && b->layout == LAYOUT_ROWS && !b->order[0] &&
           b->kind != BUF_PERSISTENT && b->shape.dim[STEPS] % s->p->tensor == 0 && s->place[buf] != DIVIDED;
}

static bool same_steps(const Program *p, int a, int b) {
    const int64_t *x = p->bufs[a].shape.dim, *y = p->bufs[b].shape.dim;
    return x[0] == y[0] && x[STEPS] == y[STEPS];
}

/* Does the op make each step of the same step of its inputs, as its attributes have it? */
static bool kind_by_token(const Program *p, const Op *op) {
    const int last = RANK - 1;
    switch (op->kind) {
    case OP_act: case OP_add: case OP_mul: case OP_binary: case OP_add_rows: case OP_linear: return true;
    case OP_dropout: return !op->attr.drop.channels;
    case OP_norm: return op->attr.norm.axis == last && op->attr.norm.groups == 1 && p->bufs[op->norm.x].shape.rank == RANK;
    default: return false;
    }
}

/* Each input is a tensor with the output's steps, or a parameter of the op's own that has none, or a count. */
static bool operands_by_token(const Split *s, const Op *op) {
    const Program *p = s->p;
    if (!kind_by_token(p, op) || !has_steps(s, op->out[0]) || p->bufs[op->out[0]].keep) return false;
    EACH_IN(op, k) {
        const int in = op->in[k];
        const Buf *b = &p->bufs[in];
        const bool vector = b->shape.rank <= 1, table = op->kind == OP_linear || op->kind == OP_add_rows;
        const bool own = b->kind == BUF_PERSISTENT && (b->constant || split_own_param(s, in)) && (vector || table);
        const bool steps = has_steps(s, in) && same_steps(p, in, op->out[0]);
        if (!own && !steps && b->dtype != DT_I32) return false;
    }
    return true;
}

/* A product that no ranks divide makes its rank's steps if those are no more numbers than it reads, or if all that reads them
 * works by steps, too: else its input is gathered, and not its output. */
static bool product_by_token(const Split *s, const Op *op) {
    const Program *p = s->p;
    const int y = op->linear.y;
    if (p->bufs[op->linear.w].order[0] || s->place[y] != WHOLE) return false;
    if (split_last_dim(&p->bufs[y]) <= split_last_dim(&p->bufs[op->linear.x])) return true;
    for (int i = 0; i < p->n_ops; i++)
        EACH_IN(&p->ops[i], k)
            if (p->ops[i].in[k] == y && (p->ops[i].kind == OP_linear || !operands_by_token(s, &p->ops[i]))) return false;
    return true;
}

static bool works_by_token(const Split *s, const Op *op) {
    return operands_by_token(s, op) && (op->kind != OP_linear || product_by_token(s, op));
}

/* The last products make slices, where their outputs are sequences. */
static int begin(Split *s, bool *reached, Err *e) {
    const Program *p = s->p;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (op->kind != OP_linear || s->place[op->linear.x] != DIVIDED || s->place[op->linear.y] == DIVIDED) continue;
        const Buf *y = &p->bufs[op->linear.y];
        if (y->shape.rank != RANK || y->keep) continue;
        if (y->shape.dim[STEPS] % p->tensor)
            return err_set(e, ERR_SCRIPT, "sequence_parallel: expected sequences whose length the %d ranks of mesh.tensor divide, found %lld",
                           p->tensor, (long long)y->shape.dim[STEPS]);
        s->sliced[op->linear.y] = reached[op->linear.y] = true;
    }
    return OK;
}

/* An op that shares a sequence with what has been reached is reached, too. */
static bool reach(Split *s, bool *reached, int i) {
    const Op *op = &s->p->ops[i];
    bool touches = reached[op->out[0]];
    EACH_IN(op, k) touches |= reached[op->in[k]];
    if (!touches) return false;
    EACH_IN(op, k) reached[op->in[k]] |= has_steps(s, op->in[k]);
    return s->by_token[i] = s->sliced[op->out[0]] = reached[op->out[0]] = true;
}

int split_sequence(Split *s, Err *e) {
    const Program *p = s->p;
    bool *reached = s->member, *able = s->pinned; /* regions are found */
    int code = OK;
    for (int b = 0; b < s->n_bufs; b++) reached[b] = able[b] = false;
    code = begin(s, reached, e);
    if (code) return code;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].out[0] != NO_BUF) able[p->ops[i].out[0]] = works_by_token(s, &p->ops[i]);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].out[0] != NO_BUF && able[p->ops[i].out[0]] && !s->by_token[i]) more |= reach(s, reached, i);
    }
    for (int i = 0; i < p->n_ops; i++) { /* so does the sum after an embedding whose rows are divided */
        const Op *op = &p->ops[i];
        if (op->kind == OP_embedding && s->place[op->embedding.w] == DIVIDED && !p->bufs[op->embedding.y].keep)
            s->sliced[op->embedding.y] = reached[op->embedding.y];
    }
    return OK;
}

/* ---- the program of one rank */

static void cut(Program *p, int buf, int axis) {
    if (buf == NO_BUF || p->failed) return;
    p->bufs[buf].shape.dim[axis] /= p->tensor;
    program_resize(p, buf);
    if (buf == p->output) p->output = NO_BUF; /* no rank has it */
}

/* Emits an op of one input and one output on behalf of `of`; returns the op. */
static Op *emit(Program *p, OpKind kind, int in, int out, const Op *of) {
    Op *op = program_op(p, kind, of->path);
    op->region = of->region;
    op->in[0] = in;
    op->out[0] = out;
    op->attr.collective = (CollectiveAttr){.world = p->tensor, .rank = p->tensor_rank, .axis = MESH_TENSOR};
    return op;
}

void split_sum(Split *s, int term, int y, bool sliced, const Op *of) {
    Program *p = s->p;
    op_cost(p, emit(p, sliced ? OP_reduce_scatter : OP_all_reduce, term, y, of));
}

/* The rank's slice of what all have. */
static int take_slice(Program *p, int x, const Op *of) {
    Shape part = p->bufs[x].shape;
    part.dim[STEPS] /= p->tensor;
    const int y = program_like(p, x, CAT_ACTIVATIONS, part, p->bufs[x].dtype, "slice");
    if (p->failed) return x;
    Op *op = emit(p, OP_slice, x, y, of);
    memset(&op->attr, 0, sizeof op->attr);
    op->attr.axis = (AxisAttr){STEPS, p->tensor_rank * part.dim[STEPS], p->tensor, p->tensor_rank};
    op_cost(p, op);
    return y;
}

void split_gather(Split *s, int x, int y, bool terms, const Op *of) {
    Op *op = emit(s->p, OP_all_gather, x, y, of);
    op->attr.collective.terms = terms;
    op_cost(s->p, op);
}

static int gather(Split *s, int x, bool terms, const Op *of) {
    Program *p = s->p;
    Shape whole = p->bufs[x].shape;
    whole.dim[STEPS] *= p->tensor;
    const int y = program_like(p, x, CAT_ACTIVATIONS, whole, p->bufs[x].dtype, terms ? "shared" : "whole");
    if (p->failed) return x;
    split_gather(s, x, y, terms, of);
    return y;
}

/* A view, whose gradient is the sum of the ranks' terms. */
static int share(Program *p, int x, const Op *of) {
    const int view = program_like(p, x, p->bufs[x].category, p->bufs[x].shape, p->bufs[x].dtype, "shared");
    if (p->failed) return x;
    emit(p, OP_view, x, view, of);
    p->bufs[view].alias = program_root(p, x);
    return view;
}

int split_read(Split *s, int buf, Reads how, const Op *op) {
    const bool sliced = s->sliced[buf];
    int *as = &s->as[how][buf];
    if (sliced ? how == READS_SLICE : how == READS_WHOLE) return buf;
    if (*as != NO_BUF) return *as;
    return *as = how == READS_SLICE ? take_slice(s->p, buf, op)
                 : sliced           ? gather(s, buf, how == READS_SHARED, op)
                                    : share(s->p, buf, op);
}

/* Where in the whole tensor (N, T, D) the slice lies. */
static Within within(const Program *p, const Shape *slice) {
    const int64_t piece = slice->dim[STEPS] * slice->dim[RANK - 1];
    return (Within){p->tensor_rank * piece, piece, p->tensor * piece};
}

void split_put_slice(Split *s, const Op *old) {
    Program *p = s->p;
    Op op = *old;
    EACH_IN(old, k) {
        Buf *b = &p->bufs[old->in[k]];
        if (has_steps(s, old->in[k]) || s->sliced[old->in[k]]) op.in[k] = split_read(s, old->in[k], READS_SLICE, old);
        else b->terms = b->param >= 0;
    }
    cut(p, op.out[0], STEPS);
    if (op.kind == OP_norm) {
        cut(p, op.norm.mean, 0);
        cut(p, op.norm.istd, 0);
    }
    if (p->failed) return;
    const Shape *slice = &p->bufs[op.out[0]].shape;
    if (op.kind == OP_dropout) op.attr.drop.within = within(p, slice);
    if (op.kind == OP_add_rows) op.attr.axis.start += p->tensor_rank * slice->dim[STEPS];
    op_cost(p, rewrite_put(p, &op));
}
