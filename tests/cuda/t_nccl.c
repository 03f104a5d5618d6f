/* t_nccl.c: what nccl_api.h declares of NCCL beside NVIDIA's own nccl.h, and the library itself, which can be loaded and asked
 * without a GPU. */
#if defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif
#endif
#include "nccl_api.h"
#include "tap.h"

#ifdef NCCL_H_
/* The types of NVIDIA's header stand in struct Nccl here: its functions must fit. */
#define X(result, name, arguments)                                                           \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), __typeof__(((Nccl *)0)->name)), #name);
NCCL_FUNCTIONS(X)
#undef X
#define X(name, value) _Static_assert(name == value, #name);
NCCL_RESULTS(X)
NCCL_OPS(X)
NCCL_TYPES(X)
#undef X
_Static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclRedOp_t) == sizeof(int) &&
               sizeof(ncclDataType_t) == sizeof(int), "NCCL's types");
#endif

int main(void) {
    Nccl n;
    Err e = {0, ""};
    int version = 0;
#ifdef NCCL_H_
    ok(1, "nccl.h %d.%d.%d declares what is used", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#else
    skip("nccl.h", "it is not installed");
#endif
    if (nccl_load(&n, &e)) {
        skip("libnccl.so.2", e.text);
        return tap_done();
    }
    const ncclResult_t result = n.ncclGetVersion(&version);
    ok(result == ncclSuccess && version >= 21300, "NCCL %d is loaded", version);
    is_str(n.ncclGetErrorString(ncclSuccess), "no error", "and speaks");
    return tap_done();
}
