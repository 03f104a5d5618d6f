/* nvml.c: what only the driver's management library knows: how much of the GPU this process holds, with contexts and
 * kernels; the GPU's clocks, its temperature, and what slows it down. The library comes with the driver, so it is
 * loaded at run time; the few declarations that are needed are here. */
#include <dlfcn.h>
#include <unistd.h>

#include "cuda.h"
#include "base/mem.h"

typedef void *NvmlGpu;
typedef struct NvmlProcess { unsigned pid; unsigned long long bytes; unsigned instance, compute; } NvmlProcess;
enum { PROCESSES = 256, NVML_OK = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };

/* The driver's reasons for a low clock that matter to a measurement */
static const struct { unsigned long long reason; int throttle; } reasons[] = {
    {0x04, THROTTLE_POWER},   /* the power limit */
    {0x08, THROTTLE_BRAKE},   /* hardware slowdown: heat, power brake or current */
    {0x20, THROTTLE_THERMAL}, /* the driver's thermal limit */
    {0x40, THROTTLE_THERMAL}, /* the hardware's */
    {0x80, THROTTLE_BRAKE},   /* an external power brake */
};

struct Nvml {
    void *library;
    NvmlGpu gpu;
    int (*shutdown)(void);
    int (*driver)(char *text, unsigned size);
    int (*processes)(NvmlGpu, unsigned *count, NvmlProcess *);
    int (*clock)(NvmlGpu, int kind, unsigned *mhz); /* this and the next two are NULL if the driver lacks them */
    int (*temperature)(NvmlGpu, int sensor, unsigned *celsius);
    int (*reasons)(NvmlGpu, unsigned long long *bits);
};

/* ISO C has no cast from an object's address to a function's. */
static bool load(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    *(void **)function = found;
    return found;
}

static void load_evidence(Nvml *n) {
    load(n->library, "nvmlDeviceGetClockInfo", &n->clock);
    load(n->library, "nvmlDeviceGetTemperature", &n->temperature);
    if (!load(n->library, "nvmlDeviceGetCurrentClocksEventReasons", &n->reasons)) /* since driver 535 */
        load(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->reasons);
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
    load_evidence(n);
    if (init() != NVML_OK) n->shutdown = NULL;
    return n->shutdown && find(bus, &n->gpu) == NVML_OK;
}

/* By bus address: with CUDA_VISIBLE_DEVICES the numbers of CUDA differ from NVML's. */
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

void nvml_evidence(const Nvml *n, DeviceEvidence *out) {
    unsigned found;
    unsigned long long bits;
    if (!n) return;
    if (n->clock && n->clock(n->gpu, CLOCK_SM, &found) == NVML_OK) out->mhz = (int)found;
    if (n->clock && n->clock(n->gpu, CLOCK_MEMORY, &found) == NVML_OK) out->memory_mhz = (int)found;
    if (n->temperature && n->temperature(n->gpu, SENSOR_GPU, &found) == NVML_OK) out->celsius = (int)found;
    if (!n->reasons || n->reasons(n->gpu, &bits) != NVML_OK) return;
    out->throttle = 0;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (bits & reasons[i].reason) out->throttle |= reasons[i].throttle;
}
