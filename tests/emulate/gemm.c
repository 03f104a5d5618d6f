/* gemm.c: stands in for kernels/cuda/gemm.c: products as plain loops in float64, which overwrite all of their
 * workspace. EMULATE_EPILOGUES=0: the library has only the plain epilogue. EMULATE_PRODUCTS="30 10 20": it has three
 * algorithms, which take so many milliseconds for a product; algorithm k needs 256 k bytes. Else it has one algorithm,
 * which takes no time of its own and all the workspace that it may have. */
#include "gemm.h"

#include <stdlib.h>

#include "emulate.h"
#include "shadow/shadow.h"
#include "base/mem.h"

enum { EACH = 256, MOST = 8 };

struct GemmPlan { Gemm g; int64_t algorithm; size_t workspace; double seconds; };

/* An enqueued call */
typedef struct GemmCall {
    Gemm g;
    const void *a, *b;
    void *vector, *d, *workspace;
    size_t workspace_bytes;
    double seconds;
    int64_t index; /* of the product among many */
    bool add;
} GemmCall;

size_t gemm_version(void) { return 1; }

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

static bool has_epilogue(const Gemm *g) {
    const char *epilogues = getenv("EMULATE_EPILOGUES");
    return !(g->epilogue && epilogues && *epilogues == '0');
}

int gemm_candidates(CudaDevice *c, const Gemm *g, size_t workspace, EngineId id[GEMM_CANDIDATES], int *n, Err *e) {
    double ms[MOST];
    int all = algorithms(ms);
    (void)c, (void)e;
    *n = 0;
    for (int k = 0; has_epilogue(g) && k < (all ? all : 1); k++)
        if ((size_t)k * EACH <= workspace) id[(*n)++] = (EngineId){.engine = k};
    return OK;
}

int gemm_open(CudaDevice *c, const Gemm *g, const EngineId *id, size_t workspace, GemmPlan **plan, Err *e) {
    double ms[MOST];
    int n = algorithms(ms);
    int64_t k = id ? id->engine : 0;
    (void)c;
    *plan = NULL;
    if (!has_epilogue(g) || k >= (n ? n : 1) || (n && (size_t)k * EACH > workspace)) return OK;
    GemmPlan *p = mem_new(sizeof *p);
    if (!p) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    *p = (GemmPlan){*g, k, n ? (size_t)k * EACH : workspace, n ? 1e-3 * ms[k] : 0};
    *plan = p;
    return OK;
}

void gemm_id(const GemmPlan *plan, EngineId *id) { *id = (EngineId){.engine = plan->algorithm}; }
size_t gemm_workspace(const GemmPlan *plan) { return plan->workspace; }

void gemm_close(GemmPlan *plan) { mem_free(plan); }

static float a_at(const GemmCall *c, int64_t i, int64_t l) {
    const Gemm *g = &c->g;
    const int64_t stride = g->a_stride ? g->a_stride : g->a_transposed ? g->m : g->k;
    return dtype_load(g->in, c->a, (size_t)(c->index * g->a_step + (g->a_transposed ? l * stride + i : i * stride + l)));
}

static float b_at(const GemmCall *c, int64_t l, int64_t j) {
    const Gemm *g = &c->g;
    const int64_t stride = g->b_stride ? g->b_stride : g->b_transposed ? g->k : g->n;
    return dtype_load(g->in, c->b, (size_t)(c->index * g->b_step + (g->b_transposed ? j * stride + l : l * stride + j)));
}

/* A tile of D: the sums of its rows and columns, each over all of k in its order. An operand's number is read once per tile,
 * not once per product. Static, since a kernel allocates nothing. */
enum { ROWS = 64, COLUMNS = 256, DEPTH = 128 };
static double sums[ROWS][COLUMNS];
static float b_part[DEPTH][COLUMNS];

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void tile_sum(const GemmCall *c, int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
    const int64_t k = c->g.k;
    for (int64_t l0 = 0; l0 < k; l0 += DEPTH) {
        const int64_t depth = least(DEPTH, k - l0);
        for (int64_t l = 0; l < depth; l++)
            for (int64_t j = 0; j < columns; j++) b_part[l][j] = b_at(c, l0 + l, j0 + j);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t l = 0; l < depth; l++) {
                const double a = a_at(c, i0 + i, l0 + l);
                for (int64_t j = 0; j < columns; j++) sums[i][j] += a * b_part[l][j];
            }
    }
}

static void tile_compute(const GemmCall *c, int64_t i0, int64_t j0) {
    const Gemm *g = &c->g;
    const int64_t rows = least(ROWS, g->m - i0), columns = least(COLUMNS, g->n - j0), stride = g->d_stride ? g->d_stride : g->n;
    const bool bias = g->epilogue == GEMM_BIAS || g->epilogue == GEMM_BIAS_RELU;
    const bool relu = g->epilogue == GEMM_RELU || g->epilogue == GEMM_BIAS_RELU;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) sums[i][j] = bias ? dtype_load(g->out, c->vector, (size_t)(j0 + j)) : 0;
    tile_sum(c, i0, rows, j0, columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const size_t to = (size_t)(c->index * g->d_step + (i0 + i) * stride + j0 + j);
            double sum = relu && sums[i][j] < 0 ? 0 : sums[i][j];
            if (c->add) sum += dtype_load(g->out, c->d, to);
            dtype_store(g->out, c->d, to, (float)sum);
            shadow_wrote((char *)c->d + to * dtype_size(g->out), dtype_size(g->out));
        }
}

static void sum_rows(const GemmCall *c) {
    for (int64_t i = 0; i < c->g.m; i++) {
        double sum = 0;
        for (int64_t l = 0; l < c->g.k; l++) sum += a_at(c, i, l);
        dtype_store(c->g.out, c->vector, (size_t)i, (float)sum);
    }
}

static void compute(void *args) {
    GemmCall c = *(const GemmCall *)args;
    emulate_spend(c.seconds);
    if (c.workspace_bytes) memset(c.workspace, 0xEE, c.workspace_bytes);
    for (c.index = 0; c.index < (c.g.batch ? c.g.batch : 1); c.index++) {
        for (int64_t i = 0; i < c.g.m; i += ROWS)
            for (int64_t j = 0; j < c.g.n; j += COLUMNS) tile_compute(&c, i, j);
        if (c.g.epilogue == GEMM_SUM_A) sum_rows(&c);
    }
    if (c.g.epilogue == GEMM_SUM_A) shadow_wrote(c.vector, (size_t)c.g.m * dtype_size(c.g.out));
}

static int enqueue(CudaDevice *c, GemmCall *call, Err *e) {
    cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = c->stream};
    return cuda_check(c, emulate_launch(&config, NULL, compute, call, sizeof *call), "a product", e);
}

int gemm_run(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *vector, void *d, void *workspace, Err *e) {
    GemmCall call = {p->g, a, b, vector, d, workspace, p->workspace, p->seconds, 0, false};
    return enqueue(c, &call, e);
}

int gemm_add(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *d, void *workspace, Err *e) {
    GemmCall call = {p->g, a, b, NULL, d, workspace, p->workspace, p->seconds, 0, true};
    return enqueue(c, &call, e);
}
