/* Worker processes for scripts: a worker is this program, started again with a socket, a log, and a note that says what
 * it is doing.
 *
 *   descriptor   in the worker
 *   0            /dev/null
 *   1, 2         the log: an unnamed file
 *   3            the socket; it closes when the process on the other side ends
 *   4            the note: a page in memory, written without waking the reader
 *
 * A group of ranks is this program started through another one (mpirun): its standard input and output are the socket, and
 * standard error the log; it has no note.
 *
 * A worker leads a process group, so that the processes that it started end with it. It ends when its parent ends. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bind.h"
#include "base/affinity.h"
#include "base/mem.h"

#define BOX_PROCESS "memtide.Process"
#define BOX_CHANNEL "memtide.Channel"

enum { CHANNEL_FD = 3, NOTE_FD = 4, FIRST_FREE_FD = 10, NOTE_BYTES = 128, WORKERS_MAX = 256, ARGUMENTS_MAX = 32 };

static int fail_errno(lua_State *L, const char *what, const char *path) {
    Err e;
    if (path) err_set(&e, ERR_FILE, "cannot %s \"%.200s\": %s", what, path, strerror(errno));
    else err_set(&e, ERR_FILE, "cannot %s: %s", what, strerror(errno));
    return bind_fail(L, &e);
}

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* clock() -> seconds since some moment; nobody sets this clock */
static int clock_now(lua_State *L) {
    lua_pushnumber(L, (lua_Number)seconds_now());
    return 1;
}

/* ---- starting */

typedef struct Process {
    pid_t pid;              /* 0: not started, or it has ended and was waited for */
    int channel, note, log; /* descriptors; -1: closed */
    int status;             /* of waitpid, when pid is 0 */
    char *out;              /* out[at..n) is to be sent as soon as the worker takes it */
    int at, n, cap;
} Process;

/* Moves a descriptor above the numbers that a worker's own will have, and marks it to be closed in other workers. */
static int move_up(int fd) {
    if (fd < 0) return -1;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD), why = errno;
    close(fd);
    errno = why == EINVAL ? EMFILE : why; /* EINVAL: the limit of open files is below that number */
    return moved;
}

static const char *log_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}

static int unnamed_file(void) {
    char path[512];
    int n = snprintf(path, sizeof path, "%s/memtide.XXXXXX", log_folder());
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = mkostemp(path, O_APPEND | O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

static void limit_resource(int resource, rlim_t most) {
    struct rlimit limit;
    if (getrlimit(resource, &limit)) return;
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    setrlimit(resource, &limit);
}

/* Runs in the forked child, where only calls that are safe in a signal handler are allowed. */
static void become_worker(const Process *p, int channel, rlim_t memory, pid_t parent, bool launched, char **arguments) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGUSR1, SIG_IGN); /* it is meant for the parent, but a batch system sends it to every process of a job */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126); /* the parent died before PR_SET_PDEATHSIG could tell of it */
    limit_resource(RLIMIT_CORE, 0);
    if (memory) limit_resource(RLIMIT_DATA, memory);
    if (launched) {
        if (dup2(channel, 0) >= 0 && dup2(channel, 1) >= 0 && dup2(p->log, 2) >= 0) execvp(arguments[0], arguments);
        _exit(127);
    }
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(p->log, 1) < 0 || dup2(p->log, 2) < 0 ||
        dup2(channel, CHANNEL_FD) < 0 || dup2(p->note, NOTE_FD) < 0)
        _exit(126);
    if (nothing > NOTE_FD) close(nothing);
    /* the same program file, even if a newer one has been built in its place */
    execv("/proc/self/exe", arguments);
    _exit(127);
}

/* memory: bytes of data that the worker may have, 0: no limit. launched: arguments[0] is another program. -1: failed
 * (errno). */
