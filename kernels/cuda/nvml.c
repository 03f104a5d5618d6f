/* nvml.c: what only the driver's management library knows: how much of the GPU this process holds, contexts and kernels
 * included. Loaded at run time, since it comes with the driver; the few names used are written down here. */
#include <dlfcn.h>
#include <unistd.h>

#include "cuda.h"
#include "mem.h"

typedef void *NvmlGpu;
typedef struct NvmlProcess { unsigned pid; unsigned long long bytes; unsigned instance, compute; } NvmlProcess;
enum { PROCESSES = 256, NVML_OK = 0 };

struct Nvml {
    void *library;
    NvmlGpu gpu;
    int (*shutdown)(void);
    int (*driver)(char *text, unsigned size);
    int (*processes)(NvmlGpu, unsigned *count, NvmlProcess *);
};

/* ISO C has no cast from an object's address to a function's. */
static bool load(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    *(void **)function = found;
    return found;
}

static bool fill(Nvml *n, const char *bus) {
    int (*init)(void), (*find)(const char *, NvmlGpu *);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!n->library || !load(n->library, "nvmlInit_v2", &init) || !load(n->library, "nvmlShutdown", &n->shutdown) ||
        !load(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &find) ||
        !load(n->library, "nvmlSystemGetDriverVersion", &n->driver) ||
        !load(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes)) {
        n->shutdown = NULL;
        return false;
    }
    if (init() != NVML_OK) n->shutdown = NULL;
    return n->shutdown && find(bus, &n->gpu) == NVML_OK;
}

/* By bus address: CUDA's numbers are other ones where CUDA_VISIBLE_DEVICES chooses. */
Nvml *nvml_open(int ordinal) {
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal)) {
        (void)cudaGetLastError();
        return NULL;
    }
    Nvml *n = mem_new(sizeof *n);
    if (!n || fill(n, bus)) return n;
    nvml_close(n);
    return NULL;
}

void nvml_close(Nvml *n) {
    if (!n) return;
    if (n->shutdown) n->shutdown();
    if (n->library) dlclose(n->library);
    mem_free(n);
}

size_t nvml_used(const Nvml *n) {
    NvmlProcess process[PROCESSES];
    unsigned count = PROCESSES;
    if (!n || n->processes(n->gpu, &count, process) != NVML_OK) return 0;
    for (unsigned i = 0; i < count; i++)
        if (process[i].pid == (unsigned)getpid() && process[i].bytes != ~0ull) return (size_t)process[i].bytes;
    return 0;
}

void nvml_driver(const Nvml *n, char *text, size_t size) {
    if (!n || n->driver(text, (unsigned)size) != NVML_OK) text[0] = 0;
}
