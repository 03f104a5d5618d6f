/* nccl.c: stands in for libnccl.so.2, for ranks that are processes of one machine with emulated GPUs. Calls are enqueued on the
 * stream like NCCL's, and exchange through shared memory when the stream comes to them. A communicator's id is the name of that
 * memory.
 *
 * What would hang, or give any numbers, on GPUs ends the process here: ranks that do not all make the same call, a rank that sends
 * what no other one receives. A send takes until it was received, as NCCL's may. What NCCL
 * refuses is refused: a pointer outside of the GPU's memory, counts that do not fit, a communicator that is made while a stream
 * records. Sums go from the last rank to the first and are rounded after each, so their order is not the CPU's. */
#include "nccl_api.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/dtype.h"
#include "nccl_told.h"
#include "runtime.h"

#define X(result, name, arguments) result name arguments;
NCCL_FUNCTIONS(X)
#undef X

enum { RANKS_MOST = 8, BOX_BYTES = 8 << 20, GROUP_MOST = 64, PATIENCE = 60 /* seconds */, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

typedef enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST, SEND, RECEIVE } Kind;
static const struct { const char *name, *peer; } kinds[] = { /* peer: what the other rank is to the call; NULL: there is none */
    {"AllReduce", NULL}, {"ReduceScatter", NULL}, {"AllGather", NULL}, {"Reduce", "root"}, {"Broadcast", "root"}, {"Send", "to"}, {"Recv", "from"}};

/* What must be the same on all ranks */
typedef struct Same { int kind, type, op, root, of_group; size_t count; } Same; /* root: of SEND and RECEIVE the other rank */
static bool is_same(const Same *a, const Same *b) { /* member by member: there is padding between them */
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root && a->of_group == b->of_group && a->count == b->count;
}
typedef struct Call { Same same; const char *from; char *to; } Call;

typedef struct Area {
    atomic_int arrived, left;
    atomic_int sent[RANKS_MOST][RANKS_MOST], got[RANKS_MOST][RANKS_MOST]; /* messages, by sender and receiver */
    Same call[RANKS_MOST];
    char box[RANKS_MOST][BOX_BYTES];
} Area;

struct ncclComm { Area *area; int rank, world, device; };

/* What the stream runs. */
typedef struct Group { ncclComm_t comm; cudaStream_t stream; int n; Call call[GROUP_MOST]; } Group;

static Group group;   /* that is being collected */
static int depth;     /* of ncclGroupStart */
static char detail[128], told[8192];

static ncclResult_t refuse(int result, const char *why) {
    snprintf(detail, sizeof detail, "%s", why);
    return (ncclResult_t)result;
}

/* EMULATE_FAIL makes calls fail with NCCL's numbers. */
static ncclResult_t enter(const char *name) {
    const int code = (int)emulate_enter(name);
    if (code) (void)cudaGetLastError();
    return code ? refuse(code, "as the test wants") : ncclSuccess;
}

const char *emulate_nccl_told(void) {
    static char last[sizeof told];
    memcpy(last, told, sizeof last);
    told[0] = 0;
    return last;
}

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    const size_t n = strlen(told);
    va_list args;
    va_start(args, format);
    vsnprintf(told + n, sizeof told - n, format, args);
    va_end(args);
}

/* ---- meeting */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const ncclComm_t c, const char *why) {
    fprintf(stderr, "# NCCL's stand-in, rank %d of %d: %s\n", c->rank, c->world, why);
    _exit(70);
}

static void wait_for(const ncclComm_t c, atomic_int *counter, int number) {
    const double begin = seconds();
    while (atomic_load(counter) < number) {
        nanosleep(&(struct timespec){0, 20000}, NULL);
        if (seconds() - begin > PATIENCE) die(c, "another rank does not come: this would hang");
    }
}

static void meet(const ncclComm_t c) {
    const int number = atomic_fetch_add(&c->area->arrived, 1), all = (number / c->world + 1) * c->world;
    wait_for(c, &c->area->arrived, all);
}

/* ---- calls, when the stream comes to them */

static DType type_of(int type) {
    return type == ncclFloat32 ? DT_F32 : type == ncclFloat16 ? DT_F16 : type == ncclBfloat16 ? DT_BF16
           : type == ncclInt32 ? DT_I32 : DT_U8;
}

static size_t bytes_of(const Same *s) { return s->count * dtype_size(type_of(s->type)); }

