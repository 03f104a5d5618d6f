/* t_gemm.c: gemm.h's products against float64: gemm.c by cuBLASLt's stand-in. Every transposition, type, epilogue, rows that
 * do not lie side by side, many products in one call, D that is added to, and every algorithm by its name. */
#include <stdlib.h>

#include "cuda.h"
#include "gemm.h"
#include "tap.h"

enum { M = 5, N = 70, K = 131, BATCH = 3, PAD = 3, LIMIT = 1 << 12, ALGORITHMS = 3, WORD = 16 };

/* Errors: of a product in float64, and of one whose factors are rounded to TF32's 10 bits */
static const double FINE = 1e-6, ROUNDED = 12 * 0x1p-10;

int memtide_cuda_open(const char *name, Device **out, Err *e);

static Device *device;
static uint32_t drawn;

/* A row-major matrix, as many as the product has: their numbers in float64, and where they are on the device */
typedef struct Matrix { int64_t rows, columns, stride, step, count; DType type; double *exact; char *host; void *device; } Matrix;

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static size_t matrix_bytes(const Matrix *a) { return (size_t)a->count * dtype_size(a->type); }
static size_t allocated_bytes(const Matrix *a) { return align_up(WORD + matrix_bytes(a), CUDA_ALIGNMENT); }

/* Places between its rows, and between matrices, hold numbers, too: who reads or writes them is found. It starts at a whole
 * 16-byte word, and at no larger one. */
static Matrix matrix_new(int64_t rows, int64_t columns, bool strided, int64_t batch, DType t) {
    Matrix a = {.rows = rows, .columns = columns, .stride = columns + (strided ? PAD : 0), .type = t};
    Err e;
    a.step = (int64_t)align_up((size_t)(rows * a.stride), 16);
    a.count = a.step * (batch ? batch : 1);
    a.exact = must(malloc((size_t)a.count * sizeof *a.exact));
    a.host = must(malloc((size_t)a.count * dtype_size(t)));
    for (int64_t i = 0; i < a.count; i++) {
        dtype_store(t, a.host, (size_t)i, 2 * rng_uniform(philox(7, RNG_DATA, 0, 0, drawn++).x[0]) - 1);
        a.exact[i] = dtype_load(t, a.host, (size_t)i);
    }
    if (device->table->alloc(device, allocated_bytes(&a), &a.device, &e)) must(NULL);
    a.device = (char *)a.device + WORD;
    if (device->table->upload(device, a.device, a.host, matrix_bytes(&a), &e)) must(NULL);
    return a;
}

static void matrix_free(Matrix *a) {
    device->table->free(device, (char *)a->device - WORD, allocated_bytes(a));
    free(a->exact);
    free(a->host);
}

static double at(const Matrix *a, bool transposed, int64_t which, int64_t i, int64_t j) {
    return a->exact[which * a->step + (transposed ? j * a->stride + i : i * a->stride + j)];
}

/* What D and the vector become */
static void expect(const Gemm *g, const Matrix *a, const Matrix *b, Matrix *vector, Matrix *d, bool add) {
    for (int64_t which = 0; which < (g->batch ? g->batch : 1); which++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0, *to = &d->exact[which * d->step + i * d->stride + j];
                for (int64_t l = 0; l < g->k; l++)
                    sum += at(a, g->a_transposed, which, i, l) * at(b, g->b_transposed, which, l, j);
                if (g->epilogue == GEMM_BIAS || g->epilogue == GEMM_BIAS_RELU) sum += vector->exact[j];
                if ((g->epilogue == GEMM_RELU || g->epilogue == GEMM_BIAS_RELU) && sum < 0) sum = 0;
                *to = add ? *to + sum : sum;
            }
    for (int64_t i = 0; g->epilogue == GEMM_SUM_A && i < g->m; i++) {
        vector->exact[i] = 0;
        for (int64_t l = 0; l < g->k; l++) vector->exact[i] += at(a, g->a_transposed, 0, i, l);
    }
}

