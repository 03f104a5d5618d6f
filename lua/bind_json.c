/* JSON for Lua: a text as a table. */
#include <string.h>

#include "bind.h"
#include "io/json.h"

enum { DEEPEST = 32 }; /* levels of lists and objects */

static int push_value(lua_State *L, Json *j, int depth, Err *e);

/* A list, after its '['. */
static int push_list(lua_State *L, Json *j, int depth, Err *e) {
    int code = OK;
    lua_newtable(L);
    if (json_accept(j, ']')) return OK;
    for (lua_Integer i = 1; !code; i++) {
        if ((code = push_value(L, j, depth, e))) break;
        lua_rawseti(L, -2, i);
        if (!json_accept(j, ',')) return json_expect(j, ']', e);
    }
    return code;
}

/* An object, after its '{'. Of two fields of one name the last one counts. */
static int push_object(lua_State *L, Json *j, int depth, Err *e) {
    char *name;
    int code = OK;
    lua_newtable(L);
    if (json_accept(j, '}')) return OK;
    while (!code) {
        if ((code = json_string(j, &name, e))) break;
        lua_pushstring(L, name);
        if ((code = json_expect(j, ':', e)) || (code = push_value(L, j, depth, e))) break;
        lua_rawset(L, -3);
        if (!json_accept(j, ',')) return json_expect(j, '}', e);
    }
    return code;
}

/* Pushes the value that comes next. What is on the stack after an error does not matter. */
static int push_value(lua_State *L, Json *j, int depth, Err *e) {
    double number;
    int64_t integer;
    bool whole;
    char *text;
    if (depth == DEEPEST) return json_expected(j, "at most 32 levels of lists and objects", e);
    luaL_checkstack(L, 4, "JSON");
    if (json_accept(j, '[')) return push_list(L, j, depth + 1, e);
    if (json_accept(j, '{')) return push_object(L, j, depth + 1, e);
    const char word = json_word(j);
    if (word) lua_pushboolean(L, word == 't');
    if (word) return OK;
    if (j->at < j->end && *j->at == '"') {
        const int code = json_string(j, &text, e);
        if (!code) lua_pushstring(L, text);
        return code;
    }
    const int code = json_number(j, &number, &integer, &whole, e);
    if (code) return code;
    if (whole) lua_pushinteger(L, integer);
    else lua_pushnumber(L, number);
    return OK;
}

/* json(text, what) -> the value: tables, texts, numbers, true, false; null is false, so that what is null differs from
 * what is not there. what: the text's name in messages */
static int json(lua_State *L) {
    Err e;
    Json j;
    size_t n;
    const char *text = luaL_checklstring(L, 1, &n), *what = luaL_checkstring(L, 2);
    char *copy = lua_newuserdatauv(L, n + 1, 0);
    memcpy(copy, text, n + 1);
    if (json_open(&j, copy, n, what, &e) || push_value(L, &j, 0, &e) || json_end(&j, &e)) return bind_fail(L, &e);
    return 1;
}

void bind_open_json(lua_State *L) {
    static const luaL_Reg functions[] = {{"json", json}, {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