/* to[count] = the reduction of the boxes' elements [first, first + count) */
static void reduce(const ncclComm_t c, const Same *s, char *to, size_t first) {
    const DType type = type_of(s->type);
    for (size_t i = 0; i < s->count; i++)
        for (int r = c->world - 1; r >= 0; r--) {
            const char *box = c->area->box[r];
            if (type == DT_I32) {
                const int32_t x = ((const int32_t *)(const void *)box)[first + i];
                int32_t *y = &((int32_t *)(void *)to)[i];
                *y = r == c->world - 1 || (s->op == ncclMax && x > *y) ? x : s->op == ncclMax ? *y : *y + x;
            } else {
                const float x = dtype_load(type, box, first + i), y = r < c->world - 1 ? dtype_load(type, to, i) : 0;
                dtype_store(type, to, i, r == c->world - 1 ? x : s->op == ncclMax && x > y ? x : s->op == ncclMax ? y : x + y);
            }
        }
}

/* Bytes that a rank sends and gets; 0: nothing */
static size_t sends(const ncclComm_t c, const Same *s, int rank) {
    const size_t all = s->kind == REDUCE_SCATTER ? (size_t)c->world : 1;
    return s->kind == RECEIVE || (s->kind == BROADCAST && rank != s->root) ? 0 : bytes_of(s) * all;
}
static size_t gets(const ncclComm_t c, const Same *s, int rank) {
    const size_t all = s->kind == ALL_GATHER ? (size_t)c->world : 1;
    return s->kind == SEND || (s->kind == REDUCE && rank != s->root) ? 0 : bytes_of(s) * all;
}

static void send(const ncclComm_t c, const Call *call) {
    const int to = call->same.root;
    memcpy(c->area->box[c->rank], call->from, bytes_of(&call->same));
    c->area->call[c->rank] = call->same;
    wait_for(c, &c->area->got[c->rank][to], atomic_fetch_add(&c->area->sent[c->rank][to], 1) + 1);
}

static void receive(const ncclComm_t c, const Call *call) {
    const int from = call->same.root;
    const Same *s = &c->area->call[from];
    wait_for(c, &c->area->sent[from][c->rank], atomic_load(&c->area->got[from][c->rank]) + 1);
    if (s->kind != SEND || s->type != call->same.type || s->count != call->same.count) die(c, "another message was sent");
    memcpy(call->to, c->area->box[from], bytes_of(s));
    atomic_fetch_add(&c->area->got[from][c->rank], 1);
}

static void run_call(const ncclComm_t c, const Call *call) {
    const Same *s = &call->same;
    Area *a = c->area;
    memcpy(a->box[c->rank], call->from, sends(c, s, c->rank));
    a->call[c->rank] = *s;
    meet(c);
    for (int r = 0; r < c->world; r++) {
        const Same *other = &a->call[r];
        if (is_same(other, s)) continue;
        snprintf(detail, sizeof detail, "the ranks make different calls: %s %zu x %s, rank %d %s %zu x %s", kinds[s->kind].name, s->count,
                 dtype_name(type_of(s->type)), r, kinds[other->kind].name, other->count, dtype_name(type_of(other->type)));
        die(c, detail);
    }
    if (gets(c, s, c->rank)) switch (s->kind) {
    case ALL_REDUCE: case REDUCE: reduce(c, s, call->to, 0); break;
    case REDUCE_SCATTER: reduce(c, s, call->to, (size_t)c->rank * s->count); break;
    case ALL_GATHER: for (int r = 0; r < c->world; r++) memcpy(call->to + (size_t)r * bytes_of(s), a->box[r], bytes_of(s)); break;
    case BROADCAST: memcpy(call->to, a->box[s->root], bytes_of(s)); break;
    default: break;
    }
    meet(c);
}

static void run_group(void *data) {
    const Group *g = data;
    for (int i = 0; i < g->n; i++) {
        const int kind = g->call[i].same.kind;
        (kind == SEND ? send : kind == RECEIVE ? receive : run_call)(g->comm, &g->call[i]);
    }
}

static ncclResult_t push(void) {
    const cudaError_t error = emulate_push(group.stream, run_group, &group, offsetof(Group, call) + (size_t)group.n * sizeof *group.call);
    group.n = 0;
    if (error) (void)cudaGetLastError();
    return error ? refuse(1, "the stream refuses it: is it this GPU's?") : ncclSuccess;
}

