/* context.c: errors of the GPU's context, and whether it can still be called. */
#include "cuda.h"

/* After these the context answers every call with the same error, until the process ends. */
static bool is_final(cudaError_t error) {
    switch (error) {
    case cudaErrorIllegalAddress: case cudaErrorLaunchTimeout: case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction: case cudaErrorMisalignedAddress: case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc: case cudaErrorLaunchFailure: case cudaErrorAssert: case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable: case cudaErrorContained: case cudaErrorExternalDevice: case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

int cuda_check(CudaDevice *c, cudaError_t error, const char *what, Err *e) {
    if (error == cudaSuccess) return OK;
    (void)cudaGetLastError(); /* clears it: the next launch would report it again */
    int code = error == cudaErrorMemoryAllocation ? ERR_OOM : ERR_DEVICE;
    Err found;
    err_set(&found, code, "%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
    if (is_final(error) && !c->lost.code) c->lost = found;
    return err_set(e, code, "%s", found.text);
}

int cuda_ready(CudaDevice *c, Err *e) {
    if (c->lost.code) return err_set(e, c->lost.code, "the GPU was lost: %s", c->lost.text);
    return cuda_check(c, cudaSetDevice(c->ordinal), "choosing the GPU", e);
}
