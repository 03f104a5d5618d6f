/* described.h: described GPUs as the functions inside the plugin see them, and convolutions that tests prepare for
 * them. */
#ifndef TEST_DESCRIBED_H
#define TEST_DESCRIBED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "conv2d.h"
#include "libraries.h"
#include "base/mem.h"
#include "tap.h"

static char test_folder[] = "/tmp/memtide-test-XXXXXX"; /* caches and picks of the test go here */

/* What the functions inside the plugin want to know of a GPU beside its description. */
typedef struct Gpu { const char *name, *file; int capability; size_t l2_bytes; } Gpu;
static const Gpu h200 = {"NVIDIA H200", "kernels/cuda/devices/h200.json", 90, 62914560};
static const Gpu t4 = {"Tesla T4", "tests/cuda/t4.json", 75, 4194304};

/* Opened without device_file.c, which looks beside the plugin; NULL: a reason was printed. */
__attribute__((unused)) static CudaDevice *described(const Gpu *gpu) {
    CudaDevice *device = mem_new(sizeof *device);
    size_t bytes;
    Err e;
    Node properties;
    if (!device || (strstr(test_folder, "XXXXXX") && !mkdtemp(test_folder))) return NULL;
    setenv("XDG_CACHE_HOME", test_folder, 1);
    unsetenv("MEMTIDE_PICKS");
    device->ordinal = NOT_HERE;
    snprintf(device->model.name, sizeof device->model.name, "%s", gpu->name);
    device->model.capability = gpu->capability;
    device->model.l2_bytes = gpu->l2_bytes;
    if (cache_read(gpu->file, &device->model.description, &bytes, &e) ||
        cudnn_device_properties(device, &properties, &e)) {
        ok(0, "the description of %s: %s", gpu->name, e.text);
        return NULL;
    }
    return device;
}

__attribute__((unused)) static View view4(DType t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (View){.shape = shape4(a, b, c, d), .dtype = t, .channels_last = 1, .count = a * b * c * d};
}

__attribute__((unused)) static View view1(DType t, int64_t n) {
    return (View){.shape = shape1(n), .dtype = t, .count = n};
}

/* A square convolution of stride 1 and its three ops, without data. */
typedef struct Case { int64_t n, c, o, k, size, pad; } Case;
typedef struct Precision { const char *name; DType type, wide; int tf32; } Precision; /* wide: of dw, b and db */

static const Precision precisions[] = {
    {"fp32", DT_F32, DT_F32, 0},      {"tf32", DT_F32, DT_F32, 1},      {"amp_bf16", DT_BF16, DT_F32, 0},
    {"amp_fp16", DT_F16, DT_F32, 0},  {"bf16", DT_BF16, DT_BF16, 0},    {"fp16", DT_F16, DT_F16, 0},
};
enum { PRECISIONS = sizeof precisions / sizeof *precisions };

/* What is small enough to be run in every way. */
static const Case small_layers[] = {{2, 3, 16, 3, 10, 0}, {3, 16, 24, 3, 9, 1}};

/* What the op has beside its two operands: bias and ReLU, or ReLU's gradient and db, or db. */
typedef enum Extras { BARE, WITH_ACT, WITH_ALL } Extras;

typedef struct Asked { Attr attr; KArgs args; } Asked;

__attribute__((unused)) static void ask(Asked *q, CudaDevice *device, const Case *c, const Precision *p, ConvPass pass,
                                        Extras extras) {
    int64_t out = c->size + 2 * c->pad - c->k + 1;
    int32_t pad = (int32_t)c->pad;
    View x = view4(p->type, c->n, c->c, c->size, c->size), y = view4(p->type, c->n, c->o, out, out);
    View w = view4(p->type, c->o, c->c, c->k, c->k), dw = view4(p->wide, c->o, c->c, c->k, c->k);
    memset(q, 0, sizeof *q);
    q->attr.conv = (ConvAttr){.stride = {1, 1}, .pad = {pad, pad, pad, pad}, .dilation = {1, 1}, .groups = 1,
                              .tf32 = p->tf32};
    q->attr.conv.fused.act = extras && pass != CONV_WEIGHTS ? ACT_RELU : ACT_NONE;
    q->args = (KArgs){.kind = (OpKind)(OP_conv2d + (int)pass), .attr = &q->attr, .device = device};
    q->args.in[0] = pass == CONV_DATA ? y : x;
    q->args.in[1] = pass == CONV_WEIGHTS ? y : w;
    q->args.out[0] = pass == CONV_FORWARD ? y : pass == CONV_DATA ? x : dw;
    if (extras && pass == CONV_FORWARD) q->args.in[2] = view1(p->wide, c->o);
    if (extras && pass == CONV_DATA) q->args.in[2] = x;
    if (extras == WITH_ALL && pass != CONV_FORWARD) q->args.out[1] = view1(p->wide, pass == CONV_DATA ? c->c : c->o);
}

