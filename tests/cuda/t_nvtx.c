/* t_nvtx.c: kernels/cuda/nvtx.c with NVIDIA's own header, and with a profiler in this program, where the header looks for one
 * beside the library that NVTX_INJECTION64_PATH names. Needs neither a GPU nor a library. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "tap.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static char told[256]; /* "+" for a range that begins, with its name; "-" for one that ends */
static int domains, wrong;
static struct nvtxDomainRegistration_st { int n; } domain;

static nvtxDomainHandle_t create(const char *name) {
    domains += strcmp(name, "memtide") == 0;
    return &domain;
}

static void destroy(nvtxDomainHandle_t d) {
    domains--;
    wrong += d != &domain;
}

static int push(nvtxDomainHandle_t d, const nvtxEventAttributes_t *r) {
    wrong += d != &domain || r->version != NVTX_VERSION || r->size != sizeof *r || r->messageType != NVTX_MESSAGE_TYPE_ASCII;
    strcat(strcat(told, "+"), r->message.ascii);
    return 0;
}

static int pop(nvtxDomainHandle_t d) {
    wrong += d != &domain;
    strcat(told, "-");
    return 0;
}

static void set(NvtxFunctionTable table, unsigned size, int which, void (*function)(void)) {
    if ((unsigned)which < size) *table[which] = function;
}

/* What a profiler does when the header has found it: it puts its functions into the header's tables. */
static int NVTX_API attach(NvtxGetExportTableFunc_t get) {
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    set(table, size, NVTX_CBID_CORE2_DomainCreateA, (void (*)(void))create);
    set(table, size, NVTX_CBID_CORE2_DomainDestroy, (void (*)(void))destroy);
    set(table, size, NVTX_CBID_CORE2_DomainRangePushEx, (void (*)(void))push);
    set(table, size, NVTX_CBID_CORE2_DomainRangePop, (void (*)(void))pop);
    return 1;
}

extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach;

int main(void) {
    CudaDevice device, silent;
    unsetenv("NVTX_INJECTION64_PATH");
    memset(&device, 0, sizeof device);
    memset(&silent, 0, sizeof silent);
    cuda_ranges_open(&device);
    ok(device.ranges != NULL && domains == 1, "a profiler is found, and told the domain");
    cuda_range_begin(&device, "conv2d_dw", "body.0");
    cuda_range_begin(&device, "adam", "");
    cuda_range_end(&device);
    cuda_range_end(&device);
    cuda_range_begin(&device, "recorded step", NULL);
    cuda_range_end(&device);
    cuda_range_begin(&silent, "nothing", "is told");
    cuda_range_end(&silent);
    cuda_ranges_close(&silent);
    is_str(told, "+conv2d_dw body.0+adam--+recorded step-", "ranges begin and end, by name");
    cuda_ranges_close(&device);
    ok(!device.ranges && domains == 0, "the domain ends with the device");
    is_int(wrong, 0, "everything has its version, size and domain");
    return tap_done();
}
#else
int main(void) {
    skip("ranges", "there is no nvtx3/nvToolsExt.h");
    return tap_done();
}
#endif
