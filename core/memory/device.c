#include "device.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"

static const Plugin CUDA = {"CUDA plugin", "memtide_cuda.so", "MEMTIDE_CUDA", "memtide_cuda_open", "memtide_cuda_abi", DEVICE_ABI};

static int open_cuda(const char *name, Device **out, Err *e) {
    void *library, *found;
    DevicePluginOpen *open;
    int code = plugin_load(&CUDA, &library, &found, e);
    if (code) return code;
    memcpy(&open, &found, sizeof open); /* ISO C has no cast from an object's address to a function's */
    return open(name, out, e);
}

int device_open(const char *name, Device **out, Err *e) {
    if (!strcmp(name, "cpu")) return device_cpu_open(out, e);
    if (strcmp(name, "cuda") && strncmp(name, "cuda:", 5))
        return err_set(e, ERR_SCRIPT, "unknown device '%s': expected cpu, cuda:N or cuda:NAME", name);
    return open_cuda(name, out, e) ? err_prefix(e, "device '%s' is not available", name) : OK;
}

void device_offline(DeviceText *put, void *arg) {
    char path[PLUGIN_PATH], looked[PLUGIN_PATH], pattern[PLUGIN_PATH + 16], name[64];
    glob_t files;
    if (!plugin_find(&CUDA, path, looked)) return;
    char *slash = strrchr(path, '/');
    snprintf(pattern, sizeof pattern, "%.*sdevices/*.json", slash ? (int)(slash + 1 - path) : 0, path);
    if (glob(pattern, 0, NULL, &files)) return;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *base = strrchr(files.gl_pathv[i], '/') + 1;
        snprintf(name, sizeof name, "cuda:%.*s", (int)(strlen(base) - strlen(".json")), base);
        put(arg, name);
    }
    globfree(&files);
}

/* mpirun's comes first: a program that it starts within a job of Slurm has the job's variables, too. -1: neither is set. */
static long local_rank(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        const char *text = getenv(variables[i]);
        const size_t digits = text ? strspn(text, "0123456789") : 0;
        if (digits > 0 && digits < 6 && !text[digits]) return strtol(text, NULL, 10);
    }
    return -1;
}

int device_of_rank(const char *name, int world, char out[DEVICE_NAME], Err *e) {
    const char *number = !strcmp(name, "cuda") ? "0" : !strncmp(name, "cuda:", 5) ? name + 5 : "";
    const size_t digits = strspn(number, "0123456789");
    if (strlen(name) >= DEVICE_NAME) return err_set(e, ERR_SCRIPT, "unknown device '%s'", name);
    snprintf(out, DEVICE_NAME, "%s", name);
    if (world == 1 || digits == 0 || digits > 5 || number[digits]) return OK;
    const long rank = local_rank();
    if (rank < 0)
        return err_set(e, ERR_UNSUPPORTED, "device '%s' of %d ranks: which of its machine's ranks this process is, neither "
                       "OMPI_COMM_WORLD_LOCAL_RANK (mpirun) nor SLURM_LOCALID (srun) says", name, world);
    snprintf(out, DEVICE_NAME, "cuda:%ld", strtol(number, NULL, 10) + rank);
    return OK;
}

int device_join(Device *d, MeshAxis axis, Comm *comm, Err *e) {
    const int code = d->table->join ? d->table->join(d, axis, comm, e) : OK;
    if (!code) d->comm[axis] = comm;
    return code;
}

void device_close(Device *d) {
    if (d) d->table->close(d);
}
