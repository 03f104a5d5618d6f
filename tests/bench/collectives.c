/* collectives.c: one of the ranks that mpirun starts (make bench-ranks): how long the collective ops take, beside MPI's own
 * for the same numbers. memtide's sums go in the order of the ranks; MPI's order is its own. Rank 0
 * prints CSV: of the times of the slowest rank the least, because other programs may take the processors. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

#include "base/mem.h"
#include "memory/device.h"

enum { TURNS = 50, LIMIT = 4 << 20 }; /* LIMIT: bytes of workspace, the setting workspace_limit's default */

static Comm *comm;
static Device *cpu;
static float *whole, *part, *out;
static int *counts;
static void *workspace;

static void stop_if(int failed, const Err *e) {
    if (!failed) return;
    fprintf(stderr, "%s\n", e->text);
    comm->table->abort(comm, 1);
}

/* Memory of the device, which goes with the process. */
static void *memory(size_t bytes) {
    Err e = {0, ""};
    void *p;
    stop_if(cpu->table->alloc(cpu, align_up(bytes, cpu->table->alignment), &p, &e), &e);
    return p;
}

static View view(float *data, int64_t n) { return (View){.data = data, .shape = shape1(n), .dtype = DT_F32, .count = n}; }

/* Runs the op on in -> to, once or to be timed; with in == NULL it updates `to`. */
static void op(OpKind kind, float *in, int64_t n_in, float *to, int64_t n_to) {
    Err e = {0, ""};
    const Attr attr = {.collective = {comm->world, comm->rank, 0, MESH_DATA}};
    KArgs a = {.kind = kind, .attr = &attr, .device = cpu};
    if (in) a.in[0] = view(in, n_in);
    a.out[0] = view(to, n_to);
    stop_if(cpu->table->prepare(cpu, &a, LIMIT, &a.state, &a.workspace_bytes, &e), &e);
    a.workspace = a.workspace_bytes ? workspace : NULL;
    stop_if(cpu->table->run(cpu, &a, &e), &e);
}

static int64_t own(int64_t n) { return shard_of(n, comm->world, comm->rank).count; }

static void our_all_reduce(int64_t n) { op(OP_all_reduce, whole, n, out, n); }
static void our_reduce_scatter(int64_t n) { op(OP_reduce_scatter, whole, n, part, own(n)); }
static void our_all_gather(int64_t n) { op(OP_all_gather, part, own(n), out, n); }
static void mpi_all_reduce(int64_t n) { MPI_Allreduce(whole, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void mpi_reduce_scatter(int64_t n) {
    (void)n;
    MPI_Reduce_scatter(whole, part, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void mpi_all_gather(int64_t n) {
    MPI_Allgatherv(part, (int)own(n), MPI_FLOAT, out, counts, counts + comm->world, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct { const char *name; void (*ours)(int64_t), (*mpi)(int64_t); } ops[] = {
    {"all_reduce", our_all_reduce, mpi_all_reduce},
    {"reduce_scatter", our_reduce_scatter, mpi_reduce_scatter},
    {"all_gather", our_all_gather, mpi_all_gather},
};

/* Microseconds */
static double once(void (*call)(int64_t), int64_t n) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), time, slowest;
    call(n);
    time = 1e6 * (MPI_Wtime() - start);
    MPI_Allreduce(&time, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Both in turns. */
static void measure(size_t k, int64_t n) {
    double ours = INFINITY, mpi = INFINITY;
    for (int r = 0; r < comm->world; r++) {
        counts[r] = (int)shard_of(n, comm->world, r).count;
        counts[comm->world + r] = (int)shard_of(n, comm->world, r).first;
    }
    for (int t = 0; t < TURNS; t++) {
        ours = fmin(ours, once(ops[k].ours, n));
        mpi = fmin(mpi, once(ops[k].mpi, n));
    }
    if (comm->rank == 0)
        printf("%s,%d,%lld,%.0f,%.0f\n", ops[k].name, comm->world, 4 * (long long)n, ours, mpi);
}

int main(void) {
    static const int64_t sizes[] = {1 << 10, 1 << 14, 1 << 18, 1 << 22};
    const int64_t most = sizes[ARRAY_LEN(sizes) - 1];
    Err e = {0, ""};
    if (comm_open(&comm, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    stop_if(device_open("cpu", &cpu, &e), &e);
    cpu->comm[MESH_DATA] = comm;
    whole = memory((size_t)most * sizeof *whole);
    part = memory((size_t)most * sizeof *part);
    out = memory((size_t)most * sizeof *out);
    counts = memory(2 * (size_t)comm->world * sizeof *counts);
    workspace = memory(LIMIT);
    for (int64_t i = 0; i < most; i++) part[i] = whole[i] = (float)(i % 7 + comm->rank);
    if (comm->rank == 0) printf("collective,ranks,bytes,memtide_us,mpi_us\n");
    for (size_t k = 0; k < ARRAY_LEN(ops); k++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) measure(k, sizes[s]);
    device_close(cpu);
    comm_close(comm);
    return 0;
}
