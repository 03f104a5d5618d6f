/* faults.c: what goes wrong when a test says so, for LD_PRELOAD.
 *
 *   DIE_AT=3 DIE_WHEN=before     a worker dies by SIGKILL (DIE_SIGNAL: another number) at its third message: before it,
 *                                in the middle of it (half) or after it
 *   DIE_ONCE=FILE                but only one worker: the one that can remove this file
 *   STOP_WORKER=1                a worker stops before it has begun
 *   FLOCK_ERRNO=37               flock fails
 *   FULL=FILE                    while this file is there, no other file on a disk can grow: ENOSPC */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHANNEL_FD = 3 };

static bool is_worker(void) {
    char text[64] = "";
    FILE *f = fopen("/proc/self/cmdline", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    const char *name = text, *first = name + strlen(name) + 1;
    return first < text + n && !strcmp(first, "--worker");
}

__attribute__((constructor)) static void begin(void) {
    if (getenv("STOP_WORKER") && is_worker()) raise(SIGSTOP);
}

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static int number_in(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

static bool is_time(const char *when) {
    static int message;
    const char *wanted = getenv("DIE_WHEN"), *once = getenv("DIE_ONCE");
    if (!strcmp(when, "before")) message++;
    if (message != number_in("DIE_AT", 0) || !wanted || strcmp(wanted, when)) return false;
    return !once || !unlink(once);
}

ssize_t send(int fd, const void *data, size_t n, int flags) {
    typedef ssize_t Send(int, const void *, size_t, int);
    static Send *next;
    static int worker = -1;
    if (!next) *(void **)&next = real("send");
    if (worker < 0) worker = is_worker();
    if (fd != CHANNEL_FD || !worker) return next(fd, data, n, flags);
    if (is_time("before")) raise(number_in("DIE_SIGNAL", SIGKILL));
    if (is_time("half")) {
        next(fd, data, n / 2, flags);
        raise(number_in("DIE_SIGNAL", SIGKILL));
    }
    ssize_t done = next(fd, data, n, flags);
    if (is_time("after")) raise(number_in("DIE_SIGNAL", SIGKILL));
    return done;
}

int flock(int fd, int operation) {
    typedef int Flock(int, int);
    static Flock *next;
    if (!next) *(void **)&next = real("flock");
    if (!getenv("FLOCK_ERRNO")) return next(fd, operation);
    errno = number_in("FLOCK_ERRNO", 0);
    return -1;
}

static bool is_full(int fd) {
    struct stat st;
    const char *full = getenv("FULL");
    return full && !access(full, F_OK) && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink;
}

/* Lua's files go by stdio, whose own writes cannot be met. */
size_t fwrite(const void *data, size_t size, size_t n, FILE *f) {
    typedef size_t Fwrite(const void *, size_t, size_t, FILE *);
    static Fwrite *next;
    if (!next) *(void **)&next = real("fwrite");
    if (!is_full(fileno(f))) return next(data, size, n, f);
    errno = ENOSPC;
    return 0;
}

ssize_t write(int fd, const void *data, size_t n) {
    typedef ssize_t Write(int, const void *, size_t);
    static Write *next;
    if (!next) *(void **)&next = real("write");
    if (!is_full(fd)) return next(fd, data, n);
    errno = ENOSPC;
    return -1;
}
