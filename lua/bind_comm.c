/* The ranks of a training for scripts: what `memtide --rank` is (lua/memtide/sweep/rank.lua). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "bind.h"
#include "memory/device.h"

#define BOX_COMM "memtide.Comm"

/* The ranks of all processes, and those along each axis, once they are attached to a device. */
typedef struct Ranks { Comm *all, *axis[MESH_AXES]; } Ranks;

static void release(void *content) {
    Ranks *r = content;
    for (int axis = 0; axis < MESH_AXES; axis++)
        if (r->axis[axis] != r->all) comm_close(r->axis[axis]);
    comm_close(r->all);
    mem_free(r);
}

/* What this rank is doing, for its last words; global, because a signal handler gets no argument. */
static struct {
    volatile sig_atomic_t waits; /* for other ranks */
    char rank[12], note[128];
} doing;

static Ranks *ranks_at(lua_State *L) { return bind_get(L, 1, BOX_COMM); }

/* comm() -> Comm: of the processes that mpirun has started with this one; nil, message, code */
static int open_comm(lua_State *L) {
    Err e;
    Box *box = bind_new(L, BOX_COMM, release);
    Ranks *r = mem_new(sizeof *r);
    if (!r) return bind_error(L, "out of host memory");
    box->content = r;
    Comm *opened;
    if (comm_open(&opened, &e)) return bind_fail(L, &e);
    if (comm_watch(opened, &doing.waits, &r->all, &e)) {
        comm_close(opened);
        return bind_fail(L, &e);
    }
    snprintf(doing.rank, sizeof doing.rank, "%d", opened->rank);
    return 1;
}

/* comm:rank() -> this process's number, from 0, and how many there are */
static int rank(lua_State *L) {
    const Ranks *r = ranks_at(L);
    lua_pushinteger(L, r->all->rank);
    lua_pushinteger(L, r->all->world);
    return 2;
}

/* comm:device(name) -> the name of this rank's own device; nil, message, code: see device_of_rank */
static int device_name(lua_State *L) {
    Err e;
    char own[DEVICE_NAME];
    if (device_of_rank(luaL_checkstring(L, 2), ranks_at(L)->all->world, own, &e)) return bind_fail(L, &e);
    lua_pushstring(L, own);
    return 1;
}

/* A group of the ranks that give this color; NULL where it would be one alone. */
static int group_of(Ranks *r, int size, int color, Comm **out, Err *e) {
    *out = size == 1 ? NULL : r->all;
    return size == 1 || size == r->all->world ? OK : r->all->table->split(r->all, color, out, e);
}

/* comm:attach(device, data, tensor, pipeline) -> true: the device's collective ops are those of these ranks, arranged as
 * MeshSizes says; the sizes multiply to their number */
