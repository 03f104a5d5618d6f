/* cuda.h: what the files of this folder share: the open device, errors, and the functions that prepare the PREPARED
 * ops. For C and .cu files. Kernels enqueue on the device's stream and do nothing else: they neither allocate nor
 * wait, so that a step can be recorded as a graph. */
#ifndef MT_CUDA_H
#define MT_CUDA_H

#include <cuda_runtime.h>

#include "memory/device.h"
#include "program/op_cache.h"
#include "program/operands.h"

/* CUDA_ALIGNMENT: cudaMalloc's own promise; more than the 16 bytes that cuDNN and vector loads want, and whole 128-byte
 * cache lines. NOT_HERE: the ordinal of a described GPU */
enum { CUDA_ALIGNMENT = 256, NOT_HERE = -1 };

/* What kernels and libraries want to know of a GPU, be it here or described. */
typedef struct CudaModel {
    char name[96];           /* "NVIDIA H200" */
    int capability;          /* 90: compute capability 9.0 */
    int processors;          /* streaming multiprocessors */
    size_t l2_bytes, memory_bytes;
    char *description;       /* the JSON text of a described GPU; NULL: the GPU is here */
} CudaModel;

typedef struct CudaSection { cudaEvent_t start, stop; } CudaSection;
typedef struct Libraries Libraries; /* libraries.h */
typedef struct Nvml Nvml;           /* nvml.c */
typedef struct Ranks Ranks;         /* ranks.h */
typedef struct Tuning Tuning;       /* tuning.h */
typedef struct CudaFlights CudaFlights; /* flights.c */
typedef struct CudaQueue CudaQueue; /* queue.h: updates that wait to be enqueued as one kernel */

typedef struct CudaDevice {
    Device base;
    int ordinal;             /* NOT_HERE: a described device */
    CudaModel model;
    cudaStream_t stream;     /* everything is enqueued here */
    cudaStream_t exchange;   /* what ranks exchange: the same stream, until an op is begun (flights.c) */
    CudaFlights *flights;    /* NULL: none was begun yet */
    cudaEvent_t sent[SEND_SLOTS];
    CudaSection *sections;   /* [0, n_sections) were timed since `elapsed` was last called */
    int n_sections, cap_sections;
    OpKind last;             /* the kind of op that was run last */
    bool capturing;          /* a graph is being recorded */
    Err lost;                /* code != 0: the GPU's context is broken for good, and this is why */
    OpCache prepared;
    void *ranges;            /* nvtx.c: the domain; NULL: no profiler is attached */
    void *properties;        /* cudnn_device.c; NULL before its first use, like the next four */
    Libraries *libraries;
    Nvml *nvml;
    Tuning *tuning;
    CudaQueue *queue;
    Ranks *ranks[MESH_AXES]; /* along each axis; NULL: it has joined none */
} CudaDevice;

typedef KernelState CudaState;

static inline CudaDevice *cuda_of(const KArgs *args) { return (CudaDevice *)args->device; }

#ifdef __cplusplus
extern "C" {
#endif

/* context.c. OK; or fills *e with CUDA's name for the failure of `what`: ERR_OOM if memory ran out, else ERR_DEVICE.
 * Clears the error. One that cannot be cleared is kept in c->lost, and every later call of the device returns it. */
int cuda_check(CudaDevice *c, cudaError_t error, const char *what, Err *e);
/* Makes this thread's calls go to the device; OK if it is not lost. */
int cuda_ready(CudaDevice *c, Err *e);

/* queue.c: enqueues the updates that wait, if any. `run` calls it before an op whose kind differs from the last one's;
 * everything else that enqueues or waits calls it first. */
int cuda_flush(CudaDevice *c, Err *e);
void cuda_queue_free(CudaQueue *queue); /* NULL is allowed */

#define PROTOTYPE_PREPARED(name) KernelPrepare k_cuda_##name##_prepare;
#define PROTOTYPE_PLAIN(name)
#define OP(name, in, out, inplace, autocast, prepare, equation) PROTOTYPE_##prepare(name)
#include "program/ops.def"
#undef OP
#undef PROTOTYPE_PREPARED
#undef PROTOTYPE_PLAIN

/* ---- the device's own parts. device.h explains the functions that a device's table has. */

/* device.c */
int cuda_model_check(const CudaModel *m, Err *e); /* ERR_UNSUPPORTED: a GPU that the kernels are not built for */
void cuda_model_info(const CudaModel *m, DeviceInfo *info);
int cuda_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e);
void cuda_trim(Device *d, bool all);
void cuda_release(CudaDevice *c); /* frees *c, and all that a described device has, too */
int cuda_open(int ordinal, Device **out, Err *e); /* a GPU that is here */

