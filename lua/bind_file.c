/* Files for Lua: new files, which get their name when they are complete, and which files a script may open. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bind.h"
#include "io/file.h"

#define BOX_FILE "memtide.File"

static void release_file(void *content) { file_discard(content); }

/* new_file(path) -> File. If it is closed before it is finished, what was there before stays. */
static int new_file(lua_State *L) {
    Err e;
    NewFile *f;
    const char *path = luaL_checkstring(L, 1);
    Box *box = bind_new(L, BOX_FILE, release_file);
    fflush(stdout); /* the path may be /dev/stdout */
    if (file_new(path, &f, &e)) return bind_fail(L, &e);
    box->content = f;
    return 1;
}

/* file:write(text) -> true */
static int write_text(lua_State *L) {
    Err e;
    size_t n;
    NewFile *f = bind_get(L, 1, BOX_FILE);
    const char *text = luaL_checklstring(L, 2, &n);
    if (file_write(f, text, n, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* file:is_output() -> does it write to standard output? */
static int is_output(lua_State *L) {
    lua_pushboolean(L, file_is_output(bind_get(L, 1, BOX_FILE)));
    return 1;
}

/* file:finish(sync) -> true: the file has its name; with `sync` it is also on the disk */
static int finish(lua_State *L) {
    Err e;
    Box *box = bind_box(L, 1, BOX_FILE);
    NewFile *f = box->content;
    box->content = NULL;
    if (file_finish(f, lua_toboolean(L, 2), &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* ---- files that scripts name */

static const char WEIGHTS[] = ".safetensors"; /* what a script under --safe may write */

/* Real path of the folder that scripts are confined to, with a slash at its end; empty: they may open what the user
 * may. A process is confined once and for all. */
static char confined_to[PATH_MAX + 1];

/* confine(folder): from now on scripts may only name files below it */
static int confine(lua_State *L) {
    const char *folder = luaL_checkstring(L, 1);
    if (*confined_to) return bind_error(L, "the process is confined to %s already", confined_to);
    if (!realpath(folder, confined_to)) {
        Err e;
        *confined_to = '\0';
        err_set(&e, ERR_FILE, "cannot open the folder \"%.200s\": %s", folder, strerror(errno));
        return bind_fail(L, &e);
    }
    assert(strlen(confined_to) < PATH_MAX);
    if (strcmp(confined_to, "/")) strcat(confined_to, "/");
    lua_pushboolean(L, true);
    return 1;
}

/* The path without links. A file need not exist, but its folder must. */
static bool real_path(const char *path, char real[PATH_MAX]) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat link;
    if (realpath(path, real)) return true;
    if (errno != ENOENT || !lstat(path, &link)) return false; /* a link to nothing: it may lead anywhere later */
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder || !strcmp(name, "..") || !strcmp(name, ".")) return false;
    snprintf(folder, sizeof folder, "%.*s", (int)n, path);
    if (!realpath(n ? folder : ".", real)) return false;
    size_t length = strlen(real);
    return snprintf(real + length, PATH_MAX - length, "%s%s", length > 1 ? "/" : "", name) < (int)(PATH_MAX - length);
}

static bool ends_in(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

const char *bind_path(lua_State *L, int index, const char *what, bool write) {
    char real[PATH_MAX];
    size_t n;
    const char *path = bind_text_at(L, index, what);
    lua_tolstring(L, index, &n);
    if (n != strlen(path)) bind_error(L, "%s: expected the path of a file, found a zero byte in it", what);
    if (!*confined_to) return path;
    /* one message whether the file exists or not: a confined script must not learn what lies outside */
    if (!real_path(path, real) || strncmp(real, confined_to, strlen(confined_to)))
        bind_error(L, "%s: \"%s\" is no file below %s, to which --safe keeps the script", what, path, confined_to);
    if (write && !(ends_in(path, WEIGHTS) && ends_in(real, WEIGHTS)))
        bind_error(L, "%s: \"%s\": under --safe a script writes %s only", what, path, WEIGHTS);
    return path;
}

/* check_path(path, what): raises unless a script may read that file */
static int check_path(lua_State *L) {
    bind_path(L, 1, luaL_checkstring(L, 2), false);
    return 0;
}

/* can_read(path, what) -> is there a file that can be read? */
static int can_read(lua_State *L) {
    lua_pushboolean(L, !access(bind_path(L, 1, luaL_checkstring(L, 2), false), R_OK));
    return 1;
}

/* is_folder(path, what) -> is it a folder? */
static int is_folder(lua_State *L) {
    struct stat found;
    const bool is = !stat(bind_path(L, 1, luaL_checkstring(L, 2), false), &found) && S_ISDIR(found.st_mode);
    lua_pushboolean(L, is);
    return 1;
}

static int is_shown(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* files_in(path) -> {names in the folder, sorted, without those that begin with a point}; nil, reason */
static int files_in(lua_State *L) {
    struct dirent **found = NULL;
    const int n = scandir(bind_path(L, 1, "files_in", false), &found, is_shown, alphasort);
    if (n < 0) return luaL_fileresult(L, 0, lua_tostring(L, 1));
    lua_createtable(L, n, 0); /* out of memory, from here on, ends the program: the names need no care */
    for (int i = 0; i < n; i++) {
        lua_pushstring(L, found[i]->d_name);
        lua_rawseti(L, -2, i + 1);
        free(found[i]);
    }
    free(found);
    return 1;
}

void bind_open_file(lua_State *L) {
    static const luaL_Reg methods[] = {{"write", write_text}, {"is_output", is_output}, {"finish", finish},
        {NULL, NULL}};
    static const luaL_Reg functions[] = {{"new_file", new_file}, {"confine", confine},
        {"check_path", check_path}, {"can_read", can_read}, {"is_folder", is_folder}, {"files_in", files_in},
        {NULL, NULL}};
    bind_type(L, BOX_FILE, methods);
    luaL_setfuncs(L, functions, 0);
}
