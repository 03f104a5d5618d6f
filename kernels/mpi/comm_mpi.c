/* comm_mpi.c: the ranks of a training as processes under MPI: a plugin, memtide_mpi.so (memory/comm.h). MPI counts in ints, so
 * what is larger goes in pieces of PIECE bytes. */
#include "memory/comm.h"

#include <mpi.h>
#include <string.h>

#include "base/mem.h"

#ifndef PIECE
#define PIECE (1 << 30) /* tests make it small */
#endif
enum { TAG = 1 };

typedef struct MpiComm {
    Comm base;
    MPI_Comm group;
    bool first;  /* it has begun MPI, and ends it */
    int *counts; /* [2 world]: of a call, bytes and places */
} MpiComm;

static MpiComm *mpi_of(Comm *c) { return (MpiComm *)c; }

static int failed(const Comm *c, const char *what, int status, Err *e) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (status == MPI_SUCCESS) return OK;
    MPI_Error_string(status, text, &length);
    return err_set(e, ERR_DEVICE, "rank %d of %d: %s: %s", c->rank, c->world, what, text);
}

static size_t piece(size_t left) { return left < PIECE ? left : PIECE; }

/* ---- exchange: of everything at most PIECE / world bytes to a rank at a time */

static size_t share(size_t bytes, size_t done, size_t most) {
    const size_t left = bytes > done ? bytes - done : 0;
    return left < most ? left : most;
}

static int mpi_exchange(Comm *base, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *e) {
    MpiComm *c = mpi_of(base);
    const int n = base->world;
    const size_t most = PIECE / (size_t)n;
    size_t longest = 0;
    MPI_Request *request = mem_new(2 * (size_t)n * sizeof(MPI_Request));
    int status = MPI_SUCCESS;
    if (!request) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", n);
    for (int r = 0; r < n; r++) longest = max_size(longest, max_size(bytes[r], own[r]));
    for (size_t done = 0; done < longest && status == MPI_SUCCESS; done += most) {
        int requests = 0;
        char *place = to;
        for (int r = 0; r < n; place += own[r++]) {
            const size_t get = share(own[r], done, most);
            if (r == base->rank || !get) continue;
            status = status ? status : MPI_Irecv(place + done, (int)get, MPI_BYTE, r, TAG, c->group, &request[requests++]);
        }
        for (int r = 0; r < n; r++) {
            const size_t put = share(bytes[r], done, most);
            if (r == base->rank || !put) continue;
            status = status ? status : MPI_Isend((const char *)from + at[r] + done, (int)put, MPI_BYTE, r, TAG, c->group, &request[requests++]);
        }
        status = status ? status : MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
    }
    char *place = to;
    for (int r = 0; r < base->rank; r++) place += own[r];
    if (own[base->rank]) memcpy(place, (const char *)from + at[base->rank], own[base->rank]);
    mem_free(request);
    return failed(base, "exchange", status, e);
}

/* ---- the others */

static int gather_small(MpiComm *c, void *all, const size_t *bytes) {
    int at = 0;
    for (int r = 0; r < c->base.world; r++) {
        c->counts[r] = (int)bytes[r];
        c->counts[c->base.world + r] = at;
        at += (int)bytes[r];
    }
    return MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, c->counts, c->counts + c->base.world, MPI_BYTE, c->group);
}

static int broadcast_pieces(MpiComm *c, char *data, size_t bytes, int root) {
    int status = MPI_SUCCESS;
    for (size_t done = 0; done < bytes && status == MPI_SUCCESS; done += piece(bytes - done))
        status = MPI_Bcast(data + done, (int)piece(bytes - done), MPI_BYTE, root, c->group);
    return status;
}

static int mpi_gather(Comm *base, void *all, const size_t *bytes, Err *e) {
    MpiComm *c = mpi_of(base);
    size_t sum = 0;
    int status = MPI_SUCCESS;
    for (int r = 0; r < base->world; r++) sum += bytes[r];
    if (sum <= PIECE) return failed(base, "gather", gather_small(c, all, bytes), e);
    char *place = all;
    for (int r = 0; r < base->world && status == MPI_SUCCESS; place += bytes[r++])
        status = broadcast_pieces(c, place, bytes[r], r);
    return failed(base, "gather", status, e);
}

static int mpi_broadcast(Comm *base, void *data, size_t bytes, int root, Err *e) {
    return failed(base, "broadcast", broadcast_pieces(mpi_of(base), data, bytes, root), e);
}

static int mpi_send(Comm *base, const void *data, size_t bytes, int to, Err *e) {
    int status = MPI_SUCCESS;
    for (size_t done = 0; done < bytes && status == MPI_SUCCESS; done += piece(bytes - done))
        status = MPI_Send((const char *)data + done, (int)piece(bytes - done), MPI_BYTE, to, TAG, mpi_of(base)->group);
    return failed(base, "send", status, e);
}

static int mpi_receive(Comm *base, void *data, size_t bytes, int from, Err *e) {
    int status = MPI_SUCCESS;
    for (size_t done = 0; done < bytes && status == MPI_SUCCESS; done += piece(bytes - done))
        status = MPI_Recv((char *)data + done, (int)piece(bytes - done), MPI_BYTE, from, TAG, mpi_of(base)->group, MPI_STATUS_IGNORE);
    return failed(base, "receive", status, e);
}

static int mpi_barrier(Comm *base, Err *e) { return failed(base, "barrier", MPI_Barrier(mpi_of(base)->group), e); }

static void mpi_abort(Comm *base, int status) { MPI_Abort(mpi_of(base)->group, status); }

/* ---- opening and closing */

static void mpi_close(Comm *base) {
    MpiComm *c = mpi_of(base);
    if (c->first) MPI_Finalize();
    else MPI_Comm_free(&c->group);
    mem_free(c->counts);
    mem_free(c);
}

static int mpi_split(Comm *base, int color, Comm **out, Err *e);
static const CommTable table = {"mpi", mpi_close, mpi_exchange, mpi_gather, mpi_broadcast, mpi_send, mpi_receive, mpi_barrier,
                                mpi_split, mpi_abort};

static int open_group(MPI_Comm group, bool first, bool any_thread, Comm **out, Err *e) {
    MpiComm *c = mem_new(sizeof *c);
    if (!c) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a group of ranks");
    c->base.table = &table;
    c->group = group;
    c->first = first;
    c->base.any_thread = any_thread;
    MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group, &c->base.rank);
    MPI_Comm_size(group, &c->base.world);
    c->counts = mem_new(2 * (size_t)c->base.world * sizeof(int));
    if (!c->counts) {
        mem_free(c);
        return err_set(e, ERR_HOST_MEMORY, "out of host memory for a group of ranks");
    }
    *out = &c->base;
    return OK;
}

static int mpi_split(Comm *base, int color, Comm **out, Err *e) {
    MPI_Comm group;
    const int code = failed(base, "split", MPI_Comm_split(mpi_of(base)->group, color, base->rank, &group), e);
    return code ? code : open_group(group, false, base->any_thread, out, e);
}

/* The threads of OpenMP do not call MPI. One that lets ranks exchange while others compute does, where MPI allows it. */
CommPluginOpen memtide_mpi_open;
int memtide_mpi_open(Comm **out, Err *e) {
    int given, begun;
    MPI_Initialized(&begun);
    if (begun) return err_set(e, ERR_INTERNAL, "MPI has begun already");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "MPI cannot begin");
    return open_group(MPI_COMM_WORLD, true, given >= MPI_THREAD_SERIALIZED, out, e);
}

extern const uint64_t memtide_mpi_abi;
const uint64_t memtide_mpi_abi = COMM_ABI;
