/* formula.c: the update that a script has written (math/formula.h). A piece goes through the steps in chunks, whose
 * values stay in the first-level cache: a step costs as much as an addition of two short arrays, and what a large
 * parameter waits for is its memory, as in the other updates. */
#include "cpu.h"
#include "parallel.h"
#include "vector_math.h"

#include "math/formula.h"

/* PIECE: numbers that are the same for all elements are computed once for that many. */
enum { CHUNK = 512, PIECE = 16384 };

HOT static void run_step(int fn, int n, float *y, const float *const *of) {
    formula_block(fn, n, y, of[0], of[1], of[2], of[3]);
}

typedef struct Values {
    const Formula *f;
    float number[FORMULA_STEPS][CHUNK]; /* of scalar steps, side by side */
    float slot[FORMULA_SLOTS][CHUNK];
    float *at[FORMULA_STEPS];           /* each step's value */
} Values;

static void run_chunk(Values *v, int n) {
    for (int i = formula_inputs(v->f); i < v->f->n; i++) {
        const FormulaStep *s = &v->f->step[i];
        const float *of[FORMULA_OPERANDS];
        if (s->scalar) continue;
        for (int k = 0; k < FORMULA_OPERANDS; k++) of[k] = v->at[s->fn == FORMULA_DEFAULT ? 0 : s->of[k]];
        run_step(s->fn, n, v->at[i], of);
    }
}

static void update_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Formula *f = a->script;
    const View *master = &a->formula.master, *w = master->data ? master : &a->formula.w;
    float numbers[FORMULA_STEPS];
    Values v;
    const OptimStep step = optim_step(&a->attr->optim.rule, a->update.state.data, a->update.lr.data, a->update.square.data);
    formula_numbers(f, &step, numbers);
    v.f = f;
    for (int i = 0; i < f->n; i++) {
        v.at[i] = f->step[i].scalar ? v.number[i] : v.slot[f->step[i].slot];
        for (int k = 0; f->step[i].scalar && k < CHUNK; k++) v.number[i][k] = numbers[i];
    }
    for (int64_t i = begin; i < end; i += CHUNK) {
        const int n = (int)min_i64(CHUNK, end - i);
        float *g = block_load(&a->update.g, i, n, v.slot[1]);
        for (int k = 0; k < n; k++) v.slot[1][k] = g[k] * step.unscale;
        v.at[0] = block_load(w, i, n, v.slot[0]);
        for (int k = 0; k < f->states; k++) v.at[2 + k] = block_load(&a->out[1 + k], i, n, v.slot[2 + k]);
        run_chunk(&v, n);
        for (int k = 0; k < f->states; k++) block_store(&a->out[1 + k], i, n, v.at[f->result[1 + k]]);
        block_store(w, i, n, v.at[f->result[0]]);
        if (master->data) block_store(&a->update.w, i, n, v.at[f->result[0]]);
    }
}

int k_cpu_formula(const KArgs *a, Err *e) {
    const StepState *state = a->update.state.data;
    (void)e;
    assert(a->script && a->script->n && a->update.g.count == a->update.w.count && operand_is_float(&a->update.w));
    assert(operand_is_vector(&a->out[op_master(a->kind)], a->update.w.count));
    if (!state || !state->overflow) range_run(a, a->update.w.count, PIECE, update_piece);
    return OK;
}
