/* device.h: a device is a const table of functions; one instance is open per process and device.
 * Kernels see KArgs (kernel.h); programs, plans and networks stay outside. */
#ifndef MT_DEVICE_H
#define MT_DEVICE_H

#include "base/err.h"
#include "program/kernel.h"

typedef struct Device Device;

typedef struct DeviceInfo {
    char name[96];         /* "AMD EPYC 9554", "NVIDIA H200" */
    char driver[96];       /* library or driver version */
    size_t memory_total, memory_free; /* bytes; 0 = not known */
    int threads;           /* CPU */
    char detail[96];       /* "compute capability 9.0, 132 multiprocessors", or "" */
    int count;             /* devices of this kind that are here; 0 = there is but one */
    bool emulated[DT_COUNT]; /* does it compute this type (bf16, fp16) in fp32 only, by copies or in several steps? */
    char warning[512];     /* what is wrong with the files that plans are chosen by, or "" */
} DeviceInfo;

/* How the device is doing at the moment; -1: not known. */
typedef struct DeviceEvidence {
    int mhz, memory_mhz, celsius;
    int throttle;          /* of DeviceThrottle: why the clock is lower than it could be */
} DeviceEvidence;
typedef enum DeviceThrottle { THROTTLE_POWER = 1, THROTTLE_THERMAL = 2, THROTTLE_BRAKE = 4 } DeviceThrottle;

/* Takes a piece of text. */
typedef void DeviceText(void *arg, const char *text);

enum { SEND_SLOTS = 2 };

typedef struct DeviceTable {
    const char *kind;  /* "cpu", "dry" */
    size_t alignment;  /* every allocation is a multiple of it and starts at one; a power of two */
    void (*close)(Device *);
    int (*info)(Device *, DeviceInfo *, Err *);
    int (*describe)(Device *, DeviceText *put, void *arg, Err *); /* as a description file; NULL: has none */
    int (*alloc)(Device *, size_t bytes, void **p, Err *); /* ERR_OOM when there is none; contents undefined */
    void (*free)(Device *, void *p, size_t bytes);
    /* Copies that are over when they return, after all that was enqueued. */
    int (*upload)(Device *, void *to, const void *from, size_t bytes, Err *);
    int (*download)(Device *, void *to, const void *from, size_t bytes, Err *);
    int (*sync)(Device *, Err *); /* waits for all that was enqueued */
    /* Host memory that the device itself reads while the host goes on (pinned, on a GPU). */
    int (*host_alloc)(Device *, size_t bytes, void **p, Err *);
    void (*host_free)(Device *, void *p, size_t bytes);
    /* Enqueues a copy from such memory; sent waits until the last copy of that slot (below SEND_SLOTS) is over. */
    int (*send)(Device *, int slot, void *to, const void *from, size_t bytes, Err *);
    int (*sent)(Device *, int slot, Err *);
    /* A timed section: what is enqueued between start and stop. elapsed waits, and sums up the device's time in all
     * sections since it was last called. */
    int (*start)(Device *, Err *);
    int (*stop)(Device *, Err *);
    int (*elapsed)(Device *, double *seconds, Err *);
    /* What run enqueues between record and recorded is not run but becomes a graph, which replay enqueues as one.
     * recorded ends the recording in every case. All four NULL: the device cannot. */
    int (*record)(Device *, Err *);
    int (*recorded)(Device *, void **graph, Err *);
    int (*replay)(Device *, void *graph, Err *);
    void (*graph_free)(Device *, void *graph);
    /* Compiles what a PREPARED op needs (cached by the device), the scratch bytes it wants and, if it can, its state.
     * args has views without data. A library's workspace is at most `limit` where the library offers a choice. */
    int (*prepare)(Device *, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *);
    int (*run)(Device *, const KArgs *args, Err *);
    /* From now on prepare times the ways in which an op can be run, and keeps the fastest for this and later processes;
     * puts the path of the file that it is kept in, then what is wrong with that file. NULL: there is nothing to
     * choose. */
    int (*tune)(Device *, DeviceText *put, void *arg, Err *);
    /* Drops cached states, only while no program holds one: those that were not used lately, or all of them. */
    void (*trim)(Device *, bool all);
    bool dry;          /* computes nothing: contents need not be made for it */
    size_t (*used)(Device *); /* bytes of the device that this process holds as the driver sees it; 0 = not known */
    void (*evidence)(Device *, DeviceEvidence *); /* fills in what is known; NULL: nothing is */
} DeviceTable;

struct Device { const DeviceTable *table; };

/* "cpu"; "cuda:0", the GPU of that number; "cuda:h200", a described GPU, which can only be planned for.
 * A device, or a reason in *e. */
int device_open(const char *name, Device **out, Err *e);
/* The names of the described GPUs ("cuda:h200"), in order: devices/NAME.json beside the CUDA plugin. */
void device_offline(DeviceText *put, void *arg);
void device_close(Device *d); /* NULL is allowed */

/* The device that counts and computes nothing, for prediction: asks `model` for workspace and alignment, hands out
 * addresses that are never touched. `model` is borrowed and must outlive it. */
int device_dry_open(Device *model, Device **out, Err *e);

/* Opened by name; each kernels/ folder defines its own. */
int device_cpu_open(Device **out, Err *e);
/* kernels/cuda is a plugin, loaded when a GPU is asked for: memtide_cuda.so. It exports memtide_cuda_open, a
 * DevicePluginOpen, and memtide_cuda_abi, a uint64_t that must be DEVICE_ABI: else one of the two is older and would
 * misread the other's structures. */
typedef int DevicePluginOpen(const char *name, Device **out, Err *e);
#define DEVICE_ABI \
    ((uint64_t)sizeof(DeviceTable) << 48 | (uint64_t)sizeof(KArgs) << 32 | sizeof(DeviceInfo) << 16 | OP_KIND_COUNT)

#endif
