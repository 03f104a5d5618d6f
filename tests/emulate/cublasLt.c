/* cublasLt.c: stands in for cuBLASLt, and for libraries.c's part of it. Matrices are column-major, as NVIDIA documents them:
 * D (m, n) = epilogue(alpha op(A) op(B) + beta C), a bias lies along the rows of D, BGRADA and BGRADB sum op(A) and op(B)
 * over k. A product is plain loops in float64, as a task of the emulated stream, and overwrites all of its workspace.
 *
 * What contradicts itself is CUBLAS_STATUS_INVALID_VALUE; what this library has not, CUBLAS_STATUS_NOT_SUPPORTED: it has the
 * types and epilogues that the plugin uses, and an algorithm needs every alignment that its user said it may need.
 *
 * EMULATE_EPILOGUES=0: there is only the plain epilogue. EMULATE_PRODUCTS="30 10 20": there are three algorithms, which take
 * so many milliseconds for a product; algorithm k needs 256 k bytes and splits the sums into k parts. Else there is one,
 * which takes no time of its own and all the workspace that it may have. */
#include <stdlib.h>
#include <string.h>

#include "emulate.h"
#include "libraries.h"
#include "runtime.h"
#include "shadow/shadow.h"

enum { EACH = 256, MOST = 8, KNOBS = 9, WORKSPACE_ALIGNMENT = 16, ALIGNMENT_MOST = 256 };

struct EmulatedBlas { char any; };
struct EmulatedProduct { cublasComputeType_t sums; cudaDataType_t scale; int32_t a, b; uint32_t epilogue; void *bias; };
struct EmulatedLayout { cudaDataType_t type; int32_t order; uint64_t rows, columns; int64_t ld; int32_t batch; int64_t step; };
struct EmulatedPreference { uint64_t workspace; uint32_t reductions, a, b, c, d; };

typedef struct EmulatedProduct Product;
typedef struct EmulatedLayout Layout;
typedef struct EmulatedPreference Preference;

/* What an algorithm's data are. align: bytes; bias: what its address must be a multiple of */
typedef struct Algorithm {
    int32_t index;
    uint32_t knob[KNOBS]; /* by cublasLtMatmulAlgoConfigAttributes_t */
    uint16_t a, b, c, d, bias;
} Algorithm;

_Static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits into NVIDIA's bytes");

size_t cublasLtGetVersion(void) { return 1; }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown status";
}

static struct EmulatedBlas the_handle;

int libraries_blas(CudaDevice *c, cublasLtHandle_t *handle, Err *e) {
    if (c->ordinal == NOT_HERE) return err_set(e, ERR_UNSUPPORTED, "%s is described, not here", c->model.name);
    *handle = &the_handle;
    return OK;
}

/* ---- descriptors and their attributes */

static cublasStatus_t create(void *out, const void *from, size_t bytes) {
    void *made = malloc(bytes);
    if (!made) return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(made, from, bytes);
    memcpy(out, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *descriptor) {
    free(descriptor);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute of so many bytes, and where it lies */
typedef struct Field { int attribute; size_t at, bytes; } Field;
#define FIELD(attribute, type, member) {attribute, offsetof(type, member), sizeof((type){0}.member)}

/* NULL: there is none of so many bytes. */
static const Field *field(const Field *fields, size_t n, int attribute, const void *value, size_t bytes) {
    for (size_t k = 0; k < n; k++)
        if (fields[k].attribute == attribute) return value && fields[k].bytes == bytes ? &fields[k] : NULL;
    return NULL;
}

static cublasStatus_t set(void *descriptor, const Field *fields, size_t n, int attribute, const void *value, size_t bytes) {
    const Field *f = field(fields, n, attribute, value, bytes);
    if (!descriptor || !f) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((char *)descriptor + f->at, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t sums, cudaDataType_t scale) {
    const Product p = {.sums = sums, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return create(product, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    static const Field fields[] = {
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Product, a), FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Product, b),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Product, epilogue), FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Product, bias)};
    return set(product, fields, ARRAY_LEN(fields), (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    const Layout l = {.type = type, .order = CUBLASLT_ORDER_COL, .rows = rows, .columns = columns, .ld = ld, .batch = 1};
    return create(layout, &l, sizeof l);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
    static const Field fields[] = {
        FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type), FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
        FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows), FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, columns),
        FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, ld), FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
        FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, step)};
    return set(layout, fields, ARRAY_LEN(fields), (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    const Preference p = {0, CUBLASLT_REDUCTION_SCHEME_MASK, ALIGNMENT_MOST, ALIGNMENT_MOST, ALIGNMENT_MOST,
                          ALIGNMENT_MOST};
    return create(preference, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    static const Field fields[] = {
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, workspace),
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reductions),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, a),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, b),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, c),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, d)};
    return set(preference, fields, ARRAY_LEN(fields), (int)attribute, value, bytes);
}