/* Convolutions that are not square, dense or of stride 1: there is a way for each. */
typedef struct Odd { const char *name; int64_t n, c, h, w, o, kh, kw, oh, ow; ConvAttr attr; } Odd;
static const Odd odd[] = {
    {"1x1 of one", 1, 1, 1, 1, 1, 1, 1, 1, 1, {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1}},
    {"5->7, 3x5", 3, 5, 11, 13, 7, 3, 5, 11, 13,
     {.stride = {1, 1}, .pad = {1, 2, 1, 2}, .dilation = {1, 1}, .groups = 1, .fused = {.act = ACT_TANH}}},
    {"asymmetric padding", 2, 8, 6, 7, 4, 2, 2, 6, 7,
     {.stride = {1, 1}, .pad = {0, 1, 1, 0}, .dilation = {1, 1}, .groups = 1, .fused = {.act = ACT_RELU}}},
    {"stride 2 by 3", 2, 6, 15, 14, 10, 3, 4, 7, 4,
     {.stride = {2, 3}, .pad = {1, 0, 0, 0}, .dilation = {1, 1}, .groups = 1,
      .fused = {.act = ACT_LEAKY, .slope = 0.1f}}},
    {"dilation 2 by 3", 2, 4, 14, 15, 6, 3, 3, 14, 15,
     {.stride = {1, 1}, .pad = {2, 3, 2, 3}, .dilation = {2, 3}, .groups = 1, .fused = {.act = ACT_RELU}}},
    {"two groups", 2, 8, 9, 9, 12, 3, 3, 9, 9,
     {.stride = {1, 1}, .pad = {1, 1, 1, 1}, .dilation = {1, 1}, .groups = 2, .fused = {.act = ACT_SIGMOID}}},
    {"depthwise", 2, 16, 8, 8, 16, 3, 3, 8, 8,
     {.stride = {1, 1}, .pad = {1, 1, 1, 1}, .dilation = {1, 1}, .groups = 16, .fused = {.act = ACT_RELU}}},
    {"depthwise twice, stride 2", 2, 5, 9, 9, 10, 3, 3, 5, 5,
     {.stride = {2, 2}, .pad = {1, 1, 1, 1}, .dilation = {1, 1}, .groups = 5}},
};

__attribute__((unused)) static void ask_odd(Asked *q, CudaDevice *device, const Odd *c, const Precision *p,
                                            ConvPass pass) {
    static const Case square = {1, 1, 1, 1, 1, 0};
    View x = view4(p->type, c->n, c->c, c->h, c->w), y = view4(p->type, c->n, c->o, c->oh, c->ow);
    int64_t per_group = c->c / c->attr.groups;
    ask(q, device, &square, p, pass, WITH_ALL);
    q->attr.conv = c->attr;
    q->attr.conv.tf32 = p->tf32;
    if (pass == CONV_WEIGHTS) q->attr.conv.fused.act = ACT_NONE;
    q->args.in[0] = pass == CONV_DATA ? y : x;
    q->args.in[1] = pass == CONV_WEIGHTS ? y : view4(p->type, c->o, per_group, c->kh, c->kw);
    q->args.out[0] = pass == CONV_FORWARD ? y : pass == CONV_DATA ? x : view4(p->wide, c->o, per_group, c->kh, c->kw);
    if (pass == CONV_FORWARD) q->args.in[2] = view1(p->wide, c->o);
    if (pass == CONV_DATA) q->args.in[2] = x;
    if (pass != CONV_FORWARD) q->args.out[1] = view1(p->wide, pass == CONV_DATA ? c->c : c->o);
}

__attribute__((unused)) static int prepare(Asked *q, size_t limit, ConvState **state, size_t *workspace, Err *e) {
    static KernelPrepare *const prepares[] = {k_cuda_conv2d_prepare, k_cuda_conv2d_dx_prepare,
                                              k_cuda_conv2d_dw_prepare};
    void *found = NULL;
    int code = prepares[q->args.kind - OP_conv2d](&q->args, limit, &found, workspace, e);
    *state = found;
    return code;
}

__attribute__((unused)) static const char *way_name(unsigned does) {
    for (int k = 0; k < WAYS; k++)
        if (conv_ways[k].does == does) return conv_ways[k].name;
    return "no way";
}

__attribute__((unused)) static void remove_test_folder(void) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", test_folder);
    if (system(command)) puts("# the test's folder is still there");
}

#endif
