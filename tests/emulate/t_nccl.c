/* t_nccl.c: ranks on emulated GPUs: how they join, by NCCL's stand-in (nccl.c), and are refused; the calls that each collective
 * op makes, and their numbers, at once, late and replayed from a recording. */
#include <dlfcn.h>
#include <stdlib.h>

#include "device/fork_comm.h"
#include "emulate/nccl_told.h"
#include "memory/device.h"
#include "program/operands.h"
#include "tap.h"

enum { WORLD = 3, NUMBERS = 1024, ROUNDS = 3, BYTE = 0x5A };

/* What a rank has seen. */
typedef struct Seen {
    int code;
    char text[ERR_TEXT], told[1024];
    int wrong;  /* numbers */
} Seen;

static Seen *seen; /* [WORLD], shared */
static char nccl[1024];

static const char *told(void) {
    const char *(*function)(void);
    void *library = dlopen(getenv("MEMTIDE_NCCL"), RTLD_NOW), *found = library ? dlsym(library, "emulate_nccl_told") : NULL;
    if (!found) return "no stand-in";
    memcpy(&function, &found, sizeof function);
    return function();
}

static int join_along(MeshAxis axis, Comm *comm, int gpu, Device **out, Err *e) {
    char name[DEVICE_NAME];
    snprintf(name, sizeof name, "cuda:%d", gpu);
    *out = NULL;
    const int code = device_open(name, out, e);
    return code ? code : device_join(*out, axis, comm, e);
}

static int join(Comm *comm, int gpu, Device **out, Err *e) { return join_along(MESH_DATA, comm, gpu, out, e); }

/* ---- ops */

/* pieces: n elements are so many rows, of which each rank has a slice along the second axis; 0: each has a shard */
typedef struct Case { OpKind kind; DType type; int64_t n, pieces; const char *calls; } Case;

/* 768 elements are 3 units of 256; of 1000 the last rank has 488. Gathered is by bytes. */
static const Case cases[] = {
    {OP_all_reduce, DT_F32, 1000, 0, "AllReduce 1000 x f32; "},
    {OP_all_reduce, DT_F16, 1000, 0, "AllReduce 1000 x f16; "},
    {OP_all_reduce_, DT_BF16, 1000, 0, "AllReduce 1000 x bf16; "},
    {OP_reduce_scatter, DT_F32, 768, 0, "{ ReduceScatter 256 x f32; } "},
    {OP_reduce_scatter, DT_BF16, 768, 0, "{ ReduceScatter 256 x bf16; } "},
    {OP_reduce_scatter, DT_F32, 1000, 0, "{ Reduce 256 x f32 root 0; Reduce 256 x f32 root 1; Reduce 488 x f32 root 2; } "},
    {OP_reduce_scatter, DT_F16, 1000, 0, "{ Reduce 256 x f16 root 0; Reduce 256 x f16 root 1; Reduce 488 x f16 root 2; } "},
    {OP_all_gather, DT_F32, 768, 0, "{ AllGather 1024 x u8; } "},
    {OP_all_gather, DT_BF16, 1000, 0, "{ Broadcast 512 x u8 root 0; Broadcast 512 x u8 root 1; Broadcast 976 x u8 root 2; } "},
    {OP_all_gather_, DT_F16, 768, 0, "{ AllGather 512 x u8; } "},
    {OP_all_gather_, DT_F32, 1000, 0,
     "{ Broadcast 1024 x u8 root 0; Broadcast 1024 x u8 root 1; Broadcast 1952 x u8 root 2; } "},
    {OP_reduce_scatter, DT_F32, 768, 2, "{ ReduceScatter 128 x f32; ReduceScatter 128 x f32; } "},
    {OP_reduce_scatter, DT_BF16, 27, 3, "{ ReduceScatter 3 x bf16; ReduceScatter 3 x bf16; ReduceScatter 3 x bf16; } "},
    {OP_all_gather, DT_BF16, 768, 2, "{ AllGather 256 x u8; AllGather 256 x u8; } "},
    {OP_any_overflow, DT_I32, 4, 0, "AllReduce 1 x i32 max; "},
};

static const Case *running;
static bool begun; /* ops are only begun */

static bool gathers(OpKind kind) { return kind == OP_all_gather || kind == OP_all_gather_; }

/* Small whole numbers, whose sums every type has exactly; of gathered elements each rank has its own. */
static float value(int round, int rank, int64_t i) { return (float)((i * 7 + rank * 5 + round * 3) % 11 - 5); }

