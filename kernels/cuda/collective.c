/* collective.c: the ops in which all ranks take part, by NCCL, on the stream `exchange`. The order of a sum is NCCL's own: it
 * depends on the number of ranks, on how they are connected and on the version, and gives the CPU's result to rounding. NCCL
 * takes what it needs of the GPU's memory when the ranks join; the ops have no workspace. */
#include "cross_entropy.h"
#include "ranks.h"

static int ranks_along(const KArgs *a, MeshAxis axis, Ranks **out, Err *e) {
    *out = cuda_of(a)->ranks[axis];
    return *out ? OK : err_set(e, ERR_INTERNAL, "this GPU has not joined the ranks");
}

static int ranks_of(const KArgs *a, Ranks **out, Err *e) { return ranks_along(a, a->attr->collective.axis, out, e); }

static char *element(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

static ncclDataType_t type_of(const View *v) {
    assert(dtype_is_float(v->dtype));
    return v->dtype == DT_F32 ? ncclFloat32 : v->dtype == DT_F16 ? ncclFloat16 : ncclBfloat16;
}

/* Have all ranks as many elements? */
static bool is_even(Division d, int world) {
    return division_part(d, 0, world, 0).count == division_part(d, 0, world, world - 1).count;
}

#define NO_WORKSPACE(name)                                                                               \
    int k_cuda_##name##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) { \
        (void)a, (void)limit, (void)state, (void)e;                                                      \
        *workspace = 0;                                                                                  \
        return OK;                                                                                       \
    }
NO_WORKSPACE(all_reduce)
NO_WORKSPACE(all_reduce_)
NO_WORKSPACE(reduce_scatter)

/* ---- sums; x may be y */

static int all_reduce(const KArgs *a, const View *x, const View *y, Err *e) {
    Ranks *r;
    int code = ranks_of(a, &r, e);
    if (code) return code;
    return ranks_check(r, r->nccl.ncclAllReduce(x->data, y->data, (size_t)y->count, type_of(y), ncclSum, r->comm, cuda_of(a)->exchange),
                       "all_reduce", e);
}

int k_cuda_all_reduce(const KArgs *a, Err *e) { return all_reduce(a, &a->all_reduce.x, &a->all_reduce.y, e); }
int k_cuda_all_reduce_(const KArgs *a, Err *e) { return all_reduce(a, &a->all_reduce_.y, &a->all_reduce_.y, e); }

int k_cuda_any_overflow(const KArgs *a, Err *e) {
    Ranks *r;
    int code = ranks_of(a, &r, e);
    if (code) return code;
    int32_t *overflow = &((StepState *)a->any_overflow.state.data)->overflow;
    return ranks_check(r, r->nccl.ncclAllReduce(overflow, overflow, 1, ncclInt32, ncclMax, r->comm, cuda_of(a)->exchange),
                       "any_overflow", e);
}

/* ---- shards and slices. Each piece of a tensor is a call of its own and, where shards differ in size, each rank's; those of a
 * group run together. */

/* Ends a group of calls, of which the first that failed gave `result`. */
static int group_end(Ranks *r, ncclResult_t result, const char *what, Err *e) {
    const ncclResult_t ended = r->nccl.ncclGroupEnd();
    return ranks_check(r, result != ncclSuccess ? result : ended, what, e);
}

int k_cuda_reduce_scatter(const KArgs *a, Err *e) {
    const View *x = &a->reduce_scatter.x, *y = &a->reduce_scatter.y;
    const CollectiveAttr *c = &a->attr->collective;
    const cudaStream_t stream = cuda_of(a)->exchange;
    const Division d = view_division(x, y);
    const bool even = is_even(d, c->world);
    Ranks *r;
    int code = ranks_of(a, &r, e);
    if (code) return code;
    ncclResult_t result = r->nccl.ncclGroupStart();
    if (result != ncclSuccess) return ranks_check(r, result, "reduce_scatter", e);
    for (int64_t piece = 0; piece < division_pieces(d) && even && result == ncclSuccess; piece++) {
        const size_t n = (size_t)(y->count / division_pieces(d));
        result = r->nccl.ncclReduceScatter(element(x, piece * d.each), element(y, piece * (int64_t)n), n, type_of(y), ncclSum,
                                           r->comm, stream);
    }
    for (int k = 0; k < c->world && !even && result == ncclSuccess; k++) {
        const Shard s = shard_of(x->count, c->world, k);
        result = r->nccl.ncclReduce(element(x, s.first), k == c->rank ? y->data : NULL, (size_t)s.count, type_of(x), ncclSum, k,
                                    r->comm, stream);
    }
    return group_end(r, result, "reduce_scatter", e);
}

