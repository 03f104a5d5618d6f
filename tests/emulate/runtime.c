/* runtime.c: the emulated device: its memory, streams, events and graphs. See cuda_runtime.h. */
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_ALIGNMENT = 256, JUNK_BYTE = 0xFF, PROCESSORS = 4, ARGUMENTS_MAX = 4096 };
enum { LOST_FIRST = 700, LOST_LAST = 719 }; /* errors that break the context */

/* What a stream holds: a call with its arguments copied. */
typedef struct Task {
    struct Task *next;
    void (*run)(void *data);
    _Alignas(16) char data[];
} Task;

typedef struct Tasks { Task *first, *last; } Tasks;

struct EmulatedStream { Tasks waiting, captured; enum cudaStreamCaptureStatus capture; struct EmulatedStream *next; };
struct EmulatedEvent { double at; bool timed, captured; struct EmulatedStream *stream; };
struct EmulatedGraph { Tasks tasks; };

typedef struct Block { struct Block *next; char *p; size_t bytes; bool device; } Block;

static struct {
    Block *blocks;         /* of device memory, and of pinned host memory */
    size_t bytes;          /* of device memory in use */
    struct EmulatedStream base, *streams; /* base: stream 0 */
    cudaError_t last, lost;
    char failing[128];     /* EMULATE_FAIL as last seen, and how often its function was called since */
    long failing_calls;
} emulated;

/* ---- errors */

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define X(name, code, text) case name: return #name;
    CUDA_ERRORS(X)
#undef X
    }
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define X(name, code, text) case name: return text;
    CUDA_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}

static cudaError_t give(cudaError_t error) {
    if (error != cudaSuccess) emulated.last = error;
    if ((int)error >= LOST_FIRST && (int)error <= LOST_LAST) emulated.lost = error;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return emulated.lost ? emulated.lost : emulated.last; }

cudaError_t cudaGetLastError(void) {
    cudaError_t last = cudaPeekAtLastError();
    emulated.last = cudaSuccess;
    return last;
}

/* How every function begins: the device may be lost, and the environment may want this call to fail. */
static cudaError_t enter(const char *name) {
    const char *failing = getenv("EMULATE_FAIL");
    char function[64];
    long n;
    int code;
    if (emulated.lost) return give(emulated.lost);
    if (!failing || sscanf(failing, "%63[^:]:%ld:%d", function, &n, &code) != 3) return cudaSuccess;
    if (strncmp(failing, emulated.failing, sizeof emulated.failing)) {
        snprintf(emulated.failing, sizeof emulated.failing, "%s", failing);
        emulated.failing_calls = 0;
    }
    if (strcmp(function, name) || ++emulated.failing_calls != n) return cudaSuccess;
    return give((cudaError_t)code);
}

#define ENTER()                              \
    do {                                     \
        cudaError_t entered = enter(__func__); \
        if (entered) return entered;         \
    } while (0)

/* ---- tasks and streams */

static void tasks_add(Tasks *t, Task *task) {
    task->next = NULL;
    if (t->last) t->last->next = task;
    else t->first = task;
    t->last = task;
}

static void tasks_free(Tasks *t) {
    while (t->first) {
        Task *next = t->first->next;
        free(t->first);
        t->first = next;
    }
    t->last = NULL;
}

static void tasks_run(const Tasks *t) {
    for (Task *task = t->first; task; task = task->next) task->run(task->data);
}

static struct EmulatedStream *stream_of(cudaStream_t stream) { return stream ? stream : &emulated.base; }

static void stream_drain(struct EmulatedStream *s) {
    Tasks waiting = s->waiting;
    s->waiting = (Tasks){NULL, NULL};
    tasks_run(&waiting);
    tasks_free(&waiting);
}

static void drain_all(void) {
    stream_drain(&emulated.base);
    for (struct EmulatedStream *s = emulated.streams; s; s = s->next) stream_drain(s);
}

static cudaError_t stream_push(cudaStream_t stream, void (*run)(void *), const void *data, size_t bytes) {
    struct EmulatedStream *s = stream_of(stream);
    Task *task = malloc(sizeof *task + bytes);
    if (!task) return give(cudaErrorUnknown);
    task->run = run;
    memcpy(task->data, data, bytes);
    if (s->capture == cudaStreamCaptureStatusActive) {
        tasks_add(&s->captured, task);
    } else {
        tasks_add(&s->waiting, task);
        if (!emulate_flag("EMULATE_LATE")) stream_drain(s);
    }
    return cudaSuccess;
}