/* The state of any_overflow: loss_scale and good_steps are the ranks' own. An overflow is rank 1's, in round 1. */
static StepState state_of(int round, int rank) {
    return (StepState){.loss_scale = 2.0f, .good_steps = 10 + rank, .overflow = round == 1 && rank == 1, .step = 20 + rank};
}

typedef struct Operands {
    KArgs args;
    Attr attr;
    Within own;            /* where a rank's part of the n elements lies */
    int64_t x_n, y_n;      /* the elements of operands; x_n 0: y is updated */
    Within x_at, y_at;     /* where they lie among the n */
    char x[4 * NUMBERS], y[4 * NUMBERS];
} Operands;

static Shape shape_of(const Case *c, int64_t n) { return c->pieces ? shape2(c->pieces, n / c->pieces) : shape1(n); }

static void begin(Operands *o, Device *d, const Case *c) {
    const int rank = d->comm[MESH_DATA]->rank;
    memset(o, 0, sizeof *o);
    const Shard shard = shard_of(c->n, WORLD, rank);
    const int64_t piece = c->pieces ? c->n / c->pieces / WORLD : shard.count, own = c->pieces ? c->n / WORLD : shard.count;
    const Within all = {0, 0, 0};
    const bool scatters = c->kind == OP_reduce_scatter, given = c->kind == OP_all_gather;
    o->own = (Within){c->pieces ? rank * piece : shard.first, piece, piece * WORLD};
    o->x_n = given ? own : c->kind == OP_all_reduce || scatters ? c->n : 0;
    o->y_n = scatters ? own : c->n;
    o->x_at = given ? o->own : all;
    o->y_at = scatters ? o->own : all;
    o->attr.collective = (CollectiveAttr){.world = WORLD, .rank = rank, .bucket = 1, .axis = MESH_DATA};
    o->args = (KArgs){.kind = c->kind, .attr = &o->attr, .device = d, .begun = begun};
    if (o->x_n) o->args.in[0] = (View){.shape = shape_of(c, o->x_n), .dtype = c->type, .count = o->x_n};
    o->args.out[0] = (View){.shape = shape_of(c, o->y_n), .dtype = c->type, .count = o->y_n};
}

/* Fills in what the operands are before round `round`. */
static void fill(Operands *o, const Case *c, int round) {
    const int rank = o->attr.collective.rank;
    memset(o->x, BYTE, sizeof o->x);
    memset(o->y, BYTE, sizeof o->y);
    if (c->kind == OP_any_overflow) {
        const StepState s = state_of(round, rank);
        memcpy(o->y, &s, sizeof s);
        return;
    }
    for (int64_t i = 0; i < o->x_n; i++) dtype_store(c->type, o->x, (size_t)i, value(round, rank, within_place(o->x_at, i)));
    for (int64_t i = 0; i < o->y_n && !o->x_n; i++)
        if (c->kind == OP_all_reduce_ || (i >= o->own.first && i < o->own.first + o->own.piece))
            dtype_store(c->type, o->y, (size_t)i, value(round, rank, i));
}

static float expected(const Case *c, int round, int64_t i) {
    float sum = 0;
    for (int r = 0; r < WORLD; r++) {
        const Shard s = shard_of(c->n, WORLD, r);
        const bool has = c->pieces ? i % (c->n / c->pieces) / (c->n / c->pieces / WORLD) == r : i >= s.first && i < s.first + s.count;
        if (!gathers(c->kind) || has) sum += value(round, r, i);
    }
    return sum;
}

/* How many numbers are not as they should be, and bytes after them. */
static int wrong(const Operands *o, const Case *c, int round) {
    int n = 0;
    const size_t end = (size_t)o->y_n * dtype_size(c->type);
    for (size_t i = end; i < sizeof o->y; i++) n += o->y[i] != BYTE;
    if (c->kind == OP_any_overflow) {
        StepState s = state_of(round, o->attr.collective.rank);
        s.overflow = round == 1;
        return n + (memcmp(&s, o->y, sizeof s) != 0);
    }
    for (int64_t i = 0; i < o->y_n; i++) n += dtype_load(c->type, o->y, (size_t)i) != expected(c, round, within_place(o->y_at, i));
    return n;
}

/* The op, and the wait that ends it if it is only begun. looks: where the device does everything late, the op has not run yet
 * when all else has. */