/* device_file.c: reads devices/NAME.json beside the plugin. offline_device.c: such a device. */
int device_file_read(const char *name, CudaModel *m, Err *e);
int offline_open(const char *name, Device **out, Err *e);

/* memory.c */
int cuda_alloc(Device *d, size_t bytes, void **p, Err *e);
void cuda_free(Device *d, void *p, size_t bytes);
int cuda_host_alloc(Device *d, size_t bytes, void **p, Err *e);
void cuda_host_free(Device *d, void *p, size_t bytes);
int cuda_upload(Device *d, void *to, const void *from, size_t bytes, Err *e);
int cuda_download(Device *d, void *to, const void *from, size_t bytes, Err *e);
int cuda_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e);
int cuda_sent(Device *d, int slot, Err *e);
int cuda_sync(Device *d, Err *e);
size_t cuda_used(Device *d);

/* stream.c */
int cuda_start(Device *d, Err *e);
int cuda_stop(Device *d, Err *e);
int cuda_elapsed(Device *d, double *seconds, Err *e);
int cuda_record(Device *d, Err *e);
int cuda_recorded(Device *d, void **graph, Err *e);
int cuda_replay(Device *d, void *graph, Err *e);
void cuda_graph_free(Device *d, void *graph);
/* While a graph is being recorded: ERR_DEVICE if the last call has ended the recording. */
int cuda_recording_check(CudaDevice *c, Err *e);

/* flights.c: runs an op that exchanges, or waits for one. cuda_flights_close: after all work has ended, or NULL. */
int cuda_exchange(CudaDevice *c, KernelRun *run, const KArgs *args, Err *e);
int cuda_exchange_sync(CudaDevice *c, Err *e);
void cuda_flights_close(CudaFlights *f);

/* ranks.c: device.h explains join. ranks_leave waits for the other ranks to leave, too, unless something has failed. */
int cuda_join(Device *d, MeshAxis axis, Comm *comm, Err *e);
void ranks_leave(CudaDevice *c);

/* nvtx.c: ranges for profilers, named "WHAT WHERE"; where: NULL or "": nowhere. Each that is begun is ended. */
void cuda_ranges_open(CudaDevice *c);
void cuda_ranges_close(CudaDevice *c);
void cuda_range_begin(const CudaDevice *c, const char *what, const char *where);
void cuda_range_end(const CudaDevice *c);

/* libraries.c, tuning.c and nvml.c; the emulated device has stand-ins for the first and the last. libraries_close also
 * closes what cudnn_device.c has. */
void libraries_versions(char *text, size_t size); /* "cuDNN 9.19.0, cuBLASLt 13.1.0" */
int libraries_describe(CudaDevice *c, DeviceText *put, void *arg, Err *e);
void libraries_close(CudaDevice *c);
int cuda_tune(Device *d, DeviceText *put, void *arg, Err *e);
void tuning_free(Tuning *p); /* NULL is allowed */
/* What is wrong with the files of picks, or "". */
void tuning_warning(CudaDevice *c, char *text, size_t size);
Nvml *nvml_open(int ordinal); /* NULL: there is no such library */
void nvml_close(Nvml *n);     /* NULL is allowed, also in the next three */
size_t nvml_used(const Nvml *n); /* bytes of the GPU that this process holds; 0: not known */
void nvml_evidence(const Nvml *n, DeviceEvidence *out); /* fills in what the driver knows */
void nvml_driver(const Nvml *n, char *text, size_t size); /* "580.95.05", or "" */

#ifdef __cplusplus
}
#endif

#endif
