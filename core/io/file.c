#include "file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { TEMPORARY_NAMES = 100, BUFFER = 1 << 16 };

struct NewFile {
    char *asked;       /* the name that messages use */
    char *path;        /* the final name; not a link */
    char *temporary;   /* NULL: written in place, no rename */
    int fd;
    size_t n;          /* bytes in `buffer` that are not written yet */
    char buffer[BUFFER];
};

static int no_memory(const char *path, Err *e) { return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", path); }

static int file_error(const char *path, Err *e) {
    return err_set(e, ERR_FILE, "cannot write %s: %s", path, strerror(errno));
}

static int refuse(const char *path, const char *why, Err *e) {
    return err_set(e, ERR_FILE, "cannot write %s: it is %s", path, why);
}

static bool is_output(const struct stat *found) {
    struct stat output;
    return !fstat(STDOUT_FILENO, &output) && output.st_dev == found->st_dev && output.st_ino == found->st_ino;
}

/* A new file in the folder of f->path, so that it can be renamed to it. O_EXCL follows no link. */
static int open_beside(NewFile *f, Err *e) {
    size_t room = strlen(f->path) + sizeof ".tmp99";
    f->temporary = mem_new(room);
    if (!f->temporary) return no_memory(f->asked, e);
    for (int i = 0; i < TEMPORARY_NAMES && f->fd < 0; i++) {
        snprintf(f->temporary, room, "%s.tmp%d", f->path, i);
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno != EEXIST) break;
    }
    if (f->fd >= 0) return OK;
    mem_free(f->temporary); /* that file is not ours: file_discard must not remove it */
    f->temporary = NULL;
    return file_error(f->asked, e);
}

/* A new file for the regular file that f->asked is or leads to, with its permissions. */
static int open_in_place(NewFile *f, mode_t mode, Err *e) {
    char *real = realpath(f->asked, NULL);
    if (!real) return file_error(f->asked, e);
    f->path = mem_copy(real, strlen(real) + 1);
    free(real);
    int code = f->path ? open_beside(f, e) : no_memory(f->asked, e);
    if (!code && fchmod(f->fd, mode & 0777)) code = file_error(f->asked, e);
    return code;
}

/* stat has just failed on f->asked: errno says why. */
static int open_new(NewFile *f, Err *e) {
    struct stat link;
    if (errno != ENOENT) return file_error(f->asked, e);
    if (!lstat(f->asked, &link)) return refuse(f->asked, "a symbolic link to a file that is not there", e);
    f->path = mem_copy(f->asked, strlen(f->asked) + 1);
    return f->path ? open_beside(f, e) : no_memory(f->asked, e);
}

/* Opens standard output, a device or a FIFO itself; `found` is what stat says of f->asked. */
static int open_as_it_is(NewFile *f, const struct stat *found, Err *e) {
    struct stat opened;
    f->fd = is_output(found) ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                             : open(f->asked, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &opened)) return file_error(f->asked, e);
    if (opened.st_dev == found->st_dev && opened.st_ino == found->st_ino) return OK;
    return refuse(f->asked, "another file than a moment ago", e);
}

static int open_file(NewFile *f, Err *e) {
    struct stat found;
    if (stat(f->asked, &found)) return open_new(f, e);
    if (is_output(&found) || S_ISCHR(found.st_mode) || S_ISFIFO(found.st_mode)) return open_as_it_is(f, &found, e);
    if (S_ISREG(found.st_mode)) return open_in_place(f, found.st_mode, e);
    return refuse(f->asked, S_ISDIR(found.st_mode) ? "a folder" : "no file", e);
}

int file_new(const char *path, NewFile **out, Err *e) {
    NewFile *f = mem_new(sizeof *f);
    *out = NULL;
    if (!f) return no_memory(path, e);
    f->fd = -1;
    f->asked = mem_copy(path, strlen(path) + 1);
    int code = f->asked ? open_file(f, e) : no_memory(path, e);
    if (code) file_discard(f);
    else *out = f;
    return code;
}

static int write_all(const NewFile *f, const char *bytes, size_t n, Err *e) {
    while (n) {
        ssize_t wrote = write(f->fd, bytes, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return file_error(f->asked, e);
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return OK;
}

static int flush(NewFile *f, Err *e) {
    size_t n = f->n;
    f->n = 0;
    return write_all(f, f->buffer, n, e);
}

int file_write(NewFile *f, const void *bytes, size_t n, Err *e) {
    assert(f->fd >= 0 && f->n <= BUFFER);
    if (n > BUFFER - f->n) {
        int code = flush(f, e);
        if (code) return code;
    }
    if (n > BUFFER) return write_all(f, bytes, n, e);
    memcpy(f->buffer + f->n, bytes, n);
    f->n += n;
    return OK;
}

/* A new name is on the disk only when the folder is. */
static int sync_folder(const NewFile *f, Err *e) {
    char *slash = strrchr(f->path, '/');
    if (slash) slash[slash == f->path] = 0;
    int fd = open(slash ? f->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 || fsync(fd) ? file_error(f->asked, e) : OK;
    if (fd >= 0) close(fd);
    return code;
}

int file_finish(NewFile *f, bool sync, Err *e) {
    int code = flush(f, e);
    if (!code && sync && f->temporary && fsync(f->fd)) code = file_error(f->asked, e);
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) && !code) code = file_error(f->asked, e);
    if (!code && f->temporary) {
        if (rename(f->temporary, f->path)) code = file_error(f->asked, e);
        else {
            mem_free(f->temporary);
            f->temporary = NULL;
            if (sync) code = sync_folder(f, e);
        }
    }
    file_discard(f);
    return code;
}

void file_discard(NewFile *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->temporary) unlink(f->temporary);
    mem_free(f->temporary);
    mem_free(f->path);
    mem_free(f->asked);
    mem_free(f);
}

bool file_is_output(const NewFile *f) {
    struct stat found;
    return !f->temporary && !fstat(f->fd, &found) && is_output(&found);
}
