/* t_threads.c: the number of threads changes no bit. Each op and each training runs on CPU devices that were opened with 1, 2, 3,
 * 4, 8 and 16 threads; results, losses and parameters are compared bit by bit.
 *
 *   OPS=2000 SEED=7 NETS=all t_threads
 *
 * runs that many random convolutions and linear layers, from that seed on, and every network in every precision, with every
 * limit of workspace and every number of threads (make threads-check): else with up to 3 and with 16, as more threads than
 * processors take long. */
#include <omp.h>
#include <stdlib.h>

#include "../../kernels/cpu/cpu.h"
#include "../../kernels/cpu/isa.h"
#include "base/mem.h"
#include "math/rng.h"
#include "memory/device.h"
#include "run/runtime.h"
#include "sample.h"
#include "tap.h"
#include "unit/nets.h"

/* The threads of the last device leave all results past the caches (kernels/cpu/leave.h), which else only happens on some machines. */
static const int threads[] = {1, 2, 3, 4, 8, 16, 3};
enum { COUNTS = sizeof threads / sizeof threads[0], PAST = COUNTS - 1, OPERANDS = OP_IN + OP_OUT };

static Device *devices[COUNTS];

/* From now on all is done as device d does it. */
static void begin_on(int d) {
    static int patience;
    int *const now = ((CpuDevice *)devices[d])->kernels->leave_patience;
    if (*now >= 0) patience = *now;
    *now = d == PAST ? -1 : patience;
    omp_set_num_threads(threads[d]);
}

/* ---- ops */

static View view(Shape shape, DType t) {
    return (View){.shape = shape, .dtype = t, .channels_last = shape.rank == 4, .count = shape_elements(&shape)};
}

static View *operand(KArgs *a, int k) { return k < OP_IN ? &a->in[k] : &a->out[k - OP_IN]; }

static size_t bytes_of(const View *v) { return align_up((size_t)v->count * dtype_size(v->dtype), 64); }

static void *must(void *p) {
    if (p) return p;
    puts("Bail out! no memory");
    exit(1);
}

static void *room(size_t bytes) { return must(aligned_alloc(64, align_up(bytes + 1, 64))); }

