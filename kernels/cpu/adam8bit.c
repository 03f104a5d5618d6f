/* adam8bit.c: Adam's update with states of 8 bits (codes.h), block by block: what a block's new states are divided by is
 * known when all of them are. */
#include "codes.h"
#include "cpu.h"
#include "loops.h"

typedef struct Job {
    OptimStep step;
    View g, weight, copy;          /* copy: 16-bit weights; data NULL: absent */
    uint8_t *code[OPTIM_STATES];
    float *scale;                  /* [states][blocks] */
    int states;
    int64_t size, blocks;          /* size: of a block */
    CodesOrder order;
} Job;

static Job job_of(const KArgs *a) {
    const View *w = &a->out[0], *master = &a->out[op_master(a->kind)];
    Job j = {.g = a->in[0], .weight = master->data ? *master : *w, .size = a->attr->optim.rule.block_size,
             .order = codes_order(w), .scale = a->out[OPTIM_STATES + 1].data};
    j.step = optim_step(&a->attr->optim.rule, a->in[1].data, a->in[2].data, a->in[3].data);
    if (master->data) j.copy = *w;
    j.blocks = w->count / j.size;
    for (; j.states < OPTIM_STATES && a->out[1 + j.states].data; j.states++) j.code[j.states] = a->out[1 + j.states].data;
    return j;
}

/* ---- elements at[n], or where at is NULL n of them from `begin` on */

static float *take(const View *v, const int64_t *at, int64_t begin, int64_t n, float *scratch) {
    if (!at) return block_load(v, begin, n, scratch);
    for (int64_t i = 0; i < n; i++) scratch[i] = dtype_load(v->dtype, v->data, (size_t)at[i]);
    return scratch;
}

static void put(const View *v, const int64_t *at, int64_t begin, int64_t n, const float *values) {
    if (!at) block_store(v, begin, n, values);
    for (int64_t i = 0; i < n && at; i++) dtype_store(v->dtype, v->data, (size_t)at[i], values[i]);
}

static uint8_t *take_codes(uint8_t *codes, const int64_t *at, int64_t begin, int64_t n, uint8_t *scratch) {
    if (!at) return codes + begin;
    for (int64_t i = 0; i < n; i++) scratch[i] = codes[at[i]];
    return scratch;
}

static void put_codes(uint8_t *codes, const int64_t *at, int64_t n, const uint8_t *values) {
    for (int64_t i = 0; i < n && at; i++) codes[at[i]] = values[i];
}

/* ---- a block */

/* states: a constant wherever this is inlined; scale: of each; own: the new states */
static inline __attribute__((always_inline)) void step_loop(int states, const OptimStep *s, float *w, const float *g,
                                                            uint8_t *const *code, const float *scale,
                                                            float (*own)[CODES_MOST], int64_t n) {
    const OptimStep step = *s;
    const float scale0 = scale[0], scale1 = scale[1], scale2 = states > 2 ? scale[2] : 0.0f;
    const uint8_t *code0 = code[0], *code1 = code[1], *code2 = states > 2 ? code[2] : code[1];
    float *own0 = own[0], *own1 = own[1], *own2 = own[2];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        OptimNumber x = {w[i], {scale0 * code_value(CODES_SIGNED, code0[i]), scale1 * code_value(CODES_POSITIVE, code1[i]),
                                states > 2 ? scale2 * code_value(CODES_POSITIVE, code2[i]) : 0.0f}};
        x = adam_value(&step, x, g[i] * step.unscale);
        w[i] = x.w;
        own0[i] = x.own[0];
        own1[i] = x.own[1];
        if (states > 2) own2[i] = x.own[2];
    }
}

HOT static void step_block(int states, const OptimStep *s, float *w, const float *g, uint8_t *const *code,
                           const float *scale, float (*own)[CODES_MOST], int64_t n) {
    if (states > 2) step_loop(3, s, w, g, code, scale, own, n);
    else step_loop(2, s, w, g, code, scale, own, n);
}

HOT static uint32_t largest(const float *x, int64_t n) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) most = codes_magnitude(x[i]) > most ? codes_magnitude(x[i]) : most;
    return most;
}

HOT static void encode(CodeMap map, uint8_t *to, const float *x, float inverse, int64_t n) {
    if (map == CODES_SIGNED) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = (uint8_t)code_of(CODES_SIGNED, x[i] * inverse);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = (uint8_t)code_of(CODES_POSITIVE, x[i] * inverse);
    }
}

static void block_run(const Job *j, int64_t block) {
    float scratch[2][CODES_MOST], own[OPTIM_STATES][CODES_MOST], scale[OPTIM_STATES];
    uint8_t codes[OPTIM_STATES][CODES_MOST], *code[OPTIM_STATES];
    int64_t places[CODES_MOST], *at = j->order.pixels > 1 ? places : NULL;
    const int64_t n = j->size, begin = block * n;
    for (int64_t i = 0; i < n && at; i++) at[i] = codes_at(j->order, begin + i);
    for (int k = 0; k < j->states; k++) {
        code[k] = take_codes(j->code[k], at, begin, n, codes[k]);
        scale[k] = j->scale[k * j->blocks + block];
    }
    float *w = take(&j->weight, at, begin, n, scratch[0]), *g = take(&j->g, at, begin, n, scratch[1]);
    step_block(j->states, &j->step, w, g, code, scale, own, n);
    for (int k = 0; k < j->states; k++) {
        scale[k] = j->scale[k * j->blocks + block] = codes_scale(largest(own[k], n));
        encode(k == 0 ? CODES_SIGNED : CODES_POSITIVE, code[k], own[k], 1.0f / scale[k], n);
        put_codes(j->code[k], at, n, code[k]);
    }
    put(&j->weight, at, begin, n, w);
    if (j->copy.data) put(&j->copy, at, begin, n, w);
}

int k_cpu_adam8bit(const KArgs *a, Err *e) {
    const StepState *state = a->in[1].data;
    const Job j = job_of(a);
    (void)e;
#pragma omp parallel for schedule(static) if (a->out[0].count > 4 * BLOCK)
    for (int64_t b = 0; b < j.blocks; b++)
        if (!state->overflow) block_run(&j, b);
    return OK;
}
