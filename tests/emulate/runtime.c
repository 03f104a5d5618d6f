/* runtime.c: the emulated device: its errors, its memory, its properties. See cuda_runtime.h. */
#include "runtime.h"
#include "shadow/shadow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_ALIGNMENT = 256, JUNK_BYTE = 0xFF, PROCESSORS = 4, DEVICES_MAX = 8, HOST = -1 };
enum { LOST_FIRST = 700, LOST_LAST = 719 }; /* errors that break the context */

typedef struct Block { struct Block *next; char *p; size_t bytes; int device; /* or HOST */ } Block;

static struct {
    Block *blocks;         /* of device memory, and of pinned host memory */
    size_t bytes[DEVICES_MAX]; /* of memory in use, by device */
    int device;            /* the current one */
    cudaError_t last, lost;
    char failing[128];     /* EMULATE_FAIL when it was last read */
    long failing_calls;    /* how often its function was called since then */
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

cudaError_t emulate_give(cudaError_t error) {
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

cudaError_t emulate_enter(const char *name) {
    const char *failing = getenv("EMULATE_FAIL");
    char function[64];
    long n;
    int code, device = emulated.device;
    if (emulated.lost) return emulate_give(emulated.lost);
    if (!failing || sscanf(failing, "%63[^:]:%ld:%d:%d", function, &n, &code, &device) < 3) return cudaSuccess;
    if (strncmp(failing, emulated.failing, sizeof emulated.failing)) {
        snprintf(emulated.failing, sizeof emulated.failing, "%s", failing);
        emulated.failing_calls = 0;
    }
    if (strcmp(function, name) || device != emulated.device || ++emulated.failing_calls != n) return cudaSuccess;
    return emulate_give((cudaError_t)code);
}

/* ---- memory */

/* How many devices there are. *memory: the bytes of device `which`, if there is one. */
static int devices(int which, size_t *memory) {
    const char *list = getenv("EMULATE_MEMORY");
    int n = 0;
    if (!list) list = "4294967296";
    for (char *end; n < DEVICES_MAX && *list; list = *end == ',' ? end + 1 : "") {
        size_t bytes = (size_t)strtoull(list, &end, 10);
        if (n++ == which) *memory = bytes;
    }
    return n;
}

static size_t memory_total(void) {
    size_t bytes = 0;
    devices(emulated.device, &bytes);
    return bytes;
}

static size_t memory_free(void) {
    size_t total = memory_total(), taken = emulated.bytes[emulated.device];
    return total > taken ? total - taken : 0;
}

int emulate_device(void) { return emulated.device; }

static Block **block_at(const void *p) {
    Block **at = &emulated.blocks;
    while (*at && ((const char *)p < (*at)->p || (const char *)p >= (*at)->p + (*at)->bytes)) at = &(*at)->next;
    return at;
}

static cudaError_t block_new(void **p, size_t bytes, int device) {
    Block *b = malloc(sizeof *b);
    *p = NULL;
    if (!b || posix_memalign(p, DEVICE_ALIGNMENT, bytes)) {
        free(b);
        return emulate_give(cudaErrorMemoryAllocation);
    }
    memset(*p, JUNK_BYTE, bytes < (1 << 20) ? bytes : 1 << 20); /* NaN in every floating type */
    *b = (Block){emulated.blocks, *p, bytes, device};
    emulated.blocks = b;
    if (device != HOST) emulated.bytes[device] += bytes, shadow_allocated(*p, bytes);
    return cudaSuccess;
}

static cudaError_t block_free(void *p, bool host) {
    Block **at = block_at(p), *b = *at;
    if (!b || b->p != p || (b->device == HOST) != host) return emulate_give(cudaErrorInvalidValue);
    *at = b->next;
    if (!host) emulated.bytes[b->device] -= b->bytes, shadow_freed(b->p);
    free(b->p);
    free(b);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER();
    *total = memory_total();
    *free_bytes = memory_free();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER_WHILE(emulate_nothing_captures());
    if (bytes == 0) {
        *p = NULL;
        return cudaSuccess;
    }
    if (bytes > memory_free()) return emulate_give(cudaErrorMemoryAllocation);
    return block_new(p, bytes, emulated.device);
}

cudaError_t cudaFree(void *p) {
    ENTER_WHILE(emulate_nothing_captures());
    emulate_drain();
    return p ? block_free(p, false) : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER_WHILE(emulate_nothing_captures());
    return block_new(p, bytes, HOST);
}

cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *p) {
    ENTER_WHILE(emulate_nothing_captures());
    emulate_drain();
    return p ? block_free(p, true) : cudaSuccess;
}

typedef struct Copy { char *to; const char *from; size_t bytes; int value; } Copy;

static void copy_run(void *data) {
    const Copy *c = data;
    if (c->from) memcpy(c->to, c->from, c->bytes), shadow_copied(c->to, c->from, c->bytes);
    else memset(c->to, c->value, c->bytes), shadow_wrote(c->to, c->bytes);
}

/* Does [p, p + bytes) lie in one block of a device? device false: does it lie outside of all devices' blocks? */
static bool lies_in(const char *p, size_t bytes, bool device) {
    const Block *b = *block_at(p);
    if (b && b->device != HOST) return device && bytes <= (size_t)(b->p + b->bytes - p);
    return !device;
}

bool emulate_on_device(const void *p, size_t bytes) { return lies_in(p, bytes, true); }

static bool copy_allowed(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return true;
    return lies_in(to, bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           lies_in(from, bytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    Copy c = {to, from, bytes, 0};
    ENTER();
    if (!copy_allowed(to, from, bytes, kind)) return emulate_give(cudaErrorInvalidValue);
    cudaError_t error = emulate_push(stream, copy_run, &c, sizeof c);
    /* a copy from or to pageable host memory is over when the call returns */
    bool pageable = !*block_at(to) || !*block_at(from);
    if (!error && pageable && !emulate_captures(stream)) emulate_drain_stream(stream);
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    Copy c = {to, from, bytes, 0};
    ENTER_WHILE(emulate_nothing_captures());
    if (!copy_allowed(to, from, bytes, kind)) return emulate_give(cudaErrorInvalidValue);
    emulate_drain();
    copy_run(&c);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    Copy c = {to, NULL, bytes, value};
    ENTER();
    if (!lies_in(to, bytes, true)) return emulate_give(cudaErrorInvalidValue);
    return emulate_push(stream, copy_run, &c, sizeof c);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    ENTER_WHILE(emulate_nothing_captures());
    return cudaMemsetAsync(to, value, bytes, NULL);
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
    *count = devices(0, &(size_t){0});
    return cudaSuccess;
}

static cudaError_t known(int device) {
    size_t memory;
    return device >= 0 && device < devices(device, &memory) ? cudaSuccess : emulate_give(cudaErrorInvalidDevice);
}

cudaError_t cudaSetDevice(int device) {
    ENTER_WHILE(known(device));
    emulated.device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    ENTER();
    *device = emulated.device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    size_t memory = 0;
    ENTER_WHILE(known(device));
    devices(device, &memory);
    *out = (cudaDeviceProp){.name = "emulated CUDA device", .uuid = {{(char)(1 + device)}}, .totalGlobalMem = memory,
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
    return emulate_give(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    ENTER_WHILE(known(device));
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}
