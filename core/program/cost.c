/* What an op costs, for estimates: floating-point operations, and bytes read and written. */
#include "program.h"

static double elements(const Program *p, int buf) {
    return buf == NO_BUF ? 0 : (double)shape_elements(&p->bufs[buf].shape);
}

/* A convolution or matrix product in any direction: each element of y meets one filter (O, ...) of w: 2 |y| |w| / O.
 * A convolution: 2 N OH OW O (I/groups) KH KW; a matrix product: 2 N I O. */
static double product(const Program *p, int y, int w) {
    return w == NO_BUF ? 0 : 2 * elements(p, y) * elements(p, w) / (double)p->bufs[w].shape.dim[0];
}

/* Products with both matrices for each sample and step. */
static double recurrent(const Program *p, int y, int w_ih, int w_hh) {
    if (w_hh == NO_BUF) return 0;
    double samples = elements(p, y) / (double)p->bufs[w_hh].shape.dim[1];
    return 2 * samples * (elements(p, w_ih) + elements(p, w_hh));
}

/* One product of all queries of a sample with the keys that they see: T S C; row i of a causal one sees i + 1 keys. */
static double attention(const Program *p, const Op *op, int y, int q, int k) {
    int time = op->attr.attention.batch_first ? 1 : 0;
    double steps = (double)p->bufs[y].shape.dim[time], keys = (double)p->bufs[k == NO_BUF ? q : k].shape.dim[time];
    double least = keys < steps ? keys : steps;
    return 2 * elements(p, y) * (op->attr.attention.causal ? least - least * least / (2 * steps) : keys);
}

/* One operation per element of the largest operand. */
static double pointwise(const Program *p, const Op *op) {
    double most = 0;
    for (int k = 0; k < OP_IN; k++)
        if (elements(p, op->in[k]) > most) most = elements(p, op->in[k]);
    for (int k = 0; k < OP_OUT; k++)
        if (elements(p, op->out[k]) > most) most = elements(p, op->out[k]);
    return most;
}

static double flops(const Program *p, const Op *op) {
    switch (op->kind) {
    case OP_conv2d: case OP_linear: return product(p, op->out[0], op->in[1]);
    case OP_conv2d_dx: case OP_linear_dx: case OP_conv_transpose: return product(p, op->in[0], op->in[1]);
    case OP_conv2d_dw: case OP_linear_dw: return product(p, op->in[1], op->out[0]);
    case OP_rnn: return recurrent(p, op->out[0], op->in[1], op->in[2]);
    case OP_rnn_dx: return 2 * recurrent(p, op->in[4], op->in[2], op->in[3]);
    case OP_attention: return 2 * attention(p, op, op->out[0], op->in[0], op->in[1]);
    case OP_attention_dx: return 5 * attention(p, op, op->in[0], op->in[1], op->in[2]);
    case OP_view: return 0;
    default: return pointwise(p, op);
    }
}

static double traffic(const Program *p, const Op *op) {
    const OpInfo *info = op_info(op->kind);
    double bytes = 0;
    if (op->kind == OP_view) return 0;
    for (int k = 0; k < OP_IN; k++)
        if (op->in[k] != NO_BUF) bytes += (double)p->bufs[op->in[k]].bytes;
    for (int k = 0; k < OP_OUT; k++)
        if (op->out[k] != NO_BUF) bytes += (double)p->bufs[op->out[k]].bytes * (info->out[k].updated ? 2 : 1);
    return bytes;
}

void op_cost(const Program *p, Op *op) {
    if (p->failed) return;
    op->flops = flops(p, op);
    op->traffic = traffic(p, op);
}
