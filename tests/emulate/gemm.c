/* gemm.c: stands in for kernels/cuda/gemm.c: products as plain loops in float64 that write into all of their workspace.
 * EMULATE_EPILOGUES=0: the library has none but the plain one. */
#include "gemm.h"

#include <stdlib.h>

#include "emulate.h"
#include "mem.h"

struct GemmPlan { Gemm g; size_t workspace; };

/* A call as it is enqueued. */
typedef struct GemmCall {
    Gemm g;
    const void *a, *b;
    void *vector, *d, *workspace;
    size_t workspace_bytes;
} GemmCall;

int gemm_open(CudaDevice *c, const Gemm *g, size_t workspace, GemmPlan **plan, Err *e) {
    const char *epilogues = getenv("EMULATE_EPILOGUES");
    (void)c;
    *plan = NULL;
    if (g->epilogue && epilogues && *epilogues == '0') return OK;
    GemmPlan *p = mem_new(sizeof *p);
    if (!p) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    p->g = *g;
    p->workspace = workspace;
    *plan = p;
    return OK;
}

void gemm_close(GemmPlan *plan) { mem_free(plan); }

static double a_at(const GemmCall *c, int64_t i, int64_t l) {
    const Gemm *g = &c->g;
    return dtype_load(g->in, c->a, (size_t)(g->a_turned ? l * g->m + i : i * g->k + l));
}

static double b_at(const GemmCall *c, int64_t l, int64_t j) {
    const Gemm *g = &c->g;
    return dtype_load(g->in, c->b, (size_t)(g->b_turned ? j * g->k + l : l * g->n + j));
}

static void row_compute(const GemmCall *c, int64_t i) {
    const Gemm *g = &c->g;
    bool bias = g->epilogue == GEMM_BIAS || g->epilogue == GEMM_BIAS_RELU;
    for (int64_t j = 0; j < g->n; j++) {
        double sum = bias ? dtype_load(g->out, c->vector, (size_t)j) : 0;
        for (int64_t l = 0; l < g->k; l++) sum += a_at(c, i, l) * b_at(c, l, j);
        if ((g->epilogue == GEMM_RELU || g->epilogue == GEMM_BIAS_RELU) && sum < 0) sum = 0;
        dtype_store(g->out, c->d, (size_t)(i * g->n + j), (float)sum);
    }
}

static void compute(void *args) {
    const GemmCall *c = args;
    if (c->workspace_bytes) memset(c->workspace, 0xEE, c->workspace_bytes);
    for (int64_t i = 0; i < c->g.m; i++) {
        double sum = 0;
        row_compute(c, i);
        for (int64_t l = 0; c->g.epilogue == GEMM_SUM_A && l < c->g.k; l++) sum += a_at(c, i, l);
        if (c->g.epilogue == GEMM_SUM_A) dtype_store(c->g.out, c->vector, (size_t)i, (float)sum);
    }
}

int gemm_run(CudaDevice *c, GemmPlan *p, const void *a, const void *b, void *vector, void *d, void *workspace, Err *e) {
    GemmCall call = {p->g, a, b, vector, d, workspace, p->workspace};
    cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = c->stream};
    return cuda_check(c, emulate_launch(&config, compute, &call, sizeof call), "a product", e);
}