/* ---- what the library has */

static bool is_type(cudaDataType_t t) { return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF; }

/* TF32 is for products of fp32 alone. */
static bool has_types(cublasComputeType_t sums, cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                      cudaDataType_t d) {
    return is_type(a) && a == b && c == d && (d == a || d == CUDA_R_32F) && scale == CUDA_R_32F &&
           (sums == CUBLAS_COMPUTE_32F || (sums == CUBLAS_COMPUTE_32F_FAST_TF32 && a == CUDA_R_32F));
}

static bool sums_operand(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_vector(const Product *p) { return (p->epilogue & CUBLASLT_EPILOGUE_BIAS) || sums_operand(p->epilogue); }

static bool has_epilogue(uint32_t epilogue) {
    static const uint32_t has[] = {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS,
                                   CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB};
    const char *epilogues = getenv("EMULATE_EPILOGUES");
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    for (size_t k = 0; k < ARRAY_LEN(has); k++)
        if (has[k] == epilogue) return !(epilogues && *epilogues == '0');
    return false;
}

static uint64_t rows_of(const Layout *l, int32_t op) { return op == CUBLAS_OP_N ? l->rows : l->columns; }
static uint64_t columns_of(const Layout *l, int32_t op) { return op == CUBLAS_OP_N ? l->columns : l->rows; }

/* Columns must not overlap. */
static bool is_layout(const Layout *l) {
    return l && l->order == CUBLASLT_ORDER_COL && l->rows && l->columns && l->ld >= 0 && (uint64_t)l->ld >= l->rows && l->batch > 0;
}

static bool is_op(int32_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T; }

static cublasStatus_t check(cublasLtHandle_t handle, const Product *p, const Layout *a, const Layout *b, const Layout *c,
                            const Layout *d) {
    if (handle != &the_handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!p || !is_op(p->a) || !is_op(p->b) || !is_layout(a) || !is_layout(b) || !is_layout(c) || !is_layout(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t m = d->rows, n = d->columns, k = columns_of(a, p->a);
    if (rows_of(a, p->a) != m || rows_of(b, p->b) != k || columns_of(b, p->b) != n || c->rows != m || c->columns != n ||
        a->batch != d->batch || b->batch != d->batch || c->batch != d->batch || (d->batch > 1 && !d->step) ||
        (has_vector(p) && !p->bias))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!has_types(p->sums, p->scale, a->type, b->type, c->type, d->type) || (sums_operand(p->epilogue) && d->batch > 1))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return has_epilogue(p->epilogue) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- algorithms */

/* ms: of each algorithm. Returns how many there are; 0: one that takes no time. */
static int algorithms(double ms[MOST]) {
    const char *at = getenv("EMULATE_PRODUCTS");
    char *end;
    int n = 0;
    while (at && n < MOST) {
        ms[n] = strtod(at, &end);
        if (end == at) break;
        at = end;
        n++;
    }
    return n;
}

static Algorithm algorithm_of(const cublasLtMatmulAlgo_t *algo) {
    Algorithm a;
    memcpy(&a, algo, sizeof a);
    return a;
}

static void algorithm_put(cublasLtMatmulAlgo_t *algo, const Algorithm *a) {
    memset(algo, 0, sizeof *algo);
    memcpy(algo, a, sizeof *a);
}

static uint16_t alignment(const void *p) {
    uint16_t bytes = 1;
    while (bytes < ALIGNMENT_MOST && (uintptr_t)p % (2U * bytes) == 0) bytes = (uint16_t)(2 * bytes);
    return bytes;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t sums, cudaDataType_t scale,
                                      cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int index,
                                      cublasLtMatmulAlgo_t *algo) {
    double ms[MOST];
    const int n = algorithms(ms);
    const Algorithm made = {.index = index, .a = 1, .b = 1, .c = 1, .d = 1, .bias = 1};
    if (handle != &the_handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!algo || index < 0 || index >= (n ? n : 1)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!has_types(sums, scale, a, b, c, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm_put(algo, &made);
    return CUBLAS_STATUS_SUCCESS;
}

#define KNOB(attribute, type) {attribute, offsetof(Algorithm, knob) + sizeof(uint32_t) * (attribute), sizeof(type)}
static const Field knobs[] = {
    KNOB(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t),          KNOB(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t),
    KNOB(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t), KNOB(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t),
    KNOB(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t),    KNOB(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t),
    KNOB(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t),   KNOB(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t),
    FIELD(CUBLASLT_ALGO_CONFIG_ID, Algorithm, index), /* the last: it can only be read */
};

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    return set(algo, knobs, ARRAY_LEN(knobs) - 1, (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    const Field *f = field(knobs, ARRAY_LEN(knobs), (int)attribute, value, bytes);
    if (!algo || !f) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, (const char *)algo + f->at, bytes);
    if (written) *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* Parts that it splits the sums into, of which one alone is none. What it has no knobs for is 0. */
static bool has_knobs(const Algorithm *a) {
    const uint32_t parts = a->index > 1 ? (uint32_t)a->index : 0;
    for (uint32_t k = 0; k < KNOBS; k++) {
        const uint32_t expected = k == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? parts :
                                  k == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && parts ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : 0;
        if (a->knob[k] != expected) return false;
    }
    return true;
}

static size_t workspace_of(const Algorithm *a) { return (size_t)a->index * EACH; }

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    cublasStatus_t status = check(handle, product, a, b, c, d);
    if (status) return status;
    if (!algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
    const Algorithm of = algorithm_of(algo);
    if (!has_knobs(&of)) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace_of(&of);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t result[], int *found) {
    double ms[MOST];
    const int n = algorithms(ms);
    const cublasStatus_t status = check(handle, product, a, b, c, d);
    if (status) return status;
    if (!preference || most <= 0 || !result || !found) return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    for (int k = 0; k < (n ? n : 1) && *found < most; k++) {
        Algorithm of = {.index = k, .a = (uint16_t)preference->a, .b = (uint16_t)preference->b,
                        .c = (uint16_t)preference->c, .d = (uint16_t)preference->d,
                        .bias = has_vector(product) ? alignment(product->bias) : 1};
        const uint32_t reduction = k > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
        const size_t bytes = n ? workspace_of(&of) : preference->workspace;
        if (bytes > preference->workspace || (reduction & ~preference->reductions)) continue;
        if (k > 1) of.knob[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = (uint32_t)k;
        of.knob[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME] = reduction;
        memset(&result[*found], 0, sizeof *result);
        algorithm_put(&result[*found].algo, &of);
        result[(*found)++].workspaceSize = bytes;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- products */

/* A matrix as it is stored: column j of matrix `which` begins at (which step + j ld). */
typedef struct Matrix { char *at; DType type; int64_t rows, columns, ld, step, batch; } Matrix;

/* A vector along rows or columns of D; none: count is 0 */
typedef struct Vector { char *at; DType type; int64_t count; } Vector;

/* An enqueued product: of op(a) (d.rows, k) and op(b) (k, d.columns) */
typedef struct Call {
    Matrix a, b, c, d;
    Vector vector;
    int64_t k;
    uint32_t epilogue;
    float alpha, beta;
    bool a_turned, b_turned, tf32;
    void *workspace;
    size_t workspace_bytes;
    double seconds;
} Call;

static DType dtype_of(cudaDataType_t t) { return t == CUDA_R_32F ? DT_F32 : t == CUDA_R_16BF ? DT_BF16 : DT_F16; }

static Matrix matrix(const Layout *l, const void *at) {
    return (Matrix){(char *)(uintptr_t)at, dtype_of(l->type), (int64_t)l->rows, (int64_t)l->columns, l->ld, l->step, l->batch};
}

static char *column(const Matrix *m, int64_t which, int64_t i, int64_t j) {
    return m->at + (which * m->step + j * m->ld + i) * (int64_t)dtype_size(m->type);
}

static size_t vector_bytes(const Vector *v) { return (size_t)v->count * dtype_size(v->type); }

/* Ends the program, under the shadow memory, at what a product reads and nobody has written. */
static void reads(const void *p, size_t bytes, const char *what) {
    const size_t written = shadow_written(p, bytes);
    if (written < bytes) shadow_die(" a product reads byte %zu of %s, of %zu, which nobody has written", written, what, bytes);
}

static void reads_matrix(const Matrix *m, const char *what) {
    for (int64_t which = 0; which < m->batch; which++)
        for (int64_t j = 0; j < m->columns; j++)
            reads(column(m, which, 0, j), (size_t)m->rows * dtype_size(m->type), what);
}

/* An operand after its op: element (i, j) lies at i row + j column. */
typedef struct Operand { const char *at; DType type; int64_t row, column; bool tf32; } Operand;

static Operand operand(const Matrix *m, bool turned, bool tf32, int64_t which) {
    return (Operand){column(m, which, 0, 0), m->type, turned ? m->ld : 1, turned ? 1 : m->ld, tf32};
}

/* To the 10 bits of TF32, ties to even */
static float tf32_of(float x) {
    enum { CUT = 13 };
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits >> 23 & 0xFF) != 0xFF) bits += (1U << (CUT - 1)) - 1 + (bits >> CUT & 1);
    bits &= ~((1U << CUT) - 1);
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static float load(const Operand *o, int64_t i, int64_t j) {
    const float x = dtype_load(o->type, o->at, (size_t)(i * o->row + j * o->column));
    return o->tf32 ? tf32_of(x) : x;
}

/* A tile of D: the sums of its columns, each over all of k in its order. An operand's number is read once per tile, not once
 * per product. Static, since a kernel allocates nothing. */
enum { ROWS = 256, COLUMNS = 64, DEPTH = 128 };
static double sums[COLUMNS][ROWS];
static float a_part[DEPTH][ROWS];

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void tile_sum(const Operand *a, const Operand *b, int64_t k, int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
    for (int64_t j = 0; j < columns; j++) memset(sums[j], 0, (size_t)rows * sizeof **sums);
    for (int64_t l0 = 0; l0 < k; l0 += DEPTH) {
        const int64_t depth = least(DEPTH, k - l0);
        for (int64_t l = 0; l < depth; l++)
            for (int64_t i = 0; i < rows; i++) a_part[l][i] = load(a, i0 + i, l0 + l);
        for (int64_t j = 0; j < columns; j++)
            for (int64_t l = 0; l < depth; l++) {
                const double factor = load(b, l0 + l, j0 + j);
                for (int64_t i = 0; i < rows; i++) sums[j][i] += factor * a_part[l][i];
            }
    }
}

static void column_write(const Call *q, int64_t which, int64_t i0, int64_t rows, int64_t j, const double *sum) {
    char *d = column(&q->d, which, i0, j), *c = column(&q->c, which, i0, j);
    for (int64_t i = 0; i < rows; i++) {
        double x = q->alpha * sum[i];
        if (q->beta != 0) x += q->beta * dtype_load(q->c.type, c, (size_t)i);
        if (q->epilogue & CUBLASLT_EPILOGUE_BIAS) x += dtype_load(q->vector.type, q->vector.at, (size_t)(i0 + i));
        if (q->epilogue & CUBLASLT_EPILOGUE_RELU && x < 0) x = 0;
        dtype_store(q->d.type, d, (size_t)i, (float)x);
    }
    shadow_wrote(d, (size_t)rows * dtype_size(q->d.type));
}

static void product_compute(const Call *q, int64_t which) {
    const Operand a = operand(&q->a, q->a_turned, q->tf32, which), b = operand(&q->b, q->b_turned, q->tf32, which);
    for (int64_t j0 = 0; j0 < q->d.columns; j0 += COLUMNS)
        for (int64_t i0 = 0; i0 < q->d.rows; i0 += ROWS) {
            const int64_t rows = least(ROWS, q->d.rows - i0), columns = least(COLUMNS, q->d.columns - j0);
            tile_sum(&a, &b, q->k, i0, rows, j0, columns);
            for (int64_t j = 0; j < columns; j++) column_write(q, which, i0, rows, j0 + j, sums[j]);
        }
}

/* vector: sums of an operand over k */
static void sum_operand(const Call *q) {
    const bool of_a = q->epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const Operand o = of_a ? operand(&q->a, q->a_turned, false, 0) : operand(&q->b, q->b_turned, false, 0);
    for (int64_t i = 0; i < q->vector.count; i++) {
        double sum = 0;
        for (int64_t l = 0; l < q->k; l++) sum += of_a ? load(&o, i, l) : load(&o, l, i);
        dtype_store(q->vector.type, q->vector.at, (size_t)i, (float)sum);
    }
    shadow_wrote(q->vector.at, vector_bytes(&q->vector));
}

static void compute(void *args) {
    const Call *q = args;
    emulate_spend(q->seconds);
    if (q->workspace_bytes) memset(q->workspace, 0xEE, q->workspace_bytes);
    reads_matrix(&q->a, "its first matrix");
    reads_matrix(&q->b, "its second matrix");
    if (q->beta != 0) reads_matrix(&q->c, "what it adds to");
    if (q->epilogue & CUBLASLT_EPILOGUE_BIAS) reads(q->vector.at, vector_bytes(&q->vector), "its bias");
    for (int64_t which = 0; which < q->d.batch; which++) product_compute(q, which);
    if (sums_operand(q->epilogue)) sum_operand(q);
}

/* ---- a call */

/* Does it start as its algorithm needs it? */
static bool starts_well(const void *p, size_t alignment, DType t) {
    return (uintptr_t)p % max_size(alignment, dtype_size(t)) == 0;
}

static bool start_well(const Call *q, const Algorithm *by) {
    return starts_well(q->a.at, by->a, q->a.type) && starts_well(q->b.at, by->b, q->b.type) &&
           starts_well(q->c.at, by->c, q->c.type) && starts_well(q->d.at, by->d, q->d.type) &&
           starts_well(q->vector.at, by->bias, q->vector.type) && (uintptr_t)q->workspace % WORKSPACE_ALIGNMENT == 0;
}

static bool is_on_device(const Matrix *m) {
    const int64_t count = (m->batch - 1) * m->step + (m->columns - 1) * m->ld + m->rows;
    return emulate_on_device(m->at, (size_t)count * dtype_size(m->type));
}

static bool are_on_device(const Call *q) {
    return is_on_device(&q->a) && is_on_device(&q->b) && is_on_device(&q->d) && (q->beta == 0 || is_on_device(&q->c)) &&
           (!q->vector.count || emulate_on_device(q->vector.at, vector_bytes(&q->vector))) &&
           (!q->workspace_bytes || emulate_on_device(q->workspace, q->workspace_bytes));
}

static cublasStatus_t status_of(cudaError_t error) {
    return !error ? CUBLAS_STATUS_SUCCESS :
           error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    const cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = stream};
    double ms[MOST];
    const int n = algorithms(ms);
    const cudaError_t error = emulate_enter(__func__);
    if (error) return status_of(error);
    const cublasStatus_t status = check(handle, product, a_layout, b_layout, c_layout, d_layout);
    if (status) return status;
    if (!alpha || !beta || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    const Algorithm by = algorithm_of(algo);
    Call q = {.a = matrix(a_layout, a), .b = matrix(b_layout, b), .c = matrix(c_layout, c), .d = matrix(d_layout, d),
              .k = (int64_t)columns_of(a_layout, product->a), .epilogue = product->epilogue,
              .alpha = *(const float *)alpha, .beta = *(const float *)beta, .a_turned = product->a == CUBLAS_OP_T,
              .b_turned = product->b == CUBLAS_OP_T, .tf32 = product->sums == CUBLAS_COMPUTE_32F_FAST_TF32,
              .workspace = workspace, .workspace_bytes = workspace_bytes};
    if (has_vector(product))
        q.vector = (Vector){product->bias, q.d.type, product->epilogue == CUBLASLT_EPILOGUE_BGRADB ? q.d.columns : q.d.rows};
    if (!has_knobs(&by) || by.index >= (n ? n : 1)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_bytes < (n ? workspace_of(&by) : 0) || !start_well(&q, &by) || (c == d && c_layout != d_layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!are_on_device(&q)) return status_of(emulate_give(cudaErrorIllegalAddress));
    if (n) q.seconds = 1e-3 * ms[by.index];
    return status_of(emulate_launch(&config, NULL, compute, &q, sizeof q));
}
