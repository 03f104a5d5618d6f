/* t_count.c: bytes that own kernels move between device memory and the processors, in whole sectors of 32 bytes (shadow/count.c),
 * against the fewest: each operand once for each pass that the mathematics needs, an updated one once more, caches ignored. And the
 * turns that requests to shared memory take, against the fewest. Both are bounded, so that a change that moves more is seen;
 * `make cuda-count` prints the table, which is in docs/gpu.md.
 *
 * Shapes are those of layers, cut to what an emulated GPU runs in a moment: rows as long as in ResNet-50 and GPT-2, few of them. 256 rows
 * of layer norm are 64 for each of its processors, as 8192 are on an H200, and each block reads the parameters once. */
#include <stdlib.h>

#include "memory/device.h"
#include "base/mem.h"
#include "math/quantized.h"
#include "program/operands.h"
#include "shadow/shadow.h"
#include "tap.h"

int memtide_cuda_open(const char *name, Device **out, Err *e);

/* Operands as in tests/device/kernel_cases.h, two letters each: f bf16, w fp32, i whole numbers below 7, b window positions, q
 * codes, s the step's state; shapes x, y, z, r x in plain rows, 1 one element, - none; of a weight of shape z in 4 bits: k codes,
 * e one number per block, m the map, o one number per row. */
typedef struct Case {
    const char *name;
    OpKind kind;
    const char *in, *out;
    Shape x, y, z;
    Attr attr;
    double most, most_turns; /* times the least */
    uint32_t micro;
    /* What the least is where it is not each operand once: passes over an operand, NONE where libraries alone touch it; KiB that go
     * from step to step, or between own kernels and a library. counts.inc says why. */
    int8_t in_passes[OP_IN], out_passes[OP_OUT];
    double between;
} Case;

enum { NONE = -1 };

#define S1(a) {1, {a, 1, 1, 1}}
#define S2(a, b) {2, {a, b, 1, 1}}
#define S3(a, b, c) {3, {a, b, c, 1}}
#define S4(a, b, c, d) {4, {a, b, c, d}}
#define RELU .attr.act = {.act = ACT_RELU}
#define IMAGE S4(4, 256, 14, 14)
#define NORM(axis_, groups_) .attr.norm = {axis_, groups_, 1e-5f, 0.1f}
#define LAYER_NORM(rows) .x = S2(rows, 768), .y = S2(rows, 1), .z = S1(768), NORM(1, 1)
#define WINDOW .attr.pool = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, 0, 0, {.act = ACT_NONE}}
#define CLASSES .x = S2(8, 5000), .y = S1(8), .z = S2(8, 2), .attr.loss = {.scale = 1, .ignore_index = -100}
#define RULE(...) .attr = {.optim = {.rule = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, __VA_ARGS__}}}
#define STEPS S3(2, 64, 768)
#define FEATURES .x = STEPS, .z = S1(768)
#define QUANTIZED .x = S2(64, 768), .y = S2(64, 256), .z = S2(256, 768)
#define HEADS .x = S3(1, 128, 384), .y = S3(1, 128, 128), .z = S3(1, 2, 128), \
    .attr.attention = {.heads = 2, .kv_heads = 2, .causal = 1, .batch_first = 1, .scale = 0.125f}
/* of as many inputs as units, without biases: y lies as x */
#define RNN(mode_, gates, saved) .x = S3(16, 8, 128), .y = S2(gates * 128, 128), .z = S3(16, 8, saved * 128), \
    .attr.rnn = {.mode = mode_, .batch_first = 1}
#define LSTM RNN(RNN_LSTM, 4, 5)
#define GRU RNN(RNN_GRU, 3, 4)

static const Case cases[] = {
#include "counts.inc"
};

enum { ALIGNMENT = 256, OPERANDS = OP_IN + OP_OUT };

static Device *device;

static void must(int code, const Err *e) {
    if (!code) return;
    printf("Bail out! %s\n", e->text);
    exit(1);
}

static void fill(char kind, void *host, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (kind == 'f') ((uint16_t *)host)[i] = bf16_from_f32(0.25f + (float)(i % 7) / 8);
        if (kind == 'w') ((float *)host)[i] = 0.25f + (float)(i % 7) / 8;
        if (kind == 'i') ((int32_t *)host)[i] = (int32_t)(i % 7);
        if (kind == 'b') ((uint8_t *)host)[i] = (uint8_t)(i % 4);
        if (kind == 'q') ((uint8_t *)host)[i] = (uint8_t)(i % 251);
    }
    if (kind == 's') *(StepState *)host = (StepState){1024, 3, 0, 5};
}

static size_t bytes_of(char kind, const View *v) {
    return kind == 's' ? sizeof(StepState) : (size_t)v->count * dtype_size(v->dtype);
}