static int run_op(Device *d, const KArgs *a, bool looks, Seen *s, Err *e) {
    KArgs wait = {.kind = OP_wait, .attr = a->attr, .device = d};
    static char before[4 * NUMBERS], after[4 * NUMBERS];
    const size_t bytes = (size_t)a->out[0].count * dtype_size(a->out[0].dtype);
    wait.out[0] = a->out[0];
    int code = looks ? d->table->download(d, before, a->out[0].data, bytes, e) : OK;
    if (!code) code = d->table->run(d, a, e);
    if (code || !a->begun) return code;
    if (looks) code = d->table->download(d, after, a->out[0].data, bytes, e);
    if (looks && memcmp(before, after, bytes)) s->wrong += NUMBERS;
    return code ? code : d->table->run(d, &wait, e);
}

/* Round 0 is run, round 1 recorded and replayed, round 2 replayed again. */
static int run_rounds(Device *d, Operands *o, const Case *c, Seen *s, Err *e) {
    const DeviceTable *t = d->table;
    KArgs *a = &o->args;
    void *graph = NULL, *x = NULL;
    size_t workspace = 0;
    int code = t->prepare(d, a, SIZE_MAX, &a->state, &workspace, e);
    if (!code) code = t->alloc(d, sizeof o->x, &x, e);
    if (!code) code = t->alloc(d, sizeof o->y, &a->out[0].data, e);
    if (o->x_n) a->in[0].data = x;
    told();
    for (int round = 0; round < ROUNDS && !code; round++) {
        fill(o, c, round);
        code = t->upload(d, x, o->x, sizeof o->x, e);
        if (!code) code = t->upload(d, a->out[0].data, o->y, sizeof o->y, e);
        if (!code && round == 1) code = t->record(d, e);
        if (!code && round < 2) code = run_op(d, a, round == 0 && !strcmp(getenv("EMULATE_LATE"), "1"), s, e);
        if (!code && round == 1) code = t->recorded(d, &graph, e);
        if (!code && round > 0) code = t->replay(d, graph, e);
        if (!code) code = t->download(d, o->y, a->out[0].data, sizeof o->y, e);
        if (!code) s->wrong += wrong(o, c, round);
        if (round == 0) snprintf(s->told, sizeof s->told, "%s", told());
    }
    t->graph_free(d, graph);
    t->free(d, x, sizeof o->x);
    t->free(d, a->out[0].data, sizeof o->y);
    return code;
}

static int run_case(int rank, Comm *const along[MESH_AXES], void *arg) {
    Comm *comm = along[MESH_DATA];
    (void)rank;
    const Case *c = arg;
    Seen *s = &seen[comm->rank];
    Device *d;
    Err e = {0, ""};
    static Operands o;
    s->wrong = 0;
    int code = join(comm, comm->rank, &d, &e);
    if (!code) {
        begin(&o, d, c);
        code = run_rounds(d, &o, c, s, &e);
    }
    device_close(d);
    snprintf(s->text, sizeof s->text, "%s", code ? e.text : "");
    return code;
}

static void test_ops(void) {
    for (int way = 0; way < 4; way++)
        for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
            Case c = cases[k];
            const bool late = way % 2;
            begun = way / 2 && c.kind != OP_any_overflow;
            char what[128];
            snprintf(what, sizeof what, "%s of %lld %s%s", op_info(c.kind)->name, (long long)c.n, dtype_name(c.type),
                     late ? ", late" : "");
            if (begun) strcat(what, ", begun");
            setenv("EMULATE_LATE", late ? "1" : "0", 1);
            memset(seen, 0, WORLD * sizeof *seen);
            if (!ok(run_ranks(WORLD, 1, 1, run_case, &c) == WORLD, "%s runs on %d ranks", what, WORLD))
                for (int r = 0; r < WORLD; r++) printf("# rank %d: %s\n", r, seen[r].text);
            for (int r = 0; r < WORLD; r++) {
                if (seen[r].wrong || strcmp(seen[r].told, c.calls)) printf("# rank %d of %s:\n", r, what);
                is_int(seen[r].wrong, 0, "its numbers, and no others");
                is_str(seen[r].told, c.calls, "by these calls");
            }
        }
}

/* ---- from stage to stage: each hands on what it received */

static KArgs transfer_args(Device *d, const Attr *attr, void *x, void *y) {
    KArgs a = {.kind = OP_transfer, .attr = attr, .device = d};
    View *own = x ? &a.in[0] : &a.out[0];
    *own = (View){.data = x ? x : y, .shape = {1, {NUMBERS}}, .dtype = DT_BF16, .count = NUMBERS};
    return a;
}

