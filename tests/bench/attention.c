/* attention.c: attention on the CPU, forward and backward, beside the roof (roof.h). A product of all queries with all
 * keys is 2 T^2 D operations for each head, half of them if causal; forward has two products, backward five. Prints
 * GFLOP/s of each, the best of several runs, and their parts of the roof. make bench-attention
 *
 * Arguments: the element type (fp32), how many of the cases (all), how many heads of keys and values share one (1), and
 * what is dropped (0). Each case has 8 heads at most, and 4,096 tokens at least, of one or several sequences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "memory/device.h"
#include "roof.h"

enum { ROUNDS = 5, ROOF_LOOPS = 400000, MOST_TOKENS = 4096 };
static const double ROUND_SECONDS = 0.05;

typedef struct Case { int64_t tokens, width; bool causal; } Case;

static void *must(void *p) {
    if (p) return p;
    fputs("no memory\n", stderr);
    exit(1);
}

static void must_not(int code, const Err *e) {
    if (!code) return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static View view_new(Shape shape, DType t) {
    static uint32_t drawn = 1;
    View v = {.shape = shape, .dtype = t, .count = shape_elements(&shape)};
    v.data = must(aligned_alloc(64, align_up((size_t)v.count * dtype_size(t), 64)));
    for (int64_t i = 0; i < v.count && dtype_is_float(t); i++) {
        drawn = drawn * 1664525u + 1013904223u;
        dtype_store(t, v.data, (size_t)i, (float)(drawn >> 8) / 8388608.0f - 1.0f);
    }
    return v;
}

static void prepare(Device *d, KArgs *a) {
    Err e;
    must_not(d->table->prepare(d, a, (size_t)4 << 20, &a->state, &a->workspace_bytes, &e), &e);
    a->workspace = must(aligned_alloc(64, align_up(max_size(a->workspace_bytes, 1), 64)));
}

/* The best of several rounds; each of as many runs as take some time */
static double seconds_of(Device *d, const KArgs *a) {
    double best = INFINITY;
    Err e;
    for (int round = 0; round < ROUNDS; round++)
        for (double begin = omp_get_wtime(), now = begin; now - begin < ROUND_SECONDS;) {
            const double from = omp_get_wtime();
            must_not(d->table->run(d, a, &e), &e);
            now = omp_get_wtime();
            best = fmin(best, now - from);
        }
    return best;
}

static void measure(Device *d, const Case *c, DType t, int group, float p, double roof) {
    const int heads = c->tokens > 1024 ? 2 : 8;
    const int64_t samples = max_i64(1, MOST_TOKENS / 8 / c->tokens), all = heads * c->width, shared = all / group;
    const Attr attr = {.attention = {heads, heads / group, c->causal, true, 1 / sqrtf((float)c->width), p, 1, 0, 0}};
    KArgs f = {.kind = OP_attention, .attr = &attr, .seed = 1, .device = d}, b = {.kind = OP_attention_dx, .attr = &attr, .seed = 1, .device = d};
    f.attention.q = view_new(shape3(samples, c->tokens, all + 2 * shared), t);
    f.attention.y = view_new(shape3(samples, c->tokens, all), t);
    f.attention.lse = view_new(shape3(samples, heads, c->tokens), DT_F32);
    if (p > 0) {
        f.attention.calls = view_new(shape1(1), DT_I32);
        *(int32_t *)f.attention.calls.data = 1;
    }
    b.attention_dx.q = f.attention.q;
    b.attention_dx.y = f.attention.y;
    b.attention_dx.lse = f.attention.lse;
    b.attention_dx.calls = f.attention.calls;
    b.attention_dx.dy = view_new(f.attention.y.shape, t);
    b.attention_dx.dq = view_new(f.attention.q.shape, t);
    prepare(d, &f);
    prepare(d, &b);
    const double forward = seconds_of(d, &f), backward = seconds_of(d, &b);
    const double square = (double)c->tokens * (double)(c->causal ? c->tokens + 1 : 2 * c->tokens);
    const double work = 2 * square * (double)(c->width * heads * samples); /* of the two products forward */
    const double y = work / forward / 1e9, dx = 2.5 * work / backward / 1e9;
    printf("%s,%lld,%lld,%d,%lld,%d,%s,%g,%.0f,%.0f,%.0f,%.0f\n", dtype_name(t), (long long)samples, (long long)c->tokens,
           heads, (long long)c->width, group, c->causal ? "causal" : "plain", (double)p, y, dx, 100e9 * y / roof, 100e9 * dx / roof);
    fflush(stdout);
    void *const own[] = {f.attention.q.data, f.attention.y.data, f.attention.lse.data, f.attention.calls.data,
        b.attention_dx.dy.data, b.attention_dx.dq.data, f.workspace, b.workspace};
    for (size_t k = 0; k < ARRAY_LEN(own); k++) free(own[k]);
    d->table->trim(d, true);
}

int main(int argc, char **argv) {
    DType t = DT_F32;
    const int64_t most = argc > 2 ? atoll(argv[2]) : MOST_TOKENS;
    const int group = argc > 3 ? atoi(argv[3]) : 1;
    const float p = argc > 4 ? (float)atof(argv[4]) : 0;
    Device *d;
    Err e;
    for (int k = 0; k < DT_COUNT && argc > 1; k++)
        if (!strcmp(argv[1], dtype_name((DType)k))) t = (DType)k;
    must_not(device_open("cpu", &d, &e), &e);
    const double roof = roof_flops(ROOF_LOOPS);
    printf("roof: %.0f GFLOP/s in fp32 on %d threads\n", roof / 1e9, omp_get_max_threads());
    puts("type,samples,tokens,heads,width,group,kind,dropout,forward,backward,forward_percent,backward_percent");
    for (int64_t tokens = 128; tokens <= most; tokens *= 2)
        for (int64_t width = 32; width <= 128; width *= 2)
            for (int causal = 0; causal < 2; causal++)
                measure(d, &(Case){tokens, width, causal}, t, group, p, roof);
    device_close(d);
    return 0;
}
