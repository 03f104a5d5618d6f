/* optim.c: the update: overflow check, step count, optimizers, loss scale. A rule makes one pass over g, w and its
 * states. */
#include "cpu.h"
#include "parallel.h"
#include "update.h"

/* ---- the step's numbers */

HOT static int finite_block(const float *g, int64_t n) {
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < n; i++) bad |= (f32_bits(g[i]) & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static void grad_check_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK];
    StepState *state = a->grad_check.state.data;
    if (finite_block(block_load(&a->grad_check.g, begin, end - begin, from), end - begin)) return;
#pragma omp atomic write
    state->overflow = 1;
}

int k_cpu_grad_check(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->grad_check.g.count, grad_check_piece);
    return OK;
}

HOT static double square_block(const float *g, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}

static double square_piece(const KArgs *a, int64_t begin, int64_t end) {
    float scratch[BLOCK];
    double sum = 0;
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = min_i64(BLOCK, end - i);
        sum += square_block(block_load(&a->grad_square.g, i, n, scratch), n);
    }
    return sum;
}

int k_cpu_grad_square_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)a, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cpu_grad_square(const KArgs *a, Err *e) {
    (void)e;
    float *square = a->grad_square.square.data;
    double before = a->attr->square.first ? 0.0 : (double)*square;
    *square = (float)(before + (double)a->attr->square.share * range_sum(a, a->grad_square.g.count, square_piece));
    return OK;
}

int k_cpu_step_begin(const KArgs *a, Err *e) {
    (void)e;
    StepState *state = a->step_begin.state.data;
    if (!state->overflow) state->step++;
    return OK;
}

int k_cpu_scale_update(const KArgs *a, Err *e) {
    (void)e;
    scaler_update(&a->attr->scaler, a->scale_update.state.data);
    return OK;
}

/* ---- the rules */

/* A RuleFn of `value`; value and states are constants wherever this is inlined. Numbers go in and out as values: an
 * array of them would keep the loop from being vectorised, and so would a store that may not happen. */
static inline __attribute__((always_inline)) void rule_loop(OptimFn *value, int states, const OptimStep *s, float *w,
                                                            const float *g, float *const *state, int64_t n) {
    const OptimStep step = *s;
    float *a = state[0], *b = state[1], *c = state[2];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        OptimNumber x = {w[i], {states > 0 ? a[i] : 0.0f, states > 1 ? b[i] : 0.0f, states > 2 ? c[i] : 0.0f}};
        x = value(&step, x, g[i] * step.unscale);
        w[i] = x.w;
        if (states > 0) a[i] = x.own[0];
        if (states > 1) b[i] = x.own[1];
        if (states > 2) c[i] = x.own[2];
    }
}

#define EACH(op, ...)                                                                                         \
    HOT static void op##_block(int states, const OptimStep *s, float *w, const float *g, float *const *state, \
                                 int64_t n) {                                                                 \
        switch (states) {                                                                                     \
        case 0: rule_loop(op##_value, 0, s, w, g, state, n); break;                                           \
        case 1: rule_loop(op##_value, 1, s, w, g, state, n); break;                                           \
        case 2: rule_loop(op##_value, 2, s, w, g, state, n); break;                                           \
        default: rule_loop(op##_value, 3, s, w, g, state, n);                                                 \
        }                                                                                                     \
    }
#include "program/optimizers.def"

RuleFn *rule_of(OpKind kind) {
#define EACH(op, ...) if (kind == OP_##op) return op##_block;
#include "program/optimizers.def"
    return NULL;
}

/* Numbers in a piece of an update, at most BLOCK. The pieces are a multiple of PARTS, so that threads share a weight as they share its
 * gradient, by equal parts: lines that pass from one processor's cache to another's take longer than all that is done with them. */
static int64_t piece_size(int64_t count) {
    enum { PARTS = 8, LINE = 16 };
    const int64_t pieces = div_up(count, BLOCK);
    return pieces <= 1 ? BLOCK : div_up(div_up(count, div_up(pieces, PARTS) * PARTS), LINE) * LINE;
}

typedef struct Update { const KArgs *a; OptimStep step; int64_t size; } Update;

/* The rule works on the fp32 master where there is one; w is then a rounded copy of it. */
static void update_piece(const void *of, int64_t i) {
    const Update *u = of;
    const KArgs *a = u->a;
    float scratch[2 + OPTIM_STATES][BLOCK], *state[OPTIM_STATES];
    const int64_t begin = i * u->size, n = min_i64(u->size, a->update.w.count - begin);
    const View *own = &a->out[1], *master = &a->out[op_master(a->kind)], *weight = master->data ? master : &a->update.w;
    float *w = block_load(weight, begin, n, scratch[0]), *g = block_load(&a->update.g, begin, n, scratch[1]);
    int states = (int)(master - own); /* of which the last ones may be absent */
    while (states > 0 && !own[states - 1].data) states--;
    for (int k = 0; k < OPTIM_STATES; k++) {
        state[k] = scratch[2 + k];
        if (k < states && own[k].data) state[k] = block_load(&own[k], begin, n, state[k]);
        else if (k < states) memset(state[k], 0, (size_t)n * sizeof *state[k]); /* absent: any number does */
    }
    float *const to = block_target(weight, begin, scratch[0]); /* all threads read weights; of states each reads its own part alone */
    if (to != w) w = memcpy(to, w, (size_t)n * sizeof *w);
    rule_of(a->kind)(states, &u->step, w, g, state, n);
    for (int k = 0; k < states; k++)
        if (own[k].data) block_store(&own[k], begin, n, state[k]);
    if (master->data) block_store(master, begin, n, w);
    block_store(&a->update.w, begin, n, w);
}

static int update_run(const KArgs *a) {
    const StepState *state = a->update.state.data;
    const View *master = &a->out[op_master(a->kind)];
    (void)master;
    assert(a->update.g.count == a->update.w.count && rule_of(a->kind) && operand_is_float(&a->update.w));
    assert(operand_is_vector(master, a->update.w.count));
    if (state && state->overflow) return OK;
    const Update u = {a, optim_step(&a->attr->optim.rule, state, a->update.lr.data, a->update.square.data), piece_size(a->update.w.count)};
    pieces_run(&u, div_up(a->update.w.count, u.size), update_piece);
    return OK;
}

#define EACH(op, ...) int k_cpu_##op(const KArgs *a, Err *e) { return (void)e, update_run(a); }
#include "program/optimizers.def"
