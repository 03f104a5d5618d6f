/* cudnn_device.c: the device as cuDNN describes it. A described GPU needs no handle, and so none of NVIDIA's libraries but
 * cuDNN. */
#include "cudnn_device.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int code_of(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) return ERR_OOM;
    return status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? ERR_UNSUPPORTED : ERR_DEVICE; /* 3001 ... */
}

int cudnn_device_check(cudnnStatus_t status, const char *what, Err *e) {
    if (status == CUDNN_STATUS_SUCCESS) return OK;
    char detail[256] = "";
    const int code = code_of(status);
    cudnnGetLastErrorString(detail, sizeof detail);
    return err_set(e, code, "cuDNN: %s: %s%s%s", what, cudnnGetErrorString(status), detail[0] ? ": " : "", detail);
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

/* cuDNN opens NVRTC for an answer about a described GPU and closes it again, which takes 10 ms: it is held open. Where it is
 * not found, cuDNN says what it lacks. */
static void hold_nvrtc(void) {
    static bool tried;
    char name[32];
    if (tried) return;
    tried = true;
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    (void)dlopen(name, RTLD_LAZY);
}

static int properties_fill(CudaDevice *c, cudnnBackendDescriptor_t d, Err *e) {
    cudnnStatus_t status;
    if (c->model.description) {
        int code = driver_or_stub(e);
        if (code) return code;
        hold_nvrtc();
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                          (int64_t)strlen(c->model.description), c->model.description);
    } else {
        int32_t ordinal = c->ordinal;
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &ordinal);
    }
    if (!status) status = cudnnBackendFinalize(d);
    return cudnn_device_check(status, c->model.description ? "the device description" : "the device's properties", e);
}

int cudnn_device_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e) {
    int code = OK;
    if (!c->properties) {
        cudnnBackendDescriptor_t d = NULL;
        code = cudnn_device_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d),
                               "a descriptor of device properties", e);
        if (!code) code = properties_fill(c, d, e);
        if (!code) c->properties = d;
        else if (d) cudnnBackendDestroyDescriptor(d);
    }
    if (!code) *properties = c->properties;
    return code;
}

void cudnn_device_close(CudaDevice *c) {
    if (c->properties) cudnnBackendDestroyDescriptor(c->properties);
    c->properties = NULL;
}
