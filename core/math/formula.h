/* formula.h: an update that a script has written as a formula (optim.Rule): its steps, and how they are computed, once
 * for every device. A step is one operation, as PyTorch would call it, on what earlier steps gave. Steps that depend on
 * neither parameter nor gradient nor state are `scalar`: one number for all elements, computed in double. The others are
 * computed in fp32, for a block of elements at a time. Shared with .cu files. */
#ifndef MT_FORMULA_H
#define MT_FORMULA_H

#include "math/optim.h"

enum {
    FORMULA_STEPS = 96, FORMULA_NUMBERS = 48, FORMULA_OPERANDS = 4, FORMULA_SLOTS = 16, FORMULA_NAME = 24,
    FORMULA_TEXT = 8192, /* most characters of a formula's text */
    /* Where a step's storage goes in PyTorch's for-loop over parameters: after the step of that number; KEPT: it
     * becomes a state; LATER + n: after the first n steps of the next parameter's turn, in which its variable is bound
     * again */
    FORMULA_LATER = 128, FORMULA_KEPT = 255
};

/* What a formula is made of; of a state its number. DEFAULT: zeros in whose place PyTorch finds the state from the
 * second step on: state.get("m", torch.zeros_like(p)) */
#define FORMULA_INPUTS(X) X(PARAM, "param") X(GRAD, "grad") X(STATE, "state") X(DEFAULT, "default") X(LR, "lr") \
    X(STEP, "step") X(NUMBER, "number")

/*  name  text  PyTorch's  operands  value: R(...) is the function of math.h for the type of a, b, c, d. The larger and the
 *  smaller of two keep a NaN. */
#define FORMULA_FNS(X)                                                                  \
    X(ADD, "add", "add", 2, a + b)                                                      \
    X(SUB, "sub", "sub", 2, a - b)                                                      \
    X(MUL, "mul", "mul", 2, a * b)                                                      \
    X(DIV, "div", "div", 2, a / b)                                                      \
    X(ADD_SCALED, "add_scaled", "add", 3, a + c * b)                                    \
    X(SUB_SCALED, "sub_scaled", "sub", 3, a - c * b)                                    \
    X(ADDCMUL, "addcmul", "addcmul", 4, a + d * b * c)                                  \
    X(ADDCDIV, "addcdiv", "addcdiv", 4, a + d * (b / c))                                \
    X(LERP, "lerp", "lerp", 3, c < 0.5f ? a + c * (b - a) : b - (b - a) * (1 - c))      \
    X(POW, "pow", "pow", 2, R(pow)(a, b))                                               \
    X(SQUARE, "square", "pow", 1, a * a)                                                \
    X(NEG, "neg", "neg", 1, -a)                                                         \
    X(ABS, "abs", "abs", 1, R(fabs)(a))                                                 \
    X(SIGN, "sign", "sign", 1, (a > 0 ? 1.0f : 0.0f) - (a < 0 ? 1.0f : 0.0f))           \
    X(SQRT, "sqrt", "sqrt", 1, R(sqrt)(a))                                              \
    X(RSQRT, "rsqrt", "rsqrt", 1, 1 / R(sqrt)(a))                                       \
    X(RECIPROCAL, "reciprocal", "reciprocal", 1, 1 / a)                                 \
    X(EXP, "exp", "exp", 1, R(exp)(a))                                                  \
    X(LOG, "log", "log", 1, R(log)(a))                                                  \
    X(MAXIMUM, "maximum", "maximum", 2, a >= b || a != a ? a : b)                       \
    X(MINIMUM, "minimum", "minimum", 2, a <= b || a != a ? a : b)                       \
    X(CLAMP, "clamp", "clamp", 3, (a < b ? b : a) > c ? c : a < b ? b : a)              \
    X(GT, "gt", "gt", 2, a > b ? 1.0f : 0.0f)                                           \
    X(GE, "ge", "ge", 2, a >= b ? 1.0f : 0.0f)                                          \
    X(LT, "lt", "lt", 2, a < b ? 1.0f : 0.0f)                                           \
    X(LE, "le", "le", 2, a <= b ? 1.0f : 0.0f)                                          \
    X(EQ, "eq", "eq", 2, a == b ? 1.0f : 0.0f)                                          \
    X(NE, "ne", "ne", 2, a != b ? 1.0f : 0.0f)                                          \
    X(WHERE, "where", "where", 3, a != 0 ? b : c)                                       \
    X(CLONE, "clone", "clone", 1, a)                                                    \
    X(COPY, "copy", "copy_", 2, (void)a, b)                                             \
    X(ZEROS, "zeros_like", "zeros_like", 0, (void)a, 0)

