/* nvToolsExt.h: what kernels/cuda/nvtx.c needs of NVTX where there is no CUDA toolkit; nvtx.c stands in for a profiler. */
#ifndef EMULATE_NVTX_H
#define EMULATE_NVTX_H

#include <stddef.h>
#include <stdint.h>

enum { NVTX_VERSION = 3, NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_EVENT_ATTRIB_STRUCT_SIZE = 48 };

typedef struct nvtxDomainRegistration_st *nvtxDomainHandle_t;
typedef struct nvtxEventAttributes_t {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    union { const char *ascii; } message;
} nvtxEventAttributes_t;
_Static_assert(sizeof(nvtxEventAttributes_t) == NVTX_EVENT_ATTRIB_STRUCT_SIZE, "NVTX's size");

nvtxDomainHandle_t nvtxDomainCreateA(const char *name);
void nvtxDomainDestroy(nvtxDomainHandle_t domain);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);

#endif
