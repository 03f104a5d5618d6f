/* linear.h: a linear layer's op in a matrix product's words, and the ways in which it can be run. linear.c knows what
 * each way does and runs it. linear_choose.c says what can be chosen between. Shapes: x (N, I), w (O, I), b (O), y
 * (N, O); leading dimensions of x and y are all part of N. */
#ifndef MT_LINEAR_H
#define MT_LINEAR_H

#include "gemm.h"

/*   FUSED    a library's product, which also does bias and ReLU, or the bias's gradient
 *   PLAIN    a library's product, and own kernels after it for all else
 *   SMALL_N  own kernels alone, where there are few outputs */
typedef enum LinearWay { LINEAR_FUSED, LINEAR_PLAIN, LINEAR_SMALL_N, LINEAR_WAYS } LinearWay;
extern const char *const linear_ways[LINEAR_WAYS];

/* A prepared op. Its workspace: [`before`: rows of the product in fp32, or the bias's copy | the product's own]. */
typedef struct LinearState {
    CudaState base;
    LinearWay way;
    /* all that follows but `workspace` is used by FUSED and PLAIN only */
    Gemm gemm;      /* m: rows at a time */
    GemmPlan *plan; /* NULL: the device is not here */
    GemmPlan *rest; /* of the rows that are left at the end; NULL: there are none */
    bool wide;      /* the product goes to the workspace in fp32 */
    size_t before, workspace; /* bytes; workspace: of the whole op */
} LinearState;

/* The op's product, with the epilogue that does most of the op */
Gemm linear_gemm(const KArgs *a);
/* Bytes of the copy of the bias in y's type that this epilogue reads; 0: it reads the bias itself, or none. */
size_t linear_copy(const KArgs *a, GemmEpilogue epilogue);
/* Do kernels have to follow a forward product with this epilogue? */
bool linear_leaves(const KArgs *a, GemmEpilogue epilogue);
int linear_run(const KArgs *a, Err *e); /* any of the three ops */
/* The op's name in picks, which has all that the choice depends on: the product, the operands' types, the activation. */
void linear_text(const KArgs *a, char text[PICK_OP]);

#endif
