/* tensor.h: the formulas of tensor operations, in fp32, for every device: two operands that are broadcast, reductions
 * along dimensions, triangles. Shared with .cu files. */
#ifndef MT_TENSOR_H
#define MT_TENSOR_H

#include <math.h>

#include "strided.h"

/*     name   PyTorch */
#define BINARIES(X)  \
    X(ADD, "add") \
    X(SUB, "sub") \
    X(MUL, "mul") \
    X(DIV, "div")

typedef enum BinaryFn {
#define X(name, text) BINARY_##name,
    BINARIES(X)
#undef X
} BinaryFn;

/* second: of a gradient, that it is the second operand's */
typedef struct BinaryAttr { BinaryFn f; int32_t second; } BinaryAttr;

MT_FN float binary_value(BinaryFn f, float a, float b) {
    return f == BINARY_ADD ? a + b : f == BINARY_SUB ? a - b : f == BINARY_MUL ? a * b : a / b;
}

/* The derivative by one operand; what binary_reads says it does not read may be anything. */
MT_FN float binary_slope(BinaryFn f, bool second, float a, float b) {
    if (f == BINARY_MUL) return second ? a : b;
    if (f == BINARY_DIV) return second ? -(a / b) / b : 1.0f / b;
    return f == BINARY_SUB && second ? -1.0f : 1.0f;
}

/* Does the derivative by the first, or the second operand read that operand? */
static inline bool binary_reads(BinaryFn f, bool by_second, bool reads_second) {
    return (f == BINARY_MUL && by_second != reads_second) || (f == BINARY_DIV && (by_second || reads_second));
}

/* NORM is the square root of the sum of the squares.
 * AMAX shares its gradient among equal largest elements, MAX gives it to the first of them. */
#define REDUCTIONS(X)   \
    X(SUM,  "sum")  \
    X(MEAN, "mean") \
    X(NORM, "norm") \
    X(AMAX, "amax") \
    X(MAX,  "max")

typedef enum ReduceFn {
#define X(name, text) REDUCE_##name,
    REDUCTIONS(X)
#undef X
} ReduceFn;

/* What it is reduced along: the dimensions in which y has the size 1 and x has not. */
typedef struct ReduceAttr { ReduceFn f; } ReduceAttr;

static inline bool reduce_is_max(ReduceFn f) { return f >= REDUCE_AMAX; }
/* Does the gradient read x and y? */
static inline bool reduce_reads(ReduceFn f) { return f >= REDUCE_NORM; }

/* What is added up, and what is made of the sum. */
MT_FN float reduce_term(ReduceFn f, float x) { return f == REDUCE_NORM ? x * x : x; }
MT_FN float reduce_result(ReduceFn f, double sum) { return (float)(f == REDUCE_NORM ? sqrt(sum) : sum); }
/* The derivative of a norm y by its element x. */
MT_FN float norm_slope(float x, float y) { return y > 0.0f ? x / y : 0.0f; }

/* The larger one; a NaN stays. */
MT_FN float reduce_larger(float a, float b) { return a >= b || a != a ? a : b; }

/* The triangle of the last two dimensions that torch.tril(diagonal), or torch.triu, leaves; outside of it a number, or
 * the other operand. */
typedef struct TriangleAttr { int32_t diagonal, upper; float value; } TriangleAttr;

MT_FN bool in_triangle(const TriangleAttr *t, int64_t row, int64_t column) {
    return t->upper ? column - row >= t->diagonal : column - row <= t->diagonal;
}

#endif