/* x: the rank's own shard, which may lie in its place in y. Elements are moved as bytes: they may be of any type. */
static int all_gather(const KArgs *a, const void *x, const View *y, Division d, Err *e) {
    const CollectiveAttr *c = &a->attr->collective;
    const cudaStream_t stream = cuda_of(a)->exchange;
    const size_t size = dtype_size(y->dtype);
    Ranks *r;
    int code = ranks_of(a, &r, e);
    if (code) return code;
    const bool even = is_even(d, c->world);
    ncclResult_t result = r->nccl.ncclGroupStart();
    if (result != ncclSuccess) return ranks_check(r, result, "all_gather", e);
    for (int64_t piece = 0; piece < division_pieces(d) && even && result == ncclSuccess; piece++) {
        const size_t bytes = (size_t)(y->count / division_pieces(d) / c->world) * size;
        result = r->nccl.ncclAllGather((const char *)x + (size_t)piece * bytes, element(y, piece * d.each), bytes, ncclInt8, r->comm,
                                       stream);
    }
    for (int k = 0; k < c->world && !even && result == ncclSuccess; k++) {
        const Shard s = shard_of(y->count, c->world, k);
        result = r->nccl.ncclBroadcast(k == c->rank ? x : NULL, element(y, s.first), (size_t)s.count * size, ncclInt8, k, r->comm,
                                       stream);
    }
    return group_end(r, result, "all_gather", e);
}

int k_cuda_all_gather(const KArgs *a, Err *e) {
    const View *x = &a->all_gather.x, *y = &a->all_gather.y;
    return all_gather(a, x->data, y, view_division(y, x), e);
}

int k_cuda_all_gather_(const KArgs *a, Err *e) {
    const View *y = &a->all_gather_.y;
    const CollectiveAttr *c = &a->attr->collective;
    return all_gather(a, element(y, shard_of(y->count, c->world, c->rank).first), y, view_division(y, y), e);
}

int cuda_gather_parts(const KArgs *a, void *all, size_t bytes, Err *e) {
    Ranks *r;
    int code = ranks_along(a, MESH_TENSOR, &r, e);
    if (code) return code;
    const char *own = (const char *)all + (size_t)a->attr->loss.rank * bytes;
    return ranks_check(r, r->nccl.ncclAllGather(own, all, bytes, ncclInt8, r->comm, cuda_of(a)->stream), "cross_entropy", e);
}

/* ---- from one stage of a pipeline to the next: the axis has one rank for each stage. The stream goes on when the bytes were
 * sent, for which NCCL may wait until the other rank receives. */

int k_cuda_transfer(const KArgs *a, Err *e) {
    const View *x = &a->transfer.x, *y = &a->transfer.y;
    const TransferAttr *t = &a->attr->transfer;
    const cudaStream_t stream = cuda_of(a)->exchange;
    Ranks *r;
    int code = ranks_along(a, MESH_PIPELINE, &r, e);
    if (code) return code;
    return ranks_check(r, x->data ? r->nccl.ncclSend(x->data, (size_t)x->count * dtype_size(x->dtype), ncclInt8, t->to, r->comm, stream)
                                  : r->nccl.ncclRecv(y->data, (size_t)y->count * dtype_size(y->dtype), ncclInt8, t->from, r->comm, stream),
                       "transfer", e);
}

/* flights.c waits. */
int k_cuda_wait(const KArgs *a, Err *e) {
    (void)a;
    return err_set(e, ERR_INTERNAL, "no kernel waits");
}
