#include <math.h>
#include <stdlib.h>

#include "reference.h"

enum { CODES = 256 };

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
    double *const code[OPTIM_STATES] = {r->adam8bit.exp_avg.at, r->adam8bit.exp_avg_sq.at,
                                        r->adam8bit.max_exp_avg_sq.at};
    double *scale = r->adam8bit.scale.at, *own[OPTIM_STATES], value[OPTIM_STATES][CODES];
    const int64_t n = r->adam8bit.w.count, size = r->attr->optim.rule.block_size, blocks = n / size;
    Ref adam = *r;
    if (r->state->overflow) return;
    for (int k = 0; k < OPTIM_STATES && code[k]; k++) {
        values_of(k == 0, value[k]);
        own[k] = malloc((size_t)n * sizeof *own[k]);
        if (!own[k]) exit(2);
        for (int64_t i = 0; i < n; i++) own[k][i] = value[k][(int)code[k][i]] * scale[k * blocks + i / size];
    }
    adam.adam.exp_avg.at = own[0];
    adam.adam.exp_avg_sq.at = own[1];
    if (code[2]) adam.adam.max_exp_avg_sq.at = own[2];
    adam.adam.master = r->adam8bit.master;
    ref_adam(&adam);
    for (int k = 0; k < OPTIM_STATES && code[k]; k++) {
        for (int64_t b = 0; b < blocks; b++)
            encode(value[k], own[k] + b * size, size, code[k] + b * size, &scale[k * blocks + b]);
        free(own[k]);
    }
}
