/* libraries.c: handles of cuDNN and cuBLASLt, and the device as cuDNN describes it. */
#include "libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct Libraries {
    cudnnHandle_t cudnn;
    cublasLtHandle_t blas;
    cudnnBackendDescriptor_t properties;
};

static int libraries_of(CudaDevice *c, Libraries **out, Err *e) {
    if (!c->libraries) c->libraries = mem_new(sizeof *c->libraries);
    *out = c->libraries;
    return *out ? OK : err_set(e, ERR_HOST_MEMORY, "no host memory for the handles of cuDNN and cuBLASLt");
}

static int code_of(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) return ERR_OOM;
    return status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? ERR_UNSUPPORTED : ERR_DEVICE; /* 3001 ... */
}

int libraries_check(cudnnStatus_t status, const char *what, Err *e) {
    if (status == CUDNN_STATUS_SUCCESS) return OK;
    char detail[256] = "";
    const int code = code_of(status);
    cudnnGetLastErrorString(detail, sizeof detail);
    return err_set(e, code, "cuDNN: %s: %s%s%s", what, cudnnGetErrorString(status), detail[0] ? ": " : "", detail);
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
        code = libraries_check(cudnnCreate(&l->cudnn), "a handle", e);
        if (!code) code = libraries_check(cudnnSetStream(l->cudnn, c->stream), "the stream", e);
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

/* Loads libcuda.so.1: cuDNN's compiled engines want it even to say whether they take a graph. Without a driver the
 * toolkit's stub will do as long as nothing is run: once it is loaded by its path, its name finds it. */
static int driver_or_stub(Err *e) {
    if (dlopen("libcuda.so.1", RTLD_NOW)) return OK;
    const char *root = getenv("CUDA_PATH");
    char first[512];
    snprintf(first, sizeof first, "%s/lib64/stubs/libcuda.so", root ? root : "/usr/local/cuda");
    const char *const patterns[] = {first, "/usr/local/cuda*/lib64/stubs/libcuda.so",
                                    "/usr/local/cuda*/targets/*/lib/stubs/libcuda.so"};
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        glob_t found;
        bool loaded = false;
        if (glob(patterns[i], 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc && !loaded; k++) loaded = dlopen(found.gl_pathv[k], RTLD_NOW);
        globfree(&found);
        if (loaded) return OK;
    }
    return err_set(e, ERR_UNSUPPORTED, "cuDNN plans for a described GPU only where libcuda.so.1 can be loaded: there "
                   "is no NVIDIA driver, and no stub of it at %s (CUDA_PATH names the toolkit)", first);
}

static int properties_fill(CudaDevice *c, cudnnBackendDescriptor_t d, Err *e) {
    cudnnStatus_t status;
    if (c->model.description) {
        int code = driver_or_stub(e);
        if (code) return code;
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                          (int64_t)strlen(c->model.description), c->model.description);
    } else {
        int32_t ordinal = c->ordinal;
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &ordinal);
    }
    if (!status) status = cudnnBackendFinalize(d);
    return libraries_check(status, c->model.description ? "the device description" : "the device's properties", e);
}

int libraries_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e) {
    Libraries *l;
    int code = libraries_of(c, &l, e);
    if (!code && !l->properties) {
        cudnnBackendDescriptor_t d = NULL;
        code = libraries_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d),
                               "a descriptor of device properties", e);
        if (!code) code = properties_fill(c, d, e);
        if (!code) l->properties = d;
        else if (d) cudnnBackendDestroyDescriptor(d);
    }
    if (!code) *properties = l->properties;
    return code;
}

int libraries_describe(CudaDevice *c, DeviceText *put, void *arg, Err *e) {
    cudnnBackendDescriptor_t d;
    int64_t n = 0;
    int code = libraries_properties(c, &d, e);
    if (code) return code;
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
    code = libraries_check(cudnnBackendGetAttribute(d, name, CUDNN_TYPE_CHAR, 0, &n, NULL), "a description", e);
    char *text = code ? NULL : mem_new((size_t)n + 1);
    if (code) return code;
    if (!text) return err_set(e, ERR_HOST_MEMORY, "no host memory for a description of %lld bytes", (long long)n);
    code = libraries_check(cudnnBackendGetAttribute(d, name, CUDNN_TYPE_CHAR, n, &n, text), "a description", e);
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
    if (!l) return;
    if (l->properties) cudnnBackendDestroyDescriptor(l->properties);
    if (l->blas) cublasLtDestroy(l->blas);
    if (l->cudnn) cudnnDestroy(l->cudnn);
    mem_free(l);
    c->libraries = NULL;
}
