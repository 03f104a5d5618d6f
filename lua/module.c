/* The modules written in Lua, embedded by embed.lua, and the entry point of memtide.so. */
#include <stddef.h>

#include "bind.h"

struct EmbeddedModule { const char *name, *chunk; const unsigned char *source; size_t length; };
extern const struct EmbeddedModule embedded_modules[];

/* The loader that `require` calls; upvalue 1 is the EmbeddedModule. */
static int load_module(lua_State *L) {
    const struct EmbeddedModule *m = lua_touserdata(L, lua_upvalueindex(1));
    if (luaL_loadbufferx(L, (const char *)m->source, m->length, m->chunk, "t") != LUA_OK) return lua_error(L);
    lua_pushstring(L, m->name);
    lua_call(L, 1, 1);
    return 1;
}

void modules_preload(lua_State *L) {
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    for (const struct EmbeddedModule *m = embedded_modules; m->name; m++) {
        lua_pushlightuserdata(L, (void *)(uintptr_t)m);
        lua_pushcclosure(L, load_module, 1);
        lua_setfield(L, -2, m->name);
    }
    lua_pushcfunction(L, luaopen_memtide_core);
    lua_setfield(L, -2, "memtide.core");
    lua_pop(L, 1);
}

/* For require "memtide" in a plain lua5.4 */
int luaopen_memtide(lua_State *L) {
    modules_preload(L);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_getfield(L, -1, "memtide");
    lua_call(L, 0, 1);
    return 1;
}