static void fill(const View *v, uint32_t seed) {
    for (int64_t i = 0; i < v->count; i++) {
        seed = seed * 1664525u + 1013904223u;
        dtype_store(v->dtype, v->data, (size_t)i, (float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

/* Runs the op on a device, its outputs into out[OP_OUT]. */
static int run_on(int d, const KArgs *op, size_t limit, void *const *out, Err *e) {
    KArgs a = *op;
    View dry[OPERANDS];
    a.device = devices[d];
    begin_on(d);
    for (int k = 0; k < OPERANDS; k++) dry[k] = *operand(&a, k), operand(&a, k)->data = NULL;
    int code = devices[d]->table->prepare(devices[d], &a, limit, &a.state, &a.workspace_bytes, e);
    for (int k = 0; k < OPERANDS; k++) *operand(&a, k) = dry[k];
    for (int k = 0; k < OP_OUT; k++) a.out[k].data = out[k];
    a.workspace = room(a.workspace_bytes);
    memset(a.workspace, 0xFF, a.workspace_bytes);
    if (!code) code = devices[d]->table->run(devices[d], &a, e);
    free(a.workspace);
    return code;
}

/* op: views of its operands, without data */
static bool same_on_all(const char *name, KArgs *op, size_t limit) {
    void *out[2][OP_OUT] = {{NULL}};
    Err e = {0, ""};
    bool same = true;
    for (int k = 0; k < OP_IN; k++)
        if (op->in[k].count) op->in[k].data = room(bytes_of(&op->in[k])), fill(&op->in[k], (uint32_t)k + 1);
    for (int k = 0; k < OP_OUT; k++)
        for (int i = 0; i < 2 && op->out[k].count; i++) out[i][k] = room(bytes_of(&op->out[k]));
    for (int d = 0; d < COUNTS && !e.code; d++) {
        for (int k = 0; k < OP_OUT; k++)
            if (op->out[k].count) memset(out[d > 0][k], 0xFF, bytes_of(&op->out[k]));
        if (run_on(d, op, limit, out[d > 0], &e)) break;
        for (int k = 0; k < OP_OUT && d; k++) {
            const size_t n = (size_t)op->out[k].count * dtype_size(op->out[k].dtype);
            if (!n || !memcmp(out[0][k], out[1][k], n)) continue;
            printf("# %s: output %d differs with %d threads\n", name, k, threads[d]);
            same = false;
        }
    }
    if (e.code) printf("# %s: %s\n", name, e.text);
    for (int k = 0; k < OP_IN; k++) free(op->in[k].count ? op->in[k].data : NULL);
    for (int k = 0; k < OP_OUT; k++) free(out[0][k]), free(out[1][k]);
    for (int d = 0; d < COUNTS; d++) devices[d]->table->trim(devices[d], true);
    return same && !e.code;
}

enum { FORWARD, DX, DW, PASSES };

/* The op's three operands and a bias by pass */
static void set_views(KArgs *a, int pass, View x, View w, View b, View y) {
    View *const at[PASSES][4] = {{&a->in[0], &a->in[1], &a->in[2], &a->out[0]},
                                 {&a->out[0], &a->in[1], NULL, &a->in[0]},
                                 {&a->in[0], &a->out[0], &a->out[1], &a->in[1]}};
    const View views[] = {x, w, b, y};
    for (int k = 0; k < 4; k++)
        if (at[pass][k]) *at[pass][k] = views[k];
}

typedef struct ConvShape { int64_t n, c, h, w, o, k, stride, groups; } ConvShape;

static bool check_conv(const ConvShape *s, int pass, DType t, DType of_w, size_t limit) {
    static const OpKind kinds[] = {OP_conv2d, OP_conv2d_dx, OP_conv2d_dw};
    const int32_t pad = (int32_t)(s->k / 2), stride = (int32_t)s->stride;
    const Attr attr = {.conv = {.stride = {stride, stride}, .dilation = {1, 1}, .pad = {pad, pad, pad, pad},
                                .groups = (int32_t)s->groups}};
    KArgs a = {.kind = kinds[pass], .attr = &attr};
    char name[160];
    const int64_t oh = (s->h + 2 * pad - s->k) / stride + 1, ow = (s->w + 2 * pad - s->k) / stride + 1;
    set_views(&a, pass, view(shape4(s->n, s->c, s->h, s->w), t), view(shape4(s->o, s->c / s->groups, s->k, s->k), of_w),
              view(shape1(s->o), of_w), view(shape4(s->n, s->o, oh, ow), t));
    snprintf(name, sizeof name, "%s %lld of (%lld, %lld, %lld), %lld outputs, %lldx%lld, stride %d, %lld groups, %s, w %s, limit %zu",
             op_info(a.kind)->name, (long long)s->n, (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->o, (long long)s->k,
             (long long)s->k, stride, (long long)s->groups, dtype_name(t), dtype_name(of_w), limit);
    return same_on_all(name, &a, limit);
}

static bool check_linear(int64_t n, int64_t i, int64_t o, int pass, DType t, DType of_w, size_t limit) {
    static const OpKind kinds[] = {OP_linear, OP_linear_dx, OP_linear_dw};
    static const Attr attr;
    KArgs a = {.kind = kinds[pass], .attr = &attr};
    char name[160];
    set_views(&a, pass, view(shape2(n, i), t), view(shape2(o, i), of_w), view(shape1(o), of_w), view(shape2(n, o), t));
    snprintf(name, sizeof name, "%s %lld rows, %lld to %lld, %s, w %s, limit %zu", op_info(a.kind)->name, (long long)n, (long long)i, (long long)o,
             dtype_name(t), dtype_name(of_w), limit);
    return same_on_all(name, &a, limit);
}

static uint32_t drawn;
static uint64_t seed = 1;

static int64_t draw(int64_t n) { return (int64_t)(philox(seed, RNG_DATA, 0, 0, drawn++).x[0] % (uint64_t)n); }

#define ONE_OF(...) ((const int64_t[]){__VA_ARGS__})[draw(sizeof (int64_t[]){__VA_ARGS__} / sizeof(int64_t))]

/* Ops that were too large or had no output, and were left out */
static int left_out;

/* Has a random op the same bits with each number of threads? */
static bool random_op(void) {
    static const DType types[] = {DT_F32, DT_F32, DT_BF16, DT_F16};
    const DType t = types[draw(4)], of_w = draw(2) ? t : DT_F32;
    const int pass = (int)draw(PASSES);
    const size_t limit = (size_t)ONE_OF(0, 1 << 18, 4 << 20, 4 << 20, 64 << 20);
    if (draw(4) == 0) {
        const int64_t n = ONE_OF(1, 4, 16, 33, 64, 128, 300, 1000, 2048), i = ONE_OF(7, 32, 64, 65, 100, 256, 400, 784, 1024, 3000, 6272);
        const int64_t o = ONE_OF(1, 10, 17, 32, 64, 84, 120, 128, 256, 512, 1000);
        if (n * i * o > 300000000) return ++left_out;
        return check_linear(n, i, o, pass, t, of_w, limit);
    }
    ConvShape s = {.n = ONE_OF(1, 2, 3, 4, 8, 16), .c = ONE_OF(1, 3, 4, 8, 16, 16, 32, 32, 48, 64, 64, 96, 128, 256), .h = ONE_OF(1, 3, 5, 7, 8, 14, 16, 28, 32),
                   .w = ONE_OF(4, 7, 8, 14, 16, 28, 32), .o = ONE_OF(4, 8, 12, 16, 32, 32, 48, 64, 64, 96, 128, 256), .k = ONE_OF(1, 1, 2, 3, 3, 5, 7),
                   .stride = ONE_OF(1, 1, 2), .groups = ONE_OF(1, 1, 1, 2, 0)};
    if (!s.groups) s.groups = s.c, s.o = s.c;
    else s.c *= s.groups > 1 ? s.groups : 1, s.o *= s.groups;
    if (s.h + 2 * (s.k / 2) < s.k || s.w + 2 * (s.k / 2) < s.k) return ++left_out;
    if (s.n * s.h * s.w * s.o * s.c / s.groups * s.k * s.k > 300000000) return ++left_out;
    return check_conv(&s, pass, t, of_w, limit);
}

/* ---- trainings */

#define RESIDUAL(c) "Residual{Sequential{Conv2d(" #c ", " #c ", 3, padding=1, bias=false) BatchNorm2d(" #c ") ReLU" \
    " Conv2d(" #c ", " #c ", 3, padding=1, bias=false) BatchNorm2d(" #c ")}} ReLU "
#define BLOCK_GPT "Residual{Sequential{LayerNorm(64) CausalSelfAttention(64, 4)}}" \
    " Residual{Sequential{LayerNorm(64) Linear(64, 256) GELU(tanh) Linear(256, 64)}} "
#define BLOCK_LLAMA "Residual{Graph{RMSNorm(64) Linear(64, 64, bias=false)<0> Linear(64, 32, bias=false)<0>" \
    " Linear(64, 32, bias=false)<0> RotaryPositionalEmbeddings(16, interleaved=false)<1>" \
    " RotaryPositionalEmbeddings(16, interleaved=false)<2>" \
    " ScaledDotProductAttention(num_heads=4, is_causal=true, enable_gqa=true)<4,5,3> Linear(64, 64, bias=false)<6>}}" \
    " Residual{Graph{RMSNorm(64) Linear(64, 160, bias=false)<0> SiLU<1> Linear(64, 160, bias=false)<0> Mul<2,3>" \
    " Linear(160, 64, bias=false)<4>}} "

static const struct { const char *name, *text; Shape input; } nets[] = {
    {"the article's network", "Sequential{Conv2d(3, 32, 3) ReLU Conv2d(32, 64, 3) ReLU Flatten Linear(36864, 10)}", {4, {16, 3, 28, 28}}},
    {"LeNet", "Sequential{Conv2d(1, 6, 5, padding=2) ReLU MaxPool2d(2) Conv2d(6, 16, 5) ReLU MaxPool2d(2) Flatten Linear(400, 120) ReLU"
     " Linear(120, 84) ReLU Linear(84, 10)}", {4, {32, 1, 28, 28}}},
    {"a residual network", "Sequential{Conv2d(3, 32, 7, stride=2, padding=3, bias=false) BatchNorm2d(32) ReLU MaxPool2d(3, 2, padding=1) "
     RESIDUAL(32) " Conv2d(32, 64, 1, stride=2) Conv2d(64, 64, 3, stride=2, padding=1) " RESIDUAL(64) " Conv2d(64, 128, 1) AdaptiveAvgPool2d(1) Flatten"
     " Linear(128, 10)}", {4, {6, 3, 56, 56}}},
    {"depthwise convolutions", "Sequential{Conv2d(3, 32, 3, stride=2, padding=1) Conv2d(32, 32, 3, padding=1, groups=32) ReLU6 Conv2d(32, 48, 1)"
     " Conv2d(48, 48, 5, padding=2, groups=48) Hardswish Conv2d(48, 64, 1) Conv2d(64, 64, 3, padding=1, groups=4) Conv2d(64, 64, 3, groups=64)"
     " AdaptiveAvgPool2d(1) Flatten Linear(64, 10)}", {4, {5, 3, 48, 48}}},
    {"transposed convolutions", "Sequential{Linear(32, 1024) Unflatten(1, 64:4:4) ConvTranspose2d(64, 32, 4, stride=2, padding=1) BatchNorm2d(32) ReLU"
     " ConvTranspose2d(32, 16, 4, stride=2, padding=1) ReLU Conv2d(16, 4, 3) Flatten Linear(784, 10)}", {2, {24, 32, 1, 1}}},
    {"a perceptron", "Sequential{Linear(784, 256) ReLU Linear(256, 200) Tanh Linear(200, 10)}", {2, {128, 784, 1, 1}}},
    {"an LSTM", "Sequential{LSTM(48, 96, num_layers=2, batch_first=true) Select(1, -1) Linear(96, 10)}", {3, {12, 20, 48, 1}}},
    {"a GRU", "Sequential{GRU(48, 64, bidirectional=true, batch_first=true) RNN(128, 40, batch_first=true) Select(1, -1) Linear(40, 10)}",
     {3, {9, 24, 48, 1}}},
    {"a GPT", "Sequential{Embedding(40, 64) PositionEmbedding(48, 64) " BLOCK_GPT BLOCK_GPT " LayerNorm(64) Linear(64, 40, bias=false)&0 Flatten(0, 1)}",
     {2, {6, 48, 1, 1}}},
    {"a Llama", "Sequential{Embedding(160, 64) " BLOCK_LLAMA BLOCK_LLAMA " RMSNorm(64) Linear(64, 160, bias=false) Flatten(0, 1)}", {2, {5, 40, 1, 1}}},
    {"a vision transformer", "Sequential{Conv2d(3, 64, 8, stride=8) Flatten(2) Transpose(1, 2) PositionEmbedding(36, 64) " BLOCK_GPT
     " Residual{Sequential{LayerNorm(64) MultiheadAttention(64, 4, batch_first=true)}} Mean(1) Linear(64, 10)}", {4, {4, 3, 48, 48}}},
    {"lines", "Sequential{Conv1d(16, 64, 5, padding=2) ReLU Conv1d(64, 64, 3, stride=2) GELU Conv1d(64, 96, 1) ConvTranspose1d(96, 32, 4, stride=2) Mean(2)"
     " Linear(32, 10)}", {3, {7, 16, 200, 1}}},
    {"one large image", "Sequential{Conv2d(3, 16, 5, padding=2) ReLU Conv2d(16, 32, 3, stride=2) ReLU Conv2d(32, 48, 1) AdaptiveAvgPool2d(1) Flatten"
     " Linear(48, 10)}", {4, {1, 3, 96, 96}}},
};

enum { STEPS = 2, NUMBERS = 1 << 20 };
typedef struct Result { float loss[STEPS]; uint64_t program; int64_t n; float number[NUMBERS]; } Result;

/* A number for what the program does: its ops, what they read and write, how long workspace could be when the device chose, and all
 * sizes but those of workspace. */
static uint64_t program_number(const Program *p) {
    uint64_t sum = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        sum = sum * 31 + (uint64_t)op->kind;
        sum = sum * 31 + op->limit;
        EACH_IN(op, k) sum = sum * 31 + (uint64_t)program_root(p, op->in[k]);
        EACH_OUT(op, k) sum = sum * 31 + (uint64_t)program_root(p, op->out[k]);
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].category != CAT_WORKSPACE) sum = sum * 31 + p->bufs[b].bytes;
    return sum;
}

static int train_on(int d, const Network *net, const Settings *s, Result *out, Err *e) {
    Program *p = NULL;
    Runtime *r = NULL;
    StepResult step = {0};
    begin_on(d);
    int code = compile(net, s, devices[d], NULL, NULL, &p, e);
    if (!code) out->program = program_number(p);
    if (!code) code = runtime_open(devices[d], s->allocator, 0, &(Job){net, p}, 1, 7, 0, &r, e);
    for (int i = 0; i < STEPS && !code; i++) {
        code = runtime_step(r, 0, net_feed, p, &step, e);
        out->loss[i] = step.loss;
    }
    out->n = 0;
    for (int i = 0; i < net->n_params && !code; i++) {
        const int64_t n = shape_elements(&net->params[i].shape);
        if (out->n + n > NUMBERS) code = err_set(e, ERR_INTERNAL, "too many parameters for the test");
        else code = runtime_read(r, 0, net->params[i].name, &out->number[out->n], e);
        out->n += n;
    }
    runtime_close(r);
    program_free(p);
    return code;
}

static void check_net(size_t k, Precision precision, size_t limit, bool all) {
    static Result one, other;
    Err e = {0, ""};
    Settings s = settings_default();
    s.precision = precision;
    s.workspace_limit = limit;
    Network *net = net_new(nets[k].text, "CrossEntropyLoss", nets[k].input, &e);
    int code = net ? train_on(0, net, &s, &one, &e) : e.code;
    for (int d = 1; d < COUNTS && !code; d++) {
        if (!all && threads[d] > 3 && threads[d] < 16) continue;
        code = train_on(d, net, &s, &other, &e);
        if (code) break;
        int64_t differ = 0;
        for (int64_t i = 0; i < one.n; i++) differ += memcmp(&one.number[i], &other.number[i], sizeof(float)) != 0;
        ok(!differ && !memcmp(one.loss, other.loss, sizeof one.loss) && one.program == other.program, "%s, %s, limit %zu: %d threads%s, the bits of one (%lld of %lld differ%s)", nets[k].name,
           precision_info(precision)->text, limit, threads[d], d == PAST ? " past the caches" : "", (long long)differ, (long long)one.n,
           one.program == other.program ? "" : "; the program, too");
    }
    if (code) ok(0, "%s: %s", nets[k].name, e.text);
    network_free(net);
    for (int d = 0; d < COUNTS; d++) devices[d]->table->trim(devices[d], true);
}

int main(void) {
    Err e = {0, ""};
    DeviceInfo info;
    setenv("OMP_NUM_THREADS", "1", 1); /* the user has said how many: a container's limit does not count */
    for (int d = 0; d < COUNTS; d++) {
        omp_set_num_threads(threads[d]);
        if (device_cpu_open(&devices[d], &e) || devices[d]->table->info(devices[d], &info, &e)) return ok(0, "open: %s", e.text), tap_done();
        is_int(info.threads, threads[d], "threads of the device");
    }
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16, PREC_AMP_FP16, PREC_BF16};
    static const size_t limits[] = {4 << 20, 0, 300000};
    enum { RESIDUAL_NET = 2, NARROW_WITHOUT_LIMIT = 5 }; /* amp_bf16 with a limit of 0, where the peak decides what is made again and what is spare */
    const int ops = getenv("OPS") ? atoi(getenv("OPS")) : 80;
    const bool all = getenv("NETS") && !strcmp(getenv("NETS"), "all");
    int bad = 0;
    const uint64_t first = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1;
    for (seed = first; seed < first + (uint64_t)ops; seed++) {
        drawn = 0;
        bad += !random_op();
    }
    ok(!bad && left_out < ops / 2, "of %d random ops %d differ", ops - left_out, bad);
    for (size_t k = 0; k < ARRAY_LEN(nets); k++) /* in the short form each net has one of each, fp32 more often than others */
        for (size_t i = 0; sampled(k, ARRAY_LEN(nets)) && i < ARRAY_LEN(precisions) * ARRAY_LEN(limits); i++)
            if (all || i == (k == RESIDUAL_NET ? NARROW_WITHOUT_LIMIT : k % 2 * (k % (ARRAY_LEN(precisions) * ARRAY_LEN(limits)))))
                check_net(k, precisions[i % ARRAY_LEN(precisions)], limits[i / ARRAY_LEN(precisions)], all);
    for (int d = 0; d < COUNTS; d++) devices[d]->table->close(devices[d]);
    return tap_done();
}
