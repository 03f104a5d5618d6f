#include "plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where plugins are, as seen from the folder of the program or of the Lua module: beside it in a build, in `place`
 * where it is installed. `place` counts only in a folder whose name ends in `folder`: seen from another one it could be
 * a folder that anybody may write to. */
static const struct { const char *folder, *place; } places[] = {
    {"", ""}, {"bin/", "../lib/memtide/"}, {"lib/lua/5.4/", "../../memtide/"}};

/* The folder, with its slash, of the running program or, if `module`, of the library that has this code. false: there
 * is none. */
static bool home(bool module, char folder[PLUGIN_PATH]) {
    if (module) {
        Dl_info info;
        struct link_map *map = NULL;
        if (!dladdr1((const void *)places, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return false;
        if (!map->l_name[0]) return false; /* this code is a part of the program */
        if (snprintf(folder, PLUGIN_PATH, "%s", map->l_name) >= PLUGIN_PATH) return false;
    } else {
        ssize_t n = readlink("/proc/self/exe", folder, PLUGIN_PATH - 1);
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

bool plugin_find(const Plugin *p, char path[PLUGIN_PATH], char looked[PLUGIN_PATH]) {
    const char *asked = getenv(p->variable);
    char folder[PLUGIN_PATH];
    if (asked && asked[0]) {
        snprintf(path, PLUGIN_PATH, "%s", asked);
        snprintf(looked, PLUGIN_PATH, "%s, which %s names", asked, p->variable);
        return access(path, F_OK) == 0;
    }
    size_t told = (size_t)snprintf(looked, PLUGIN_PATH, "%s", p->file);
    for (int module = 0; module < 2; module++) {
        if (!home(module, folder)) continue;
        for (size_t i = 0; i < ARRAY_LEN(places); i++) {
            if (!ends_in(folder, places[i].folder)) continue;
            int n = snprintf(path, PLUGIN_PATH, "%s%s%s", folder, places[i].place, p->file);
            if (n < PLUGIN_PATH && access(path, F_OK) == 0) return true;
            const char *joint = told == strlen(p->file) ? " in " : " and ";
            if (told < PLUGIN_PATH)
                told += (size_t)snprintf(looked + told, PLUGIN_PATH - told, "%s%s%s", joint, folder, places[i].place);
        }
    }
    return false;
}

int plugin_load(const Plugin *p, void **library, void **entry, Err *e) {
    char path[PLUGIN_PATH], looked[PLUGIN_PATH];
    if (!plugin_find(p, path, looked)) return err_set(e, ERR_UNSUPPORTED, "the %s is missing: looked for %s", p->what, looked);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*library) return err_set(e, ERR_UNSUPPORTED, "the %s cannot be loaded: %s", p->what, dlerror());
    *entry = dlsym(*library, p->entry);
    const uint64_t *abi = dlsym(*library, p->abi_name);
    if (!*entry || !abi)
        return err_set(e, ERR_UNSUPPORTED, "%s is not memtide's %s: it has no %s", path, p->what, p->entry);
    if (*abi == p->abi) return OK;
    return err_set(e, ERR_UNSUPPORTED, "%s was built for another version of memtide: build both again", path);
}
