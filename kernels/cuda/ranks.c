/* ranks.c: how a GPU joins the ranks of its training. All ranks tell each other, through the host's memory, which GPU and which
 * NCCL they have; rank 0's message brings the id of the communicator that they make then. */
#include "ranks.h"

#include <string.h>

#include "base/mem.h"

/* What a rank tells. */
typedef struct Member {
    char gpu[sizeof(cudaUUID_t)];
    int version;      /* of NCCL; 0: it has none that works */
    ncclUniqueId id;  /* rank 0's */
} Member;

int ranks_check(Ranks *r, ncclResult_t result, const char *what, Err *e) {
    if (result == ncclSuccess) return OK;
    r->failed = true;
    const char *more = r->nccl.ncclGetLastError(r->comm);
    return err_set(e, ERR_DEVICE, "NCCL: %s: %s%s%s", what, r->nccl.ncclGetErrorString(result), more && more[0] ? ": " : "",
                   more ? more : "");
}

static int introduce(CudaDevice *c, Ranks *r, const Comm *comm, Member *me, Err *e) {
    struct cudaDeviceProp p;
    int version = 0, code = cuda_ready(c, e);
    if (!code) code = cuda_check(c, cudaGetDeviceProperties(&p, c->ordinal), "the GPU's properties", e);
    if (!code) code = nccl_load(&r->nccl, e);
    if (!code) code = ranks_check(r, r->nccl.ncclGetVersion(&version), "its version", e);
    if (!code && comm->rank == 0) code = ranks_check(r, r->nccl.ncclGetUniqueId(&me->id), "a communicator's id", e);
    if (code) return code;
    memcpy(me->gpu, &p.uuid, sizeof me->gpu);
    me->version = version;
    return OK;
}

/* 22809: 2.28.9 */
#define VERSION_PARTS(v) (v) / 10000, (v) / 100 % 100, (v) % 100

static int check_versions(const Member *all, int world, Err *e) {
    for (int r = 0; r < world; r++)
        if (!all[r].version) return err_set(e, ERR_UNSUPPORTED, "rank %d has no NCCL that works", r);
    for (int r = 1; r < world; r++)
        if (all[r].version != all[0].version)
            return err_set(e, ERR_UNSUPPORTED, "rank %d has NCCL %d.%d.%d and rank 0 has %d.%d.%d: expected one version", r,
                           VERSION_PARTS(all[r].version), VERSION_PARTS(all[0].version));
    return OK;
}

static int check_gpus(const CudaDevice *c, const Member *all, int world, Err *e) {
    int here = 0;
    cudaGetDeviceCount(&here);
    for (int r = 1; r < world; r++)
        for (int k = 0; k < r; k++)
            if (!memcmp(all[r].gpu, all[k].gpu, sizeof all[r].gpu))
                return err_set(e, ERR_UNSUPPORTED, "ranks %d and %d share one GPU, and NCCL wants one for each rank: there are %d "
                               "ranks, and this process sees %d GPU%s (%s)", k, r, world, here, here == 1 ? "" : "s", c->model.name);
    return OK;
}

/* All ranks get as far as the gathering, whatever has failed before it, and all but those fail at the same check. */
static int meet(CudaDevice *c, Ranks *own, Comm *comm, Member *all, size_t *bytes, Err *e) {
    const int world = comm->world, mine = introduce(c, own, comm, &all[comm->rank], e);
    for (int r = 0; r < world; r++) bytes[r] = sizeof *all;
    int code = comm->table->gather(comm, all, bytes, mine ? NULL : e);
    if (mine) return mine;
    if (!code) code = check_versions(all, world, e);
    if (!code) code = check_gpus(c, all, world, e);
    if (code) return code;
    ncclComm_t made = NULL;
    code = ranks_check(own, own->nccl.ncclCommInitRank(&made, world, all[0].id, comm->rank), "joining the ranks", e);
    own->comm = made;
    return code;
}

int cuda_join(Device *d, MeshAxis axis, Comm *comm, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    assert(!c->ranks[axis]);
    Ranks *own = c->ranks[axis] = mem_new(sizeof *own);
    Member *all = mem_new((size_t)comm->world * sizeof *all);
    size_t *bytes = mem_new((size_t)comm->world * sizeof *bytes);
    int code = own && all && bytes ? meet(c, own, comm, all, bytes, e)
                                   : err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", comm->world);
    mem_free(all);
    mem_free(bytes);
    if (code) ranks_leave(c);
    return code;
}

/* The other ranks may not be there any more after an error: then nothing waits for them. */
void ranks_leave(CudaDevice *c) {
    for (int axis = 0; axis < MESH_AXES; axis++) {
        Ranks *r = c->ranks[axis];
        if (r && r->comm) (r->failed || c->lost.code ? r->nccl.ncclCommAbort : r->nccl.ncclCommDestroy)(r->comm);
        mem_free(r);
        c->ranks[axis] = NULL;
    }
}
