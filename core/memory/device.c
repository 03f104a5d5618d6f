#include "device.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 1024 };

static const char PLUGIN[] = "memtide_cuda.so", VARIABLE[] = "MEMTIDE_CUDA";

/* Where the plugin is, as seen from the folder of the program or of the Lua module: beside it in a build, in `place`
 * where it is installed. `place` counts only in a folder whose name ends in `folder`: seen from another one it could be
 * a folder that anybody may write to. */
static const struct { const char *folder, *place; } places[] = {
    {"", ""}, {"bin/", "../lib/memtide/"}, {"lib/lua/5.4/", "../../memtide/"}};

/* The folder, with its slash, of the running program or, if `module`, of the library that has this code. false: there
 * is none. */
static bool home(bool module, char folder[PATH]) {
    if (module) {
        Dl_info info;
        struct link_map *map = NULL;
        if (!dladdr1((const void *)places, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return false;
        if (!map->l_name[0]) return false; /* this code is a part of the program */
        if (snprintf(folder, PATH, "%s", map->l_name) >= PATH) return false;
    } else {
        ssize_t n = readlink("/proc/self/exe", folder, PATH - 1);
        if (n <= 0) return false;
        folder[n] = 0;
    }
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    return slash;
}

/* Is `end` ("bin/") the end of the path `folder`, beginning with a whole name? */
static bool ends_in(const char *folder, const char *end) {
    size_t n = strlen(folder), m = strlen(end);
    return n >= m && !strcmp(folder + n - m, end) && (m == 0 || n == m || folder[n - m - 1] == '/');
}

/* path: the plugin's file. false: there is none; `looked` says where it was searched for. */
static bool find_plugin(char path[PATH], char looked[PATH]) {
    const char *asked = getenv(VARIABLE);
    char folder[PATH];
    if (asked && asked[0]) {
        snprintf(path, PATH, "%s", asked);
        snprintf(looked, PATH, "%s, which %s names", asked, VARIABLE);
        return access(path, F_OK) == 0;
    }
    size_t told = (size_t)snprintf(looked, PATH, "%s", PLUGIN);
    for (int module = 0; module < 2; module++) {
        if (!home(module, folder)) continue;
        for (size_t i = 0; i < ARRAY_LEN(places); i++) {
            if (!ends_in(folder, places[i].folder)) continue;
            int n = snprintf(path, PATH, "%s%s%s", folder, places[i].place, PLUGIN);
            if (n < PATH && access(path, F_OK) == 0) return true;
            const char *joint = told == strlen(PLUGIN) ? " in " : " and ";
            if (told < PATH)
                told += (size_t)snprintf(looked + told, PATH - told, "%s%s%s", joint, folder, places[i].place);
        }
    }
    return false;
}

/* The plugin stays loaded to the end of the process, because CUDA cannot be unloaded. */
static int open_cuda(const char *name, Device **out, Err *e) {
    char path[PATH], looked[PATH];
    DevicePluginOpen *open;
    if (!find_plugin(path, looked))
        return err_set(e, ERR_UNSUPPORTED, "the CUDA plugin is missing: looked for %s", looked);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return err_set(e, ERR_UNSUPPORTED, "the CUDA plugin cannot be loaded: %s", dlerror());
    void *found = dlsym(library, "memtide_cuda_open");
    const uint64_t *abi = dlsym(library, "memtide_cuda_abi");
    if (!found || !abi)
        return err_set(e, ERR_UNSUPPORTED, "%s is not memtide's CUDA plugin: it has no memtide_cuda_open", path);
    if (*abi != DEVICE_ABI)
        return err_set(e, ERR_UNSUPPORTED, "%s was built for another version of memtide: build both again", path);
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
