/* gemm.c: see gemm.h. cuBLASLt's matrices are column-major: it sees our row-major matrices transposed. So it computes
 * D^T = op(B)^T op(A)^T, with our B as its first operand. A vector along our rows lies along its columns, as its bias
 * does; our sum over op(A) is its sum over the second operand. */
#include "gemm.h"

#include <string.h>

#include "libraries.h"
#include "base/mem.h"

/* Bytes. Buffers start at multiples of CUDA_ALIGNMENT, but algorithms' loads need no more than this: only algorithms
 * that are content with it are asked for. */
enum { GEMM_ALIGNMENT = 16 };
/* TILE: rows and columns of D that a processor takes; PROCESSORS: of a large GPU. SPLIT_K: terms of a sum that are
 * worth a block of their own */
enum { TILE = 128, PROCESSORS = 132, SPLIT_K = 256 };
/* Parts of a sum are added up in fp32 in a step of its own, in an order that is the same in every run. */
static const uint32_t REDUCTIONS = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

struct GemmPlan {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, d; /* in cuBLASLt's order */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool epilogue, vector;
};

static int blas_check(cublasStatus_t status, const char *what, Err *e) {
    const int code = status == CUBLAS_STATUS_ALLOC_FAILED ? ERR_OOM : ERR_DEVICE;
    return status ? err_set(e, code, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status)) : OK;
}

static cudaDataType_t type_of(DType t) { return t == DT_F32 ? CUDA_R_32F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F; }

static cublasComputeType_t sums_of(const Gemm *g) {
    return g->tf32 && g->in == DT_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static const uint32_t epilogues[] = {
    [GEMM_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT, [GEMM_RELU] = CUBLASLT_EPILOGUE_RELU,
    [GEMM_BIAS] = CUBLASLT_EPILOGUE_BIAS, [GEMM_BIAS_RELU] = CUBLASLT_EPILOGUE_RELU_BIAS,
    [GEMM_SUM_A] = CUBLASLT_EPILOGUE_BGRADB,
};

#define SET(status, descriptor, function, attribute, value) \
    if (!(status)) (status) = function(descriptor, attribute, &(value), sizeof (value))

static cublasStatus_t product_describe(GemmPlan *p, const Gemm *g) {
    cublasOperation_t first = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = g->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    /* the heuristic asks whether there is a vector and how it is aligned; it does not read it */
    const void *placeholder = (const void *)(uintptr_t)GEMM_ALIGNMENT;
    cublasStatus_t status = cublasLtMatmulDescCreate(&p->product, sums_of(g), CUDA_R_32F);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSB, second);
    SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[g->epilogue]);
    if (p->vector)
        SET(status, p->product, cublasLtMatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_BIAS_POINTER, placeholder);
    return status;
}