static int hand_on(Device *d, int rank, void *data, Err *e) {
    const Attr from = {.transfer = {rank - 1, rank}}, to = {.transfer = {rank, rank + 1}};
    const KArgs receive = transfer_args(d, &from, NULL, data), send = transfer_args(d, &to, data, NULL);
    int code = rank > 0 ? d->table->run(d, &receive, e) : OK;
    return !code && rank + 1 < WORLD ? d->table->run(d, &send, e) : code;
}

/* Rounds as those of run_rounds. */
static int run_chain(int rank, Comm *const along[MESH_AXES], void *arg) {
    static uint16_t number[NUMBERS];
    Seen *s = &seen[rank];
    Device *d;
    void *data = NULL, *graph = NULL;
    Err e = {0, ""};
    (void)arg;
    int code = join_along(MESH_PIPELINE, along[MESH_PIPELINE], rank, &d, &e);
    const DeviceTable *t = code ? NULL : d->table;
    if (!code) code = t->alloc(d, sizeof number, &data, &e);
    told();
    for (int round = 0; round < ROUNDS && !code; round++) {
        for (int i = 0; i < NUMBERS; i++) number[i] = rank == 0 ? (uint16_t)(i * 31 + round) : 0;
        code = t->upload(d, data, number, sizeof number, &e);
        if (!code && round == 1) code = t->record(d, &e);
        if (!code && round < 2) code = hand_on(d, rank, data, &e);
        if (!code && round == 1) code = t->recorded(d, &graph, &e);
        if (!code && round > 0) code = t->replay(d, graph, &e);
        if (!code) code = t->download(d, number, data, sizeof number, &e);
        for (int i = 0; i < NUMBERS && !code; i++) s->wrong += number[i] != (uint16_t)(i * 31 + round);
        if (round == 0) snprintf(s->told, sizeof s->told, "%s", told());
    }
    if (t) t->graph_free(d, graph);
    if (t) t->free(d, data, sizeof number);
    device_close(d);
    snprintf(s->text, sizeof s->text, "%s", code ? e.text : "");
    return code;
}

static void test_transfer(void) {
    static const char *const calls[] = {"Send 2048 x u8 to 1; ", "Recv 2048 x u8 from 0; Send 2048 x u8 to 2; ", "Recv 2048 x u8 from 1; "};
    for (int late = 0; late < 2; late++) {
        setenv("EMULATE_LATE", late ? "1" : "0", 1);
        memset(seen, 0, WORLD * sizeof *seen);
        if (!ok(run_ranks(1, 1, WORLD, run_chain, NULL) == WORLD, "stages hand on %d bytes%s", 2 * NUMBERS, late ? ", late" : ""))
            for (int r = 0; r < WORLD; r++) printf("# rank %d: %s\n", r, seen[r].text);
        for (int r = 0; r < WORLD; r++) {
            is_int(seen[r].wrong, 0, "all of them as sent");
            is_str(seen[r].told, calls[r], "by these calls");
        }
    }
}

/* ---- joining */

typedef struct Joining {
    const char *variable, *value; /* that rank `only` has, -1: all ranks */
    int only;
    bool one_gpu;
    const char *says[2];          /* of rank 0 and 1 */
} Joining;

static int try_to_join(int rank, Comm *const along[MESH_AXES], void *arg) {
    Comm *comm = along[MESH_DATA];
    (void)rank;
    const Joining *j = arg;
    Seen *s = &seen[comm->rank];
    Device *d;
    Err e = {0, ""};
    if (j->variable && (j->only < 0 || j->only == comm->rank)) setenv(j->variable, j->value, 1);
    s->code = join(comm, j->one_gpu ? 0 : comm->rank, &d, &e);
    snprintf(s->text, sizeof s->text, "%s", e.text);
    const bool joined = d && d->comm[MESH_DATA];
    device_close(d);
    return joined != (s->code == OK);
}

