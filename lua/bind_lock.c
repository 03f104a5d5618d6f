/* Locks of results files: only one sweep at a time writes to each. A sweep makes a file beside the results and locks
 * it; on file systems without locks it owns the results as long as that file exists, which it made and will remove. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bind.h"
#include "io/csv.h"
#include "base/mem.h"

#define BOX_LOCK "memtide.Lock"

static int fail(lua_State *L, const char *what, const char *path) {
    Err e;
    err_set(&e, ERR_FILE, "cannot %s \"%.200s\": %s", what, path, strerror(errno));
    return bind_fail(L, &e);
}

typedef struct Lock {
    int fd;
    pid_t owner;    /* 0: not ours */
    bool by_name;   /* the file system has no locks */
    char path[];
} Lock;

static void release_lock(void *content) {
    Lock *l = content;
    if (l->fd >= 0 && l->owner == getpid()) unlink(l->path);
    if (l->fd >= 0) close(l->fd);
    mem_free(l);
}

/* 1: the lock is ours, 0: another process has it, -1: the file cannot be made or locked (errno) */
static int try_lock(Lock *l) {
    for (;;) {
        struct stat held, named;
        l->fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        bool made = l->fd >= 0;
        if (!made && errno == EEXIST) {
            l->fd = open(l->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
            if (l->fd < 0 && errno == ENOENT) continue; /* its holder has just removed it */
        }
        if (l->fd < 0) return -1;
        if (flock(l->fd, LOCK_EX | LOCK_NB)) {
            l->by_name = csv_no_locks(errno);
            return l->by_name ? made : errno == EWOULDBLOCK ? 0 : -1;
        }
        /* its holder may have removed the file after it was opened here: a lock on it would then keep nobody out */
        if (!fstat(l->fd, &held) && !stat(l->path, &named) && held.st_ino == named.st_ino) return 1;
        close(l->fd);
    }
}

/* lock(path, what) -> Lock, held until it is closed or the process ends. The file at `path` says which process holds
 * it; `what` is the file that it protects, for messages. nil, message, code: another process holds it. */
static int lock(lua_State *L) {
    Err e;
    char holder[HOST_NAME_MAX + 32] = "", host[HOST_NAME_MAX + 1] = "";
    size_t n;
    const char *path = luaL_checklstring(L, 1, &n), *what = luaL_checkstring(L, 2);
    Box *box = bind_new(L, BOX_LOCK, release_lock);
    Lock *l = mem_new(sizeof *l + n + 1);
    if (!l) return bind_error(L, "out of host memory");
    memcpy(l->path, path, n + 1);
    l->fd = -1;
    box->content = l;
    int found = try_lock(l);
    if (found < 0) return fail(L, errno == ELOOP ? "lock by a symbolic link" : "create", path);
    if (!found) {
        ssize_t got = pread(l->fd, holder, sizeof holder - 1, 0);
        holder[got > 0 ? strcspn(holder, "\n") : 0] = '\0';
        err_set(&e, ERR_FILE, "\"%.200s\" is in use by process %s%s%.200s%s", what, *holder ? holder : "?",
                l->by_name ? "; this file system has no locks: if that process has ended, remove \"" : "",
                l->by_name ? path : "", l->by_name ? "\"" : "");
        return bind_fail(L, &e);
    }
    l->owner = getpid();
    gethostname(host, sizeof host - 1);
    int length = snprintf(holder, sizeof holder, "%ld on %s\n", (long)l->owner, host);
    if (ftruncate(l->fd, 0) || pwrite(l->fd, holder, (size_t)length, 0) != length) return fail(L, "write", path);
    return 1;
}

void bind_open_lock(lua_State *L) {
    static const luaL_Reg functions[] = {{"lock", lock}, {NULL, NULL}};
    bind_type(L, BOX_LOCK, NULL);
    luaL_setfuncs(L, functions, 0);
}
