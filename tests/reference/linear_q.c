#include "reference.h"

/* Weight (o, i) of a matrix of `columns`: see ops.def. r->in: w, absmax, quant_map, nested_absmax, nested_quant_map,
 * nested_offset from 1 on. */
static double weight(const Ref *r, int64_t o, int64_t i, int64_t columns) {
    const int64_t at = o * columns + i, byte = (int64_t)r->linear_q.w.at[r->linear_q.quant_map.at ? at / 2 : at];
    if (!r->linear_q.quant_map.at) return (double)(byte < 128 ? byte : byte - 256) * r->linear_q.absmax.at[o] / 127;
    const int64_t code = at % 2 ? byte % 16 : byte / 16, block = at / 64;
    double absmax = r->linear_q.absmax.at[block];
    if (r->linear_q.nested_absmax.at)
        absmax = r->linear_q.nested_quant_map.at[(int64_t)absmax] * r->linear_q.nested_absmax.at[block / 256] +
                 r->linear_q.nested_offset.at[0];
    return r->linear_q.quant_map.at[code] * absmax;
}

static int64_t last(const Tensor *t) { return t->shape.dim[t->shape.rank - 1]; }

void ref_linear_q(Ref *r) {
    const int64_t in = last(&r->linear_q.x), out = last(&r->linear_q.y), n = r->linear_q.x.count / in;
    for (int64_t k = 0; k < n; k++)
        for (int64_t o = 0; o < out; o++) {
            double sum = r->linear_q.b.at ? r->linear_q.b.at[o] : 0;
            for (int64_t i = 0; i < in; i++) sum += r->linear_q.x.at[k * in + i] * weight(r, o, i, in);
            r->linear_q.y.at[k * out + o] = sum;
        }
}

void ref_linear_q_dx(Ref *r) {
    const int64_t in = last(&r->linear_q_dx.dx), out = last(&r->linear_q_dx.dy), n = r->linear_q_dx.dy.count / out;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) sum += r->linear_q_dx.dy.at[k * out + o] * weight(r, o, i, in);
            r->linear_q_dx.dx.at[k * in + i] = sum;
        }
}
