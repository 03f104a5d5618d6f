#include "reference.h"

/* Weight (o, i) of a matrix of `columns`: see ops.def. derived: absmax, quant_map, nested_absmax, nested_quant_map, nested_offset */
double ref_quantized(const Tensor *w, const Tensor *derived, int64_t o, int64_t i, int64_t columns) {
    const Tensor *absmaxes = derived, *map = derived + 1, *nested = derived + 2, *nested_map = derived + 3, *offset = derived + 4;
    const int64_t at = o * columns + i, byte = (int64_t)w->at[map->at ? at / 2 : at];
    if (!map->at) return (double)(byte < 128 ? byte : byte - 256) * absmaxes->at[o] / 127;
    const int64_t code = at % 2 ? byte % 16 : byte / 16, block = at / 64;
    double absmax = absmaxes->at[block];
    if (nested->at) absmax = nested_map->at[(int64_t)absmax] * nested->at[block / 256] + offset->at[0];
    return map->at[code] * absmax;
}

static double weight(const Ref *r, int64_t o, int64_t i, int64_t columns) { return ref_quantized(&r->in[1], &r->in[2], o, i, columns); }

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
