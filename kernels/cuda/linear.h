/* linear.h: a linear layer's op in a matrix product's words, and the ways in which it can be run. linear.c knows what
 * each way does and runs it; linear_choose.c prepares ops: it chooses the way. Shapes: x (N, I), w (O, I), b (O),
 * y (N, O); leading dimensions of x and y are all part of N. */
#ifndef MT_LINEAR_H
#define MT_LINEAR_H

#include "gemm.h"

/*   FUSED   a library's product, which takes over bias and ReLU, or the bias's gradient
 *   PLAIN   a library's product, and own kernels after it for what it leaves
 *   SKINNY  own kernels alone, where there are few outputs */
typedef enum LinearWay { LINEAR_FUSED, LINEAR_PLAIN, LINEAR_SKINNY, LINEAR_WAYS } LinearWay;
extern const char *const linear_ways[LINEAR_WAYS];

/* A prepared op. Its workspace: [`before`: rows of the product in fp32, or the bias's copy | the product's own]. */
typedef struct LinearState {
    CudaState base;
    LinearWay way;
    Gemm gemm;      /* m: the rows at a time. From here on only where a library has the product: */
    GemmPlan *plan; /* NULL: the device is not here */
    GemmPlan *rest; /* NULL, or of the rows that are left in the end */
    bool wide;      /* the product goes to the workspace in fp32 */
    size_t before, workspace; /* bytes; workspace: of the whole op */
} LinearState;

/* The op's product, with the epilogue that suits it best. */
Gemm linear_gemm(const KArgs *a);
/* Bytes of the bias's copy in y's type, which this epilogue reads; 0: it reads the bias itself, or none. */
size_t linear_copy(const KArgs *a, GemmEpilogue epilogue);
/* Do kernels have to follow a forward product with this epilogue? */
bool linear_leaves(const KArgs *a, GemmEpilogue epilogue);
int linear_run(const KArgs *a, Err *e); /* any of the three ops */
/* The op as picks name it, with all that the choice depends on: the product, the operands' types, what is done beside
 * it. */
void linear_text(const KArgs *a, char text[PICK_OP]);

#endif