static int attach(lua_State *L) {
    Err e;
    Ranks *r = ranks_at(L);
    Device *device = bind_get(L, 2, BOX_DEVICE);
    const int data = (int)luaL_checkinteger(L, 3), tensor = (int)luaL_checkinteger(L, 4), pipeline = (int)luaL_checkinteger(L, 5);
    const int at = r->all->rank;
    int code = group_of(r, data, at / (data * tensor) * tensor + at % tensor, &r->axis[MESH_DATA], &e);
    if (!code) code = group_of(r, tensor, at / tensor, &r->axis[MESH_TENSOR], &e);
    if (!code) code = group_of(r, pipeline, at % (data * tensor), &r->axis[MESH_PIPELINE], &e);
    for (int axis = 0; axis < MESH_AXES && !code; axis++)
        if (r->axis[axis]) code = device_join(device, (MeshAxis)axis, r->axis[axis], &e);
    if (code) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* comm:gather(text) -> {the text of each rank}; nil, message, code */
static int gather(lua_State *L) {
    Err e;
    const Ranks *r = ranks_at(L);
    Comm *c = r->all;
    size_t length, at = 0, all = 0;
    const char *text = luaL_checklstring(L, 2, &length);
    size_t *lengths = lua_newuserdatauv(L, (size_t)c->world * 2 * sizeof *lengths, 0), *sizes = lengths + c->world;
    for (int k = 0; k < c->world; k++) sizes[k] = sizeof *lengths;
    lengths[c->rank] = length;
    if (c->table->gather(c, lengths, sizes, &e)) return bind_fail(L, &e);
    for (int k = 0; k < c->world; k++) {
        if (k < c->rank) at += lengths[k];
        all += lengths[k];
    }
    char *texts = lua_newuserdatauv(L, all + 1, 0);
    memcpy(texts + at, text, length);
    if (c->table->gather(c, texts, lengths, &e)) return bind_fail(L, &e);
    lua_createtable(L, c->world, 0);
    for (int k = 0; k < c->world; texts += lengths[k++]) {
        lua_pushlstring(L, texts, lengths[k]);
        lua_rawseti(L, -2, k + 1);
    }
    return 1;
}

/* comm:broadcast(text) -> the text of rank 0; others may give nil. nil, message, code */
static int broadcast(lua_State *L) {
    Err e;
    Comm *c = ranks_at(L)->all;
    size_t length = 0;
    const char *text = c->rank == 0 ? luaL_checklstring(L, 2, &length) : NULL;
    if (c->table->broadcast(c, &length, sizeof length, 0, &e)) return bind_fail(L, &e);
    char *bytes = lua_newuserdatauv(L, length + 1, 0);
    if (text) memcpy(bytes, text, length);
    if (c->table->broadcast(c, bytes, length, 0, &e)) return bind_fail(L, &e);
    lua_pushlstring(L, bytes, length);
    return 1;
}

/* comm:abort(status): ends the processes of all ranks */
static int end_all(lua_State *L) {
    Comm *c = ranks_at(L)->all;
    c->table->abort(c, (int)luaL_checkinteger(L, 2));
    return 0;
}

/* ---- what a rank says to the process that has started its group: by its standard output, which mpirun forwards. What the
 * script prints goes to standard error, so that it does not get between. */

static int said = -1; /* a copy of the descriptor; global, because a process has one standard output */

/* SIGTERM ends a rank that has no end by itself. It says in its log what it is doing, from which the worker learns which rank
 * the others wait for (ranks.lua). Only calls that are safe in a signal handler; one write, so that no other rank's words get
 * between. */
static void last_words(int number) {
    const char *const parts[] = {"memtide: rank ", doing.rank, doing.waits ? " waits while " : " is ", doing.note, "\n"};
    char text[sizeof doing + 64];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        for (const char *c = parts[i]; *c && n < sizeof text; c++) text[n++] = *c;
    const ssize_t written = write(STDERR_FILENO, text, n);
    (void)written; /* nobody is left to be told */
    signal(number, SIG_DFL);
    raise(number);
}

/* rank_note(text), (text, i, n): what this rank is doing, "text" or "text i of n" */
static int rank_note(lua_State *L) {
    const char *what = luaL_checkstring(L, 1);
    if (lua_isinteger(L, 2))
        snprintf(doing.note, sizeof doing.note, "%s %lld of %lld", what, (long long)lua_tointeger(L, 2), (long long)lua_tointeger(L, 3));
    else snprintf(doing.note, sizeof doing.note, "%s", what);
    return 0;
}

/* rank_output() -> true: from now on prints go to standard error. The rank ends when what has started it ends, and tells by
 * its last words what it was doing. */
static int rank_output(lua_State *L) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, last_words);
    said = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    if (said < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        Err e;
        err_set(&e, ERR_FILE, "cannot set up a rank's output: %s", strerror(errno));
        return bind_fail(L, &e);
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a crash loses no line */
    lua_pushboolean(L, true);
    return 1;
}

/* rank_say(bytes) -> true; nothing where nobody listens any more */
static int rank_say(lua_State *L) {
    size_t n;
    const char *data = luaL_checklstring(L, 1, &n);
    while (n) {
        const ssize_t done = write(said, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        data += done;
        n -= (size_t)done;
    }
    lua_pushboolean(L, true);
    return 1;
}

/* rank_hear() -> the next bytes of standard input; nil at its end */
static int rank_hear(lua_State *L) {
    char bytes[65536];
    ssize_t n;
    do n = read(STDIN_FILENO, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR);
    if (n <= 0) return 0;
    lua_pushlstring(L, bytes, (size_t)n);
    return 1;
}

void bind_open_comm(lua_State *L) {
    static const luaL_Reg methods[] = {{"rank", rank}, {"device", device_name}, {"attach", attach}, {"gather", gather}, {"broadcast", broadcast},
        {"abort", end_all}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"comm", open_comm}, {"rank_output", rank_output}, {"rank_note", rank_note}, {"rank_say", rank_say},
        {"rank_hear", rank_hear}, {NULL, NULL}};
    bind_type(L, BOX_COMM, methods);
    luaL_setfuncs(L, functions, 0);
}
