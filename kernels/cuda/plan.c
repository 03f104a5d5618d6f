/* plan.c: the planning library's exports: what cuDNN would take for a convolution of PyTorch on a GPU that is not here. */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cudnn_device.h"
#include "engines.h"

extern const uint64_t memtide_plan_abi;
const uint64_t memtide_plan_abi = PLAN_ABI;
ConvPlan memtide_plan_conv;

/* ---- a card as cuDNN describes devices */

/* By compute capability, from the CUDA C++ programming guide's table: bytes of shared memory that a block may ask for, and
 * how many blocks a multiprocessor holds. */
static const struct { int capability, shared, blocks; } limits[] = {
    {75, 64 << 10, 16},  {80, 163 << 10, 32},  {86, 99 << 10, 16},
    {89, 99 << 10, 24},  {90, 227 << 10, 32}, {100, 227 << 10, 32}, {120, 99 << 10, 24},
};

static int describe(const PlanCard *card, CudaModel *m, Err *e) {
    enum { MOST = 2048 };
    size_t k = 0;
    while (k < ARRAY_LEN(limits) && limits[k].capability != card->capability) k++;
    if (k == ARRAY_LEN(limits))
        return err_set(e, ERR_UNSUPPORTED, "compute capability %d.%d is not known", card->capability / 10,
                       card->capability % 10);
    if (!(m->description = mem_new(MOST)))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for a description of %s", card->name);
    snprintf(m->name, sizeof m->name, "%s", card->name);
    m->capability = card->capability;
    m->processors = (int)card->multiprocessors;
    m->memory_bytes = (size_t)card->memory;
    snprintf(m->description, MOST, "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
             "\"regsPerBlock\": 65536, \"multiProcessorCount\": %lld, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
             "\"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
             "\"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %lld, \"pciDeviceId\": 0, "
             "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": %lld, \"smClockRateKHz\": %lld, "
             "\"memClockRateKHz\": %lld, \"l2CacheSize\": 41943040, \"cudaDeviceId\": 0, \"deviceVer\": %d, "
             "\"driverVer\": 13000, \"deviceName\": \"%s\"}", (long long)card->multiprocessors, limits[k].shared,
             limits[k].blocks, (long long)card->threads, (long long)card->memory, (long long)card->clock,
             (long long)card->memory_clock, card->capability * 10, card->name);
    return OK;
}

/* The card that was asked about last; it stays to the end of the process. */
static int card_device(const PlanCard *card, CudaDevice **out, Err *e) {
    static PlanCard last;
    static CudaDevice device;
    *out = &device;
    if (device.model.description && !memcmp(card, &last, sizeof last)) return OK;
    cudnn_device_close(&device);
    mem_free(device.model.description);
    memset(&device, 0, sizeof device);
    device.ordinal = NOT_HERE;
    last = *card;
    return describe(card, &device.model, e);
}

/* ---- what was asked */

static Node tensor(Graph *g, const ConvQuery *q, int64_t id, const int64_t dim[4]) {
    return (q->channels_last ? graph_tensor : graph_tensor_in_order)(g, id, q->type, dim);
}

/* PyTorch takes no engine that rounds its operands to a smaller type; tensor cores are allowed. */
static bool pytorch_may(const Engine *engine) {
    return !(engine->notes & 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
}

/* As ATen/native/cudnn/Conv_v8.cpp: the quick ranking, then the engines that work. */
static int ask(CudaDevice *c, const Graph *g, bool all, ConvAnswer *out, Err *e) {
    static const int rankings[] = {0, ENGINE_RANKINGS - 1};
    enum { FEW = 4 }; /* the first is nearly always taken */
    bool found = false;
    for (size_t r = 0; r < ARRAY_LEN(rankings) && (all || !found); r++)
        for (int most = all ? ENGINES_ALL : FEW; most; most = found || most == ENGINES_ALL ? 0 : ENGINES_ALL) {
            Engines list = {0};
            int code = engines_ask(c, g, rankings[r], most, &list, e);
            for (int k = 0; k < list.n && !code; k++) {
                if (!pytorch_may(&list.at[k]) || (found && !all)) continue;
                if (!found) *out = (ConvAnswer){list.at[k].workspace, list.at[k].workspace, cudnnGetVersion()};
                out->most = max_size(out->most, list.at[k].workspace);
                found = true;
            }
            engines_free(&list);
            if (code) return code;
        }
    return found ? OK : err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine for this convolution on %s", c->model.name);
}

/* cuDNN opens NVRTC for an answer and closes it again, which takes 10 ms: it is held open. Where it is not found, cuDNN says
 * what it lacks. */
static void hold_nvrtc(void) {
    static bool tried;
    char name[32];
    if (tried) return;
    tried = true;
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    (void)dlopen(name, RTLD_LAZY);
}

static int plan(const PlanCard *card, const ConvQuery *q, bool all, ConvAnswer *out, Err *e) {
    enum { X = 1, W, Y };
    CudaDevice *c;
    int code = card_device(card, &c, e);
    if (code) return code;
    hold_nvrtc();
    const ConvSteps *s = &q->steps;
    const ConvAttr attr = {.stride = {s->stride[0], s->stride[1]}, .pad = {s->pad[0], s->pad[1], s->pad[0], s->pad[1]},
                           .dilation = {s->dilation[0], s->dilation[1]}, .groups = s->groups};
    Graph g = {0};
    Node x = tensor(&g, q, X, q->x), w = tensor(&g, q, W, q->w), y = tensor(&g, q, Y, q->y);
    graph_conv(&g, q->pass, &attr, x, w, y);
    code = graph_finish(&g, NULL, e);
    if (!code) code = ask(c, &g, all, out, e);
    graph_free(&g);
    return code;
}

/* An answer takes up to a millisecond, all of them more than ten, and a step asks the same in each of its passes: what
 * was answered is kept, one answer for each hash. */
int memtide_plan_conv(const PlanCard *card, const ConvQuery *q, bool all, ConvAnswer *out, Err *e) {
    enum { ANSWERS = 1024 };
    static struct { PlanCard card; ConvQuery q; bool known, all; ConvAnswer found; } answers[ANSWERS];
    const uint64_t hash = hash_bytes(hash_bytes(HASH_START, card, sizeof *card), q, sizeof *q);
    const size_t at = (size_t)(hash % ANSWERS);
    if (answers[at].known && (answers[at].all || !all) && !memcmp(&answers[at].q, q, sizeof *q) &&
        !memcmp(&answers[at].card, card, sizeof *card)) {
        *out = answers[at].found;
        if (!all) out->most = out->first;
        return OK;
    }
    int code = plan(card, q, all, out, e);
    if (code) return code;
    answers[at].card = *card;
    answers[at].q = *q;
    answers[at].known = true;
    answers[at].all = all;
    answers[at].found = *out;
    return OK;
}
