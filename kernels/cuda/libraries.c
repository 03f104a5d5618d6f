/* libraries.c: handles of cuDNN and cuBLASLt. */
#include "libraries.h"

#include <stdio.h>

#include "base/mem.h"

struct Libraries {
    cudnnHandle_t cudnn;
    cublasLtHandle_t blas;
};

static int libraries_of(CudaDevice *c, Libraries **out, Err *e) {
    if (!c->libraries) c->libraries = mem_new(sizeof *c->libraries);
    *out = c->libraries;
    return *out ? OK : err_set(e, ERR_HOST_MEMORY, "no host memory for the handles of cuDNN and cuBLASLt");
}

static int tuning_only(const CudaDevice *c, const char *library, Err *e) {
    return err_set(e, ERR_UNSUPPORTED, "planning only: %s is described, not here, and %s has no handle for it",
                   c->model.name, library);
}

int libraries_cudnn(CudaDevice *c, cudnnHandle_t *handle, Err *e) {
    Libraries *l;
    if (c->ordinal == NOT_HERE) return tuning_only(c, "cuDNN", e);
    int code = libraries_of(c, &l, e);
    if (!code && !l->cudnn) {
        code = cudnn_device_check(cudnnCreate(&l->cudnn), "a handle", e);
        if (!code) code = cudnn_device_check(cudnnSetStream(l->cudnn, c->stream), "the stream", e);
    }
    if (!code) *handle = l->cudnn;
    return code;
}

int libraries_blas(CudaDevice *c, cublasLtHandle_t *handle, Err *e) {
    Libraries *l;
    if (c->ordinal == NOT_HERE) return tuning_only(c, "cuBLASLt", e);
    int code = libraries_of(c, &l, e);
    if (code) return code;
    cublasStatus_t status = l->blas ? CUBLAS_STATUS_SUCCESS : cublasLtCreate(&l->blas);
    if (status)
        return err_set(e, status == CUBLAS_STATUS_ALLOC_FAILED ? ERR_OOM : ERR_DEVICE, "cuBLASLt: a handle: %s",
                       cublasLtGetStatusString(status));
    *handle = l->blas;
    return OK;
}

int libraries_describe(CudaDevice *c, DeviceText *put, void *arg, Err *e) {
    cudnnBackendDescriptor_t d;
    int64_t n = 0;
    int code = cudnn_device_properties(c, &d, e);
    if (code) return code;
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
    code = cudnn_device_check(cudnnBackendGetAttribute(d, name, CUDNN_TYPE_CHAR, 0, &n, NULL), "a description", e);
    char *text = code ? NULL : mem_new((size_t)n + 1);
    if (code) return code;
    if (!text) return err_set(e, ERR_HOST_MEMORY, "no host memory for a description of %lld bytes", (long long)n);
    code = cudnn_device_check(cudnnBackendGetAttribute(d, name, CUDNN_TYPE_CHAR, n, &n, text), "a description", e);
    if (!code) put(arg, text);
    mem_free(text);
    return code;
}

void libraries_versions(char *text, size_t size) {
    size_t dnn = cudnnGetVersion(), blas = cublasLtGetVersion(); /* 91900, 130100 */
    snprintf(text, size, "cuDNN %zu.%zu.%zu, cuBLASLt %zu.%zu.%zu", dnn / 10000, dnn / 100 % 100, dnn % 100,
             blas / 10000, blas / 100 % 100, blas % 100);
}

void libraries_close(CudaDevice *c) {
    Libraries *l = c->libraries;
    cudnn_device_close(c);
    if (!l) return;
    if (l->blas) cublasLtDestroy(l->blas);
    if (l->cudnn) cudnnDestroy(l->cudnn);
    mem_free(l);
    c->libraries = NULL;
}