/* Calls that a capture forbids spoil it, as on a GPU. */
static cudaError_t not_while_capturing(struct EmulatedStream *s) {
    if (s->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
    s->capture = cudaStreamCaptureStatusInvalidated;
    return give(cudaErrorStreamCaptureUnsupported);
}

static cudaError_t nothing_captures(void) {
    cudaError_t error = not_while_capturing(&emulated.base);
    for (struct EmulatedStream *s = emulated.streams; s && !error; s = s->next) error = not_while_capturing(s);
    return error;
}

#define ENTER_WHILE(condition)                    \
    do {                                          \
        cudaError_t allowed = enter(__func__);    \
        if (!allowed) allowed = (condition);      \
        if (allowed) return allowed;              \
    } while (0)

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return give(cudaErrorUnknown);
    (*out)->next = emulated.streams;
    emulated.streams = *out;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    struct EmulatedStream **at = &emulated.streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (!*at) return give(cudaErrorInvalidResourceHandle);
    *at = stream->next;
    stream_drain(stream);
    tasks_free(&stream->captured);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER_WHILE(not_while_capturing(stream_of(stream)));
    stream_drain(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER_WHILE(nothing_captures());
    drain_all();
    return cudaSuccess;
}

/* ---- launches */

typedef struct Launch { dim3 grid, block; EmulateCall *call; _Alignas(16) char args[ARGUMENTS_MAX]; } Launch;

static void launch_run(void *data) {
    Launch *l = data;
    emulate_grid(l->grid, l->block, l->call, l->args);
}

cudaError_t emulate_launch(const cudaLaunchConfig_t *config, EmulateCall *call, const void *args, size_t bytes) {
    dim3 g = config->gridDim, b = config->blockDim;
    Launch l = {.grid = g, .block = b, .call = call};
    cudaError_t error = enter("cudaLaunchKernelEx");
    if (error) return error;
    if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535 || b.z > 64 ||
        b.x > EMULATE_BLOCK_MAX || b.y > EMULATE_BLOCK_MAX || b.x * b.y * b.z > EMULATE_BLOCK_MAX)
        return give(cudaErrorInvalidConfiguration);
    if (bytes > ARGUMENTS_MAX || config->dynamicSmemBytes) return give(cudaErrorInvalidValue);
    memcpy(l.args, args, bytes);
    return stream_push(config->stream, launch_run, &l, offsetof(Launch, args) + bytes);
}

/* ---- memory */

static size_t memory_total(void) {
    const char *bytes = getenv("EMULATE_MEMORY");
    return bytes ? (size_t)strtoull(bytes, NULL, 10) : (size_t)4 << 30;
}

static Block **block_at(const void *p) {
    Block **at = &emulated.blocks;
    while (*at && ((const char *)p < (*at)->p || (const char *)p >= (*at)->p + (*at)->bytes)) at = &(*at)->next;
    return at;
}

static cudaError_t block_new(void **p, size_t bytes, bool device) {
    Block *b = malloc(sizeof *b);
    *p = NULL;
    if (!b || posix_memalign(p, DEVICE_ALIGNMENT, bytes)) {
        free(b);
        return give(cudaErrorMemoryAllocation);
    }
    memset(*p, JUNK_BYTE, bytes < (1 << 20) ? bytes : 1 << 20); /* NaN in every floating type */
    *b = (Block){emulated.blocks, *p, bytes, device};
    emulated.blocks = b;
    if (device) emulated.bytes += bytes;
    return cudaSuccess;
}

static cudaError_t block_free(void *p, bool device) {
    Block **at = block_at(p), *b = *at;
    if (!b || b->p != p || b->device != device) return give(cudaErrorInvalidValue);
    *at = b->next;
    if (device) emulated.bytes -= b->bytes;
    free(b->p);
    free(b);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER();
    *total = memory_total();
    *free_bytes = *total - (emulated.bytes < *total ? emulated.bytes : *total);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER_WHILE(nothing_captures());
    if (bytes == 0) {
        *p = NULL;
        return cudaSuccess;
    }
    if (bytes > memory_total() - emulated.bytes) return give(cudaErrorMemoryAllocation);
    return block_new(p, bytes, true);
}

cudaError_t cudaFree(void *p) {
    ENTER_WHILE(nothing_captures());
    drain_all();
    return p ? block_free(p, true) : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER_WHILE(nothing_captures());
    return block_new(p, bytes, false);
}

cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *p) {
    ENTER_WHILE(nothing_captures());
    drain_all();
    return p ? block_free(p, false) : cudaSuccess;
}

typedef struct Copy { char *to; const char *from; size_t bytes; int value; } Copy;

static void copy_run(void *data) {
    const Copy *c = data;
    if (c->from) memcpy(c->to, c->from, c->bytes);
    else memset(c->to, c->value, c->bytes);
}

/* Does [p, p + bytes) lie in one block of the device (or, where `device` is false, outside of all of them)? */
static bool lies_in(const char *p, size_t bytes, bool device) {
    const Block *b = *block_at(p);
    if (b && b->device) return device && bytes <= (size_t)(b->p + b->bytes - p);
    return !device;
}

