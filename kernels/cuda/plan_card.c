#include "plan_card.h"

#include <stdio.h>

#include "base/mem.h"

/* By compute capability, from the CUDA C++ programming guide's table: bytes of shared memory that a block may ask for, and
 * how many blocks a multiprocessor holds. */
static const struct { int capability, shared, blocks; } limits[] = {
    {75, 64 << 10, 16},  {80, 163 << 10, 32},  {86, 99 << 10, 16},
    {89, 99 << 10, 24},  {90, 227 << 10, 32}, {100, 227 << 10, 32}, {120, 99 << 10, 24},
};

int plan_card_describe(const PlanCard *card, CudaModel *m, Err *e) {
    enum { MOST = 2048 };
    size_t k = 0;
    while (k < ARRAY_LEN(limits) && limits[k].capability != card->capability) k++;
    if (k == ARRAY_LEN(limits))
        return err_set(e, ERR_UNSUPPORTED, "compute capability %d.%d is not known", card->capability / 10,
                       card->capability % 10);
    if (!(m->description = mem_new(MOST)))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for a description of %s", card->name);
    snprintf(m->name, sizeof m->name, "%s", card->name);
    m->capability = card->capability;
    m->processors = (int)card->multiprocessors;
    m->memory_bytes = (size_t)card->memory;
    snprintf(m->description, MOST, "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
             "\"regsPerBlock\": 65536, \"multiProcessorCount\": %lld, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
             "\"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
             "\"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %lld, \"pciDeviceId\": 0, "
             "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": %lld, \"smClockRateKHz\": %lld, "
             "\"memClockRateKHz\": %lld, \"l2CacheSize\": 41943040, \"cudaDeviceId\": 0, \"deviceVer\": %d, "
             "\"driverVer\": 13000, \"deviceName\": \"%s\"}", (long long)card->multiprocessors, limits[k].shared,
             limits[k].blocks, (long long)card->threads, (long long)card->memory, (long long)card->clock,
             (long long)card->memory_clock, card->capability * 10, card->name);
    return OK;
}