static ncclResult_t add(const char *name, Same s, const void *from, void *to, ncclComm_t c, cudaStream_t stream) {
    ncclResult_t result = enter(name);
    if (result) return result;
    if (!c || !stream || s.root < 0 || s.root >= c->world) return refuse(INVALID_ARGUMENT, "no communicator, stream or root");
    if (sends(c, &s, c->rank) > BOX_BYTES) return refuse(INVALID_ARGUMENT, "the stand-in's boxes are too small");
    if ((sends(c, &s, c->rank) && !emulate_on_device(from, sends(c, &s, c->rank))) ||
        (gets(c, &s, c->rank) && !emulate_on_device(to, gets(c, &s, c->rank))))
        return refuse(INVALID_ARGUMENT, "a buffer does not lie in the GPU's memory");
    if ((s.kind == SEND || s.kind == RECEIVE) && (depth || s.root == c->rank)) return refuse(INVALID_USAGE, "the stand-in sends alone, to others");
    if (group.n == GROUP_MOST || (group.n && (group.comm != c || group.stream != stream))) return refuse(INVALID_USAGE, "the group");
    group.comm = c;
    group.stream = stream;
    s.of_group = group.n;
    group.call[group.n++] = (Call){s, from, to};
    tell("%s %zu x %s", kinds[s.kind].name, s.count, dtype_name(type_of(s.type)));
    if (kinds[s.kind].peer) tell(" %s %d", kinds[s.kind].peer, s.root);
    if (s.op == ncclMax) tell(" max");
    tell("; ");
    return depth ? ncclSuccess : push();
}

/* ---- NCCL's functions */

ncclResult_t ncclGetVersion(int *version) {
    const char *text = getenv("EMULATE_NCCL");
    *version = text ? atoi(text) : 22800;
    return enter(__func__);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int number;
    ncclResult_t result = enter(__func__);
    if (result) return result;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/memtide-nccl-%d-%d", (int)getpid(), number++);
    return ncclSuccess;
}

static Area *share(const char *name) {
    const int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
    void *p = fd < 0 || ftruncate(fd, sizeof(Area)) ? MAP_FAILED
              : mmap(NULL, sizeof(Area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    return p == MAP_FAILED ? NULL : p;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank) {
    int device = 0;
    ncclResult_t result = enter(__func__);
    if (result) return result;
    if (emulate_nothing_captures() || cudaGetDevice(&device)) return refuse(1, "a stream records");
    if (ranks < 1 || ranks > RANKS_MOST || rank < 0 || rank >= ranks) return refuse(INVALID_ARGUMENT, "the ranks");
    const ncclComm_t c = calloc(1, sizeof *c);
    Area *area = share(id.internal);
    if (!c || !area) return refuse(2, "no memory to share");
    *c = (struct ncclComm){area, rank, ranks, device};
    meet(c);
    if (rank == 0) shm_unlink(id.internal);
    tell("join %d of %d; ", rank, ranks);
    *out = c;
    return ncclSuccess;
}

static ncclResult_t leave(ncclComm_t c) {
    munmap(c->area, sizeof *c->area);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    const double begin = seconds();
    atomic_fetch_add(&c->area->left, 1);
    while (atomic_load(&c->area->left) < c->world) {
        nanosleep(&(struct timespec){0, 20000}, NULL);
        if (seconds() - begin > PATIENCE) die(c, "another rank does not leave: this would hang");
    }
    tell("destroy; ");
    return leave(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    atomic_fetch_add(&c->area->left, 1);
    tell("abort; ");
    return leave(c);
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : (int)result == INVALID_ARGUMENT ? "invalid argument" : "unhandled error";
}

const char *ncclGetLastError(ncclComm_t c) {
    (void)c;
    return detail;
}

ncclResult_t ncclGroupStart(void) {
    ncclResult_t result = enter(__func__);
    if (result) return result;
    depth++;
    tell("{ ");
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (depth == 0) return refuse(INVALID_USAGE, "no group has begun");
    ncclResult_t result = enter(__func__);
    tell("} ");
    depth--;
    if (depth || !group.n) return result;
    if (!result) return push();
    group.n = 0;
    return result;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    return add(__func__, (Same){ALL_REDUCE, (int)type, (int)op, 0, 0, count}, from, to, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t to_count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    return add(__func__, (Same){REDUCE_SCATTER, (int)type, (int)op, 0, 0, to_count}, from, to, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t from_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return add(__func__, (Same){ALL_GATHER, (int)type, 0, 0, 0, from_count}, from, to, comm, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return add(__func__, (Same){REDUCE, (int)type, (int)op, root, 0, count}, from, to, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return add(__func__, (Same){BROADCAST, (int)type, 0, root, 0, count}, from, to, comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream) {
    return add(__func__, (Same){SEND, (int)type, 0, to, 0, count}, from, NULL, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream) {
    return add(__func__, (Same){RECEIVE, (int)type, 0, from, 0, count}, NULL, to, comm, stream);
}