/* The largest error of any number of the storage, beyond the last rounding: what is not a result stays as it was. */
static double error_of(Matrix *a) {
    const double unit = a->type == DT_BF16 ? 0x1p-8 : a->type == DT_F16 ? 0x1p-11 : 0x1p-23;
    double largest = 0;
    Err e;
    if (device->table->download(device, a->host, a->device, matrix_bytes(a), &e)) return INFINITY;
    for (int64_t i = 0; i < a->count; i++) {
        const double error = fabs(dtype_load(a->type, a->host, (size_t)i) - a->exact[i]) - unit * fabs(a->exact[i]);
        if (isnan(error)) return INFINITY;
        largest = fmax(largest, error);
    }
    return largest;
}

/* id: NULL: the library's first algorithm */
static void check(Gemm g, const EngineId *id, bool strided, bool add) {
    static const char *const names[] = {"", ", relu", ", bias", ", bias and relu", ", sums of A"};
    const bool vector = g.epilogue >= GEMM_BIAS, rounds = g.tf32 && g.in == DT_F32;
    CudaDevice *c = (CudaDevice *)device;
    GemmPlan *plan = NULL;
    void *workspace;
    Err e = {0, ""};
    Matrix a = matrix_new(g.a_transposed ? g.k : g.m, g.a_transposed ? g.m : g.k, strided, g.batch, g.in);
    Matrix b = matrix_new(g.b_transposed ? g.n : g.k, g.b_transposed ? g.k : g.n, strided, g.batch, g.in);
    Matrix d = matrix_new(g.m, g.n, strided, g.batch, g.out);
    Matrix v = matrix_new(1, g.epilogue == GEMM_SUM_A ? g.m : g.n, false, 0, g.out);
    if (strided) g.a_stride = a.stride, g.b_stride = b.stride, g.d_stride = d.stride;
    if (g.batch) g.a_step = a.step, g.b_step = b.step, g.d_step = d.step;
    expect(&g, &a, &b, &v, &d, add);
    if (device->table->alloc(device, LIMIT, &workspace, &e)) must(NULL);
    int code = gemm_open(c, &g, id, LIMIT, &plan, &e);
    if (!code && plan)
        code = add ? gemm_add(c, plan, a.device, b.device, d.device, workspace, &e)
                   : gemm_run(c, plan, a.device, b.device, vector ? v.device : NULL, d.device, workspace, &e);
    if (!code) code = device->table->sync(device, &e);
    const double error = code ? INFINITY : error_of(&d);
    ok(!code && plan && (rounds ? error > FINE && error < ROUNDED : error < FINE) && error_of(&v) < FINE,
       "%s%s %s to %s%s%s%s%s%s, error %.2g %s", g.a_transposed ? "A^T" : "A",
       g.b_transposed ? "B^T" : "B", dtype_name(g.in), dtype_name(g.out), names[g.epilogue], strided ? ", strided" : "",
       g.batch ? ", many" : "", add ? ", added" : "", id ? ", by name" : "", error, e.text);
    gemm_close(plan);
    device->table->free(device, workspace, LIMIT);
    matrix_free(&a), matrix_free(&b), matrix_free(&d), matrix_free(&v);
}

static void test_products(void) {
    static const struct { DType in, out; bool tf32; } types[] = {
        {DT_F32, DT_F32, false}, {DT_F32, DT_F32, true}, {DT_BF16, DT_BF16, false}, {DT_F16, DT_F16, false}, {DT_BF16, DT_F32, true}};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (int k = 0; k < 16; k++) {
            const bool strided = k & 4, many = k & 8;
            Gemm g = {.m = M, .n = N, .k = K, .a_transposed = k & 1, .b_transposed = k & 2, .in = types[t].in,
                      .out = types[t].out, .tf32 = types[t].tf32, .batch = many ? BATCH : 0};
            check(g, NULL, strided, false);
            check(g, NULL, strided, true);
            for (g.epilogue = GEMM_RELU; !many && g.epilogue <= GEMM_SUM_A; g.epilogue++) check(g, NULL, strided, false);
        }
    check((Gemm){.m = 300, .n = 150, .k = 9, .a_transposed = true, .in = DT_BF16, .out = DT_F32, .epilogue = GEMM_SUM_A}, NULL,
          false, false);
}

