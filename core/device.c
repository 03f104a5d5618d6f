#include "device.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 1024 };

static const char PLUGIN[] = "memtide_cuda.so", VARIABLE[] = "MEMTIDE_CUDA";

/* From the folders of the program and of the Lua module, as they are built and as they are installed. */
static const char *const places[] = {"", "../lib/memtide/", "../../memtide/"};

/* The folder, with its slash, that holds the running program (module: this code, which may be a library). */
static bool home(bool module, char folder[PATH]) {
    Dl_info info;
    ssize_t n = readlink("/proc/self/exe", folder, PATH - 1);
    if (module) {
        n = dladdr((const void *)places, &info) ? snprintf(folder, PATH, "%s", info.dli_fname) : 0;
        if (n >= PATH) return false;
    }
    if (n <= 0) return false;
    folder[n] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    return slash;
}

/* false: there is none; *looked then says where it was looked for. */
static bool find_plugin(char path[PATH], char looked[PATH]) {
    const char *asked = getenv(VARIABLE);
    char folder[PATH];
    if (asked && asked[0]) {
        snprintf(path, PATH, "%s", asked);
        snprintf(looked, PATH, "%s, which %s names", asked, VARIABLE);
        return access(path, F_OK) == 0;
    }
    looked[0] = 0;
    for (int module = 0; module < 2; module++) {
        if (!home(module, folder)) continue;
        for (size_t i = 0; i < ARRAY_LEN(places); i++) {
            int n = snprintf(path, PATH, "%s%s%s", folder, places[i], PLUGIN);
            if (n < PATH && access(path, F_OK) == 0) return true;
        }
        if (!looked[0]) snprintf(looked, PATH, "%s in %s and %s%s", PLUGIN, folder, folder, places[1]);
    }
    return false;
}

/* The plugin stays loaded: CUDA does not bear to be unloaded before the process ends. */
static int open_cuda(const char *name, Device **out, Err *e) {
    char path[PATH], looked[PATH];
    DevicePluginOpen *open;
    if (!find_plugin(path, looked))
        return err_set(e, ERR_UNSUPPORTED, "the CUDA plugin is not there: looked for %s", looked);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return err_set(e, ERR_UNSUPPORTED, "the CUDA plugin cannot be loaded: %s", dlerror());
    void *found = dlsym(library, "memtide_cuda_open");
    const uint64_t *abi = dlsym(library, "memtide_cuda_abi");
    if (!found || !abi)
        return err_set(e, ERR_UNSUPPORTED, "%s is no CUDA plugin of memtide: it has no memtide_cuda_open", path);
    if (*abi != DEVICE_ABI)
        return err_set(e, ERR_UNSUPPORTED, "%s was built for another version of memtide: build both anew", path);
    memcpy(&open, &found, sizeof open); /* ISO C has no cast from an object's address to a function's */
    return open(name, out, e);
}

int device_open(const char *name, Device **out, Err *e) {
    if (!strcmp(name, "cpu")) return device_cpu_open(out, e);
    if (strcmp(name, "cuda") && strncmp(name, "cuda:", 5))
        return err_set(e, ERR_SCRIPT, "unknown device '%s': expected cpu, cuda:N or cuda:NAME", name);
    return open_cuda(name, out, e) ? err_prefix(e, "device '%s' is not available", name) : OK;
}

void device_described(DeviceText *put, void *arg) {
    char path[PATH], looked[PATH], pattern[PATH + 16], name[64];
    glob_t files;
    if (!find_plugin(path, looked)) return;
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
