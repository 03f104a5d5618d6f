/* A collective op goes on while the CPU computes: the op that begins it returns before another rank has come, and what is computed
 * meanwhile is there before it is over. In line, rank 0 would wait for ever for rank 1, which comes after that. Ops that are begun
 * are over in their order; one that is in line comes after them; and an error shows at the wait. */
#include <unistd.h>

#include "fork_comm.h"
#include "tap.h"

enum { NUMBERS = 1000, SOON = 30 };

typedef struct Told { sem_t computed; float sum[2][NUMBERS], act[NUMBERS]; int code; char text[ERR_TEXT]; } Told;
static Told *told; /* shared */

static float *numbers(Device *d) {
    void *p = NULL;
    Err e;
    if (d->table->alloc(d, (NUMBERS * sizeof(float) + 63) / 64 * 64, &p, &e)) _exit(3);
    return p;
}

static View view(float *data) { return (View){.data = data, .shape = shape1(NUMBERS), .dtype = DT_F32, .count = NUMBERS}; }

static int reduce(Device *d, float *y, bool begun, Err *e) {
    static char workspace[1 << 14] __attribute__((aligned(64)));
    const Attr attr = {.collective = {d->comm[MESH_DATA]->world, d->comm[MESH_DATA]->rank, 1, MESH_DATA}};
    static Attr kept; /* it lasts until the op is over */
    kept = attr;
    KArgs a = {.kind = OP_all_reduce_, .attr = &kept, .device = d, .begun = begun};
    a.out[0] = view(y);
    a.workspace = workspace;
    a.workspace_bytes = NUMBERS * sizeof(float);
    return d->table->run(d, &a, e);
}

static int end(Device *d, float *y, Err *e) {
    KArgs a = {.kind = OP_wait, .device = d};
    a.out[0] = view(y);
    return d->table->run(d, &a, e);
}

static int compute(Device *d, float *x, float *y, Err *e) {
    static const Attr attr = {.act = {.act = ACT_RELU}};
    KArgs a = {.kind = OP_act, .attr = &attr, .device = d};
    a.in[0] = view(x);
    a.out[0] = view(y);
    return d->table->run(d, &a, e);
}

/* Rank 0 begins two sums and computes; rank 1 comes when that is done. */
static int beside(int rank, Comm *const comm[MESH_AXES], void *arg) {
    Device *d;
    Err e = {0, ""};
    (void)arg;
    alarm(SOON);
    if (device_open("cpu", &d, &e) || device_join(d, MESH_DATA, comm[MESH_DATA], &e)) return 1;
    float *one = numbers(d), *two = numbers(d), *x = numbers(d), *y = numbers(d);
    for (int i = 0; i < NUMBERS; i++) one[i] = (float)(i + rank), two[i] = (float)(2 * i - rank), x[i] = (float)(i - 500), y[i] = -1;
    if (rank == 1) while (sem_wait(&told->computed)) continue;
    int code = reduce(d, one, true, &e);
    if (!code && rank == 0) code = compute(d, x, y, &e);
    if (!code && rank == 0) {
        memcpy(told->act, y, sizeof told->act);
        sem_post(&told->computed);
    }
    if (!code) code = reduce(d, two, false, &e);
    if (!code) code = end(d, one, &e);
    memcpy(told->sum[0], one, sizeof told->sum[0]);
    memcpy(told->sum[1], two, sizeof told->sum[1]);
    device_close(d);
    return code;
}

static int lose(Comm *c, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *e) {
    (void)c, (void)from, (void)at, (void)bytes, (void)to, (void)own;
    return err_set(e, ERR_DEVICE, "the others are gone");
}

static int fails(int rank, Comm *const comm[MESH_AXES], void *arg) {
    static CommTable broken;
    Device *d;
    Err e = {0, ""};
    (void)arg;
    alarm(SOON);
    broken = *comm[MESH_DATA]->table;
    broken.exchange = lose;
    comm[MESH_DATA]->table = &broken;
    if (device_open("cpu", &d, &e) || device_join(d, MESH_DATA, comm[MESH_DATA], &e)) return 1;
    float *one = numbers(d), *two = numbers(d);
    memset(one, 0, NUMBERS * sizeof *one);
    memset(two, 0, NUMBERS * sizeof *two);
    const int begun = reduce(d, one, true, &e), more = reduce(d, two, true, &e), ended = end(d, one, &e);
    if (rank == 0) {
        told->code = begun || more ? OK : ended;
        snprintf(told->text, sizeof told->text, "%s", e.text);
    }
    const int second = end(d, two, &e);
    device_close(d);
    return second != ERR_DEVICE;
}

int main(void) {
    told = shared_memory(sizeof *told);
    if (!ok(told && !sem_init(&told->computed, 1, 0), "memory that processes share")) return tap_done();
    ok(run_ranks(2, 1, 1, beside, NULL) == 2, "a rank computes before the other takes part in what it has begun");
    int wrong = 0;
    for (int i = 0; i < NUMBERS; i++)
        wrong += told->act[i] != (i > 500 ? (float)(i - 500) : 0) || told->sum[0][i] != (float)(2 * i + 1) ||
                 told->sum[1][i] != (float)(4 * i - 1);
    is_int(wrong, 0, "the numbers of both");
    ok(run_ranks(2, 1, 1, fails, NULL) == 2, "an exchange that fails");
    is_int(told->code, ERR_DEVICE, "fails at its wait");
    has_text(told->text, "the others are gone", "with its reason");
    return tap_done();
}