/* Row-major (rows, columns) matrices, as many as the product has, `step` elements apart. */
static cublasStatus_t layout_describe(cublasLtMatrixLayout_t *layout, const Gemm *g, DType t, int64_t rows,
                                      int64_t columns, int64_t stride, int64_t step) {
    const int32_t batch = (int32_t)g->batch;
    cublasStatus_t status =
        cublasLtMatrixLayoutCreate(layout, type_of(t), (uint64_t)columns, (uint64_t)rows, stride ? stride : columns);
    if (batch) {
        SET(status, *layout, cublasLtMatrixLayoutSetAttribute, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
        SET(status, *layout, cublasLtMatrixLayoutSetAttribute, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
    }
    return status;
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

/* May the algorithm be taken? It must be supported, fit into the workspace and add in a fixed order. */
static bool result_may(const cublasLtMatmulHeuristicResult_t *result, size_t workspace) {
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written = 0;
    return !result->state && result->workspaceSize <= workspace &&
           !cublasLtMatmulAlgoConfigGetAttribute(&result->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                 sizeof reduction, &written) &&
           !(reduction & ~REDUCTIONS);
}

/* result[*n]: the algorithms of the heuristic's list that may be taken. If the types do not have an epilogue, cuBLASLt
 * may call the request invalid: that, too, means none. */
static cublasStatus_t algorithms_ask(cublasLtHandle_t handle, const GemmPlan *p, size_t workspace,
                                     cublasLtMatmulHeuristicResult_t result[GEMM_CANDIDATES], int *n) {
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    *n = 0;
    cublasStatus_t status = preference_describe(&preference, workspace);
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(handle, p->product, p->first, p->second, p->d, p->d, preference,
                                                GEMM_CANDIDATES, result, &found);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_INVALID_VALUE && p->epilogue))
        return CUBLAS_STATUS_SUCCESS;
    for (int k = 0; k < found && !status; k++)
        if (result_may(&result[k], workspace)) result[(*n)++] = result[k];
    return status;
}

/* ---- algorithms by name: an algorithm's index and these knobs. All knobs of a new algorithm are 0, or mean the same; a
 * knob of two bytes is the low half of a value. */

static const struct { cublasLtMatmulAlgoConfigAttributes_t attribute; size_t bytes; } knobs[] = {
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},          {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4}, {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},   {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

static void algorithm_name(const cublasLtMatmulAlgo_t *algorithm, EngineId *id) {
    uint32_t index = 0;
    size_t written;
    memset(id, 0, sizeof *id);
    cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_ID, &index, sizeof index, &written);
    id->engine = index;
    for (size_t k = 0; k < ARRAY_LEN(knobs); k++) {
        uint32_t value = 0; /* it stays 0 if the algorithm has no such knob */
        cublasLtMatmulAlgoConfigGetAttribute(algorithm, knobs[k].attribute, &value, knobs[k].bytes, &written);
        if (!value) continue;
        id->knob[id->n_knobs].type = knobs[k].attribute;
        id->knob[id->n_knobs++].value = value;
    }
}

static cublasStatus_t knob_set(cublasLtMatmulAlgo_t *algorithm, int64_t type, int64_t value) {
    const uint32_t bits = (uint32_t)value;
    for (size_t k = 0; k < ARRAY_LEN(knobs); k++)
        if (knobs[k].attribute == (uint64_t)type)
            return cublasLtMatmulAlgoConfigSetAttribute(algorithm, knobs[k].attribute, &bits, knobs[k].bytes);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The algorithm that `id` names, as the heuristic would give it: *n is 1, or 0 if it may not be taken. */
static void algorithm_find(cublasLtHandle_t handle, const GemmPlan *p, const Gemm *g, const EngineId *id,
                           size_t workspace, cublasLtMatmulHeuristicResult_t *result, int *n) {
    const cudaDataType_t in = type_of(g->in), out = type_of(g->out);
    memset(result, 0, sizeof *result);
    cublasStatus_t status = cublasLtMatmulAlgoInit(handle, sums_of(g), CUDA_R_32F, in, in, out, out, (int)id->engine,
                                                   &result->algo);
    for (int k = 0; k < id->n_knobs && !status; k++)
        status = knob_set(&result->algo, id->knob[k].type, id->knob[k].value);
    if (!status)
        status = cublasLtMatmulAlgoCheck(handle, p->product, p->first, p->second, p->d, p->d, &result->algo, result);
    *n = !status && result_may(result, workspace);
}

/* ---- plans */

static int plan_describe(const Gemm *g, GemmPlan **plan, Err *e) {
    assert(g->m > 0 && g->n > 0 && g->k > 0 && dtype_is_float(g->in) && dtype_is_float(g->out));
    GemmPlan *p = mem_new(sizeof *p);
    *plan = NULL;
    if (!p) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    p->epilogue = g->epilogue != GEMM_PLAIN;
    p->vector = g->epilogue >= GEMM_BIAS;
    cublasStatus_t status = product_describe(p, g);
    if (!status)
        status = layout_describe(&p->first, g, g->in, g->b_transposed ? g->n : g->k, g->b_transposed ? g->k : g->n,
                                 g->b_stride, g->b_step);
    if (!status)
        status = layout_describe(&p->second, g, g->in, g->a_transposed ? g->k : g->m, g->a_transposed ? g->m : g->k,
                                 g->a_stride, g->a_step);
    if (!status) status = layout_describe(&p->d, g, g->out, g->m, g->n, g->d_stride, g->d_step);
    if (status) gemm_close(p);
    else *plan = p;
    return blas_check(status, "describing a product", e);
}

size_t gemm_room(const Gemm *g, size_t limit) {
    int64_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    int64_t parts = min_i64(PROCESSORS / tiles, g->k / SPLIT_K);
    parts = min_i64(parts, (int64_t)(limit / sizeof(float)) / (g->m * g->n));
    return parts < 2 ? 0 : (size_t)(parts * g->m * g->n) * sizeof(float);
}

int gemm_candidates(CudaDevice *c, const Gemm *g, size_t workspace, EngineId id[GEMM_CANDIDATES], int *n, Err *e) {
    cublasLtHandle_t handle;
    cublasLtMatmulHeuristicResult_t result[GEMM_CANDIDATES];
    GemmPlan *p = NULL;
    *n = 0;
    int code = libraries_blas(c, &handle, e);
    if (!code) code = plan_describe(g, &p, e);
    if (!code) code = blas_check(algorithms_ask(handle, p, workspace, result, n), "choosing an algorithm", e);
    for (int k = 0; k < *n; k++) algorithm_name(&result[k].algo, &id[k]);
    gemm_close(p);
    return code;
}

int gemm_open(CudaDevice *c, const Gemm *g, const EngineId *id, size_t workspace, GemmPlan **plan, Err *e) {
    cublasLtHandle_t handle;
    cublasLtMatmulHeuristicResult_t result[GEMM_CANDIDATES];
    GemmPlan *p = NULL;
    int n = 0;
    *plan = NULL;
    int code = libraries_blas(c, &handle, e);
    if (!code) code = plan_describe(g, &p, e);
    if (!code && id) algorithm_find(handle, p, g, id, workspace, result, &n);
    if (!code && !id)
        code = blas_check(algorithms_ask(handle, p, workspace, result, &n), "choosing an algorithm", e);
    if (code || n == 0) {
        gemm_close(p);
        return code;
    }
    p->algorithm = result[0].algo;
    p->workspace = result[0].workspaceSize;
    *plan = p;
    return OK;
}

size_t gemm_version(void) { return cublasLtGetVersion(); }
void gemm_id(const GemmPlan *p, EngineId *id) { algorithm_name(&p->algorithm, id); }
size_t gemm_workspace(const GemmPlan *p) { return p->workspace; }

/* beta: what D is multiplied by before the product is added */
static int product(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *vector, float beta, void *d,
                   void *workspace, Err *e) {
    const float one = 1.0f;
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
        status = cublasLtMatmul(handle, p->product, &one, b, p->first, a, p->second, &beta, d, p->d, d, p->d,
                                &p->algorithm, workspace, p->workspace, c->stream);
    /* why it failed, and whether the GPU is lost by it, CUDA says */
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) code = cuda_check(c, cudaPeekAtLastError(), "a product", e);
    return code ? code : blas_check(status, "a product", e);
}

int gemm_run(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *vector, void *d, void *workspace, Err *e) {
    return product(c, p, a, b, vector, 0.0f, d, workspace, e);
}

int gemm_add(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *d, void *workspace, Err *e) {
    assert(!p->epilogue);
    return product(c, p, a, b, NULL, 1.0f, d, workspace, e);
}

void gemm_close(GemmPlan *p) {
    if (!p) return;
    if (p->product) cublasLtMatmulDescDestroy(p->product);
    if (p->first) cublasLtMatrixLayoutDestroy(p->first);
    if (p->second) cublasLtMatrixLayoutDestroy(p->second);
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    mem_free(p);
}