static int start(Process *p, rlim_t memory, bool launched, char **arguments) {
    assert(p->log >= 0 && p->pid == 0);
    int pair[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return -1;
    int theirs = move_up(pair[1]);
    p->channel = move_up(pair[0]);
    p->note = move_up(memfd_create("memtide-note", MFD_CLOEXEC));
    NumberSet places;
    const bool bound = affinity_places(&places);
    pid_t parent = getpid(), pid = -1;
    if (theirs >= 0 && p->channel >= 0 && p->note >= 0) pid = fork();
    if (pid == 0 && bound) affinity_take(&places);
    if (pid == 0) become_worker(p, theirs, memory, parent, launched, arguments);
    int failed = errno;
    close_fd(&theirs);
    errno = failed;
    if (pid < 0) return -1;
    setpgid(pid, pid); /* both sides do it: neither may wait for the other */
    p->pid = pid;
    return 0;
}

/* To the worker and all processes that it started. A pid above 0 was not waited for, so no other process has it yet. */
static void send_signal(const Process *p, int number) {
    if (p->pid > 0 && kill(-p->pid, number)) kill(p->pid, number);
}

/* Has the worker ended within this time? If so, it was waited for, and the processes that it started are killed. */
static bool wait_for(Process *p, double seconds) {
    double end = seconds_now() + seconds;
    const struct timespec pause = {0, 1000000};
    while (p->pid > 0) {
        pid_t found = waitpid(p->pid, &p->status, WNOHANG);
        if (found == p->pid) {
            kill(-p->pid, SIGKILL);
            p->pid = 0;
        } else if ((found < 0 && errno != EINTR) || seconds_now() >= end) {
            return false;
        } else {
            nanosleep(&pause, NULL);
        }
    }
    return true;
}

static void release_process(void *content) {
    enum { PATIENCE = 1 }; /* seconds: a process that is stuck in a driver may never end */
    Process *p = content;
    send_signal(p, SIGKILL);
    wait_for(p, PATIENCE);
    close_fd(&p->channel);
    close_fd(&p->note);
    close_fd(&p->log);
    mem_free(p->out);
    mem_free(p);
}

/* is_root() -> is it the superuser's process? */
static int is_root(lua_State *L) {
    lua_pushboolean(L, geteuid() == 0);
    return 1;
}

/* program() -> the path of this program's file; nil: it cannot be told */
static int program_path(lua_State *L) {
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0 || (size_t)n >= sizeof path) return 0;
    lua_pushlstring(L, path, (size_t)n);
    return 1;
}

/* spawn({argument, ...}, memory, launched) -> Process: starts this program with these arguments and at most `memory` bytes of
 * data (0: no limit). launched: the first argument is the program that is started */
static int spawn(lua_State *L) {
    char *arguments[ARGUMENTS_MAX + 2] = {NULL};
    char name[] = "memtide";
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_Integer memory = luaL_optinteger(L, 2, 0);
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > ARGUMENTS_MAX) return bind_error(L, "spawn: at most %d arguments", ARGUMENTS_MAX);
    luaL_checkstack(L, ARGUMENTS_MAX + 4, NULL);
    const bool launched = lua_toboolean(L, 3);
    const int first = launched ? 0 : 1;
    arguments[0] = name;
    for (int i = 0; i < (int)n; i++) {
        lua_rawgeti(L, 1, i + 1);
        arguments[first + i] = (char *)luaL_checkstring(L, -1); /* execv promises not to change them */
    }
    Box *box = bind_new(L, BOX_PROCESS, release_process);
    Process *p = mem_new(sizeof *p);
    if (!p) return bind_error(L, "out of host memory");
    p->channel = p->note = p->log = -1;
    box->content = p;
    fflush(NULL);
    p->log = move_up(unnamed_file());
    if (p->log < 0) return fail_errno(L, "create a worker's log in", log_folder());
    return start(p, (rlim_t)memory, launched, arguments) ? fail_errno(L, "start a worker process", NULL) : 1;
}

/* ---- talking */

static Process *process_at(lua_State *L) { return bind_get(L, 1, BOX_PROCESS); }