static bool copy_allowed(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return true;
    return lies_in(to, bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           lies_in(from, bytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    Copy c = {to, from, bytes, 0};
    ENTER();
    if (!copy_allowed(to, from, bytes, kind)) return give(cudaErrorInvalidValue);
    cudaError_t error = stream_push(stream, copy_run, &c, sizeof c);
    /* a copy from or to pageable host memory is over when the call returns */
    bool pageable = !*block_at(to) || !*block_at(from), captured = stream_of(stream)->capture != 0;
    if (!error && pageable && !captured) stream_drain(stream_of(stream));
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    Copy c = {to, from, bytes, 0};
    ENTER_WHILE(nothing_captures());
    if (!copy_allowed(to, from, bytes, kind)) return give(cudaErrorInvalidValue);
    drain_all();
    copy_run(&c);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    Copy c = {to, NULL, bytes, value};
    ENTER();
    if (!lies_in(to, bytes, true)) return give(cudaErrorInvalidValue);
    return stream_push(stream, copy_run, &c, sizeof c);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    ENTER_WHILE(nothing_captures());
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- events */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void event_run(void *data) { (*(struct EmulatedEvent **)data)->at = seconds(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return give(cudaErrorUnknown);
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    event->stream = stream_of(stream);
    event->captured = event->stream->capture != cudaStreamCaptureStatusNone;
    event->at = 0;
    return event->captured ? cudaSuccess : stream_push(stream, event_run, &event, sizeof event);
}

/* An event that was never recorded is over. */
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    if (event->captured) return give(cudaErrorStreamCaptureUnsupported);
    if (event->stream && event->at == 0) stream_drain(event->stream);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    if (event->captured) return give(cudaErrorStreamCaptureUnsupported);
    return event->stream && event->at == 0 ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    ENTER();
    if (!start->stream || !stop->stream || !start->timed || !stop->timed || start->captured || stop->captured)
        return give(cudaErrorInvalidResourceHandle);
    if (start->at == 0 || stop->at == 0) return give(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (stop->at - start->at));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream, (void)flags;
    ENTER();
    if (event->stream && !event->captured && event->at == 0) stream_drain(event->stream);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (event && event->stream && event->at == 0 && !event->captured) stream_drain(event->stream);
    free(event);
    return cudaSuccess;
}

/* ---- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    ENTER_WHILE(not_while_capturing(stream_of(stream)));
    if (!stream) return give(cudaErrorStreamCaptureUnsupported); /* stream 0 cannot be captured */
    stream->capture = cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    struct EmulatedStream *s = stream_of(stream);
    enum cudaStreamCaptureStatus status = s->capture;
    Tasks captured = s->captured;
    s->capture = cudaStreamCaptureStatusNone;
    s->captured = (Tasks){NULL, NULL};
    *out = NULL;
    cudaError_t error = enter(__func__);
    if (!error && status == cudaStreamCaptureStatusNone) error = give(cudaErrorInvalidValue);
    if (!error && status == cudaStreamCaptureStatusInvalidated) error = give(cudaErrorStreamCaptureInvalidated);
    if (!error) *out = calloc(1, sizeof **out);
    if (!error && !*out) error = give(cudaErrorUnknown);
    if (error) tasks_free(&captured);
    else (*out)->tasks = captured;
    return error;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    ENTER();
    *out = stream_of(stream)->capture;
    return cudaSuccess;
}

/* The count only. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count) {
    ENTER();
    if (nodes) return give(cudaErrorNotSupported);
    *count = 0;
    for (const Task *t = graph->tasks.first; t; t = t->next) ++*count;
    return cudaSuccess;
}

/* The tasks move: a graph is instantiated once. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return give(cudaErrorUnknown);
    (*out)->tasks = graph->tasks;
    graph->tasks = (Tasks){NULL, NULL};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
    (void)graph, (void)stream;
    ENTER();
    return cudaSuccess;
}

static void graph_run(void *data) { tasks_run(&(*(struct EmulatedGraph **)data)->tasks); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    ENTER();
    return stream_push(stream, graph_run, &graph, sizeof graph);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (graph) tasks_free(&graph->tasks);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    drain_all();
    return cudaGraphDestroy(graph);
}

/* ---- the device */

cudaError_t cudaDriverGetVersion(int *version) {
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER();
    *count = 1;
    return cudaSuccess;
}

static cudaError_t known(int device) { return device == 0 ? cudaSuccess : give(cudaErrorInvalidDevice); }

cudaError_t cudaSetDevice(int device) {
    ENTER_WHILE(known(device));
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    ENTER();
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    ENTER_WHILE(known(device));
    *out = (cudaDeviceProp){.name = "emulated CUDA device", .totalGlobalMem = memory_total(),
                            .sharedMemPerBlock = 48 << 10, .major = 9, .minor = 0, .multiProcessorCount = PROCESSORS,
                            .l2CacheSize = 1 << 20, .warpSize = EMULATE_WARP, .maxThreadsPerBlock = EMULATE_BLOCK_MAX};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    ENTER_WHILE(cudaGetDeviceProperties(&p, device));
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = p.warpSize; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; return cudaSuccess;
    }
    return give(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    ENTER_WHILE(known(device));
    snprintf(text, (size_t)bytes, "0000:00:00.0");
    return cudaSuccess;
}
