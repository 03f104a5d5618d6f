#include "tuning.h"

#include <ctype.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* Loads the picks that came with the program. Each line names its device, so all files may be read. */
static int load_shipped(Tuned *picks, Err *e) {
    static const char here;
    Dl_info plugin;
    char pattern[CACHE_PATH];
    glob_t found;
    int code = OK;
    if (!dladdr(&here, &plugin) || !plugin.dli_fname) return OK;
    const char *slash = strrchr(plugin.dli_fname, '/');
    snprintf(pattern, sizeof pattern, "%.*sdevices/*.picks", slash ? (int)(slash + 1 - plugin.dli_fname) : 0,
             plugin.dli_fname);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t k = 0; k < found.gl_pathc && !code; k++) code = tuned_load(picks, found.gl_pathv[k], e);
    globfree(&found);
    return code;
}

static int own_path(const CudaDevice *c, char *path, Err *e) {
    const char *given = getenv("MEMTIDE_PICKS");
    char name[sizeof c->model.name + 16];
    if (given && given[0]) return snprintf(path, CACHE_PATH, "%s", given) < CACHE_PATH ? OK
        : err_set(e, ERR_FILE, "MEMTIDE_PICKS: expected a path of less than %d bytes", CACHE_PATH);
    snprintf(name, sizeof name, "picks-%s.txt", c->model.name);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '.') *at = '-';
    return cache_path(name, path, e);
}

int tuning_of(CudaDevice *c, Tuning **out, Err *e) {
    if (c->tuning) {
        *out = c->tuning;
        return OK;
    }
    Tuning *p = mem_new(sizeof *p);
    if (!p) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    int code = load_shipped(&p->picks, e);
    /* without a place for picks there can be no race, but there can be a plan */
    if (!code && !own_path(c, p->path, NULL) && !access(p->path, F_OK)) code = tuned_load(&p->picks, p->path, e);
    if (code) {
        tuning_free(p);
        return code;
    }
    *out = c->tuning = p;
    return OK;
}

void tuning_free(Tuning *p) {
    if (p) tuned_free(&p->picks);
    mem_free(p);
}

int tuning_ask(CudaDevice *c, size_t version, const char *op, size_t limit, const Pick **pick, bool *race, Err *e) {
    Tuning *p;
    int code = tuning_of(c, &p, e);
    if (code) return code;
    *pick = tuned_find(&p->picks, c->model.name, version, op, limit);
    *race = p->racing && !(*pick && (*pick)->limit == limit);
    return OK;
}

void tuning_warning(CudaDevice *c, char *text, size_t size) {
    Tuning *p;
    Err e = {0, ""};
    int code = tuning_of(c, &p, &e);
    if (!code && p->picks.damaged > 1)
        snprintf(text, size, "%s; %d lines are ignored in all", p->picks.problem.text, p->picks.damaged);
    else snprintf(text, size, "%s", code ? e.text : p->picks.damaged ? p->picks.problem.text : "");
}

int tuning_keep(CudaDevice *c, const Pick *pick, Err *e) {
    Pick mine = *pick;
    Tuning *p;
    int code = tuning_of(c, &p, e);
    if (code) return code;
    snprintf(mine.device, sizeof mine.device, "%s", c->model.name);
    /* picks that another process has added meanwhile stay */
    if (!access(p->path, F_OK)) code = tuned_load(&p->picks, p->path, e);
    if (!code) code = tuned_set(&p->picks, &mine, e);
    return code ? code : tuned_save(&p->picks, p->path, e);
}

int cuda_tune(Device *d, DeviceText *put, void *arg, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    Tuning *p;
    int code = tuning_of(c, &p, e);
    if (!code && !p->path[0]) code = own_path(c, p->path, e);
    if (code) return code;
    p->racing = true;
    put(arg, p->path);
    if (p->picks.damaged) put(arg, p->picks.problem.text);
    return OK;
}
