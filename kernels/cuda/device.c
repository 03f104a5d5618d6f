/* device.c: a GPU as a device: how it is opened, its kernels, its properties. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "base/mem.h"

/* compute capabilities: CUDA 13 compiles for 7.5 and later; 8.0 and later multiply bf16 */
enum { OLDEST = 75, BF16_SINCE = 80 };

static KernelRun *const runs[] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) k_cuda_##name,
#include "program/ops.def"
#undef OP
};

#define PREPARE_PREPARED(name) k_cuda_##name##_prepare
#define PREPARE_PLAIN(name) NULL
static KernelPrepare *const prepares[] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) PREPARE_##prepare(name),
#include "program/ops.def"
#undef OP
};

/* ---- ops */

int cuda_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    KArgs bound = *args;
    bound.device = d;
    return op_cache_get(&((CudaDevice *)d)->prepared, prepares[args->kind], &bound, limit, state, workspace, e);
}

static int real_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    int code = cuda_ready((CudaDevice *)d, e);
    return code ? code : cuda_prepare(d, args, limit, state, workspace, e);
}

static int real_run(Device *d, const KArgs *args, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    assert(operands_are_ready(args) && workspace_is_ready(args, CUDA_ALIGNMENT));
    int code = cuda_ready(c, e);
    if (!code && c->last != args->kind) code = cuda_flush(c, e);
    c->last = args->kind;
    cuda_range_begin(c, op_info(args->kind)->name, args->path);
    if (!code) code = op_exchanges(args->kind) ? cuda_exchange(c, runs[args->kind], args, e) : runs[args->kind](args, e);
    cuda_range_end(c);
    if (!code && c->capturing) code = cuda_recording_check(c, e);
    return code;
}

/* Choosing a plan again costs far more than keeping it: only plans that many cells have not used are dropped. */
void cuda_trim(Device *d, bool all) {
    enum { KEEP = 2048 };
    OpCache *prepared = &((CudaDevice *)d)->prepared;
    if (all) op_cache_clear(prepared, kernel_state_release);
    else op_cache_trim(prepared, KEEP, kernel_state_release);
}

/* ---- properties */

int cuda_model_check(const CudaModel *m, Err *e) {
    if (m->capability >= OLDEST) return OK;
    return err_set(e, ERR_UNSUPPORTED, "%s has compute capability %d.%d: expected %d.%d or later", m->name,
                   m->capability / 10, m->capability % 10, OLDEST / 10, OLDEST % 10);
}

void cuda_model_info(const CudaModel *m, DeviceInfo *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", m->name);
    snprintf(info->detail, sizeof info->detail, "compute capability %d.%d, %d multiprocessors", m->capability / 10,
             m->capability % 10, m->processors);
    info->memory_total = m->memory_bytes;
    info->emulated[DT_BF16] = m->capability < BF16_SINCE;
}

static int real_info(Device *d, DeviceInfo *info, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    char driver[32], libraries[64];
    int cuda = 0, code = cuda_ready(c, e);
    if (code) return code;
    cuda_model_info(&c->model, info);
    nvml_driver(c->nvml, driver, sizeof driver);
    libraries_versions(libraries, sizeof libraries);
    tuning_warning(c, info->warning, sizeof info->warning);
    code = cuda_check(c, cudaRuntimeGetVersion(&cuda), "the version of CUDA", e); /* 13000 */
    snprintf(info->driver, sizeof info->driver, "driver %s, CUDA %d.%d, %s", driver[0] ? driver : "of unknown version",
             cuda / 1000, cuda / 10 % 100, libraries);
    if (!code) code = cuda_check(c, cudaGetDeviceCount(&info->count), "counting the GPUs", e);
    if (!code) code = cuda_check(c, cudaMemGetInfo(&info->memory_free, &info->memory_total), "the free memory", e);
    return code;
}

static int real_describe(Device *d, DeviceText *put, void *arg, Err *e) {
    int code = cuda_ready((CudaDevice *)d, e);
    return code ? code : libraries_describe((CudaDevice *)d, put, arg, e);
}

static void real_evidence(Device *d, DeviceEvidence *out) { nvml_evidence(((CudaDevice *)d)->nvml, out); }

/* ---- opening and closing */

void cuda_release(CudaDevice *c) {
    op_cache_clear(&c->prepared, kernel_state_release);
    tuning_free(c->tuning);
    libraries_close(c);
    nvml_close(c->nvml);
    cuda_queue_free(c->queue);
    mem_free(c->sections);
    mem_free(c->model.description);
    mem_free(c);
}

