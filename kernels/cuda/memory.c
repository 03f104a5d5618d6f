/* memory.c: the GPU's memory, and copies between it and the host. */
#include "cuda.h"

int cuda_alloc(Device *d, size_t bytes, void **p, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    *p = NULL;
    if (bytes == 0 || bytes % CUDA_ALIGNMENT)
        return err_set(e, ERR_INTERNAL, "expected a multiple of %d bytes, found %zu", CUDA_ALIGNMENT, bytes);
    int code = cuda_ready(c, e);
    if (code) return code;
    cudaError_t error = cudaMalloc(p, bytes);
    code = cuda_check(c, error, "cudaMalloc", e);
    if (code) *p = NULL;
    size_t left = 0, total = 0;
    if (error == cudaErrorMemoryAllocation && !cuda_check(c, cudaMemGetInfo(&left, &total), "the free memory", NULL))
        return err_set(e, ERR_OOM, "the GPU has not %zu bytes in one piece: %zu of its %zu bytes are free", bytes, left,
                       total);
    return code;
}

/* cudaFree waits for all that is enqueued. If it fails, an earlier op has failed: a final error is kept in c->lost. */
void cuda_free(Device *d, void *p, size_t bytes) {
    CudaDevice *c = (CudaDevice *)d;
    (void)bytes;
    if (!p || cuda_ready(c, NULL)) return;
    cuda_flush(c, NULL);
    cuda_check(c, cudaFree(p), "cudaFree", NULL);
}

int cuda_host_alloc(Device *d, size_t bytes, void **p, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    *p = NULL;
    int code = cuda_ready(c, e);
    if (code) return code;
    if (cuda_check(c, cudaHostAlloc(p, bytes ? bytes : 1, cudaHostAllocDefault), "cudaHostAlloc", e) == OK) return OK;
    *p = NULL;
    if (c->lost.code) return c->lost.code;
    return err_set(e, ERR_HOST_MEMORY, "the host has no %zu bytes of pinned memory", bytes);
}

void cuda_host_free(Device *d, void *p, size_t bytes) {
    CudaDevice *c = (CudaDevice *)d;
    (void)bytes;
    if (p && cuda_ready(c, NULL) == OK) cuda_check(c, cudaFreeHost(p), "cudaFreeHost", NULL);
}

/* Copies after all that was enqueued. cudaMemcpy would not wait for that, since the stream is a non-blocking one. */
static int copy(Device *d, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, const char *what,
                Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code) code = cuda_check(c, cudaMemcpyAsync(to, from, bytes, kind, c->stream), what, e);
    return code;
}

int cuda_sync(Device *d, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code) code = cuda_check(c, cudaStreamSynchronize(c->stream), "waiting for the GPU", e);
    if (!code) code = cuda_flights_sync(c, e);
    return code;
}

int cuda_upload(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    int code = copy(d, to, from, bytes, cudaMemcpyHostToDevice, "a copy to the GPU", e);
    return code ? code : cuda_sync(d, e);
}

int cuda_download(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    int code = copy(d, to, from, bytes, cudaMemcpyDeviceToHost, "a copy from the GPU", e);
    return code ? code : cuda_sync(d, e);
}

int cuda_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    assert(0 <= slot && slot < SEND_SLOTS);
    int code = copy(d, to, from, bytes, cudaMemcpyHostToDevice, "a copy to the GPU", e);
    return code ? code : cuda_check(c, cudaEventRecord(c->sent[slot], c->stream), "an event after a copy", e);
}

int cuda_sent(Device *d, int slot, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    assert(0 <= slot && slot < SEND_SLOTS);
    int code = cuda_ready(c, e);
    return code ? code : cuda_check(c, cudaEventSynchronize(c->sent[slot]), "waiting for a copy to the GPU", e);
}

int cuda_fetch(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    return copy(d, to, from, bytes, cudaMemcpyDeviceToHost, "a copy from the GPU", e);
}

/* The bytes of this process, if the driver tells them: in some containers it knows processes by other numbers. Else all
 * bytes in use on the GPU. */
size_t cuda_used(Device *d) {
    CudaDevice *c = (CudaDevice *)d;
    size_t left = 0, total = 0, mine = nvml_used(c->nvml);
    if (mine) return mine;
    if (cuda_ready(c, NULL) || cuda_check(c, cudaMemGetInfo(&left, &total), "the free memory", NULL)) return 0;
    return total - left;
}