static int send_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t done = send(fd, data, n, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

/* Pushes the next bytes: "" when there are none now, nothing at the end of the stream. Returns how many values it
 * pushed. */
static int receive(lua_State *L, int fd, int flags) {
    char bytes[65536];
    ssize_t n;
    do n = recv(fd, bytes, sizeof bytes, flags);
    while (n < 0 && errno == EINTR && !(flags & MSG_DONTWAIT));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) n = 0;
    else if (n <= 0) return 0;
    lua_pushlstring(L, bytes, (size_t)n);
    return 1;
}

/* Sends as much as the worker takes now. If it has closed its end, the rest is dropped. */
static void send_some(Process *p) {
    assert(p->at <= p->n);
    while (p->at < p->n) {
        ssize_t done = send(p->channel, p->out + p->at, (size_t)(p->n - p->at), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN) return;
        if (done <= 0) break;
        p->at += (int)done;
    }
    mem_free(p->out);
    p->out = NULL;
    p->at = p->n = p->cap = 0;
}

/* process:send(bytes): bytes that the worker does not take at once (it may be stopped) are sent by poll */
static int process_send(lua_State *L) {
    size_t n;
    const char *data = luaL_checklstring(L, 2, &n);
    Process *p = process_at(L);
    if (n > INT32_MAX / 4 || p->n > INT32_MAX / 4 || !mem_grow(&p->out, &p->cap, p->n + (int)n, 1))
        return bind_error(L, "out of host memory for a message");
    memcpy(p->out + p->n, data, n);
    p->n += (int)n;
    send_some(p);
    return 0;
}

/* process:receive() -> bytes, "" when there are none yet; nil: the worker has ended */
static int process_receive(lua_State *L) { return receive(L, process_at(L)->channel, MSG_DONTWAIT); }

/* process:note() -> the worker's last note: what it is doing */
static int process_note(lua_State *L) {
    char text[NOTE_BYTES] = "";
    ssize_t n = pread(process_at(L)->note, text, sizeof text - 1, 0);
    lua_pushlstring(L, text, n > 0 ? strnlen(text, (size_t)n) : 0);
    return 1;
}

/* ---- signals that stop a sweep */

static const int CAUGHT[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
enum { CAUGHT_COUNT = sizeof CAUGHT / sizeof *CAUGHT };

/* Global, because a process has one set of signal handlers, and a handler gets no argument. */
static struct {
    volatile sig_atomic_t seen; /* 0: none */
    bool on;
    sigset_t mask_before;
    struct sigaction before[CAUGHT_COUNT];
} catching;

static void on_signal(int number) { catching.seen = number; }

/* catch_signals(): from now on these signals are delivered in poll only. Signals that are ignored (nohup) stay so. */
static int catch_signals(lua_State *L) {
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;
    (void)L;
    if (catching.on) return 0;
    sigemptyset(&blocked);
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CAUGHT_COUNT; i++) {
        sigaction(CAUGHT[i], NULL, &catching.before[i]);
        if (catching.before[i].sa_handler == SIG_IGN) continue;
        sigaddset(&blocked, CAUGHT[i]);
        sigaction(CAUGHT[i], &action, NULL);
    }
    sigprocmask(SIG_BLOCK, &blocked, &catching.mask_before);
    catching.seen = 0;
    catching.on = true;
    return 0;
}

/* restore_signals(): undoes catch_signals */
static int restore_signals(lua_State *L) {
    (void)L;
    if (!catching.on) return 0;
    for (int i = 0; i < CAUGHT_COUNT; i++) sigaction(CAUGHT[i], &catching.before[i], NULL);
    sigprocmask(SIG_SETMASK, &catching.mask_before, NULL);
    catching.on = false;
    return 0;
}

/* poll({Process, ...}, seconds) -> true: a worker has sent something or has ended, false: the time is over; and the
 * name of a signal that was caught, if any */
