/* collective.c: the ops in which all ranks take part. A Comm (memory/comm.h) moves bytes; sums are made here, in the order of
 * the ranks, so that they are the same on every machine. A sum goes in pieces that fit its workspace: each rank gets the
 * others' contributions to its own part of a piece, adds them up, and all gather the parts. */
#include <string.h>

#include "base/mem.h"
#include "cpu.h"
#include "parallel.h"

enum { LEAST_PART = 64 }; /* elements of a piece that a rank sums up, however small the workspace may be */

static Comm *comm_of(const KArgs *a) { return ((const Device *)a->device)->comm[a->attr->collective.axis]; }

static char *element(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

/* For each rank bytes and their places; the caller frees bytes. */
typedef struct Sizes { size_t *bytes, *at, *own; } Sizes;

static int sizes_new(int world, Sizes *s, Err *e) {
    *s = (Sizes){NULL, NULL, NULL};
    s->bytes = mem_new(3 * (size_t)world * sizeof *s->bytes);
    if (!s->bytes) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", world);
    s->at = s->bytes + world;
    s->own = s->at + world;
    return OK;
}

/* y[from ..] = the sum of the ranks' contributions of n elements, one after the other in `parts`. */
static void sum_up(const View *y, int64_t from, const void *parts, int64_t n, int world) {
    const View part = {.data = (void *)parts, .dtype = y->dtype};
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t count = min_i64(BLOCK, n - begin);
        float sum[BLOCK], more[BLOCK];
        float *first = block_load(&part, begin, count, sum);
        if (first != sum) memcpy(sum, first, (size_t)count * sizeof *sum);
        for (int r = 1; r < world; r++) {
            const float *x = block_load(&part, r * n + begin, count, more);
#pragma omp simd
            for (int64_t i = 0; i < count; i++) sum[i] += x[i];
        }
        float to[BLOCK], *target = block_target(y, from + begin, to);
        memcpy(target, sum, (size_t)count * sizeof *sum);
        block_store(y, from + begin, count, target);
    }
}

/* ---- y = sum of x; x may be y */

/* Elements of a piece */
static int64_t piece_of(const View *y, int world, size_t limit) {
    const int64_t fit = (int64_t)(limit / dtype_size(y->dtype)) / world, part = max_i64(LEAST_PART, fit);
    return min_i64(div_up(y->count, world), part) * world;
}

static int reduce_piece(const KArgs *a, const View *x, const View *y, int64_t from, int64_t n, const Sizes *s, Err *e) {
    Comm *comm = comm_of(a);
    const size_t size = dtype_size(y->dtype);
    const Shard own = shard_of_sum(n, comm->world, comm->rank);
    for (int r = 0; r < comm->world; r++) {
        const Shard part = shard_of_sum(n, comm->world, r);
        s->at[r] = (size_t)part.first * size;
        s->bytes[r] = (size_t)part.count * size;
        s->own[r] = (size_t)own.count * size;
    }
    int code = comm->table->exchange(comm, element(x, from), s->at, s->bytes, a->workspace, s->own, e);
    if (code) return code;
    sum_up(y, from + own.first, a->workspace, own.count, comm->world);
    return comm->table->gather(comm, element(y, from), s->bytes, e);
}

static int all_reduce(const KArgs *a, const View *x, const View *y, Err *e) {
    const int world = a->attr->collective.world;
    const int64_t piece = (int64_t)(a->workspace_bytes / dtype_size(y->dtype));
    Sizes s;
    int code = sizes_new(world, &s, e);
    if (code) return code;
    for (int64_t from = 0; from < y->count && !code; from += piece)
        code = reduce_piece(a, x, y, from, min_i64(piece, y->count - from), &s, e);
    mem_free(s.bytes);
    return code;
}

static int prepare(const View *y, int world, size_t limit, size_t *workspace) {
    *workspace = (size_t)piece_of(y, world, limit) * dtype_size(y->dtype);
    return OK;
}

int k_cpu_all_reduce_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)state, (void)e;
    return prepare(&a->all_reduce.y, a->attr->collective.world, limit, workspace);
}

int k_cpu_all_reduce__prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)state, (void)e;
    return prepare(&a->all_reduce_.y, a->attr->collective.world, limit, workspace);
}

int k_cpu_all_reduce(const KArgs *a, Err *e) { return all_reduce(a, &a->all_reduce.x, &a->all_reduce.y, e); }
int k_cpu_all_reduce_(const KArgs *a, Err *e) { return all_reduce(a, &a->all_reduce_.y, &a->all_reduce_.y, e); }

/* ---- y = this rank's shard, or slice, of the sum of x: it is made of the same elements of every rank's, some at a time */

/* Elements of a part that are summed up at a time; longest: of the longest part */
static int64_t step_of(int64_t longest, DType type, int world, size_t limit) {
    return min_i64(longest, max_i64(LEAST_PART, (int64_t)(limit / dtype_size(type)) / world));
}

static int64_t longest_part(Division d, int world) {
    return max_i64(division_part(d, 0, world, 0).count, division_part(d, 0, world, world - 1).count);
}

