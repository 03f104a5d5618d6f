/* Algorithms of cuBLASLt by their names: read from what its ranking proposes, kept, and asked for again. A ranking, a
 * check and a handle are to be had only where there is a GPU: the test has its own. The rest is the library's. */
#include <string.h>

#include "gemm.h"
#include "libraries.h"
#include "tap.h"

enum { ROOM = 4096, TILE = 20, PARTS = 3, CLUSTER = 5, KNOWN = 7, ALL = 5 };

static cublasLtMatmulAlgo_t checked; /* what AlgoCheck was asked about */
static cublasStatus_t ranking;       /* what a request for a ranking gives */
static cublasComputeType_t sums;
static cudaDataType_t types[4];

/* Where this version of the library has the index; algorithm_is reads it by its function. */
static void index_set(cublasLtMatmulAlgo_t *a, int index) { a->data[0] = (uint64_t)index; }

static void set(cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t attribute, uint32_t value, size_t bytes) {
    is_int(cublasLtMatmulAlgoConfigSetAttribute(a, attribute, &value, bytes), 0, "an attribute of this size");
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    static char any;
    *handle = (cublasLtHandle_t)&any;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* Five: one that cannot be used, one that wants too much, one whose sums come in any order, two that may be taken. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t *result, int *found) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = 0;
    if (ranking) return ranking;
    memset(result, 0, ALL * sizeof *result);
    for (int k = 0; k < ALL; k++) index_set(&result[k].algo, KNOWN + k);
    result[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
    result[1].workspaceSize = ROOM + 1;
    set(&result[2].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_INPLACE, 4);
    set(&result[3].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, TILE, 4);
    set(&result[3].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, PARTS, 4);
    set(&result[3].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4);
    set(&result[3].algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, CLUSTER, 2);
    result[3].workspaceSize = 1000;
    *found = most < ALL ? most : ALL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
    cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int index, cublasLtMatmulAlgo_t *out) {
    (void)handle, (void)scale;
    sums = compute;
    types[0] = a, types[1] = b, types[2] = c, types[3] = d;
    memset(out, 0, sizeof *out);
    index_set(out, index);
    return index < KNOWN + ALL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulHeuristicResult_t *result) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d;
    checked = *algo;
    result->workspaceSize = 1000;
    return CUBLAS_STATUS_SUCCESS;
}

static CudaDevice device; /* ordinal 0 */
static const Gemm bf16 = {.m = 64, .n = 10, .k = 512, .b_transposed = true, .in = DT_BF16, .out = DT_F32};
static Err e;

static GemmPlan *open(const EngineId *id, size_t workspace) {
    GemmPlan *plan;
    is_int(gemm_open(&device, &bf16, id, workspace, &plan, &e), OK, "no error");
    return plan;
}

static void test_names(void) {
    EngineId id[GEMM_CANDIDATES], same;
    char text[ENGINE_TEXT];
    int n;
    is_int(gemm_candidates(&device, &bf16, ROOM, id, &n, &e), OK, "candidates");
    is_int(n, 2, "those that may be taken");
    is_str(engine_text(&id[0], text), "10 1=20 2=3 3=2 8=5", "the index, and the knobs that are not as they begin");
    is_str(engine_text(&id[1], text), "11", "one without any");
    GemmPlan *first = open(NULL, ROOM), *plan = open(&id[0], ROOM);
    if (ok(first && plan, "both ways to a plan")) {
        gemm_id(plan, &same);
        ok(!memcmp(&same, &id[0], sizeof same), "by its name: the one that was named");
        gemm_id(first, &same);
        ok(!memcmp(&same, &id[0], sizeof same), "without a name: the first");
        is_int((long long)gemm_workspace(plan), 1000, "with its workspace");
    }
    ok(sums == CUBLAS_COMPUTE_32F && types[0] == CUDA_R_16BF && types[1] == CUDA_R_16BF && types[2] == CUDA_R_32F &&
       types[3] == CUDA_R_32F, "asked for with the product's types");
    gemm_close(first);
    gemm_close(plan);
}

static void test_refusals(void) {
    static const struct { const char *what, *name; size_t room; } wrong[] = {
        {"an index that the library does not know", "99", ROOM},
        {"a knob that is none", "10 99=1", ROOM},
        {"a workspace beyond the limit", "10 1=20", 999},
        {"sums in any order", "10 3=1", ROOM},
    };
    for (size_t k = 0; k < ARRAY_LEN(wrong); k++) {
        EngineId id;
        ok(engine_read(wrong[k].name, &id) && !open(&id, wrong[k].room), "%s: there is none", wrong[k].what);
    }
}

/* What the library does not have is none; what is wrong is an error. */
static void test_rankings(void) {
    static const struct { const char *what; cublasStatus_t status; GemmEpilogue epilogue; int code; } cases[] = {
        {"a product that is not supported", CUBLAS_STATUS_NOT_SUPPORTED, GEMM_PLAIN, OK},
        {"an epilogue that is impossible", CUBLAS_STATUS_INVALID_VALUE, GEMM_SUM_A, OK},
        {"a plain product that is impossible", CUBLAS_STATUS_INVALID_VALUE, GEMM_PLAIN, ERR_DEVICE},
        {"a library without memory", CUBLAS_STATUS_ALLOC_FAILED, GEMM_PLAIN, ERR_OOM},
    };
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        Gemm g = bf16;
        GemmPlan *plan;
        g.epilogue = cases[k].epilogue;
        ranking = cases[k].status;
        is_int(gemm_open(&device, &g, NULL, ROOM, &plan, &e), cases[k].code, cases[k].what);
        ok(!plan, "there is no plan");
    }
    ranking = CUBLAS_STATUS_SUCCESS;
}

int main(void) {
    test_names();
    test_refusals();
    test_rankings();
    libraries_close(&device);
    return tap_done();
}
