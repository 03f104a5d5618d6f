/* described.h: the described H200 as the functions inside the plugin see it, and convolutions to ask it about. */
#ifndef TEST_DESCRIBED_H
#define TEST_DESCRIBED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "conv2d.h"
#include "libraries.h"
#include "mem.h"
#include "tap.h"

static char test_folder[] = "/tmp/memtide-test-XXXXXX"; /* caches and picks of the test go here */

/* Opened without describe.c, which looks beside the plugin; NULL: a reason was printed. */
__attribute__((unused)) static CudaDevice *described_h200(void) {
    static CudaDevice device;
    size_t bytes;
    Err e;
    Node properties;
    if (!mkdtemp(test_folder)) return NULL;
    setenv("XDG_CACHE_HOME", test_folder, 1);
    unsetenv("MEMTIDE_PICKS");
    device.ordinal = NOT_HERE;
    snprintf(device.model.name, sizeof device.model.name, "NVIDIA H200");
    device.model.l2_bytes = 62914560;
    if (cache_read("kernels/cuda/devices/h200.json", &device.model.description, &bytes, &e) ||
        libraries_properties(&device, &properties, &e)) {
        ok(0, "the description of an H200: %s", e.text);
        return NULL;
    }
    return &device;
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
