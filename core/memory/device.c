#include "device.h"

#include <glob.h>
#include <stdio.h>
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

void device_close(Device *d) {
    if (d) d->table->close(d);
}
