/* fork_comm.h: ranks without MPI: processes that this test forks, which exchange bytes through memory that they share. */
#ifndef FORK_COMM_H
#define FORK_COMM_H

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "memory/device.h"

enum { RANKS_MOST = 8, BOX_BYTES = 8 << 20 };

typedef struct Shared {
    pthread_barrier_t barrier;
    sem_t sent_to[RANKS_MOST][RANKS_MOST], got_from[RANKS_MOST][RANKS_MOST]; /* by sender and receiver */
    size_t at[RANKS_MOST][RANKS_MOST]; /* by sender and receiver: bytes from the start of the sender's box */
    size_t sent[RANKS_MOST];           /* bytes that each rank has sent to others */
    char box[RANKS_MOST][BOX_BYTES];
} Shared;

typedef struct ForkComm { Comm base; Shared *shared; } ForkComm;

static void meet(const ForkComm *c) { pthread_barrier_wait(&c->shared->barrier); }

static int fork_exchange(Comm *base, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *e) {
    ForkComm *c = (ForkComm *)base;
    size_t put = 0, got = 0;
    for (int r = 0; r < base->world; r++) {
        if (put + bytes[r] > BOX_BYTES) return err_set(e, ERR_INTERNAL, "the test's boxes are too small");
        if (bytes[r]) memcpy(c->shared->box[base->rank] + put, (const char *)from + at[r], bytes[r]);
        c->shared->at[base->rank][r] = put;
        c->shared->sent[base->rank] += r == base->rank ? 0 : bytes[r];
        put += bytes[r];
    }
    meet(c);
    for (int r = 0; r < base->world; r++) {
        if (own[r]) memcpy((char *)to + got, c->shared->box[r] + c->shared->at[r][base->rank], own[r]);
        got += own[r];
    }
    meet(c);
    return OK;
}

static int fork_gather(Comm *base, void *all, const size_t *bytes, Err *e) {
    ForkComm *c = (ForkComm *)base;
    size_t at = 0;
    for (int r = 0; r < base->rank; r++) at += bytes[r];
    if (bytes[base->rank] > BOX_BYTES) return err_set(e, ERR_INTERNAL, "the test's boxes are too small");
    memcpy(c->shared->box[base->rank], (char *)all + at, bytes[base->rank]);
    c->shared->sent[base->rank] += (size_t)(base->world - 1) * bytes[base->rank];
    meet(c);
    at = 0;
    for (int r = 0; r < base->world; r++) {
        memcpy((char *)all + at, c->shared->box[r], bytes[r]);
        at += bytes[r];
    }
    meet(c);
    return OK;
}

static int fork_broadcast(Comm *base, void *data, size_t bytes, int root, Err *e) {
    ForkComm *c = (ForkComm *)base;
    if (bytes > BOX_BYTES) return err_set(e, ERR_INTERNAL, "the test's boxes are too small");
    if (base->rank == root) memcpy(c->shared->box[root], data, bytes);
    meet(c);
    if (base->rank != root) memcpy(data, c->shared->box[root], bytes);
    meet(c);
    return OK;
}

/* ERR_DEVICE: ranks wait for each other. */
static int wait_for(sem_t *s, const char *what, Err *e) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    return sem_timedwait(s, &end) ? err_set(e, ERR_DEVICE, "%s: the other rank does not come", what) : OK;
}

/* Returns when the bytes were received, as MPI may do, so that a wrong order of transfers shows. */
static int fork_send(Comm *base, const void *data, size_t bytes, int to, Err *e) {
    ForkComm *c = (ForkComm *)base;
    if (bytes > BOX_BYTES) return err_set(e, ERR_INTERNAL, "the test's boxes are too small");
    memcpy(c->shared->box[base->rank], data, bytes);
    c->shared->at[base->rank][to] = bytes;
    c->shared->sent[base->rank] += bytes;
    sem_post(&c->shared->sent_to[base->rank][to]);
    return wait_for(&c->shared->got_from[base->rank][to], "send", e);
}

static int fork_receive(Comm *base, void *data, size_t bytes, int from, Err *e) {
    ForkComm *c = (ForkComm *)base;
    const int code = wait_for(&c->shared->sent_to[from][base->rank], "receive", e);
    if (code) return code;
    if (c->shared->at[from][base->rank] != bytes) return err_set(e, ERR_INTERNAL, "another number of bytes was sent");
    memcpy(data, c->shared->box[from], bytes);
    sem_post(&c->shared->got_from[from][base->rank]);
    return OK;
}

static const CommTable fork_table = {.kind = "fork", .exchange = fork_exchange, .gather = fork_gather, .broadcast = fork_broadcast,
                                     .send = fork_send, .receive = fork_receive};

static void *shared_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool shared_open(Shared *s, int ranks) {
    pthread_barrierattr_t attr;
    memset(s->sent, 0, sizeof s->sent);
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++)
            if (sem_init(&s->sent_to[a][b], 1, 0) || sem_init(&s->got_from[a][b], 1, 0)) return false;
    return !pthread_barrierattr_init(&attr) && !pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) &&
           !pthread_barrier_init(&s->barrier, &attr, (unsigned)ranks);
}

/* Runs job(rank, comm, arg) in data times tensor times pipeline processes and waits for them; comm[axis]: NULL where there is one rank along
 * the axis. Returns how many ended well: those in which it returned 0. */
typedef int RankFn(int rank, Comm *const comm[MESH_AXES], void *arg);
static int run_ranks(int data, int tensor, int pipeline, RankFn *job, void *arg) {
    static Shared *shared[MESH_AXES]; /* by axis and group: the ranks that differ along it alone */
    const int size[MESH_AXES] = {data, tensor, pipeline}, world = data * tensor * pipeline;
    pid_t pid[RANKS_MOST];
    int well = 0;
    if (world > RANKS_MOST) return 0;
    for (int axis = 0; axis < MESH_AXES; axis++) {
        if (!shared[axis]) shared[axis] = shared_memory(RANKS_MOST * sizeof **shared);
        for (int g = 0; g < world / size[axis]; g++)
            if (!shared[axis] || !shared_open(&shared[axis][g], size[axis])) return 0;
    }
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        pid[r] = fork();
        if (pid[r]) continue;
        const int in_stage = data * tensor;
        ForkComm along[MESH_AXES] = {
            {{&fork_table, r / tensor % data, data, true}, &shared[MESH_DATA][r / in_stage * tensor + r % tensor]},
            {{&fork_table, r % tensor, tensor, true}, &shared[MESH_TENSOR][r / tensor]},
            {{&fork_table, r / in_stage, pipeline, true}, &shared[MESH_PIPELINE][r % in_stage]}};
        Comm *comm[MESH_AXES];
        for (int axis = 0; axis < MESH_AXES; axis++) comm[axis] = size[axis] > 1 ? &along[axis].base : NULL;
        const int failed = job(r, comm, arg);
        fflush(NULL);
        _exit(failed ? 1 : 0);
    }
    for (int r = 0, status; r < world; r++) well += waitpid(pid[r], &status, 0) == pid[r] && status == 0;
    return well;
}

#endif
