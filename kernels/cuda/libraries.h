/* libraries.h: the device's handles of cuDNN and cuBLASLt. The emulated device's are stand-ins' (tests/emulate). */
#ifndef MT_LIBRARIES_H
#define MT_LIBRARIES_H

#include <cublasLt.h>

#include "cudnn_device.h"

/* A handle is made when it is first asked for, so that a program without convolutions never loads cuDNN's parts.
 * cuDNN's is bound to the device's stream. ERR_UNSUPPORTED: a described device has no handles. */
int libraries_cudnn(CudaDevice *c, cudnnHandle_t *handle, Err *e);
int libraries_blas(CudaDevice *c, cublasLtHandle_t *handle, Err *e);

#endif
