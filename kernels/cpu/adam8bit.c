/* adam8bit.c: Adam's update with states of 8 bits (quant8.h), block by block: a block's new states are all computed
 * before they are divided by their largest magnitude and coded. */
#include "parallel.h"
#include "program/quant8.h"
#include "update.h"

typedef struct Job {
    OptimStep step;
    View g, weight, copy;          /* copy: 16-bit weights; data NULL: absent */
    uint8_t *code[OPTIM_STATES];   /* [states], of which `states` are kept: in memory's order */
    float *scale;                  /* [states][blocks] */
    int states;
    int64_t size, blocks;          /* size: numbers of a block */
    Quant8Order order;             /* blocks are runs of PyTorch's order, which memory's may not be */
} Job;

static Job job_of(const KArgs *a) {
    const View *w = &a->adam8bit.w, *master = &a->out[op_master(a->kind)];
    Job j = {.g = a->adam8bit.g, .weight = master->data ? *master : *w, .size = a->attr->optim.rule.block_size,
             .order = quant8_order(w), .scale = a->out[OPTIM_STATES + 1].data};
    j.step = optim_step(&a->attr->optim.rule, a->adam8bit.state.data, a->adam8bit.lr.data, a->adam8bit.square.data);
    assert(j.size > 0 && j.size <= CODES_MOST && w->count % j.size == 0 && j.g.count == w->count);
    if (master->data) j.copy = *w;
    j.blocks = w->count / j.size;
    for (int k = 0; k < OPTIM_STATES && a->out[1 + k].data; k++) j.code[j.states++] = a->out[1 + k].data;
    assert(j.states > 0 && a->adam8bit.scale.count >= j.states * j.blocks);
    return j;
}

/* ---- n elements: number i is element at[i] in memory, or begin + i where `at` is NULL */

/* at[n]: where elements [begin, begin + n) of PyTorch's order lie. A channel's pixels are equally far apart. */
static void places_of(Quant8Order o, int64_t begin, int64_t n, int64_t *at) {
    for (int64_t i = 0; i < n;) {
        const int64_t first = quant8_at(o, begin + i), run = min_i64(n - i, o.pixels - (begin + i) % o.pixels);
        for (int64_t k = 0; k < run; k++) at[i++] = first + k * o.channels;
    }
}

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

/* ---- a block */

/* map: a constant wherever these are inlined. n is at most CODES_MOST. wide: codes as int, since a loop over bytes and
 * floats would be compiled into vectors of too many elements for the registers. */
static inline __attribute__((always_inline)) void decode_loop(CodeMap map, float *to, const uint8_t *code, float scale,
                                                              int64_t n) {
    int wide[CODES_MOST];
    for (int64_t i = 0; i < n; i++) wide[i] = code[i];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = code_value(map, wide[i]) * scale;
}

static inline __attribute__((always_inline)) void encode_loop(CodeMap map, uint8_t *to, const float *x, float inverse,
                                                              int64_t n) {
    int wide[CODES_MOST];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) wide[i] = code_of(map, x[i] * inverse);
    for (int64_t i = 0; i < n; i++) to[i] = (uint8_t)wide[i];
}

HOT static void decode(CodeMap map, float *to, const uint8_t *code, float scale, int64_t n) {
    if (map == CODES_SIGNED) decode_loop(CODES_SIGNED, to, code, scale, n);
    else decode_loop(CODES_POSITIVE, to, code, scale, n);
}

HOT static void encode(CodeMap map, uint8_t *to, const float *x, float inverse, int64_t n) {
    if (map == CODES_SIGNED) encode_loop(CODES_SIGNED, to, x, inverse, n);
    else encode_loop(CODES_POSITIVE, to, x, inverse, n);
}

HOT static uint32_t largest(const float *x, int64_t n) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = quant8_magnitude(x[i]);
        most = most < magnitude ? magnitude : most;
    }
    return most;
}

static CodeMap map_of(int state) { return state == 0 ? CODES_SIGNED : CODES_POSITIVE; }

static void block_run(const void *of, int64_t block) {
    const Job *j = of;
    float scratch[2 + OPTIM_STATES][CODES_MOST], *own[OPTIM_STATES];
    uint8_t codes[OPTIM_STATES][CODES_MOST], *code[OPTIM_STATES];
    int64_t places[CODES_MOST], *at = j->order.pixels > 1 ? places : NULL;
    const int64_t n = j->size, begin = block * n;
    if (at) places_of(j->order, begin, n, at);
    for (int k = 0; k < j->states; k++) {
        own[k] = scratch[2 + k];
        code[k] = take_codes(j->code[k], at, begin, n, codes[k]);
        decode(map_of(k), own[k], code[k], j->scale[k * j->blocks + block], n);
    }
    float *w = take(&j->weight, at, begin, n, scratch[0]), *g = take(&j->g, at, begin, n, scratch[1]);
    rule_of(OP_adam)(j->states, &j->step, w, g, own, n);
    for (int k = 0; k < j->states; k++) {
        const float scale = quant8_scale(largest(own[k], n));
        encode(map_of(k), code[k], own[k], 1.0f / scale, n);
        for (int64_t i = 0; i < n && at; i++) j->code[k][at[i]] = code[k][i];
        j->scale[k * j->blocks + block] = scale;
    }
    put(&j->weight, at, begin, n, w);
    if (j->copy.data) put(&j->copy, at, begin, n, w);
}

int k_cpu_adam8bit(const KArgs *a, Err *e) {
    const StepState *state = a->adam8bit.state.data;
    const Job j = job_of(a);
    (void)e;
    if (!state->overflow) pieces_run(&j, j.blocks, block_run);
    return OK;
}
