/* lua.c: the targets that are written in Lua, functions of targets.lua in a state with memtide's modules. */
#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>

#include "../../lua/bind.h"
#include "fuzz.h"

static lua_State *state(void) {
    static lua_State *L;
    const char *path = getenv("FUZZ_LUA");
    if (L) return L;
    L = luaL_newstate();
    if (!L) fuzz_failed("no memory for a Lua state");
    luaL_openlibs(L);
    modules_preload(L);
    if (luaL_dofile(L, path ? path : "tests/fuzz/targets.lua")) fuzz_failed("%s", lua_tostring(L, -1));
    return L;
}

/* The function says itself what may be raised; what it raises, nobody expected. */
static void run(const char *name, const uint8_t *data, size_t n) {
    lua_State *L = state();
    lua_settop(L, 1);
    lua_getfield(L, 1, name);
    lua_pushlstring(L, (const char *)data, n);
    lua_pushstring(L, fuzz_file(0, data, n));
    if (lua_pcall(L, 2, 0, 0)) fuzz_failed("%s: %s", name, lua_tostring(L, -1));
    lua_gc(L, LUA_GCCOLLECT); /* what is there after an input is a leak, to libFuzzer and to mem_live */
}

void fuzz_state(const uint8_t *data, size_t n) { run("state", data, n); }
void fuzz_wire(const uint8_t *data, size_t n) { run("wire", data, n); }
void fuzz_list(const uint8_t *data, size_t n) { run("list", data, n); }
