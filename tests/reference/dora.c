#include <math.h>

#include "reference.h"

void ref_dora_norm(Ref *r) {
    const Tensor *a = &r->dora_norm.a, *b = &r->dora_norm.b;
    const int64_t rank = a->shape.dim[0], in = a->shape.dim[1], out = b->shape.dim[0];
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++) {
            double w = r->dora_norm.absmax.at ? ref_quantized(&r->in[1], &r->in[2], o, i, in) : r->dora_norm.w.at[o * in + i];
            for (int64_t k = 0; k < rank; k++) w += r->attr->dora.scaling * b->at[o * rank + k] * a->at[k * in + i];
            sum += w * w;
        }
        r->dora_norm.norm.at[o] = sqrt(sum);
    }
}

static double bias_at(const Tensor *b, int64_t i) { return b->at ? b->at[i] : 0; }

void ref_dora(Ref *r) {
    const int64_t features = r->dora.norm.count;
    for (int64_t i = 0; i < r->dora.x.count; i++) {
        const double bias = bias_at(&r->dora.b, i % features), factor = r->dora.magnitude.at[i % features] / r->dora.norm.at[i % features];
        r->dora.y.at[i] = (r->dora.x.at[i] - bias) * factor + bias;
    }
}

void ref_dora_dm(Ref *r) {
    const int64_t features = r->dora_dm.norm.count;
    for (int64_t f = 0; f < features; f++) {
        double sum = 0;
        for (int64_t i = f; i < r->dora_dm.x.count; i += features) sum += r->dora_dm.dy.at[i] * (r->dora_dm.x.at[i] - bias_at(&r->dora_dm.b, f));
        r->dora_dm.dm.at[f] = sum / r->dora_dm.norm.at[f];
    }
}
