/* gemm.h: D = epilogue(op(A) op(B)) over row-major matrices, one call of a library: D (m, n), op(A) (m, k),
 * op(B) (k, n). Sums are in fp32. gemm.c asks cuBLASLt, which has a stand-in for emulated devices
 * (tests/emulate/cublasLt.c). */
#ifndef MT_GEMM_H
#define MT_GEMM_H

#include "cuda.h"
#include "tuned.h"

enum { GEMM_CANDIDATES = 16 };

/* What a product does beside D; `vector` is gemm_run's. The activation is ReLU. */
typedef enum GemmEpilogue {
    GEMM_PLAIN,
    GEMM_RELU,      /* max(D, 0) */
    GEMM_BIAS,      /* D + vector (n), which is added to every row */
    GEMM_BIAS_RELU,
    GEMM_SUM_A      /* writes vector (m) = sum of op(A) over k */
} GemmEpilogue;

typedef struct Gemm {
    int64_t m, n, k;
    bool a_transposed, b_transposed; /* A is stored as (k, m), B as (n, k) */
    DType in, out;           /* in: of A and B; out: of D and the vector */
    bool tf32;               /* fp32 operands may be rounded to 10 bits */
    GemmEpilogue epilogue;
    int64_t a_stride, b_stride, d_stride; /* from row to row as they are stored; 0: the rows lie side by side */
    int64_t batch, a_step, b_step, d_step; /* as many products, and how far apart their matrices lie; 0: one */
} Gemm;

typedef struct GemmPlan GemmPlan;

/* Bytes of workspace that make a product faster, at most `limit`: they follow from its shape, with or without a GPU. If D
 * has fewer tiles than the GPU has processors, the library splits the sum over k and then needs a D in fp32 per part.
 * Nothing else gets faster by memory. */
size_t gemm_room(const Gemm *g, size_t limit);

size_t gemm_version(void); /* of the library: 130100 */
/* id[*n]: the library's algorithms that need at most `workspace` bytes, in its own ranking. Each adds in the same
 * order in every run. To find none is no error. */
int gemm_candidates(CudaDevice *c, const Gemm *g, size_t workspace, EngineId id[GEMM_CANDIDATES], int *n, Err *e);
/* id: the algorithm; NULL: the first candidate. *plan becomes NULL, without an error, if the library has no such
 * product within `workspace` bytes. */
int gemm_open(CudaDevice *c, const Gemm *g, const EngineId *id, size_t workspace, GemmPlan **plan, Err *e);
void gemm_id(const GemmPlan *plan, EngineId *id);
size_t gemm_workspace(const GemmPlan *plan); /* bytes that it uses */
int gemm_run(CudaDevice *c, GemmPlan *plan, const void *a, const void *b, void *vector, void *d, void *workspace,
             Err *e);
/* The same with D += op(A) op(B), for a product without an epilogue. */
int gemm_add(CudaDevice *c, GemmPlan *plan, const void *a, const void *b, void *d, void *workspace, Err *e);
void gemm_close(GemmPlan *plan); /* NULL is allowed */

#endif
