/* device.h: a device is a constant table of functions. A process opens each device at most once. Kernels see KArgs
 * (kernel.h) and know nothing of programs, plans and networks. Functions that return int return an ErrCode. */
#ifndef MT_DEVICE_H
#define MT_DEVICE_H

#include "base/err.h"
#include "comm.h"
#include "program/kernel.h"

typedef struct Device Device;

typedef struct DeviceInfo {
    char name[96];         /* "AMD EPYC 9554", "NVIDIA H200" */
    char driver[96];       /* library or driver version */
    size_t memory_total, memory_free; /* bytes; 0 = not known */
    int threads;           /* CPU */
    int processors, nodes; /* CPU: on which the threads may run; whose memory is theirs */
    char detail[160];      /* "compute capability 9.0, 132 multiprocessors", or "" */
    int count;             /* devices of this kind in the machine; 0: there can be only one */
    bool emulated[DT_COUNT]; /* by type (bf16, fp16): is it computed in fp32, through copies or in several steps? */
    char warning[512];     /* what is wrong with the files that say which plans are fastest, or "" */
} DeviceInfo;

/* The device's present condition: clocks in MHz, temperature in degrees Celsius; -1: not known. */
typedef struct DeviceEvidence {
    int mhz, memory_mhz, celsius;
    int throttle;          /* DeviceThrottle, added up: why the clock is lower than it could be */
} DeviceEvidence;
typedef enum DeviceThrottle { THROTTLE_POWER = 1, THROTTLE_THERMAL = 2, THROTTLE_BRAKE = 4 } DeviceThrottle;

/* Receives one piece of text. */
typedef void DeviceText(void *arg, const char *text);

enum { SEND_SLOTS = 4 }; /* see send */

typedef struct DeviceTable {
    const char *kind;  /* "cpu", "dry" */
    size_t alignment;  /* bytes, a power of two: sizes and addresses of all allocations are multiples of it */
    void (*close)(Device *);
    /* What the ops of several ranks need beside `comm`: each rank has a device of its own. NULL: nothing. */
    int (*join)(Device *, MeshAxis axis, Comm *comm, Err *);
    int (*info)(Device *, DeviceInfo *, Err *);
    int (*describe)(Device *, DeviceText *put, void *arg, Err *); /* puts its device file; NULL: has none */
    int (*alloc)(Device *, size_t bytes, void **p, Err *); /* ERR_OOM: no room; contents are undefined */
    void (*free)(Device *, void *p, size_t bytes);
    /* Copy after all that was enqueued before, and return when the copy is done. */
    int (*upload)(Device *, void *to, const void *from, size_t bytes, Err *);
    int (*download)(Device *, void *to, const void *from, size_t bytes, Err *);
    int (*sync)(Device *, Err *); /* waits for all that was enqueued */
    /* Host memory that the device can read while the host works on (pinned, on a GPU). */
    int (*host_alloc)(Device *, size_t bytes, void **p, Err *);
    void (*host_free)(Device *, void *p, size_t bytes);
    /* send enqueues a copy from such memory under a slot below SEND_SLOTS; sent waits for the last copy of the slot. */
    int (*send)(Device *, int slot, void *to, const void *from, size_t bytes, Err *);
    int (*sent)(Device *, int slot, Err *);
    /* send_beside is send, but while what was enqueued before goes on: only what `take` has enqueued comes first. take enqueues a
     * copy within the device, after all that send_beside has enqueued. */
    int (*send_beside)(Device *, int slot, void *to, const void *from, size_t bytes, Err *);
    int (*take)(Device *, void *to, const void *from, size_t bytes, Err *);
    /* fetch enqueues a copy to such memory, which is there once a later mark is reached. */
    int (*fetch)(Device *, void *to, const void *from, size_t bytes, Err *);
    /* mark puts *m after all that was enqueued before; where it is NULL it makes it first. between waits until the device has
     * reached mark `to`, and gives its time since mark `from`, in seconds. */
    int (*mark)(Device *, void **m, Err *);
    int (*between)(Device *, void *from, void *to, double *seconds, Err *);
    void (*mark_free)(Device *, void *m); /* NULL is allowed */
    /* What run enqueues between record and recorded is not executed but becomes a graph; replay enqueues the whole
     * graph. recorded ends the recording even where it fails. All four NULL: the device has no graphs. */
    int (*record)(Device *, Err *);
    int (*recorded)(Device *, void **graph, Err *);
    int (*replay)(Device *, void *graph, Err *);
    void (*graph_free)(Device *, void *graph);
    /* Compiles what a PREPARED op needs, which the device caches. *state: for KArgs.state, or NULL; *workspace: scratch
     * bytes that the op needs, at most `limit` where the library offers a choice. args has views without data. */
    int (*prepare)(Device *, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *);
    /* *out: the device as it would be with one thread, which only prepares. Both take the same ways to compute an op, but with
     * more threads an op may need more workspace: so choices that follow from bytes are made by this device (compile.c), or the number
     * of threads could change bits. NULL: it is the device itself. */
    int (*alone)(Device *, Device **out, Err *);
    /* Of an op that ops.def says to ASK about: in the way that prepare has chosen, is every element of that input read
     * before output 0 is written there? args: prepare's, with the state and the workspace_bytes that it gave. *more:
     * bytes that the op then needs after these, at a multiple of the alignment; fewer than output 0 has, up to the
     * alignment. NULL: it is of no op. */
    bool (*overwrites)(Device *, const KArgs *args, size_t *more);
    /* Of an op with an input that ops.def marks ROUNDED, in args fp32 where input 0 has 16 bits, as prepare gets them: does the
     * device round it as it reads it, with the bits that a copy in 16 bits would give? NULL: it does of no op. */
    bool (*rounds)(Device *, const KArgs *args);
    int (*run)(Device *, const KArgs *args, Err *);
    /* From now on prepare measures the ways in which an op can be computed and takes the fastest, which a file keeps
     * for later processes. Puts the path of that file, then what is wrong with it. NULL: there is nothing to choose. */
    int (*tune)(Device *, DeviceText *put, void *arg, Err *);
    /* Drops cached states, those that were not used lately or all of them. No program may hold a state at that time. */
    void (*trim)(Device *, bool all);
    bool dry;          /* computes nothing: callers need not make contents for it */
    size_t (*used)(Device *); /* bytes of the device that this process holds, as the driver says; 0: not known */
    void (*evidence)(Device *, DeviceEvidence *); /* sets the fields that are known; NULL: none is */
    /* Measures how many bytes per second it reads and writes at most when it copies more than its caches hold. NULL: it
     * does not measure it; a data sheet says it. */
    int (*stream)(Device *, double *rate, Err *);
} DeviceTable;