static Shape shape_of(const Case *c, char letter) {
    switch (letter) {
    case 'x': case 'r': return c->x;
    case 'y': return c->y;
    case 'z': return c->z;
    case 'k': return shape1(shape_elements(&c->z) / 2);
    case 'e': return shape1(shape_elements(&c->z) / QUANT_BLOCK);
    case 'm': return shape1(QUANT_MAP);
    case 'o': return shape1(c->z.dim[0]);
    default: return shape1(1);
    }
}

static View describe(const Case *c, char type, char shape) {
    const Shape s = shape_of(c, shape);
    const DType t = type == 'f' ? DT_BF16 : type == 'i' ? DT_I32 : type == 'b' || type == 'q' ? DT_U8 : DT_F32;
    View v = {NULL, s, t, s.rank == 4 && shape != 'r', {0, 0, 0}, shape_elements(&s)};
    return v;
}

/* Runs the op once. *least: the fewest bytes that it moves */
static ShadowCounts run(const Case *c, double *least) {
    const DeviceTable *d = device->table;
    KArgs a = {.kind = c->kind, .attr = &c->attr, .device = device, .seed = 42, .micro = c->micro};
    size_t bytes[OPERANDS] = {0};
    Err e = {0, ""};
    *least = c->between * 1024;
    for (int k = 0; k < OPERANDS; k++) {
        const int passes = k < OP_IN ? c->in_passes[k] : c->out_passes[k - OP_IN];
        const char *spec = k < OP_IN ? c->in : c->out;
        const size_t slot = 3 * (size_t)(k % OP_IN);
        View *v = k < OP_IN ? &a.in[k] : &a.out[k - OP_IN];
        if (slot >= strlen(spec) || spec[slot] == '-') continue;
        *v = describe(c, spec[slot], spec[slot + 1]);
        bytes[k] = bytes_of(spec[slot], v);
        const bool updated = k >= OP_IN && op_info(c->kind)->out[k - OP_IN].updated;
        if (passes != NONE) *least += (double)bytes[k] * ((passes ? passes : 1) + updated);
    }
    must(d->prepare(device, &a, 4 << 20, &a.state, &a.workspace_bytes, &e), &e);
    for (int k = 0; k < OPERANDS; k++) {
        View *v = k < OP_IN ? &a.in[k] : &a.out[k - OP_IN];
        if (!bytes[k]) continue;
        void *host = mem_new(bytes[k]);
        if (!host) exit(2);
        fill((k < OP_IN ? c->in : c->out)[3 * (k % OP_IN)], host, v->count);
        must(d->alloc(device, align_up(bytes[k], ALIGNMENT), &v->data, &e), &e);
        must(d->upload(device, v->data, host, bytes[k], &e), &e);
        mem_free(host);
    }
    if (a.workspace_bytes) must(d->alloc(device, align_up(a.workspace_bytes, ALIGNMENT), &a.workspace, &e), &e);
    shadow_count_from_here();
    must(d->run(device, &a, &e), &e);
    must(d->sync(device, &e), &e);
    const ShadowCounts counts = shadow_counted();
    for (int k = 0; k < OPERANDS; k++)
        if (bytes[k]) d->free(device, k < OP_IN ? a.in[k].data : a.out[k - OP_IN].data, align_up(bytes[k], ALIGNMENT));
    if (a.workspace_bytes) d->free(device, a.workspace, align_up(a.workspace_bytes, ALIGNMENT));
    return counts;
}

int main(void) {
    Err e = {0, ""};
#ifndef SHADOW
    skip("counted traffic", "kernels are built without instrumentation");
    (void)run, (void)e, (void)cases;
#else
    setenv("EMULATE_SHADOW", "1", 1);
    must(memtide_cuda_open("cuda:0", &device, &e), &e);
    puts("# | op | shape | kernels | KiB read | KiB written | times the least | turns of shared memory, times the least |");
    puts("# | --- | --- | --- | --- | --- | --- | --- |");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const Case *c = &cases[i];
        char shape[SHAPE_TEXT];
        double least;
        const ShadowCounts n = run(c, &least);
        const double times = (double)(n.read + n.written) / least;
        const double turns = n.least_turns ? (double)n.turns / (double)n.least_turns : 0;
        printf("# | `%s`%s%s | %s | %llu | %.0f | %.0f | %.2f | ", op_info(c->kind)->name, *c->name ? " " : "", c->name,
               shape_text(&c->x, shape), (unsigned long long)n.launches, (double)n.read / 1024, (double)n.written / 1024, times);
        printf(turns > 0 ? "%.2f |\n" : "– |\n", turns);
        ok(times < c->most + 0.005 && times >= 0.95 * c->most - 0.05, "%s %s moves %.2f times the least bytes, expected %.2f at most",
           op_info(c->kind)->name, c->name, times, c->most);
        ok(turns < c->most_turns + 0.005, "%s %s: shared memory takes %.2f times the least turns, expected %.2f at most",
           op_info(c->kind)->name, c->name, turns, c->most_turns);
    }
    device->table->close(device);
#endif
    return tap_done();
}
