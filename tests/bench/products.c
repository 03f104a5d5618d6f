/* products.c: matrix products of kernels/cpu/gemm.h beside oneDNN's sgemm, and a library's cblas_sgemm if its path is
 * given, and a kernel that libxsmm makes for the shape, on one thread, if that one is; on shapes of transformers and
 * recurrent layers, or those that are given as m,n,k. Prints GFLOP/s of each, the best of several runs, which take turns, and
 * of the roof (roof.h) likewise. Every result is compared with sums in float64. make bench-products */
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "gemm.h"
#include "roof.h"

enum { ROUNDS = 7, PLACES = 200, ROOF_LOOPS = 20000, SHAPES = 16 /* that may be given */ };
typedef enum Way { ONEDNN, BLAS, XSMM, FP32, BF16, PACKED, WAYS } Way;
static const double ROUND_SECONDS = 0.02, PACE = 1e11; /* of a way in a round, at so many operations per second */
static const char *const names[WAYS] = {"onednn", "blas", "libxsmm", "gemm_fp32", "gemm_bf16", "gemm_packed"};

typedef void Sgemm(int order, int a_turned, int b_turned, int m, int n, int k, float alpha, const float *a, int a_step,
                   const float *b, int b_step, float beta, float *c, int c_step);
enum { BLAS_BY_ROWS = 101, BLAS_PLAIN = 111, BLAS_TURNED = 112 };
/* Of matrices by columns: so it multiplies b's transpose by a's. NULL: there is none for such factors */
typedef void Kernel(const float *a, const float *b, float *c);
typedef Kernel *Dispatch(int m, int n, int k, const int *a_step, const int *b_step, const int *c_step, const float *alpha,
                         const float *beta, const int *flags, const int *prefetch);
typedef struct Peers { Sgemm *blas; Dispatch *dispatch; } Peers;

typedef struct Case { int64_t m, n, k; } Case;
static const Case cases[] = {{16, 32, 32}, {32, 64, 64}, {64, 64, 64}, {8, 1024, 256}, {32, 1024, 256}, {32, 256, 1024}, {128, 1024, 256}, {1024, 128, 128},
                             {1024, 512, 128}, {1024, 128, 512}, {1024, 384, 384}, {1024, 1024, 384}, {1024, 384, 1024},
                             {384, 1024, 1024}, {2048, 1024, 256}, {128, 512, 4096}, {2048, 2048, 2048}};
/* lies: how a and b lie, in BLAS's letters */
typedef struct Lies { const char *name; bool a, b; } Lies;
static const Lies lies[] = {{"nn", false, false}, {"nt", false, true}, {"tn", true, false}};

typedef struct Bench {
    Case shape;
    Lies lies;
    float *a, *b, *c, *packed, *workspace;
    uint16_t *narrow_a, *narrow_b, *narrow_c;
    Gemm way[WAYS];             /* from FP32 on */
    size_t bytes[WAYS];
    Sgemm *blas;
    Kernel *kernel;
} Bench;

/* As the CPU device has it: large pages, if the system has some */
static void *must(size_t bytes) {
    enum { LARGE_PAGE = 2 << 20 };
    const size_t alignment = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
    void *p = aligned_alloc(alignment, align_up(bytes, alignment));
    if (p && bytes >= LARGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
    if (p) return p;
    fputs("no memory\n", stderr);
    exit(1);
}

static void fill(float *wide, uint16_t *narrow, int64_t n) {
    static uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        narrow[i] = bf16_from_f32((float)(state >> 8) / 8388608.0f - 1.0f);
        wide[i] = bf16_to_f32(narrow[i]);
    }
}

static void round_sums(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    uint16_t *c = (uint16_t *)(uintptr_t)g->of;
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t i = 0; i < columns; i++) c[(row + r) * g->n + column + i] = bf16_from_f32(sums[r * step + i]);
    }
}

static void open_bench(Bench *b, Case s, Lies l, int threads, Peers peers) {
    const int64_t a_step = l.a ? s.m : s.k, b_step = l.b ? s.k : s.n, of_a = s.m * s.k, of_b = s.k * s.n, of_c = s.m * s.n;
    *b = (Bench){.shape = s, .lies = l, .blas = peers.blas, .a = must((size_t)of_a * 4), .b = must((size_t)of_b * 4),
                 .c = must((size_t)of_c * 4), .narrow_a = must((size_t)of_a * 2), .narrow_b = must((size_t)of_b * 2),
                 .narrow_c = must((size_t)of_c * 2), .packed = must((size_t)gemm_packed(s.n, s.k) * 4)};
    fill(b->a, b->narrow_a, of_a);
    fill(b->b, b->narrow_b, of_b);
    Gemm g = {.m = s.m, .n = s.n, .k = s.k, .a = {DT_F32, b->a, a_step, l.a}, .b = {DT_F32, b->b, b_step, l.b}, .scale = 1,
              .c = b->c, .c_step = s.n, .threads = threads};
    gemm_pack(&g, b->packed);
    b->way[FP32] = b->way[BF16] = b->way[PACKED] = g;
    b->way[BF16].a.type = b->way[BF16].b.type = DT_BF16;
    b->way[BF16].a.at = b->narrow_a, b->way[BF16].b.at = b->narrow_b;
    b->way[BF16].c = NULL, b->way[BF16].leave = round_sums, b->way[BF16].of = b->narrow_c;
    b->way[PACKED].packed = b->packed;
    const int m = (int)s.n, n = (int)s.m, k = (int)s.k;
    const float zero = 0;
    if (peers.dispatch && threads == 1 && !l.a && !l.b) b->kernel = peers.dispatch(m, n, k, &m, &k, &m, NULL, &zero, NULL, NULL);
    size_t most = 0;
    for (int w = FP32; w < WAYS; w++) most = max_size(most, b->bytes[w] = gemm_workspace(&b->way[w], SIZE_MAX));
    b->workspace = must(most);
}

