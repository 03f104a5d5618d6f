/* cuda.h: what the files of this folder share: the open device, errors, and the prepare half of the PREPARED ops.
 * C and .cu files include it. Kernels enqueue on the device's stream and do nothing else: they neither allocate nor
 * wait, so that a step can be recorded as a graph. */
#ifndef MT_CUDA_H
#define MT_CUDA_H

#include <cuda_runtime.h>

#include "device.h"
#include "prepared.h"

/* cudaMalloc's own promise; more than the 16 bytes that cuDNN and vector loads want, and whole 128-byte lines */
enum { CUDA_ALIGNMENT = 256 };

/* What kernels and libraries want to know of a GPU, of one that is here or of a description. */
typedef struct CudaModel {
    char name[96];           /* "NVIDIA H200" */
    int capability;          /* 90: compute capability 9.0 */
    int processors;          /* streaming multiprocessors */
    size_t l2_bytes, memory_bytes;
    char *description;       /* JSON, NUL-terminated; NULL: of the GPU itself */
} CudaModel;

typedef struct CudaSection { cudaEvent_t start, stop; } CudaSection;
typedef struct Libraries Libraries; /* libraries.h */
typedef struct CudaQueue CudaQueue; /* optim.cu: updates that wait to be enqueued as one kernel */

typedef struct CudaDevice {
    Device base;
    int ordinal;             /* NOT_HERE: a described device */
    CudaModel model;
    cudaStream_t stream;     /* everything is enqueued here */
    cudaEvent_t sent[SEND_SLOTS];
    CudaSection *sections;   /* timed; [0, n_sections) since `elapsed` was last called */
    int n_sections, cap_sections;
    bool capturing;
    Err lost;                /* code != 0: the context is broken for good, and this is why */
    Prepared prepared;
    Libraries *libraries;    /* made at their first use; NULL before */
    CudaQueue *queue;        /* made at its first use; NULL before */
} CudaDevice;

enum { NOT_HERE = -1 };

#ifdef __cplusplus
extern "C" {
#endif

static inline CudaDevice *cuda_of(const KArgs *args) { return (CudaDevice *)args->device; }

/* OK, or fills *e with CUDA's name for the failure of `what`: ERR_OOM where memory ran out, else ERR_DEVICE. Clears the
 * error; one that cannot be cleared is kept in c->lost, and every later call of the device gives it. */
int cuda_check(CudaDevice *c, cudaError_t error, const char *what, Err *e);

/* The state of a PREPARED op begins with what frees it. A NULL state is allowed. */
typedef struct CudaState { KernelRelease *release; } CudaState;

/* optim.cu: enqueues the updates that wait; nothing where none do. run calls it before an op of another kind. */
int cuda_flush(CudaDevice *c, Err *e);
void cuda_queue_free(CudaQueue *queue); /* NULL is allowed */

#define PROTOTYPE_PREPARED(name) KernelPrepare k_cuda_##name##_prepare;
#define PROTOTYPE_PLAIN(name)
#define OP(name, in, out, inplace, autocast, prepare, equation) PROTOTYPE_##prepare(name)
#include "ops.def"
#undef OP
#undef PROTOTYPE_PREPARED
#undef PROTOTYPE_PLAIN

/* ---- parts of the device, each in its own file */

/* describe.c: reads devices/NAME.json beside the plugin into *model. */
int describe_read(const char *name, CudaModel *model, Err *e);

/* described.c: a device that plans and cannot compute; `model` becomes its own. */
int described_open(CudaModel *model, Device **out, Err *e);

/* device.c: the functions that both devices have. */
int cuda_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e);
void cuda_trim(Device *d);
void cuda_close_common(CudaDevice *c);

/* memory.c, capture.c, timing.c: see DeviceTable */
int cuda_alloc(Device *d, size_t bytes, void **p, Err *e);
void cuda_free(Device *d, void *p, size_t bytes);
int cuda_host_alloc(Device *d, size_t bytes, void **p, Err *e);
void cuda_host_free(Device *d, void *p, size_t bytes);
int cuda_upload(Device *d, void *to, const void *from, size_t bytes, Err *e);
int cuda_download(Device *d, void *to, const void *from, size_t bytes, Err *e);
int cuda_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e);
int cuda_sent(Device *d, int slot, Err *e);

#ifdef __cplusplus
}
#endif

#endif
