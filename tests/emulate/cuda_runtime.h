/* cuda_runtime.h: the part of the CUDA runtime that kernels/cuda uses, over host memory, so that its code is compiled
 * and tested where there is no GPU. Names, argument order and error codes are CUDA's.
 *
 * Streams run their work at once; with EMULATE_LATE=1 as late as CUDA allows: when something waits for it. So a host
 * buffer that is reused too early is found. Other variables:
 *   EMULATE_MEMORY=BYTES,...  the devices' memory: a number for each device (one device of 4 GiB)
 *   EMULATE_FAIL=NAME:N:CODE[:DEVICE]  the N-th call of the function NAME (while that device is current) gives error
 *                             CODE; 700 to 719 break what the process has on devices for good
 *   EMULATE_REVERSE=1         blocks and threads run last to first
 *   EMULATE_SEED=N            blocks, warps and threads run in a random order, another one in each launch
 *   EMULATE_SHADOW=1          the shadow memory ends the program at the first fault of a kernel (shadow/shadow.h)
 *   EMULATE_NODES=FILE        the number of nodes of each graph that is made is added to the file, a line each
 *   EMULATE_LAUNCH=MS         a launch takes so many milliseconds more, as events measure it */
#ifndef EMULATE_CUDA_RUNTIME_H
#define EMULATE_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

#define CUDA_ERRORS(X)                                                                                   \
    X(cudaSuccess, 0, "no error")                                                                        \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                      \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                     \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                \
    X(cudaErrorStubLibrary, 34, "CUDA driver is a stub library")                                         \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")   \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                      \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                             \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                             \
    X(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error detected during the execution")     \
    X(cudaErrorContained, 221, "Invalid access of peer GPU memory over nvlink or a hardware error")      \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                    \
    X(cudaErrorNotReady, 600, "device not ready")                                                        \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                          \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                     \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                            \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                              \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                          \
    X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                        \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                             \
    X(cudaErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")       \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                                \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                         \
    X(cudaErrorExternalDevice, 722, "an async error occured in external entity outside of CUDA")         \
    X(cudaErrorNotSupported, 801, "operation not supported")                                             \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")        \
    X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
    X(cudaErrorUnknown, 999, "unknown error")

typedef enum cudaError {
#define X(name, code, text) name = code,
    CUDA_ERRORS(X)
#undef X
} cudaError_t;

enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1 };

enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrWarpSize = 10, cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76
};

typedef struct cudaUUID_t { char bytes[16]; } cudaUUID_t;

typedef struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlock;
    int major, minor, multiProcessorCount, l2CacheSize, warpSize, maxThreadsPerBlock;
    int pciDomainID, pciBusID, pciDeviceID;
} cudaDeviceProp;

typedef struct EmulatedStream *cudaStream_t;
typedef struct EmulatedEvent *cudaEvent_t;
typedef struct EmulatedGraph *cudaGraph_t, *cudaGraphExec_t;

typedef struct uint3 { unsigned x, y, z; } uint3;
typedef struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
#endif
} dim3;

typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes; /* 0: shared memory is static in these kernels */
    cudaStream_t stream;
    void *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;

#ifdef __cplusplus
extern "C" {
#endif

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);

cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *out);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

#ifdef __cplusplus
}
#include "emulate_kernel.h"
#endif

#endif
