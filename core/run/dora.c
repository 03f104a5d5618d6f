#include "dora.h"

#include <math.h>

#include "math/dora.h"

/* The place of number i of output feature o */
static int64_t place(const LowRank *l, int64_t o, int64_t i) { return l->turned ? i * l->out + o : o * l->in + i; }

void low_rank_add(const LowRank *l, float *w) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < l->out; o++)
        for (int64_t k = 0; k < l->rank; k++) {
            const float times = l->scaling * l->b[o * l->rank + k];
            for (int64_t i = 0; i < l->in && times != 0.0f; i++) {
                float *at = &w[place(l, o, i)];
                *at = dora_weight(*at, times, l->a[k * l->in + i]);
            }
        }
}

void row_norms(const LowRank *l, const float *w, float *norm) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < l->out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < l->in; i++) sum += (double)w[place(l, o, i)] * (double)w[place(l, o, i)];
        norm[o] = (float)sqrt(sum);
    }
}

void rows_scale(const LowRank *l, float *w, const float *factor) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < l->out; o++)
        for (int64_t i = 0; i < l->in; i++) w[place(l, o, i)] *= factor[o];
}
