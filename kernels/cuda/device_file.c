/* device_file.c: reads descriptions of GPUs that are not here: devices/NAME.json beside the plugin. They have cuDNN's
 * own form of a device's properties, as `memtide devices --describe` writes it on such a GPU. cuDNN gets the whole
 * text; here only the numbers are read that memtide itself plans with. */
#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "base/mem.h"

enum { LONGEST = 1 << 16 }; /* bytes of a description */
static const long long MOST_BYTES = 1LL << 60; /* of a GPU's memory: sums of such numbers still fit */

/* the characters of a name: none leads out of the folder */
static const char NAME[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/* The text after "name": in a flat JSON object, or NULL. */
static const char *field(const char *json, const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *at = strstr(json, quoted);
    if (!at) return NULL;
    at += strlen(quoted);
    at += strspn(at, " \t\r\n");
    return *at == ':' ? at + 1 + strspn(at + 1, " \t\r\n") : NULL;
}

static int number(const char *path, const char *json, const char *name, long long most, long long *value, Err *e) {
    const char *at = field(json, name);
    char *end = NULL;
    *value = at && isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : 0;
    if (*value > 0 && *value <= most && strchr(", \t\r\n}", *end)) return OK;
    return err_set(e, ERR_FORMAT, "%s: expected \"%s\": a whole number from 1 to %lld, found %.20s", path, name, most,
                   at ? at : "nothing");
}

static int text(const char *path, const char *json, const char *name, char *value, size_t size, Err *e) {
    const char *at = field(json, name);
    size_t n = at && *at == '"' ? strcspn(at + 1, "\"\n") : 0;
    bool fits = n > 0 && n < size && at[1 + n] == '"';
    for (size_t i = 1; i <= n; i++) fits = fits && !iscntrl((unsigned char)at[i]);
    if (!fits)
        return err_set(e, ERR_FORMAT, "%s: expected \"%s\": a text of 1 to %zu bytes, found %.20s", path, name,
                       size - 1, at ? at : "nothing");
    memcpy(value, at + 1, n);
    value[n] = 0;
    return OK;
}

static int parse(const char *path, CudaModel *m, Err *e) {
    long long capability = 0, processors = 0, l2 = 0, memory = 0;
    int code = text(path, m->description, "deviceName", m->name, sizeof m->name, e);
    if (!code) code = number(path, m->description, "deviceVer", INT_MAX, &capability, e); /* 900 */
    if (!code) code = number(path, m->description, "multiProcessorCount", INT_MAX, &processors, e);
    if (!code) code = number(path, m->description, "l2CacheSize", MOST_BYTES, &l2, e);
    if (!code) code = number(path, m->description, "totalGlobalMem", MOST_BYTES, &memory, e);
    m->capability = (int)(capability / 10);
    m->processors = (int)processors;
    m->l2_bytes = (size_t)l2;
    m->memory_bytes = (size_t)memory;
    return code;
}

static int load(const char *path, char **content, Err *e) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_UNSUPPORTED, "there is no description %s; `memtide devices` lists what there is", path);
    char *json = mem_new(LONGEST);
    size_t n = json ? fread(json, 1, LONGEST, f) : 0;
    fclose(f);
    *content = json;
    if (!json) return err_set(e, ERR_HOST_MEMORY, "no host memory for %d bytes of a description", LONGEST);
    if (n < LONGEST && memchr(json, 0, n) == NULL) return OK;
    return err_set(e, ERR_FORMAT, "%s: expected a text of less than %d bytes", path, LONGEST);
}

int device_file_read(const char *name, CudaModel *m, Err *e) {
    static const char here;
    if (name[strspn(name, NAME)])
        return err_set(e, ERR_SCRIPT, "expected the number of a GPU or the name of a description, found \"%.40s\"",
                       name);
    Dl_info plugin;
    if (!dladdr(&here, &plugin))
        return err_set(e, ERR_INTERNAL, "the plugin does not know where it lies: %s", dlerror());
    const char *slash = strrchr(plugin.dli_fname, '/');
    char path[1024];
    int folder = slash ? (int)(slash + 1 - plugin.dli_fname) : 0;
    int n = snprintf(path, sizeof path, "%.*sdevices/%s.json", folder, plugin.dli_fname, name);
    if (n < 0 || (size_t)n >= sizeof path) return err_set(e, ERR_UNSUPPORTED, "the name %.40s... is too long", name);
    memset(m, 0, sizeof *m);
    int code = load(path, &m->description, e);
    if (!code) code = parse(path, m, e);
    if (code) {
        mem_free(m->description);
        m->description = NULL;
    }
    return code;
}