static void test_names(void) {
    const Gemm g = {.m = M, .n = N, .k = K, .b_transposed = true, .in = DT_BF16, .out = DT_F32};
    CudaDevice *c = (CudaDevice *)device;
    EngineId id[GEMM_CANDIDATES], again;
    GemmPlan *plan;
    Err e;
    int n;
    char text[ENGINE_TEXT];
    setenv("EMULATE_PRODUCTS", "0 0 0", 1);
    ok(!gemm_candidates(c, &g, LIMIT, id, &n, &e) && n == ALGORITHMS, "the library's algorithms");
    is_str(engine_text(&id[2], text), "2 2=2 3=2", "the third splits sums in two");
    for (int k = 0; k < n; k++) check(g, &id[k], false, false);
    ok(!gemm_candidates(c, &g, 300, id, &n, &e) && n == 2, "two of them fit into 300 bytes");
    ok(!gemm_open(c, &g, &(EngineId){.engine = 2}, LIMIT, &plan, &e) && !plan, "an algorithm without its knobs is none");
    ok(!gemm_open(c, &g, &(EngineId){.engine = 1}, 255, &plan, &e) && !plan, "one with more bytes than there are is none");
    if (ok(!gemm_open(c, &g, &(EngineId){.engine = 1}, 256, &plan, &e) && plan, "one with as many is there")) {
        gemm_id(plan, &again);
        is_int(again.engine, 1, "and it is this one");
        is_int((long long)gemm_workspace(plan), 256, "with its bytes");
    }
    gemm_close(plan);
    unsetenv("EMULATE_PRODUCTS");
}

/* A library without epilogues has no product with one. Matrices start at 16-byte words, in one allocation. A GPU that a
 * product loses is lost. It comes last. */
static void test_refusals(void) {
    Gemm g = {.m = M, .n = N, .k = K, .in = DT_F32, .out = DT_F32, .epilogue = GEMM_RELU};
    CudaDevice *c = (CudaDevice *)device;
    GemmPlan *plan;
    Err e;
    setenv("EMULATE_EPILOGUES", "0", 1);
    ok(!gemm_open(c, &g, NULL, LIMIT, &plan, &e) && !plan, "no epilogue");
    unsetenv("EMULATE_EPILOGUES");
    g.epilogue = GEMM_PLAIN;
    g.in = DT_BF16, g.out = DT_F16;
    ok(!gemm_open(c, &g, NULL, LIMIT, &plan, &e) && !plan, "no product of bf16 in f16");
    g.in = g.out = DT_F32;
    Matrix a = matrix_new(M, K, false, 0, DT_F32), b = matrix_new(K, N, false, 0, DT_F32), d = matrix_new(M, N, false, 0, DT_F32);
    if (!ok(!gemm_open(c, &g, NULL, 0, &plan, &e) && plan, "a product")) return;
    is_int(gemm_run(c, plan, (char *)a.device + 4, b.device, NULL, d.device, NULL, &e), ERR_INTERNAL, "between words");
    has_text(e.text, "multiple of 16 bytes", "which is said");
    is_int(gemm_run(c, plan, a.device, b.device, NULL, a.host, NULL, &e), ERR_DEVICE, "D in the host's memory");
    has_text(e.text, "a product: cudaErrorIllegalAddress", "is an illegal address");
    is_int(cuda_ready(c, &e), ERR_DEVICE, "by which the GPU is lost");
    has_text(e.text, "the GPU was lost: a product", "and the message names the product");
    gemm_close(plan);
    matrix_free(&a), matrix_free(&b), matrix_free(&d);
}

int main(void) {
    Err e;
    if (!ok(!memtide_cuda_open("cuda:0", &device, &e), "the emulated GPU opens")) return tap_done();
    test_products();
    test_names();
    test_refusals();
    device->table->close(device);
    return tap_done();
}
