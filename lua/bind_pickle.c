/* Pickles for scripts: a value of Lua as a file that Python reads. */
#include "bind.h"
#include "io/pickle_write.h"

#define BOX_PICKLE "memtide.Pickle"

enum { DEPTH = 50 }; /* most tables inside of tables that are put for the first time */

/* What write_pickle keeps on the stack: the table of numbers that values are remembered by is at KNOWN. */
enum { PATH = 1, VALUE, KNOWN };

static void release_pickle(void *content) { pickle_discard(content); }

/* Was the value on top of the stack put before? Then it is put again; else it gets the next number. */
static bool put_again(lua_State *L, PickleFile *f, uint32_t *number) {
    lua_pushvalue(L, -1);
    const bool known = lua_rawget(L, KNOWN) == LUA_TNUMBER;
    if (known) pickle_put_again(f, (uint32_t)lua_tointeger(L, -1));
    lua_pop(L, 1);
    if (known) return true;
    lua_pushvalue(L, -1);
    lua_pushinteger(L, *number = (uint32_t)lua_rawlen(L, KNOWN));
    lua_rawset(L, KNOWN);
    lua_pushboolean(L, true); /* KNOWN's items count the numbers */
    lua_rawseti(L, KNOWN, *number + 1);
    return false;
}

static void put_value(lua_State *L, PickleFile *f, int depth);

static void put_list(lua_State *L, PickleFile *f, int depth) {
    const lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        put_value(L, f, depth);
        lua_pop(L, 1);
        pickle_append(f);
    }
}

/* Pushes the keys of the table on top of the stack as a list in order, so that equal values make equal files. A dict has few. */
static lua_Integer push_keys(lua_State *L) {
    const int table = lua_gettop(L), keys = table + 1, key = table + 2;
    lua_Integer n = 0;
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        lua_Integer at = ++n;
        for (; at > 1; at--) {
            lua_rawgeti(L, keys, at - 1);
            const bool here = lua_compare(L, -1, key, LUA_OPLT);
            if (here) lua_pop(L, 1);
            if (here) break;
            lua_rawseti(L, keys, at);
        }
        lua_pushvalue(L, key);
        lua_rawseti(L, keys, at);
    }
    return n;
}

static void put_dict(lua_State *L, PickleFile *f, int depth) {
    const lua_Integer n = push_keys(L);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        put_value(L, f, depth);
        lua_rawget(L, -3);
        put_value(L, f, depth);
        lua_pop(L, 1);
        pickle_set(f);
    }
    lua_pop(L, 1);
}

/* A table with a first item, or with nothing, is a list. */
static void put_table(lua_State *L, PickleFile *f, int depth) {
    uint32_t number;
    if (put_again(L, f, &number)) return;
    if (depth == DEPTH) luaL_error(L, "a pickle of more than %d tables inside of each other", DEPTH);
    luaL_checkstack(L, 8, "a pickle");
    lua_pushnil(L);
    const bool empty = !lua_next(L, -2);
    if (!empty) lua_pop(L, 2);
    const bool list = empty || lua_rawlen(L, -1) > 0;
    (list ? pickle_put_list : pickle_put_dict)(f);
    pickle_remember(f, number);
    (list ? put_list : put_dict)(L, f, depth + 1);
}

static void put_text(lua_State *L, PickleFile *f) {
    uint32_t number;
    size_t n;
    if (put_again(L, f, &number)) return;
    const char *text = lua_tolstring(L, -1, &n);
    pickle_put_text(f, text, n);
    pickle_remember(f, number);
}

/* Puts the value on top of the stack. */
static void put_value(lua_State *L, PickleFile *f, int depth) {
    const int type = lua_type(L, -1);
    if (type == LUA_TTABLE) put_table(L, f, depth);
    else if (type == LUA_TSTRING) put_text(L, f);
    else if (type == LUA_TBOOLEAN) pickle_put_bool(f, lua_toboolean(L, -1));
    else if (lua_isinteger(L, -1)) pickle_put_int(f, lua_tointeger(L, -1));
    else luaL_error(L, "a pickle holds tables, texts, whole numbers and booleans, found %s", luaL_typename(L, -1));
}

/* write_pickle(path, value) -> true: the file is complete. Tables are lists (with a first item, or with nothing) or dicts; a
 * table or a text that is there twice is one object. Numbers are whole. */
static int write_pickle(lua_State *L) {
    Err e;
    PickleFile *f;
    const char *path = luaL_checkstring(L, PATH);
    lua_settop(L, VALUE);
    lua_newtable(L);
    Box *box = bind_new(L, BOX_PICKLE, release_pickle);
    if (pickle_new(path, &f, &e)) return bind_fail(L, &e);
    box->content = f;
    lua_pushvalue(L, VALUE);
    put_value(L, f, 0);
    box->content = NULL;
    if (pickle_finish(f, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

void bind_open_pickle(lua_State *L) {
    static const luaL_Reg functions[] = {{"write_pickle", write_pickle}, {NULL, NULL}};
    bind_type(L, BOX_PICKLE, NULL);
    luaL_setfuncs(L, functions, 0);
}
