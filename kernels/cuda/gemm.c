/* gemm.c: see gemm.h. cuBLASLt counts in columns: a row-major matrix is its transpose there, so what it computes is
 * D^T = op(B)^T op(A)^T, with our B as its first operand. A vector along our rows is then one along its columns, as its
 * bias is; the sum over op(A) is the one over its second operand. */
#include "gemm.h"

#include <stdlib.h>

#include "libraries.h"

/* Buffers start at multiples of CUDA_ALIGNMENT. Algorithms are asked for that want no more than 16 bytes, which is all
 * that their loads use. */
enum { GEMM_ALIGNMENT = 16, CANDIDATES = 8 };
/* Parts of a sum are added up in fp32 in a step of its own, in an order that is the same in every run. */
static const uint32_t REDUCTIONS = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

struct GemmPlan {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, d; /* in cuBLASLt's order */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool vector;
};

static int blas_check(cublasStatus_t status, const char *what, Err *e) {
    return status ? err_set(e, ERR_DEVICE, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status)) : OK;
}

static cudaDataType_t type_of(DType t) { return t == DT_F32 ? CUDA_R_32F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F; }

static const uint32_t epilogues[] = {
    [GEMM_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT, [GEMM_RELU] = CUBLASLT_EPILOGUE_RELU,
    [GEMM_BIAS] = CUBLASLT_EPILOGUE_BIAS, [GEMM_BIAS_RELU] = CUBLASLT_EPILOGUE_RELU_BIAS,
    [GEMM_SUM_A] = CUBLASLT_EPILOGUE_BGRADB,
};

#define SET(status, descriptor, function, attribute, value) \
    if (!(status)) (status) = function(descriptor, attribute, &(value), sizeof (value))

static cublasStatus_t product_describe(GemmPlan *p, const Gemm *g) {
    cublasOperation_t first = g->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, second = g->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    /* the heuristic looks at whether the vector is there and how it is aligned, not at what it holds */
    const void *placeholder = (const void *)(uintptr_t)CUDA_ALIGNMENT;
    bool fast = g->tf32 && g->in == DT_F32;
    cublasStatus_t status = cublasLtMatmulDescCreate(
        &p->product, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSB, second);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[g->epilogue]);
    if (p->vector)
        SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_BIAS_POINTER, placeholder);
    return status;
}

/* A row-major (rows, columns) matrix. */
static cublasStatus_t layout_describe(cublasLtMatrixLayout_t *layout, DType t, int64_t rows, int64_t columns) {
    return cublasLtMatrixLayoutCreate(layout, type_of(t), (uint64_t)columns, (uint64_t)rows, columns);
}

static cublasStatus_t preference_describe(cublasLtMatmulPreference_t *preference, size_t workspace) {
    uint32_t alignment = GEMM_ALIGNMENT;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(preference);
    SET(status, *preference, cublasLtMatmulPreferenceSetAttribute, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    SET(status, *preference, cublasLtMatmulPreferenceSetAttribute, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        REDUCTIONS);
    for (size_t k = 0; k < ARRAY_LEN(alignments); k++)
        SET(status, *preference, cublasLtMatmulPreferenceSetAttribute, alignments[k], alignment);
    return status;
}

/* Is it ready, within the workspace, and are its sums in one order? */
static bool result_may(const cublasLtMatmulHeuristicResult_t *result, size_t workspace) {
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written = 0;
    return !result->state && result->workspaceSize <= workspace &&
           !cublasLtMatmulAlgoConfigGetAttribute(&result->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                 sizeof reduction, &written) &&
           !(reduction & ~REDUCTIONS);
}

/* The first of the heuristic's list that may be taken; *found false: there is none. */
static cublasStatus_t algorithm_choose(cublasLtHandle_t handle, GemmPlan *p, size_t workspace, bool *found) {
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int n = 0, k = 0;
    *found = false;
    cublasStatus_t status = preference_describe(&preference, workspace);
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(handle, p->product, p->first, p->second, p->d, p->d, preference,
                                                CANDIDATES, result, &n);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return CUBLAS_STATUS_SUCCESS;
    while (!status && k < n && !result_may(&result[k], workspace)) k++;
    *found = !status && k < n;
    if (*found) p->algorithm = result[k].algo, p->workspace = result[k].workspaceSize;
    return status;
}

int gemm_open(CudaDevice *c, const Gemm *g, size_t workspace, GemmPlan **plan, Err *e) {
    cublasLtHandle_t handle;
    bool found = false;
    *plan = NULL;
    int code = libraries_blas(c, &handle, e);
    if (code) return code;
    GemmPlan *p = calloc(1, sizeof *p);
    if (!p) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    p->vector = g->epilogue >= GEMM_BIAS;
    cublasStatus_t status = product_describe(p, g);
    if (!status) status = layout_describe(&p->first, g->in, g->b_turned ? g->n : g->k, g->b_turned ? g->k : g->n);
    if (!status) status = layout_describe(&p->second, g->in, g->a_turned ? g->k : g->m, g->a_turned ? g->m : g->k);
    if (!status) status = layout_describe(&p->d, g->out, g->m, g->n);
    if (!status) status = algorithm_choose(handle, p, workspace, &found);
    if (status || !found) {
        gemm_close(p);
        return blas_check(status, "choosing an algorithm", e);
    }
    *plan = p;
    return OK;
}

int gemm_run(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *vector, void *d, void *workspace, Err *e) {
    static const float one = 1.0f, zero = 0.0f;
    cublasLtHandle_t handle;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)d | (p->vector ? (uintptr_t)vector : 0)) % GEMM_ALIGNMENT)
        return err_set(e, ERR_INTERNAL, "a matrix of a product does not start at a multiple of %d bytes",
                       GEMM_ALIGNMENT);
    int code = libraries_blas(c, &handle, e);
    if (code) return code;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p->vector)
        SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    if (!status)
        status = cublasLtMatmul(handle, p->product, &one, b, p->first, a, p->second, &zero, d, p->d, d, p->d,
                                &p->algorithm, workspace, p->workspace, c->stream);
    return blas_check(status, "a product", e);
}

void gemm_close(GemmPlan *p) {
    if (!p) return;
    if (p->product) cublasLtMatmulDescDestroy(p->product);
    if (p->first) cublasLtMatrixLayoutDestroy(p->first);
    if (p->second) cublasLtMatrixLayoutDestroy(p->second);
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    free(p);
}