static void test_joining(void) {
    static const Joining all[] = {
        {NULL, NULL, -1, false, {"", ""}},
        {"MEMTIDE_NCCL", "/nowhere/libnccl.so.2", -1, false,
         {"several ranks on GPUs need NCCL, which cannot be loaded: /nowhere/libnccl.so.2: cannot open", "MEMTIDE_NCCL names the file"}},
        {"MEMTIDE_NCCL", "libm.so.6", -1, false,
         {"libm.so.6 is no NCCL of version 2.13 or later: it has no ncclGetVersion", "it has no ncclGetVersion"}},
        {"MEMTIDE_NCCL", "/nowhere/libnccl.so.2", 1, false, {"rank 1 has no NCCL that works", "/nowhere/libnccl.so.2"}},
        {"EMULATE_NCCL", "22905", 1, false,
         {"rank 1 has NCCL 2.29.5 and rank 0 has 2.28.0: expected one version", "rank 1 has NCCL 2.29.5"}},
        {NULL, NULL, -1, true,
         {"ranks 0 and 1 share one GPU, and NCCL wants one for each rank: there are 2 ranks, and this process sees 3 GPUs (emulated",
          "ranks 0 and 1 share one GPU"}},
        {"EMULATE_FAIL", "ncclCommInitRank:1:3", -1, false,
         {"NCCL: joining the ranks: unhandled error: as the test wants", "NCCL: joining the ranks"}},
        {"EMULATE_FAIL", "ncclGetUniqueId:1:3", 0, false, {"NCCL: a communicator's id: unhandled", "rank 0 has no NCCL that works"}},
    };
    for (size_t k = 0; k < ARRAY_LEN(all); k++) {
        Joining j = all[k];
        memset(seen, 0, WORLD * sizeof *seen);
        is_int(run_ranks(2, 1, 1, try_to_join, &j), 2, j.says[0][0] ? "ranks are refused" : "ranks join");
        for (int r = 0; r < 2; r++) {
            ok((seen[r].code == OK) == !j.says[r][0], "rank %d ends", r);
            has_text(seen[r].text, j.says[r], "and says why");
        }
    }
}

/* ---- a call that fails, and the end */

static int end_well(int rank, Comm *const along[MESH_AXES], void *arg) {
    Comm *comm = along[MESH_DATA];
    (void)rank;
    Device *d;
    Err e = {0, ""};
    const char *failing = arg;
    static Operands o;
    Seen *s = &seen[comm->rank];
    int code = join(comm, comm->rank, &d, &e);
    if (code) return code;
    begin(&o, d, running);
    if (failing) setenv("EMULATE_FAIL", failing, 1);
    s->code = run_rounds(d, &o, running, s, &e);
    snprintf(s->text, sizeof s->text, "%s", e.text);
    told();
    device_close(d);
    snprintf(s->told, sizeof s->told, "%s", told());
    return OK;
}

static int not_joined(int rank, Comm *const along[MESH_AXES], void *arg) {
    Comm *comm = along[MESH_DATA];
    (void)rank;
    Device *d;
    Err e = {0, ""};
    static Operands o;
    Seen *s = &seen[rank];
    (void)arg;
    if (device_open("cuda:0", &d, &e)) return 1;
    d->comm[MESH_DATA] = comm;
    begin(&o, d, running);
    s->code = run_rounds(d, &o, running, s, &e);
    snprintf(s->text, sizeof s->text, "%s", e.text);
    device_close(d);
    return OK;
}

static void test_failures(void) {
    static char second[] = "ncclReduce:2:4", group[] = "ncclGroupStart:1:3";
    running = &cases[5];
    begun = false;
    is_int(run_ranks(WORLD, 1, 1, end_well, NULL), WORLD, "ranks end");
    is_str(seen[1].told, "destroy; ", "and leave together");
    is_int(run_ranks(WORLD, 1, 1, end_well, second), WORLD, "a call of a group fails");
    is_int(seen[1].code, ERR_DEVICE, "the op fails");
    has_text(seen[1].text, "NCCL: reduce_scatter: invalid argument: as the test wants", "with NCCL's words");
    is_str(seen[1].told, "abort; ", "and no rank waits for the others at the end");
    is_int(run_ranks(WORLD, 1, 1, end_well, group), WORLD, "no group begins");
    has_text(seen[2].text, "NCCL: reduce_scatter: unhandled error", "nor does the op run");
    is_int(run_ranks(2, 1, 1, not_joined, NULL), 2, "a GPU that has joined none");
    is_int(seen[0].code, ERR_INTERNAL, "has no collective ops");
    has_text(seen[0].text, "this GPU has not joined the ranks", "and says so");
}

int main(void) {
    const char *build = getenv("BUILD");
    char plugin[1024];
    snprintf(plugin, sizeof plugin, "%s/emulate/memtide_cuda.so", build ? build : "build");
    snprintf(nccl, sizeof nccl, "%s/emulate/libnccl.so.2", build ? build : "build");
    setenv("MEMTIDE_CUDA", plugin, 1);
    setenv("MEMTIDE_NCCL", nccl, 1);
    setenv("EMULATE_MEMORY", "1048576,1048576,1048576", 1);
    seen = shared_memory(WORLD * sizeof *seen);
    if (!ok(seen != NULL, "memory that processes share")) return tap_done();
    test_ops();
    test_transfer();
    test_joining();
    test_failures();
    return tap_done();
}
