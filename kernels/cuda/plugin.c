/* plugin.c: the plugin's exports. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

extern const uint64_t memtide_cuda_abi;
const uint64_t memtide_cuda_abi = DEVICE_ABI;
DevicePluginOpen memtide_cuda_open;

/* name: "cuda", "cuda:1", "cuda:h200" (a described GPU) */
int memtide_cuda_open(const char *name, Device **out, Err *e) {
    *out = NULL;
    const char *which = strchr(name, ':');
    which = which ? which + 1 : "0";
    size_t digits = strspn(which, "0123456789");
    if (digits > 0 && digits < 6 && !which[digits]) return cuda_open(atoi(which), out, e);
    return offline_open(which, out, e);
}