/* A lost context refuses these calls; that is ignored. */
static void real_close(Device *d) {
    CudaDevice *c = (CudaDevice *)d;
    if (c->stream) cudaStreamSynchronize(c->stream);
    for (int i = 0; i < SEND_SLOTS; i++)
        if (c->sent[i]) cudaEventDestroy(c->sent[i]);
    for (int i = 0; i < c->cap_sections; i++) {
        if (c->sections[i].start) cudaEventDestroy(c->sections[i].start);
        if (c->sections[i].stop) cudaEventDestroy(c->sections[i].stop);
    }
    cudaStream_t stream = c->stream;
    ranks_leave(c);
    cuda_flights_close(c->flights);
    cuda_ranges_close(c);
    cuda_release(c); /* before the stream: the libraries' handles use it */
    if (stream) cudaStreamDestroy(stream);
    (void)cudaGetLastError();
}

static const DeviceTable table = {
    .kind = "cuda", .alignment = CUDA_ALIGNMENT, .close = real_close, .join = cuda_join, .info = real_info, .describe = real_describe,
    .alloc = cuda_alloc, .free = cuda_free, .upload = cuda_upload, .download = cuda_download, .sync = cuda_sync,
    .host_alloc = cuda_host_alloc, .host_free = cuda_host_free, .send = cuda_send, .sent = cuda_sent,
    .start = cuda_start, .stop = cuda_stop, .elapsed = cuda_elapsed, .record = cuda_record, .recorded = cuda_recorded,
    .replay = cuda_replay, .graph_free = cuda_graph_free, .prepare = real_prepare, .run = real_run, .tune = cuda_tune,
    .trim = cuda_trim, .used = cuda_used, .evidence = real_evidence,
};

/* Why there is no GPU at all, in plain words. */
static int no_gpu(cudaError_t error, Err *e) {
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) || cudaRuntimeGetVersion(&runtime)) (void)cudaGetLastError();
    if (driver == 0 || error == cudaErrorStubLibrary)
        return err_set(e, ERR_DEVICE, "there is no NVIDIA driver (no libcuda.so.1)");
    if (error == cudaErrorInsufficientDriver)
        return err_set(e, ERR_DEVICE, "the NVIDIA driver is too old: it has CUDA %d.%d, expected %d.%d or later",
                       driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (error == cudaErrorNoDevice)
        return err_set(e, ERR_DEVICE, "the NVIDIA driver finds no GPU%s%s", visible ? "; CUDA_VISIBLE_DEVICES is " : "",
                       visible ? visible : "");
    return err_set(e, ERR_DEVICE, "the NVIDIA driver fails: %s (%s)", cudaGetErrorName(error),
                   cudaGetErrorString(error));
}

static int find_gpu(CudaDevice *c, int ordinal, Err *e) {
    int count = 0;
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error || count == 0) return no_gpu(error ? error : cudaErrorNoDevice, e);
    if (ordinal >= count)
        return err_set(e, ERR_DEVICE, "no such GPU: expected a number below %d, found %d", count, ordinal);
    c->ordinal = ordinal;
    int code = cuda_check(c, cudaGetDeviceProperties(&p, ordinal), "the GPU's properties", e);
    if (code) return code;
    snprintf(c->model.name, sizeof c->model.name, "%s", p.name);
    c->model.capability = 10 * p.major + p.minor;
    c->model.processors = p.multiProcessorCount;
    c->model.l2_bytes = (size_t)p.l2CacheSize;
    c->model.memory_bytes = p.totalGlobalMem;
    return cuda_model_check(&c->model, e);
}

int cuda_open(int ordinal, Device **out, Err *e) {
    CudaDevice *c = mem_new(sizeof *c);
    if (!c) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *c);
    c->base.table = &table;
    int code = find_gpu(c, ordinal, e);
    if (!code) code = cuda_ready(c, e);
    if (!code) code = cuda_check(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream", e);
    c->exchange = c->stream;
    for (int i = 0; i < SEND_SLOTS && !code; i++)
        code = cuda_check(c, cudaEventCreateWithFlags(&c->sent[i], cudaEventDisableTiming), "an event", e);
    if (code) {
        real_close(&c->base);
        return code;
    }
    c->nvml = nvml_open(ordinal);
    cuda_ranges_open(c);
    *out = &c->base;
    return OK;
}
