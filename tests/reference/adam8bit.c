#include <math.h>
#include <stdlib.h>

#include "reference.h"

enum { CODES = 256, SCALE = 4 };

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* value[CODES]: by code; 0, 1, and in each of seven decades the middles of equal parts of 0.1 .. 1 */
static void values_of(bool negative, double *value) {
    int n = 0;
    value[n++] = 0;
    value[n++] = 1;
    for (int decade = 0; decade < 7; decade++) {
        const int parts = (negative ? 1 : 2) << decade;
        for (int k = 0; k < parts; k++) {
            const double x = pow(10, decade - 6) * (0.1 + 0.9 * (k + 0.5) / parts);
            value[n++] = x;
            if (negative) value[n++] = -x;
        }
    }
    qsort(value, CODES, sizeof *value, by_size);
}

static int nearest(const double *value, double x) {
    int best = 0;
    for (int c = 1; c < CODES; c++)
        if (fabs(value[c] - x) <= fabs(value[best] - x)) best = c;
    return best;
}

static void encode(const double *value, const double *x, int64_t n, double *code, double *scale) {
    *scale = 1e-12;
    for (int64_t i = 0; i < n; i++) *scale = fmax(*scale, fabs(x[i]));
    for (int64_t i = 0; i < n; i++) code[i] = nearest(value, x[i] / *scale);
}

/* As in torchao: decodes the states, makes a step of Adam, and encodes the states again, block by block. */
void ref_adam8bit(Ref *r) {
    const int64_t n = r->adam8bit.w.count, size = r->attr->optim.rule.block_size, blocks = n / size;
    Ref adam = *r;
    double value[OPTIM_STATES][CODES];
    if (r->state->overflow) return;
    for (int k = 0; k < OPTIM_STATES && r->out[1 + k].at; k++) {
        values_of(k == 0, value[k]);
        adam.out[1 + k].at = malloc((size_t)n * sizeof(double));
        if (!adam.out[1 + k].at) exit(2);
        for (int64_t i = 0; i < n; i++)
            adam.out[1 + k].at[i] = value[k][(int)r->out[1 + k].at[i]] * r->out[SCALE].at[k * blocks + i / size];
    }
    adam.out[SCALE] = r->out[SCALE + 1]; /* the master */
    ref_adam(&adam);
    for (int k = 0; k < OPTIM_STATES && r->out[1 + k].at; k++) {
        for (int64_t b = 0; b < blocks; b++)
            encode(value[k], adam.out[1 + k].at + b * size, size, r->out[1 + k].at + b * size,
                   &r->out[SCALE].at[k * blocks + b]);
        free(adam.out[1 + k].at);
    }
}