/* comm: borrowed; the ranks along each axis with which the collective ops exchange (device_join), NULL: there are none */
struct Device { const DeviceTable *table; Comm *comm[MESH_AXES]; };

/* name: "cpu"; "cuda:0", the GPU of that number; "cuda:h200", a GPU that a device file describes and that can only be
 * planned for. ERR_SCRIPT: there is no such name; ERR_UNSUPPORTED, ERR_DEVICE: the device cannot be used here. */
int device_open(const char *name, Device **out, Err *e);
/* Puts the names of the GPUs that device files describe ("cuda:h200"), sorted: devices/NAME.json beside the plugin. */
void device_offline(DeviceText *put, void *arg);
void device_close(Device *d); /* NULL is allowed */

/* The device of the rank that this process is, of `world`, where a script says `name`. Ranks of one machine take its GPUs one
 * after the other: "cuda:N" (or "cuda", which is "cuda:0") is that of the machine's first rank, and the others take the next
 * ones; every other name, and every name where world is 1, stays. Which rank of its machine a process is, mpirun and srun tell
 * it in the environment. ERR_UNSUPPORTED: they do not; ERR_SCRIPT: `name` is too long for `out`. */
enum { DEVICE_NAME = 64 };
int device_of_rank(const char *name, int world, char out[DEVICE_NAME], Err *e);
/* From now on the device's collective ops along that axis exchange with the other ranks of comm, which the device borrows. All ranks must call
 * it, once each, before any of them runs an op. ERR_UNSUPPORTED: GPUs: NCCL is missing, or ranks share a GPU. */
int device_join(Device *d, MeshAxis axis, Comm *comm, Err *e);

/* The device for prediction, which counts and computes nothing. It asks `model` for workspace and alignment, and hands
 * out addresses that nothing reads or writes. `model` is borrowed and must outlive it. ERR_HOST_MEMORY. */
int device_dry_open(Device *model, Device **out, Err *e);

/* Called by device_open. Each folder of kernels/ defines its own. */
int device_cpu_open(Device **out, Err *e);
/* kernels/cuda is a plugin, memtide_cuda.so, which is loaded when a GPU is asked for. It exports memtide_cuda_open, a
 * DevicePluginOpen, and memtide_cuda_abi, a uint64_t. If that is not DEVICE_ABI, program and plugin come from different
 * versions and would misread each other's structures. */
typedef int DevicePluginOpen(const char *name, Device **out, Err *e);
#define DEVICE_ABI \
    ((uint64_t)sizeof(DeviceTable) << 48 | (uint64_t)sizeof(KArgs) << 32 | sizeof(DeviceInfo) << 16 | OP_KIND_COUNT)

#endif
