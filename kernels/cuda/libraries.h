/* libraries.h: the device's handles of cuDNN and cuBLASLt. The emulated device has neither and does not include it. */
#ifndef MT_LIBRARIES_H
#define MT_LIBRARIES_H

#include <cublasLt.h>
#include <cudnn.h>

#include "cuda.h"

/* A handle is made when it is first asked for, so that a program without convolutions never loads cuDNN's parts.
 * cuDNN's is bound to the device's stream. ERR_UNSUPPORTED: a described device has no handles. */
int libraries_cudnn(CudaDevice *c, cudnnHandle_t *handle, Err *e);
int libraries_blas(CudaDevice *c, cublasLtHandle_t *handle, Err *e);
/* *properties: a finalised CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR of the GPU or of its description; the device frees it. */
int libraries_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e);

/* OK; or ERR_DEVICE, ERR_UNSUPPORTED or ERR_OOM, as cuDNN's status says, with cuDNN's own words for the failure of
 * `what`. */
int libraries_check(cudnnStatus_t status, const char *what, Err *e);

#endif
