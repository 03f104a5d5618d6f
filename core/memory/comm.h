/* comm.h: the ranks of a training, which are processes, and how they exchange what lies in the host's memory. All ranks
 * make the same calls in the same order. Functions that return int return an ErrCode; a rank that has ended shows as
 * ERR_DEVICE, or ends this process. */
#ifndef MT_COMM_H
#define MT_COMM_H

#include <signal.h>

#include "base/base.h"
#include "base/err.h"

typedef struct Comm Comm;

typedef struct CommTable {
    const char *kind; /* "mpi" */
    void (*close)(Comm *);
    /* Sends bytes[r] from from + at[r] to each rank r, and receives own[r] bytes from each, one after the other in `to` in
     * the order of the ranks. from and to do not overlap. */
    int (*exchange)(Comm *, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *);
    /* `all` has a place of bytes[r] for each rank r, one after the other. A rank's own place is filled before the call,
     * all others after it. */
    int (*gather)(Comm *, void *all, const size_t *bytes, Err *);
    /* All ranks get what `root` has. */
    int (*broadcast)(Comm *, void *data, size_t bytes, int root, Err *);
    int (*send)(Comm *, const void *data, size_t bytes, int to, Err *);
    int (*receive)(Comm *, void *data, size_t bytes, int from, Err *);
    int (*barrier)(Comm *, Err *);
    /* A Comm of the ranks that give the same color, in their order, to be closed before this one. */
    int (*split)(Comm *, int color, Comm **out, Err *);
    /* Ends the processes of all ranks with this exit status, from one that cannot go on. Does not return. */
    void (*abort)(Comm *, int status);
} CommTable;

/* any_thread: another thread than that which opened it may call it, while no other does. A device's Comm is NULL where there is one
 * rank. */
struct Comm { const CommTable *table; int rank, world; bool any_thread; };

/* The ranks that this process was started with (by mpirun or srun). kernels/mpi is a plugin, memtide_mpi.so, as the CUDA
 * device is one: it exports memtide_mpi_open, a CommPluginOpen, and memtide_mpi_abi, which is COMM_ABI. ERR_UNSUPPORTED:
 * the plugin is not there, or this process was not started as a rank. */
int comm_open(Comm **out, Err *e);
void comm_close(Comm *c); /* NULL is allowed */
/* Puts a Comm in the place of `inner`, whose it becomes, and of those that are split from it. *inside is 1 while one of them
 * exchanges something, or waits for the others, else 0. ERR_HOST_MEMORY: `inner` stays the caller's. */
int comm_watch(Comm *inner, volatile sig_atomic_t *inside, Comm **out, Err *e);

typedef int CommPluginOpen(Comm **out, Err *e);
#define COMM_ABI ((uint64_t)sizeof(CommTable) << 32 | sizeof(Comm))

#endif
