/* The program: it makes a Lua state with memtide's modules and calls memtide/cli/cli.lua, which reads the command line. */
#include <errno.h>
#include <lauxlib.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

static lua_State *interrupted_state; /* global, because a signal handler gets no argument */

#define INTERRUPTED "memtide.interrupted" /* registry key of the value that Ctrl-C raises */

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

/* (argc, argv) -> exit status; called with lua_pcall */
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
    bind_set_boolean(L, "workers", true); /* this program, unlike memtide.so, can start itself to run cells */
    lua_call(L, 1, 1);
    return 1;
}

/* Lost output is a failure. A full disk may show only in the last write, which is here. */
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

/* cli.lua handles all errors, so an error here is a bug, unless Ctrl-C came before cli.lua ran. */
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
    signal(SIGXFSZ, SIG_IGN); /* a write above the limit of file sizes then fails instead of ending the process */
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
