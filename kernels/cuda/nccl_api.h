/* nccl_api.h: the part of NVIDIA's NCCL that ranks on GPUs exchange by. The library is loaded when ranks join, so that the plugin
 * is built and loaded where it is not installed, and nccl.h, which is no part of CUDA's toolkit, is not needed. Types, values
 * and functions are those of nccl.h 2.28; they are the same in all versions since 2.13. tests/cuda/t_nccl.c, which includes
 * NVIDIA's header before this one, compares them. */
#ifndef MT_NCCL_API_H
#define MT_NCCL_API_H

#include <cuda_runtime.h>

#include "base/err.h"

#define NCCL_RESULTS(X) X(ncclSuccess, 0)
#define NCCL_OPS(X) X(ncclSum, 0) X(ncclMax, 2)
#define NCCL_TYPES(X) X(ncclInt8, 0) X(ncclInt32, 2) X(ncclFloat16, 6) X(ncclFloat32, 7) X(ncclBfloat16, 9)

#ifndef NCCL_H_
#define X(name, value) name = value,
typedef enum { NCCL_RESULTS(X) } ncclResult_t;
typedef enum { NCCL_OPS(X) } ncclRedOp_t;
typedef enum { NCCL_TYPES(X) } ncclDataType_t;
#undef X
typedef struct ncclComm *ncclComm_t;
enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;
#endif

#define NCCL_FUNCTIONS(X)                                                                                                     \
    X(ncclResult_t, ncclGetVersion, (int *version))                                                                           \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *id))                                                                      \
    X(ncclResult_t, ncclCommInitRank, (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank))                               \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))                                                                       \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                                                         \
    X(const char *, ncclGetErrorString, (ncclResult_t result))                                                                \
    X(const char *, ncclGetLastError, (ncclComm_t comm))                                                                      \
    X(ncclResult_t, ncclGroupStart, (void))                                                                                   \
    X(ncclResult_t, ncclGroupEnd, (void))                                                                                     \
    X(ncclResult_t, ncclAllReduce, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,            \
                                    ncclComm_t comm, cudaStream_t stream))                                                    \
    X(ncclResult_t, ncclReduceScatter, (const void *from, void *to, size_t to_count, ncclDataType_t type, ncclRedOp_t op,     \
                                        ncclComm_t comm, cudaStream_t stream))                                                \
    X(ncclResult_t, ncclAllGather, (const void *from, void *to, size_t from_count, ncclDataType_t type, ncclComm_t comm,      \
                                    cudaStream_t stream))                                                                     \
    X(ncclResult_t, ncclReduce, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,     \
                                 ncclComm_t comm, cudaStream_t stream))                                                       \
    X(ncclResult_t, ncclBroadcast, (const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, \
                                    cudaStream_t stream))                                                                     \
    X(ncclResult_t, ncclSend, (const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm,                  \
                               cudaStream_t stream))                                                                          \
    X(ncclResult_t, ncclRecv, (void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream))

/* The functions of the loaded library: n->ncclAllReduce(...). */
typedef struct Nccl {
#define X(result, name, arguments) result (*name) arguments;
    NCCL_FUNCTIONS(X)
#undef X
} Nccl;

/* Loads the file that MEMTIDE_NCCL names, else libnccl.so.2 from where libraries are. It stays to the end of the process.
 * ERR_UNSUPPORTED: it is not there, or lacks a function; the text says which. */
int nccl_load(Nccl *n, Err *e);

#endif