static void close_bench(Bench *b) {
    void *const all[] = {b->a, b->b, b->c, b->packed, b->workspace, b->narrow_a, b->narrow_b, b->narrow_c};
    for (size_t k = 0; k < ARRAY_LEN(all); k++) free(all[k]);
}

static bool is_there(const Bench *b, int way) { return way == BLAS ? b->blas != NULL : way == XSMM ? b->kernel != NULL : true; }

static void run(Bench *b, int way) {
    const Gemm *g = &b->way[FP32];
    const int m = (int)g->m, n = (int)g->n, k = (int)g->k, as = (int)g->a.stride, bs = (int)g->b.stride;
    const bool ta = b->lies.a, tb = b->lies.b;
    switch (way) {
    case ONEDNN: dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, b->a, as, b->b, bs, 0, b->c, n); break;
    case BLAS:
        b->blas(BLAS_BY_ROWS, ta ? BLAS_TURNED : BLAS_PLAIN, tb ? BLAS_TURNED : BLAS_PLAIN, m, n, k, 1, b->a, as, b->b, bs, 0,
                b->c, n);
        break;
    case XSMM: b->kernel(b->b, b->a, b->c); break;
    default: gemm_run(&b->way[way], b->workspace, b->bytes[way]);
    }
}

/* Sums of k products of numbers up to 1 are right to some 2^-24 sqrt(k) sqrt(k), and to 2^-9 of them in bf16. */
static bool is_right(const Bench *b, int way) {
    const Case s = b->shape;
    for (int64_t i = 0; i < PLACES; i++) {
        const int64_t at = i * (s.m * s.n - 1) / (PLACES - 1), row = at / s.n, column = at % s.n;
        double sum = 0;
        for (int64_t k = 0; k < s.k; k++) {
            const float x = b->a[b->lies.a ? k * s.m + row : row * s.k + k];
            sum += (double)x * b->b[b->lies.b ? column * s.k + k : k * s.n + column];
        }
        const double found = way == BF16 ? bf16_to_f32(b->narrow_c[at]) : b->c[at];
        if (fabs(found - sum) > 0x1p-24 * (double)(s.k + 8) + (way == BF16 ? 0x1p-8 : 0) * fabs(sum)) return false;
    }
    return true;
}

static bool measure(Bench *b) {
    const Case s = b->shape;
    const double work = 2.0 * (double)s.m * (double)s.n * (double)s.k;
    double best[WAYS], roof = 0;
    bool right = true;
    for (int w = 0; w < WAYS; w++) best[w] = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        roof = fmax(roof, roof_round(ROOF_LOOPS));
        for (int w = 0; w < WAYS; w++)
            for (double k = 0; k < 1 + ROUND_SECONDS * PACE / work && is_there(b, w); k++) {
                const double begin = omp_get_wtime();
                run(b, w);
                best[w] = fmin(best[w], omp_get_wtime() - begin);
            }
    }
    printf("%lld,%lld,%lld,%s,%.0f", (long long)s.m, (long long)s.n, (long long)s.k, b->lies.name, roof / 1e9);
    for (int w = 0; w < WAYS; w++) {
        if (!is_there(b, w)) {
            printf(",");
            continue;
        }
        run(b, w);
        right &= is_right(b, w);
        printf(",%.0f", work / best[w] / 1e9);
    }
    puts(right ? "" : ",WRONG");
    fflush(stdout);
    return right;
}

/* What the library at the path has of the peers */
static void open_peer(const char *path, Peers *p) {
    void *library = dlopen(path, RTLD_NOW), *blas = NULL, *dispatch = NULL;
    if (library) blas = dlsym(library, "cblas_sgemm"), dispatch = dlsym(library, "libxsmm_smmdispatch");
    if (blas) *(void **)&p->blas = blas;
    if (dispatch) *(void **)&p->dispatch = dispatch;
    if (blas || dispatch) return;
    fprintf(stderr, "%s: neither cblas_sgemm nor libxsmm_smmdispatch: %s\n", path, dlerror());
    exit(1);
}

int main(int argc, char **argv) {
    Peers peers = {NULL, NULL};
    Case given[SHAPES];
    size_t n = 0;
    bool right = true;
    for (int k = 1; k < argc; k++) {
        long long rows, columns, depth;
        if (n < SHAPES && sscanf(argv[k], "%lld,%lld,%lld", &rows, &columns, &depth) == 3 && rows > 0 && columns > 0 && depth > 0)
            given[n++] = (Case){rows, columns, depth};
        else open_peer(argv[k], &peers);
    }
    const Case *shapes = n ? given : cases;
    if (!n) n = ARRAY_LEN(cases);
    printf("rows,columns,depth,lie,roof");
    for (int w = 0; w < WAYS; w++) printf(",%s", names[w]);
    puts("");
    for (size_t k = 0; k < n; k++)
        for (size_t l = 0; l < ARRAY_LEN(lies); l++) {
            Bench b;
            open_bench(&b, shapes[k], lies[l], omp_get_max_threads(), peers);
            right &= measure(&b);
            close_bench(&b);
        }
    return !right;
}
