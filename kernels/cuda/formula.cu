/* formula.cu: the update that a script has written (math/formula.h), a launch for each parameter. A thread takes four
 * elements through all steps. The formula is a parameter of the kernel, so that all threads take each branch alike;
 * the numbers that are the same for all elements are computed by one thread of a block. */
#include "launch.h"
#include "lanes.h"
#include "math/formula.h"

enum { THREADS = 256 };

typedef struct FormulaUpdate {
    Formula f;
    OptimRule rule;
    StepState *state;         /* NULL: it is not asked for */
    const float *lr, *square; /* NULL: rule.lr; gradients are not clipped */
    const void *g;
    void *at[1 + OPTIM_STATES]; /* what the formula works on: the weight or its master, and the states */
    void *copy;               /* the 16-bit weights, if there is a master, else NULL */
    int64_t count;
    uint8_t g_type, type[1 + OPTIM_STATES], copy_type; /* DType; type: of at */
    int vectors;              /* four elements may be loaded and stored together */
} FormulaUpdate;

static_assert(sizeof(FormulaUpdate) <= 4096, "kernel parameters");

template <int N>
static __device__ void formula_at(const FormulaUpdate &u, const float *number, float unscale, int64_t i) {
    float slot[FORMULA_SLOTS][N], scalar[FORMULA_OPERANDS][N];
    const Formula &f = u.f;
    lanes_load<N>((DType)u.type[0], u.at[0], i, slot[0]);
    lanes_load<N>((DType)u.g_type, u.g, i, slot[1]);
    for (int n = 0; n < N; n++) slot[1][n] *= unscale;
    for (int k = 0; k < f.states; k++) lanes_load<N>((DType)u.type[1 + k], u.at[1 + k], i, slot[2 + k]);
    for (int k = 2 + f.states; k < f.n; k++) {
        const FormulaStep &s = f.step[k];
        const float *of[FORMULA_OPERANDS];
        if (s.scalar) continue;
        for (int j = 0; j < FORMULA_OPERANDS; j++) {
            const int from = s.fn == FORMULA_DEFAULT ? 0 : s.of[j];
            of[j] = f.step[from].scalar ? scalar[j] : slot[f.step[from].slot];
            for (int n = 0; n < N && f.step[from].scalar; n++) scalar[j][n] = number[from];
        }
        formula_block(s.fn, N, slot[s.slot], of[0], of[1], of[2], of[3]);
    }
    for (int k = 0; k <= f.states; k++)
        lanes_store<N>((DType)u.type[k], u.at[k], i, slot[f.step[f.result[k]].slot]);
    if (u.copy) lanes_store<N>((DType)u.copy_type, u.copy, i, slot[f.step[f.result[0]].slot]);
}

static __global__ void __launch_bounds__(THREADS) formula_kernel(const __grid_constant__ FormulaUpdate u) {
    __shared__ float number[FORMULA_STEPS];
    __shared__ OptimStep step;
    if (u.state && u.state->overflow) return;
    if (threadIdx.x == 0) {
        const OptimStep now = optim_step(&u.rule, u.state, u.lr, u.square);
        step = now;
        formula_numbers(&u.f, &now, number);
    }
    __syncthreads();
    const int64_t stride = (int64_t)gridDim.x * THREADS * 4;
    for (int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x); i < u.count; i += stride) {
        if (u.vectors && i + 4 <= u.count) formula_at<4>(u, number, step.unscale, i);
        else for (int64_t k = i; k < i + 4 && k < u.count; k++) formula_at<1>(u, number, step.unscale, k);
    }
}

extern "C" int k_cuda_formula(const KArgs *a, Err *e) {
    const View *w = &a->update.w, *master = &a->out[op_master(a->kind)], *weight = master->data ? master : w;
    FormulaUpdate u = {};
    assert(a->script && a->script->n && a->update.g.count == w->count && w->count > 0);
    assert(operand_is_vector(master, w->count));
    u.f = *a->script;
    u.rule = a->attr->optim.rule;
    u.state = (StepState *)a->update.state.data;
    u.lr = (const float *)a->update.lr.data;
    u.square = (const float *)a->update.square.data;
    u.g = a->update.g.data;
    u.g_type = (uint8_t)a->update.g.dtype;
    u.type[0] = (uint8_t)weight->dtype;
    u.copy = master->data ? w->data : NULL;
    u.copy_type = (uint8_t)w->dtype;
    u.count = w->count;
    u.at[0] = weight->data;
    u.vectors = lanes_fit<4>(u.g, a->update.g.dtype, 0) && lanes_fit<4>(u.copy, w->dtype, 0);
    for (int k = 0; k < u.f.states; k++) {
        u.at[1 + k] = a->out[1 + k].data;
        u.type[1 + k] = (uint8_t)a->out[1 + k].dtype;
    }
    for (int k = 0; k <= u.f.states; k++) u.vectors = u.vectors && lanes_fit<4>(u.at[k], (DType)u.type[k], 0);
    const dim3 grid(blocks_for(a, (w->count + 3) / 4, THREADS));
    return launch_op(a, e, formula_kernel, grid, dim3(THREADS), u);
}