static int poll_all(lua_State *L) {
    struct pollfd fds[WORKERS_MAX];
    Process *process[WORKERS_MAX];
    luaL_checktype(L, 1, LUA_TTABLE);
    double seconds = (double)luaL_checknumber(L, 2);
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > WORKERS_MAX) return bind_error(L, "poll: at most %d workers", WORKERS_MAX);
    for (int i = 0; i < (int)n; i++) {
        lua_rawgeti(L, 1, i + 1);
        process[i] = bind_get(L, -1, BOX_PROCESS);
        fds[i] = (struct pollfd){.fd = process[i]->channel, .events = process[i]->n ? POLLIN | POLLOUT : POLLIN};
        lua_pop(L, 1);
    }
    if (!(seconds > 0)) seconds = 0;
    if (seconds > 3600) seconds = 3600;
    struct timespec wait = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    int ready = ppoll(fds, (nfds_t)n, &wait, catching.on ? &catching.mask_before : NULL);
    int number = catching.seen;
    catching.seen = 0;
    for (int i = 0; ready > 0 && i < (int)n; i++)
        if (fds[i].revents & POLLOUT) send_some(process[i]);
    lua_pushboolean(L, ready > 0);
    if (!number) return 1;
    lua_pushstring(L, sigabbrev_np(number));
    return 2;
}

/* ---- ending */

/* process:signal("TERM" or "KILL"): to the worker and the processes that it started */
static int process_signal(lua_State *L) {
    const char *name = luaL_checkstring(L, 2);
    send_signal(process_at(L), strcmp(name, "TERM") == 0 ? SIGTERM : SIGKILL);
    return 0;
}

/* process:hang_up(): closes the socket, after which the worker ends by itself */
static int process_hang_up(lua_State *L) {
    close_fd(&process_at(L)->channel);
    return 0;
}

/* process:wait(seconds) -> "exit" and the status, or "signal" and its name ("SEGV"); nothing: it still runs */
static int process_wait(lua_State *L) {
    Process *p = process_at(L);
    if (!wait_for(p, (double)luaL_checknumber(L, 2))) return 0;
    bool killed = WIFSIGNALED(p->status);
    lua_pushstring(L, killed ? "signal" : "exit");
    if (killed) lua_pushstring(L, sigabbrev_np(WTERMSIG(p->status)));
    else lua_pushinteger(L, WEXITSTATUS(p->status));
    return 2;
}

/* ---- logs */

/* process:log_size() -> bytes that the worker has printed since clear_log */
static int log_size(lua_State *L) {
    struct stat st;
    lua_pushinteger(L, fstat(process_at(L)->log, &st) ? 0 : (lua_Integer)st.st_size);
    return 1;
}

static int clear_log(lua_State *L) {
    if (ftruncate(process_at(L)->log, 0)) return fail_errno(L, "shorten a worker's log", NULL);
    lua_pushboolean(L, true);
    return 1;
}

/* process:log(most) -> the last bytes of the log, at most `most` */
static int log_text(lua_State *L) {
    const Process *p = process_at(L);
    size_t most = (size_t)luaL_checkinteger(L, 2);
    struct stat st;
    luaL_Buffer b;
    off_t from = fstat(p->log, &st) || (size_t)st.st_size <= most ? 0 : st.st_size - (off_t)most;
    char *room = luaL_buffinitsize(L, &b, most);
    ssize_t n = pread(p->log, room, most, from);
    luaL_pushresultsize(&b, n > 0 ? (size_t)n : 0);
    return 1;
}

static int copy_log(int from, int to, const char *header) {
    char bytes[16384];
    ssize_t n = (ssize_t)strlen(header);
    if (write(to, header, (size_t)n) != n) return -1;
    for (off_t at = 0; (n = pread(from, bytes, sizeof bytes, at)) > 0; at += n)
        if (write(to, bytes, (size_t)n) != n) return -1;
    return n < 0 ? -1 : 0;
}