typedef enum FormulaFn {
#define X(name, ...) FORMULA_##name,
    FORMULA_FNS(X) FORMULA_INPUTS(X)
#undef X
    FORMULA_FN_COUNT
} FormulaFn;

/* Its result is of one byte in PyTorch */
static inline bool formula_is_bool(FormulaFn fn) { return fn >= FORMULA_GT && fn <= FORMULA_NE; }

/* of: the steps whose values it reads; of STATE and DEFAULT the state's number, of NUMBER the place among the numbers.
 * slot: where its block lies while it is computed; no two values that are needed at once share one. */
typedef struct FormulaStep {
    uint8_t fn, of[FORMULA_OPERANDS];
    uint8_t scalar, inplace; /* inplace: PyTorch writes into operand 0 */
    uint8_t slot, until;     /* until: see FORMULA_LATER */
} FormulaStep;

/* The first steps are PARAM, GRAD, and STATE for each state, whose slots have the same numbers and are theirs alone. */
typedef struct Formula {
    int32_t n, states, slots;
    uint8_t result[1 + OPTIM_STATES];   /* the steps that give the parameter's new value and the states' */
    uint8_t replaced[OPTIM_STATES];     /* until when PyTorch needs what the state was before; KEPT: it stays */
    double number[FORMULA_NUMBERS];
    FormulaStep step[FORMULA_STEPS];
    char state_name[OPTIM_STATES][FORMULA_NAME];
} Formula;

static inline int formula_inputs(const Formula *f) { return 2 + f->states; }

/* ---- numbers that are the same for all elements */

MT_FN double formula_number(int fn, double a, double b, double c, double d) {
    (void)a, (void)b, (void)c, (void)d;
#define R(function) function
    switch (fn) {
#define X(name, text, aten, operands, ...) case FORMULA_##name: return __VA_ARGS__;
        FORMULA_FNS(X)
#undef X
    default: return 0;
    }
#undef R
}

/* value[f->n]: of the scalar steps; the others are left as they are. s: optim_step's */
MT_FN void formula_numbers(const Formula *f, const OptimStep *s, float *value) {
    double exact[FORMULA_STEPS];
    for (int i = 0; i < f->n; i++) {
        const FormulaStep *p = &f->step[i];
        if (!p->scalar) continue;
        exact[i] = p->fn == FORMULA_LR       ? (double)s->rule.lr
                   : p->fn == FORMULA_STEP   ? (double)s->t
                   : p->fn == FORMULA_NUMBER ? f->number[p->of[0]]
                                             : formula_number(p->fn, exact[p->of[0]], exact[p->of[1]], exact[p->of[2]], exact[p->of[3]]);
        value[i] = (float)exact[i];
    }
}

/* ---- a block of elements */

#if defined __CUDA_ARCH__
#define FORMULA_LOOP UNROLLED(8)
#elif defined __cplusplus /* emulated, or the host's part of a .cu file */
#define FORMULA_LOOP
#else
#define FORMULA_LOOP _Pragma("omp simd")
#endif

/* y[i] = fn(a[i], b[i], c[i], d[i]) for n elements. Operands that fn lacks may be any array of as many; y may be one of
 * the operands. */
MT_FN void formula_block(int fn, int n, float *y, const float *of_a, const float *of_b, const float *of_c, const float *of_d) {
#define R(function) function##f
    switch (fn) {
#define X(name, text, aten, operands, ...)                                      \
    case FORMULA_##name:                                                        \
        FORMULA_LOOP                                                            \
        for (int i = 0; i < n; i++) {                                           \
            const float a = of_a[i], b = of_b[i], c = of_c[i], d = of_d[i];     \
            (void)a, (void)b, (void)c, (void)d;                                 \
            y[i] = (__VA_ARGS__);                                               \
        }                                                                       \
        break;
        FORMULA_FNS(X)
#undef X
    case FORMULA_DEFAULT:
        for (int i = 0; i < n; i++) y[i] = 0;
        break;
    default: break;
    }
#undef R
}

#endif