int k_cpu_reduce_scatter_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    const View *x = &a->reduce_scatter.x;
    const int world = a->attr->collective.world;
    const int64_t longest = longest_part(view_division(x, &a->reduce_scatter.y), world);
    (void)state, (void)e;
    *workspace = (size_t)(step_of(longest, x->dtype, world, limit) * world) * dtype_size(x->dtype);
    return OK;
}

/* The elements [from, from + step) of every rank's part of a piece, as far as it has them. */
static int scatter_some(const KArgs *a, Division d, int64_t piece, int64_t from, int64_t step, const Sizes *s, Err *e) {
    Comm *comm = comm_of(a);
    const View *x = &a->reduce_scatter.x, *y = &a->reduce_scatter.y;
    const size_t size = dtype_size(x->dtype);
    const int64_t whole = division_part(d, piece, comm->world, comm->rank).count, own = max_i64(0, min_i64(step, whole - from));
    for (int r = 0; r < comm->world; r++) {
        const Shard part = division_part(d, piece, comm->world, r);
        const int64_t n = max_i64(0, min_i64(step, part.count - from));
        s->at[r] = n ? (size_t)(part.first + from) * size : 0;
        s->bytes[r] = (size_t)n * size;
        s->own[r] = (size_t)own * size;
    }
    const int code = comm->table->exchange(comm, x->data, s->at, s->bytes, a->workspace, s->own, e);
    if (!code && own) sum_up(y, piece * whole + from, a->workspace, own, comm->world);
    return code;
}

int k_cpu_reduce_scatter(const KArgs *a, Err *e) {
    const int world = a->attr->collective.world;
    const Division d = view_division(&a->reduce_scatter.x, &a->reduce_scatter.y);
    const int64_t longest = longest_part(d, world);
    const int64_t step = (int64_t)(a->workspace_bytes / dtype_size(a->reduce_scatter.x.dtype)) / world;
    Sizes s;
    int code = sizes_new(world, &s, e);
    if (code) return code;
    for (int64_t piece = 0; piece < division_pieces(d); piece++)
        for (int64_t from = 0; from < longest && !code; from += step) code = scatter_some(a, d, piece, from, step, &s, e);
    mem_free(s.bytes);
    return code;
}

/* ---- parts become whole */

/* Each rank's part lies in its place in y. */
static int gather(const KArgs *a, const View *y, Division d, Err *e) {
    Comm *comm = comm_of(a);
    Sizes s;
    int code = sizes_new(comm->world, &s, e);
    if (code) return code;
    for (int r = 0; r < comm->world; r++) s.bytes[r] = (size_t)division_part(d, 0, comm->world, r).count * dtype_size(y->dtype);
    for (int64_t piece = 0; piece < division_pieces(d) && !code; piece++)
        code = comm->table->gather(comm, element(y, piece * d.each), s.bytes, e);
    mem_free(s.bytes);
    return code;
}

int k_cpu_all_gather(const KArgs *a, Err *e) {
    const View *x = &a->all_gather.x, *y = &a->all_gather.y;
    const CollectiveAttr *c = &a->attr->collective;
    const Division d = view_division(y, x);
    for (int64_t piece = 0; piece < division_pieces(d); piece++) {
        const Shard own = division_part(d, piece, c->world, c->rank);
        memcpy(element(y, own.first), element(x, piece * own.count), (size_t)own.count * dtype_size(x->dtype));
    }
    return gather(a, y, d, e);
}

int k_cpu_all_gather_(const KArgs *a, Err *e) {
    const View *y = &a->all_gather_.y;
    return gather(a, y, view_division(y, y), e);
}

/* The axis has one rank for each stage. */
int k_cpu_transfer(const KArgs *a, Err *e) {
    Comm *comm = ((const Device *)a->device)->comm[MESH_PIPELINE];
    const View *x = &a->transfer.x, *y = &a->transfer.y;
    const TransferAttr *t = &a->attr->transfer;
    if (x->data) return comm->table->send(comm, x->data, (size_t)x->count * dtype_size(x->dtype), t->to, e);
    return comm->table->receive(comm, y->data, (size_t)y->count * dtype_size(y->dtype), t->from, e);
}

/* The device itself waits. */
int k_cpu_wait(const KArgs *a, Err *e) {
    (void)a;
    return err_set(e, ERR_INTERNAL, "no kernel waits");
}

int k_cpu_any_overflow(const KArgs *a, Err *e) {
    Comm *comm = comm_of(a);
    StepState *state = a->any_overflow.state.data;
    Sizes s;
    int code = sizes_new(comm->world, &s, e);
    if (code) return code;
    int32_t *all = mem_new((size_t)comm->world * sizeof *all);
    for (int r = 0; r < comm->world; r++) s.bytes[r] = sizeof *all;
    if (all) all[comm->rank] = state->overflow;
    code = all ? comm->table->gather(comm, all, s.bytes, e) : err_set(e, ERR_HOST_MEMORY, "out of host memory for the ranks");
    for (int r = 0; r < comm->world && !code; r++) state->overflow |= all[r];
    mem_free(all);
    mem_free(s.bytes);
    return code;
}