/* process:save_log(folder, name, header) -> true: writes header and log to that file; makes the folder if needed */
static int save_log(lua_State *L) {
    const Process *p = process_at(L);
    const char *folder = luaL_checkstring(L, 2), *header = luaL_checkstring(L, 4);
    const char *path = lua_pushfstring(L, "%s/%s", folder, luaL_checkstring(L, 3));
    if (mkdir(folder, 0777) && errno != EEXIST) return fail_errno(L, "create the folder", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return fail_errno(L, "create", path);
    int failed = copy_log(p->log, fd, header);
    if (close(fd)) failed = -1;
    if (failed) return fail_errno(L, "write", path);
    lua_pushboolean(L, true);
    return 1;
}

/* ---- in the worker */

static void release_channel(void *content) { mem_free(content); }

/* worker_channel() -> Channel; nil, message: this process was not started by spawn */
static int worker_channel(lua_State *L) {
    struct stat channel, note;
    if (fstat(CHANNEL_FD, &channel) || fstat(NOTE_FD, &note) || !S_ISSOCK(channel.st_mode) || !S_ISREG(note.st_mode)) {
        lua_pushnil(L);
        lua_pushliteral(L, "--worker is for processes that memtide starts itself, not for the command line");
        lua_pushliteral(L, "usage");
        return 3;
    }
    /* otherwise programs that the script starts would keep the socket open after the worker's end */
    if (fcntl(CHANNEL_FD, F_SETFD, FD_CLOEXEC) || fcntl(NOTE_FD, F_SETFD, FD_CLOEXEC))
        return fail_errno(L, "set up the worker", NULL);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a crash loses no line */
    Box *box = bind_new(L, BOX_CHANNEL, release_channel);
    box->content = mem_new(1);
    return box->content ? 1 : bind_error(L, "out of host memory");
}

/* channel:receive() -> bytes; nil: the parent has ended */
static int channel_receive(lua_State *L) {
    bind_get(L, 1, BOX_CHANNEL);
    return receive(L, CHANNEL_FD, 0);
}

/* channel:send(bytes) -> true; nothing when the parent has ended */
static int channel_send(lua_State *L) {
    size_t n;
    bind_get(L, 1, BOX_CHANNEL);
    const char *data = luaL_checklstring(L, 2, &n);
    if (send_all(CHANNEL_FD, data, n)) return 0;
    lua_pushboolean(L, true);
    return 1;
}

/* channel:note(text), (text, i, n): "text" or "text i of n" */
static int channel_note(lua_State *L) {
    char text[NOTE_BYTES] = "";
    bind_get(L, 1, BOX_CHANNEL);
    const char *what = luaL_checkstring(L, 2);
    if (lua_isinteger(L, 3))
        snprintf(text, sizeof text, "%s %lld of %lld", what, (long long)lua_tointeger(L, 3),
                 (long long)lua_tointeger(L, 4));
    else snprintf(text, sizeof text, "%s", what);
    lua_pushboolean(L, pwrite(NOTE_FD, text, sizeof text, 0) == (ssize_t)sizeof text);
    return 1;
}

void bind_open_process(lua_State *L) {
    static const luaL_Reg of_process[] = {{"send", process_send}, {"receive", process_receive},
        {"note", process_note}, {"signal", process_signal}, {"hang_up", process_hang_up}, {"wait", process_wait},
        {"log_size", log_size}, {"clear_log", clear_log}, {"log", log_text}, {"save_log", save_log}, {NULL, NULL}};
    static const luaL_Reg of_channel[] = {{"receive", channel_receive}, {"send", channel_send},
        {"note", channel_note}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"clock", clock_now}, {"program", program_path}, {"is_root", is_root}, {"spawn", spawn}, {"poll", poll_all},
        {"catch_signals", catch_signals}, {"restore_signals", restore_signals},
        {"worker_channel", worker_channel}, {NULL, NULL}};
    bind_type(L, BOX_PROCESS, of_process);
    bind_type(L, BOX_CHANNEL, of_channel);
    luaL_setfuncs(L, functions, 0);
}
