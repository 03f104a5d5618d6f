/* libraries.h: cuDNN and cuBLASLt as the device holds them. Not included where the device is emulated. */
#ifndef MT_LIBRARIES_H
#define MT_LIBRARIES_H

#include <cublasLt.h>
#include <cudnn.h>

#include "cuda.h"

/* Each is made when it is first asked for, so that a program without convolutions never loads cuDNN's parts.
 * The handle is bound to the device's stream; a described device has no handles (ERR_UNSUPPORTED). */
int libraries_cudnn(CudaDevice *c, cudnnHandle_t *handle, Err *e);
int libraries_blas(CudaDevice *c, cublasLtHandle_t *handle, Err *e);
/* The device as graphs and heuristics want it: a finalised CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, the GPU's own or the
 * description's. Borrowed. */
int libraries_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e);

/* OK, or ERR_DEVICE (ERR_UNSUPPORTED or ERR_OOM where cuDNN says so) with cuDNN's own words for the failure of
 * `what`. */
int libraries_check(cudnnStatus_t status, const char *what, Err *e);

#endif
