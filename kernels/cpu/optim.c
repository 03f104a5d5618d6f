/* optim.c: the update: overflow check, step count, SGD, Adam, loss scale. One pass over g, w and the optimizer's
 * buffers. */
#include "cpu.h"
#include "loops.h"

/* ---- the step's numbers */

HOT static int finite_block(const float *g, int64_t n) {
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < n; i++) bad |= (f32_bits(g[i]) & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static void grad_check_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK];
    StepState *state = a->out[0].data;
    if (finite_block(block_load(&a->in[0], begin, end - begin, from), end - begin)) return;
#pragma omp atomic write
    state->overflow = 1;
}

int k_cpu_grad_check(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->in[0].count, grad_check_piece);
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
        sum += square_block(block_load(&a->in[0], i, n, scratch), n);
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
    float *square = a->out[0].data;
    double before = a->attr->square.first ? 0.0 : (double)*square;
    *square = (float)(before + range_sum(a, a->in[0].count, square_piece));
    return OK;
}

int k_cpu_step_begin(const KArgs *a, Err *e) {
    (void)e;
    StepState *state = a->out[0].data;
    if (!state->overflow) state->step++;
    return OK;
}

int k_cpu_scale_update(const KArgs *a, Err *e) {
    (void)e;
    scaler_update(&a->attr->scaler, a->out[0].data);
    return OK;
}

/* ---- the rules */

/* What is the same for all elements of one update. */
typedef struct Update {
    OptimRule rule;
    float unscale;               /* 1 / loss scale, and clipping by the norm */
    AdamStep adam;
    int first;                   /* SGD: this update starts the momentum buffer */
} Update;

HOT static void sgd_block(const Update *u, float *w, const float *g, float *v, int64_t n) {
    const OptimRule o = u->rule;
    const float unscale = u->unscale;
    const int first = u->first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float velocity = v[i]; /* a copy, since a store that may not happen keeps the loop from being vectorised */
        w[i] = sgd_value(&o, w[i], g[i] * unscale, &velocity, first);
        v[i] = velocity;
    }
}

HOT static void adam_block(const Update *u, float *w, const float *g, float *m, float *v, int64_t n) {
    const OptimRule o = u->rule;
    const float unscale = u->unscale;
    const AdamStep step = u->adam;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        w[i] = adam_value(&o, w[i], g[i] * unscale, &m[i], &v[i], step);
}

/* NULL: sgd without loss scaling. */
static const StepState *state_of(const KArgs *a) { return a->in[1].data; }

static Update update_of(const KArgs *a) {
    const StepState *state = state_of(a);
    Update u = {a->attr->optim.rule, 1, {0, 0}, 0};
    if (state) u.unscale = 1.0f / state->loss_scale;
    if (a->in[2].data) u.rule.lr = *(const float *)a->in[2].data;
    if (a->in[3].data) u.unscale = clip_factor(&u.rule, u.unscale, *(const float *)a->in[3].data);
    u.first = state && state->step == 1;
    if (a->kind == OP_adam) u.adam = adam_step(&u.rule, state->step);
    return u;
}

/* Outputs are w, v, master or w, m, v, master. The rule works on the master where there is one. */
static void update_piece(const KArgs *a, int64_t begin, int64_t end) {
    float scratch[4][BLOCK];
    int64_t n = end - begin;
    int buffers = a->kind == OP_adam ? 2 : 1;
    const View *master = &a->out[1 + buffers], *weight = master->data ? master : &a->out[0];
    Update u = update_of(a);
    float *w = block_load(weight, begin, n, scratch[0]), *buffer[2], *g = block_load(&a->in[0], begin, n, scratch[3]);
    for (int k = 0; k < buffers; k++) {
        buffer[k] = scratch[1 + k];
        if (a->out[1 + k].data) buffer[k] = block_load(&a->out[1 + k], begin, n, buffer[k]);
        else memset(buffer[k], 0, (size_t)n * sizeof *buffer[k]); /* SGD without momentum: never used */
    }
    if (buffers == 2) adam_block(&u, w, g, buffer[0], buffer[1], n);
    else sgd_block(&u, w, g, buffer[0], n);
    for (int k = 0; k < buffers; k++)
        if (a->out[1 + k].data) block_store(&a->out[1 + k], begin, n, buffer[k]);
    if (master->data) block_store(master, begin, n, w);
    block_store(&a->out[0], begin, n, w);
}

static int update_run(const KArgs *a) {
    if (!state_of(a) || !state_of(a)->overflow) blocks_run(a, a->out[0].count, update_piece);
    return OK;
}

int k_cpu_sgd(const KArgs *a, Err *e) { return (void)e, update_run(a); }
int k_cpu_adam(const KArgs *a, Err *e) { return (void)e, update_run(a); }
