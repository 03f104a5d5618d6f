/* nccl.c: NCCL, loaded at run time. */
#include "nccl_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/base.h"

int nccl_load(Nccl *n, Err *e) {
    const char *asked = getenv("MEMTIDE_NCCL"), *file = asked && asked[0] ? asked : "libnccl.so.2";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(e, ERR_UNSUPPORTED, "several ranks on GPUs need NCCL, which cannot be loaded: %s (LD_LIBRARY_PATH says "
                       "where else to look, MEMTIDE_NCCL names the file)", dlerror());
    /* ISO C has no cast from an object's address to a function's */
    const struct { const char *name; void *function; } wanted[] = {
#define X(result, name, arguments) {#name, &n->name},
        NCCL_FUNCTIONS(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return err_set(e, ERR_UNSUPPORTED, "%s is no NCCL of version 2.13 or later: it has no %s", file, wanted[i].name);
        *(void **)wanted[i].function = found;
    }
    return OK;
}
