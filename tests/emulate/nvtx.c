/* nvtx.c: stands in for a profiler that is attached by NVTX: it writes each range that begins to the file that EMULATE_RANGES
 * names, behind a space for each range that it lies in. Without that variable no profiler is attached. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvtxDomainRegistration_st { FILE *file; int depth; };

static void refuse(const char *why) {
    fprintf(stderr, "NVTX: %s\n", why);
    abort();
}

nvtxDomainHandle_t nvtxDomainCreateA(const char *name) {
    const char *path = getenv("EMULATE_RANGES");
    if (!path) return NULL;
    nvtxDomainHandle_t d = calloc(1, sizeof *d);
    if (!d || !(d->file = fopen(path, "a"))) refuse("no memory, or no file for ranges");
    fprintf(d->file, "domain %s\n", name);
    return d;
}

void nvtxDomainDestroy(nvtxDomainHandle_t d) {
    if (!d || d->depth) refuse("a domain ends within a range");
    fclose(d->file);
    free(d);
}

int nvtxDomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *r) {
    if (!d) refuse("a range without a domain");
    if (r->version != NVTX_VERSION || r->size != sizeof *r || r->messageType != NVTX_MESSAGE_TYPE_ASCII)
        refuse("a range without its version, size or type of message");
    fprintf(d->file, "%*s%s\n", d->depth, "", r->message.ascii);
    return d->depth++;
}

int nvtxDomainRangePop(nvtxDomainHandle_t d) {
    if (!d || !d->depth) refuse("the end of a range that has not begun");
    return --d->depth;
}
