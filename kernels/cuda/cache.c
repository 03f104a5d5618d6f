#include "cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

int cache_path(const char *name, char *path, Err *e) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/';
    if (!own && !(home && home[0]))
        return err_set(e, ERR_FILE, "there is no folder for %s: HOME is not set", name);
    int n = snprintf(path, CACHE_PATH, "%s%s/memtide/%s", own ? cache : home, own ? "" : "/.cache", name);
    return n < CACHE_PATH ? OK : err_set(e, ERR_FILE, "the path of %s is longer than %d bytes", name, CACHE_PATH);
}

static int trouble(const char *path, const char *what, Err *e) {
    return err_set(e, ERR_FILE, "%s: cannot be %s: %s", path, what, strerror(errno));
}

int cache_read(const char *path, char **text, size_t *bytes, Err *e) {
    struct stat st;
    *text = NULL;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        if (f) fclose(f);
        return trouble(path, "read", e);
    }
    *bytes = (size_t)st.st_size;
    *text = mem_new(*bytes + 1);
    bool whole = *text && fread(*text, 1, *bytes, f) == *bytes;
    fclose(f);
    if (whole) return OK;
    int code = *text ? trouble(path, "read", e)
                     : err_set(e, ERR_HOST_MEMORY, "no host memory for the %zu bytes of %s", *bytes, path);
    mem_free(*text);
    *text = NULL;
    return code;
}

/* Makes every folder that `path` leads through. */
static void make_folders(const char *path) {
    char folder[CACHE_PATH];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0777); /* if that fails, so does opening the file, which says why */
    }
}

int cache_write(const char *path, const char *text, size_t bytes, Err *e) {
    char other[CACHE_PATH + 32];
    make_folders(path);
    snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(other, "wb");
    if (!f) return trouble(other, "written", e);
    bool good = fwrite(text, 1, bytes, f) == bytes;
    good = !fflush(f) && !fsync(fileno(f)) && good;
    good = !fclose(f) && good;
    good = good && !rename(other, path);
    if (good) return OK;
    int code = trouble(path, "written", e);
    unlink(other);
    return code;
}
