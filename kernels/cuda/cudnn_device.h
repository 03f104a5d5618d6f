/* cudnn_device.h: the device as cuDNN describes it, and cuDNN's errors. */
#ifndef MT_CUDNN_DEVICE_H
#define MT_CUDNN_DEVICE_H

#include <cudnn.h>

#include "cuda.h"

/* *properties: a finalised CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR of the GPU or of its description, which the device keeps
 * until cudnn_device_close. */
int cudnn_device_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e);
void cudnn_device_close(CudaDevice *c);

/* OK; or ERR_DEVICE, ERR_UNSUPPORTED or ERR_OOM, as cuDNN's status says, with cuDNN's own words for the failure of
 * `what`. */
int cudnn_device_check(cudnnStatus_t status, const char *what, Err *e);

#endif
