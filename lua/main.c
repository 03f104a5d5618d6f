/* The program: a Lua state with memtide's modules at hand. What the command line means is in Lua: memtide/cli/cli.lua. */
#include <errno.h>
#include <lauxlib.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

static lua_State *interrupted_state; /* a signal handler has no argument of its own */

#define INTERRUPTED "memtide.interrupted" /* in the registry: what Ctrl-C raises */

static void raise_interrupt(lua_State *L, lua_Debug *ar) {
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    lua_getfield(L, LUA_REGISTRYINDEX, INTERRUPTED);
    lua_error(L);
}

/* The first Ctrl-C raises an error in the script, the second ends the process. */
static void on_interrupt(int signal_number) {
    signal(signal_number, SIG_DFL);
    lua_sethook(interrupted_state, raise_interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

/* main(arguments) -> exit status, under protection */
static int run(lua_State *L) {
    int argc = (int)lua_tointeger(L, 1);
    char **argv = lua_touserdata(L, 2);
    luaL_openlibs(L);
    modules_preload(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "memtide.base.util");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "interrupted");
    lua_setfield(L, LUA_REGISTRYINDEX, INTERRUPTED);
    signal(SIGINT, on_interrupt);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "memtide.cli.cli");
    lua_call(L, 1, 1);
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    bind_set_boolean(L, "workers", true); /* this program can be started again to run cells */
    lua_call(L, 1, 1);
    return 1;
}

/* Output that is lost is no success: a full disk shows in a write, or only in the last one. */
static int flush_output(int status) {
    bool flushed = fflush(stdout) == 0;
    const char *why = flushed ? "not everything could be written" : strerror(errno);
    if (status > 1 || (flushed && !ferror(stdout))) return status; /* a status above 1 has its message already */
    fprintf(stderr, "memtide: cannot write to standard output: %s\n", why);
    return 66;
}

static int out_of_memory(void) {
    fputs("memtide: out of host memory\n", stderr);
    return 71;
}

/* An error that the command line did not meet is a bug, unless it is a Ctrl-C before there was a command line. */
static int unexpected(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, INTERRUPTED);
    bool interrupted = lua_rawequal(L, -1, -2);
    const char *text = interrupted ? "interrupted" : lua_tostring(L, -2);
    fprintf(stderr, "memtide: %s\n", text ? text : "an error without text");
    return interrupted ? 130 : 70;
}

int main(int argc, char **argv) {
    lua_State *L = luaL_newstate();
    if (!L) return out_of_memory();
    interrupted_state = L;
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the write */
    lua_pushcfunction(L, run);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    int status;
    int failed = lua_pcall(L, 2, 1, 0);
    if (!failed) status = (int)lua_tointeger(L, -1);
    else if (failed == LUA_ERRMEM) status = out_of_memory();
    else status = unexpected(L);
    lua_close(L);
    return flush_output(status);
}
