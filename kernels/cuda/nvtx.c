/* nvtx.c: names what is enqueued for profilers that know NVTX (Nsight Systems, Nsight Compute): a range for each op, in the
 * domain "memtide". NVTX is a header, which looks for a profiler at the first call; where there is none there is no domain,
 * and a range costs a comparison. It is a package of its own: a toolkit without it names nothing. */
#include "cuda.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

void cuda_ranges_open(CudaDevice *c) { c->ranges = nvtxDomainCreateA("memtide"); }

void cuda_ranges_close(CudaDevice *c) {
    if (c->ranges) nvtxDomainDestroy(c->ranges);
    c->ranges = NULL;
}

void cuda_range_begin(const CudaDevice *c, const char *what, const char *where) {
    char name[32 + OP_PATH]; /* a profiler takes a copy */
    if (!c->ranges) return;
    snprintf(name, sizeof name, "%s%s%s", what, where && where[0] ? " " : "", where ? where : "");
    nvtxEventAttributes_t range = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII, .message = {.ascii = name}};
    nvtxDomainRangePushEx(c->ranges, &range);
}

void cuda_range_end(const CudaDevice *c) {
    if (c->ranges) nvtxDomainRangePop(c->ranges);
}

#else
void cuda_ranges_open(CudaDevice *c) { (void)c; }
void cuda_ranges_close(CudaDevice *c) { (void)c; }
void cuda_range_begin(const CudaDevice *c, const char *what, const char *where) { (void)c, (void)what, (void)where; }
void cuda_range_end(const CudaDevice *c) { (void)c; }
#endif
