/* cudnn.h: what the plugin's own files need of cuDNN where it is emulated: descriptors are data of cudnn.c. */
#ifndef EMULATE_CUDNN_H
#define EMULATE_CUDNN_H

#include <stddef.h>

typedef struct EmulatedNode *cudnnBackendDescriptor_t;
typedef struct EmulatedHandle *cudnnHandle_t;
typedef int cudnnStatus_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t;

size_t cudnnGetVersion(void);

#endif
