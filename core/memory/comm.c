#include "comm.h"

#include <string.h>

#include "base/plugin.h"

int comm_open(Comm **out, Err *e) {
    static const Plugin mpi = {"MPI plugin", "memtide_mpi.so", "MEMTIDE_MPI", "memtide_mpi_open", "memtide_mpi_abi", COMM_ABI};
    void *library, *found;
    CommPluginOpen *open;
    int code = plugin_load(&mpi, &library, &found, e);
    if (code) return code;
    memcpy(&open, &found, sizeof open); /* ISO C has no cast from an object's address to a function's */
    return open(out, e);
}

void comm_close(Comm *c) {
    if (c) c->table->close(c);
}
